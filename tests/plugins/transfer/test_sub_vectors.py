"""Parts of vectors: random graphs against NumPy on the cpu device, plans against brute force, other sizes."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from fusiond.errors import RequestError
from fusiond.exporting.files import export
from fusiond.model import Analysis, Config, Workload
from fusiond.program import Copy, Memory, Program, problems
from fusiond_transfer.analysis.intervals import crossings
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.analysis.script import script
from fusiond_transfer.codegen import emit, simulate
from fusiond_transfer.codegen.emit import Execution
from fusiond_transfer.frontend.graph import Graph
from fusiond_transfer.python import KernelGraph
from fusiond_transfer.strategy import Transfer

from . import parts_machine

HALVES = """\
graph: halves
sizes: {n: 1024}
elements: n
dtype: float64
inputs: [x]
outputs: [y, z]
kernels:
  - {name: low, on: device, reads: ["x[0:n // 2]"], writes: ["y[:n // 2]"], body: 2 * x}
  - {name: high, on: host, reads: ["x[n // 2:]"], writes: ["y[n // 2:]"], body: x + 1}
  - {name: all, on: device, reads: [y], writes: [z], body: y * y}
"""
ONE = {"grouping": "interval_stabbing", "memory": "pinned", "issue": "overlapped", "send": "message"}


def _emitted(strategy: Transfer, analysis: Analysis, **values: Any) -> Program:
    order = {"order": "given"} if analysis.payload.offer.reordered else {}
    config = {**ONE, **order, **values}
    if config["grouping"] == "separate":
        del config["send"]
    found = strategy.emit(analysis, Config.of(config), {})
    assert isinstance(found, Program), found
    return found


def _carried(program: Program) -> int:
    size = {each.name: each.size_bytes for each in program.buffers}
    return sum(size[name] for step in program.steps for name in step.carried)


def test_parts_cross_and_not_wholes(
    analyse: Callable[..., Analysis], strategy: Transfer, device: Any, gxx_here: None
) -> None:
    """Half of x goes up, then half of y beside what is there; all of z and half of y come down."""
    analysis = analyse(HALVES)
    found = {(each.vector, each.up) for each in crossings(analysis.payload.asked.graph)}
    assert found == {("x[0:512]", True), ("y[512:1024]", True), ("y[0:512]", False), ("z", False)}
    x = np.random.default_rng(3).uniform(-1, 1, 1024)
    y = np.concatenate([2 * x[:512], x[512:] + 1])
    for values in ({}, {"send": "batch"}, {"grouping": "separate", "when": "early"}):
        program = _emitted(strategy, analysis, **values)
        assert problems(program) == ()
        assert _carried(program) == 8 * (512 + 512 + 512 + 1024)
        for seed in range(3):
            out = device.run(program, seed=seed, inputs={"x": x})
            np.testing.assert_array_equal(out["y"], y)
            np.testing.assert_array_equal(out["z"], y * y)


@pytest.mark.parametrize("kind", ["mapped", "managed"])
def test_all_pieces_of_a_vector_are_in_one_memory(
    kind: str, analyse: Callable[..., Analysis], strategy: Transfer, device: Any, gxx_here: None
) -> None:
    """y is made in two halves, one on each side, and read as a whole on the device; x is not mapped."""
    analysis = analyse(HALVES.replace("inputs:", f"vectors: {{y: {{memory: {kind}}}}}\ninputs:"))
    line = next(each for each in analysis.report["claims"] if each.startswith("may lie in"))
    assert line.endswith(": y")
    program = _emitted(strategy, analysis, **{kind: "all"})
    assert problems(program) == ()
    assert {each.name for each in program.buffers if each.memory is Memory.DEVICE and each.part_of is None} == {
        "x@device", "z@device"
    }  # fmt: skip
    carried = {name for step in program.steps for name in step.carried}
    assert carried == {"x[0:512]", "z@device", *(("y[0:512]", "y[512:1024]") if kind == "managed" else ())}
    x = np.random.default_rng(3).uniform(-1, 1, 1024)
    y = np.concatenate([2 * x[:512], x[512:] + 1])
    for seed in range(3):
        out = device.run(program, seed=seed, inputs={"x": x})
        np.testing.assert_array_equal(out["y"], y)
        np.testing.assert_array_equal(out["z"], y * y)


@pytest.mark.parametrize("allocation", ["each", "group", "one", "pooled"])
def test_allocations_are_of_the_pieces_that_are_used(
    allocation: str, analyse: Callable[..., Analysis], strategy: Transfer, device: Any, gxx_here: None
) -> None:
    """The device has half of x, and y as a whole, as a kernel there is passed all of it."""
    analysis = analyse(HALVES, "allocations: counted")
    values = {"allocation": allocation, "send": "batch" if allocation == "each" else "message"}
    program = _emitted(strategy, analysis, **values)
    assert problems(program) == ()
    tops = {each.name: each.elements for each in program.buffers
            if each.memory is Memory.DEVICE and each.part_of is None}  # fmt: skip
    assert tops == {"x[0:512]@device": 512, "y@device": 1024, "z@device": 1024}
    x = np.random.default_rng(3).uniform(-1, 1, 1024)
    y = np.concatenate([2 * x[:512], x[512:] + 1])
    for seed in range(3):
        np.testing.assert_array_equal(device.run(program, seed=seed, inputs={"x": x})["z"], y * y)


def _random(seed: int, vectors: int = 6) -> tuple[str, list[tuple[str, tuple[str, ...], str, float]]]:
    """The text of a graph, and what its kernels compute: written = factor * the first read + the others."""
    draw = random.Random(seed)
    length = 24
    there: list[tuple[str, int, int]] = [("a", 0, length), ("b", 0, length)]  # whole vectors, so far
    lines, steps = [], []
    for number in range(vectors):
        name = f"v{number}"
        cut = sorted({0, length, *(draw.randrange(1, length) for _ in range(draw.randrange(3)))})
        for part, (first, end) in enumerate(itertools.pairwise(cut)):
            reads = []
            for vector, _, _ in draw.sample(there, draw.randrange(1, min(3, len(there)) + 1)):
                start = draw.randrange(length - (end - first) + 1)
                text = f"{vector}[{start}:{start + end - first}]" if draw.random() < 0.7 else vector
                if text == vector and end - first != length:
                    text = f"{vector}[{first}:{end}]"
                reads.append(text)
            factor = draw.choice([2.0, 3.0, -1.0])
            body = " + ".join([f"{factor} * {reads[0].partition('[')[0]}", *(r.partition("[")[0] for r in reads[1:])])
            written = f"{name}[{first}:{end}]" if len(cut) > 2 else name
            steps.append((written, tuple(reads), name, factor))
            side = draw.choice(["host", "device"])
            lines.append(f"  - {{name: k{number}_{part}, on: {side}, reads: {reads!r}, writes: [{written!r}], "
                         f"body: {body!r}}}")  # fmt: skip
        there.append((name, 0, length))
    outputs = draw.sample([name for name, _, _ in there[2:]], 2)
    head = f"graph: parts\nelements: {length}\ndtype: float64\ninputs: [a, b]\noutputs: {outputs!r}\nkernels:\n"
    return head + "\n".join(lines) + "\n", steps


def _slice(values: dict[str, np.ndarray], text: str) -> np.ndarray:
    name, mark, bounds = text.partition("[")
    if not mark:
        return values[name]
    first, _, end = bounds.rstrip("]").partition(":")
    return values[name][int(first) : int(end)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_are_numpys(
    seed: int, analyse: Callable[..., Analysis], strategy: Transfer, device: Any, gxx_here: None
) -> None:
    text, steps = _random(seed)
    analysis = analyse(text)
    draw = np.random.default_rng(seed)
    inputs = {name: draw.integers(-8, 8, 24).astype(float) for name in "ab"}
    values = {**inputs, **{name: np.empty(24) for _, _, name, _ in steps}}
    for written, reads, _, factor in steps:
        first, *others = (_slice(values, each) for each in reads)
        _slice(values, written)[:] = factor * first + sum(others)
    grouping = ("interval_stabbing", "min_residency", "local_search")[seed % 3]
    program = _emitted(strategy, analysis, grouping=grouping, issue=("overlapped", "one_stream")[seed % 2])
    for order in range(4):
        out = device.run(program, seed=order, inputs=inputs)
        for name, found in out.items():
            np.testing.assert_array_equal(found, values[name], err_msg=f"{name}\n{text}")


def _brute_force(graph: Graph) -> int:
    """The fewest messages of all slots and all layouts in which pieces stand in their order, nothing copied along."""
    there = crossings(graph)
    runs = {name: each.pieces for each in graph.cut for name in each.pieces}
    groups = list(dict.fromkeys(runs.get(each.vector, (each.vector,)) for each in there))
    best = len(there)
    for layout in itertools.permutations(groups):
        position = {name: at for at, name in enumerate(itertools.chain.from_iterable(layout))}
        for slots in itertools.product(*(range(each.earliest, each.latest + 1) for each in there)):
            together: dict[tuple[int, bool], list[int]] = {}
            for each, slot in zip(there, slots, strict=True):
                together.setdefault((slot, each.up), []).append(position[each.vector])
            best = min(best, sum(_runs(sorted(places)) for places in together.values()))
    return best


def _runs(places: Sequence[int]) -> int:
    return 1 + sum(b != a + 1 for a, b in itertools.pairwise(places))


def test_plans_are_no_worse_than_brute_force(graph: Callable[..., Graph]) -> None:
    """What lies between may be copied along where that is harmless, so they can be better."""
    compared = 0
    for seed in range(100):
        found = graph(_random(seed, 3)[0])
        spans = [each.latest - each.earliest + 1 for each in crossings(found)]
        if len(spans) <= 7 and np.prod(spans) < 2000:
            least = Schedules(found).least()
            assert least.lower_bound <= least.schedule.startups <= _brute_force(found)
            compared += 1
    assert compared > 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_programs_are_right_in_every_order_and_broken_ones_are_not(seed: int, graph: Callable[..., Graph]) -> None:
    """In the simulator, where a value is what it is made of: without one of its copies no plan gives the outputs."""
    found = graph(_random(seed)[0])
    plan = script(Schedules(found).least().schedule)
    program = emit.program(plan, Execution(memory="pinned", issue="overlapped"), name="parts")
    assert problems(program) == ()
    assert simulate.faults(plan, program, seeds=(1, 2, 3)) == ()
    for step in program.steps:
        if isinstance(step, Copy):
            rest = tuple(
                dataclasses.replace(each, after=tuple(name for name in each.after if name != step.name))
                for each in program.steps
                if each is not step
            )
            assert simulate.faults(plan, dataclasses.replace(program, steps=rest)), step.name


def test_other_sizes_and_exports(
    analyse: Callable[..., Analysis], strategy: Transfer, device: Any, gxx_here: None
) -> None:
    program = _emitted(strategy, analyse(HALVES))
    moved = program.at({"n": 37})
    x = np.arange(37.0)
    y = np.concatenate([2 * x[:18], x[18:] + 1])
    out = device.run(moved, seed=1, inputs={"x": x})
    np.testing.assert_array_equal(out["z"], y * y)
    assert any(name.endswith(".h") for name in export(program, about={}, binaries={}, arch=None))
    mixed = HALVES.replace("x[n // 2:]", "x[512:]")
    assert _emitted(strategy, analyse(mixed)).fixed == ("n",), "the bounds are equal at this size only"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("x[0:n // 2]", "x[0:n / 0]", "x"),
        ("x[0:n // 2]", "x[n:2 * n]", r"x\[1024:2048\] is not within the 1024 elements of x"),
        ("x[0:n // 2]", "x[5:5]", r"x\[5:5\] is not within the 1024"),
        ("x[0:n // 2]", "w[0:5]", "there is no vector 'w'"),
        ("x[0:n // 2]", "x[0-5]", "is not a part of a vector; expected a name and bounds, such as x"),
        ("x[0:n // 2]", "x[0:7]", "and a vector it is made of 7"),
        (
            'reads: ["x[0:n // 2]"]',
            'reads: ["x[0:n // 2]", "x[n // 2:]"]',
            "x would stand for two parts of it; a source",
        ),
        ('["y[n // 2:]"]', '["y[n // 4:n // 2 + n // 4]"]', r"y\[256:512\] has two writers: low and high"),
        ('"y[n // 2:]"', '"y[n // 2 + 1:]"', "and a vector it is made of 512"),
        ("outputs: [y, z]\n", "outputs: [y, z]\nadjacent: [[z, v]]\n", "there is no vector 'v'"),
    ],
)
def test_what_is_wrong_has_a_line(parse: Callable[..., Workload], old: str, new: str, why: str) -> None:
    assert old in HALVES
    with pytest.raises(RequestError, match=why) as caught:
        parse(HALVES.replace(old, new, 1))
    assert len(str(caught.value).splitlines()) == 1


def test_what_nobody_writes_is_refused(parse: Callable[..., Workload]) -> None:
    text = HALVES.replace('reads: ["x[n // 2:]"], writes: ["y[n // 2:]"]', 'reads: ["x[:5]"], writes: ["y[n - 5:]"]')
    with pytest.raises(RequestError, match=r"all reads y\[512:1019\], which is neither an input nor written"):
        parse(text)


def test_the_whole_of_a_vector_is_no_part(graph: Callable[..., Graph]) -> None:
    text = HALVES.replace("x[0:n // 2]", "x[0:n]").replace("y[:n // 2]", "y").replace("y[n // 2:]", "w")
    found = graph(text.replace("x[n // 2:]", "x[0:]"))
    assert not found.cut
    assert {each.name for each in found.vectors} >= {"x", "y"}


def test_python_says_it_too_and_the_file_keeps_it(graph: Callable[..., Graph]) -> None:
    made = KernelGraph("g", elements=8, dtype="float32")
    (x,) = made.inputs("x")
    made.device("k0", reads=("x[0:5]",), writes=("y",), elements=5, body="x + 1")
    made.host("k1", reads=("x[2:7]", "y"), writes=("z",), elements=5, body="x + y")
    made.outputs("z")
    first = made.build()
    again = graph(made.yaml())
    for found in (first, again):
        assert [each.pieces for each in found.cut] == [("x[0:2]", "x[2:5]", "x[5:7]", "x[7:8]")]
        assert found.kernels[1].passed == (("x[2:7]", "y"), ("z",))
        assert found.kernels[1].reads == ("x[2:5]", "x[5:7]", "y")
    assert x == "x"


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


def test_addresses_of_pieces_are_used_again(
    analyse: Callable[..., Analysis], strategy: Transfer, device: Any, gxx_here: None
) -> None:
    """z lies where half of x was, so it can come down with half of y."""
    analysis = analyse(HALVES, "limits: {device_bytes: 20000}")
    assert analysis.report["startups"] == 4
    assert analysis.report["limit"]["packed"] == {"startups": 3, "peak_bytes": 16384}
    program = _emitted(strategy, analysis, allocation="packed")
    assert problems(program) == ()
    x = np.random.default_rng(3).uniform(-1, 1, 1024)
    y = np.concatenate([2 * x[:512], x[512:] + 1])
    for seed in range(3):
        np.testing.assert_array_equal(device.run(program, seed=seed, inputs={"x": x})["z"], y * y)


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
