"""The result of a reference in double precision, a kernel or a Python function, in a process of its own.

    python -m fusiond.tuning.judging.truth BUNDLE OUT.npz --seed 3 --against FLOAT32.npz        the bundle's kernel
    python -m fusiond.tuning.judging.truth BUNDLE OUT.npz --seed 3 --function softmax.py:softmax

OUT.npz has float64 arrays for each float output: `NAME:float64`, and `NAME:float64:bfloat16` and the like of inputs
that were rounded to that. Of a function, `NAME` is each output as its buffer is declared, which is the reference then.
`truth` starts it; `fusiond.devices.precision.judged` takes what it wrote.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fusiond.build.exporting.bundle import read_bundle
from fusiond.build.working import working_folder
from fusiond.devices.cpu import interpreted
from fusiond.devices.cpu.executor import CpuExecutor
from fusiond.devices.precision import EXACT, RUNS, Array, narrowed, own_error
from fusiond.devices.run import write_outputs
from fusiond.model.errors import FusiondError, MachineFault, RequestError
from fusiond.model.inputs.fills import initial
from fusiond.model.language.dtypes import is_float
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Buffer, Program
from fusiond.model.system import children, faults
from fusiond.tuning.judging import functions
from fusiond.tuning.judging.doubled import NoTruth, doubled

_LONG_SECS = 5.0  #: Once this has passed, rounded inputs are not tried any more
_FAR_OFF = 2.0**-8  #: A relative error that float32 does not have: where it has, a text counts bytes or bits of floats


def truth(
    bundle: Path,
    out: Path,
    *,
    seed: int,
    function: str | None = None,
    numbers: Mapping[str, int | float] | None = None,
    against: Path | None = None,
    timeout_secs: float = 120.0,
) -> str:
    """Compute what a reference gives in double precision, and write it to `out`; else say in one line why there is
    none.

    The reference is the bundle's Program, or `function` (FILE.py:NAME), of the Program's inputs, its sizes and
    `numbers` (scalars and sizes by name). `against`: what the Program itself gives, an .npz with arrays by names of
    buffers. Raises RequestError for a function that is wrong, or too slow, and MachineFault."""
    command = [sys.executable, "-m", "fusiond.tuning.judging.truth", str(bundle), str(out), "--seed", str(seed)]
    command += ["--function", function] if function is not None else []
    command += ["--sizes", json.dumps(numbers)] if numbers else []
    command += ["--against", str(against)] if against is not None else []
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    try:
        done = children.run(command, timeout_secs=timeout_secs, environment=environment)
    except subprocess.TimeoutExpired:
        return _none(function, f"no end after {timeout_secs:.0f} s")
    fault = faults.of_end(done.returncode, "the reference in double precision")
    line = (done.stderr.strip().splitlines() or [""])[-1]
    if done.returncode == faults.TEMPORARY:
        fault = MachineFault(line)
    if fault is not None:
        raise fault
    if done.returncode == 2:
        raise RequestError(line)
    if done.returncode < 0:
        return _none(function, f"it dies of {faults.signal_name(-done.returncode)}")
    return "" if done.returncode == 0 else line


def _none(function: str | None, reason: str) -> str:
    if function is not None:
        raise RequestError(reason, where=function)
    return f"in double precision: {reason}"


def in_double_precision(program: Program, seed: int) -> dict[str, Array]:
    """NAME:float64 -> a float output in double precision, shape (elements,), and of rounded inputs. NoTruth."""
    floats = [each.name for each in program.buffers if each.role.compared and is_float(each.dtype)]
    if not floats:
        return {}
    with working_folder("truth") as folder:
        try:
            return _run(doubled(program, folder), program.buffers, floats, seed)
        except (FusiondError, ValueError) as problem:
            if isinstance(problem, NoTruth | RequestError | MachineFault):
                raise
            if "bytes, not" in str(problem):  # of an argument
                raise NoTruth("it is given floats in a struct: give the reference as a NumPy function") from None
            raise NoTruth(f"in double precision: {problem}") from None


def _run(program: Program, filled: Sequence[Buffer], wanted: Sequence[str], seed: int) -> dict[str, Array]:
    """`filled`: the buffers as they were, whose data it is."""
    binaries = {}
    for source in program.sources:
        built = interpreted.build(source)
        if isinstance(built, BuildFailed):
            raise NoTruth(f"in double precision it does not build: {built.reason}")
        binaries[source.name] = built
    loaded = CpuExecutor().load(program, binaries)
    found: dict[str, Array] = {}
    begun = time.monotonic()
    for suffix, bits in RUNS.items():
        if time.monotonic() - begun > _LONG_SECS:
            break
        for buffer in filled:
            if buffer.part_of is None:
                data = initial(buffer, seed)
                loaded.write(buffer.name, narrowed(data, bits) if is_float(buffer.dtype) else data)
        loaded.run(seed=seed, checked=False)
        if broken := loaded.broken_guards():
            raise NoTruth(f"in double precision it writes out of bounds: {broken[0]}")
        found |= {name + suffix: loaded.read(name) for name in wanted}
    return found


def _agree(program: Program, found: Mapping[str, Array], file: Path) -> None:
    """NoTruth where double precision gives something else than float32 does, which may be ill-conditioned."""
    with np.load(file, allow_pickle=False) as given:
        for each in program.buffers:
            if each.name + EXACT in found and each.name in given.files:
                known, single = found[each.name + EXACT], given[each.name]
                error = own_error(known, single)
                if not np.array_equal(np.isfinite(known), np.isfinite(single)) or error > _FAR_OFF:
                    off = f"{each.name} is off by {error:.1e}, relative to its norm"
                    raise NoTruth(f"in double precision it computes something else: {off}")


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 computed, 1 there is no truth, 2 the request was wrong, 75 the machine failed."""
    parser = argparse.ArgumentParser(prog="python -m fusiond.tuning.judging.truth")
    parser.add_argument("bundle", type=Path, help="a folder with a plan.json")
    parser.add_argument("out", type=Path, help="where to write the arrays: an .npz file")
    parser.add_argument("--seed", type=int, default=0, help="of the fills; default: 0")
    parser.add_argument("--function", metavar="FILE.py:NAME", help="a Python function instead of the kernel")
    parser.add_argument("--sizes", type=json.loads, default={}, metavar="JSON", help="scalars and sizes by name")
    parser.add_argument("--against", type=Path, metavar="FILE.npz", help="outputs of the kernel as it is")
    given = parser.parse_args(argv)
    try:
        program, _ = read_bundle(given.bundle)
        if given.function is not None:
            found = functions.outputs(program, given.function, given.sizes, given.seed)
        else:
            found = in_double_precision(program, given.seed)
            if given.against is not None:
                _agree(program, found, given.against)
        write_outputs(given.out, found)
    except (FusiondError, OSError, MemoryError) as problem:
        fault = faults.of(problem)
        sys.stderr.write(f"{fault or problem}\n")
        if fault is not None:
            return faults.TEMPORARY
        return problem.exit_status if isinstance(problem, FusiondError) else 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
