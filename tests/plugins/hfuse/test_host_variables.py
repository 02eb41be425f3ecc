"""Variables of a source that the host sets to addresses, or to structs with such: `__constant__ float* table`."""

import numpy as np
import pytest
import yaml as pyyaml

from fusiond.model.errors import RequestError
from fusiond.model.inputs.fills import initial
from fusiond.model.nouns import Config
from fusiond.model.program import Copy, Launch, problems
from fusiond.requests import jobs

SOURCE = """\
struct Grid { float* heights; const int* rows; int count; float scale; };
namespace { __constant__ float* table; }
__constant__ Grid grid;
__device__ double* totals = nullptr;
__constant__ const unsigned* parts[2];
__device__ float at(int i) { return table[i % grid.count]; }
__global__ void k(float* out, int n)
{
    __shared__ float tile[256];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < n ? at(i) + grid.scale * grid.heights[grid.rows[i % 4]] : 0;
    __syncthreads();
    if (i >= n) return;
    out[i] = tile[threadIdx.x ^ 1] + (parts[1] ? 1000 : 0) + parts[0][i % 3];
    totals[i] = i * 0.5;
}
"""
YAML = """\
kernel: k
source: k.cu
entry: k
sizes: {n: 600}
arguments:
  - {name: out, dtype: float32, elements: n, role: output}
  - {name: n, dtype: int32, value: n}
constants:
  - {symbol: table, dtype: float32, elements: "n // 2", fill: {uniform: [0, 1]}}
  - symbol: grid
    struct:
      heights: {dtype: float32, elements: 4, role: input, fill: {uniform: [0, 1]}}
      rows: {dtype: int32, elements: 4, role: input, fill: {integers: [0, 3]}}
      count: "n // 2"
      scale: 0.25
  - {symbol: totals, dtype: float64, elements: n, role: output}
  - symbol: parts
    struct: {"[0]": {dtype: uint32, elements: 3, role: input, fill: {integers: [0, 9]}}, "[1]": 0}
block: {shape: [128], tune: x}
grid: ["ceil_div(n, block.x)"]
"""
WAYS = [
    {"kind": "horizontal", "level": "warp", "map": "pad", "order": "ab", "threads.a": 128, "threads.b": 256},
    {"kind": "horizontal", "level": "warp", "map": "stride", "blocks": 2, "order": "ba", "threads.a": 256,
     "threads.b": 128},
    {"kind": "horizontal", "level": "block", "assign": "ticket", "order": "ab", "threads.a": 128, "threads.b": 256},
    {"kind": "vertical", "threads": 128, "order": "ab"},
]  # fmt: skip


@pytest.fixture
def pair(analyse, kernel_file):
    def pair(old: str = "", new: str = ""):
        assert old in YAML
        file = kernel_file("k", SOURCE, YAML.replace(old, new))
        return analyse(file, file, sizes={"b.n": 900})

    return pair


def expected(program, letter: str) -> np.ndarray:
    """By NumPy, from what the buffers hold at the start."""
    held = {each.name: initial(each, 1) for each in program.buffers}
    n = held[f"{letter}.out"].size
    i = np.arange(n)
    table, heights = held[f"{letter}.table"], held[f"{letter}.grid.heights"]
    rows = held[f"{letter}.grid.rows"]
    tile = table[i % (n // 2)] + np.float32(0.25) * heights[rows[i % 4]]
    return tile[i ^ 1] + held[f"{letter}.parts.[0]"][i % 3].astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_variables_point_to_is_read_and_written(pair, strategy, same, runner, way):
    analysis = pair()
    assert analysis.rejections == ()
    program = strategy.emit(analysis, Config.of(way), {})
    assert problems(program) == ()
    reference = strategy.unfused(analysis, Config.of(way))
    assert problems(reference) == ()
    same(program, reference)
    got = runner.run(program)
    for letter in "ab":
        np.testing.assert_allclose(got[f"{letter}.out"], expected(program, letter), rtol=1e-6)
        np.testing.assert_array_equal(got[f"{letter}.totals"], np.arange(got[f"{letter}.totals"].size) * 0.5)


def test_the_baselines_set_them_before_anything_is_timed(pair, strategy, same):
    analysis = pair()
    baselines = strategy.baselines(analysis)
    plain = next(baselines[0].space.points())
    for baseline in baselines:
        program = baseline.emit(plain)
        assert problems(program) == ()
        assert [each.counted for each in program.steps] == [False] * 16 + [True] * 2
        assert [type(each) for each in program.steps[:16]] == [Launch, Copy] * 8
        assert [each.after for each in program.steps if each.stream] == [("set.b.parts",)] * (program.steps[-1].stream)
        same(program, baselines[0].emit(plain))


@pytest.mark.slow
def test_three_in_any_grouping_set_them_once(analyse, strategy, same, kernel_file):
    file = kernel_file("k", SOURCE, YAML)
    analysis = analyse(file, file, file, sizes={"b.n": 900, "c.n": 130})
    assert analysis.rejections == ()
    reference = strategy.baselines(analysis)[0]
    reference = reference.emit(next(reference.space.points()))
    offered = strategy.space(analysis, {})
    seen = set()
    for config in offered.points():
        way = (config.text("groups"), config.text("launch") if "launch" in config else "")
        if way in seen:
            continue
        seen.add(way)
        program = strategy.emit(analysis, config, {})
        assert problems(program) == (), problems(program)
        assert [each.counted for each in program.steps[:24]] == [False] * 24
        assert all(each.counted for each in program.steps[24:])
        same(program, reference)
    assert len(seen) > 2


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("{symbol: totals, dtype: float64", "{symbol: totals, dtype: float32",
         "totals is float32, but 'double *' points to float64 there"),
        ("  - symbol: grid\n    struct:", "  - symbol: grid\n    dtype: float32\n    struct:",
         "dtype: does not belong to a struct"),
        ("      scale: 0.25\n", "", "grid does not give scale of 'Grid'"),
        ("scale: 0.25", "scale: {dtype: float32, elements: 2, role: output}",
         "scale of 'Grid' is float32, not a pointer"),
        ("count: \"n // 2\"", "counted: 2", "unknown member 'counted'; did you mean 'count'?"),
        ("\"[1]\": 0", "\"[1]\": 5", "[1] of 'const unsigned int *[2]' is a pointer; give a buffer"),
        ("{symbol: table, dtype: float32, elements: \"n // 2\", fill: {uniform: [0, 1]}}", "{symbol: table}",
         "the key 'dtype' is missing"),
    ],
)  # fmt: skip
def test_what_the_source_does_not_have_is_one_line(pair, old, new, problem):
    with pytest.raises(RequestError) as caught:
        pair(old, new)
    assert problem in str(caught.value)
    assert "k.yaml:" in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "use", "said"),
    [
        ("__constant__ int* p;", "p[0]", "`__constant__ p` is set by the host; say what its pointers point to under"),
        ("__device__ int* p = nullptr;", "p[0]", "`__device__ p` is set by the host; say what its pointers point to"),
        ("__constant__ int** p;", "p[0][0]", "`p` holds a pointer to int *, and no buffer can be that"),
        ("struct S { int n; int** rows; }; __constant__ S p;", "p.rows[0][0]",
         "`p`, in rows, holds a pointer to int *, and no buffer can be that"),
        ("__constant__ int (*p)(int);", "p(3)", "`p` holds a pointer to int (int), and no buffer can be that"),
    ],
)  # fmt: skip
def test_what_is_not_set_is_said(analyse, kernel_file, variable, use, said):
    source = f"{variable}\n__global__ void k(int* out) {{ out[threadIdx.x] = {use}; }}\n"
    yaml = (
        "kernel: k\nsource: k.cu\nentry: k\narguments: [{name: out, dtype: int32, elements: 32, role: output}]\n"
        "block: {shape: [32]}\ngrid: [1]\n"
    )
    (rejection,) = analyse(kernel_file("k", source, yaml), "hist").rejections
    assert rejection.rule == "symbol"
    assert said in rejection.detail


def test_an_address_that_the_source_gives_is_left_alone(analyse, kernel_file):
    source = "__device__ const int cells[32] = {7};\n__device__ const int* const p = cells;\n"
    source += "__global__ void k(int* out) { out[threadIdx.x] = p[threadIdx.x]; }\n"
    yaml = (
        "kernel: k\nsource: k.cu\nentry: k\narguments: [{name: out, dtype: int32, elements: 32, role: output}]\n"
        "block: {shape: [32]}\ngrid: [1]\n"
    )
    assert analyse(kernel_file("k", source, yaml), "hist").rejections == ()


def test_a_draft_asks_what_they_point_to(registry, strategy, tmp_path):
    (tmp_path / "k.cu").write_text(SOURCE)
    (job,) = jobs.read(tmp_path / "job.yaml", "strategy: hfuse\npair: [k, k]")
    found = pyyaml.safe_load(strategy.draft(str(tmp_path / "k.cu"), "k", jobs.JobInputs(registry, job)))
    written = {"elements": "?", "role": "inout", "fill": "zeros"}
    assert found["constants"] == [
        {"symbol": "table", "dtype": "float32", **written},
        {"symbol": "grid", "struct": {"heights": {"dtype": "float32", **written}, "rows": {"dtype": "int32", **written},
                                      "count": "?", "scale": "?"}},
        {"symbol": "totals", "dtype": "float64", **written},
        {"symbol": "parts", "struct": {f"[{at}]": {"dtype": "uint32", **written} for at in range(2)}},
    ]  # fmt: skip
