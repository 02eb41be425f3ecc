"""Graph files: what they may say, and one line for everything that is wrong."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fusiond.model.errors import RequestError
from fusiond.model.program import Fill
from fusiond_transfer.frontend.generator import Shape, random_graph
from fusiond_transfer.frontend.graph import Formula, Graph
from tests.plugins.transfer.kernel_graph import KernelGraph

from .conftest import Parse, Read

GOOD = """graph: good
sizes: {n: 8}
elements: n
inputs: [a, b]
outputs: [d]
kernels:
  - {name: k0, on: device, reads: [a, b], writes: [c]}
  - {name: k1, on: host, reads: [c], writes: [d]}
"""
MISTAKES = [
    # what is replaced, with what, the line of the file, what fusiond says
    ("writes: [c]}", "writes: [c, c]}", 7, "c has two writers: k0, twice"),
    ("reads: [c]", "reads: [z]", 8, "k1 reads z, which is not a vector of this graph"),
    ("reads: [a, b]", "reads: [a, d]", 7, "the kernels form a cycle: k0 -> k1 -> k0"),
    ("inputs: [a, b]", "inputs: [a]", 7, "k0 reads b, which is not a vector of this graph"),
    ("elements: n", "elements: n - 8", 3, "a has 0 elements; expected at least one"),
    ("outputs: [d]", "outputs: [x]", 5, "there is no vector 'x'"),
    ("outputs: [d]", "outputs: [a]", 5, "a is written by no kernel"),
    ("outputs: [d]", "outputs: []", 5, "is empty, so there is nothing to compare"),
    ("outputs: [d]", "outputs: [d, d]", 5, "d stands twice"),
    ("name: k1", "name: k0", 8, "two kernels are called 'k0'"),
    ("name: k1", "name: 'k 1'", 8, "'k 1' is not a name"),
    ("on: host", "on: gpu", 8, "is 'gpu'; it can be host, device"),
    ("writes: [d]", "write: [d]", 8, "unknown key 'write'; did you mean 'writes'?"),
    ("graph: good", "graph: good/bad", 1, "expected a name"),
    ("outputs: [d]", "outputs: [d]\nplaced: [c]", 6, "c is not an input"),
    ("outputs: [d]", "outputs: [d]\ncarried: {a: d}", 6, "is for loops; say loop: true"),
    ("outputs: [d]", "outputs: [d]\nloop: true", 6, "nothing is carried from one iteration to the next"),
    ("outputs: [d]", "outputs: [d]\nloop: yes please", 6, "write true or false"),
    ("outputs: [d]", "outputs: [d]\nloop: true\ncarried: {a: x}", 7, "no kernel writes 'x'"),
    ("outputs: [d]", "outputs: [d]\nloop: true\ncarried: {c: d}", 7, "c is not an input"),
    ("outputs: [d]", "outputs: [d]\nloop: true\ncarried: {a: d}\niterations: 0", 8, "it must be from 1 to 1000"),
    ("outputs: [d]", "outputs: [d]\nadjacent: [[a]]", 6, "a run is two or more different vectors"),
    ("outputs: [d]", "outputs: [d]\nadjacent: [[a, b], [b, c]]", 6, "a vector is in two runs"),
    ("outputs: [d]", "outputs: [d]\nlimits: {device_bytes: 0}", 6, "expected at least one byte"),
    ("outputs: [d]", "outputs: [d]\nvectors: {z: {elements: 3}}", 6, "unknown vector 'z'"),
    ("outputs: [d]", "outputs: [d]\nvectors: {c: {dtype: float12}}", 6, "is 'float12'; it can be bool, int8"),
    ("reads: [c], writes: [d]", "reads: [c], writes: [d], in_place: {d: a}", 8, "k1 must write d and read a"),
    ("reads: [c], writes: [d]}", "reads: [c], writes: [d], body: c}\nvectors: {c: {dtype: float8_e5m2}}", 8,
     "c is of float8_e5m2, with which no formula computes; give a source"),
    ("writes: [d]", "writes: [d], body: c +", 8, "'c +', column 4: ends too early"),
    ("writes: [d]", "writes: [d], body: c + a", 8, "mentions a, which the kernel does not read"),
    ("writes: [d]", "writes: [d], body: {e: c}", 8, "k1 does not write 'e'"),
    ("writes: [d]", "writes: [d], body: sum(c)", 8, "into an output of one element"),
    ("writes: [d]", "writes: [d], grid: [3]", 8, "is for kernels with a 'source'"),
    ("kernels:", "generate: {kernels: 3, inputs: 1, indegree: [1, 2], outdegree: [1, 1]}\nkernels:", 4,
     "stands beside 'generate'"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "line", "says"), MISTAKES)
def test_a_mistake_is_one_line_with_its_place(old: str, new: str, line: int, says: str, parse: Parse) -> None:
    assert GOOD.count(old) == 1, old
    with pytest.raises(RequestError) as caught:
        parse(GOOD.replace(old, new))
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert says in message
    assert f"graph.yaml:{line}: " in message, message


def test_a_read_before_its_write_says_which_to_list_first(parse: Parse) -> None:
    lines = GOOD.splitlines()
    swapped = "\n".join([*lines[:6], lines[7], lines[6], ""])
    with pytest.raises(RequestError, match="k1 reads c before k0 writes it; list k0 first"):
        parse(swapped)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (("sizes: {m: 3}",), "unknown size 'm'"),
        (("sizes: {n: 0}",), "must be at least 1"),
        (("allocations: sometimes",), "is 'sometimes'; it can be ahead, counted"),
        (("allocation: counted",), "unknown key 'allocation'; did you mean 'allocations'?"),
    ],
)
def test_a_mistake_in_the_job_is_one_line(lines: tuple[str, ...], says: str, parse: Parse) -> None:
    with pytest.raises(RequestError) as caught:
        parse(GOOD, *lines)
    assert says in str(caught.value)
    assert "job.yaml:3" in str(caught.value)


def test_an_unknown_graph_has_a_nearest_name(parse: Parse) -> None:
    with pytest.raises(RequestError, match="unknown graph 'fig3'; did you mean 'fig2'"):
        parse("fig3")


def test_in_place_needs_a_vector_that_nobody_reads_later(parse: Parse) -> None:
    text = """graph: g
sizes: {n: 8}
elements: n
inputs: [a]
outputs: [c]
kernels:
  - {name: k0, on: device, reads: [a], writes: [b], in_place: {b: a}}
  - {name: k1, on: device, reads: [a, b], writes: [c]}
"""
    with pytest.raises(RequestError, match=r"graph.yaml:7: .*: k1 reads a after k0 has stored b there"):
        parse(text)
    twice = text.replace("reads: [a, b], writes: [c]", "reads: [b], writes: [c], in_place: {c: b}")
    graph: Graph = parse(twice).payload.graph
    assert dict(graph.cell) == {"a": "a.store", "b": "a.store", "c": "a.store"}


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        ("reads: [a], writes: [b, s], in_place: {b: a}", "the outputs of k0 differ in length"),
        ("reads: [a, t], writes: [s, u], in_place: {s: t}, body: {s: sum(a), u: sum(a)}",
         "k0 sums for several outputs"),
    ],
)  # fmt: skip
def test_in_place_is_refused_where_one_output_would_overwrite_what_another_needs(
    kernel: str, says: str, parse: Parse
) -> None:
    text = (
        "graph: g\nsizes: {n: 8}\nelements: n\nvectors: {s: {elements: 1}, t: {elements: 1}, u: {elements: 1}}\n"
        f"inputs: [a, t]\noutputs: [s]\nkernels:\n  - {{name: k0, on: device, {kernel}}}\n"
    )
    if "u" not in kernel.partition("writes")[2]:
        text = text.replace(", u: {elements: 1}", "")
    with pytest.raises(RequestError, match=says):
        parse(text)


@pytest.mark.parametrize(
    ("launch", "says"),
    [
        ("block: [2048]", "a launch has at most"), ("block: [64, 64]", "a launch has at most"),
        ("grid: [1, 70000]", "a launch has at most"), ("grid: [0]", "one to three numbers, each at least 1"),
        ("values: [n * 3000000000]", "an int has 32 bits"),
    ],
)  # fmt: skip
def test_what_cannot_be_launched_is_a_mistake(launch: str, says: str, parse: Parse, tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text('extern "C" __global__ void k(const unsigned* c, unsigned* d) {}\n')
    text = GOOD.replace(
        "on: host, reads: [c], writes: [d]", f"on: device, reads: [c], writes: [d], source: k.cu, entry: k, {launch}"
    )
    with pytest.raises(RequestError, match=says):
        parse(text)


def test_sizes_types_and_fills(parse: Parse) -> None:
    text = GOOD.replace(
        "outputs: [d]",
        "outputs: [d]\ndtype: float32\nfill: {uniform: [-1, 1]}\nvectors: {b: {elements: 2 * n, dtype: int64}}",
    )
    graph: Graph = parse(text, "sizes: {n: 20}").payload.graph
    a, b, d = (graph.vector(name) for name in "abd")
    assert (a.dtype, a.elements, a.fill) == ("float32", 20, Fill(kind="uniform", low=-1, high=1))
    assert (b.dtype, b.elements, b.fill.kind) == ("int64", 40, "integers")
    assert d.compare.kind == "close"


def test_a_generated_graph_is_that_of_the_generator(parse: Parse) -> None:
    text = (
        "graph: drawn\nsizes: {elements: 16}\n"
        "generate: {kernels: 9, inputs: 3, indegree: [1, 3], outdegree: [1, 2], device_percent: 40, seed: 7}\n"
    )
    shape = Shape(kernels=9, inputs=3, indegree=(1, 3), outdegree=(1, 2), device_percent=40, seed=7)
    found: Graph = parse(text).payload.graph
    assert found.kernels == random_graph(shape, elements=16).kernels
    assert parse(text).key == parse(text).key
    assert parse(text.replace("seed: 7", "seed: 8")).key != parse(text).key


# --- from Python ----------------------------------------------------------------------------------------


def python_graph() -> KernelGraph:
    graph = KernelGraph("fig2", elements=4096)
    a, b, c = graph.inputs("A", "B", "C")
    d, e = graph.device("k0", reads=(b, a), writes=("D", "E"))
    f, g = graph.host("k1", reads=(e, b), writes=("F", "G"))
    h, i = graph.device("k2", reads=(c, f), writes=("H", "I"))
    j, k = graph.device("k3", reads=(f, h), writes=("J", "K"))
    ell, m = graph.device("k4", reads=(h, e), writes=("L", "M"))
    graph.outputs(d, g, i, j, k, ell, m)
    return graph


def test_a_graph_from_python_is_that_of_the_file(parse: Parse, graph: Read) -> None:
    assert set(python_graph().build().kernels) == set(graph("fig2").kernels)
    assert set(python_graph().build().vectors) == set(graph("fig2").vectors)
    again: Graph = parse(python_graph().yaml()).payload.graph
    assert again.kernels == python_graph().build().kernels
    assert again.vectors == python_graph().build().vectors


def test_a_mistake_in_python_is_one_line() -> None:
    graph = python_graph()
    graph.device("k5", reads=("Z",), writes=("N",))
    with pytest.raises(RequestError, match=r"graph fig2:\d+: .*k5 reads Z, which is not a vector of this graph"):
        graph.build()
    other = python_graph()
    other.device("k5", reads=("A",), writes=("N",), body={"N": "B + 1"})
    with pytest.raises(RequestError, match="mentions B, which the kernel does not read"):
        other.build()


def test_names_that_yaml_takes_for_something_else(parse: Parse) -> None:
    graph = KernelGraph("null", elements=8, dtype="float64")
    graph.inputs("null", "yes", "on")
    graph.device("true", reads=("null", "yes", "on"), writes=("off",), body={"off": "null + yes * on"})
    graph.outputs("off")
    assert parse(graph.yaml()).payload.graph == graph.build()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda graph: graph.device("k5", reads=("A",), writes=("N", "O"), body="A"), "there is no formula for O"),
        (lambda graph: graph.loop({}), "nothing is carried"),
        (lambda graph: graph.host("k5", reads=("A",), writes=("N",), elements=2.5), "is 2.5; a whole number is wanted"),
    ],
)
def test_slips_in_python_are_refused(spoil: Callable[[KernelGraph], object], says: str) -> None:
    graph = python_graph()

    def build() -> None:
        spoil(graph)
        graph.build()

    with pytest.raises(RequestError, match=re.escape(says)):
        build()


def test_horners_rule_has_the_papers_size(graph: Read) -> None:
    found = graph("horner")
    assert (len(found.kernels), len(found.inputs)) == (20, 12)
    assert all(isinstance(kernel.body, Formula) for kernel in found.kernels)
    assert (len(graph("cholesky").kernels), len(graph("matmul").kernels)) == (20, 12)
    assert len(graph("cg").kernels) == 7
