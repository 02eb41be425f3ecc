"""Parts of vectors beside what shares or limits memory: limits, storage in place, placed inputs, loops."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fusiond.errors import RequestError
from fusiond.model import Analysis, Workload
from fusiond.program import problems
from fusiond_transfer.analysis.intervals import crossings
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.frontend.graph import Graph
from fusiond_transfer.python import KernelGraph
from fusiond_transfer.strategy import Transfer

from . import parts_machine
from .test_sub_vectors import HALVES, _carried, _emitted, _random


def test_a_limit_of_a_job(analyse: Callable[..., Analysis], strategy: Transfer, device: Any, gxx_here: None) -> None:
    """x is used again at the end, and z needs its room: so a half of it comes up twice, though y stays."""
    text = HALVES + '  - {name: again, on: device, reads: ["x[0:n // 2]"], writes: [w], body: 3 * x}\n'
    text = text.replace("inputs:", "vectors: {w: {elements: n // 2}}\ninputs:").replace("[y, z]", "[y, z, w]")
    analysis = analyse(text, "limits: {device_bytes: 16384}")
    limit = analysis.report["limit"]
    assert limit["evictions"] == [{"vector": "x[0:512]", "after": "low"}]
    assert (limit["more_transfers"], limit["more_proven"], limit["peak_bytes"]) == (1, True, 16384)
    x = np.random.default_rng(3).uniform(-1, 1, 1024)
    y = np.concatenate([2 * x[:512], x[512:] + 1])
    for allocation in ("each", "group", "pooled"):
        grouping = "separate" if allocation == "each" else "interval_stabbing"
        when = {"when": "late"} if allocation == "each" else {}
        program = _emitted(strategy, analysis, allocation=allocation, grouping=grouping, **when)
        for seed in range(3):
            out = device.run(program, seed=seed, inputs={"x": x})
            np.testing.assert_array_equal(out["z"], y * y)
            np.testing.assert_array_equal(out["w"], 3 * x[:512])


def _fewest_more(graph: Graph) -> int | None:
    """The transfers that evictions cost at least, of all ways to let pieces leave in the gaps between their uses."""
    runs = {name: run for run in graph.device_runs for name in run}
    uses: dict[tuple[str, ...], list[int]] = {}
    of: dict[str, list[int]] = {}
    for k, kernel in enumerate(graph.kernels):
        names = dict.fromkeys((*kernel.reads, *kernel.writes)) if kernel.device else ()
        for name in names:
            of.setdefault(name, []).append(k)
        for run in dict.fromkeys(runs.get(name, (name,)) for name in names):
            uses.setdefault(run, []).append(k)
    gaps = [(run, a, b) for run, at in uses.items() for a, b in itertools.pairwise(at) if b > a + 1]
    if len(gaps) > 9:
        return None
    size = {run: graph.glued.get(run[0], ("", 0))[1] % 256 + sum(graph.vector(each).size_bytes for each in run)
            for run in uses}  # fmt: skip
    down = {each.vector for each in crossings(graph) if not each.up}
    best = None
    for out in itertools.product((False, True), repeat=len(gaps)):
        left = [gap for gap, leaves in zip(gaps, out, strict=True) if leaves]
        held = [
            sum(size[run] for run, at in uses.items()
                if at[0] <= k <= at[-1] and not any(own == run and a < k < b for own, a, b in left))
            for k, kernel in enumerate(graph.kernels) if kernel.device
        ]  # fmt: skip
        if max(held, default=0) > (graph.limit_bytes or 0):
            continue
        cost = 0
        for name, at in of.items():
            run = runs.get(name, (name,))
            comes = sum(any(own == run and a >= first and b <= second for own, a, b in left)
                        for first, second in itertools.pairwise(at))  # fmt: skip
            dirty = name in graph.producer and graph.kernels[graph.producer[name]].device and name not in down
            cost += comes + (comes > 0 and dirty)
        best = cost if best is None else min(best, cost)
    return best


def test_what_evictions_cost_is_the_least(graph: Callable[..., Graph]) -> None:
    compared = 0
    for seed in range(150):
        found = graph(_random(seed, 4)[0])
        bytes_of = parts_machine.least_bytes(found)
        limited = dataclasses.replace(found, limit_bytes=bytes_of + random.Random(seed).randrange(200))
        wanted = _fewest_more(limited)
        if wanted:
            schedules = Schedules(limited)
            assert schedules.evictions is not None
            assert (schedules.evictions.more, schedules.evictions.least) == (wanted, True), seed
            compared += 1
    assert compared > 15


STORED = """\
graph: stored
sizes: {n: 512}
elements: 2 * n
dtype: float64
inputs: [x, c]
outputs: [y]
placed: [c]
kernels:
  - {name: low, on: device, reads: ["x[:n]", "c[:n]"], writes: ["y[:n]"], in_place: {"y[:n]": "x[:n]"}, body: x + c}
  - {name: high, on: host, reads: ["x[n:]"], writes: ["y[n:]"], in_place: {"y[n:]": "x[n:]"}, body: 2 * x}
"""


def test_pieces_are_stored_where_others_were(
    analyse: Callable[..., Analysis], strategy: Transfer, device: Any, gxx_here: None
) -> None:
    """One place for x and y in each memory; c is on the device from the start, and only a half of it is needed."""
    program = _emitted(strategy, analyse(STORED))
    assert problems(program) == ()
    assert {each.name for each in program.buffers if each.part_of is None} == {
        "x", "y", "c", "x.store", "x.store@device", "c.store@device"
    }  # fmt: skip
    assert _carried(program) - 8 * 1024 * 3 == 8 * 512 * 2, "beside what is staged, half of x up and half of y down"
    draw = np.random.default_rng(1)
    x, c = draw.uniform(-1, 1, 1024), draw.uniform(-1, 1, 1024)
    for there, size in ((program, 1024), (program.at({"n": 300}), 600)):
        for seed in range(3):
            out = device.run(there, seed=seed, inputs={"x": x[:size], "c": c[:size]})
            half = size // 2
            np.testing.assert_array_equal(out["y"], np.concatenate([x[:half] + c[:half], 2 * x[half:size]]))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (', in_place: {"y[n:]": "x[n:]"}', "", r"y\[512:1024\] is not stored where x\[512:1024\] was: all pieces are"),
        ('{"y[n:]": "x[n:]"}', '{"y[n:]": "x[:n]"}', r"high must write y\[512:1024\] and read x\[0:512\], to store"),
        ('{"y[:n]": "x[:n]"}', '{"y[:n]": "c[:n]"}', r"y\[512:1024\] is not stored where c\[512:1024\] was: all"),
        ("placed: [c]", "placed: [y]", "y.* is not an input"),
    ],
)
def test_what_cannot_be_stored_has_a_line(parse: Callable[..., Workload], old: str, new: str, why: str) -> None:
    assert old in STORED
    with pytest.raises(RequestError, match=why) as caught:
        parse(STORED.replace(old, new, 1))
    assert len(str(caught.value).splitlines()) == 1


MORE = """\
  - {name: ask, on: device, reads: [y], writes: [u], body: 3 * y}
  - {name: again, on: device, reads: ["u[n:]", "c[n:]"], writes: [t], body: u + c}
"""


def test_a_limit_beside_them(analyse: Callable[..., Analysis], strategy: Transfer, device: Any, gxx_here: None) -> None:
    """y and u are all that fits while one is made of the other: so the half of c that is used again has to go down,
    for it was placed, and comes up again."""
    text = STORED.replace("outputs: [y]", "vectors: {t: {elements: n}}\noutputs: [y, t]") + MORE
    analysis = analyse(text, "limits: {device_bytes: 16384}")
    limit = analysis.report["limit"]
    assert limit["evictions"] == [{"vector": "c[512:1024]", "after": None}]
    assert (limit["more_transfers"], limit["more_proven"], limit["peak_bytes"]) == (2, True, 16384)
    draw = np.random.default_rng(1)
    x, c = draw.uniform(-1, 1, 1024), draw.uniform(-1, 1, 1024)
    y = np.concatenate([x[:512] + c[:512], 2 * x[512:]])
    for allocation in ("group", "pooled"):
        program = _emitted(strategy, analysis, allocation=allocation)
        assert problems(program) == ()
        for seed in range(3):
            out = device.run(program, seed=seed, inputs={"x": x, "c": c})
            np.testing.assert_array_equal(out["y"], y)
            np.testing.assert_array_equal(out["t"], 3 * y[512:] + c[512:])


LEAVES = """\
graph: leaves
sizes: {n: 512}
elements: 2 * n
dtype: float64
vectors: {t: {elements: n}}
inputs: [x, c]
outputs: [y, v]
placed: [c]
kernels:
  - {name: big, on: device, reads: [x], writes: [u, v], body: {u: 3 * x, v: x + 1}}
  - {name: half, on: device, reads: ["c[:n]"], writes: [t], body: 2 * c}
  - {name: all, on: device, reads: [c, u], writes: [y], body: c + u}
"""


def test_what_is_placed_leaves_before_its_first_use(
    analyse: Callable[..., Analysis], strategy: Transfer, device: Any, gxx_here: None
) -> None:
    """Both pieces of c, which lie together, go down before the first kernel, and come up again."""
    analysis = analyse(LEAVES, "limits: {device_bytes: 24576}")
    limit = analysis.report["limit"]
    assert (limit["more_transfers"], limit["more_proven"]) == (4, True)
    program = _emitted(strategy, analysis, allocation="group")
    x, c = np.arange(1024.0), np.arange(1024.0) ** 2
    for seed in range(3):
        np.testing.assert_array_equal(device.run(program, seed=seed, inputs={"x": x, "c": c})["y"], c + 3 * x)


def test_what_is_carried_or_stored_is_cut_alike(graph: Callable[..., Graph]) -> None:
    """Nobody names a part of x."""
    carried = graph(LOOP.replace('"x[:n]", "c[n:]"', '"c[n:]"').replace("body: x + c", "body: 2 * c")
                    .replace('"x[n:]", "y[:n]"', '"y[:n]"').replace("body: x - y", "body: 3 * y"))  # fmt: skip
    assert carried.carried == (("x[0:512]", "y[0:512]"), ("x[512:1024]", "y[512:1024]"))
    stored = graph("""\
graph: stored
elements: 8
dtype: float64
vectors: {z: {elements: 4}}
inputs: [x]
outputs: [z]
kernels:
  - {name: k0, on: device, reads: [x], writes: [y], in_place: {y: x}, body: 2 * x}
  - {name: k1, on: host, reads: ["y[:4]"], writes: [z], body: y}
""")
    assert {stored.cell[name] for name in stored.home} == {"x[0:4].store", "x[4:8].store"}


def test_python_writes_what_is_stored_and_carried(graph: Callable[..., Graph]) -> None:
    made = KernelGraph("g", elements=8, dtype="float32")
    made.inputs("x", "c")
    made.device("k0", reads=("x[0:5]",), writes=("u[0:5]",), elements=8, body="x + 1")
    made.host("k1", reads=("x[5:8]", "c[5:8]"), writes=("u[5:8]",), elements=8, body="x + c")
    made.outputs("u")
    made.loop({"x": "u"})
    first, again = made.build(), graph(made.yaml())
    for found in (first, again):
        assert found.carried == (("x[0:5]", "u[0:5]"), ("x[5:8]", "u[5:8]"))
    assert graph(STORED).cell["y[512:1024]"] == "x[512:1024].store"


LOOP = """\
graph: halves
sizes: {n: 512}
elements: 2 * n
dtype: float64
inputs: [x, c]
outputs: [y]
loop: true
carried: {x: y}
iterations: 3
kernels:
  - {name: low, on: device, reads: ["x[:n]", "c[n:]"], writes: ["y[:n]"], body: x + c}
  - {name: high, on: host, reads: ["x[n:]", "y[:n]"], writes: ["y[n:]"], body: x - y}
  - {name: use, on: device, reads: [y], writes: [z], body: 2 * y}
"""


def test_a_loop_carries_pieces(
    analyse: Callable[..., Analysis], strategy: Transfer, device: Any, gxx_here: None
) -> None:
    """In each iteration one half goes down and the other one up; the rest stays where it is."""
    analysis = analyse(LOOP)
    assert (analysis.report["startups"], analysis.report["optimal"]) == (2, True)
    assert {(each["direction"], *each["vectors"]) for each in analysis.report["schedule"]} == {
        ("down", "y[0:512]"), ("up", "y[512:1024]")
    }  # fmt: skip
    program = _emitted(strategy, analysis)
    assert problems(program) == ()
    draw = np.random.default_rng(1)
    x, c = draw.uniform(-1, 1, 1024), draw.uniform(-1, 1, 1024)
    for there, n in ((program, 512), (program.at({"n": 300}), 300)):
        y = x[: 2 * n].copy()
        for _ in range(3):
            y[:n] += c[n : 2 * n]
            y[n:] -= y[:n]
        for seed in range(3):
            out = device.run(there, seed=seed, inputs={"x": x[: 2 * n], "c": c[: 2 * n]})
            np.testing.assert_allclose(out["y"], y, rtol=1e-12)
