"""Graphs over several devices: each link against brute force, plans that carry what is read, and Programs of them."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusiond.devices.builtin
from fusiond.errors import RequestError
from fusiond.inputs.fills import initial
from fusiond.model import Analysis, Config, Workload
from fusiond.program import Program, problems
from fusiond.registry import Registry
from fusiond.requests import jobs
from fusiond.requests.planning import prepare, refuse_hopeless
from fusiond.strategy import Target
from fusiond_transfer import peer_report
from fusiond_transfer.analysis import intervals, peers, schedule
from fusiond_transfer.analysis.intervals import Crossing
from fusiond_transfer.analysis.peer_script import PeerSchedule, PeerSchedules, script
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.analysis.script import Script
from fusiond_transfer.analysis.script import script as one_script
from fusiond_transfer.codegen import simulate
from fusiond_transfer.codegen.emit import Execution, program
from fusiond_transfer.frontend.generator import Shape, random_graph
from fusiond_transfer.frontend.graph import DEVICE, HOST, Graph
from fusiond_transfer.python import KernelGraph
from fusiond_transfer.strategy import Transfer

PAIR = """\
graph: pair
sizes: {elements: 64}
inputs: [a, b]
outputs: [e, f]
kernels:
  - {name: k0, on: device, reads: [a], writes: [c, d]}
  - {name: k1, on: "device:1", reads: [b, c], writes: [e]}
  - {name: k2, on: host, reads: [d], writes: [g]}
  - {name: k3, on: "device:1", reads: [d, g], writes: [f]}
"""


def _spread(seed: int, kernels: int = 9) -> Graph:
    """A random graph whose kernels on the device are on one of three."""
    shape = Shape(kernels=kernels, inputs=3, indegree=(1, 3), outdegree=(1, 2), device_percent=70, seed=seed)
    made = random_graph(shape, elements=8)
    draw = random.Random(seed)
    spread = (dataclasses.replace(k, number=draw.randrange(3)) if k.device else k for k in made.kernels)
    return dataclasses.replace(made, kernels=tuple(spread))


def _fewest(crossings: Sequence[Crossing]) -> int:
    """Brute force: the fewest slots with one in every interval."""
    ends = sorted({each.latest for each in crossings})
    for count in range(len(ends) + 1):
        for points in itertools.combinations(ends, count):
            if all(any(each.earliest <= point <= each.latest for point in points) for each in crossings):
                return count
    raise AssertionError


def _carried_out(graph: Graph, links: Sequence[peers.DeviceLink]) -> None:
    """Every kernel finds what it reads where it is, and what is sent is there when it is sent."""
    there = {(HOST, name) for name in graph.inputs}

    def send(slot: int, *, to_host: bool) -> None:
        for link in links:
            for message in link.messages:
                if message.slot == slot and (link.target == HOST) is to_host:
                    for name in message.vectors:
                        assert (link.source, name) in there, (link.source, name, slot)
                        there.add((link.target, name))

    send(-1, to_host=True)
    for k, kernel in enumerate(graph.kernels):
        send(k, to_host=False)
        for name in kernel.reads:
            assert (kernel.place, name) in there, (kernel.name, name)
        there |= {(kernel.place, name) for name in kernel.writes}
        send(k, to_host=True)
    assert all((HOST, name) in there for name in graph.outputs)


@pytest.mark.parametrize("seed", range(60))
def test_each_link_has_the_fewest_messages_and_they_suffice(seed: int) -> None:
    graph = _spread(seed)
    found = peers.links(graph)
    _carried_out(graph, found)
    for link in found:
        assert link.source != link.target
        assert len(link.messages) == len(link.witnesses) == _fewest(link.crossings)
    kinds = {link.kind for link in found}
    assert (peers.PEER in kinds) == any(HOST not in (link.source, link.target) for link in found)
    made = {name: kernel.place for kernel in graph.kernels for name in kernel.writes}
    wanted = {(made.get(name, HOST), kernel.place, name) for kernel in graph.kernels for name in kernel.reads}
    wanted |= {(made[name], HOST, name) for name in graph.outputs}
    crossing = {(link.source, link.target, each.vector) for link in found for each in link.crossings}
    assert crossing == {each for each in wanted if each[0] != each[1]}


def test_with_one_device_it_is_the_plan_of_one(graph: Callable[..., Graph]) -> None:
    for name in ("fig2", "matmul", "cholesky"):
        one = graph(name)
        links = peers.links(one)
        assert {each.kind for each in links} <= {peers.UPLOAD, peers.DOWNLOAD}
        crossings = intervals.crossings(one)
        assert sum(len(each.messages) for each in links) == schedule.bound(one, crossings).messages
        assert sorted(c.vector for each in links for c in each.crossings) == sorted(c.vector for c in crossings)


def test_peer_copies_are_messages_of_their_own_kind(analyse: Callable[..., Analysis], strategy: Transfer) -> None:
    analysis = analyse(PAIR)
    report = analysis.report
    assert report["startups_by_kind"] == {"upload": 3, "download": 2, "peer": 1}
    assert report["transfers_by_kind"] == {"upload": 3, "download": 3, "peer": 2}
    (link,) = (each for each in report["links"] if each["kind"] == "peer")
    assert (link["from"], link["to"], link["schedule"]) == ("device", "device:1", [{"slot": 1, "vectors": ["d", "c"]}])
    said = strategy.describe(analysis)
    assert "device to device:1: 1 peer message for 2 vectors\n  before k1: d c\n" in said


def _ways(graph: Graph) -> Iterator[tuple[PeerSchedule, Script, Program]]:
    """The fewest messages and separate ones, on a stream for each device and on many."""
    schedules = PeerSchedules(graph)
    for found in (schedules.fewest(), schedules.separate(early=True), schedules.separate(early=False)):
        for execution in (Execution(memory="pinned", issue="overlapped"), Execution()):
            plan = script(found)
            yield found, plan, program(plan, execution, name="x")


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_programs_are_sound_whatever_comes_first(seed: int) -> None:
    graph = _spread(seed)
    schedules = PeerSchedules(graph)
    assert schedules.fewest().startups >= schedules.lower_bound
    assert schedules.separate(early=True).startups == sum(len(each.crossings) for each in schedules.links)
    for _, plan, made in _ways(graph):
        assert problems(made) == ()
        assert made.devices == graph.devices
        assert simulate.faults(plan, made, seeds=(seed,)) == ()


@pytest.mark.campaign
def test_a_thousand_graphs_over_several_devices() -> None:
    above = 0
    for seed in range(1000):
        graph = _spread(seed, kernels=4 + seed % 12)
        schedules = PeerSchedules(graph)
        above += schedules.fewest().startups > schedules.lower_bound
        for _, plan, made in _ways(graph):
            assert not (*problems(made), *simulate.faults(plan, made, seeds=(seed,))), seed
    assert above < 50  # one layout has the fewest of all links, but for a few


def test_a_layout_that_cannot_have_all_links_says_so(graph: Callable[..., Graph]) -> None:
    """Each pair of the three is a message to another device: there is no order in which all pairs are neighbours."""
    text = """\
graph: ring
inputs: [a, b, c]
outputs: [x, y, z]
elements: 8
kernels:
  - {name: k0, on: "device", reads: [a, b], writes: [x]}
  - {name: k1, on: "device:1", reads: [b, c], writes: [y]}
  - {name: k2, on: "device:2", reads: [a, c], writes: [z]}
"""
    ring = graph(text)
    schedules = PeerSchedules(ring)
    found = peer_report.report(schedules, None)
    # a, b, c: b lies between a and c on the host only, and is copied over by nobody.
    assert (found["startups"], found["lower_bound"], found["optimal"]) == (7, 6, False)
    assert "at least 6 are needed, and no one layout was found" in peer_report.text(schedules, None)
    for _, plan, made in _ways(ring):
        assert not (*problems(made), *simulate.faults(plan, made))


def test_a_message_that_is_missing_is_seen(graph: Callable[..., Graph], device: Any) -> None:
    """The simulator and the cpu device: both name what is wrong without one of the copies."""
    plan = script(PeerSchedules(graph(PAIR)).fewest())
    made = program(plan, Execution(memory="pinned", issue="overlapped"), name="x")
    right = device.run(made)
    for step in made.steps:
        if step.messages:
            less = tuple(
                dataclasses.replace(each, after=tuple(name for name in each.after if name != step.name))
                for each in made.steps
                if each is not step
            )
            broken = dataclasses.replace(made, steps=less)
            assert simulate.faults(plan, broken)
            found = device.run(broken)
            assert any(not np.array_equal(found[name], right[name]) for name in right), step.name


def test_it_is_what_one_device_computes(device: Any) -> None:
    """The same kernels on one device and on three, in every order that is tried."""
    for seed in (1, 4):
        over = _spread(seed)
        one = dataclasses.replace(over, kernels=tuple(dataclasses.replace(k, number=0) for k in over.kernels))
        made = program(one_script(Schedules(one).separate(early=False)), Execution(), name="x")
        wanted = device.run(made)
        for _, _, other in _ways(over):
            for order in (0, 1, 2, 3, 4):
                found = device.run(other, inputs={e.name: initial(e, 0) for e in made.buffers if e.name in one.inputs},
                                   seed=order)  # fmt: skip
                assert found.keys() == wanted.keys()
                assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


def test_it_is_measured_where_there_are_as_many_devices(
    parse: Callable[..., Workload], strategy: Transfer, cpu_target: Target
) -> None:
    workload = parse(PAIR)
    assert workload.devices == 2
    analysis = strategy.analyse(workload, dataclasses.replace(cpu_target, devices=2))
    assert analysis.rejections == ()
    space = strategy.space(analysis, {})
    assert next(name for name, _ in strategy.seeds(analysis, space, {})) == "interval_stabbing_pageable_one_stream"
    assert {each.name for each in strategy.baselines(analysis)} == {"separate_pageable", "separate_pinned"}
    for config in space.points():
        made = strategy.emit(analysis, config, {})
        assert isinstance(made, Program)
        assert made.devices == 2
        messages = 6 if config["grouping"] != "separate" else 8
        assert sum(bool(step.messages) for step in made.steps) == messages
        assert strategy.resolved(analysis, config, {})["grouping"] == f"{config['grouping']} ({messages} messages)"


def test_it_is_planned_where_there_are_fewer(
    analyse: Callable[..., Analysis], strategy: Transfer, registry: Registry, tmp_path: Path
) -> None:
    analysis = analyse(PAIR)
    why = "k1 is on device:1, and one device of its model is here: this graph is planned, not measured"
    assert [each.detail for each in analysis.rejections] == [why]
    assert why in strategy.describe(analysis)
    assert strategy.emit(analysis, Config.of({}), {}) == analysis.rejections[0]
    assert strategy.baselines(analysis) == strategy.seeds(analysis, strategy.space(analysis, {}), {}) == ()
    assert strategy.probes(analysis) == ()
    beyond = PAIR.replace("device:1", "device:99")
    (tmp_path / "pair.yaml").write_text(beyond)
    (job,) = jobs.read(tmp_path / "job.yaml", "strategy: transfer\ngraph: ./pair.yaml\ndevice: cpu\n")
    refuse_hopeless(_with_cpu(registry), prepare(registry, job))  # the processor stands for a hundred


def _with_cpu(registry: Registry) -> Registry:
    found = Registry()
    found.add(fusiond.devices.builtin, "devices")
    for name, each in registry.strategies.items():
        found.strategies[name] = each
    return found


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (
            '"device:1", reads: [b',
            "device:x, reads: [b",
            r"kernels\[1\].on: is 'device:x'; it can be host, device, either, or",
        ),
        ('"device:1", reads: [b', "host:1, reads: [b", "is 'host:1'; it can be host, device, either, or device:N"),
        ("outputs: [e, f]\n", "outputs: [e, f]\nlimits: {device_bytes: 4096}\n", "is for graphs on one device"),
        ("outputs: [e, f]\n", "outputs: [e, f]\nadjacent: [[a, b]]\n", "is for graphs on one device"),
        ("reads: [b, c], writes: [e]", "reads: [b, c], writes: [e], in_place: {e: b}", "is for graphs on one device"),
    ],
)
def test_what_is_wrong_has_a_line(parse: Callable[..., Workload], old: str, new: str, why: str) -> None:
    assert old in PAIR
    with pytest.raises(RequestError, match=why):
        parse(PAIR.replace(old, new, 1))


@pytest.mark.parametrize("line", ["allocations: counted", "together: true", "limits: {device_bytes: 4096}"])
def test_keys_of_the_job_that_are_for_one_device(parse: Callable[..., Workload], line: str) -> None:
    with pytest.raises(RequestError, match="is for graphs on one device"):
        parse(PAIR, line)


def test_python_says_it_too_and_the_file_keeps_it(graph: Callable[..., Graph]) -> None:
    made = KernelGraph("g", elements=8)
    (a,) = made.inputs("a")
    (b,) = made.device("k0", reads=(a,), writes=("b",))
    (c,) = made.device("k1", 1, reads=(b,), writes=("c",))
    made.outputs(c)
    for found in (made.build(), graph(made.yaml())):
        assert [each.place for each in found.kernels] == [DEVICE, f"{DEVICE}:1"]
