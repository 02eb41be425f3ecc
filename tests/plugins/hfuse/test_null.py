"""A pointer parameter that is handed nothing."""

from __future__ import annotations

import numpy as np
import pytest

from fusiond.model.errors import RequestError
from fusiond.model.nouns import Config
from fusiond.model.program import Pointer, Scalar

SOURCE = """\
template <class T>
__global__ void shifted(T* out, const T* __restrict__ x, const T* __restrict__ shift, int* count, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = x[i] + (shift ? shift[i] : T(1));
    if (count) atomicAdd(count, 1);
}
"""
YAML = """\
kernel: shifted
source: shifted.cu
entry: shifted
instance: shifted<float>
sizes: {n: 100}
arguments:
  - {name: out, dtype: float32, elements: n, role: output, compare: equal}
  - {name: x, dtype: float32, elements: n, role: input, fill: iota}
  - {name: shift, dtype: float32, value: 0}
  - {name: count, dtype: int32, value: 0}
  - {name: n, dtype: int32, value: n}
block: {shape: [64]}
grid: [2]
"""
CONFIG = Config.of(
    {"kind": "horizontal", "level": "warp", "map": "pad", "threads.a": 64, "threads.b": 64, "order": "ab"}
)


@pytest.fixture
def fused(analyse, strategy, kernel_file):
    analysis = analyse(kernel_file("shifted", SOURCE, YAML), "./shifted.yaml", sizes={"b.n": 70}, granularity=32)
    return analysis, strategy.emit(analysis, CONFIG, {})


def test_no_buffer_is_a_null_pointer(fused, strategy, same, runner):
    analysis, program = fused
    same(program, strategy.unfused(analysis, CONFIG))
    np.testing.assert_array_equal(runner.run(program)["a.out"], np.arange(100, dtype="f4") + 1)
    kinds = [type(each) for each in program.steps[0].arguments[:5]]
    assert kinds == [Pointer, Pointer, Scalar, Scalar, Scalar]


def test_another_number_is_no_pointer(analyse, kernel_file):
    yaml = YAML.replace("{name: shift, dtype: float32, value: 0}", "{name: shift, dtype: float32, value: 1}")
    with pytest.raises(RequestError, match=r"shift: .* a buffer, with elements, or 0"):
        analyse(kernel_file("shifted", SOURCE, yaml), "hist")
