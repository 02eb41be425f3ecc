"""Windows that are a row behind a column: computed as two stages, exactly.

    gx: (1 2 1; 2 4 2; 1 2 1) over sx      -->      gx_across: (1 2 1) over sx,   gx: (1; 2; 1) over gx_across

A sum of int32 pixels with constant factors wraps round, so it is the same in any order, and a matrix of factors of rank
1 is a column times a row. The same holds for the least and the greatest of int32 pixels in a rectangle. Sums of floats
are left as they are: their order is part of the meaning.

What comes out is a pipeline of the same images and more stages. Only where no pixel lies outside the image is it the
same: the stages that are new have no borders.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

from fusiond_mincut.analysis.blocks import Block
from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.expr import Access, Binary, Call, Cast, Const, Expr, Unary
from fusiond_mincut.frontend.graph import Kernel, Pipeline

Source = tuple[str, int | None, str]
"""Image, channel, dtype."""
Taps = dict[tuple[int, int], int]
"""(dx, dy) -> factor."""
_MODULUS = 1 << 32


def separated(pipeline: Pipeline, block: Block) -> tuple[Pipeline, Block]:
    """The pipeline and the block with windows split where that takes fewer operations."""
    kernels: list[Kernel] = []
    members: list[str] = []
    taken = set(pipeline.images)
    for kernel in pipeline.kernels:
        if kernel.name in block.kernels:
            split = _Split(kernel=kernel, taken=taken)
            bodies = tuple(split.body(each) for each in kernel.bodies)
            kernels += split.made.values()
            members += [each.name for each in split.made.values()]
            kernel = dataclasses.replace(kernel, bodies=bodies) if split.made else kernel
            members.append(kernel.name)
        kernels.append(kernel)
    whole = dataclasses.replace(pipeline, kernels=tuple(kernels))
    return whole, dataclasses.replace(block, kernels=tuple(members))


@dataclass(slots=True)
class _Split:
    kernel: Kernel
    taken: set[str]
    made: dict[tuple[object, ...], Kernel] = field(default_factory=dict)
    """What is computed across -> the stage that does it."""

    def body(self, expr: Expr) -> Expr:
        if not any(isinstance(each, Binary | Call) for each in tree.walk(expr)):
            return expr
        found = self._sum(expr) or self._extreme(expr)
        if found is not None:
            return found
        return _rebuilt(expr, self.body)

    def _sum(self, expr: Expr) -> Expr | None:
        if expr.dtype != "int32" or not isinstance(expr, Binary) or expr.op not in ("+", "-"):
            return None
        taps: dict[Source, Taps] = {}
        if not _linear(expr, 1, taps) or len(taps) != 1:
            return None
        source, window = next(iter(taps.items()))
        window = {at: factor for at, factor in window.items() if factor}
        parts = _rank_one(window)
        if parts is None:
            return None
        row, column = parts
        if len(row) < 2 or len(column) < 2 or len(row) + len(column) >= len(window):
            return None
        across = self._across(source, "sum", _weighted([(_read(source, dx, 0), by) for dx, by in sorted(row.items())]))
        return _weighted([(Access(across, 0, dy, source[1], "int32"), by) for dy, by in sorted(column.items())])

    def _extreme(self, expr: Expr) -> Expr | None:
        if expr.dtype != "int32" or not isinstance(expr, Call) or expr.function not in ("min", "max"):
            return None
        found: dict[Source, set[tuple[int, int]]] = {}
        if not _gathered(expr, expr.function, found) or len(found) != 1:
            return None
        source, window = next(iter(found.items()))
        columns, rows = sorted({dx for dx, _ in window}), sorted({dy for _, dy in window})
        if len(window) != len(columns) * len(rows) or min(len(columns), len(rows)) < 2:
            return None
        across = self._across(source, expr.function, _chain(expr.function, [_read(source, dx, 0) for dx in columns]))
        return _chain(expr.function, [Access(across, 0, dy, source[1], "int32") for dy in rows])

    def _across(self, source: Source, kind: str, body: Expr) -> str:
        """The name of the stage that computes `body`, of one image across."""
        key = (source, kind, body)
        if key not in self.made:
            stem = f"{self.kernel.name}_across"
            name = next(f"{stem}{n or ''}" for n in range(len(self.taken) + 2) if f"{stem}{n or ''}" not in self.taken)
            self.taken.add(name)
            reach = max(abs(each.dx) for each in tree.accesses(body))
            self.made[key] = Kernel(
                name=name,
                pattern="local",
                mask=(2 * reach + 1, 1),
                bodies=(body,),
                dtype="int32",
                channels=self.kernel.channels,
            )
        return self.made[key].name


def _read(source: Source, dx: int, dy: int) -> Expr:
    image, channel, dtype = source
    return tree.converted(Access(image, dx, dy, channel, dtype), "int32")


def _linear(expr: Expr, factor: int, taps: dict[Source, Taps]) -> bool:
    """Adds `factor` times a tree to `taps`; whether it is a sum of pixels with constant factors."""
    match expr:
        case Access(image, dx, dy, channel, dtype) | Cast(Access(image, dx, dy, channel, dtype), "int32"):
            if dtype not in ("int32", "uint8"):
                return False
            window = taps.setdefault((image, channel, dtype), {})
            window[dx, dy] = window.get((dx, dy), 0) + factor
            return True
        case Unary("-", operand, "int32"):
            return _linear(operand, -factor, taps)
        case Binary("+", left, right, "int32"):
            return _linear(left, factor, taps) and _linear(right, factor, taps)
        case Binary("-", left, right, "int32"):
            return _linear(left, factor, taps) and _linear(right, -factor, taps)
        case Binary("*", Const(value, "int32"), operand) | Binary("*", operand, Const(value, "int32")):
            return _linear(operand, factor * int(value), taps)
    return False


def _gathered(expr: Expr, function: str, found: dict[Source, set[tuple[int, int]]]) -> bool:
    match expr:
        case Access(image, dx, dy, channel, dtype) | Cast(Access(image, dx, dy, channel, dtype), "int32"):
            found.setdefault((image, channel, dtype), set()).add((dx, dy))
            return dtype in ("int32", "uint8")
        case Call(name, arguments, "int32") if name == function:
            return all(_gathered(each, function, found) for each in arguments)
    return False


def _rank_one(window: Taps) -> tuple[dict[int, int], dict[int, int]] | None:
    """(row, column) whose product is the window; None where it is not of rank 1, or its factors grow too large."""
    if not window or max(abs(each) for each in window.values()) >= _MODULUS // 2:
        return None
    rows = sorted({dy for _, dy in window})
    first = {dx: by for (dx, dy), by in window.items() if dy == rows[0]}
    shared = math.gcd(*first.values())
    row = {dx: by // shared for dx, by in first.items()}
    pivot = next(iter(row))
    column = {}
    for dy in rows:
        own = {dx: by for (dx, at), by in window.items() if at == dy}
        factor, rest = divmod(own.get(pivot, 0), row[pivot])
        if rest or own != {dx: factor * by for dx, by in row.items()}:
            return None
        column[dy] = factor
    return row, column


def _weighted(terms: list[tuple[Expr, int]]) -> Expr:
    """The sum of factor times tree."""
    ordered = sorted(terms, key=lambda each: each[1] < 0)  # a positive one first, so that no first term is negated
    total: Expr | None = None
    for value, by in ordered:
        scaled = value if abs(by) == 1 else tree.binary("*", Const(abs(by), "int32"), value)
        if total is None:
            total = scaled if by > 0 else tree.unary("-", scaled)
        else:
            total = tree.binary("+" if by > 0 else "-", total, scaled)
    assert total is not None
    return total


def _chain(function: str, terms: list[Expr]) -> Expr:
    total = terms[0]
    for each in terms[1:]:
        total = tree.call(function, total, each)
    return total


def _rebuilt(expr: Expr, change: object) -> Expr:
    """The same node over operands that `change` has been given."""
    assert callable(change)
    match expr:
        case Unary(op, operand, dtype):
            return Unary(op, change(operand), dtype)
        case Binary(op, left, right, dtype):
            return Binary(op, change(left), change(right), dtype)
        case tree.Select(condition, then, other, dtype):
            return tree.Select(change(condition), change(then), change(other), dtype)
        case Cast(operand, dtype, implicit):
            return Cast(change(operand), dtype, implicit)
        case Call(function, arguments, dtype):
            return Call(function, tuple(change(each) for each in arguments), dtype)
        case tree.Let(name, value, body, dtype):
            return tree.Let(name, change(value), change(body), dtype)
    return expr
