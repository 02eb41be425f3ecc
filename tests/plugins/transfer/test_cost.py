"""The cost model and the fastest schedule: by hand, against brute force over the slots, and what is not measured."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import pytest

from fusiond.model.nouns import Analysis, Config
from fusiond.model.program import Copy, Memory, Program, problems
from fusiond_transfer.analysis import cost, intervals, schedule
from fusiond_transfer.analysis.cost import GraphCosts, estimate_us
from fusiond_transfer.analysis.local_search import local_search
from fusiond_transfer.analysis.schedules import Schedules, described_costs
from fusiond_transfer.codegen.probes import probes
from fusiond_transfer.frontend.generator import Shape, random_graph
from fusiond_transfer.frontend.graph import Graph
from fusiond_transfer.python import KernelGraph
from fusiond_transfer.strategy import Transfer

LINE = ((0, 10.0), (1000, 20.0))  # 10 us to begin, 0.01 us a byte


def costs(graph: Graph, kernel_us: float = 5.0, line: tuple[tuple[int, float], ...] = LINE) -> GraphCosts:
    return GraphCosts(
        messages={(up, memory): line for up in (True, False) for memory in cost.KINDS},
        kernels={kernel.name: kernel_us for kernel in graph.kernels},
        missing=0,
    )


def known(startup: float = 10.0, per_byte: float = 0.01) -> dict[str, float]:
    return {
        cost.copy_key(up, memory, size): startup + per_byte * size
        for up in (True, False) for memory in cost.KINDS for size in cost.SIZES
    }  # fmt: skip


def test_a_message_is_a_line_through_what_was_measured(graph: Callable[..., Graph]) -> None:
    found = costs(graph("fig2"), line=((1000, 11.0), (2000, 21.0), (4000, 31.0)))
    for size, wanted in ((1000, 11.0), (1500, 16.0), (3000, 26.0), (8000, 51.0), (500, 6.0)):
        assert found.message_us(True, Memory.PINNED, size) == pytest.approx(wanted)
    assert found.message_us(True, Memory.PINNED, 0) == pytest.approx(1.0)
    assert costs(graph("fig2"), line=((10, 1.0), (20, 5.0))).message_us(False, Memory.PAGEABLE, 0) == 0.0


def two_branches() -> Graph:
    """a and b go up; only b's kernel has to wait for b."""
    graph = KernelGraph("branches", elements=2500)  # 10 kB: 110 us a message
    graph.inputs("a", "b")
    graph.device("k0", reads=("a",), writes=("u",))
    graph.device("k1", reads=("b",), writes=("v",))
    graph.outputs("u", "v")
    return graph.build()


def test_times_by_hand() -> None:
    graph = two_branches()
    crossings = intervals.crossings(graph)
    found = costs(graph, kernel_us=200.0)
    together = schedule.build(graph, "interval_stabbing")
    assert together.startups == 2
    # one message of 20 kB each way: 10 + 200
    serial = estimate_us(together, found, memory=Memory.PINNED, overlapped=False)
    assert serial == pytest.approx(2 * 210 + 2 * 200)
    assert estimate_us(together, found, memory=Memory.PINNED, overlapped=True) == pytest.approx(210 + 400 + 210)
    apart = schedule.alone(graph, crossings, schedule.separate(crossings, early=True))
    # a up (110), k0 while b goes up, k1, while u comes down; v down
    assert estimate_us(apart, found, memory=Memory.PINNED, overlapped=True) == pytest.approx(110 + 200 + 200 + 110)
    # pageable: the copy of b holds up the launch of k0
    blocked = estimate_us(apart, found, memory=Memory.PAGEABLE, overlapped=True)
    assert blocked > estimate_us(apart, found, memory=Memory.PINNED, overlapped=True)


def test_the_fastest_is_not_the_fewest_where_copies_and_kernels_overlap() -> None:
    graph = two_branches()
    crossings = intervals.crossings(graph)
    schedules = Schedules(graph)
    starts = [schedules.grouping("interval_stabbing")]
    slow = local_search(graph, crossings, starts, costs(graph, 200.0), memory=Memory.PINNED, overlapped=True)
    assert slow.schedule.startups == 4
    assert slow.time_us == pytest.approx(620.0)
    quick = local_search(graph, crossings, starts, costs(graph, 1.0), memory=Memory.PINNED, overlapped=True)
    assert quick.schedule.startups < 4, "kernels too short to hide a startup behind"
    serial = local_search(graph, crossings, starts, costs(graph, 200.0), memory=Memory.PINNED, overlapped=False)
    assert serial.schedule.startups == 2, "on one stream the fewest are the fastest"


def test_on_one_stream_nothing_is_faster_than_the_fewest() -> None:
    """Brute force over all slots: equal bytes, so the fewest messages."""
    for seed in range(25):
        graph = random_graph(Shape(kernels=4, inputs=2, indegree=(1, 2), outdegree=(1, 2), seed=seed), elements=64)
        crossings = intervals.crossings(graph)
        found = costs(graph)
        fewest = estimate_us(schedule.build(graph, "interval_stabbing"), found, memory=Memory.PINNED, overlapped=False)
        for slots in itertools.product(*(range(each.earliest, each.latest + 1) for each in crossings)):
            other = schedule.scheduled(graph, crossings, slots)
            assert estimate_us(other, found, memory=Memory.PINNED, overlapped=False) >= fewest - 1e-9


@pytest.mark.slow
def test_the_fastest_is_never_slower_than_its_starts_and_near_the_best_of_all_slots() -> None:
    best_found = total = 0
    for seed in range(30):
        graph = random_graph(Shape(kernels=5, inputs=3, indegree=(1, 2), outdegree=(1, 2), seed=seed), elements=2500)
        crossings = intervals.crossings(graph)
        if not 2 <= len(crossings) <= 6:
            continue
        schedules = Schedules(graph)
        starts = [
            schedules.grouping("interval_stabbing"),
            schedules.separate(early=True),
            schedules.separate(early=False),
        ]
        model = costs(graph, 40.0)
        found = local_search(graph, crossings, starts, model, memory=Memory.PINNED, overlapped=True)
        times = [estimate_us(each, model, memory=Memory.PINNED, overlapped=True) for each in starts]
        assert found.time_us <= min(times) + 1e-9
        best = min(
            estimate_us(schedule.scheduled(graph, crossings, slots), model, memory=Memory.PINNED, overlapped=True)
            for slots in itertools.product(*(range(each.earliest, each.latest + 1) for each in crossings))
        )
        assert found.time_us <= 1.15 * best, seed
        total += 1
        best_found += found.time_us <= best + 1e-9
    assert total >= 10
    assert best_found >= 0.8 * total


# --- probes ---------------------------------------------------------------------------------------------


def test_probes_are_copies_of_each_kind_and_each_kernel_once(
    analyse: Callable[..., Analysis], strategy: Transfer
) -> None:
    probes = {each.key: each.program for each in strategy.probes(analyse("cholesky"))}
    copies = {key: each for key, each in probes.items() if key.startswith(("transfer: up", "transfer: down"))}
    assert len(copies) == 2 * 2 * len(cost.SIZES)
    for key, made in copies.items():
        (step,) = made.steps
        assert isinstance(step, Copy)
        near = made.buffer("near")
        assert near.memory.value in key
        assert f"{near.size_bytes} bytes" in key
        assert (step.source == ("near",)) == ("up" in key)
    assert len(probes) - len(copies) == 4, "potrf, syrk, gemm and trsm, whatever blocks they are on"
    assert all(problems(made) == () for made in probes.values())
    other = {each.key for each in strategy.probes(analyse("cholesky", "sizes: {n: 8}"))}
    assert set(copies) <= other, "copies are the device's, not the graph's"
    assert not (set(probes) - set(copies)) & other


def test_without_probes_the_plan_says_so(analyse: Callable[..., Analysis]) -> None:
    analysis = analyse("fig2")
    assert analysis.report["costs"] == "not measured"
    graph = analysis.payload.asked.graph
    assert described_costs(cost.costs(graph, known())).startswith("partly measured")
    kernels = {each.key: 3.0 for each in probes(graph)}
    assert described_costs(cost.costs(graph, kernels)) == "measured"
    assumed = cost.costs(graph, {})
    assert assumed.startup_us(True, Memory.PINNED) == pytest.approx(cost.ASSUMED_STARTUP_US[Memory.PINNED])


def test_measured_costs_decide_the_fastest(analyse: Callable[..., Analysis], strategy: Transfer) -> None:
    analysis = analyse("random24")
    config = Config.of({"grouping": "local_search", "send": "message", "memory": "pinned", "issue": "overlapped"})

    def copies(answers: Mapping[str, float]) -> int:
        made = strategy.emit(analysis, config, dict(answers))
        assert isinstance(made, Program)
        return sum(isinstance(step, Copy) for step in made.steps)

    kernels = {each.key: 50.0 for each in strategy.probes(analysis) if "kernel" in each.key}
    resolved = strategy.resolved(analysis, config, {})
    assert resolved["grouping"] == f"local_search ({copies({})} messages)"
    dear = copies({**known(startup=500.0), **kernels})
    cheap = copies({**known(startup=0.01), **kernels})
    assert dear <= cheap
    assert cheap > analysis.report["startups"]
