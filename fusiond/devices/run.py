"""Runs a bundle on one device: `python -m fusiond.devices.KIND.run BUNDLE`. Needs NumPy and the device's library."""

import argparse
import statistics
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fusiond.build.exporting.bundle import read_bundle
from fusiond.devices.base import Array, DataPlane, ExecutionError, Executor, Loaded
from fusiond.model.errors import FusiondError, RequestError
from fusiond.model.language.narrow import numpy_dtype
from fusiond.model.outcomes import Outcome
from fusiond.model.program import Buffer, Program

WARM_UPS = 3


def main(argv: Sequence[str], *, device: str, executor: Callable[[str], Executor]) -> int:
    """The exit status: 0 ran, 1 failed on the device, 2 the request was wrong."""
    parser = argparse.ArgumentParser(prog=f"python -m fusiond.devices.{device.partition(':')[0]}.run")
    parser.add_argument("bundle", type=Path, help="a folder with a plan.json")
    parser.add_argument("--inputs", type=Path, metavar="X.npz", help="arrays in place of the buffers' fills")
    parser.add_argument("--outputs", type=Path, metavar="Y.npz", help="where to write what the run wrote")
    parser.add_argument("--device", default=device, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the fills; default: 0")
    parser.add_argument("--samples", type=int, default=0, help="time so many samples; default: none")
    given = parser.parse_args(argv)
    on: Executor | None = None
    try:
        program, binaries = read_bundle(given.bundle)
        inputs = {} if given.inputs is None else read_inputs(program, given.inputs)
        on = executor(given.device)
        loaded = on.load(program, binaries)
        outputs = run_checked(loaded, on.data, inputs, given.seed)
        if given.outputs is not None:
            write_outputs(given.outputs, outputs)
        shown = ", ".join(f"{name} {array.dtype}[{array.size}]" for name, array in outputs.items())
        _say(f"{program.name}: ran on {given.device}; {shown or 'no outputs'}")
        if given.samples > 0:
            spans = sample(loaded, given.samples)
            _say(f"{statistics.median(spans):.2f} us (median of {len(spans)}, {loaded.clock} clock, cache warm)")
        loaded.close()
    except ExecutionError as problem:
        sys.stderr.write(f"{problem.outcome}: {problem.reason}\n")
        return 1
    except FusiondError as problem:
        sys.stderr.write(f"{problem}\n")
        return problem.exit_status
    finally:
        if on is not None:
            on.close()
    return 0


def run_checked(loaded: Loaded, data: DataPlane, inputs: dict[str, Array], seed: int) -> dict[str, Array]:
    """One checked run from fresh data; what is compared of it. Raises ExecutionError when a guard zone was written
    to."""
    for buffer in loaded.program.buffers:
        if buffer.name in inputs:
            loaded.write(buffer.name, inputs[buffer.name])
        else:
            data.fill(loaded, buffer, seed)
    loaded.snapshot()
    loaded.run(seed=seed, checked=True)
    broken = data.broken_guards(loaded)
    if broken:
        raise ExecutionError(Outcome.CRASHED, f"out of bounds: {'; '.join(broken)}")
    return {each.name: loaded.read(each.name) for each in loaded.program.buffers if each.role.compared}


def sample(loaded: Loaded, count: int) -> list[float]:
    """Microseconds of each sample, after warm-ups; the inout buffers are restored before each."""
    spans = []
    for _ in range(WARM_UPS + count):
        loaded.restore()
        spans.append(loaded.sample_us(1))
    return spans[WARM_UPS:]


def write_outputs(path: Path, outputs: dict[str, Array]) -> None:
    """An .npz of them; RequestError where it cannot be written."""
    try:
        np.savez(path, **outputs)  # type: ignore[arg-type]
    except OSError as problem:
        raise RequestError(f"cannot be written: {problem.strerror}", where=str(path)) from None


def read_inputs(program: Program, path: Path) -> dict[str, Array]:
    """The arrays of an .npz, each checked against the buffer of its name. RequestError says what would be right."""
    buffers = {each.name: each for each in program.buffers}
    try:
        with path.open("rb") as file:  # NumPy would leave a broken one open
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it holds one array; an .npz with arrays named like buffers is wanted")
            with archive:
                arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as problem:
        raise RequestError(f"cannot be read: {problem}", where=str(path)) from None
    unknown = sorted(set(arrays) - set(buffers))
    if unknown:
        raise RequestError(f"no buffer is called {unknown[0]!r}; there are {', '.join(buffers)}", where=str(path))
    return {name: _fitting(buffers[name], array, path) for name, array in arrays.items()}


def _fitting(buffer: Buffer, array: Array, path: Path) -> Array:
    wanted = numpy_dtype(buffer.dtype)
    if array.size != buffer.elements or array.dtype != wanted:
        raise RequestError(
            f"{buffer.name} holds {array.size} x {array.dtype}; {buffer.elements} x {wanted} are wanted",
            where=str(path),
        )
    return np.ascontiguousarray(array).reshape(-1)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
