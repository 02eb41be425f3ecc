"""Records launches of Triton's kernels. Triton is not imported: the program has done that.

While a recorder is open, `JITFunction.run` is one that compiles as the other does, and leaves the launch to the
recorder of its thread. What a kernel writes is what its PTX may write (`fusiond.model.ptx.uses`).
"""

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from fusiond.cuda.recording import arguments, launches
from fusiond.cuda.recording.arguments import GPU, NULL, SCRATCH, Argument, Array, TypedNumber, Unseen
from fusiond.cuda.recording.launches import RecordedLaunch
from fusiond.cuda.recording.method_patches import Method, Replacing
from fusiond.cuda.recording.origins import Drafted, Origin, PtxOrigin, RecordedParameter
from fusiond.model.language.dtypes import DTYPES
from fusiond.model.ptx import parser, triton, uses
from fusiond.model.ptx.tree import PtxError
from fusiond.model.ptx.triton import TYPES, NotTaken, TritonKernel

GridLengths = tuple[int, int, int]


def is_kernel(kernel: object) -> bool:
    """Whether Triton launches it: a function of `triton.jit`, or what a decorator made of one."""
    return any(each.__module__.startswith("triton.runtime") for each in type(kernel).__mro__)


# --- what a launch is -----------------------------------------------------------------------------------


def read(value: Any, kind: str) -> Argument:
    """What an argument is, of a type as Triton names it (`*fp32`, `i32`). Unseen."""
    dtype = TYPES.get(kind.removeprefix("*").removeprefix("k"))
    if kind.startswith("*"):
        if hasattr(value, "element_size") and hasattr(value, "stride"):  # a tensor of PyTorch, of any type
            return _tensor(value, dtype or "uint8")
        return arguments.read(value, widen=True)
    if dtype is None or DTYPES[dtype].packed is None:
        raise Unseen(f"is {kind}, which a job cannot pass by itself")
    return arguments.number(np.dtype(dtype).type(value))


def _tensor(value: Any, dtype: str) -> Array:
    address, shape = int(value.data_ptr()), tuple(value.shape)
    steps = [(length - 1) * step for length, step in zip(shape, value.stride(), strict=True)]
    count = 0 if 0 in shape else sum(steps) + 1
    return Array(dtype, address, address, address + count * int(value.element_size()), GPU)


def launch_of(
    compiled: Any, given: Mapping[str, Argument], grid: GridLengths, stream: int, device: int, run: Callable[[], None]
) -> RecordedLaunch:
    """A launch of what Triton compiled; `given` by the parameters' names. NotTaken."""
    kernel, origin = _described(compiled)
    behind = origin.drafted.parameters[len(kernel.parameters) :]
    scratch = TypedNumber(SCRATCH, b"", kernel.scratch_bytes * grid[0] * grid[1] * grid[2])
    handed = [given[each.name] for each in kernel.parameters] + [scratch if each.written else NULL for each in behind]
    return RecordedLaunch(origin, grid, (kernel.threads, 1, 1), kernel.shared_bytes, tuple(handed), stream, device, run)


@functools.lru_cache(maxsize=1024)
def _described(compiled: Any) -> tuple[TritonKernel, PtxOrigin]:
    kernel = triton.of(compiled)
    try:
        used = uses.of_parameters(parser.parse(kernel.text), kernel.entry)
    except PtxError as problem:
        raise NotTaken(str(problem)) from None
    found = []
    for each, use in zip(kernel.parameters, used, strict=False):
        if not each.pointer and (use.read or use.written):
            raise NotTaken(f"its parameter {each.name} is an address that is passed as a number")
        found.append(RecordedParameter(pointer=each.pointer, written=each.pointer and use.written, dtype=each.dtype))
    for number, use in enumerate(used[len(found) :]):
        if number and (use.read or use.written):
            raise NotTaken("it writes to a profiler's memory")
        found.append(RecordedParameter(pointer=True, written=use.read or use.written, dtype=None))
    drafted = Drafted(kernel.entry, None, tuple(found), kernel.shared_bytes > 0)
    return kernel, PtxOrigin(kernel.text, kernel.entry, (), drafted)


# --- recording ------------------------------------------------------------------------------------------


def _methods() -> Iterator[Method]:
    jit, autotuner = (sys.modules.get(f"triton.runtime.{each}") for each in ("jit", "autotuner"))
    if jit is not None and autotuner is not None:
        yield jit.JITFunction, "run", _recorded
        yield autotuner.Autotuner, "_bench", _apart


_replacing = Replacing(_methods)
begin, end = _replacing.begin, _replacing.end


def _recorded(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` of a JITFunction, which leaves launches to the recorder of the thread."""

    @functools.wraps(run)
    def recorded(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        recorder = None if warmup else launches.current()
        compiled = run(self, *args, grid=grid, warmup=warmup or recorder is not None, **kwargs)
        if recorder is not None and compiled is not None:
            launch = _launch(self, compiled, args, kwargs, grid)
            if 0 not in launch.grid:
                recorder.add(launch)
        return compiled

    return recorded


def _apart(bench: Callable[..., Any]) -> Callable[..., Any]:
    """`_bench` of an Autotuner, whose launches are measured and not recorded."""

    @functools.wraps(bench)
    def apart(self: Any, *args: Any, **kwargs: Any) -> Any:
        with launches.paused():
            return bench(self, *args, **kwargs)

    return apart


def _launch(
    function: Any, compiled: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any
) -> RecordedLaunch:
    """A launch, not yet done. It goes to the stream and the device that are current now."""
    driver = sys.modules["triton.runtime.driver"].driver.active
    device = driver.get_current_device()
    stream = driver.get_current_stream(device)
    *_, binder = function.device_caches[device]
    values = binder(*args, **kwargs)[0]
    x, y, z = (*(int(each) for each in (grid(values) if callable(grid) else grid)), 1, 1)[:3]
    shape = x, y, z

    def start() -> None:
        """As it was called, on the stream and the device that were current then."""
        now = driver.get_current_device()
        if now != device:
            driver.set_current_device(device)
        try:
            compiled[shape](*values.values(), stream=stream)
        finally:
            if now != device:
                driver.set_current_device(now)

    handed, said = dict[str, Argument](), ""
    try:
        for name, kind in compiled.src.signature.items():
            if isinstance(kind, str) and kind != "constexpr":
                said = f"its argument {name} "
                handed[name] = read(values[name], kind)
        said = ""
        return launch_of(compiled, handed, shape, stream, device, start)
    except (NotTaken, Unseen) as why:
        name = getattr(function, "__name__", "kernel")
        unseen = f"{name} cannot be fused: {said}{why}"
        return RecordedLaunch(Origin("", name, ()), shape, (1, 1, 1), 0, (), stream, device, start, unseen)
