"""Which kernels work row by row: formulas and declarations."""

from collections.abc import Callable

import pytest

from fusiond.model.errors import RequestError
from fusiond_transfer.frontend.graph import Graph
from fusiond_transfer.frontend.row_wise import RowWise, at_rows, row_wise
from tests.plugins.transfer.kernel_graph import KernelGraph

from .conftest import Read


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
def rows(graph: Read, tmp_path: object) -> Callable[[str], Graph]:
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
    assert "nothing declares its rows" in str(row_wise(undeclared, undeclared.kernels[0]))


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


def test_rows_are_for_sources(graph: Read) -> None:
    text = ROWS.replace("source: k.cu, entry: k, values: [height, width],", 'body: "image",').replace(
        'grid: ["ceil_div(height, 4)"], block: [32, 4], ROWS', "rows: height, whole: [weights]"
    )
    with pytest.raises(RequestError, match="has no source: whether it works row by row is seen from its formula"):
        graph(text)
