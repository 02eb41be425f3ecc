"""Everything that is to be done on a GPU box: `python run_all.py`. Needs the standard library only to begin with.

    python run_all.py                       all of it, on cuda:0
    python run_all.py --minutes 25          no step is begun after that; the most important ones come first
    python run_all.py --steps check control
    python run_all.py --device cpu          tries the folder out where there is no GPU (built with --arch cpu)

Results are in results/ (--out), written after each step: run_all.json says what was run, when, on what and how it
ended; the other files are what the steps wrote themselves. Exit status 0 when every step that could be run did well.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SITE = HERE / "site"
QUERY = "name,uuid,driver_version,memory.total"
TAIL = 6000
"""Characters of a step's output that are kept."""


@dataclass(frozen=True)
class Step:
    """`needs`: modules without which it is skipped. `minutes`: it is ended after so long."""

    name: str
    command: list[str]
    what: str
    needs: tuple[str, ...] = ()
    minutes: float = 10.0
    skip: str = ""
    optional: bool = False
    result: str = ""
    """The file that it writes, in the results' folder."""
    environment: dict[str, str] = field(default_factory=dict)


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--steps", nargs="*", metavar="STEP", help="only these")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * given.minutes
    unpack()
    environment = made_environment(given.out)
    report: dict[str, Any] = {
        "date": now(),
        "command": " ".join(["python run_all.py", *sys.argv[1:]]),
        "machine": machine(given.device),
        "manifest": json.loads((HERE / "manifest.json").read_text()),
        "steps": [],
    }
    every = list(steps(given.device, given.out))
    unknown = sorted(set(given.steps or ()) - {each.name for each in every})
    if unknown:
        parser.error(f"no step {unknown[0]!r}; there are {', '.join(each.name for each in every)}")
    for step in every:
        if given.steps and step.name not in given.steps:
            continue
        left = end - time.monotonic()
        report["steps"].append(run(step, given.out, environment, left))
        (given.out / "run_all.json").write_text(json.dumps(report, indent=1) + "\n")
    failed = [each["name"] for each in report["steps"] if each["state"] in ("failed", "timed out")]
    print(f"{len(report['steps'])} steps; failed: {', '.join(failed) or 'none'}; results in {given.out}", flush=True)
    return 1 if failed else 0


# --- the steps, the most important first ----------------------------------------------------------------


def steps(device: str, out: Path) -> Iterator[Step]:
    python = sys.executable
    source = HERE / "source"
    gpu = device != "cpu"
    toolkit = None if shutil.which("nvcc") else "nvcc is not on PATH"
    bundles = str(HERE / "bundles")
    yield Step(
        name="check",
        what="every workload of the catalogue, fused and unfused, compared and timed; open questions",
        command=[python, "-m", "fusiond.devices.check", bundles, "--device", device, "--out", str(out / "check.json")],
        needs=("numpy", *(("pycuda",) if gpu else ())),
        minutes=30,
        result="check.json",
    )
    pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "-rs"]
    tests = ["tests/devices/test_cuda_contract.py", "tests/devices/cuda/test_on_a_gpu.py"]
    yield Step(
        name="contract",
        what="the device keeps the contract of devices",
        command=[*pytest, *(tests if gpu else ["tests/devices/test_cpu_contract.py"])],
        needs=("pytest", "pytest_timeout", "hypothesis", "pluggy", "yaml"),
        skip=(toolkit or "") if gpu else "",
        minutes=15,
    )
    yield Step(
        name="control",
        what="native against native: how often it is called faster",
        command=[python, str(source / "benchmarks" / "control.py"), "--device", device, "--bundles", bundles],
        needs=("numpy",),
        result="control.json",
    )
    yield Step(
        name="worker",
        what="what a lost child process costs",
        command=[python, str(source / "benchmarks" / "worker.py"), "--device", device],
        needs=("numpy", "pluggy", "yaml"),
        result="worker.json",
    )
    sanitizer = shutil.which("compute-sanitizer")
    yield Step(
        name="sanitize",
        what="memcheck, racecheck and synccheck of the first candidate of each workload",
        command=[python, "-m", "fusiond.devices.cuda.sanitize", bundles, "--out", str(out / "sanitize.json")],
        needs=("numpy", "pycuda"),
        skip="" if sanitizer and gpu else "compute-sanitizer is not on PATH" if gpu else "only for a GPU",
        minutes=20,
        optional=True,
        result="sanitize.json",
    )
    tuning = ("numpy", "optuna", "sqlite_utils", "pluggy", "yaml")
    for job in sorted((source / "configs" / "jobs").glob("*.yaml")):
        yield Step(
            name=f"job:{job.stem}",
            what=f"fusiond run {job.name}",
            command=[python, "-m", "fusiond", "run", str(job), "--device", device, "--trials", "16", "--json"],
            needs=(*tuning, "rich"),
            skip=(toolkit or "") if gpu else "",
            minutes=10,
            result=f"job-{job.stem}.json",
        )
    for folder in sorted((source / "benchmarks").glob("*/__main__.py")):
        name = folder.parent.name
        yield Step(
            name=f"bench:{name}",
            what=f"benchmarks/{name}, its quick form",
            command=[python, "-m", f"benchmarks.{name}", "--device", device, "--quick", "--out", str(out / name)],
            needs=tuning,
            skip=(toolkit or "") if gpu else "takes too long on a processor; name it with --steps",
            minutes=60,
            optional=True,
        )


def run(step: Step, out: Path, environment: dict[str, str], left_secs: float) -> dict[str, Any]:
    """Run one step; how it ended, as it goes into the report."""
    entry: dict[str, Any] = {"name": step.name, "what": step.what, "command": shown(step.command), "begun": now()}
    lacking = [each for each in step.needs if not there(each)]
    if step.skip or lacking:
        entry |= {"state": "skipped", "reason": step.skip or f"not installed: {', '.join(lacking)}"}
    elif left_secs < 30:
        entry |= {"state": "skipped", "reason": "no time left"}
    else:
        entry |= executed(step, out, environment, min(60 * step.minutes, left_secs))
    print(f"{step.name}: {entry['state']} {entry.get('reason', '')}".rstrip(), flush=True)
    return entry


def executed(step: Step, out: Path, environment: dict[str, str], limit_secs: float) -> dict[str, Any]:
    begun = time.monotonic()
    log = out / f"{step.name.replace(':', '-')}.log"
    with log.open("w") as errors:
        try:
            done = subprocess.run(
                step.command, cwd=HERE / "source", env=environment | step.environment, stdout=subprocess.PIPE,
                stderr=errors, text=True, errors="replace", timeout=limit_secs, check=False, start_new_session=True,
            )  # fmt: skip
            state, output, status = ("done" if done.returncode == 0 else "failed"), done.stdout, done.returncode
        except subprocess.TimeoutExpired as late:
            text = late.stdout or b""
            output = text.decode(errors="replace") if isinstance(text, bytes) else text
            state, status = "timed out", None
    result = out / step.result if step.result else None
    if result is not None and not result.exists() and output.lstrip().startswith(("{", "[")):
        result.write_text(output)
    if state == "failed" and step.optional:
        state = "did not do well"
    return {
        "state": state,
        "status": status,
        "secs": round(time.monotonic() - begun, 1),
        "result": step.result or None,
        "output": output[-TAIL:],
        "errors": log.read_text(errors="replace")[-TAIL:],
    }


# --- the box --------------------------------------------------------------------------------------------


def unpack() -> None:
    """The wheels, into site/: pip where it is, else by hand (a wheel is a zip file)."""
    wheels = sorted((HERE / "wheels").glob("*.whl"))
    if SITE.exists() or not wheels:
        return
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(SITE)]
    done = subprocess.run([*command, *map(str, wheels)], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    print(f"pip: {done.stderr.strip().splitlines()[-1:] or 'failed'}; the wheels are unpacked by hand", flush=True)
    SITE.mkdir(exist_ok=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(SITE)


def made_environment(out: Path) -> dict[str, str]:
    source = HERE / "source"
    places = [source, *sorted((source / "plugins").iterdir()), SITE]
    sys.path[:0] = map(str, places)
    older = os.environ.get("PYTHONPATH")
    work = out / "work"
    work.mkdir(exist_ok=True)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*map(str, places), *([older] if older else [])]),
        "PYTHONUNBUFFERED": "1",
        "FUSIOND_DB": str(work / "fusiond.sqlite"),
        "FUSIOND_CACHE": str(work / "cache"),
    }


def there(module: str) -> bool:
    importlib.invalidate_caches()
    return importlib.util.find_spec(module) is not None


def machine(device: str) -> dict[str, Any]:
    found: dict[str, Any] = {"device": device, "python": platform.python_version(), "system": platform.platform()}
    asked: dict[str, Callable[[], str]] = {
        "gpu": lambda: said(["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]),
        "nvcc": lambda: said(["nvcc", "--version"]).splitlines()[-1],
    }
    for name, ask in asked.items():
        try:
            found[name] = ask()
        except (OSError, subprocess.SubprocessError, IndexError) as problem:
            found[name] = f"not known: {problem}"
    return found


def said(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def shown(command: list[str]) -> str:
    """The command without the folders of this machine."""
    return " ".join(command).replace(sys.executable, "python").replace(str(HERE), ".")


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    raise SystemExit(main())
