"""Three implementations of one computation, and what reads them."""

from pathlib import Path

import pytest

from fusiond.requests.registry import Registry
from fusiond_hfuse import plugin as hfuse
from fusiond_variants import plugin

YAML = """\
kernel: {name}
source: {name}.cu
entry: scale
sizes: {{n: 3000}}
odd: {{n: 1001}}
arguments:
  - {{name: x, dtype: float32, elements: n, role: input, fill: {{uniform: [0, 1]}}}}
  - {{name: y, dtype: float32, elements: n, role: output}}
  - {{name: n, dtype: int32, value: n}}
  - {{name: factor, dtype: float32, value: "3"}}
block: {{shape: [128]}}
grid: ["ceil_div(n, block.x)"]
"""
PLAIN = """\
__global__ void scale(const float* x, float* y, int n, float factor)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}
"""
EACH = """\
__global__ void scale(float factor, float* __restrict__ y, const float* __restrict__ x, int n)
{
    for (int k = 0; k < EACH; ++k) {
        const int i = (blockIdx.x * EACH + k) * blockDim.x + threadIdx.x;
        if (i < n) y[i] = x[i] * factor;
    }
}
"""
EACH_YAML = """\
kernel: scale
source: each.cu
entry: scale
defines: {EACH: [1, 2, 4]}
sizes: {n: 64, spare: 7}
arguments:
  - {name: factor, dtype: float32, value: "3"}
  - {name: y, dtype: float32, elements: n, role: inout, fill: zeros, compare: {rtol: 100}}
  - {name: x, dtype: float32, elements: n, role: input, fill: zeros}
  - {name: n, dtype: int32, value: n}
block: {shapes: [[64], [256]]}
grid: ["ceil_div(n, block.x * EACH)"]
"""
FUNCTION = """\
def scale(x, factor):
    return x * factor
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """plain.yaml, each.yaml (other order of parameters, macros, and its own idea of fills), scale.py, in a folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.yaml").write_text(YAML.format(name="plain"))
    (tmp_path / "plain.cu").write_text(PLAIN)
    (tmp_path / "each.yaml").write_text(EACH_YAML)
    (tmp_path / "each.cu").write_text(EACH)
    (tmp_path / "scale.py").write_text(FUNCTION)
    return tmp_path


@pytest.fixture
def registry() -> Registry:
    made = Registry()
    made.add(hfuse, "hfuse")
    made.add(plugin, "variants")
    return made
