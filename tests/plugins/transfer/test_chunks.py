"""Vectors in chunks: right in every order that the plan allows, killed when broken; and what the model says of them."""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fusiond.model.inputs.fills import initial
from fusiond.model.language.extents import text_of
from fusiond.model.nouns import Config
from fusiond.model.program import Copy, HostCall, Launch, Memory, Program, Role, Scalar, problems
from fusiond_transfer.analysis import chunks, row_lines
from fusiond_transfer.analysis.cost import costs
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.analysis.script import Script, script
from fusiond_transfer.codegen import chunk_costs, simulate
from fusiond_transfer.codegen.emit import STREAMS, Execution, program
from fusiond_transfer.codegen.pipeline import ORDERS
from fusiond_transfer.frontend import generator
from fusiond_transfer.frontend.graph import Graph
from fusiond_transfer.strategy import Transfer
from tests.plugins.transfer.kernel_graph import KernelGraph

from .conftest import Analyse, Read

Arrays = dict[str, NDArray[Any]]
OVERLAPPED = Execution(memory="pinned", issue="overlapped", chunks=4, least_chunk_bytes=1)
EXECUTIONS = tuple(
    dataclasses.replace(OVERLAPPED, streams=streams, chunk_order=order, send=send, chunks=count)
    for (count, streams), order, send in itertools.product(
        [(3, "engines"), (5, "2"), (4, "3")], ORDERS, ["message", "batch"]
    )
)


def there_and_back(elements: int = 1021) -> Graph:
    """Two kernels between uploads and downloads, of which one comes early: both ways at once."""
    graph = KernelGraph("both", elements=elements)
    graph.inputs("a", "b")
    graph.device("first", reads=("a", "b"), writes=("c", "d"), body={"c": "a * 3 + b", "d": "a - b"})
    graph.device("second", reads=("c",), writes=("e",), body={"e": "c * c"})
    graph.outputs("d", "e")
    return graph.build()


def plan_of(graph: Graph, grouping: str = "interval_stabbing") -> Script:
    return script(Schedules(graph).grouping(grouping))


# --- where is cut ---------------------------------------------------------------------------------------


def test_chunks_tile_their_vectors_and_begin_where_cudamalloc_would() -> None:
    for elements, wanted in itertools.product((2, 65, 1000, 1021, 4096), (2, 3, 8, 64)):
        found = chunks.chunks(plan_of(there_and_back(elements)), wanted, least_bytes=1)
        blocks = -(-elements // 64)
        if min(blocks, wanted) < 2:
            assert found == chunks.WHOLE
            continue
        assert set(found.cells) == {"a", "b", "c", "d", "e"}
        for cut in found.cells.values():
            assert len(cut.numbers) == min(wanted, blocks)
            assert (cut.bounds[0], cut.bounds[-1]) == (0, elements)
            assert all(a < b and a * 4 % 256 == 0 for a, b in itertools.pairwise(cut.bounds))
            sizes = [b - a for a, b in itertools.pairwise(cut.bounds)]
            assert max(sizes) - min(sizes[:-1] or sizes) <= 64, "they are equal but for a block"


def test_what_is_small_is_not_cut_and_stays_in_its_message() -> None:
    graph = KernelGraph("mixed", elements=100_000)
    graph.inputs("a", "b")
    graph.inputs("s", "t", elements=1)
    graph.device("k", reads=("a", "b", "s", "t"), writes=("c",), body={"c": "a * s + b * t"})
    graph.outputs("c")
    plan = plan_of(graph.build())
    found = chunks.chunks(plan, 64)
    assert set(found.cells) == {"a", "b", "c"}
    assert {len(each.numbers) for each in found.cells.values()} == {400_000 // (16 << 10)}
    made = program(plan, Execution(memory="pinned", issue="overlapped", chunks=64), name="x")
    assert [each.source for each in made.steps if isinstance(each, Copy) and len(each.source) > 1] == [("s", "t")]
    assert chunks.counts(plan) == (1, 2, 4, 8, 16)
    small = plan_of(there_and_back(4000))
    assert chunks.counts(small) == (1,)
    assert program(small, dataclasses.replace(OVERLAPPED, least_chunk_bytes=16 << 10), name="x") == program(
        small, Execution(memory="pinned", issue="overlapped"), name="x"
    )


def test_a_kernel_that_needs_all_waits_for_all() -> None:
    graph = KernelGraph("sums", elements=1000)
    graph.inputs("a")
    graph.device("square", reads=("a",), writes=("b",), body={"b": "a * a"})
    graph.device("add", reads=("b",), writes=("s",), body={"s": "sum(b)"}, elements=1)
    graph.device("scale", reads=("b", "s"), writes=("c",), body={"c": "b - s"})
    graph.outputs("c", "s")
    made = program(plan_of(graph.build()), OVERLAPPED, name="x")
    names = [each.name for each in made.steps]
    assert names.index("square#3") < names.index("add") < names.index("scale#0")
    assert simulate.faults(plan_of(graph.build()), made) == ()


# --- right in every order -------------------------------------------------------------------------------


def graphs() -> Iterator[Graph]:
    yield there_and_back()
    for seed in range(8):
        shape = generator.Shape(kernels=6, inputs=3, indegree=(1, 3), outdegree=(1, 2), seed=seed)
        yield generator.random_graph(shape, elements=300)
    graph = KernelGraph("in_place", elements=300)
    graph.inputs("x", "y")
    graph.device("d0", reads=("x", "y"), writes=("u",), in_place={"u": "x"})
    graph.host("h0", reads=("u",), writes=("v",))
    graph.device("d1", reads=("v", "y"), writes=("w",), in_place={"w": "v"})
    graph.outputs("w")
    yield graph.build()


@pytest.mark.campaign
def test_every_order_gives_what_the_graph_gives() -> None:
    cut = 0
    for graph in graphs():
        for grouping, execution in itertools.product(("interval_stabbing", "min_residency", "separate"), EXECUTIONS):
            plan = plan_of(graph, grouping)
            made = program(plan, execution, name="x")
            cut += any(each.part_of for each in made.buffers)
            assert problems(made) == ()
            assert simulate.faults(plan, made) == (), (graph.name, grouping, execution)
    assert cut > 100


def test_a_loop_in_chunks() -> None:
    graph = KernelGraph("loop", elements=500)
    graph.inputs("x", "f")
    graph.host("h", reads=("x",), writes=("r",), body={"r": "x + 1"})
    graph.device("d", reads=("r", "f"), writes=("x2",), body={"x2": "r * f"})
    graph.outputs("x2")
    graph.loop({"x": "x2"})
    plan = plan_of(graph.build())
    for execution in EXECUTIONS:
        made = program(plan, execution, name="x")
        assert any(each.part_of for each in made.buffers)
        assert simulate.faults(plan, made) == ()


def expected(data: Arrays) -> Arrays:
    with np.errstate(over="ignore"):
        c = data["a"] * np.uint32(3) + data["b"]
        return {"d": data["a"] - data["b"], "e": c * c}


def given(made: Program, seed: int = 0) -> Arrays:
    return {each.name: initial(each, seed) for each in made.buffers if each.role is Role.INPUT}


def test_chunks_compute_what_numpy_does(device: Any) -> None:
    """On the cpu device: copies late, early and in a random order; sizes that no chunk divides."""
    for elements, execution in itertools.product((1021, 130), EXECUTIONS[::3]):
        made = program(plan_of(there_and_back(elements)), execution, name="x")
        wanted = expected(given(made))
        for seed in (0, 1, 2):
            found = device.run(made, seed=seed, kind=seed % 2)
            for name, values in wanted.items():
                np.testing.assert_array_equal(found[name], values, err_msg=f"{execution} {seed}")


BLUR = """\
extern "C" __global__ void blur(const float* image, const float* weights, float* out, int height, int width) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float sum = 0;
    for (int k = 0; k < width; ++k) sum += weights[k] * image[y * width + (x + k) % width];
    out[y * width + x] = sum;
}
extern "C" __global__ void twice(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
"""
ROWS = """
graph: rows
sizes: {height: 61, width: 20}
elements: height * width
dtype: float32
vectors: {weights: {elements: width}}
inputs: [image, weights]
outputs: [out]
kernels:
  - {name: blur, on: device, reads: [image, weights], writes: [soft], source: k.cu, entry: blur,
     values: [height, width], grid: ["ceil_div(width, 16)", "ceil_div(height, 4)"], block: [16, 4],
     rows: height, whole: [weights]}
  - {name: twice, on: device, reads: [soft], writes: [big], source: k.cu, entry: twice, values: [height * width],
     grid: ["ceil_div(height * width, 64)"], block: [64], rows: height}
  - {name: add, on: host, reads: [big, image], writes: [out], body: "big + image"}
"""


def test_rows_that_are_declared(graph: Read, device: Any, tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(BLUR)
    found = graph(ROWS)
    plan = plan_of(found)
    for order, streams in itertools.product(ORDERS, STREAMS):
        execution = dataclasses.replace(OVERLAPPED, chunk_order=order, streams=streams)
        made = program(plan, execution, name="x")
        assert len([each for each in made.steps if isinstance(each, Launch)]) == 8
        assert len([each for each in made.steps if isinstance(each, HostCall)]) == 4
        assert simulate.faults(plan, made) == ()
        data = given(made)
        image = data["image"].reshape(61, 20)
        soft = sum(data["weights"][k] * np.roll(image, -k, axis=1) for k in range(20))
        for seed in range(3):
            out = device.run(made, seed=seed, kind=seed % 2)["out"]
            np.testing.assert_allclose(out, (2 * soft + image).reshape(-1), rtol=1e-4)


def test_other_sizes_are_cut_elsewhere(graph: Read, tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(BLUR)
    second = program(plan_of(graph(ROWS)), OVERLAPPED, name="x").buffer("image#1")
    # As jobs that are there already have it: a Program's key is made of its formulas.
    assert text_of(second.offset_bytes) == "4 * ((16 * (ceil_div(height, 16) // 4)) * ((height * width) / height))"
    for sizes in ({"height": 200}, {"width": 33}, {"height": 4000, "width": 3}):
        there = graph(ROWS, f"sizes: {sizes}")
        fresh = program(plan_of(there), OVERLAPPED, name="x")
        moved = program(plan_of(graph(ROWS)), OVERLAPPED, name="x").at(sizes)
        assert problems(moved) == ()
        assert [(each.name, each.elements) for each in moved.buffers] == [
            (each.name, each.elements) for each in fresh.buffers
        ] or "width" in sizes, "where rows begin at 256 bytes follows from the width of the job"
        assert sum(each.elements for each in moved.buffers if each.part_of == "image") == moved.buffer("image").elements


# --- broken on purpose ----------------------------------------------------------------------------------


def mutants(made: Program) -> Iterator[tuple[str, Program]]:
    """A wait that is missing, a chunk off by one, the last one dropped, a download before its kernel."""

    def with_steps(steps: list[Any]) -> Program:
        return dataclasses.replace(made, steps=tuple(steps))

    for at, step in enumerate(made.steps):
        steps = list(made.steps)
        for name in step.after:
            steps[at] = dataclasses.replace(step, after=tuple(each for each in step.after if each != name))
            yield f"{step.name} does not wait for {name}", with_steps(steps)
        if isinstance(step, Launch) and step.name.endswith("#1"):
            scalars = tuple(
                dataclasses.replace(each, value=int(each.value) - 1) if isinstance(each, Scalar) else each
                for each in step.arguments
            )
            steps[at] = dataclasses.replace(step, arguments=scalars)
            yield f"{step.name} makes one element less", with_steps(steps)
    last = max(int(step.name.partition("#")[2][:1]) for step in made.steps if "#" in step.name)
    for kind in (Copy, Launch):
        dropped = [each for each in made.steps if isinstance(each, kind) and f"#{last}" in each.name]
        for step in dropped:
            rest = [
                dataclasses.replace(each, after=tuple(name for name in each.after if name != step.name))
                for each in made.steps if each is not step
            ]  # fmt: skip
            yield f"{step.name} is left out", with_steps(rest)
    for at, step in enumerate(made.steps):
        if step.name.startswith("down_") and "#" in step.name:
            steps = [each for each in made.steps if each is not step]
            kernel = next(number for number, each in enumerate(steps) if each.name in step.after)
            steps.insert(kernel, dataclasses.replace(step, after=()))
            yield f"{step.name} comes before what it waited for", with_steps(steps)
        del at
    for at, buffer in enumerate(made.buffers):
        if buffer.part_of in ("a@device", "b", "e") and buffer.name.endswith("#1"):
            buffers = list(made.buffers)
            buffers[at] = dataclasses.replace(buffer, offset_bytes=buffer.offset_bytes + 4)
            yield f"{buffer.name} begins one element late", dataclasses.replace(made, buffers=tuple(buffers))


def test_mutants_are_killed_by_the_simulator_and_on_the_device(device: Any) -> None:
    plan = plan_of(there_and_back(1021))
    made = program(plan, dataclasses.replace(OVERLAPPED, chunks=3), name="x")
    wanted = [expected(given(made, seed // 3)) for seed in range(6)]
    alive_in_simulator, count = [], 0
    for name, mutant in mutants(made):
        count += 1
        if not simulate.faults(plan, mutant):
            alive_in_simulator.append(name)
        found = [device.run(mutant, seed=seed, kind=seed % 2) for seed in range(6)]
        same = all(np.array_equal(a[output], b[output]) for a, b in zip(found, wanted, strict=True) for output in b)
        assert not same, f"alive on the device: {name}"
    assert count >= 20
    assert all("one element less" in name for name in alive_in_simulator), "lengths are for the device"


@pytest.mark.slow
def test_a_planner_that_forgets_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last chunk is dropped; a chunk reads its neighbour; what is read whole is not waited for."""
    from fusiond_transfer.codegen import emit, pipeline

    def seen() -> bool:
        for graph in graphs():
            for execution in EXECUTIONS:
                plan = plan_of(graph)
                try:
                    made = program(plan, execution, name="x")
                except (KeyError, IndexError):
                    return True
                if problems(made) or simulate.faults(plan, made):
                    return True
        return False

    assert not seen()
    flushed = pipeline._Run.flushed
    monkeypatch.setattr(pipeline._Run, "flushed", lambda self: flushed(self)[:-1])
    assert seen()
    monkeypatch.undo()
    part = emit.part
    monkeypatch.setattr(emit, "part", lambda buffer, number: part(buffer, max(0, number - 1)))
    assert seen()
    monkeypatch.undo()
    monkeypatch.setattr(emit._Steps, "_atoms", lambda self, buffers: dict.fromkeys(buffers))
    assert seen()
    monkeypatch.undo()
    monkeypatch.setattr(pipeline._Run, "takes", lambda self, op, cut: True)
    monkeypatch.setattr(pipeline._Run, "conflicts", lambda self, move, cells: False)
    right = pipeline.items

    def unflushed(script: Script, cut: Any, order: str, *, batches: bool = False) -> Any:
        return sorted(right(script, cut, order, batches=batches), key=lambda each: each.chunk or 0)

    monkeypatch.setattr(pipeline, "items", unflushed)
    assert seen()


# --- how long -------------------------------------------------------------------------------------------


def test_the_model_chooses_chunks_where_they_pay() -> None:
    for elements, wanted in ((4_000, 1), (64_000_000, 8)):
        graph = there_and_back(elements)
        plan = plan_of(graph)
        found = chunk_costs.best(plan, costs(graph, {}), chunks.counts(plan), OVERLAPPED)
        assert found is not None
        assert found.count >= wanted
        assert found.span_us <= found.whole_us
        assert max(found.busy_us.values()) < found.ideal_us <= sum(found.busy_us.values())


@pytest.mark.slow
def test_the_space_has_chunks_where_something_can_be_cut(analyse: Analyse, strategy: Transfer) -> None:
    analysis = analyse("fig2", "sizes: {elements: 100000}")
    space = strategy.space(analysis, {})
    names = {each.name: each.values for each in space.parameters}
    assert names["chunks"] == (1, 2, 4, 8, 16)
    assert names["streams"] == STREAMS
    assert "chunks" not in {each.name for each in strategy.space(analyse("fig2"), {}).parameters}
    cut = [config for config in space.points() if config.get("chunks", 1) != 1]
    assert {config["memory"] for config in cut} == {"pinned"}
    for config in cut[:: len(cut) // 12]:
        made = strategy.emit(analysis, config, {})
        assert isinstance(made, Program), made
        assert any(each.part_of for each in made.buffers)
    analysis = analyse("horner", "sizes: {elements: 1000000}")
    space = strategy.space(analysis, {})
    seeds = dict(strategy.seeds(analysis, space, {}))
    assert isinstance(seeds["chunks"], Config)
    assert all(not space.problems(config) for config in seeds.values())


def test_nothing_of_the_baseline_is_cut(analyse: Analyse, strategy: Transfer) -> None:
    """What a candidate gains over separate messages it gains by its messages and its chunks."""
    analysis = analyse("fig2", "sizes: {elements: 100000}")
    for baseline in strategy.baselines(analysis):
        for config in baseline.space.points():
            made = baseline.emit(config)
            assert not any(each.part_of for each in made.buffers)
            assert {each.memory for each in made.buffers} <= {Memory.DEVICE, Memory.PINNED, Memory.PAGEABLE}


# --- kernels over parts of vectors ----------------------------------------------------------------------


IN_HALVES = """\
graph: halves
sizes: {n: 50000}
elements: n
dtype: float64
inputs: [x]
outputs: [y, z]
kernels:
  - {name: low, on: device, reads: ["x[0:n // 2]"], writes: ["y[:n // 2]"], body: 2 * x}
  - {name: high, on: host, reads: ["x[n // 2:]"], writes: ["y[n // 2:]"], body: x + 1}
  - {name: all, on: device, reads: [y], writes: [z], body: y * y}
"""
FOUR_CHUNKS = Execution(memory="pinned", issue="overlapped", chunks=4, least_chunk_bytes=1)


def plan_of_least(graph: Graph) -> Script:
    return script(Schedules(graph).least.schedule)


def test_halves_are_halves_of_one_line(graph: Read) -> None:
    plan = plan_of_least(graph(IN_HALVES))
    (line,), _ = row_lines.lines(plan)
    assert (line.bounds, line.equal) == ((0, 25000, 50000), ())
    found = chunks.chunks(plan, 4)
    assert found.cells["z"].bounds == (0, 12512, 25000, 37512, 50000)
    assert {name: (call.first, len(call.numbers)) for name, (_, call) in found.calls.items()} == {
        "low": (0, 2), "high": (2, 2), "all": (0, 4)
    }  # fmt: skip
    made = program(plan, FOUR_CHUNKS, name="x")
    names = [each.name for each in made.steps]
    assert names.index("all#0") < names.index("low#1"), "each part of the chain follows its own chunk"
    assert simulate.faults(plan, made) == ()


@pytest.mark.parametrize("order", ["depth_first", "breadth_first"])
def test_a_job_has_chunks_of_parts_and_they_move_with_the_sizes(
    order: str, analyse: Analyse, strategy: Transfer, device: Any
) -> None:
    analysis = analyse(IN_HALVES)
    assert analysis.report["chunks"]["row_wise"] == ["low", "high", "all"]
    assert analysis.report["chunks"]["counts"] == [1, 2, 4, 8, 16]
    config = {"grouping": "interval_stabbing", "memory": "pinned", "issue": "overlapped", "send": "message",
              "chunks": 8, "streams": "engines", "chunk_order": order}  # fmt: skip
    if analysis.payload.offer.reordered:
        config["order"] = "given"
    made = strategy.emit(analysis, Config.of(config), {})
    assert isinstance(made, Program), made
    assert made.fixed == ()
    assert len([each for each in made.steps if isinstance(each, Launch)]) == 12
    for n in (50_000, 20_011):
        there = made.at({"n": n})
        assert problems(there) == ()
        x = np.random.default_rng(n).uniform(-1, 1, n)
        y = np.concatenate([2 * x[: n // 2], x[n // 2 :] + 1])
        for seed in range(3):
            out = device.run(there, seed=seed, inputs={"x": x})
            np.testing.assert_array_equal(out["y"], y)
            np.testing.assert_array_equal(out["z"], y * y)


def test_small_pieces_are_in_one_chunk(graph: Read) -> None:
    """Ten pieces, of which four are together as large as the others are each; they cross in one message."""
    bounds = [0, 100, 200, 300, 400, 4400, 8400, 12400, 16400, 20400, 24400]
    kernels = "".join(
        f"  - {{name: k{at}, on: device, reads: ['x[{a}:{b}]'], writes: ['y[{a}:{b}]'], body: 2 * x}}\n"
        for at, (a, b) in enumerate(itertools.pairwise(bounds))
    )
    text = f"graph: pieces\nelements: 24400\ndtype: float64\ninputs: [x]\noutputs: [z]\nkernels:\n{kernels}"
    plan = plan_of_least(graph(text + "  - {name: all, on: device, reads: [y], writes: [z], body: y + 1}\n"))
    found = chunks.chunks(plan, 6, least_bytes=1)
    assert found.cells["z"].bounds == (0, 400, 4400, 8400, 12400, 16400, 20400, 24400)
    made = program(plan, Execution(memory="pinned", issue="overlapped", chunks=6, least_chunk_bytes=1), name="x")
    first = next(each for each in made.steps if isinstance(each, Copy) and each.source[0] == "x[0:100]#0")
    assert first.source == tuple(f"x[{a}:{a + 100}]#0" for a in (0, 100, 200, 300))
    assert simulate.faults(plan, made) == ()
    assert chunks.chunks(plan, 64, least_bytes=1).cells["z"].bounds[:3] == (0, 300, 400), "three of them fill a chunk"


def test_rows_that_do_not_meet_have_a_reason(analyse: Analyse) -> None:
    text = """\
graph: differences
elements: 50000
dtype: float64
vectors: {y: {elements: 49999}, w: {elements: 49999}}
inputs: [x]
outputs: [w, v]
kernels:
  - {name: next, on: device, reads: ["x[:49999]", "x[1:]"], writes: [y]}
  - {name: twice, on: device, reads: [y], writes: [w], body: 2 * y}
  - {name: shift, on: device, reads: ["x[1:]", y], writes: ["v[:49999]"], body: x + y}
  - {name: last, on: device, reads: ["x[49999:]"], writes: ["v[49999:]"], body: x}
"""
    report = analyse(text).report["chunks"]
    assert report["row_wise"] == ["next", "twice", "shift", "last"][1:3]
    assert report["not_row_wise"] == {
        "next": "its rows of x lie 1 apart from those of itself", "last": "v[49999:50000] has one element"
    }  # fmt: skip
    shifted = text.replace('"x[1:]", y]', '"x[1:]", "x2[:49999]"]').replace("x + y", "x + x2")
    shifted = shifted.replace("inputs: [x]", "inputs: [x, x2]")
    shifted += "  - {name: same, on: device, reads: [x, x2], writes: [u], body: x + x2}\n"
    report = analyse(shifted.replace("[w, v]", "[w, v, u]")).report["chunks"]
    assert report["not_row_wise"]["same"] == "its rows of x2 lie 1 apart from those of shift"


def test_lengths_that_are_equal_by_chance_stay(graph: Read) -> None:
    """Where `all` has as many rows as x has elements at this size only, chunks are for this size only."""
    text = IN_HALVES.replace("sizes: {n: 50000}", "sizes: {n: 50000, m: 25000}").replace("x[n // 2:]", "x[m:]")
    assert program(plan_of_least(graph(text)), FOUR_CHUNKS, name="x").fixed == ("m", "n")
