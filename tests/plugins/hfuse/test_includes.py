"""Headers in the places where they are included: once where that is certain, guarded where the compiler decides."""

from fusiond.model.nouns import Config

LANE = "#pragma once\n__device__ inline int lane_of(int i) { return i % 32; }\nstruct Lane { int a; };\n"
PAIR = """\
#ifdef __CUDACC__
#include "lane.cuh"
#endif
#pragma once
#include "lane.cuh"
#include "self.cuh"
__device__ inline int twice(int i) { return 2 * lane_of(i); }
"""
SELF = '#pragma once\n#include "pair.cuh"\n#include "self.cuh"\nconst int seven = 7;\n'
SOURCE = """\
#if defined(NEVER_DEFINED)
#include "lane.cuh"
#include "pair.cuh"
#elif 0
#include "missing.cuh"
#endif
#include "pair.cuh"
#include "lane.cuh"
#ifndef __CUDACC__
#include "self.cuh"
#endif
__global__ void k(int* out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = twice(i) + Lane{lane_of(i)}.a + seven;
}
"""
YAML = """\
kernel: k
source: k.cu
entry: k
sizes: {n: 100}
arguments:
  - {name: out, dtype: int32, elements: n, role: output}
  - {name: n, dtype: int32, value: n}
block: {shape: [64]}
grid: [2]
"""


def test_a_header_that_is_first_included_where_nobody_reads_it(analyse, strategy, kernel_file, runner, same, tmp_path):
    for name, text in (("lane", LANE), ("pair", PAIR), ("self", SELF)):
        (tmp_path / f"{name}.cuh").write_text(text)
    analysis = analyse(kernel_file("k", SOURCE, YAML), "./k.yaml", granularity=32)
    assert analysis.rejections == ()
    config = Config.of(
        {"kind": "horizontal", "level": "warp", "map": "pad", "threads.a": 64, "threads.b": 64, "order": "ab"}
    )
    program = strategy.emit(analysis, config, {})
    same(program, strategy.unfused(analysis, config))
    assert list(runner.run(program)["b.out"][:40:13]) == [7, 3 * 13 + 7, 3 * 26 + 7, 3 * 7 + 7]
    unit = analysis.payload.group.slots[0].kernel.unit
    assert "#pragma" not in unit.text
    assert unit.where(1 + unit.text[: unit.text.index("seven = 7")].count("\n")).endswith("self.cuh:4")


def test_a_header_that_is_read_for_certain_stands_once(analyse, kernel_file, tmp_path):
    (tmp_path / "lane.cuh").write_text(LANE)
    source = '#include "lane.cuh"\n#include "lane.cuh"\n' + SOURCE[SOURCE.index("__global__") :].replace(
        "twice(i)", "0"
    ).replace(" + seven", "")
    unit = analyse(kernel_file("k", source, YAML), "./k.yaml").payload.group.slots[0].kernel.unit
    assert unit.text.count("struct Lane") == 1
    assert "ONCE" not in unit.text
