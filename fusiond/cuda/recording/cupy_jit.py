"""Records launches of `cupyx.jit` kernels. CuPy is not imported: the program has done that.

While a recorder is open, calling such a kernel leaves the launch to the recorder of its thread. It is known by the PTX
that NVRTC makes of the source that CuPy writes; an array is handed over as a struct with its address.
"""

import functools
import math
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fusiond.cuda.recording import arguments, compiled, launches, machines
from fusiond.cuda.recording.arguments import Argument, Array, Struct, Unseen
from fusiond.cuda.recording.cupy import atleast_one, run_where
from fusiond.cuda.recording.launches import Grid, RecordedLaunch, lengths
from fusiond.cuda.recording.method_patches import Method, Replacing
from fusiond.cuda.recording.origins import Origin, PtxOrigin


def is_kernel(kernel: object) -> bool:
    """Whether it is a function of `cupyx.jit.rawkernel`."""
    return type(kernel).__name__ == "_JitRawKernel" and type(kernel).__module__.startswith("cupyx.jit")


# --- what a launch is -----------------------------------------------------------------------------------


def _handed(value: Any, kind: Any) -> Argument:
    """An argument as CuPy's types say. Unseen."""
    if not hasattr(value, "__cuda_array_interface__"):
        return arguments.number((np.float32 if kind.dtype.char == "e" else kind.dtype.type)(value))
    found = arguments.read(value, widen=True)
    assert isinstance(found, Array)
    interface = value.__cuda_array_interface__
    shape, size = interface["shape"], np.dtype(interface["typestr"]).itemsize
    strides = interface.get("strides") or [size * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    data = struct.pack(f"<Q{1 + 2 * len(shape)}q", found.address, math.prod(shape), *shape, *strides)
    return Struct(data, ((0, found),) if found.address else ())


def _types(kernel: Any, args: Sequence[Any]) -> tuple[Any, ...]:
    """As `_JitRawKernel.__call__` finds them. Unseen."""
    arrays, rules = (sys.modules[f"cupyx.jit._{each}"] for each in ("cuda_types", "cuda_typerules"))
    found = []
    for each in args:
        if hasattr(each, "__cuda_array_interface__"):
            found.append(arrays.CArray.from_ndarray(each))
        elif np.isscalar(each):
            found.append(rules.get_ctype_from_scalar(kernel._mode, each))
        else:
            raise Unseen(f"is handed a {type(each).__name__}")
    return tuple(found)


_known: weakref.WeakKeyDictionary[Any, dict[tuple[Any, ...], PtxOrigin | str]] = weakref.WeakKeyDictionary()
"""Kernel -> types -> what it is, or why it is not known."""


def _origin(kernel: Any, types: tuple[Any, ...], handed: Sequence[Argument]) -> PtxOrigin:
    """The kernel by its PTX, compiled once for these types. Unseen."""
    known = _known.setdefault(kernel, {})
    if types not in known:
        try:
            known[types] = _compiled(kernel, types, handed)
        except Unseen as why:
            known[types] = str(why)
        except Exception as problem:  # what of CuPy is asked here is not for others, and changes
            known[types] = f"has no PTX that CuPy shows: {type(problem).__name__}: {problem}"[:300]
    found = known[types]
    if isinstance(found, str):
        raise Unseen(found)
    return found


def _compiled(kernel: Any, types: tuple[Any, ...], handed: Sequence[Argument]) -> PtxOrigin:
    interface, compiler = sys.modules["cupyx.jit._interface"], sys.modules["cupy.cuda.compiler"]
    void = sys.modules["cupyx.jit._cuda_types"].void
    written = interface._compile.transpile(kernel._func, ['extern "C"', "__global__"], kernel._mode, types, void)
    if written.enable_cooperative_groups or written.backend != "nvrtc" or written.jitify:
        raise Unseen("is launched cooperatively, or not compiled by NVRTC")
    source, options = _source(written, compiler)
    program = compiler._NVRTCProgram(source, "kernel.cu", method="ptx")
    more = ("-ftz=true", "--device-as-default-execution-space", f"-arch=compute_{compiler._get_arch()}")
    text = bytes(program.compile((*options, *more))[0]).rstrip(b"\0").decode()
    return compiled.origin(text, written.func_name, tuple(map(compiled.parameter, handed)))


class _Caught(BaseException):
    """Ends CuPy's compilation."""


_catching = threading.Lock()


def _source(written: Any, compiler: Any) -> tuple[str, tuple[str, ...]]:
    """The source with CuPy's headers before it, and the options: what CuPy would compile."""
    compile_, here = compiler._compile_module_with_cache, threading.get_ident()

    def caught(source: str, options: tuple[str, ...] = (), **more: Any) -> Any:
        if threading.get_ident() != here:
            return compile_(source, options, **more)
        raise _Caught(source, options)

    with _catching:
        compiler._compile_module_with_cache = caught
        try:
            sys.modules["cupy._core.core"].compile_with_cache(
                source=written.code, options=written.options, backend=written.backend, jitify=False
            )
        except _Caught as found:
            source, options = found.args
            return source, options
        finally:
            compiler._compile_module_with_cache = compile_
    raise Unseen("has a source that CuPy does not show")


# --- recording ------------------------------------------------------------------------------------------


def _methods() -> Iterator[Method]:
    interface = sys.modules.get("cupyx.jit._interface")
    if interface is not None:
        yield interface._JitRawKernel, "__call__", _recorded


_replacing = Replacing(_methods)
begin, end = _replacing.begin, _replacing.end


def _recorded(call: Callable[..., Any]) -> Callable[..., Any]:
    """`__call__` of a kernel, which leaves the launch to the recorder of the thread."""

    @functools.wraps(call)
    def recorded(
        self: Any, grid: Grid, block: Grid, args: Sequence[Any], shared_mem: int = 0, stream: Any = None
    ) -> Any:
        recorder = launches.current()
        if recorder is None:
            return call(self, grid, block, args, shared_mem, stream)
        cuda = sys.modules["cupy"].cuda
        stream = stream or cuda.get_current_stream()
        device = int(cuda.runtime.getDevice())
        run = functools.partial(
            run_where, cuda, functools.partial(call, self), grid, block, tuple(args), int(shared_mem), stream, device
        )
        where = machines.stream_handle(stream), device, run
        shape = lengths(atleast_one(grid)), lengths(atleast_one(block)), int(shared_mem)
        try:
            types = _types(self, args)
            handed = tuple(_handed(each, kind) for each, kind in zip(args, types, strict=True))
            recorder.add(RecordedLaunch(_origin(self, types, handed), *shape, handed, *where))
        except Unseen as why:
            name = getattr(self._func, "__name__", "kernel")
            launch = RecordedLaunch(Origin("", name, ()), *shape, (), *where, f"{name} cannot be fused: it {why}")
            recorder.add(launch)
        return None

    return recorded
