"""NVIDIA's compute-sanitizer over one run of a bundle: `python -m fusiond.devices.cuda.sanitize BUNDLE_OR_FOLDER`.

memcheck finds accesses out of bounds and misaligned ones, racecheck races in shared memory, synccheck barriers that not
all threads reach. Each is a run of its own, many times slower than without. With a folder that has an index.json
(`fusiond.devices.check`) the first candidate of each entry is looked at.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from fusiond.devices.base import MORE
from fusiond.model.system import children, faults
from fusiond.model.system.tail import last_line

TOOLS = ("memcheck", "racecheck", "synccheck")
ENVIRONMENT = "FUSIOND_COMPUTE_SANITIZER"
_FOUND = 86  #: The exit status that it is asked for when it finds something
_ERROR = re.compile(
    r"^=+ (?:Error: |Warning: )?((?:Invalid|Error|Race|Potential|Barrier|Misaligned|Program hit)[^\n]*)", re.M
)


class NotHere(LookupError):
    """There is no compute-sanitizer, or it cannot look at this device; the text says which."""


def find() -> str:
    """The executable: FUSIOND_COMPUTE_SANITIZER, else compute-sanitizer on the PATH. Raises NotHere."""
    path = shutil.which(os.environ.get(ENVIRONMENT) or "compute-sanitizer")
    if path is None:
        raise NotHere(f"compute-sanitizer is not on PATH (it is part of the CUDA toolkit; or set {ENVIRONMENT})")
    return path


def sanitize(bundle: Path, device: str, *, timeout_secs: float = 600.0) -> tuple[str, ...]:
    """A line for each kind of error that the tools find in a checked run of a bundle; none is what one hopes for.
    Raises NotHere."""
    found = []
    for tool in TOOLS:
        found += [f"{tool}: {line}" for line in _run(find(), tool, bundle, device, timeout_secs)]
    return tuple(found)


def _run(executable: str, tool: str, bundle: Path, device: str, timeout_secs: float) -> list[str]:
    command = [executable, "--tool", tool, "--error-exitcode", str(_FOUND), "--print-limit", "20"]
    command += [sys.executable, "-m", "fusiond.devices.cuda.run", str(bundle), "--device", device]
    try:
        done = children.run(command, timeout_secs=timeout_secs)
    except subprocess.TimeoutExpired:
        return [f"no end after {timeout_secs:.0f} s"]
    except OSError as problem:
        raise faults.of_system(problem, executable) or NotHere(f"{executable}: {problem.strerror}") from None
    fault = faults.of_end(done.returncode, tool)
    if fault is not None:
        raise fault
    text = done.stdout + done.stderr
    if "Device not supported" in text or "Unable to find injection library" in text:
        raise NotHere(f"{executable} cannot look at this device")
    lines = list(dict.fromkeys(_ERROR.findall(text)))
    last = last_line(text)[:300] or "no message"
    if done.returncode == 0:
        return []
    if done.returncode == _FOUND or lines:
        return lines or [last]
    return [f"the run failed with status {done.returncode}: {last}"]


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 no errors, 1 some, 2 the request was wrong or there is no compute-sanitizer, MORE: bundles are
    left."""
    parser = argparse.ArgumentParser(prog="python -m fusiond.devices.cuda.sanitize")
    parser.add_argument("bundle", type=Path, help="a bundle, or a folder with an index.json")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the results as JSON, after each bundle; gone on with")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECS", help="of each tool's run")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="bundles that are looked at at once")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin none after so long")
    given = parser.parse_args(argv)
    end = time.monotonic() + 60 * given.minutes
    bundles = {given.bundle.name: given.bundle}
    if (given.bundle / "index.json").is_file():
        entries = json.loads((given.bundle / "index.json").read_text())["entries"]
        bundles = {
            each["name"]: given.bundle / each["candidates"][0]["path"]
            for each in entries
            if each["candidates"] and each.get("expect") != "any"
        }
    results: dict[str, Any] = {}
    if given.out is not None and given.out.exists():
        results = json.loads(given.out.read_text())["results"]

    def look_at(bundle: Path) -> tuple[str, ...] | None:
        return None if time.monotonic() > end else sanitize(bundle, given.device, timeout_secs=given.timeout)

    with ThreadPoolExecutor(given.jobs) as pool:
        looks = {pool.submit(look_at, bundle): name for name, bundle in bundles.items() if name not in results}
        try:
            for look in as_completed(looks):
                name, found = looks[look], look.result()
                if found is None:
                    continue
                results[name] = list(found)
                sys.stdout.write(f"{name}: {'; '.join(results[name]) or 'no errors'}\n")
                sys.stdout.flush()
                if given.out is not None:
                    kept = {each: results[each] for each in bundles if each in results}
                    new = given.out.with_suffix(".new")
                    new.write_text(json.dumps({"tools": TOOLS, "results": kept}, indent=1) + "\n")
                    new.replace(given.out)
        except NotHere as problem:
            pool.shutdown(cancel_futures=True)
            sys.stderr.write(f"{problem}\n")
            return 2
    if len(results) < len(bundles):
        sys.stdout.write(f"no time left for {len(bundles) - len(results)} bundles; the same command goes on\n")
        return MORE
    return 1 if any(results.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
