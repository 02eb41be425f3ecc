"""A second judge of correctness: compares what the PTX of a bundle computes with the outputs of a device.

    python -m fusiond.devices.counting.ptx_check BUNDLE OUTPUTS.npz [--seed N] [--no-fmad]

It has nothing in common with the emulation of C++ but the data, so a mistake of either shows. It prints JSON: `agrees`
is true, false, or null where it cannot judge; `detail` says what differs first, or why not.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusiond.build.exporting.bundle import read_bundle
from fusiond.devices.compare import compare
from fusiond.devices.counting.kernels import CountError
from fusiond.devices.counting.run import count
from fusiond.model.errors import DeviceError, FusiondError
from fusiond.model.program import Program, Source, SourceKind, replace_sources
from fusiond.model.system import children, faults

_FEW = 1e-3  #: Of the elements of an output


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """`agrees` None: not judged, `detail` says why."""

    agrees: bool | None
    detail: str = ""
    broke: bool = False  #: It differs in that a launch does not come to its end

    def __str__(self) -> str:
        return {True: "agrees", False: f"differs: {self.detail}", None: f"not judged: {self.detail}"}[self.agrees]


def _uncontracted(each: Source) -> Source:
    return each if each.kind is SourceKind.HOST else dataclasses.replace(each, flags=(*each.flags, "-fmad=false"))


def judge(
    program: Program,
    outputs: Mapping[str, NDArray[Any]],
    *,
    seed: int = 0,
    host: Mapping[str, Path] | None = None,
    fmad: bool = True,
) -> Judged:
    """Compare a device's outputs, on the data of that seed, with those of the PTX. Without `fmad` nvcc contracts no
    multiplication and addition, as the cpu device does not."""
    if not fmad:
        program = replace_sources(program, _uncontracted)
    try:
        found = count(program, seed=seed, host=host, budget=None, assembled=False)
    except (CountError, DeviceError) as problem:
        return Judged(agrees=None, detail=str(problem))
    if found.broke is not None:
        return Judged(agrees=False, detail=found.broke, broke=True)
    failed = next((f"{row.launch}: {row.failed}" for row in found.rows if row.failed), None)
    if failed is not None:
        return Judged(agrees=None, detail=failed)
    for buffer in program.buffers:
        if buffer.role.compared:
            wanted, got = outputs[buffer.name], found.outputs[buffer.name]
            comparison = compare(buffer, wanted, got)
            if not comparison.equal and _rounded_otherwise(wanted, got):
                detail = f"{comparison.detail}: floats that were made whole numbers may have been rounded otherwise"
                return Judged(agrees=None, detail=detail)
            if not comparison.equal:
                return Judged(agrees=False, detail=comparison.detail)
    return Judged(agrees=True)


def _rounded_otherwise(wanted: NDArray[Any], got: NDArray[Any]) -> bool:
    """Whether so few whole numbers differ, each by one, that the last bits of `expf` and the like explain it: those of
    the processor's library are others than a GPU's."""
    if not np.issubdtype(wanted.dtype, np.integer):
        return False
    off = np.abs(wanted.astype(np.float64) - got.astype(np.float64))
    return bool(off.max(initial=0.0) <= 1 and np.count_nonzero(off) <= _FEW * wanted.size)


def apart(bundle: Path, outputs: Path, *, seed: int, fmad: bool, timeout_secs: float) -> Judged:
    """The same in a process of its own: host code of a bundle runs there."""
    command = [sys.executable, "-m", "fusiond.devices.counting.ptx_check", str(bundle), str(outputs)]
    command += ["--seed", str(seed)]
    try:
        done = children.run([*command, *([] if fmad else ["--no-fmad"])], timeout_secs=timeout_secs)
    except subprocess.TimeoutExpired:
        return Judged(agrees=None, detail=f"it takes longer than {timeout_secs:g} s")
    fault = faults.of_end(done.returncode, "judging")
    if fault is not None:
        raise fault
    try:
        return Judged(**json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, TypeError, IndexError):
        said = (done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1]
        return Judged(agrees=None, detail=said)


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 judged or not, 1 they differ, 2 the request was wrong."""
    parser = argparse.ArgumentParser(prog="python -m fusiond.devices.counting.ptx_check")
    parser.add_argument("bundle", type=Path, help="a folder with a plan.json")
    parser.add_argument("outputs", type=Path, help="what a device has computed: an .npz, arrays named like the buffers")
    parser.add_argument("--seed", type=int, default=0, help="of the fills; default: 0")
    parser.add_argument("--no-fmad", action="store_true", help="let nvcc contract nothing")
    given = parser.parse_args(argv)
    try:
        program, binaries = read_bundle(given.bundle)
        with np.load(given.outputs) as outputs:
            found = judge(program, dict(outputs), seed=given.seed, host=binaries, fmad=not given.no_fmad)
    except FusiondError as problem:
        sys.stderr.write(f"{problem}\n")
        return problem.exit_status
    sys.stdout.write(json.dumps(dataclasses.asdict(found)) + "\n")
    return 1 if found.agrees is False else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
