"""CuPy's RawKernels, by a stand-in for CuPy (what it shows of a kernel was looked up in CuPy 14.2) above the stand-in
for the driver: kernels run where streams say so, and nothing before somebody waits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import fusiond.cuda
from fusiond.build import gxx
from fusiond.cuda.recording import arguments, cupy, machines
from fusiond.cuda.recording.origins import Origin
from fusiond.devices.cpu import native
from fusiond.model.program import Program
from fusiond.service.frameworks import launching
from tests.build.exporting import driver as stand_in

from .interpreted import Device
from .test_launch import SAMPLES, SOURCE, N, states


class Array:
    """As `cupy.ndarray` shows itself."""

    def __init__(self, array: Any) -> None:
        self.array = np.ascontiguousarray(array)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        of = self.array.__array_interface__
        return {"shape": of["shape"], "typestr": of["typestr"], "data": of["data"], "strides": None, "version": 3,
                "stream": 1}  # fmt: skip


class Stream:
    current: ClassVar[list[Stream]] = []

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.ptr == self.ptr

    __hash__ = None  # type: ignore[assignment]

    def __enter__(self) -> Stream:
        Stream.current.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        Stream.current.pop()


class Gpu:
    """The machine that the stand-ins share."""

    def __init__(self) -> None:
        self.driver = stand_in.Driver(gxx.scheduler())
        self.device = 0
        self.launched: list[tuple[str, int, int]] = []  #: (kernel, stream, device) of what CuPy launched itself


class RawKernel:
    __module__ = "cupy._core.raw"

    gpu: Gpu

    def __init__(self, code: str | None, name: str, options: tuple[str, ...] = (), backend: str = "nvrtc") -> None:
        self.code, self.name, self.options, self.backend = code, name, options, backend
        self.file_path = None if code else "kernels.cubin"
        self.enable_cooperative_groups = False
        self.max_dynamic_shared_size_bytes = 0

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int = 0) -> None:
        assert self.code is not None
        driver, stream = self.gpu.driver, Stream.current[-1].ptr
        source = Origin(self.code, cupy._written(self.name), self.options).source()
        path = gxx.build(source)
        assert isinstance(path, Path), path
        entry = driver.runtime.load(path).entry(gxx.exported(source, source.entries[0]))
        values = [self._passed(each) for each in args]
        padded = [(*each, 1, 1)[:3] for each in (grid, block)]
        launch = native.NativeLaunch(grid=padded[0], block=padded[1], shared_bytes=shared_mem)
        self.gpu.launched.append((self.name, stream, self.gpu.device))

        def work() -> None:
            done = driver.runtime.launch(entry, launch, values)
            assert isinstance(done, native.Finished), done

        driver.enqueue(stand_in.Op(stream, work))

    @staticmethod
    def _passed(value: Any) -> bytes:
        if isinstance(value, Array):
            return int(value.array.ctypes.data).to_bytes(8, "little")
        if value is None:
            return bytes(8)
        return (np.int64(value) if type(value) is int else np.asarray(value)).tobytes()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gpu]:
    made = Gpu()
    RawKernel.gpu = made
    Stream.current = [Stream(0)]
    runtime = SimpleNamespace(getDevice=lambda: made.device)
    cuda = SimpleNamespace(get_current_stream=lambda: Stream.current[-1], runtime=runtime, Device=partial(Device, made))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    monkeypatch.setattr(machines, "library", made.driver)

    def cubins(program: Program, arch: str) -> Any:
        assert arch == "sm_90"
        images = stand_in.built(program, tmp_path)
        return tuple(images[each.name].read_bytes() for each in program.sources), tuple(
            f"_Z{each}" for each in launching.built_for_cpu(program)[1]
        )

    monkeypatch.setattr(launching, "built_for_gpu", cubins)
    yield made
    assert not any(made.driver.queues.values()), "a test leaves work whose arrays are gone"


SCALE = RawKernel(SOURCE, "scale")
HISTOGRAM = RawKernel(SOURCE, "histogram", ("-std=c++14",))


class Data:
    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.x, self.y = Array(random.random(N, np.float32)), Array(np.zeros(N, np.float32))
        self.counts, self.v = Array(np.zeros(16, np.uint32)), Array(random.integers(0, 16, N).astype(np.int32))

    def both(self, scale: Any, histogram: Any, streams: tuple[int, int] = (0, 0)) -> None:
        with Stream(streams[0]):
            scale((4,), (256,), (self.x, self.y, np.float32(3), np.int32(N)))
        with Stream(streams[1]):
            histogram((2,), (128,), (self.counts, self.v, np.array(N, np.int32)), shared_mem=64)

    def check(self, times: int = 1) -> None:
        np.testing.assert_array_equal(self.y.array, self.x.array * np.float32(3))
        np.testing.assert_array_equal(self.counts.array, times * np.bincount(self.v.array, minlength=16))


def test_raw_kernels_run_as_one_on_their_stream(gpu: Gpu, on_gpu: list[Any], db: Path) -> None:
    data = Data()
    for _ in range(2):
        with fusiond.cuda.launch(SCALE, HISTOGRAM, block=True, db=db) as (scale, histogram):
            assert scale.max_dynamic_shared_size_bytes == 0
            data.both(scale, histogram, (7, 7))
    assert states() == [("fused", 2)], str(fusiond.cuda.explain())
    assert gpu.launched == []
    assert set(gpu.driver.queues) == {7}
    gpu.driver.drain()
    data.check(2)
    assert len(on_gpu) == 1


def test_several_streams_and_devices_are_kept(gpu: Gpu, on_gpu: list[Any], db: Path) -> None:
    data = Data()
    with fusiond.cuda.launch(SCALE, HISTOGRAM, block=True, db=db) as (scale, histogram):
        data.both(scale, histogram, (7, 8))
        assert gpu.launched == []
    assert gpu.launched == [("scale", 7, 0), ("histogram", 8, 0)]
    gpu.driver.drain()
    data.check()
    with fusiond.cuda.launch(SCALE, HISTOGRAM, block=True, db=db) as (scale, histogram):
        gpu.device = 1
        data.both(scale, histogram, (7, 8))
        gpu.device = 0
    gpu.driver.drain()
    assert gpu.launched[2:] == [("scale", 7, 1), ("histogram", 8, 1)]
    assert on_gpu == []
    assert "refused: they go to several streams" in str(fusiond.cuda.explain())


def test_names_of_templates_in_a_module(gpu: Gpu, on_gpu: list[Any], db: Path) -> None:
    """`RawModule(..., name_expressions=...).get_function` has mangled names."""
    clamp = RawKernel(SAMPLES, "_ZN3ops5clampIiLi3EEEvPT_PKS1_3BoxPKfi", ("-DTILE=64",))
    twice = RawKernel(SAMPLES, "_Z9twice_allPfyb", ("-DTILE=64",))
    box = np.array((-3, 5, 2.0), np.dtype([("low", "i4"), ("high", "i4"), ("by", "f8")], align=True))
    x, y = Array(np.arange(-10, 10, dtype=np.int32)), Array(np.zeros(20, np.int32))
    z = Array(np.arange(40, dtype=np.float32))
    with fusiond.cuda.launch(clamp, twice, block=True, db=db) as (first, second):
        first((2,), (64,), (y, x, box, None, np.int32(20)))
        second((1,), (64,), (z, 40, np.bool_(True)))
    assert states() == [("fused", 1)], str(fusiond.cuda.explain())
    gpu.driver.drain()
    np.testing.assert_array_equal(y.array, np.clip(x.array, -3, 5) * 2 + 3)
    np.testing.assert_array_equal(z.array, 2 * np.arange(40))


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_Z4poolIfLi5EEvPT_", "pool<float, 5>"), ("_Z1fPFviE", "f"),
        ("_Z1hIXadL_Z3addiiEEEvPi", "h<&(add(int, int))>"), ("scale", "scale"), ("_Znothing", "_Znothing"),
        ("_Z1kIXgtLi3ELi2EEEvPi", "k<((3)>(2))>"), ("_ZN12_GLOBAL__N_11kEPi", "(anonymous namespace)::k"),
    ],
)  # fmt: skip
def test_mangled_names(mangled: str, name: str) -> None:
    assert cupy._written(mangled) == name


def test_kernels_of_ones_own_on_a_gpu(gpu: Gpu, on_gpu: list[Any], db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of whoever has `__cuda_array_interface__`, streams by their handle."""
    monkeypatch.setattr(machines, "_sizes", lambda origin, code: None)
    data = Data()
    scale, histogram = (fusiond.cuda.kernel(SOURCE, name) for name in ("scale", "histogram"))

    def both(stream: Any) -> None:
        scale.launch(4, 256, (data.x, data.y, np.float32(3), np.int32(N)), stream=stream)
        histogram.launch(2, 128, (data.counts, data.v, np.int32(N)), 64, stream)

    both(7)
    assert set(gpu.driver.queues) == {7}
    with fusiond.cuda.launch(block=True, db=db):
        both(Stream(7))
    assert states() == [("fused", 1)], str(fusiond.cuda.explain())
    gpu.driver.drain()
    data.check(2)
    with pytest.raises(TypeError, match="arrays of the host and of a GPU"):
        scale.launch(4, 256, (data.x, data.y.array, np.float32(3), np.int32(N)))
    with pytest.raises(TypeError, match="stream is a str"):
        scale.launch(4, 256, (data.x, data.y, np.float32(3), np.int32(N)), stream="x")
    gpu.driver.context = None
    with pytest.raises(fusiond.cuda.LaunchFailed, match="no CUDA context is current"):
        both(7)


def test_nothing_is_loaded_while_a_stream_is_captured(gpu: Gpu, on_gpu: list[Any], db: Path) -> None:
    """CUDA loads no module then: the launches are CuPy's. What is loaded is captured as one launch."""
    data = Data()
    captured = True

    def capturing(stream: Any, into: Any) -> int:
        into._obj.value = int(captured)
        return 0

    gpu.driver.cuStreamIsCapturing = capturing  # type: ignore[attr-defined]

    def both() -> None:
        with fusiond.cuda.launch(SCALE, HISTOGRAM, block=True, db=db) as kernels:
            data.both(*kernels)

    both()
    assert len(gpu.launched) == 2
    captured = False
    both()
    captured = True
    both()
    assert len(gpu.launched) == 2
    assert states() == [("fused", 2)], str(fusiond.cuda.explain())
    gpu.driver.drain()
    data.check(3)


def test_numbers_as_cupy_passes_them() -> None:
    """Python's have eight bytes, arrays of one element go by value."""
    found = [arguments.read(each, widen=True) for each in (True, 3, 2**63, 0.5, 1j, np.array([7], np.int16), None)]
    assert [each.dtype for each in found] == ["bool", "int64", "uint64", "float64", "complex128", "int16", "null"]
    assert [len(each.data) for each in found] == [1, 8, 8, 8, 16, 2, 8]
    with pytest.raises(arguments.Unseen, match="is a list"):
        arguments.read([1], widen=True)
