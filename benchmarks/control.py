"""The control: native against native must not be called faster. `python -m benchmarks.control [--bundles DIR]
[--cold] [--out FILE]`, JSON on standard output and in the file, which is renewed after each process and gone on from.

Each unfused bundle of a folder (see `fusiond.devices.check`; without one, of the cpu device's small catalogue, built
here) is measured against a copy of itself as a finalist is: in five fresh processes that measure all of them, interval
over the processes; with `--cold` also with the cache flushed before each run. `fuse` would be a mistake; `undecided` is
none. The exit status is 1 where one is called `fuse`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import contest, runs
from benchmarks.contest import LEAST_GAIN, Match, Samples
from fusiond.devices import check
from fusiond.devices.base import MORE
from fusiond.devices.lock import device_lock
from fusiond.devices.supervisor import Supervisor
from fusiond.model.nouns import DeviceInfo
from fusiond.tuning import verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundles", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--most", type=int, default=40, help="of the bundles; default: 40")
    parser.add_argument("--cold", action="store_true", help="also with the cache flushed before each run")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no process after so long")
    parser.add_argument("--out", type=Path, metavar="FILE")
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    provider, device = check.find(given.device)
    known: dict[str, Any] = {}
    if given.out is not None and given.out.exists():
        document_ = json.loads(given.out.read_text())
        known = document_["samples"] if document_["model"] == device.model else {}
    with tempfile.TemporaryDirectory() as folder, device_lock(device, stop=lambda: False, waiting=lambda text: None):
        bundles = given.bundles or built(Path(folder) / "bundles")
        every = [each for each in check.read_index(bundles) if each.get("expect") != "any"]
        entries = contest.spread(every, given.most)
        matches = dict(against_themselves(bundles, entries, Path(folder), cold=given.cold))
        found = {name: Samples.read(known[name]) if name in known else Samples() for name in matches}

        def keep(name: str) -> None:
            sys.stderr.write(f"{name}: {len(found[name].processes)} processes\n")
            if given.out is not None:
                runs.write(given.out, document(device, found))

        runner = Supervisor(provider, device)
        try:
            groups = {name: {name: match} for name, match in matches.items()}
            done = contest.measure(runner, groups, found, until=end, keep=keep)
        finally:
            runner.close()
    made = document(device, found)
    print(json.dumps(made, indent=1))
    return 1 if made["verdicts"].get("fuse") else 0 if done else MORE


def against_themselves(
    bundles: Path, entries: Iterable[dict[str, Any]], folder: Path, *, cold: bool
) -> Iterable[tuple[str, Match]]:
    """(name, a bundle beside its copy: buffers of its own, and nothing else is different)"""
    for number, entry in enumerate(entries):
        native, copy = bundles / entry["native"], folder / f"copy-{number}"
        shutil.copytree(native, copy)
        for flushed in (False, True) if cold else (False,):
            name = f"{entry['name']}, cold" if flushed else entry["name"]
            yield name, Match(candidate=copy, baseline=native, cold=flushed)


def document(device: DeviceInfo, found: Mapping[str, Samples]) -> dict[str, Any]:
    controls = [control(name, samples) for name, samples in found.items()]
    return {
        "device": device.name,
        "model": device.model,
        "evidence": device.evidence,
        "least_gain": LEAST_GAIN,
        "verdicts": dict(Counter(each["verdict"] for each in controls)),
        "controls": controls,
        "samples": {name: samples.document() for name, samples in found.items()},
    }


def control(name: str, found: Samples) -> dict[str, Any]:
    """The verdict on one bundle against its copy."""
    measured = [each[name] for each in found.shared([name])]
    concluded = contest.concluded({name: [verdict.process_ratio(each) for each in measured]})
    if concluded is None:
        return {"name": name, "verdict": "failed", "reason": found.lost.get(name, "not enough processes")}
    del concluded["winner"]
    spans = sorted(each.time_us for each in measured)
    return {"name": name, "time_us": round(spans[len(spans) // 2], 3), **concluded}


def built(folder: Path) -> Path:
    """The unfused programs of the catalogue for the cpu device, without candidates."""
    from fusiond.requests.registry import Registry
    from tools.gpu_box import build  # not in the folder that it builds

    _, failed = build.write_bundles(Registry.load(), folder, "cpu", 0, list(build.REQUESTS))
    if failed:
        raise SystemExit(failed[0])
    return folder


if __name__ == "__main__":
    raise SystemExit(main())
