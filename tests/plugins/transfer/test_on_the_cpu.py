"""Plans on the cpu device: against NumPy and SciPy, with copies late and early, and broken on purpose."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg
from numpy.typing import NDArray

from fusiond.devices.base import ExecutionError
from fusiond.model.inputs.fills import initial
from fusiond.model.nouns import Analysis
from fusiond.model.program import Copy, Fill, Program, Role
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.analysis.script import script
from fusiond_transfer.codegen.emit import Execution, program
from fusiond_transfer.frontend import generator
from fusiond_transfer.frontend.generator import Shape
from fusiond_transfer.frontend.graph import Graph, GraphKernel, Text, Vector
from fusiond_transfer.strategy import Transfer
from tests.plugins.transfer.kernel_graph import KernelGraph

from .conftest import Analyse, Read
from .one_memory_chain import config_with

Arrays = dict[str, NDArray[Any]]


def given(made: Program, seed: int) -> Arrays:
    return {each.name: initial(each, seed) for each in made.buffers if each.role is Role.INPUT}


def ways_of(graph: Graph) -> list[tuple[str, Program]]:
    """A few Programs of a graph: the unfused, the fewest on one stream and overlapped, in batches, with allocations."""
    schedules = Schedules(graph)
    wanted = [
        ("separate", Execution()),
        ("separate", Execution(issue="overlapped", memory="pinned")),
        ("interval_stabbing", Execution()),
        ("min_residency", Execution(issue="overlapped", memory="pinned")),
        ("interval_stabbing", Execution(issue="overlapped", send="batch")),
    ]
    if not graph.loop:
        wanted += [
            ("min_residency", Execution(allocation="group", issue="overlapped")),
            ("separate", Execution(allocation="each")),
            ("interval_stabbing", Execution(allocation="pooled", issue="overlapped")),
            ("interval_stabbing", Execution(allocation="one")),
        ]
    return [
        (f"{name} {execution}", program(script(schedules.grouping(name)), execution, name="x"))
        for name, execution in wanted
    ]


def check(graph: Graph, device: Any, oracle: Callable[[Arrays], Mapping[str, NDArray[Any]]], rtol: float = 0.0) -> None:
    """Every execution, with late, early and random copies, on two sets of data."""
    for name, made in ways_of(graph):
        for seed in (0, 1, 2, 5):
            wanted = oracle(given(made, seed // 3))
            found = device.run(made, seed=seed, kind=seed % 2)
            assert set(found) == set(wanted)
            for output, values in wanted.items():
                np.testing.assert_allclose(
                    found[output], values.reshape(-1), rtol=rtol, atol=rtol, err_msg=f"{name} {output}"
                )


# --- graphs that compute something known ----------------------------------------------------------------


def test_horner_is_the_polynomial(graph: Read, device: Any) -> None:
    def oracle(data: Arrays) -> Arrays:
        found = data["a10"].copy()
        for degree in range(9, -1, -1):
            found = found * data["x"] + data[f"a{degree}"]  # uint32 wraps round
        return {"p0": found}

    check(graph("horner", "sizes: {elements: 300}"), device, oracle)


def test_the_matrix_product_in_blocks(graph: Read, device: Any) -> None:
    n = 13

    def oracle(data: Arrays) -> Arrays:
        a, b = (
            np.block([[data[f"{letter}{i}{j}"].reshape(n, n) for j in (0, 1)] for i in (0, 1)]).astype(np.uint32)
            for letter in "AB"
        )
        c = a @ b
        return {f"C{i}{j}": c[i * n : (i + 1) * n, j * n : (j + 1) * n] for i in (0, 1) for j in (0, 1)}

    check(graph("matmul", f"sizes: {{n: {n}}}"), device, oracle)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cholesky", pytest.param("cholesky_host_syrk", marks=pytest.mark.slow)])
def test_cholesky_in_blocks(name: str, graph: Read, device: Any) -> None:
    n = 7

    def oracle(data: Arrays) -> Arrays:
        a = np.zeros((4 * n, 4 * n))
        for i in range(4):
            for j in range(i + 1):
                a[i * n : (i + 1) * n, j * n : (j + 1) * n] = data[f"A{i}{j}"].reshape(n, n)
        lower = np.tril(a)
        found = scipy.linalg.cholesky(lower + np.tril(a, -1).T + 8 * n * np.eye(4 * n), lower=True)
        return {
            f"L{i}{j}": found[i * n : (i + 1) * n, j * n : (j + 1) * n] for i in range(4) for j in range(i + 1)
        }  # fmt: skip

    check(graph(name, f"sizes: {{n: {n}}}"), device, oracle, rtol=1e-10)


def laplacian(side: int) -> Any:
    line = scipy.sparse.diags([-1.0, 2.0, -1.0], [-1, 0, 1], shape=(side, side))
    eye = scipy.sparse.identity(side)
    return scipy.sparse.csr_matrix(scipy.sparse.kron(line, eye) + scipy.sparse.kron(eye, line))


def cg_steps(data: Arrays, side: int, steps: int) -> Arrays:
    """Conjugate gradient from any state, in the textbook's words."""
    a = laplacian(side)
    x, r, p, rr = data["x"], data["r"], data["p"], data["rr"][0]
    for _ in range(steps):
        q = a @ p
        alpha = rr / (p @ q)
        x, r = x + alpha * p, r - alpha * q
        rr, old = r @ r, rr
        p = r + rr / old * p
    return {"x_next": x, "r_next": r, "p_next": p, "rr_next": np.array([rr])}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "steps"), [("cg", 4), ("cg_step", 1)])
def test_conjugate_gradient(name: str, steps: int, graph: Read, device: Any) -> None:
    side = 6
    check(graph(name, f"sizes: {{side: {side}}}"), device, lambda data: cg_steps(data, side, steps), rtol=1e-9)


def test_conjugate_gradient_solves_the_system(graph: Read, device: Any) -> None:
    """As many iterations as it takes: SciPy's solution."""
    side = 5
    loop = dataclasses.replace(graph("cg", f"sizes: {{side: {side}}}"), iterations=25)
    made = program(script(Schedules(loop).grouping("interval_stabbing")), Execution(issue="overlapped"), name="x")
    f = np.random.default_rng(0).standard_normal(side * side)
    state = {"x": np.zeros(side * side), "r": f, "p": f, "rr": np.array([f @ f])}
    found = device.run(made, inputs=state)
    np.testing.assert_allclose(found["x_next"], scipy.sparse.linalg.spsolve(laplacian(side).tocsc(), f), rtol=1e-8)


# --- the default body -----------------------------------------------------------------------------------


def mixed(seed: int, output: int, operands: list[NDArray[Any]], length: int) -> NDArray[Any]:
    """The default body in NumPy: a hash of everything that is read."""
    h = step(np.full(length, seed, np.uint32), np.uint32(output + 1))
    at = np.arange(length)
    for operand in operands:
        words = word(operand)
        if len(words) <= length:
            h = step(h, words[at % len(words)])
            continue
        for begin in range(0, len(words), length):
            part = words[begin : begin + length]
            h[: len(part)] = step(h[: len(part)], part)
    return h


def step(h: NDArray[Any], value: Any) -> NDArray[Any]:
    h = (h ^ value) * np.uint32(0x9E3779B1)
    return np.asarray(h ^ (h >> np.uint32(15)), np.uint32)


def word(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.itemsize == 4:
        return values.view(np.uint32)
    bits = values.view(np.uint64)
    return (bits & np.uint64(0xFFFFFFFF)).astype(np.uint32) ^ (bits >> np.uint64(32)).astype(np.uint32) * np.uint32(
        0x85EBCA6B
    )


def made_of(h: NDArray[Any], dtype: str) -> NDArray[Any]:
    match dtype:
        case "float32":
            return ((h >> np.uint32(8)) / np.float32(2**24)).astype(np.float32)
        case "float64":
            return h / np.float64(2**32)
        case "int64" | "uint64":
            return (h.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(dtype)
    return h.view(dtype)


def plain_run(graph: Graph, data: Arrays) -> Arrays:
    """A graph of default bodies, in NumPy, in one memory."""
    from fusiond.model.keys import text_key

    values = dict(data)
    for kernel in graph.kernels:
        seed = int(text_key(kernel.name)[:8], 16)
        read = [values[name] for name in kernel.reads]
        for position, name in enumerate(kernel.writes):
            vector = graph.vector(name)
            values[name] = made_of(mixed(seed, position, read, vector.elements), vector.dtype)
    return {name: values[name] for name in graph.outputs}


def test_figure_2_computes_its_hashes(graph: Read, device: Any) -> None:
    found = graph("fig2", "sizes: {elements: 301}")
    check(found, device, lambda data: plain_run(found, data))


@pytest.mark.slow
def test_vectors_of_every_type_and_of_different_lengths(device: Any) -> None:
    types = ("int32", "uint32", "int64", "uint64", "float32", "float64")
    graph = KernelGraph("types")
    for number, dtype in enumerate(types):
        graph.inputs(f"a{number}", elements=17 * number + 5, dtype=dtype)
    inputs = tuple(f"a{number}" for number in range(len(types)))
    graph.device("d0", reads=inputs, writes=("b0", "b1"), elements=40, dtype="float64")
    graph.host("h0", reads=(*inputs, "b0"), writes=("c0",), elements=9, dtype="int64")
    graph.device("d1", reads=("c0", "b1"), writes=("e0",), elements=70, dtype="float32")
    graph.host("h1", reads=("e0",), writes=("f0",), elements=3, dtype="uint64")
    graph.host("h2", reads=("e0", "f0"), writes=("g0",), elements=3, dtype="int32")
    graph.outputs("e0", "f0", "g0")
    found = graph.build()
    check(found, device, lambda data: plain_run(found, data))


@pytest.mark.slow
def test_random_graphs_compute_what_numpy_does(device: Any) -> None:
    for seed in range(6):
        shape = Shape(kernels=8, inputs=4, indegree=(1, 2), outdegree=(1, 2), seed=seed)
        found = generator.random_graph(shape, elements=33)
        check(found, device, lambda data, found=found: plain_run(found, data))  # type: ignore[misc]


# --- the whole space, and mutants -----------------------------------------------------------------------


def gives_what_its_baseline_gives(strategy: Transfer, analysis: Analysis, device: Any) -> None:
    """Every point of the space."""
    baseline = strategy.baselines(analysis)[0]
    plain = device.run(baseline.emit(next(baseline.space.points())), seed=0)
    done: set[str] = set()
    for number, point in enumerate(strategy.space(analysis, {}).points()):
        made = strategy.emit(analysis, point, {})
        assert isinstance(made, Program), point
        if made.key in done:
            continue
        done.add(made.key)
        found = device.run(made, seed=number % 3, kind=number % 2)  # late, early, random copies, all on data 0
        for output, values in plain.items():
            np.testing.assert_array_equal(found[output], values, err_msg=f"{point} {output}")
    assert done


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("text", ["fig2\nallocations: counted", "cg", "horner", "matmul", "random24"])
def test_every_point_of_a_space_gives_the_outputs_of_its_baseline(
    text: str, analyse: Analyse, strategy: Transfer, device: Any
) -> None:
    name, *lines = text.splitlines()
    sizes = {"cg": "{side: 4}", "matmul": "{n: 6}"}.get(name, "{elements: 65}")
    analysis = analyse(name, f"sizes: {sizes}", *lines)
    gives_what_its_baseline_gives(strategy, analysis, device)


def test_mutants_are_killed_on_the_device(graph: Read, device: Any) -> None:
    """A message that is missing, a wait that is missing, neighbours swapped: wrong outputs, whatever the data."""
    plan = script(Schedules(graph("fig2", "sizes: {elements: 301}")).grouping("interval_stabbing"))
    made = program(plan, Execution(issue="overlapped"), name="x")
    right = [device.run(made, seed=seed, kind=seed % 2) for seed in range(3)]
    mutants = []
    for at, step_ in enumerate(made.steps):
        if isinstance(step_, Copy) and step_.source[1:]:
            rest = dataclasses.replace(step_, source=step_.source[1:], target=step_.target[1:])
            mutants.append((f"{step_.name}: the first vector is left out", at, rest))
        if step_.after:
            mutants.append((f"{step_.name}: waits for nothing", at, dataclasses.replace(step_, after=())))
    assert len(mutants) >= 8
    for name, at, changed in mutants:
        mutant = dataclasses.replace(made, steps=(*made.steps[:at], changed, *made.steps[at + 1 :]))
        found = [device.run(mutant, seed=seed, kind=seed % 2) for seed in range(3)]
        same = all(
            np.array_equal(a[output], b[output]) for a, b in zip(right, found, strict=True) for output in a
        )  # fmt: skip
        assert not same, f"alive: {name}"


def test_what_is_freed_too_early_is_a_crash_on_the_device(graph: Read, device: Any) -> None:
    plan = script(Schedules(graph("fig2", "sizes: {elements: 301}")).grouping("min_residency"))
    made = program(plan, Execution(allocation="group"), name="x")
    free = next(index for index, step in enumerate(made.steps) if step.name.startswith("free_"))
    steps = list(made.steps)
    steps.insert(free - 1, steps.pop(free))
    with pytest.raises(ExecutionError, match="not allocated"):
        device.run(dataclasses.replace(made, steps=tuple(steps)))


def test_odd_sizes_and_single_elements(analyse: Analyse, strategy: Transfer, device: Any) -> None:
    for elements in (1, 2, 255, 257):
        analysis = analyse("fig2", f"sizes: {{elements: {elements}}}")
        made = strategy.emit(analysis, config_with(memory="pageable"), {})
        assert isinstance(made, Program)
        graph = analysis.payload.asked.graph
        found = device.run(made, seed=2)
        for name, values in plain_run(graph, given(made, 0)).items():
            np.testing.assert_array_equal(found[name], values)


# --- the smallest and oddest graphs ---------------------------------------------------------------------


GRAPHS = {
    "all on the host": "inputs: [a]\noutputs: [b]\nkernels: [{name: k, on: host, reads: [a], writes: [b]}]",
    "nothing is read": "inputs: []\noutputs: [b]\nkernels: [{name: k, on: device, writes: [b]}]",
    "an unused input": "inputs: [a, z]\noutputs: [b]\nkernels: [{name: k, on: device, reads: [a], writes: [b]}]",
    "an output that nobody wants": (
        "inputs: [a]\noutputs: [b]\nkernels: [{name: k, on: device, reads: [a], writes: [b, c]}]"
    ),
    "a vector read twice": (
        "inputs: [a]\noutputs: [b]\nkernels: [{name: k, on: device, reads: [a, a], writes: [b], body: a * a}]"
    ),
    **{
        f"a {side} loop": "inputs: [a]\noutputs: [b]\nloop: true\ncarried: {a: b}\n"
        f"kernels: [{{name: k, on: {side}, reads: [a], writes: [b]}}]"
        for side in ("device", "host")
    },
    "all is placed": (
        "inputs: [a]\nplaced: [a]\noutputs: [b]\nkernels: [{name: k, on: device, reads: [a], writes: [b]}]"
    ),
}


SLOW = ("an output that nobody wants", "nothing is read", "a host loop", "a vector read twice")


@pytest.mark.parametrize("name", [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW)) for each in GRAPHS])
def test_every_point_of_its_space_is_right(name: str, analyse: Analyse, strategy: Transfer, device: Any) -> None:
    analysis = analyse(f"graph: edge\nsizes: {{elements: 7}}\n{GRAPHS[name]}\n")
    assert strategy.describe(analysis)
    assert analysis.report["optimal"]
    gives_what_its_baseline_gives(strategy, analysis, device)
    assert strategy.probes(analysis)


CLASHES = {
    "vectors called like allocations": (
        "inputs: [host, a, streams]\noutputs: [arena0, d]\nkernels:\n"
        "  - {name: k, on: device, reads: [host, a], writes: [b]}\n"
        "  - {name: m, on: host, reads: [b, streams], writes: [c]}\n"
        "  - {name: n, on: device, reads: [c], writes: [arena0]}\n"
        "  - {name: o, on: host, reads: [streams], writes: [d]}"
    ),
    "an array beside the arena of the host": (
        "inputs: [a, host]\noutputs: [c, e]\nkernels:\n"
        "  - {name: k, on: device, reads: [a], writes: [c]}\n"
        "  - {name: m, on: host, reads: [host], writes: [e]}"
    ),
    "kernels called like copies": (
        "inputs: [a]\noutputs: [c]\nkernels:\n"
        "  - {name: down_up_k, on: device, reads: [a], writes: [b]}\n"
        "  - {name: up_k, on: host, reads: [b], writes: [d]}\n"
        "  - {name: k, on: device, reads: [d], writes: [c]}"
    ),
    "kernels called like what is given and taken": (
        "inputs: [a]\noutputs: [c]\nkernels:\n"
        "  - {name: give_a, on: device, reads: [a], writes: [b], in_place: {b: a}}\n"
        "  - {name: take_c, on: device, reads: [b], writes: [c], in_place: {c: b}}"
    ),
}


@pytest.mark.parametrize("name", CLASHES)
def test_the_names_of_the_user_meet_no_names_of_ours(
    name: str, analyse: Analyse, strategy: Transfer, device: Any
) -> None:
    analysis = analyse(f"graph: clash\nsizes: {{elements: 7}}\n{CLASHES[name]}\n")
    baseline = strategy.baselines(analysis)[0]
    wanted = device.run(baseline.emit(next(baseline.space.points())))
    config = next(each for each in strategy.space(analysis, {}).points() if each["grouping"] == "interval_stabbing")
    made = strategy.emit(analysis, config, {})
    assert isinstance(made, Program)
    arenas = {each.arena for each in made.buffers} - {None}
    assert not arenas & {each.name for each in made.buffers if each.arena is None}
    for output, values in device.run(made, seed=1).items():
        np.testing.assert_array_equal(values, wanted[output])


# --- plans through the cuda device, over the stand-in driver --------------------------------------------


N = 40
DOUBLE = Text(text="// x += y\n", entry="add", values=(N,), block=(32, 1, 1), grid=(2, 1, 1))
"""The stand-in has few kernels; `add` on one storage twice doubles it."""
HOST = Text(
    text='extern "C" void joined(const float* a, const float* b, float* c, int n) {\n'
    "    for (int i = 0; i < n; ++i) c[i] = a[i] + 3 * b[i];\n}\n",
    entry="joined",
    values=(N,),
)


def doubled(name: str, old: str, new: str) -> GraphKernel:
    return GraphKernel(name=name, on="device", reads=(old,), writes=(new,), in_place=((new, old),), body=DOUBLE)


def joined(name: str, a: str, b: str, c: str) -> GraphKernel:
    return GraphKernel(name=name, on="host", reads=(a, b), writes=(c,), body=HOST)


def mixed_graph(*, host: bool) -> Graph:
    """Four vectors up, work on both sides, three down (without host kernels where a CUDA graph shall hold it)."""
    kernels = [doubled("d0", "a", "a1"), doubled("d1", "b", "b1")]
    outputs = ["a1"]
    if host:
        kernels += [joined("h0", "a1", "b1", "c"), doubled("d2", "c", "c1"), joined("h1", "c1", "k", "e")]
        outputs = ["c1", "e"]
    kernels += [doubled("d3", "k2", "k3")]
    names = ["a", "b", "k", "k2", *(name for kernel in kernels for name in kernel.writes)]
    fill = Fill(kind="integers", low=0, high=1000)
    return Graph(
        name="mixed", vectors=tuple(Vector(name=name, dtype="float32", elements=N, fill=fill) for name in names),
        kernels=tuple(kernels), inputs=("a", "b", "k", "k2") if host else ("a", "b", "k2"),
        outputs=(*outputs, "k3") if host else (*outputs, "b1", "k3"),
    )  # fmt: skip


def wanted(made: Program, *, host: bool) -> dict[str, Any]:
    data = {each.name: initial(each, 0) for each in made.buffers if each.role is Role.INPUT}
    a1, b1, k3 = 2 * data["a"], 2 * data["b"], 2 * data["k2"]
    if not host:
        return {"a1": a1, "b1": b1, "k3": k3}
    c1 = 2 * (a1 + 3 * b1)
    return {"c1": c1, "e": c1 + 3 * data["k"], "k3": k3}


def runs_on(made: Program, device: Any, *, host: bool) -> None:
    loaded = device.load(made)
    try:
        for buffer in made.buffers:
            loaded.write(buffer.name, initial(buffer, 0, kind=0))
        loaded.run(seed=0, checked=True)
        assert loaded.broken_guards() == ()
        for _ in range(2):
            for name, values in wanted(made, host=host).items():
                np.testing.assert_array_equal(loaded.read(name), values, err_msg=name)
            assert loaded.sample_us(2) > 0
        assert loaded.clock == ("wall" if made.host_sensitive or loaded.clock == "wall" else "device")
    finally:
        loaded.close()


EXECUTIONS = [
    Execution(memory=memory, issue=issue, send=send, allocation=allocation)
    for memory, issue, send, allocation in itertools.product(
        ("pageable", "pinned"), ("one_stream", "overlapped"), ("message", "batch"), ("ahead", "group", "one", "pooled")
    )
]


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize("grouping", ["separate", "interval_stabbing", "min_residency"])
def test_every_way_on_the_stand_in(grouping: str, gpu: Any) -> None:
    found = Schedules(mixed_graph(host=True))
    before = gpu.live_allocations
    for execution in EXECUTIONS:
        runs_on(program(script(found.grouping(grouping)), execution, name="x"), gpu, host=True)
    assert gpu.live_allocations == before


def test_a_graph_is_launched_as_one(gpu: Any) -> None:
    found = Schedules(mixed_graph(host=False))
    for grouping in ("separate", "interval_stabbing"):
        made = program(script(found.grouping(grouping)), Execution(memory="pinned", issue="graph"), name="x")
        runs_on(made, gpu, host=False)
    assert any("graph" in line.lower() for line in gpu.log())


def test_as_many_copies_as_messages(gpu: Any) -> None:
    found = Schedules(mixed_graph(host=True))
    for grouping in ("separate", "interval_stabbing"):
        schedule = found.grouping(grouping)
        made = program(script(schedule), Execution(memory="pinned"), name="x")
        loaded = gpu.load(made)
        for buffer in made.buffers:
            loaded.write(buffer.name, initial(buffer, 0, kind=0))
        loaded.sample_us(1)
        gpu.log()
        loaded.sample_us(1)
        words = [line.split()[0] for line in gpu.log()]
        assert words.count("up") + words.count("down") == schedule.startups
        loaded.close()
