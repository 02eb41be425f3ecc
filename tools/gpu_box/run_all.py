"""Everything that is to be done on a GPU box: `python run_all.py`. Needs the standard library only to begin with.

    python run_all.py --list                what there is to do: the steps by number, the most important first
    python run_all.py                       all of it, on cuda:0
    python run_all.py --minutes 9           ends within that time; the same command goes on with what is left
    python run_all.py --steps 1-6 control   only these, done already or not
    python run_all.py --steps 8 --limit 60  with another time limit than its own
    python run_all.py --device cpu          tries the folder out where there is no GPU (built with --arch cpu)

Results are in results/ (--out), and all of them in results.tar.gz, both written after each step: run_all.json says what
was run, when, on what and how it ended; the other files are what the steps wrote themselves. On a fresh machine,
unpack results.tar.gz beside this file, and it goes on from there. A step that had not all of its time is begun again.
Exit status 0 when every step that could be run did well.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SITE = HERE / "site"
CUDA = Path("/usr/local")
QUERY = "name,uuid,driver_version,memory.total"
TAIL = 6000
"""Characters of a step's output that are kept."""
LEAST_SECS = 30.0
"""No step is begun with less time than this."""
ENDED = ("done", "failed", "timed out")
CUT = "cut short"
"""It had less time than it may take, and is begun again."""
CHECKED = "every workload of the catalogue, fused and unfused, compared and timed"
GPU_TESTS = [
    "tests/devices/test_cuda_contract.py",
    "tests/devices/cuda/test_on_a_gpu.py",
    "tests/exporting/test_on_a_gpu.py",
]
"""By name: what stands beside them needs more modules than a box has."""
BENCHMARKS = {
    # name: (options on a GPU, minutes). hfuse and mincut write what they have after each pair and each application.
    "hfuse": (["--quick", "--no-plots", "--pairs", "batchnorm+hist", "hist+maxpool", "blake256+ethash"], 6.0),
    "mincut": (["--only", "sobel", "unsharp", "harris"], 6.0),
    "stitching": ([], 5.0),
    "transfer": (["--quick"], 5.0),
}


@dataclass(frozen=True)
class Step:
    """`needs`: modules without which it is skipped. `minutes`: it is ended after so long."""

    name: str
    command: list[str]
    what: str
    needs: tuple[str, ...] = ()
    minutes: float = 9.0
    skip: str = ""
    forced: bool = False
    """Whether it is run all the same when it is named."""
    result: str = ""
    """The file that it writes, in the results' folder."""


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--steps", nargs="*", metavar="STEP", help="only these: names, numbers, 3-6, 7-")
    parser.add_argument("--limit", type=float, metavar="MINUTES", help="of every step, in place of its own")
    parser.add_argument("--list", action="store_true", help="say what there is to do, and how it went so far")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    end = time.monotonic() + 60 * given.minutes
    every = list(steps(given.device, given.out))
    try:
        wanted = chosen(every, given.steps)
    except ValueError as problem:
        parser.error(str(problem))
    report = earlier(given.out)
    if given.list:
        print("\n".join(listed(every, report["steps"])))
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    unpack()
    environment = made_environment(given.out)
    manifest = json.loads((HERE / "manifest.json").read_text())
    command = " ".join(["python run_all.py", *sys.argv[1:]])
    report["runs"].append({"date": now(), "command": command, "machine": machine(given.device), "manifest": manifest})
    entries: dict[str, dict[str, Any]] = {each["name"]: each for each in report["steps"]}
    ran = []
    if given.steps:  # whoever names a step has the time for it
        wanted = [dataclasses.replace(each, skip="") if each.forced else each for each in wanted]
    if given.limit is not None:
        wanted = [dataclasses.replace(each, minutes=given.limit) for each in wanted]
    possible = {each.name for each in (*every, *wanted) if not each.skip}
    for step in wanted:
        if given.steps is None and entries.get(step.name, {}).get("state") in ENDED:
            continue
        ran.append(run(step, given.out, environment, end - time.monotonic()))
        last = entries.get(step.name)
        if last is None or ran[-1]["state"] != "skipped" or last["state"] == "skipped":
            entries[step.name] = ran[-1]
        report["steps"] = [entries[each.name] for each in every if each.name in entries]
        save(report, given.out)
        pack(given.out)
    failed = [each["name"] for each in ran if each["state"] in ("failed", "timed out")]
    left = [
        str(number)
        for number, each in enumerate(every, 1)
        if each.name in possible and entries.get(each.name, {}).get("state") not in ENDED
    ]
    print(f"{len(ran)} steps; failed: {', '.join(failed) or 'none'}; left to do: {' '.join(left) or 'none'}")
    print(f"results in {given.out}", flush=True)
    return 1 if failed else 0


def chosen(every: list[Step], words: list[str] | None) -> list[Step]:
    """The steps that `--steps` names; ValueError where there is no such step."""
    if not words:
        return every
    wanted: set[int] = set()
    for word in words:
        first, dash, last = word.partition("-")
        names = [each.name for each in every]
        if word in names:
            wanted.add(names.index(word))
        elif first.isdigit() and (last.isdigit() or not last) and 1 <= int(first) <= len(every):
            wanted |= set(range(int(first) - 1, int(last) if last else len(every) if dash else int(first)))
        else:
            raise ValueError(f"no step {word!r}; there are 1 to {len(every)}: {', '.join(names)}")
    return [each for number, each in enumerate(every) if number in wanted]


def earlier(out: Path) -> dict[str, Any]:
    """What was done here before."""
    try:
        report: dict[str, Any] = json.loads((out / "run_all.json").read_text())
    except FileNotFoundError:
        report = {"runs": [], "steps": []}
    return report


def save(report: dict[str, Any], out: Path) -> None:
    """All of it or none: a box may go away at any moment."""
    unfinished = out / "run_all.json.new"
    unfinished.write_text(json.dumps(report, indent=1) + "\n")
    unfinished.replace(out / "run_all.json")


def listed(every: list[Step], entries: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each step."""
    states = {each["name"]: f"{each['state']} {each.get('reason', '')}".rstrip() for each in entries}
    for number, step in enumerate(every, 1):
        known = states.get(step.name, f"can not be run: {step.skip}" if step.skip else "")
        yield f"{number:3} {step.name:20} {step.minutes:4.0f} min  {step.what}" + (f"  [{known}]" if known else "")


def pack(out: Path) -> None:
    """All results as one file; the store and the build cache of the steps are no results."""
    path = out.with_name(f"{out.name}.tar.gz")
    with tarfile.open(path.with_suffix(".new"), "w:gz") as archive:
        for each in sorted(out.iterdir()):
            if each.name != "work":
                archive.add(each, arcname=f"{out.name}/{each.name}")
    path.with_suffix(".new").replace(path)


# --- the steps, the most important first ----------------------------------------------------------------


def steps(device: str, out: Path) -> Iterator[Step]:
    python = sys.executable
    source = HERE / "source"
    gpu = device != "cpu"
    toolkit = None if tool("nvcc") else "nvcc is not on PATH, and not in /usr/local/cuda/bin"
    bundles = str(HERE / "bundles")
    looking = [python, "-m", "fusiond.devices.check", bundles, "--device", device]
    for kind in ("questions", "hfuse", "mincut", "stitching", "transfer"):
        file = f"check-{kind}.json"
        yield Step(
            name=f"check:{kind}",
            what=CHECKED if kind != "questions" else "what only a GPU can tell: barriers when threads have returned",
            command=[*looking, "--only", f"{kind}/", "--out", str(out / file)],
            needs=("numpy", *(("pycuda",) if gpu else ())),
            skip="" if (HERE / "bundles" / kind).is_dir() else "none were built",
            minutes=8 if kind == "hfuse" else 4,
            result=file,
        )
    pytest = [
        python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=--import-mode=importlib",
        "-o",
        "filterwarnings=",
        "-rs",
    ]
    tests = GPU_TESTS if gpu else ["tests/devices/test_cpu_contract.py"]
    yield Step(
        name="tests",
        what="the tests that need a GPU; the device keeps the contract of devices",
        command=[*pytest, *tests],
        needs=("pytest", "pytest_timeout", "hypothesis", "pluggy", "yaml"),
        skip=(toolkit or "") if gpu else "",
        minutes=6,
    )
    yield Step(
        name="control",
        what="native against native: how often it is called faster",
        command=[python, str(source / "benchmarks" / "control.py"), "--device", device, "--bundles", bundles,
                 "--most", "12" if gpu else "2", "--minutes", "5"],
        needs=("numpy",),
        minutes=6,
        result="control.json",
    )  # fmt: skip
    tuning = ("numpy", "optuna", "sqlite_utils", "pluggy", "yaml", "clang")
    for name, (options, minutes) in BENCHMARKS.items():
        yield Step(
            name=f"bench:{name}",
            what=" ".join([f"benchmarks/{name}", *options]),
            command=[python, "-m", f"benchmarks.{name}", "--device", device, "--out", str(out / name),
                     *(options if gpu else ["--quick"])],
            needs=tuning,
            skip=(toolkit or "") if gpu else "takes too long on a processor; name it with --steps",
            forced=not gpu,
            minutes=minutes,
        )  # fmt: skip
    yield Step(
        name="worker",
        what="what a lost child process costs",
        command=[python, str(source / "benchmarks" / "worker.py"), "--device", device],
        needs=("numpy", "pluggy", "yaml"),
        minutes=3,
        result="worker.json",
    )
    sanitizer = tool("compute-sanitizer")
    yield Step(
        name="sanitize",
        what="memcheck, racecheck and synccheck of the first candidate of each workload",
        command=[
            python,
            "-m",
            "fusiond.devices.cuda.sanitize",
            bundles,
            "--out",
            str(out / "sanitize.json"),
            "--jobs",
            "6",
        ],
        needs=("numpy", "pycuda"),
        skip="" if sanitizer and gpu else "compute-sanitizer is not on PATH" if gpu else "only for a GPU",
        minutes=9,
        result="sanitize.json",
    )
    for job in sorted((source / "configs" / "jobs").glob("*.yaml")):
        yield Step(
            name=f"job:{job.stem}",
            what=f"fusiond run {job.name}",
            command=[python, "-m", "fusiond", "run", str(job), "--device", device,
                     "--trials", "16" if gpu else "2", "--json"],
            needs=(*tuning, "rich", "httpx"),
            skip=(toolkit or "") if gpu else "takes too long on a processor; name it with --steps",
            forced=not gpu,
            minutes=5,
            result=f"job-{job.stem}.json",
        )  # fmt: skip


def run(step: Step, out: Path, environment: dict[str, str], left_secs: float) -> dict[str, Any]:
    """Run one step; how it ended, as it goes into the report."""
    entry: dict[str, Any] = {"name": step.name, "what": step.what, "command": shown(step.command), "begun": now()}
    lacking = [each for each in step.needs if not there(each)]
    if step.skip or lacking:
        entry |= {"state": "skipped", "reason": step.skip or f"not installed: {', '.join(lacking)}"}
    elif left_secs < LEAST_SECS:
        entry |= {"state": "skipped", "reason": "no time left"}
    else:
        entry |= executed(step, out, environment, min(60 * step.minutes, left_secs))
        if entry["state"] == "timed out" and left_secs < 60 * step.minutes:
            entry["state"] = CUT
    secs = f" ({entry['secs']:.0f} s)" if "secs" in entry else ""
    print(f"{step.name}: {entry['state']} {entry.get('reason', '')}".rstrip() + secs, flush=True)
    return entry


def executed(step: Step, out: Path, environment: dict[str, str], limit_secs: float) -> dict[str, Any]:
    begun = time.monotonic()
    log = out / f"{step.name.replace(':', '-')}.log"
    printed = log.with_suffix(".out")
    with log.open("w") as errors, printed.open("w") as output:
        child = subprocess.Popen(
            step.command, cwd=HERE / "source", env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
            start_new_session=True,
        )  # fmt: skip
        try:
            status: int | None = child.wait(limit_secs)
            state = "done" if status == 0 else "failed"
        except subprocess.TimeoutExpired:
            status, state = None, "timed out"
        finally:  # also after Ctrl-C, which is not for its session
            end_all(child)
    text = printed.read_text(errors="replace")
    printed.unlink()
    result = out / step.result if step.result else None
    if result is not None and text.lstrip().startswith(("{", "[")):
        result.write_text(text)
    return {
        "state": state,
        "status": status,
        "secs": round(time.monotonic() - begun, 1),
        "result": step.result or None,
        "output": text[-TAIL:],
        "errors": log.read_text(errors="replace")[-TAIL:],
    }


def end_all(child: subprocess.Popen[bytes]) -> None:
    """A step, and every process that it began: none may keep the device from the next one. Kindly first; a device's
    worker ends with whoever began it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(5)


# --- the box --------------------------------------------------------------------------------------------


def unpack() -> None:
    """The wheels, into site/: pip where it is, else by hand (a wheel is a zip file)."""
    wheels = sorted((HERE / "wheels").glob("*.whl"))
    if SITE.exists() or not wheels:
        return
    unfinished = SITE.with_name(f"{SITE.name}.new")
    shutil.rmtree(unfinished, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-index",
        "--no-deps",
        "--no-compile",
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--target",
        str(unfinished),
    ]
    done = subprocess.run([*command, *map(str, wheels)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"pip: {done.stderr.strip().splitlines()[-1:] or 'failed'}; the wheels are unpacked by hand", flush=True)
        unfinished.mkdir(exist_ok=True)
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unfinished)
    unfinished.replace(SITE)


def made_environment(out: Path) -> dict[str, str]:
    source = HERE / "source"
    places = [source, *sorted((source / "plugins").iterdir()), SITE]
    sys.path[:0] = map(str, places)
    older = os.environ.get("PYTHONPATH")
    work = out / "work"
    work.mkdir(exist_ok=True)
    return {
        **os.environ,
        "PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), *map(str, toolkits())]),
        "PYTHONPATH": os.pathsep.join([*map(str, places), *([older] if older else [])]),
        "PYTHONUNBUFFERED": "1",
        "FUSIOND_DB": str(work / "fusiond.sqlite"),
        "FUSIOND_CACHE": str(work / "cache"),
    }


def toolkits() -> list[Path]:
    """Where CUDA's tools may be without being on PATH."""
    home = os.environ.get("CUDA_HOME")
    places = [Path(home) / "bin"] if home else []
    return [*places, CUDA / "cuda" / "bin", *sorted(CUDA.glob("cuda-*/bin"), reverse=True)]


def tool(name: str) -> str | None:
    """Where a tool of CUDA's is; None where it is not installed."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *map(str, toolkits())]))


def there(module: str) -> bool:
    importlib.invalidate_caches()
    return importlib.util.find_spec(module) is not None


def machine(device: str) -> dict[str, Any]:
    found: dict[str, Any] = {"device": device, "python": platform.python_version(), "system": platform.platform()}
    asked: dict[str, Callable[[], str]] = {
        "gpu": lambda: said(["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]),
        "nvcc": lambda: said([tool("nvcc") or "nvcc", "--version"]).splitlines()[-1],
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
