"""The control: native against native must not be called faster. `python -m benchmarks.control [--bundles DIR]
[--out FILE]`, JSON on standard output and in the file, which is renewed after each bundle and gone on from.

Each unfused bundle of a folder (see `fusiond.devices.check`; without one, of the cpu device's small catalogue, built
here) is measured against a copy of itself as a finalist is: in
five fresh processes, ten pairs each, interval over the processes. `fuse` would be a mistake; `undecided` is none.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import runs
from fusiond.devices import check, protocol
from fusiond.devices.base import MORE
from fusiond.devices.lock import device_lock
from fusiond.devices.supervisor import Supervisor
from fusiond.devices.timing import Sampling
from fusiond.keys import plain
from fusiond.model import DeviceInfo, MeasureFailed, Measurement, Purpose
from fusiond.tuning import verdict

LEAST_GAIN = 1.02
MOST_LOST = 10
"""As in `fusiond.tuning.finals`, which needs more than NumPy."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundles", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--most", type=int, default=40, help="of the bundles; default: 40")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin none after so long")
    parser.add_argument("--out", type=Path, metavar="FILE")
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    provider, device = check.find(given.device)
    found: list[dict[str, Any]] = []
    if given.out is not None and given.out.exists():
        known = json.loads(given.out.read_text())
        found = known["controls"] if known["model"] == device.model else []
    left = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        device_lock(device, stop=lambda: False, waiting=lambda text: None),
    ):
        runner = Supervisor(provider, device)
        bundles = given.bundles or built(Path(folder) / "bundles")
        entries = [each for each in check.read_index(bundles) if each.get("expect") != "any"]
        done = {each["name"] for each in found}
        for entry in spread(entries, given.most):
            if entry["name"] in done:
                continue
            if time.monotonic() > end:
                left += 1
                continue
            found.append(control(runner, bundles / entry["native"], Path(folder), entry["name"]))
            sys.stderr.write(f"{found[-1]['name']}: {found[-1]['verdict']}\n")
            if given.out is not None:
                runs.write(given.out, document(device, found))
        runner.close()
    print(json.dumps(document(device, found), indent=1))
    return MORE if left else 0


def document(device: DeviceInfo, found: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "device": device.name,
        "model": device.model,
        "evidence": device.evidence,
        "least_gain": LEAST_GAIN,
        "verdicts": dict(Counter(each["verdict"] for each in found)),
        "controls": found,
    }


def built(folder: Path) -> Path:
    """The unfused programs of the catalogue for the cpu device, without candidates."""
    from fusiond.registry import Registry
    from tools.gpu_box import build  # not in the folder that it builds

    _, failed = build.write_bundles(Registry.load(), folder, "cpu", 0, list(build.REQUESTS))
    if failed:
        raise SystemExit(failed[0])
    return folder


def spread(entries: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """So many of them, evenly: each strategy has its place in the list."""
    wanted = min(most, len(entries))
    return [entries[number * len(entries) // wanted] for number in range(wanted)]


def control(runner: Supervisor, bundle: Path, folder: Path, name: str) -> dict[str, Any]:
    """One verdict on a bundle against its copy: buffers of its own, and nothing else is different."""
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(bundle, copy)
    logs: list[float] = []
    samples: list[Any] = []
    reason = ""
    for _ in range(verdict.LEAST_PROCESSES + MOST_LOST):  # as in the finals: a noisy one is repeated
        if len(logs) == verdict.LEAST_PROCESSES:
            break
        runner.fresh()
        request = protocol.SampleRequest(
            candidate=str(copy), baseline=str(bundle), plan=Sampling(purpose=Purpose.FINAL)
        )
        reply = runner.call(request, 120)
        if isinstance(reply, Measurement):
            logs.append(verdict.process_ratio(reply))
            samples.append(plain(reply))
        elif isinstance(reply, MeasureFailed):
            reason = f"{reply.outcome.value}: {reply.reason}"
    concluded = verdict.conclude({"copy": logs}, LEAST_GAIN)
    if concluded is None:
        return {"name": name, "verdict": "failed", "reason": reason, "samples": samples}
    return {
        "name": name,
        "verdict": concluded.verdict.value,
        "speedup": round(concluded.estimate.speedup, 4),
        "ci95": [round(concluded.estimate.low, 4), round(concluded.estimate.high, 4)],
        "processes": [round(math.exp(each), 4) for each in logs],
        "samples": samples,
    }


if __name__ == "__main__":
    raise SystemExit(main())
