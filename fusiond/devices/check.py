"""Runs pairs of bundles on one device and compares them: `python -m fusiond.devices.check FOLDER [--device cuda:0]`.

FOLDER/index.json lists them (tools/gpu_box/build.py writes it):

    {"entries": [{"name", "native": "path", "candidates": [{"name", "path"}], "expect": "equal" | "any",
                  "timeout_secs"}]}

The native one's outputs are the reference, on two seeds; every candidate is checked against them and sampled in pairs
with it. `expect: any` is for questions: whatever becomes of the candidates is an answer, and no failure. Everything
runs in child processes, as in a job: a crash or a hang is an outcome. Needs NumPy, and PyCUDA for a GPU. With
`--judge ptx` (nvcc, g++, SciPy) a second judge runs the PTX of every bundle, and says whether it agrees (`judged`).
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusiond.build.working import working_folder
from fusiond.devices import protocol
from fusiond.devices.base import MORE, DeviceProvider
from fusiond.devices.cpu.provider import CpuProvider
from fusiond.devices.cuda.provider import CudaProvider
from fusiond.devices.lock import device_lock
from fusiond.devices.supervisor import Runner, Supervisor
from fusiond.devices.timing import Sampling
from fusiond.model.english import counted
from fusiond.model.errors import DeviceError, FusiondError, RequestError
from fusiond.model.keys import plain
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import MeasureFailed, Measurement, Outcome, Purpose

SEEDS = (0, 1)
TIMEOUT_SECS = 120.0


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 all is as expected, 1 something is not, 2 the request was wrong, MORE: entries are left."""
    parser = argparse.ArgumentParser(prog="python -m fusiond.devices.check")
    parser.add_argument("folder", type=Path, help="a folder with an index.json")
    parser.add_argument("--device", default="cuda:0", help="default: cuda:0")
    parser.add_argument(
        "--out", type=Path, metavar="FILE",
        help="where the results go, as JSON, after every entry; what it has of this device is not done again",
    )  # fmt: skip
    parser.add_argument("--only", nargs="+", metavar="PREFIX", help="entries whose names begin so")
    parser.add_argument("--with", nargs="+", default=[], dest="having", metavar="WORD", help="names that have this")
    parser.add_argument("--without", nargs="+", default=[], metavar="WORD", help="names that have it not")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no entry after so long")
    parser.add_argument("--judge", choices=["ptx"], help="compare with what the PTX of each bundle computes, too")
    given = parser.parse_args(argv)
    try:
        provider, device = find(given.device)
        results = earlier(given.out, device)
        done = {each["name"] for each in results}
        entries = [each for each in read_index(given.folder) if each["name"] not in done and _wanted(each, given)]
        left = 0
        document = {"device": device.name, "model": device.model, "env": dict(device.env), "results": results}
        end = time.monotonic() + 60 * given.minutes
        with working_folder("check") as work, device_lock(device, stop=lambda: False, waiting=_say):
            runner = Supervisor(provider, device)
            for entry in entries:
                if time.monotonic() > end:
                    left += 1
                    continue
                results += run_entry(runner, given.folder, entry, work, judged=given.judge is not None)
                if given.out is not None:
                    kept = given.out.with_suffix(".new")
                    kept.write_text(json.dumps(document, indent=1) + "\n")
                    kept.replace(given.out)
            runner.close()
    except FusiondError as problem:
        sys.stderr.write(f"{problem}\n")
        return problem.exit_status
    wrong = [each for each in results if not each.get("as_expected", True)]
    _say(f"{counted(len(results), 'run')} on {device.name}: {len(wrong)} not as expected")
    if left:
        _say(f"no time left for {counted(left, 'entry', 'entries')}; the same command goes on")
        return MORE
    return 1 if wrong else 0


def _wanted(entry: Mapping[str, Any], given: argparse.Namespace) -> bool:
    name = entry["name"]
    return (
        (not given.only or name.startswith(tuple(given.only)))
        and all(word in name for word in given.having)
        and not any(word in name for word in given.without)
    )


def earlier(path: Path | None, device: DeviceInfo) -> list[dict[str, Any]]:
    """What a file has of this device already. RequestError for a file that holds something else."""
    if path is None or not path.exists():
        return []
    try:
        document = json.loads(path.read_text())
        results: list[dict[str, Any]] = document["results"] if document["model"] == device.model else []
        assert all(isinstance(each["name"], str) for each in results)
    except (OSError, ValueError, KeyError, TypeError, AssertionError):
        raise RequestError("holds something else than results; name another file", where=str(path)) from None
    return results


def find(name: str) -> tuple[DeviceProvider, DeviceInfo]:
    """The device of that name. DeviceError says what is missing."""
    provider: DeviceProvider = CpuProvider() if name == "cpu" else CudaProvider()
    for info in provider.devices():
        if name in (info.name, provider.kind):
            return provider, info
    raise DeviceError(f"no device {name!r}: {'; '.join(provider.missing()) or 'it is not here'}")


def read_index(folder: Path) -> list[dict[str, Any]]:
    try:
        entries: list[dict[str, Any]] = json.loads((folder / "index.json").read_text())["entries"]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise RequestError(f"has no index.json that can be read: {problem}", where=str(folder)) from None
    return entries


def run_entry(
    runner: Runner, folder: Path, entry: Mapping[str, Any], work: Path, *, judged: bool = False
) -> list[dict[str, Any]]:
    """A result for each candidate; for the native one instead, where that does not run, and too where it is judged."""
    timeout = float(entry.get("timeout_secs", TIMEOUT_SECS))
    native = str(folder / entry["native"])
    question = entry.get("expect", "equal") == "any"
    references = []
    for seed in SEEDS:
        path = str(work / f"reference-{seed}.npz")
        reply = runner.call(protocol.Reference(bundle=native, seed=seed, outputs=path), timeout)
        if isinstance(reply, MeasureFailed):
            return [_result(entry, "native", reply.outcome.value, reply.reason, as_expected=False)]
        references.append((seed, path))
    found = []
    if judged:
        native_result = _result(entry, "native", "right", "", as_expected=True)
        found.append(_judged(native_result, runner.device, native, references, timeout))
    for candidate in entry["candidates"]:
        path = str(folder / candidate["path"])
        reply = runner.call(protocol.CheckRequest(bundle=path, references=tuple(references)), timeout)
        if isinstance(reply, MeasureFailed):
            failed = _result(entry, candidate["name"], reply.outcome.value, reply.reason, as_expected=question)
            found.append(failed)
            continue
        assert isinstance(reply, protocol.Checked)
        plan = Sampling(purpose=Purpose.SEARCH, budget_secs=2.0)
        measured = runner.call(protocol.SampleRequest(candidate=path, baseline=native, plan=plan), timeout)
        result = _result(entry, candidate["name"], "right", "", as_expected=True)
        result["worst_error"] = reply.worst
        if isinstance(measured, Measurement):
            result |= {"time_us": measured.time_us, "ratio": measured.ratio, "clock": measured.clock}
            result |= {"throttle": measured.after.throttle, "others": measured.after.others}
            result["samples"] = plain(measured)
        elif isinstance(measured, MeasureFailed):
            noisy = measured.outcome is Outcome.TOO_NOISY  # right, and how fast is not known
            result |= {"timing" if noisy else "outcome": measured.outcome.value, "reason": measured.reason}
            result["as_expected"] = question or noisy
        found.append(_judged(result, runner.device, path, references, timeout) if judged else result)
    return found


def _judged(
    result: dict[str, Any], device: DeviceInfo, bundle: str, references: Sequence[tuple[int, str]], timeout: float
) -> dict[str, Any]:
    """A result with what the second judge says of its outputs, on the data of the first seed."""
    from fusiond.devices.counting import ptx_check  # a GPU box need not have what it imports

    seed, outputs = references[0]
    said = ptx_check.apart(
        Path(bundle), Path(outputs), seed=seed, fmad=device.evidence == "measured", timeout_secs=timeout
    )
    _say(f"{result['name']}: {result['candidate']}: PTX {said}")
    return {**result, "judged": str(said), "as_expected": result["as_expected"] and said.agrees is not False}


def _result(
    entry: Mapping[str, Any], candidate: str, outcome: str, reason: str, *, as_expected: bool
) -> dict[str, Any]:
    made = {"name": entry["name"], "candidate": candidate, "outcome": outcome, "as_expected": as_expected}
    if reason:
        made["reason"] = reason
    _say(f"{entry['name']}: {candidate}: {outcome}{f': {reason}' if reason else ''}")
    return made


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
