"""Records launches of Numba's kernels. Numba is not imported: the program has done that.

While a recorder is open, a compiled kernel's `launch` leaves the launch to the recorder of its thread. An array is
handed over as seven numbers and more, of which one is its address; what a kernel writes is what its PTX may write.
"""

import contextlib
import ctypes
import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from fusiond.cuda.recording import arguments, compiled, launches, machines
from fusiond.cuda.recording.arguments import GPU, NULL, Argument, Array, Unseen
from fusiond.cuda.recording.launches import RecordedLaunch, lengths
from fusiond.cuda.recording.method_patches import Method, Replacing
from fusiond.cuda.recording.origins import Origin, PtxOrigin


def is_kernel(kernel: object) -> bool:
    """Whether it is a function of `numba.cuda.jit`."""
    kind = type(kernel)
    return kind.__name__ == "CUDADispatcher" and kind.__module__.startswith(("numba.cuda", "numba_cuda"))


# --- what a launch is -----------------------------------------------------------------------------------


def _handed(kernel: Any, kind: Any, value: Any) -> Iterator[Argument]:
    """An argument as the kernel takes it: one or more. Unseen."""
    kinds = {each.__name__ for each in type(kind).__mro__}
    if "Array" in kinds:
        yield from _array(value)
    elif "BaseTuple" in kinds:
        for each, held in zip(kind, value, strict=True):
            yield from _handed(kernel, each, held)
    elif kinds & {"CPointer", "Record"}:
        raise Unseen(f"is {kind}, an address whose extent is unknown")
    else:
        found: list[Any] = []
        kernel._prepare_args(kind, value, 0, [], found)
        for each in found:
            plain = np.dtype(type(each)).type(each.value) if isinstance(each, ctypes._SimpleCData) else each
            yield arguments.read(plain, widen=True)


def _array(value: Any) -> Iterator[Argument]:
    """meminfo, parent, elements, bytes of one, address, lengths, strides"""
    found = arguments.read(value, widen=False)
    if not isinstance(found, Array) or found.side != GPU:
        raise Unseen("is an array of the host, which Numba copies to the GPU and back")
    interface = value.__cuda_array_interface__
    shape, size = interface["shape"], np.dtype(interface["typestr"]).itemsize
    strides = interface.get("strides") or [size * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    yield from (NULL, NULL)
    yield from (arguments.number(np.int64(each)) for each in (math.prod(shape), size))
    yield found
    yield from (arguments.number(np.int64(each)) for each in (*shape, *strides))


def _origin(kernel: Any, handed: Iterable[Argument]) -> PtxOrigin:
    """The kernel by its PTX. Unseen."""
    if getattr(kernel, "debug", False) or getattr(kernel, "cooperative", False):
        raise Unseen("is compiled for debugging, or launched cooperatively")
    if kernel.extensions or getattr(kernel._codelibrary, "_linking_files", None):
        raise Unseen("has extensions, or is linked with other files")
    text = kernel.inspect_asm(sys.modules["numba.cuda"].get_current_device().compute_capability)
    return compiled.origin(text, kernel.entry_name, tuple(map(compiled.parameter, handed)))


# --- recording ------------------------------------------------------------------------------------------


def _methods() -> Iterator[Method]:
    dispatcher = sys.modules.get("numba.cuda.dispatcher")
    if dispatcher is not None:
        yield dispatcher._Kernel, "launch", _recorded


_replacing = Replacing(_methods)
begin, end = _replacing.begin, _replacing.end


def _recorded(launch: Callable[..., Any]) -> Callable[..., Any]:
    """`launch` of a compiled kernel, which leaves it to the recorder of the thread."""

    @functools.wraps(launch)
    def recorded(self: Any, args: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0) -> Any:
        recorder = launches.current()
        if recorder is None:
            return launch(self, args, griddim, blockdim, stream, sharedmem)
        cuda = sys.modules["numba.cuda"]
        device = int(cuda.current_context().device.id)

        def run() -> None:
            """As it was called, on the device that was current then."""
            same = int(cuda.current_context().device.id) == device
            with contextlib.nullcontext() if same else cuda.gpus[device]:
                launch(self, args, griddim, blockdim, stream, sharedmem)

        recorder.add(_launch(self, args, lengths(griddim), lengths(blockdim), stream, int(sharedmem), device, run))
        return None

    return recorded


def _launch(
    kernel: Any, args: Any, grid: Any, block: Any, stream: Any, shared: int, device: int, run: Callable[[], None]
) -> RecordedLaunch:
    where = machines.stream_handle(stream), device, run
    name = getattr(kernel.py_func, "__name__", "kernel")
    said, handed = "", list[Argument]()
    try:
        for place, (kind, value) in enumerate(zip(kernel.argument_types, args, strict=True)):
            said = f"argument {place} of {name}"
            handed += _handed(kernel, kind, value)
        said = f"{name} cannot be fused: it"
        return RecordedLaunch(_origin(kernel, handed), grid, block, shared, tuple(handed), *where)
    except Unseen as why:
        return RecordedLaunch(Origin("", name, ()), grid, block, shared, (), *where, f"{said} {why}")
