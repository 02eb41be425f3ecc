"""Rows that belong together: the position of each cell and call on a line of rows.

    low:  y[0:512] = 2 * x[0:512]         x  0 .... 512 .... 1024
    high: y[512:]  = x[512:] + 1    -->   y  0 .... 512 .... 1024     one line of 1024 rows, on which low has the first
    all:  z = y * y                       z  0 ............. 1024     half, high the second, and all all

A kernel that works row by row puts row r of what it splits side by side. So everything that such kernels have in common
lies on one line, each vector in one place. A kernel that would need a vector in two places (x[0:n - 1] beside x[1:n])
is not on the line and is not cut.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fusiond.model.language import expressions
from fusiond.model.language.extents import Extent, quotient, text_of
from fusiond_transfer.analysis.cells import KernelCall, Script
from fusiond_transfer.frontend.graph import Graph, Vector
from fusiond_transfer.frontend.row_wise import RowWise, row_wise
from fusiond_transfer.frontend.sub_vectors import whole_name


@dataclass(frozen=True, slots=True, kw_only=True)
class OnLine:
    """Rows of a line, from the first to before the end. Of a cell: `width` elements make a row of it, and it is, or is
    a piece of, `home`."""

    first: int
    end: int
    width: int = 1
    home: str = ""
    like: Vector = field(default_factory=lambda: Vector(name=""))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLine:
    """`bounds`: where a cell or a call begins or ends, in order."""

    cells: Mapping[str, OnLine]
    calls: Mapping[str, tuple[RowWise, OnLine]]
    bounds: tuple[int, ...]
    uneven: bool  #: Rows are declared in two ways, or do not come out even: it is not cut
    equal: tuple[int, ...]  #: Numbers that are equal at these sizes and written in two ways


def row_wise_kernels(graph: Graph) -> Mapping[str, RowWise | str]:
    """Kernel -> how it can be cut, or why it cannot."""
    return graph.kept("row_wise", _row_wise_kernels)


def _row_wise_kernels(graph: Graph) -> Mapping[str, RowWise | str]:
    known: dict[tuple[object, ...], RowWise | str] = {}
    found: dict[str, RowWise | str] = {}
    for kernel in graph.kernels:
        key = (kernel.body, kernel.read_operands, kernel.write_operands, kernel.rows, kernel.whole, kernel.on)
        if key not in known:
            known[key] = row_wise(graph, kernel)
        found[kernel.name] = known[key]
    return found


def lines(script: Script) -> tuple[list[RowLine], Mapping[str, str]]:
    """The lines of a script, in the order of their first calls; and kernel -> why its rows do not meet those of the
    others."""
    waiting = _calls(script)
    touching: dict[str, list[_Call]] = {}
    for call in waiting:
        for each in call.operands:
            touching.setdefault(each.home, []).append(call)
    done: set[str] = set()
    apart: dict[str, str] = {}
    found: list[tuple[int, RowLine]] = []
    number = {call.call.name: at for at, call in enumerate(waiting)}
    # What is declared says what a row is; so it is put down first.
    for seed in sorted(waiting, key=lambda each: (not each.how.declared, number[each.call.name])):
        if seed.call.name in done:
            continue
        line = _Growing(seed)
        open_ = [seed]
        for call in open_:  # which grows
            if call.call.name in done:
                continue
            done.add(call.call.name)
            why = line.add(call)
            if why is not None:
                apart.setdefault(call.name, why)
                continue
            open_ += (other for each in call.operands for other in touching[each.home] if other.call.name not in done)
        if line.calls:
            found.append((min(number[name] for name in line.calls), _finished(line, waiting, script)))
    return [line for _, line in sorted(found, key=lambda each: each[0])], apart


@dataclass(frozen=True, slots=True)
class _Operand:
    """What a call splits: elements of `home`, from `first` on, which are these cells."""

    name: str
    home: str
    first: int
    elements: int
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Call:
    call: KernelCall
    how: RowWise
    operands: tuple[_Operand, ...]

    @property
    def name(self) -> str:
        """Of the kernel, as the graph has it."""
        return self.call.kernel.origin or self.call.kernel.name


class _Growing:
    """A line while calls are put on it: each vector has a row at which it begins, and elements that make a row."""

    def __init__(self, seed: _Call) -> None:
        self.placed: dict[str, tuple[int, int]] = {}
        self.by: dict[str, str] = {}
        self.calls: dict[str, tuple[RowWise, OnLine]] = {}
        self.equal: list[tuple[int, int]] = []
        self.declared: set[str] = set()
        self.rows = seed.how.rows
        first = seed.operands[0]
        self.placed[first.home] = 0, _divided(first.elements, seed.how.rows)
        self.by[first.home] = seed.name

    def add(self, call: _Call) -> str | None:
        """Put a call on the line that has one of its vectors; or say why it cannot be."""
        if call.how.declared:
            self.declared.add(call.how.declared)
        known = next(each for each in call.operands if each.home in self.placed)
        at, own = self.placed[known.home]
        start, rows = at + _divided(known.first, own), _divided(known.elements, own)
        if self.declared and int(rows) == int(self.rows):
            rows = self.rows
        elif int(rows) == int(call.how.rows):
            rows = call.how.rows
        new: dict[str, tuple[int, int]] = {}
        equal = [(known.elements, rows * own)]
        for each in call.operands:
            place = new.get(each.home) or self.placed.get(each.home)
            if place is None:
                width = _divided(each.elements, rows)
                new[each.home] = start - _divided(each.first, width), width
                continue
            there = place[0] + _divided(each.first, place[1])
            if int(there) != int(start):
                other = self.by.get(each.home, call.name)
                kernel = "itself" if other == call.name else other
                apart = abs(int(there) - int(start))
                return f"its rows of {whole_name(each.name)} lie {apart} apart from those of {kernel}"
            if int(each.elements) != int(rows) * int(place[1]):
                return f"{each.name} has not {int(place[1])} elements for each of its rows"
            equal += [(there, start), (each.elements, rows * place[1])]
        self.placed |= new
        self.by |= dict.fromkeys(new, call.name)
        self.equal += equal
        on = OnLine(first=start, end=start + rows, width=1 if call.how.declared else own)
        self.calls[call.call.name] = call.how, on
        return None


def _calls(script: Script) -> list[_Call]:
    """The calls that work row by row, with what they split."""
    graph, ways = script.graph, row_wise_kernels(script.graph)
    found = []
    for op in script.ops:
        how = ways[op.kernel.origin or op.kernel.name] if isinstance(op, KernelCall) else ""
        if not isinstance(op, KernelCall) or isinstance(how, str):
            continue
        operands = []
        for name in how.split:
            own = op.cells(graph, name)
            home, first = graph.homes.get(own[0], (own[0], 0))
            operands.append(_Operand(name, home, first, graph.operand(name).elements, own))
        found.append(_Call(op, how, tuple(operands)))
    return found


def _finished(line: _Growing, calls: Sequence[_Call], script: Script) -> RowLine:
    """The line with its cells and bounds."""
    like = {cell.name: cell.like for cell in script.cells}
    cells: dict[str, OnLine] = {}
    uneven = len(line.declared) > 1
    for call in calls:
        for each in call.operands if call.call.name in line.calls else ():
            at, width = line.placed[each.home]
            own = each.first
            for cell in each.cells:
                elements = like[cell].elements
                uneven = uneven or int(own) % int(width) != 0 or int(elements) % int(width) != 0
                first = at + _divided(own, width)
                there = OnLine(first=first, end=first + _divided(elements, width), width=width, home=each.home,
                               like=like[cell])  # fmt: skip
                cells.setdefault(cell, there)
                own += elements
    bounds: dict[int, int] = {}
    equal = list(line.equal)
    for on in (*(on for _, on in line.calls.values()), *cells.values()):
        for bound in (on.first, on.end):
            equal.append((bounds.setdefault(int(bound), bound), bound))

    def on_bounds(on: OnLine) -> OnLine:
        return replace(on, first=bounds[int(on.first)], end=bounds[int(on.end)])

    sizes = dict(script.graph.sizes)
    return RowLine(
        cells={name: on_bounds(on) for name, on in cells.items()},
        calls={name: (how, on_bounds(on)) for name, (how, on) in line.calls.items()},
        bounds=tuple(bounds[each] for each in sorted(bounds)),
        uneven=uneven,
        equal=tuple(number for pair in dict.fromkeys(equal) if not _always(*pair, sizes) for number in pair),
    )


def _divided(elements: int, width: int) -> int:
    if not elements and not isinstance(elements, Extent):
        return 0
    if int(elements) == int(width):
        return 1
    return elements if int(width) == 1 else quotient(elements, width)


def _always(a: int, b: int, sizes: Mapping[str, int]) -> bool:
    """Whether two numbers that are equal are so at other sizes, as far as a few of them tell."""
    texts = text_of(a), text_of(b)
    if texts[0] == texts[1]:
        return True
    for factors in ((2, 3, 5, 7), (5, 2, 7, 3)):
        there = {name: value * factors[at % 4] for at, (name, value) in enumerate(sizes.items())}
        try:
            first, second = (expressions.parse_formula(text).integer(there) for text in texts)
        except expressions.ExpressionError:
            return False
        if int(first) != int(second):
            return False
    return True
