"""Graphs over several devices: each link against brute force, plans that carry what is read, and no measuring."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import fusiond.devices.builtin
from fusiond.errors import RequestError
from fusiond.model import Analysis, Config, Workload
from fusiond.registry import Registry
from fusiond.requests import jobs
from fusiond.requests.planning import prepare, refuse_hopeless
from fusiond_transfer.analysis import intervals, peers, schedule
from fusiond_transfer.analysis.intervals import Crossing
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


def _spread(seed: int) -> Graph:
    """A random graph whose kernels on the device are on one of three."""
    shape = Shape(kernels=9, inputs=3, indegree=(1, 3), outdegree=(1, 2), device_percent=70, seed=seed)
    made = random_graph(shape, elements=8)
    draw = random.Random(seed)
    kernels = (dataclasses.replace(k, number=draw.randrange(3)) if k.device else k for k in made.kernels)
    return dataclasses.replace(made, kernels=tuple(kernels))


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
    assert (link["from"], link["to"], link["schedule"]) == ("device", "device:1", [{"slot": 1, "vectors": ["c", "d"]}])
    said = strategy.describe(analysis)
    assert "device to device:1: 1 peer message for 2 vectors\n  before k1: c d\n" in said


def test_it_is_planned_and_not_measured(
    analyse: Callable[..., Analysis], strategy: Transfer, registry: Registry, tmp_path: Path
) -> None:
    analysis = analyse(PAIR)
    why = "k1 is on device:1, and a program runs on one device: this graph is planned, not measured"
    assert [each.detail for each in analysis.rejections] == [why]
    assert strategy.emit(analysis, Config.of({}), {}) == analysis.rejections[0]
    assert strategy.baselines(analysis) == strategy.seeds(analysis, strategy.space(analysis, {}), {}) == ()
    assert strategy.probes(analysis) == ()
    (tmp_path / "pair.yaml").write_text(PAIR)
    (job,) = jobs.read(tmp_path / "job.yaml", "strategy: transfer\ngraph: ./pair.yaml\ndevice: cpu\n")
    with pytest.raises(RequestError, match=f"no candidate can be tried: {why}"):
        refuse_hopeless(_with_cpu(registry), prepare(registry, job))


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
