"""Which kernels work row by row, so that they can be cut into chunks that follow each other.

A kernel is row-wise over R rows when row r of all that it writes is made of row r of the operands that are split, and
of others that are read whole: seen from a formula (a row is an element), or declared for a source. A chunk is then the
same entry on parts of the vectors, with the lengths, values and grid of so many rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fusiond.model.english import counted
from fusiond.model.language import expressions, extents
from fusiond.model.language.extents import Extent, text_of
from fusiond_transfer.frontend import formula
from fusiond_transfer.frontend.graph import Formula, FusedBody, Graph, GraphKernel, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWise:
    """`rows`: how many there are. `split`: the operands that are cut along them; the kernel reads the others whole."""

    rows: int
    split: tuple[str, ...]
    declared: str = ""  #: The size that counts the rows, where the file says so; else a row is an element


def row_wise(graph: Graph, kernel: GraphKernel) -> RowWise | str:
    """How a kernel can be cut, or why it cannot, in a few words."""
    found = _row_wise(graph, kernel)
    if isinstance(found, RowWise) and graph.cut:
        pieces = {each for name in found.split for each in graph.pieces.get(name, (name,))}
        for name in kernel.read_operands:
            if name not in found.split and not pieces.isdisjoint(graph.pieces.get(name, (name,))):
                return f"it reads {name} whole, and row by row"
    return found


def _row_wise(graph: Graph, kernel: GraphKernel) -> RowWise | str:
    body = kernel.body
    elements = {name: graph.operand(name).elements for name in (*kernel.read_operands, *kernel.write_operands)}
    if isinstance(body, Text):
        return _declared(graph, kernel, elements) if kernel.rows else "nothing declares its rows"
    if isinstance(body, FusedBody):
        return "another strategy made it"
    first = kernel.write_operands[0]
    rows = elements[first]
    if any(int(elements[name]) != int(rows) for name in kernel.write_operands):
        return "its outputs differ in length"
    if isinstance(body, Formula) and any(formula.parse(text).summed for text in body.texts):
        return "it sums over all elements"
    if int(rows) == 1:
        return f"{first} has one element"
    for name, each in elements.items():
        if each not in (1, rows):
            return f"{name} has {counted(int(each), 'element')} where {first} has {int(rows)}"
    return RowWise(rows=rows, split=tuple(name for name, each in elements.items() if each == rows))


def _declared(graph: Graph, kernel: GraphKernel, elements: Mapping[str, int]) -> RowWise | str:
    rows = extents.size(kernel.rows, dict(graph.sizes)[kernel.rows])
    split = tuple(name for name in elements if name not in kernel.whole)
    for name in split:
        each = elements[name]
        if each % int(rows) or _substituted(each, graph, kernel.rows, 2 * int(rows)) != 2 * int(each):
            return f"{name} has {text_of(each)} elements, which is not so many for each of {kernel.rows} rows"
    return RowWise(rows=rows, split=split, declared=kernel.rows)


def problem(graph: Graph, kernel: GraphKernel) -> str | None:
    """What is wrong with a declaration, in one line; None where nothing is, or nothing is declared."""
    if not kernel.rows and not kernel.whole:
        return None
    if not isinstance(kernel.body, Text):
        return f"{kernel.name} has no source: whether it works row by row is seen from its formula"
    if not kernel.rows:
        return f"{kernel.name} says what it reads whole; 'rows' must name the size that counts its rows"
    if kernel.rows not in dict(graph.sizes):
        known = ", ".join(name for name, _ in graph.sizes) or "none"
        return f"{kernel.name}: rows is {kernel.rows!r}, which is not a size; the sizes are {known}"
    strange = [name for name in kernel.whole if name not in kernel.read_operands]
    if strange:
        return f"{kernel.name} does not read {strange[0]}, so it cannot read it whole"
    found = row_wise(graph, kernel)
    return f"{kernel.name}: {found}" if isinstance(found, str) else None


def at_rows(graph: Graph, kernel: GraphKernel, how: RowWise, rows: int) -> Text:
    """A source's values, grid and shared memory for so many rows (an Extent, or a number)."""
    body = kernel.body
    assert isinstance(body, Text)

    def moved(number: int) -> int:
        return _substituted(number, graph, how.declared, rows)

    x, y, z = map(moved, body.grid)
    values = tuple(map(moved, body.values))
    return replace(body, values=values, grid=(x, y, z), shared_bytes=moved(body.shared_bytes))


def _substituted(number: int, graph: Graph, name: str, rows: int) -> int:
    """A number in which a size is another one: the same formula, over so many rows."""
    if not isinstance(number, Extent):
        return number
    known = {each: extents.size(each, value) for each, value in graph.sizes}
    return expressions.parse_formula(number.text).integer({**known, name: rows})
