"""One rival beside one bundle: `python -m benchmarks.rivals.child BUNDLE --rival STRATEGY:NAME`.

The last line on standard output is a row as JSON: the measurement with its raw samples, or the reason why there is
none. It runs in the device's primary context, so that the CUDA libraries of the rival share it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rivals import rival_rows
from benchmarks.rivals.base import About, Rival, difference
from fusiond.build.exporting.bundle import read_bundle
from fusiond.devices.base import ExecutionError, Executor, Loaded
from fusiond.devices.compare import compare
from fusiond.devices.cuda.description import index_of
from fusiond.devices.cuda.executor import CudaExecutor
from fusiond.devices.cuda.loaded import CudaProgram
from fusiond.devices.timing import Sampling, sample_pair, throttled
from fusiond.model.keys import plain
from fusiond.model.outcomes import Measurement, Outcome, Purpose
from fusiond.model.program import Program, Role

SEED = 0


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 measured, 1 not."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals.child")
    parser.add_argument("bundle", type=Path, help="ours")
    parser.add_argument("--rival", required=True, metavar="STRATEGY:NAME")
    parser.add_argument("--about", default="{}", metavar="JSON", help="what the rival has to know of the work")
    parser.add_argument("--device", default="cuda:0", help="default: %(default)s")
    parser.add_argument("--pairs", type=int, default=25, help="at most; default: %(default)s")
    given = parser.parse_args(argv)
    found: dict[str, Any]
    try:
        program, binaries = read_bundle(given.bundle)
        executor = CudaExecutor.open(index_of(given.device), primary=True)
        rival = rival_rows.named(given.rival)
        plan = Sampling(purpose=Purpose.BASELINE, pairs=given.pairs)
        found = measured(executor, program, binaries, rival, json.loads(given.about), plan=plan)
    except Exception as problem:  # whatever another's library raises is its reason
        found = {"problem": reason(problem)}
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    sys.stdout.flush()
    return int("problem" in found)


def reason(problem: BaseException) -> str:
    """One line: frameworks tell long stories, and what went wrong is at their beginning."""
    if isinstance(problem, ExecutionError):
        return f"{problem.outcome.value}: {problem.reason}"
    if isinstance(problem, ImportError):
        return f"cannot be imported: {problem}"[:300]
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: {lines[0] if lines else ''}"[:300]


def measured(
    executor: CudaExecutor,
    program: Program,
    binaries: Mapping[str, Path],
    rival: Rival,
    about: About,
    *,
    plan: Sampling,
) -> dict[str, Any]:
    """Our Program and the rival: outputs compared, then sampled in pairs. A problem where the outputs are not ours.
    Raises what the device and the rival raise."""
    with contextlib.ExitStack() as loaded:  # one process may ask many rivals
        ours = executor.load(program, binaries)
        loaded.callback(ours.close)
        for buffer in program.buffers:
            executor.data.fill(ours, buffer, SEED)
        given = {each.name: ours.read(each.name) for each in program.buffers if each.role in (Role.INPUT, Role.INOUT)}
        theirs = rival.load(executor, program, about)
        loaded.callback(theirs.close)
        for buffer in theirs.program.buffers:
            if buffer.name in given:
                theirs.write(buffer.name, given[buffer.name])
            elif isinstance(theirs, CudaProgram):  # another seed poisons in another way: what is not written differs
                executor.data.fill(theirs, buffer, SEED + 1)
        for each in (ours, theirs):
            each.snapshot()
            each.run(seed=SEED, checked=False)
        found = compared(ours, theirs, rival.close)
        return found if "problem" in found else found | timed(executor, ours, theirs, plan)


def timed(executor: Executor, ours: Loaded, theirs: Loaded, plan: Sampling) -> dict[str, Any]:
    """The pair's measurement; on the wall clock where the rival's call does not fit behind a gate."""
    found: dict[str, Any] = {}
    try:
        measurement = sampled(executor, ours, theirs, plan)
    except ExecutionError as problem:
        if problem.outcome is not Outcome.TOO_NOISY or theirs.clock == "wall":
            raise
        found["wall_because"] = problem.reason
        theirs.clock = "wall"
        measurement = sampled(executor, ours, theirs, plan)
    assert measurement.ratio is not None
    times = sorted(measurement.baseline_us)
    return found | {
        "ratio": round(measurement.ratio, 4),
        "ours_us": round(measurement.time_us, 3),
        "time_us": round(times[len(times) // 2], 3),
        "clock": measurement.clock,
        "samples": plain(measurement),
    }


def sampled(executor: Executor, ours: Loaded, theirs: Loaded, plan: Sampling) -> Measurement:
    """As a job does it: a batch at whose end the device throttled, or its clock had fallen, is taken again once."""
    for _ in range(2):
        measurement = sample_pair(executor, ours, theirs, plan)
        if not (reason := throttled(measurement.after, measurement.before)):
            return measurement
    raise ExecutionError(Outcome.TOO_NOISY, reason)


def compared(ours: Loaded, theirs: Loaded, close: float) -> dict[str, Any]:
    """What was compared, and the worst difference; a problem when that is too much."""
    worst = 0.0
    outputs = [each for each in ours.program.buffers if each.role.compared]
    for buffer in outputs:
        mine, yours = ours.read(buffer.name), theirs.read(buffer.name)
        far = difference(buffer, mine, yours)
        worst = max(worst, far)
        if far > close and not compare(buffer, mine, yours).equal:
            said = (
                "of another shape or type, or not finite where ours are" if math.isinf(far) else f"{far:.2g} from ours"
            )
            return {"problem": f"computes something else: the elements of {buffer.name} are {said}"}
    return {"compared": [each.name for each in outputs], "difference": worst}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
