"""One JSON document for each run of a strategy's benchmark: what was run, when, where, on what evidence."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import fusiond
from fusiond.build import nvcc
from fusiond.model.nouns import DeviceInfo
from fusiond.model.system import driver

RESULTS = Path(__file__).parent / "results"

Run = dict[str, Any]  #: The document of a run


def new(benchmark: str, citation: str, command: str, evidence: str, device: dict[str, Any]) -> Run:
    """A document without figures. `evidence` is `measured`, `emulated`, or what it is instead: `static` (the
    compiler's or the planner's word), `planning`, `counted`."""
    return {
        "benchmark": benchmark,
        "evidence": evidence,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "device": device,
        "driver": driver.version(),
        "nvcc": nvcc.version(),
        "fusiond": fusiond.__version__,
        "machine": {
            "processor": platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "load_at_start": round(os.getloadavg()[0], 1),
        },
        "paper": citation,
    }


def described(device: DeviceInfo) -> dict[str, Any]:
    """A device, as documents name it."""
    return {"name": device.name, "model": device.model, "arch": device.arch, "env": dict(device.env)}


def kept_on(where: Path, device: DeviceInfo) -> Run | None:
    """What a file has of an earlier run on this model of device; None where it has nothing of it."""
    if not where.exists():
        return None
    found: Run = json.loads(where.read_text(encoding="utf-8"))
    return found if found["device"]["model"] == device.model else None


def path(folder: Path, run: Run) -> Path:
    """Where a run is kept: a measurement is a file of its own, anything else replaces the one before."""
    name = run["benchmark"]
    if run["evidence"] not in ("measured", "emulated"):
        return folder / f"{name}.json"
    stamp = re.sub(r"[^0-9T]", "", run["date"].partition("+")[0])
    return folder / f"{name}-{stamp}.json"


def write(where: Path, run: Run) -> None:
    """The whole file or none of it: a run that is interrupted leaves what it had."""
    where.parent.mkdir(parents=True, exist_ok=True)
    work = where.with_suffix(".json.new")
    work.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
    work.replace(where)


def kept(benchmark: str, folder: Path = RESULTS) -> Iterator[Run]:
    """Every run of a benchmark that is kept under a folder, oldest first within each device. Those of a GPU say whether
    they are `vouched` for: that several rulers agree on that device with that driver (benchmarks/agreement.py)."""
    for each in sorted(folder.rglob(f"{benchmark}*.json")):
        run = json.loads(each.read_text(encoding="utf-8"))
        if isinstance(run, dict) and run.get("benchmark") == benchmark:
            if run["evidence"] == "measured":
                run["vouched"] = benchmark == "agreement" or any(_same_ruler(run, other) for other in _agreements(each))
            yield run


def _agreements(path: Path) -> Iterator[Run]:
    for each in path.parent.glob("agreement-*.json"):
        run: Run = json.loads(each.read_text(encoding="utf-8"))
        if run.get("agrees"):
            yield run


def _same_ruler(run: Run, agreement: Run) -> bool:
    return bool(run["driver"] == agreement["driver"] and run["device"].get("model") == agreement["device"].get("model"))


def newest(runs: Iterable[Run], evidence: str) -> list[Run]:
    """The last run of each device on this evidence, in the order of the devices' names. What nobody vouches for is left
    out."""
    found: dict[str, Run] = {}
    for run in sorted(runs, key=lambda each: str(each["date"])):
        if run["evidence"] == evidence and run.get("vouched", True):
            found[str(run["device"].get("model") or run["device"].get("arch", ""))] = run
    return [run for _, run in sorted(found.items())]


def slug(model: str) -> str:
    """`NVIDIA H200` -> `nvidia-h200`, for a folder."""
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-") or "device"
