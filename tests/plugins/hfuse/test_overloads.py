"""The list of CUDA's functions that a text may overload: both compilers must know every one of them."""

from __future__ import annotations

import dataclasses
import subprocess

import pytest

from fusiond.devices.cpu import commands
from fusiond.model import Config
from fusiond_hfuse.frontend import overloads

USING = f"namespace fusiond_a {{\n{overloads.kept(tuple(sorted(overloads.NAMES)))}}}\n"


@pytest.mark.usefixtures("gxx_here")
def test_the_cpu_device_has_all_of_them(tmp_path):
    source = tmp_path / "names.cpp"
    source.write_text(commands.translation_unit(USING, {}))
    command = commands.kernel(source, tmp_path / "out.so")
    done = subprocess.run([*command, "-fsyntax-only"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.needs_nvcc
def test_nvcc_has_all_of_them(tmp_path):
    source = tmp_path / "names.cu"
    source.write_text(USING)
    done = subprocess.run(
        ["nvcc", "-arch=sm_75", "-ptx", str(source), "-o", str(tmp_path / "out.ptx")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_what_a_text_declares():
    code = "using std::max; using ops :: deep::fminf ; using namespace min; using plain;"
    assert overloads.declared({"atomicAdd", "histogram"}, code) == ("atomicAdd", "fminf", "max")
    assert overloads.kept(("max",)) == "using ::max;\n"


SOURCE = """\
__device__ int max(int a, int b, int c) { return max(max(a, b), c); }
__global__ void k(int* out, int n) { out[threadIdx.x] = max(n, threadIdx.x, 7) + max(1, 2); }
"""
YAML = """\
kernel: k
source: k.cu
entry: k
sizes: {n: 64}
arguments:
  - {name: out, dtype: int32, elements: n, role: output}
  - {name: n, dtype: int32, value: n}
block: {shape: [64]}
grid: [1]
"""


@pytest.mark.slow
def test_without_the_declaration_cudas_own_is_hidden(analyse, strategy, kernel_file, runner):
    """A fault put in: the line that keeps CUDA's function is taken out."""
    analysis = analyse(kernel_file("k", SOURCE, YAML), "./k.yaml", granularity=32)
    config = Config.of(
        {"kind": "horizontal", "level": "warp", "map": "pad", "threads.a": 64, "threads.b": 64, "order": "ab"}
    )
    (source,) = strategy.emit(analysis, config, {}).sources
    runner.build(source)
    line = "using ::max;\n"
    assert source.text.count(line) == 2
    with pytest.raises(AssertionError, match="too few arguments"):
        runner.build(dataclasses.replace(source, text=source.text.replace(line, "", 1)))
