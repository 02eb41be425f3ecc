"""One JSON file for each run: what was run, when, where, on what evidence."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fusiond
from benchmarks.hfuse.paper import CITATION
from fusiond import driver
from fusiond.build import nvcc

RESULTS = Path(__file__).parent.parent / "results"

Run = dict[str, Any]
"""The document of a run."""


def new(command: str, evidence: str, device: dict[str, Any]) -> Run:
    """An empty document. `evidence` is `static` (the compiler's word), `measured` or `emulated`."""
    return {
        "benchmark": "hfuse",
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
        "paper": CITATION,
        "pairs": [],
    }


def path(folder: Path, run: Run) -> Path:
    """Static facts replace the ones before; a measurement is a file of its own."""
    if run["evidence"] == "static":
        return folder / "hfuse.json"
    stamp = re.sub(r"[^0-9T]", "", run["date"].partition("+")[0])
    return folder / f"hfuse-{stamp}.json"


def write(where: Path, run: Run) -> None:
    """The whole file or none of it: a run that is interrupted leaves what it had."""
    where.parent.mkdir(parents=True, exist_ok=True)
    work = where.with_suffix(".json.new")
    work.write_text(json.dumps(run, indent=1) + "\n")
    work.replace(where)


def kept(folder: Path = RESULTS) -> Iterator[Run]:
    """Every run of this benchmark that is kept under a folder, oldest first within each device."""
    for each in sorted(folder.rglob("hfuse*.json")):
        run = json.loads(each.read_text())
        if isinstance(run, dict) and run.get("benchmark") == "hfuse":
            yield run


def slug(model: str) -> str:
    """`NVIDIA H200` -> `nvidia-h200`, for a folder."""
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-") or "device"
