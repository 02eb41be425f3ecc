"""Numba's launches inside `with fusiond.cuda.launch()`: by a stand-in for Numba (what it shows of a kernel was looked
up in numba-cuda 0.30) above the stand-in for the driver, which runs the PTX that Numba made of these kernels:

    def scale(x, y, a, n):                       def count(v, counts):
        i = cuda.grid(1)                             for i in range(cuda.grid(1), v.size, cuda.gridsize(1)):
        if i < n:                                        cuda.atomic.add(counts, v[i], 1)
            y[i] = a * x[i]
"""

import ctypes
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fusiond.cuda
from fusiond.cuda.recording import compiled, numba

from .interpreted import Array, Device, Gpu, KernelData, N, installed
from .test_launch import states

PTX = Path(__file__).parent / "numba"


class Integer:
    pass


class Float:
    pass


class CPointer:
    pass


class Stream:
    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


class Kernel:
    """`_Kernel` of numba.cuda.dispatcher."""

    gpu: Gpu
    extensions: tuple[Any, ...] = ()
    debug = cooperative = False

    def __init__(self, name: str, *kinds: type) -> None:
        self.text = (PTX / f"{name}.ptx").read_text()
        self.entry_name = re.findall(r"\.entry (\w+)", self.text)[0]
        self.py_func = SimpleNamespace(__name__=name)
        self.argument_types = tuple(each() if each is not Array else Array(np.zeros(0)) for each in kinds)
        self._codelibrary = SimpleNamespace(_linking_files=set())

    def inspect_asm(self, capability: tuple[int, int]) -> str:
        assert capability == (9, 0)
        return self.text

    def _prepare_args(self, kind: Any, value: Any, stream: Any, retr: list[Any], kernelargs: list[Any]) -> None:
        kernelargs.append((ctypes.c_float if isinstance(kind, Float) else ctypes.c_longlong)(value))

    def launch(self, args: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0) -> None:
        handed = []
        for kind, value in zip(self.argument_types, args, strict=True):
            if isinstance(kind, Array):
                of = getattr(value, "array", value)
                numbers = [0, 0, of.size, of.itemsize, of.ctypes.data, *of.shape, *of.strides]
                handed += [ctypes.c_longlong(each) for each in numbers]
            else:
                self._prepare_args(kind, value, stream, [], handed)
        handle = 0 if stream == 0 else stream.handle
        self.gpu.launched.append((self.py_func.__name__, handle, self.gpu.device))
        self.gpu.run(self.text, self.entry_name, list(map(bytes, handed)), [*griddim, *blockdim, sharedmem], handle)


class CUDADispatcher:
    """What `numba.cuda.jit` makes of a function."""

    __module__ = "numba.cuda.dispatcher"

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __getitem__(self, shape: tuple[Any, ...]) -> Callable[..., None]:
        grid, block, stream, shared = (*shape, 0, 0)[:4]
        lengths = [(each, 1, 1) if isinstance(each, int) else (*each, 1, 1)[:3] for each in (grid, block)]
        return lambda *args: self.kernel.launch(args, *lengths, stream, shared)


SCALE = CUDADispatcher(Kernel("scale", Array, Array, Float, Integer))
COUNT = CUDADispatcher(Kernel("count", Array, Array))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gpu]:
    made = Kernel.gpu = installed(monkeypatch, tmp_path)
    cuda = SimpleNamespace(
        current_context=lambda: SimpleNamespace(device=SimpleNamespace(id=made.device)),
        get_current_device=lambda: SimpleNamespace(compute_capability=(9, 0)),
        gpus=[Device(made, each) for each in range(2)],
    )
    monkeypatch.setitem(sys.modules, "numba.cuda", cuda)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "numba.cuda.dispatcher", SimpleNamespace(_Kernel=Kernel))  # type: ignore[arg-type]
    yield made
    assert not any(made.queues.values()), "a test leaves work whose arrays are gone"


class Data(KernelData):
    def both(self, by: float = 3.0, stream: Any = 0) -> None:
        SCALE[4, 256, stream](self.x, self.y, by, N)
        COUNT[(2,), (128,), stream](self.v, self.counts)


def test_they_run_as_one_with_the_numbers_of_each_time(gpu: Gpu, on_gpu: list[Any], db: Path) -> None:
    data = Data(gpu)
    for by in (3.0, 3.5):
        with fusiond.cuda.launch(block=True, db=db):
            data.both(by, Stream(7))
    assert states() == [("fused", 2)], str(fusiond.cuda.explain())
    assert (gpu.launched, set(gpu.queues), len(on_gpu)) == ([], {7}, 1)
    assert fusiond.cuda.explain()[0].name == "scale + count"
    gpu.drain()
    data.check(2, 3.5)


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("host", "argument 0 of scale is an array of the host, which Numba copies to the GPU and back"),
        ("debug", "scale cannot be fused: it is compiled for debugging, or launched cooperatively"),
        ("linked", "scale cannot be fused: it has extensions, or is linked with other files"),
        ("two", "scale cannot be fused: it is linked of several modules"),
        ("pointer", "argument 3 of scale is"),
    ],
)
def test_what_cannot_be_seen_is_launched_as_it_is(
    gpu: Gpu, db: Path, monkeypatch: pytest.MonkeyPatch, broken: str, why: str
) -> None:
    data, kernel = Data(gpu), Kernel("scale", Array, Array, Float, Integer if broken != "pointer" else CPointer)
    kernel.debug = broken == "debug"
    kernel._codelibrary._linking_files = {"other.cu"} if broken == "linked" else set()
    monkeypatch.setattr(kernel, "inspect_asm", lambda _: kernel.text * (1 + (broken == "two")))
    x = data.x.array if broken == "host" else data.x
    with fusiond.cuda.launch(block=True, db=db):
        CUDADispatcher(kernel)[4, 256](x, data.y, 3.0, N)
        COUNT[2, 128](data.v, data.counts)
    assert [name for name, _, _ in gpu.launched] == ["scale", "count"]
    gpu.drain()
    data.check()
    assert why in str(fusiond.cuda.explain())


def test_kernels_of_numba_itself() -> None:
    """Its types, its PTX and how it hands arguments over; a kernel is compiled without a GPU."""
    cuda = pytest.importorskip("numba.cuda", reason="Numba is not installed")
    from numba import types
    from numba.cuda import compiler, dispatcher

    def add(y, x, box, n):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < n and box[1]:
            y[i] += x[i] + box[0]

    assert numba.is_kernel(cuda.jit(add))
    array, pair = types.Array(types.float64, 1, "A"), types.Tuple((types.int32, types.boolean))
    kinds = (array, array, pair, types.int64)
    text, _ = compiler.compile_ptx(add, kinds, cc=(9, 0))
    kernel = SimpleNamespace(extensions=(), argument_types=kinds)
    kernel._prepare_args = lambda *given: dispatcher._Kernel._prepare_args(kernel, *given)
    values = (Array(np.zeros(4)), Array(np.zeros(4), 2), (7, True), 4)
    handed = [each for kind, value in zip(kinds, values, strict=True) for each in numba._handed(kernel, kind, value)]
    entry = re.findall(r"\.entry (\S+)\(", text)[0]
    origin = compiled.origin(text.rstrip("\0"), entry, tuple(map(compiled.parameter, handed)))
    assert origin.plain == "add"
    assert [each.written for each in origin.drafted.parameters].index(True) == 4
    assert sum(each.written for each in origin.drafted.parameters) == 1
    assert [len(each.data) for each in handed[-3:]] == [4, 1, 8]
