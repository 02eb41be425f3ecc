"""Triton's launches inside `with fusiond.cuda.launch()`, above the stand-in for a GPU."""

import re
import threading
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("triton", reason="needs Triton")

import fusiond.cuda
from fusiond.cuda.recording import groups, triton
from fusiond.model.ptx.triton import NotTaken
from tests.cuda.recording.test_launch import states
from tests.triton import recorded
from tests.triton.stand_in import DeviceArray, Gpu

N = 3000


class Data:
    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.x, self.y = DeviceArray(random.random(N, np.float32)), DeviceArray(np.zeros(N, np.float32))
        self.v = DeviceArray(random.integers(0, 16, N).astype(np.int32))
        self.counts = DeviceArray(np.zeros(16, np.int32))

    def scale(self, by: float = 3.0) -> Any:
        return recorded.scale[lambda given: (-(-N // given["BLOCK"]),)](self.x, self.y, by, N, BLOCK=1024)

    def count(self) -> Any:
        return recorded.count[(3,)](self.v, self.counts, N, BLOCK=1024, num_warps=8)

    def check(self, times: int = 1, by: float = 3.0) -> None:
        np.testing.assert_array_equal(self.y.array, self.x.array * np.float32(by))
        np.testing.assert_array_equal(self.counts.array, times * np.bincount(self.v.array, minlength=16))


def test_they_run_as_one_with_the_numbers_of_each_time(gpu: Gpu, on_gpu: list[Any], db: Path) -> None:
    data = Data()
    gpu.triton.stream = 7
    for by in (3.0, 3.5):
        with fusiond.cuda.launch(block=True, db=db):
            assert data.scale(by).asm["ptx"]
            data.count()
            assert gpu.launched == [], str(fusiond.cuda.explain())
    assert states() == [("fused", 2)], str(fusiond.cuda.explain())
    assert (gpu.launched, set(gpu.queues), len(on_gpu)) == ([], {7}, 1)
    gpu.drain()
    data.check(2, 3.5)
    data.scale()
    assert [name for name, _, _ in gpu.launched] == ["scale"]
    gpu.drain()


def test_what_one_writes_and_another_reads_runs_in_order(gpu: Gpu, on_gpu: list[Any], db: Path) -> None:
    data = Data()
    with fusiond.cuda.launch(block=True, db=db):
        data.scale()
        recorded.scale[(3,)](data.y, data.y, 2.0, N, BLOCK=1024)
    gpu.drain()
    np.testing.assert_array_equal(data.y.array, data.x.array * 6)
    assert "scale and scale share memory that one of them may write" in str(fusiond.cuda.explain())


def test_atomics_write_and_what_both_read_is_shared(gpu: Gpu, on_gpu: list[Any], db: Path) -> None:
    data, others = Data(), DeviceArray(np.zeros(16, np.int32))
    with fusiond.cuda.launch(block=True, db=db):
        recorded.count[(3,)](data.v, others, N, BLOCK=1024)
        data.count()
    assert states() == [("fused", 1)]
    with fusiond.cuda.launch(block=True, db=db):
        recorded.count[(3,)](data.v, data.counts, N, BLOCK=1024)
        data.count()
    gpu.drain()
    assert states() == [("refused", 1)]
    np.testing.assert_array_equal(data.counts.array, 3 * others.array)


def test_other_threads_launch_as_ever_and_triton_is_as_it_was(gpu: Gpu, db: Path) -> None:
    from triton.runtime.jit import JITFunction

    before, data = JITFunction.run, Data()
    with fusiond.cuda.launch(db=db):
        with fusiond.cuda.launch(db=db):
            other = threading.Thread(target=data.count)
            other.start()
            other.join()
            assert [name for name, _, _ in gpu.launched] == ["count"]
        data.scale()
        assert len(gpu.launched) == 1
    assert JITFunction.run is before
    gpu.drain()
    data.check()


def test_tritons_own_tuning_measures_what_it_launches(gpu: Gpu, db: Path) -> None:
    from triton import Config, autotune

    configs = [Config({"BLOCK": each}) for each in (512, 1024)]
    tuned = autotune(configs, key=["n"])(recorded.scale)
    data = Data()
    with fusiond.cuda.launch(db=db):
        tuned[lambda given: (-(-N // given["BLOCK"]),)](data.x, data.y, 3.0, N)
        assert len(gpu.launched) == 2
        data.count()
    assert len(gpu.launched) == 4
    gpu.drain()
    data.check()
    assert groups.explained()


class Tensor(DeviceArray):
    """As PyTorch's of a type that the interface has no name for, every second element of a row."""

    def __init__(self, array: Any) -> None:
        super().__init__(array)
        self.shape, self.dtype = (4, 8), "torch.bfloat16"

    dtype: Any = None
    __cuda_array_interface__ = property(lambda self: 1 / 0)

    def stride(self) -> tuple[int, int]:
        return 100, 2

    def element_size(self) -> int:
        return 2


def test_a_profilers_memory_is_refused(gpu: Gpu) -> None:
    data = Data()
    compiled = data.scale()
    gpu.drain()
    stored = "\nld.param.b64 %rd1, [scale_param_5]; st.global.b32 [%rd1], 1;\nret;"

    class Profiled:
        src, metadata = compiled.src, compiled.metadata
        asm: ClassVar = {"ptx": re.sub(r"\n\tret;", stored, compiled.asm["ptx"])}

    with pytest.raises(NotTaken, match="a profiler's memory"):
        triton.launch_of(Profiled(), {}, (1, 1, 1), 0, 0, print)


@pytest.mark.needs_nvcc
def test_beside_kernels_in_cuda(gpu: Gpu, on_gpu: list[Any], db: Path) -> None:
    """They are fused as PTX: nvcc compiles the other one."""
    data, z = Data(), DeviceArray(np.zeros(N, np.float32))
    twice = fusiond.cuda.kernel(
        'extern "C" __global__ void twice(const float* x, float* y, int n) {'
        "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = 2 * x[i]; }",
        "twice",
    )
    with fusiond.cuda.launch(block=True, db=db):
        twice.launch(12, 256, (data.x, z, np.int32(N)))
        data.count()
    assert states() == [("fused", 1)], str(fusiond.cuda.explain())
    gpu.drain()
    np.testing.assert_array_equal(z.array, 2 * data.x.array)
    np.testing.assert_array_equal(data.counts.array, np.bincount(data.v.array, minlength=16))
