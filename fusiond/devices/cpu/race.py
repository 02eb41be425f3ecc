"""Finds data races. `python -m fusiond.devices.cpu.race BUNDLE` looks for them in every launch of a bundle; exit status
0: none, 1: some, or a launch failed, 2: the request was wrong.

How: one launch of a kernel object that was built with ThreadSanitizer, in a process of its own (`gxx.race_host`).
Reported: two accesses of different CUDA threads to one address, at least one of them a plain write or both not atomic,
that no barrier, `__syncwarp` or `__threadfence` orders; in shared memory within a block, in global memory also across
blocks. An empty answer speaks for this launch only: whether a line runs at all depends on the data.
"""

import argparse
import dataclasses
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusiond.build import gxx
from fusiond.build.exporting.bundle import read_bundle
from fusiond.build.working import working_folder
from fusiond.devices.base import ExecutionError, LaunchRefused
from fusiond.devices.cpu import interpreted
from fusiond.devices.cpu.executor import CpuExecutor, CpuProgram
from fusiond.devices.cpu.native import Argument, NativeError, NativeLaunch
from fusiond.model import program as plans
from fusiond.model.english import counted
from fusiond.model.errors import FusiondError, RequestError
from fusiond.model.inputs.fills import initial
from fusiond.model.outcomes import BuildFailed, Outcome
from fusiond.model.system import children, faults

_OPTIONS = "exitcode=0:report_thread_leaks=0:report_signal_unsafe=0:history_size=4:atexit_sleep_ms=0"
_ACCESS = re.compile(
    r"^  (?:Previous )?(?P<what>(?:atomic )?(?:write|read)) of size (?P<bytes>\d+) at (?P<address>0x[0-9a-f]+) by "
    r"(?P<who>main thread|thread T\d+)[^\n]*\n(?P<stack>(?:    [^\n]*\n)*)",
    re.MULTILINE | re.IGNORECASE,
)
_PLACE = re.compile(r"#0 .*?(?P<file>[^/\s]+:\d+)(?::\d+)? ")
_NAME = re.compile(r"^  Thread (T\d+) '([^']+)'", re.MULTILINE)
_GLOBAL = re.compile(r"Location is global '([^']+)'")
_ARRAY = re.compile(r"^array (\d+) (0x[0-9a-f]+) (\d+)$", re.MULTILINE)
_DYNAMIC = "fusiond_dynamic_shared"


_Array = tuple[int, int, int]
"""An argument's number, its address and its bytes."""


def find_races(
    host: Path,
    kernel: Path,
    entry: str,
    launch: NativeLaunch,
    arguments: Sequence[Argument],
    *,
    symbols: Mapping[str, NDArray[Any]] | None = None,
    timeout_s: float = 60.0,
) -> list[str]:
    """One text a race, naming both accesses. The arrays among `arguments` are inputs; what the kernel writes is lost.

    Raises `NativeError` when the launch itself fails, MachineFault when it was killed from outside, and
    `subprocess.TimeoutExpired`."""
    with working_folder("race") as folder:
        description = _describe(folder, kernel, entry, launch, arguments, symbols or {})
        done = _run([str(host), str(description)], timeout_s)
    if done.returncode != 0:
        raise NativeError(f"no race check of {entry}: {(done.stdout + done.stderr).strip()[-2000:]}")
    arrays = [(int(n), int(address, 16), int(size)) for n, address, size in _ARRAY.findall(done.stdout)]
    reports = done.stderr.split("WARNING: ThreadSanitizer: data race")[1:]
    return list(dict.fromkeys(_explain(report, arrays) for report in reports))


def _describe(
    folder: Path,
    kernel: Path,
    entry: str,
    launch: NativeLaunch,
    arguments: Sequence[Argument],
    symbols: Mapping[str, NDArray[Any]],
) -> Path:
    lines = [
        f"kernel {kernel.resolve()}",
        f"entry {entry}",
        "grid {} {} {}".format(*launch.grid),
        "block {} {} {}".format(*launch.block),
        f"shared {launch.shared_bytes}",
        f"seed {launch.seed}",
    ]
    if launch.cooperative:
        lines.append("cooperative")
    arrays: dict[int, int] = {}  # address -> argument
    for number, argument in enumerate(arguments):
        if isinstance(argument, np.ndarray):
            first = arrays.setdefault(argument.ctypes.data, number)
            if first != number:
                lines.append(f"again {first}")
                continue
        path = folder / f"argument{number}"
        data = argument if isinstance(argument, bytes) else argument.tobytes()
        path.write_bytes(data)
        lines.append(f"{'array' if isinstance(argument, np.ndarray) else 'value'} {path} {len(data)}")
    for name, value in symbols.items():
        path = folder / f"symbol_{name}"
        path.write_bytes(value.tobytes())
        lines.append(f"symbol {name} {path} {value.nbytes}")
    description = folder / "launch"
    description.write_text("\n".join([*lines, ""]))
    return description


def _run(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TSAN_OPTIONS": _OPTIONS}

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        done = children.run(command, timeout_secs=timeout_s, environment=environment)
        fault = faults.of_end(done.returncode, "the race check")
        if fault is not None:
            raise fault
        return done

    done = run(command)
    # Older ThreadSanitizers refuse the wide address randomisation of newer kernels.
    if "unexpected memory mapping" in done.stderr and (setarch := shutil.which("setarch")):
        done = run([setarch, "-R", *command])
    return done


def _explain(report: str, arrays: Sequence[_Array]) -> str:
    names = dict(_NAME.findall(report))
    accesses = list(_ACCESS.finditer(report))
    if not accesses:
        return report.strip()
    where = _location(report, int(accesses[0]["address"], 16), arrays)
    return f"{where}: " + " races with ".join(_access(access, names) for access in accesses)


def _access(access: re.Match[str], names: Mapping[str, str]) -> str:
    who = access["who"].removeprefix("thread ")
    name = names.get(who, "a thread of another block")
    place = _PLACE.search(access["stack"])
    at = f" at {place['file']}" if place else ""
    return f"{access['what'].lower()} of {access['bytes']} bytes by {name}{at}"


def _location(report: str, address: int, arrays: Sequence[_Array]) -> str:
    for argument, begin, size in arrays:
        if begin <= address < begin + size:
            return f"argument {argument}, byte {address - begin}"
    found = _GLOBAL.search(report)
    if not found:
        return f"address {address:#x}"
    return "dynamic shared memory" if found[1] == _DYNAMIC else found[1]


def find_in(
    program: plans.Program, *, seed: int = 0, timeout_s: float = 600.0, blocks: int | None = None
) -> Iterator[str]:
    """A line for each race in each launch of a program, which is run from its fills; of a longer launch whose blocks
    do not wait for each other, in the first `blocks`. Raises `FusiondError`."""
    binaries = {each.name: _built(interpreted.build(each)) for each in program.sources}
    for name, path in binaries.items():
        if path.suffix == interpreted.SUFFIX:
            raise RequestError(f"races are not looked for in PTX, and {name} runs as PTX", where=program.name)
    host = gxx.race_host()
    devices = [each for each in program.sources if each.kind is plans.SourceKind.DEVICE]
    kernels = {each.name: _built(gxx.build(each, races=True)) for each in devices}
    loaded = CpuExecutor().load(program, binaries)
    for buffer in program.buffers:
        if buffer.part_of is None:
            loaded.write(buffer.name, initial(buffer, seed))
    for step in loaded.walk():
        if isinstance(step, plans.Launch):
            for race in _in_step(host, kernels[step.source], loaded, _cut(step, blocks), timeout_s):
                yield f"{step.name}: {race}"
    loaded.close()


def _cut(step: plans.Launch, blocks: int | None) -> plans.Launch:
    """A launch of no more than so many blocks, the last axis cut first."""
    if blocks is None or step.cooperative:
        return step
    x, y, z = step.grid
    x = min(x, blocks)
    y = min(y, max(1, blocks // x))
    return dataclasses.replace(step, grid=(x, y, min(z, max(1, blocks // (x * y)))))


def _in_step(host: Path, kernel: Path, loaded: CpuProgram, step: plans.Launch, timeout_s: float) -> list[str]:
    if any(isinstance(each, plans.Bytes) and each.pointers for each in step.arguments):
        raise LaunchRefused(f"{step.name}: addresses inside a struct cannot be handed to another process")
    launch, arguments = loaded.prepared(step)
    entry = gxx.exported(loaded.program.source(step.source), step.entry)
    symbols = loaded.symbols(step.source)
    try:
        return find_races(host, kernel, entry, launch, arguments, symbols=symbols, timeout_s=timeout_s)
    except NativeError as problem:
        raise ExecutionError(Outcome.CRASHED, f"{step.name}: {problem}") from None
    except subprocess.TimeoutExpired:
        raise ExecutionError(Outcome.TIMED_OUT, f"{step.name}: no end after {timeout_s:.0f} s") from None


def _built(built: Path | BuildFailed) -> Path:
    if isinstance(built, BuildFailed):
        raise ExecutionError(Outcome.BUILD_FAILED, built.reason)
    return built


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 no races, 1 races, or a launch that failed, 2 the request was wrong, 75 the machine failed."""
    parser = argparse.ArgumentParser(prog="python -m fusiond.devices.cpu.race")
    parser.add_argument("bundle", type=Path, help="a folder with a plan.json")
    parser.add_argument("--seed", type=int, default=0, help="of the fills; default: 0")
    parser.add_argument("--blocks", type=int, metavar="N", help="only the first blocks of each launch; default: all")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECS", help="of a launch; default: 600")
    given = parser.parse_args(argv)
    races = 0
    try:
        program, _ = read_bundle(given.bundle)
        for race in find_in(program, seed=given.seed, timeout_s=given.timeout, blocks=given.blocks):
            races += 1
            sys.stdout.write(race + "\n")
        sys.stdout.write(f"{program.name}: {counted(races, 'race') if races else 'no races'}\n")
    except ExecutionError as problem:
        sys.stderr.write(f"{problem.outcome}: {problem.reason}\n")
        return 1
    except (FusiondError, OSError, MemoryError) as problem:
        fault = faults.of(problem)
        sys.stderr.write(f"{fault or problem}\n")
        if fault is not None:
            return faults.TEMPORARY
        return problem.exit_status if isinstance(problem, FusiondError) else 1
    return 1 if races else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
