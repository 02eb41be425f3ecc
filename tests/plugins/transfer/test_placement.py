"""Kernels that can run on either side: the minimum cut against all placements, and every placement in the simulator, on
the cpu device, and beside its baseline."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond.errors import RequestError
from fusiond.model import Analysis, Config, Rejection, Workload
from fusiond.program import Program, problems
from fusiond_transfer.analysis import cost, intervals, placement
from fusiond_transfer.analysis.cost import kernel_key
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.analysis.script import script
from fusiond_transfer.codegen import simulate
from fusiond_transfer.codegen.emit import Execution, program
from fusiond_transfer.frontend.graph import Graph
from fusiond_transfer.python import KernelGraph
from fusiond_transfer.strategy import Transfer

BLEND = """\
graph: blend
sizes: {n: 4096}
elements: n
dtype: float32
fill: {uniform: [0, 1]}
inputs: [a, b]
outputs: [d]
kernels:
  - {name: k0, on: device, reads: [a, b], writes: [c], body: "a + b"}
  - {name: k1, on: either, reads: [c], writes: [e], body: "c * 2"}
  - {name: k2, on: either, reads: [e, a], writes: [f], body: "e + a"}
  - {name: k3, on: host, reads: [f], writes: [g], body: "f - 1"}
  - {name: k4, on: either, reads: [g, c], writes: [h], body: "g + c"}
  - {name: k5, on: either, reads: [h], writes: [d], body: "h * h"}
"""
TWO = """\
graph: two
sizes: {n: 100}
elements: n
inputs: [a]
outputs: [c]
kernels:
  - {name: twice, on: either, reads: [a], writes: [b], source: {device: twice.cu, host: twice.cpp}, entry: twice,
     values: [n], grid: ["ceil_div(n, 32)"], block: [32]}
  - {name: mix, on: either, reads: [b, a], writes: [c]}
"""
TWICE_CU = """\
extern "C" __global__ void twice(const unsigned* a, unsigned* b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) b[i] = 2 * a[i];
}
"""
TWICE_CPP = """\
extern "C" void twice(const unsigned* a, unsigned* b, int n) { for (int i = 0; i < n; ++i) b[i] = a[i] + a[i]; }
"""


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    (tmp_path / "twice.cu").write_text(TWICE_CU)
    (tmp_path / "twice.cpp").write_text(TWICE_CPP)


def drawn(seed: int) -> Graph:
    """A random graph of which up to six kernels can run on either side; lengths differ, some inputs are placed, some
    storage is shared, and every third graph is a loop."""
    numbers = random.Random(seed)
    graph = KernelGraph("drawn", elements=64)
    loop = seed % 3 == 0
    known = [f"i{number}" for number in range(numbers.randint(1, 3))]
    for name in known:
        graph.inputs(name, elements=1 << numbers.randint(4, 14), placed=not loop and numbers.random() < 0.2)
    free, made, dead = 0, [], set[str]()
    for k in range(numbers.randint(2, 8)):
        side = numbers.choice(("host", "device", "either", "either"))
        free += side == "either"
        alive = [name for name in known if name not in dead]
        reads = numbers.sample(alive, min(len(alive), numbers.randint(1, 3)))
        in_place = {}
        elements = 1 << numbers.randint(4, 14)
        if not loop and made and made[-1] in reads and numbers.random() < 0.3:
            in_place, elements = {f"v{k}": made[-1]}, graph._vectors[made[-1]].elements
            dead.add(made[-1])
        graph.kernel(f"k{k}", "device" if side == "either" and free > 6 else side, reads=reads, writes=[f"v{k}"],
                     elements=elements, in_place=in_place)  # fmt: skip
        known.append(f"v{k}")
        made.append(f"v{k}")
    graph.outputs(*(name for name in made if name not in dead and (name == made[-1] or numbers.random() < 0.3)))
    if loop:
        graph._vectors["i0"] = dataclasses.replace(graph._vectors["i0"], elements=graph._vectors[made[-1]].elements)
        graph.loop({"i0": made[-1]}, iterations=3)
    return graph.build()


def every(graph: Graph) -> list[placement.OnHost]:
    names = graph.on_either
    return [frozenset(each) for count in range(len(names) + 1) for each in itertools.combinations(names, count)]


def plainly_us(graph: Graph, host: placement.OnHost) -> float:
    """Stone's sum without the model: kernels where they are, and what crosses there, one by one."""
    there = placement.placed(graph, host)
    costs = cost.costs(there, {})
    crossing = (costs.message_us(each.up, placement.MEMORY, each.size_bytes) for each in intervals.crossings(there))
    return sum(costs.kernels.values()) + sum(crossing)


@given(seed=st.integers(0, 10**9))
@settings(max_examples=60)
def test_the_minimum_cut_is_the_least_of_all_placements(seed: int) -> None:
    graph = drawn(seed)
    if not graph.on_either:
        return
    costs = placement.model(graph, {})
    sums = {host: plainly_us(graph, host) for host in every(graph)}
    for host, us in sums.items():
        assert costs.total_us(host) == pytest.approx(us)
    cut = placement.least(costs)
    assert sums[cut] == pytest.approx(min(sums.values()), abs=0.01)
    ties = [len(host) for host, us in sums.items() if us < min(sums.values()) + 1e-6]
    assert len(cut) == min(ties), "of equal placements, the fewest kernels on the host"
    labels = [each.label for each in placement.candidates(graph, {})]
    assert labels[:2] == ["device", "host"]
    assert len(set(labels)) == len(labels) <= placement.MOST
    assert len(graph.on_either) > placement.ALL_OF or len(labels) == len(sums)


@pytest.mark.slow
@given(seed=st.integers(0, 10**9))
@settings(max_examples=25)
def test_every_placement_is_right_in_the_simulator(seed: int) -> None:
    graph = drawn(seed)
    plain = sorted(simulate.plain(graph))
    for host in every(graph)[:6]:
        there = placement.placed(graph, host)
        assert sorted(simulate.plain(there)) == plain
        known = Schedules(there)
        for schedule in (known.separate(early=True), known.least().schedule):
            plan = script(schedule)
            for execution in (Execution(issue="overlapped"), Execution(send="batch")):
                made = program(plan, execution, name="x")
                assert problems(made) == ()
                assert simulate.faults(plan, made, seeds=(seed % 11,)) == ()


def test_a_cut_that_is_wrong_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs of the two sides exchanged; a vector that is paid for each reader; what an input costs forgotten."""
    right = placement.model

    def exchanged(graph: Graph, answers: Any) -> placement.PlacementCosts:
        found = right(graph, answers)
        return dataclasses.replace(found, host_us=found.device_us, device_us=found.host_us)

    def each_reader(graph: Graph, answers: Any) -> placement.PlacementCosts:
        found = right(graph, answers)
        flows = (dataclasses.replace(flow, readers=frozenset([each])) for flow in found.flows for each in flow.readers)
        return dataclasses.replace(found, flows=tuple(flows))

    def without_inputs(graph: Graph, answers: Any) -> placement.PlacementCosts:
        found = right(graph, answers)
        return dataclasses.replace(found, flows=tuple(each for each in found.flows if each.producer not in found.side))

    def worse() -> bool:
        return any(
            plainly_us(graph, placement.least(placement.model(graph, {})))
            > min(plainly_us(graph, host) for host in every(graph)) + 0.01
            for graph in map(drawn, range(24)) if graph.on_either
        )  # fmt: skip

    assert not worse()
    for broken in (exchanged, each_reader, without_inputs):
        monkeypatch.setattr(placement, "model", broken)
        assert worse(), broken.__name__


# --- in the strategy ------------------------------------------------------------------------------------


def test_fused_messages_can_make_another_placement_faster_than_the_cut(analyse: Callable[..., Analysis]) -> None:
    """The cut pays a startup for each vector; with a message for several, another placement is ahead of it."""
    said = {each["placement"]: each for each in analyse(BLEND).report["placements"]}
    cut, best = said["host"], said["host:k4+k5"]
    assert cut["why"] == ["minimum cut"]
    assert cut["run_us"] + cut["crossing_us"] < best["run_us"] + best["crossing_us"]
    assert best["estimate_us"] < cut["estimate_us"]
    assert best["estimate_us"] == min(each["estimate_us"] for each in said.values())
    assert best["crosses"] == ["a up", "b up", "c down", "f down"]


def test_the_plan_says_what_each_placement_costs(strategy: Transfer, analyse: Callable[..., Analysis]) -> None:
    text = strategy.describe(analyse(BLEND))
    assert "host (minimum cut): kernels 44.5 us, crossing one by one 28.1 us; 64.6 us with 2 messages" in text
    assert "host:k4+k5 (fastest by estimate, moving kernels from the cut)" in text
    assert "by assumed costs" in text
    assert "placement" not in strategy.describe(analyse("fig2"))


def test_the_plan_takes_what_was_measured(strategy: Transfer, analyse: Callable[..., Analysis]) -> None:
    analysis = analyse(BLEND)
    graph = analysis.payload.asked.graph
    slow = {kernel_key(graph, kernel.moved): 1000.0 for kernel in graph.kernels if kernel.elsewhere is not None}
    text = strategy.describe(analysis, slow)
    assert "by partly measured costs" in text
    assert "device (minimum cut" in text


@pytest.mark.parametrize("text", [BLEND, TWO])
def test_every_placement_has_its_baseline(text: str, strategy: Transfer, analyse: Callable[..., Analysis]) -> None:
    """So what a candidate gains over the fastest baseline it gains by its messages, not by where its kernels are."""
    analysis = analyse(text)
    space = strategy.space(analysis, {})
    (labels,) = (each.values for each in space.parameters if each.name == "placement")
    unfused = {
        each.emit(config).key: config["placement"]
        for each in strategy.baselines(analysis, {}) for config in each.space.points()
    }  # fmt: skip
    assert set(unfused.values()) == set(labels)
    for config in space.points():
        if config["grouping"] == "separate":
            made = strategy.emit(analysis, config, {})
            assert isinstance(made, Program)
            assert unfused[made.key] == config["placement"]
    seeds = [config for _, config in strategy.seeds(analysis, space, {})]
    assert {config["placement"] for config in seeds} == set(labels)
    for config in seeds:
        assert not isinstance(strategy.emit(analysis, config, {}), Rejection)


def test_graphs_of_cuda_are_for_placements_without_host_kernels(
    strategy: Transfer, analyse: Callable[..., Analysis]
) -> None:
    points = list(strategy.space(analyse(TWO), {}).points())
    assert {each["placement"] for each in points if each["issue"] == "graph"} == {"device"}
    assert {each["placement"] for each in points} == {"device", "host", "host:twice", "host:mix"}


def test_what_was_measured_on_either_side_moves_the_cut(strategy: Transfer, analyse: Callable[..., Analysis]) -> None:
    analysis = analyse(BLEND)
    graph = analysis.payload.asked.graph
    keys = {each.key for each in strategy.probes(analysis)}
    host = {name: kernel_key(graph, graph.kernels[int(name[1])].moved) for name in graph.on_either}
    device = {name: kernel_key(graph, graph.kernels[int(name[1])]) for name in graph.on_either}
    assert {*host.values(), *device.values()} <= keys
    slow = {host[name]: 1000.0 for name in ("k1", "k2", "k5")} | {device["k4"]: 2000.0}
    assert placement.least(placement.model(graph, slow)) == {"k4"}
    assert "host:k4" in {each.label for each in placement.candidates(graph, slow)}
    other = {host[name]: 1000.0 for name in ("k2", "k5")} | {device["k4"]: 2000.0, device["k1"]: 2000.0}
    (labels,) = (each.values for each in strategy.space(analysis, other).parameters if each.name == "placement")
    assert "host:k1+k4" in labels
    knobs = strategy.baselines(analysis, other)[0].space
    assert "host:k1+k4" in knobs.parameters[0].values
    first = next(knobs.points())
    plain = strategy.baselines(analysis)[0]
    assert strategy.baselines(analysis, other)[0].emit(first).key == plain.emit(next(plain.space.points())).key


@pytest.mark.slow
def test_both_sides_compute_the_same_on_the_cpu_device(
    device: Any, strategy: Transfer, analyse: Callable[..., Analysis]
) -> None:
    analysis = analyse(TWO)
    given = np.arange(100, dtype=np.uint32) * 7
    found = {}
    for _, config in strategy.seeds(analysis, strategy.space(analysis, {}), {}):
        if config["grouping"] == "interval_stabbing" and config["issue"] == "overlapped":
            made = strategy.emit(analysis, config, {})
            assert isinstance(made, Program)
            found[config["placement"]] = device.run(made, inputs={"a": given})["c"]
    assert len(found) == 4
    for values in found.values():
        np.testing.assert_array_equal(values, found["device"])


def test_what_does_not_fit_on_the_device_runs_on_the_host(strategy: Transfer, analyse: Callable[..., Analysis]) -> None:
    limited = analyse(BLEND, f"limits: {{device_bytes: {3 * 4096 * 4}}}")
    fits = {each["placement"]: each["fits"] for each in limited.report["placements"]}
    assert all(fits.values())
    graph = KernelGraph("large", elements=1000)
    graph.inputs("a", "b", "c")
    graph.either("wide", reads=("a", "b", "c"), writes=("d",))
    graph.device("narrow", reads=("d",), writes=("e",))
    graph.outputs("e")
    analysis = analyse(graph.yaml(), "limits: {device_bytes: 8000}")
    assert [each["fits"] for each in analysis.report["placements"]] == [False, True]
    assert "placement" not in {each.name for each in strategy.space(analysis, {}).parameters}
    made = strategy.emit(analysis, strategy.seeds(analysis, strategy.space(analysis, {}), {})[0][1], {})
    assert isinstance(made, Program)
    with pytest.raises(RequestError, match="4000 bytes on the device are too few: narrow alone needs 8000"):
        analyse(graph.yaml(), "limits: {device_bytes: 4000}")


def test_a_graph_of_python_is_its_yaml(parse: Callable[..., Workload]) -> None:
    graph = KernelGraph("either", elements=8)
    graph.inputs("a")
    graph.either("k", reads=("a",), writes=("b",), body="a + a")
    graph.either("l", reads=("b",), writes=("c",))
    graph.outputs("c")
    assert parse(graph.yaml()).payload.graph == graph.build()
    assert graph.build().on_either == ("k", "l")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("source: {device: twice.cu, host: twice.cpp}", "source: twice.cu",
         "source: is one file; a kernel on either side has two, {device: FILE, host: FILE}"),
        ("host: twice.cpp", "hosts: twice.cpp", "unknown key 'hosts'; did you mean 'host'?"),
        (", host: twice.cpp", "", "the key 'host' is missing"),
        ("on: either, reads: [a], writes: [b]", "on: device, reads: [a], writes: [b]",
         "source: is a mapping, which is for kernels with on: either"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(old: str, new: str, message: str, parse: Callable[..., Workload]) -> None:
    assert old in TWO
    with pytest.raises(RequestError) as caught:
        parse(TWO.replace(old, new))
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_large_graphs_have_the_extremes_and_the_cut_only(
    graph: Callable[..., Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    blend = graph(BLEND)
    assert len(placement.candidates(blend, {})) > 3
    monkeypatch.setattr(placement, "MANY_KERNELS", 5)
    few = {each.host for each in placement.candidates(blend, {})}
    assert few == {frozenset(), frozenset(blend.on_either), placement.least(placement.model(blend, {}))}


def test_long_labels_count_kernels_and_are_resolved(strategy: Transfer, analyse: Callable[..., Analysis]) -> None:
    graph = KernelGraph("long", elements=8)
    graph.inputs("a0")
    for k in range(8):
        graph.either(f"quite_a_long_name_of_a_kernel_{k}", reads=(f"a{k}",), writes=(f"a{k + 1}",))
    graph.outputs("a8")
    built = graph.build()
    label = placement.label(built, frozenset(built.on_either[:3]))
    assert label.startswith("host:3 kernels ")
    assert label != placement.label(built, frozenset(built.on_either[1:4]))
    analysis = analyse(graph.yaml())
    space = strategy.space(analysis, {})
    (labels,) = (each.values for each in space.parameters if each.name == "placement")
    counted = next(each for each in labels if "kernels" in str(each))
    config = next(each for each in space.points() if each["placement"] == counted)
    said = strategy.resolved(analysis, Config.of(config), {})["placement"]
    assert str(said).count("quite_a_long_name") == int(str(counted).split()[0].partition(":")[2])
