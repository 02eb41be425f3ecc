"""Kernels of `cupyx.jit` inside `with fusiond.cuda.launch()`: by a stand-in for CuPy (what it shows was looked up in
CuPy 14.2), with the PTX that CuPy's sources and NVRTC made of these:

    def scale(x, y, a, n):                       def count(v, counts):
        i = blockIdx.x * blockDim.x + ...            for k in range(i, v.size, step):
        if i < n:                                        jit.atomic_add(counts, v[k], 1)
            y[i] = a * x[i]
"""

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fusiond.cuda
from fusiond.cuda.recording import cupy_jit
from fusiond.cuda.recording.arguments import Struct

from .interpreted import Array, Gpu, KernelData, N, installed
from .test_cupy import Stream
from .test_launch import states

PTX = Path(__file__).parent / "jit"


@dataclasses.dataclass(frozen=True)
class Type:
    """Of an argument: `_cuda_types.CArray` and `Scalar`."""

    dtype: Any
    array: bool = False


class Jitted:
    """`_JitRawKernel` of cupyx.jit._interface."""

    __module__ = "cupyx.jit._interface"
    gpu: Gpu
    _mode = "cuda"

    def __init__(self, name: str) -> None:
        self.text = (PTX / f"{name}.ptx").read_text()
        self._func = SimpleNamespace(__name__=name)

    def __call__(self, grid: Any, block: Any, args: Any, shared_mem: int = 0, stream: Any = None) -> None:
        handed = []
        for each in args:
            if isinstance(each, Array):
                of = each.array
                numbers = np.array([of.ctypes.data, of.size, *of.shape, *of.strides], np.int64)
                handed.append(numbers.tobytes())
            else:
                handed.append((np.int64 if isinstance(each, int) else np.float32)(each).tobytes())
        number = (stream or Stream.current[-1]).ptr
        self.gpu.launched.append((self._func.__name__, number, self.gpu.device))
        shape = [*(*grid, 1, 1)[:3], *(*block, 1, 1)[:3], shared_mem]
        self.gpu.run(self.text, self._func.__name__, handed, shape, number)


Jitted.__name__ = "_JitRawKernel"
SCALE, COUNT = Jitted("scale"), Jitted("count")


class Program:
    """`_NVRTCProgram` of cupy.cuda.compiler."""

    def __init__(self, source: str, path: str, *, method: str) -> None:
        assert method == "ptx"
        self.source = source

    def compile(self, options: tuple[str, ...]) -> tuple[bytes, None]:
        assert options[-1] == "-arch=compute_90"
        assert "-I/cupy" in options
        headers, _, name = self.source.partition("\n")
        assert headers == "#include <cupy/carray.cuh>"
        return (PTX / f"{name}.ptx").read_bytes() + b"\0", None


@pytest.fixture
def written() -> SimpleNamespace:
    """What CuPy says of a source that it has written."""
    return SimpleNamespace(enable_cooperative_groups=False, backend="nvrtc", jitify=False, options=("-std=c++17",))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, written: SimpleNamespace) -> Iterator[Gpu]:
    made = Jitted.gpu = installed(monkeypatch, tmp_path)
    Stream.current = [Stream(0)]
    cupy_jit._known.clear()
    compiler = SimpleNamespace(
        _compile_module_with_cache=None, _NVRTCProgram=Program, _get_arch=lambda: "90", compiled=list[str]()
    )

    def transpile(func: Any, attributes: Any, mode: str, types: Any, returned: Any) -> SimpleNamespace:
        compiler.compiled.append(func.__name__)
        return SimpleNamespace(**vars(written), code=func.__name__, func_name=func.__name__)

    def compile_with_cache(*, source: str, options: tuple[str, ...], backend: str, jitify: bool) -> Any:
        headers = "#include <cupy/carray.cuh>\n"
        return compiler._compile_module_with_cache(headers + source, (*options, "-I/cupy"), arch=None)

    def carray(value: Array) -> Type:
        return Type(value.array.dtype, array=True)

    runtime = SimpleNamespace(getDevice=lambda: made.device)
    modules = {
        "cupy": SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda: Stream.current[-1], runtime=runtime)),
        "cupy.cuda.compiler": compiler,
        "cupy._core.core": SimpleNamespace(compile_with_cache=compile_with_cache),
        "cupyx.jit._interface": SimpleNamespace(_JitRawKernel=Jitted, _compile=SimpleNamespace(transpile=transpile)),
        "cupyx.jit._cuda_types": SimpleNamespace(CArray=SimpleNamespace(from_ndarray=carray), void=None),
        "cupyx.jit._cuda_typerules": SimpleNamespace(
            get_ctype_from_scalar=lambda mode, value: Type(np.dtype("i8" if isinstance(value, int) else "f4"))
        ),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    yield made
    assert not any(made.queues.values()), "a test leaves work whose arrays are gone"


class Data(KernelData):
    def both(self, by: float = 3.0) -> None:
        SCALE((4,), (256,), (self.x, self.y, by, N))
        COUNT((2,), (128,), (self.v, self.counts))


def test_they_run_as_one_wherever_their_arrays_lie(gpu: Gpu, on_gpu: list[Any], db: Path) -> None:
    sets = [Data(gpu) for _ in range(2)]
    for data, by in zip(sets, (3.0, 3.5), strict=True):
        with fusiond.cuda.launch(SCALE, block=True, db=db) as scale, Stream(7):
            assert scale is SCALE
            data.both(by)
    assert states() == [("fused", 2)], str(fusiond.cuda.explain())
    assert (gpu.launched, set(gpu.queues), len(on_gpu)) == ([], {7}, 1)
    gpu.drain()
    for data, by in zip(sets, (3.0, 3.5), strict=True):
        data.check(1, by)
    assert sys.modules["cupy.cuda.compiler"].compiled == ["scale", "count"]


@pytest.mark.filterwarnings("ignore:cupyx.jit:FutureWarning")
def test_kernels_of_cupy_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its types, its source and NVRTC's PTX, without a GPU."""
    jit = pytest.importorskip("cupyx.jit", reason="CuPy is not installed")
    from cupy.cuda import compiler
    from cupyx.jit import _cuda_types as types

    try:
        compiler._get_nvrtc_version()
    except Exception as problem:
        pytest.skip(f"NVRTC does not load: {problem}")

    @jit.rawkernel()  # type: ignore[misc, untyped-decorator]
    def add(y, x, by):  # type: ignore[no-untyped-def]
        i = jit.blockIdx.x * jit.blockDim.x + jit.threadIdx.x
        if i < x.size:
            y[i] += x[i] + by

    assert cupy_jit.is_kernel(add)
    monkeypatch.setattr(compiler, "_get_arch", lambda: "90")
    array = types.CArray(np.dtype("f8"), 1, False, True)
    kinds = (array, array, types.Scalar(np.dtype("f4")))
    values = (Array(np.zeros(4)), Array(np.zeros(8), 2), 3.0)
    handed = [cupy_jit._handed(value, kind) for value, kind in zip(values, kinds, strict=True)]
    found = cupy_jit._compiled(add, kinds, handed)
    assert [(each.struct, each.written) for each in found.drafted.parameters] == [
        (True, True), (True, False), (False, False),
    ]  # fmt: skip
    assert isinstance(handed[1], Struct)
    assert np.frombuffer(handed[1].data, np.int64)[1:].tolist() == [4, 4, 16]
