"""Which kernels work row by row: formulas, declarations, and the proof from the index expressions of a source."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fusiond.errors import RequestError
from fusiond_transfer.frontend.graph import Graph
from fusiond_transfer.frontend.index_expressions import ElementWise, element_wise
from fusiond_transfer.frontend.row_wise import RowWise, at_rows, row_wise
from fusiond_transfer.python import KernelGraph


def one(**kernel: object) -> RowWise | str:
    graph = KernelGraph("g", elements=100)
    graph.inputs("a", "b")
    graph.inputs("scale", elements=1)
    graph.inputs("short", elements=50)
    graph.device("k", **kernel)
    graph.outputs(*kernel["writes"])  # type: ignore[misc]
    built = graph.build()
    return row_wise(built, built.kernels[-1])


def test_formulas_and_hashes_of_vectors_of_one_length() -> None:
    assert one(reads=("a", "b"), writes=("c",)) == RowWise(rows=100, split=("a", "b", "c"))
    found = one(reads=("a", "scale"), writes=("c", "d"), body={"c": "a * scale", "d": "a - 1"})
    assert found == RowWise(rows=100, split=("a", "c", "d")), "one element is read by all"


def test_what_needs_all_of_a_vector() -> None:
    assert "sums over all" in str(one(reads=("a",), writes=("c",), body={"c": "sum(a)"}, elements=1))
    assert "short has 50 elements where c has 100" in str(one(reads=("a", "short"), writes=("c",)))
    assert "one element" in str(one(reads=("scale",), writes=("c",), elements=1))


PROVEN = {
    "one thread an element": """
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = a * x[i] + sqrtf(x[i]);""",
    "other words": """
        const unsigned long long at = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
        if (at >= n) return;
        const float v = x[at];  // the old one
        float w = v > 0.0f ? v : -v;
        w *= a;
        y[at] = w;""",
    "so many elements a thread": """
        for (int i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += gridDim.x * blockDim.x) {
            y[i] = 0;
            for (int k = 0; k < a; ++k) y[i] += x[i];
        }""",
}
AT = "int i = blockIdx.x * blockDim.x + threadIdx.x; "
NOT = {
    "the number itself": (AT + "if (i < n) y[i] = x[i] + i;", "uses i,"),
    "a neighbour": (AT + "if (i < n) y[i] = x[i + 1];", "than as x[i]"),
    "the other end": (AT + "if (i < n) y[n - 1 - i] = x[i];", "than as y[i]"),
    "one for all": (AT + "if (i < n) y[i] = x[0];", "than as x[i]"),
    "the length": (AT + "if (i < n) y[i] = x[i] / n;", "uses n,"),
    "the block": (AT + "if (i < n) y[i] = x[i] + threadIdx.x;", "threadIdx.x"),
    "a barrier": (AT + "__syncthreads(); if (i < n) y[i] = 1;", "no index"),
    "an atomic": (AT + "if (i < n) atomicAdd(y, x[i]);", "uses atomicAdd"),
    "a helper": (AT + "if (i < n) y[i] = help(x[i]);", "uses help"),
    "a pointer": (AT + "const float* p = x; if (i < n) y[i] = p[i];", "index"),
    "what follows the test": (
        AT + "if (i < n) y[i] = 1; y[i] = 2;", "goes on behind its test"),
    "an else": (
        AT + "if (i < n) { y[i] = 1; } else { y[i] = 2; }", "goes on behind"),
    "no number": ("for (int i = 0; i < n; ++i) y[i] = x[i];", "no index of the form"),
    "another bound": (AT + "if (i < 7) y[i] = x[i];", "none of its values"),
    "a changed number": (
        AT + "if (i < n) { i = 0; y[i] = x[i]; }", "uses i,"),
}  # fmt: skip


def source(body: str) -> str:
    return f'extern "C" __global__ void k(const float* __restrict__ x, float* y, int n, int a) {{{body}}}'


@pytest.mark.parametrize("name", PROVEN)
def test_what_index_expressions_prove(name: str) -> None:
    found = element_wise(source(PROVEN[name]), "k", ("u", "v"), 2, {"u": 9, "v": 9}, device=True)
    assert found == ElementWise(count=0)


@pytest.mark.parametrize("name", NOT)
def test_what_they_do_not_prove(name: str) -> None:
    text, why = NOT[name]
    found = element_wise(source(text), "k", ("u", "v"), 2, {"u": 9, "v": 9}, device=True)
    assert isinstance(found, str), name
    assert why in found, found


def test_the_host_counts_and_a_single_element_is_read_by_all() -> None:
    loop = "for (int i = 0; i < n; ++i) y[i] = s[0] * x[i];"
    text = f'extern "C" void k(const float* x, const float* s, float* y, int n) {{ {loop} }}'
    lengths = {"u": 9, "s": 1, "v": 9}
    assert element_wise(text, "k", ("u", "s", "v"), 1, lengths, device=False) == ElementWise(count=0)
    assert isinstance(element_wise(text, "k", ("u", "s", "v"), 1, {**lengths, "s": 9}, device=False), str)
    assert "no index" in str(element_wise(text, "k", ("u", "s", "v"), 1, lengths, device=True))


ROWS = """
graph: rows
sizes: {height: 30, width: 20}
elements: height * width
dtype: float32
vectors: {weights: {elements: width}}
inputs: [image, weights]
outputs: [out]
kernels:
  - {name: k, on: device, reads: [image, weights], writes: [out], source: k.cu, entry: k, values: [height, width],
     grid: ["ceil_div(height, 4)"], block: [32, 4], ROWS}
"""


@pytest.fixture
def rows(graph: Callable[..., Graph], tmp_path: object) -> Callable[[str], Graph]:
    def rows(declared: str) -> Graph:
        (tmp_path / "k.cu").write_text('extern "C" __global__ void k() {}\n')  # type: ignore[operator]
        return graph(ROWS.replace(", ROWS", f", {declared}" if declared else ""))

    return rows


def test_a_declaration_is_the_kernel_at_another_height(rows: Callable[[str], Graph]) -> None:
    found = rows("rows: height, whole: [weights]")
    how = row_wise(found, found.kernels[0])
    assert how == RowWise(rows=30, split=("image", "out"), declared="height")
    assert isinstance(how, RowWise)
    at = at_rows(found, found.kernels[0], how, 9)
    assert (at.values, at.grid) == ((9, 20), (3, 1, 1))
    undeclared = rows("")
    assert "more than one dimension" in str(row_wise(undeclared, undeclared.kernels[0]))


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ("rows: height", "weights has width elements, which is not so many for each of height rows"),
        ("rows: depth, whole: [weights]", "rows is 'depth', which is not a size; the sizes are height, width"),
        ("rows: height, whole: [weights, lamp]", "k does not read lamp, so it cannot read it whole"),
        ("whole: [weights]", "'rows' must name the size that counts its rows"),
    ],
)
def test_a_declaration_that_cannot_be(declared: str, problem: str, rows: Callable[[str], Graph]) -> None:
    with pytest.raises(RequestError, match=r"graph.yaml:\d+: ") as raised:
        rows(declared)
    assert problem in str(raised.value)


def test_rows_are_for_sources(graph: Callable[..., Graph]) -> None:
    text = ROWS.replace("source: k.cu, entry: k, values: [height, width],", 'body: "image",').replace(
        'grid: ["ceil_div(height, 4)"], block: [32, 4], ROWS', "rows: height, whole: [weights]"
    )
    with pytest.raises(RequestError, match="has no source: whether it works row by row is seen from its formula"):
        graph(text)
