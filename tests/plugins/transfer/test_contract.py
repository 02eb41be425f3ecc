"""The contract of all strategies, over graphs of every kind; and who may be compared with whom."""

import itertools
from pathlib import Path

import pytest

from fusiond.model.errors import RequestError
from fusiond.model.language.extents import text_of
from fusiond.model.nouns import Analysis, Config, Job, Rejection
from fusiond.model.program import Alloc, Copy, CopyBatch, Free, Memory, Program, SizeError
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.testing.strategies import StrategyContract
from fusiond_transfer import plugin, space
from fusiond_transfer.strategy import Transfer

from .conftest import Analyse
from .one_memory_chain import config_with

TEXTS = (
    "graph: fig2\nsizes: {elements: 257}", "graph: matmul\nsizes: {n: 5}", "graph: cg\nsizes: {side: 4}",
    "graph: horner", "graph: fig2\nallocations: counted", "graph: fig2\nlimits: {device_bytes: 100000}",
    "graph: ./mixed.yaml",
)  # fmt: skip
MIXED = """\
graph: mixed
sizes: {n: 100, same: 100, m: 300, part: 2, times: 3}
odd: {m: 77}
elements: "n"
dtype: float32
vectors:
  b: {elements: "same"}
  s: {elements: 1}
  d: {elements: "ceil_div(m, part)", dtype: uint32}
  e: {elements: "m"}
  f: {elements: "m + 1"}
  g: {elements: "2 * m"}
inputs: [a, b]
outputs: [c, e, f, g]
kernels:
  - {name: add, on: device, reads: [a, b], writes: [c], body: "a + 2 * b"}
  - {name: norm, on: device, reads: [c], writes: [s], body: "sum(c * c)"}
  - {name: mix, on: host, reads: [s, c], writes: [d]}
  - {name: own, on: device, reads: [d], writes: [e], source: own.cu, entry: own, values: ["m", "m // part"],
     grid: ["ceil_div(m, 128)", "part"], block: [128], shared: "4 * part"}
  - {name: both, on: device, reads: [e, s], writes: [f, g]}
"""
OWN = """\
extern "C" __global__ void own(const unsigned* d, float* e, int m, int half) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < m && blockIdx.y == 0) e[i] = d[i % half];
}
"""


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mixed.yaml").write_text(MIXED)
    (tmp_path / "own.cu").write_text(OWN)


@pytest.mark.slow
class TestTransfer(StrategyContract):
    random_points = 2
    texts: tuple[str, ...] = (*TEXTS[:2], *TEXTS[-2:])

    def strategy(self) -> Transfer:
        return Transfer()

    def registry(self) -> Registry:
        registry = Registry()
        registry.add(plugin, "transfer")
        return registry

    def jobs(self) -> tuple[Job, ...]:
        return tuple(
            job for text in self.texts for job in jobs.read(Path.cwd() / "job.yaml", f"strategy: transfer\n{text}\n")
        )

    def chosen_by_size(self, config: Config) -> bool:
        return config.get("grouping") in ("local_search", "min_residency")  # which vectors are the long ones decides

    @pytest.mark.slow  # nvcc reports on every kernel
    def test_a_plan_can_be_shown(self) -> None:
        super().test_a_plan_can_be_shown()


@pytest.mark.campaign
class TestTransferOthers(TestTransfer):
    texts = TEXTS[2:-2]


# --- a fair comparison ----------------------------------------------------------------------------------


def kinds(program: Program) -> tuple[frozenset[Memory], str]:
    """What may not differ between a candidate and its baseline: the host's memory, and how allocations count."""
    crossing = {
        name
        for step in program.steps
        if step.counted
        for name in (
            (*step.source, *step.target) if isinstance(step, Copy)
            else [name for pair in step.copies for name in pair] if isinstance(step, CopyBatch) else ()
        )
    }  # fmt: skip
    host = frozenset(
        each.memory for each in program.buffers if each.name in crossing and each.memory is not Memory.DEVICE
    )
    allocations = [step for step in program.steps if isinstance(step, Alloc | Free)]
    if not allocations:
        return host, "ahead"
    pooled = any(isinstance(step, Alloc) and step.pooled for step in allocations)
    return host, "pooled" if pooled else "counted"


def moved_bytes(program: Program) -> int:
    """Bytes of the vectors that cross in counted steps."""
    buffers = {each.name: each for each in program.buffers}
    total = 0
    for step in program.steps:
        if isinstance(step, Copy) and step.counted:
            total += sum(buffers[name].size_bytes for name in step.source)
        elif isinstance(step, CopyBatch) and step.counted:
            total += sum(buffers[name].size_bytes for name, _ in step.copies)
    return total


LARGE = pytest.param("graph: random24\nallocations: counted", marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize("text", [*TEXTS, LARGE, "graph: chain"])
@pytest.mark.sampled(6)
def test_every_candidate_has_a_separate_baseline_of_its_kind(text: str, analyse: Analyse) -> None:
    """Pinned against pageable, or allocations counted on one side only, would be worth more than any fusion."""
    name, *lines = text.splitlines()
    strategy = Transfer()
    analysis = analyse(name.removeprefix("graph: "), *lines)
    unfused = [each.emit(config) for each in strategy.baselines(analysis) for config in each.space.points()]
    offered = {kinds(program) for program in unfused}
    (bytes_of,) = {moved_bytes(program) for program in unfused}
    steps = {program.key for program in unfused}
    for config in strategy.space(analysis, {}).points():
        program = strategy.emit(analysis, config, {})
        if isinstance(program, Rejection):
            assert program.rule == "device_limit"
            continue
        assert kinds(program) in offered, config
        assert moved_bytes(program) == bytes_of, config
        if config["grouping"] == "separate" and config.get("allocation") != "group":
            assert program.key in steps, f"{config} is not a baseline, so being separate could win"


def test_every_allocation_that_is_offered_has_its_baseline() -> None:
    for paper, reordered, graph in itertools.product((True, False), repeat=3):
        offer = space.Offer(paper=paper, reordered=reordered, counted=True, graph=graph)
        fused = {each.name: each.values for each in space.fused(offer).parameters}
        found = {(memory, allocation) for _, memory, allocation in space.baselines(offer)}
        wanted = {
            (memory, "each" if allocation == "group" else allocation)
            for memory in fused["memory"] for allocation in fused["allocation"]
        }  # fmt: skip
        assert found == wanted


def test_a_group_has_neighbours_or_a_batch(analyse: Analyse, strategy: Transfer) -> None:
    analysis = analyse("fig2", "allocations: counted")
    refused = strategy.emit(analysis, config_with(memory="pageable", allocation="each", issue="one_stream"), {})
    assert isinstance(refused, Rejection)
    assert refused.rule == "not_in_space"


def test_a_graph_of_cuda_needs_pinned_memory(analyse: Analyse, strategy: Transfer) -> None:
    analysis = analyse("horner")
    points = list(strategy.space(analysis, {}).points())
    graphs = [each for each in points if each["issue"] == "graph"]
    assert graphs
    assert {each["memory"] for each in graphs} == {"pinned"}
    assert not any(each["issue"] == "graph" for each in strategy.space(analyse("fig2"), {}).points())


def test_the_key_knows_the_source_beside_the_graph(registry: Registry, strategy: Transfer, tmp_path: Path) -> None:
    graph = (
        "graph: own\nsizes: {n: 8}\nelements: n\ninputs: [a]\noutputs: [b]\n"
        "kernels: [{name: k, on: host, reads: [a], writes: [b], source: own.cpp, entry: own, values: [n]}]\n"
    )
    (tmp_path / "own.yaml").write_text(graph)
    (job,) = jobs.read(tmp_path / "job.yaml", "strategy: transfer\ngraph: ./own.yaml\n")
    keys = set()
    for factor in (2, 3):
        loop = f"for (int i = 0; i < n; ++i) b[i] = {factor} * a[i];"
        text = f'extern "C" void own(const unsigned* a, unsigned* b, int n) {{ {loop} }}'
        (tmp_path / "own.cpp").write_text(text)
        keys.add(strategy.parse(job, jobs.JobInputs(registry, job)).key)
    assert len(keys) == 2


# --- which sizes are free -------------------------------------------------------------------------------


def programs(strategy: Transfer, analysis: Analysis) -> list[Program]:
    offered = strategy.space(analysis, {})
    found = [strategy.emit(analysis, config, {}) for _, config in strategy.seeds(analysis, offered, {})]
    plain = [each.emit(next(each.space.points())) for each in strategy.baselines(analysis)]
    return [*plain, *(each for each in found if isinstance(each, Program))]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fig2", "chain", "in_tree", "out_tree", "horner", "cholesky", "matmul", "cg"])
def test_all_sizes_of_the_catalogues_graphs_are_free(strategy: Transfer, analyse: Analyse, name: str) -> None:
    for program in programs(strategy, analyse(name)):
        assert program.sizes
        assert program.fixed == ()


def test_equal_lengths_of_two_names_are_fixed_and_the_others_free(strategy: Transfer, analyse: Analyse) -> None:
    """`a + b` is one loop over both, as long as n and same are equal."""
    for program in programs(strategy, analyse("./mixed.yaml")):
        assert program.fixed == ("n", "same")
        assert program.at({"m": 5, "part": 3}).buffer("e@device").elements == 5
        with pytest.raises(SizeError, match="n is 100 in the source itself"):
            program.at({"n": 101})


@pytest.mark.parametrize(
    ("old", "new", "fixed"),
    [
        ("same: 100", "same: 101", None),  # then a + b is not a formula
        ('b: {elements: "same"}', 'b: {elements: "n"}', ()),
        ("same: 100", "same: 1", ("same",)),  # its one element is taken for all of c
        ("s: {elements: 1}", 's: {elements: "times // 3"}', ("n", "same", "times")),  # a sum has one element
        ('f: {elements: "m + 1"}', 'f: {elements: "2 * m"}', ("n", "same")),
        ('f: {elements: "m + 1"}', 'f: {elements: "600"}', ("m", "n", "same")),  # as long as g, by chance
        ("inputs:", "limits: {device_bytes: 100000}\ninputs:", ("m", "n", "part", "same", "times")),
    ],
)
def test_what_fixes_a_size(
    strategy: Transfer, analyse: Analyse, tmp_path: Path, old: str, new: str, fixed: tuple[str] | None
) -> None:
    (tmp_path / "mixed.yaml").write_text(MIXED.replace(old, new))
    if fixed is None:
        with pytest.raises(RequestError):
            analyse("./mixed.yaml")
        return
    assert {program.fixed for program in programs(strategy, analyse("./mixed.yaml"))} == {fixed}


def test_iterations_and_what_is_carried_fix_sizes(strategy: Transfer, analyse: Analyse, tmp_path: Path) -> None:
    text = """\
graph: loop
sizes: {n: 64, same: 64, m: 10, times: 3}
vectors: {x: {elements: "n"}, y: {elements: "same"}, z: {elements: "m"}}
inputs: [x, w]
outputs: [y, z]
loop: true
iterations: "times"
carried: {x: y}
kernels:
  - {name: f, on: device, reads: [x, w], writes: [y]}
  - {name: g, on: host, reads: [y], writes: [z]}
"""
    (tmp_path / "loop.yaml").write_text(text)
    assert {each.fixed for each in programs(strategy, analyse("./loop.yaml"))} == {("n", "same", "times")}


def test_offsets_stay_short(strategy: Transfer, analyse: Analyse) -> None:
    """Of many vectors behind each other too."""
    for program in programs(strategy, analyse("out_tree")):
        for each in program.buffers:
            assert len(text_of(each.offset_bytes)) < 60
