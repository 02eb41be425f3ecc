"""Kernels whose blocks wait for one another, all of a grid (a cooperative launch) or those of a cluster: as PTX, beside
themselves and others, against NumPy in the interpreter."""

import numpy as np
import pytest

from fusiond.model.errors import RequestError
from fusiond.model.nouns import Config, Rejection
from fusiond.model.program import Launch, Program
from fusiond_hfuse.codegen import verify
from fusiond_hfuse.frontend import ptx_kernel
from tests.plugins.hfuse.conftest import initial

pytestmark = [pytest.mark.slow, pytest.mark.needs_nvcc]

YAML = """\
kernel: {name}
source: {name}.cu
entry: {name}
sizes: {{n: 1000}}
flags: ["-arch=sm_90"]
arguments:
  - {{name: out, dtype: int32, elements: n, role: output}}
  - {{name: in, dtype: int32, elements: n, role: input, fill: {{integers: [0, 99]}}}}
  - {{name: part, dtype: int32, elements: "8", role: scratch}}
  - {{name: n, dtype: int32, value: n}}
block: {{shape: [{threads}]}}
grid: {grid}
"""
NAMES = "(int* out, const int* in, int* part, int n)\n{\n"
GRID = """\
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
static __device__ void all() { cg::this_grid().sync(); }
__global__ void NAME(int* out, const int* in, int* part, int n)
{
    const unsigned at = cg::this_grid().thread_rank(), step = cg::this_grid().size();
    int sum = 0;
    for (int round = 1; round <= 2; ++round) {
        if (threadIdx.x == 0) part[blockIdx.x] = 0;
        __syncthreads();
        for (int k = at; k < n; k += step) atomicAdd(&part[blockIdx.x], round * in[k]);
        all();
        for (int k = 0; k < gridDim.x; ++k) sum += part[k];
        cg::this_grid().sync();
    }
    for (int k = at; k < n; k += step) out[k] = in[k] + sum;
}
"""
CLUSTER = """\
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void __cluster_dims__(SHAPE) NAME(int* out, const int* in, int* part, int n)
{
    __shared__ int room[THREADS];
    auto cluster = cg::this_cluster();
    const int k = blockIdx.x * THREADS + threadIdx.x;
    room[threadIdx.x] = k < n ? in[k] : 0;
    cluster.sync();
    const int* next = cluster.map_shared_rank(room, (cluster.block_rank() + 1) % cluster.num_blocks());
    if (k < n) out[k] = next[threadIdx.x] + 1000 * cluster.block_rank();
    cluster.sync();
}
"""
PLAIN = """\
__global__ void NAME(int* out, const int* in, int* part, int n)
{
    const int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k < n) out[k] = in[k] ^ 1;
}
"""


@pytest.fixture
def kernel(kernel_file):
    def kernel(name: str, source: str, grid: str = "[6]", threads: int = 64) -> str:
        text = source.replace("NAME", name).replace("THREADS", str(threads))
        return kernel_file(name, text, YAML.format(name=name, grid=grid, threads=threads))

    return kernel


def clustered(shape: str) -> str:
    return CLUSTER.replace("SHAPE", shape)


def expected(kind: str, given: np.ndarray, cluster: int = 1, threads: int = 64) -> np.ndarray:
    if kind == "grid":
        return given + 3 * given.sum()
    if kind == "plain":
        return given ^ 1
    k = np.arange(given.size)
    block, lane = k // threads, k % threads
    rank = block % cluster
    at = (block - rank + (rank + 1) % cluster) * threads + lane
    return np.where(at < given.size, given[np.minimum(at, given.size - 1)], 0) + 1000 * rank


def ways(space) -> list[Config]:
    """The first point of each of eight ways to fuse."""
    names = ("kind", "level", "assign", "map", "order", "virtual.a", "virtual.b")
    found: dict[tuple[object, ...], Config] = {}
    for config in space.points():
        found.setdefault(tuple(config.get(name) for name in names), config)
    return list(found.values())[:: max(1, len(found) // 8)]


@pytest.fixture
def right(runner):
    """Runs a program and compares what each side gives; `kinds`: of each side, in the order of its letters."""

    def right(program, analysis, kinds, *arguments):
        arrays = runner.run(program)
        for letter, member in zip("ab", analysis.workload.members, strict=True):
            given = initial(next(each for each in program.buffers if each.name == f"{letter}.in"), 1)
            wanted = expected(kinds[member], given, *(each[member] for each in arguments))
            np.testing.assert_array_equal(arrays[f"{letter}.out"], wanted)

    return right


def test_grids_that_wait_for_all_their_blocks(analyse, kernel, strategy, right):
    """Beside each other in a block, one after the other, block by block, several blocks in one."""
    analysis = analyse(kernel("one", GRID), kernel("two", GRID, grid="[4]", threads=96), compiled=True)
    assert analysis.rejections == ()
    space = strategy.space(analysis, {})
    assert {each.name: each.values for each in space.parameters}["map"] == ("pad",)
    tried = set()
    for config in ways(space):
        program = strategy.emit(analysis, config, {})
        assert isinstance(program, Program), program
        launch = program.steps[-1]
        assert isinstance(launch, Launch)
        assert launch.cooperative
        assert verify.lint(program.sources[0].text, barriers=tuple(range(16)), compiled=True) == ()
        right(program, analysis, {"one": "grid", "two": "grid"})
        tried |= {(config["kind"], config.get("level"), config.get("assign")), config.get("virtual.a")}
    assert len(tried) >= 6
    apart = strategy.unfused(analysis, config)
    assert all(step.cooperative for step in apart.launches)


def test_one_grid_that_waits_beside_one_that_does_not(analyse, kernel, strategy, right):
    """The driver's own place is enough for one."""
    analysis = analyse(kernel("one", GRID), kernel("two", PLAIN, grid="[16]"), compiled=True)
    config = ways(strategy.space(analysis, {}))[0]
    program = strategy.emit(analysis, config, {})
    assert [each.name for each in program.buffers if "tickets" in each.name] == []
    right(program, analysis, {"one": "grid", "two": "plain"})


def test_each_grid_has_its_own_place_to_count(analyse, kernel, strategy):
    """The first the driver's, the second one of its own, zeroed before the launch; with one for both they would wait
    for ever."""
    analysis = analyse(kernel("one", GRID), kernel("two", GRID, grid="[4]", threads=96), compiled=True)
    program = strategy.emit(analysis, ways(strategy.space(analysis, {}))[0], {})
    first, second = program.sources[0].text.split("// --- b: ")
    assert ("%envreg1;" in first, "%envreg1;" in second) == (True, False)
    assert "mov.b64 {%b_envreg2, %b_envreg1}, %place;" in second
    assert program.steps[0].name == "zero_tickets"


@pytest.mark.parametrize("grids", [(16, 16), (16, 8)])
def test_clusters_of_one_shape(analyse, kernel, strategy, right, grids):
    """The first kernel's blocks, then the second's; no other way leaves clusters as they were."""
    threads = tuple(1024 // grid for grid in grids)
    first, second = (kernel(name, clustered("4"), f"[{grid}]", own)
                     for name, grid, own in zip(("one", "two"), grids, threads, strict=True))  # fmt: skip
    analysis = analyse(first, second, compiled=True)
    assert analysis.rejections == ()
    values = {each.name: each.values for each in strategy.space(analysis, {}).parameters}
    assert (values["level"], values["assign"]) == (("block",), ("sequential",))
    assert values["kind"] == ("horizontal",)
    assert any("clusters" in each for each in analysis.report["only_block_by_block"])
    for config in ways(strategy.space(analysis, {})):
        program = strategy.emit(analysis, config, {})
        assert ".reqnctapercluster 4, 1, 1" in program.sources[0].text
        assert verify.lint(program.sources[0].text, barriers=tuple(range(16)), compiled=True) == ()
        own = dict(zip(("one", "two"), threads, strict=True))
        right(program, analysis, {"one": "cluster", "two": "cluster"}, {"one": 4, "two": 4}, own)


def test_a_cluster_of_one_block_in_blocks_of_its_own(analyse, kernel, strategy, right):
    analysis = analyse(kernel("one", clustered("1"), "[16]"), kernel("two", PLAIN, "[16]"), compiled=True)
    assert analysis.rejections == ()
    space = strategy.space(analysis, {})
    assert {each.name: each.values for each in space.parameters}["level"] == ("block",)
    for config in ways(space):
        right(strategy.emit(analysis, config, {}), analysis, {"one": "cluster", "two": "plain"})


@pytest.mark.parametrize(
    ("first", "second", "rule", "said"),
    [
        (clustered("4"), clustered("2"), "cluster", "one kind"),
        (clustered("4"), PLAIN, "cluster", "one kind"),
        (clustered("1, 2"), clustered("1, 2"), "cluster", "along x are fused"),
        (
            'static __device__ int which() { int id; asm("mov.u32 %0, %%clusterid.x;" : "=r"(id)); return id; }\n'
            "__global__ void NAME" + NAMES + "    out[threadIdx.x] = which();\n}\n", PLAIN, "leak",
            "which of all clusters",
        ),
    ],
)  # fmt: skip
def test_clusters_that_fit_no_launch(analyse, kernel, first, second, rule, said):
    grid = "[16, 2]" if "1, 2" in first else "[16]"
    analysis = analyse(kernel("one", first, grid), kernel("two", second, grid), compiled=True)
    refused = [each for each in analysis.rejections if each.rule == rule]
    assert refused
    assert said in refused[0].detail


def test_a_grid_that_is_no_multiple_of_its_clusters(analyse, kernel):
    with pytest.raises(RequestError, match=r"grid: a grid of \[6\] blocks, in clusters of 4 along x"):
        analyse(kernel("one", clustered("4")), "hist", compiled=True)


def test_clusters_whose_shape_the_launch_would_give(analyse, kernel):
    """A launch of a Program has no clusters of its own."""
    analysis = analyse(kernel("one", clustered("4"), "[16]"), kernel("two", clustered("4"), "[16]"), compiled=True)
    ptx = analysis.payload.group.slots[0].kernel.ptx
    shape = next(each for each in ptx.text.splitlines() if ".reqnctapercluster" in each)
    _, parsed = ptx_kernel.read(ptx.text.replace(shape, ""), ptx.entry.name, "one", "one.ptx")
    (refused,) = parsed.rejections
    assert (refused.rule, "clusters are not in the PTX" in refused.detail) == ("cluster", True)


def test_of_a_point_that_is_not_in_the_space(analyse, kernel, strategy):
    """Looped over, a block would wait for blocks behind its own."""
    analysis = analyse(kernel("one", GRID), kernel("two", GRID), compiled=True)
    config = ways(strategy.space(analysis, {}))[0]
    assert isinstance(strategy.emit(analysis, Config.of({**config, "map": "stride", "blocks": 1}), {}), Rejection)
