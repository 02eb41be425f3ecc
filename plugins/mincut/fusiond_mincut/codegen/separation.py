"""Windows that are a row behind a column: computed as two stages, exactly.

    gx: (1 2 1; 2 4 2; 1 2 1) over sx      -->      gx_across: (1 2 1) over sx,   gx: (1; 2; 1) over gx_across

A sum of int32 pixels with constant factors wraps round, so it is the same in any order, and a matrix of factors of rank
1 is a column times a row. The same holds for the least and the greatest of int32 pixels in a rectangle. Sums of floats
are left as they are, because their order is part of the meaning, unless the pipeline is `relaxed`.

What comes out is a pipeline of the same images and more stages. It is the same outside the image too: borders exchange
the columns and the rows of an index apart, so the row takes the columns' and the column the rows'. Where the border is
a constant, a row outside is one of constants, and the constant of what is computed across is theirs.
"""

import dataclasses
import functools
import itertools
import math
from dataclasses import dataclass, field

from fusiond_mincut.analysis.blocks import KernelBlock
from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.expr import BinaryOperation, Cast, Const, Expr, FunctionCall, PixelAccess, UnaryOperation
from fusiond_mincut.frontend.graph import Border, ImageKernel, Pipeline

Source = tuple[str, int | None, str]  #: Image, channel, dtype
Number = int | float
Taps = dict[tuple[int, int], Number]  #: (dx, dy) -> factor
_MODULUS = 1 << 32
_NEAR = 1e-5  #: Of the greatest factor: how far a relaxed matrix may be from rank 1


def separated(pipeline: Pipeline, block: KernelBlock, least: int = 1) -> tuple[Pipeline, KernelBlock]:
    """The pipeline and the block with windows of at least so many pixels split, where that takes fewer operations."""
    if all(len(pipeline.kernel(name).accesses) < least for name in block.kernels):
        return pipeline, block
    kernels: list[ImageKernel] = []
    members: list[str] = []
    taken = set(pipeline.images)
    for kernel in pipeline.kernels:
        if kernel.name in block.kernels:
            split = _Split(kernel=kernel, taken=taken, least=least, relaxed=pipeline.accuracy == "relaxed")
            bodies = tuple(split.body(each) for each in kernel.bodies)
            kernels += split.made.values()
            members += [each.name for each in split.made.values()]
            if split.made:
                kernel = dataclasses.replace(kernel, bodies=bodies, borders={**kernel.borders, **split.borders})
            members.append(kernel.name)
        kernels.append(kernel)
    whole = dataclasses.replace(pipeline, kernels=tuple(kernels))
    return whole, dataclasses.replace(block, kernels=tuple(members))


@dataclass(slots=True)
class _Split:
    kernel: ImageKernel
    taken: set[str]
    least: int
    relaxed: bool
    borders: dict[str, Border] = field(default_factory=dict)  #: Of what is computed across, for the kernel
    made: dict[tuple[object, ...], ImageKernel] = field(default_factory=dict)
    """What is computed across -> the stage that does it."""

    def body(self, expr: Expr) -> Expr:
        if not any(isinstance(each, BinaryOperation | FunctionCall) for each in tree.walk(expr)):
            return expr
        found = self._sum(expr) or self._extreme(expr)
        if found is not None:
            return found
        return tree.rebuilt(expr, self.body)

    def _sum(self, expr: Expr) -> Expr | None:
        dtype = expr.dtype
        if not self._free(dtype) or not isinstance(expr, BinaryOperation) or expr.op not in ("+", "-"):
            return None
        taps: dict[Source, Taps] = {}
        if not linear(expr, 1, taps):
            return None
        parts = [(source, {at: by for at, by in window.items() if by}) for source, window in taps.items()]
        split = [self._column(source, window, dtype) for source, window in parts]
        if not any(split):
            return expr  # none of its own sums is looked at again
        terms: list[tuple[Expr, Number]] = []
        for (source, window), column in zip(parts, split, strict=True):
            terms += column or [(_read(source, dx, dtype, dy), by) for (dx, dy), by in window.items()]
        return _weighted(terms, dtype)

    def _column(self, source: Source, window: Taps, dtype: str) -> list[tuple[Expr, Number]] | None:
        """The column's terms over the stage that computes the row; None where the window is not split."""
        if len(window) < self.least or source[0] in self.kernel.steps:
            return None
        parts = _rank_one(window) if dtype == "int32" else _nearly_rank_one(window)
        if parts is None:
            return None
        row, column = parts
        if len(row) < 2 or len(column) < 2 or len(row) + len(column) >= len(window):
            return None
        body = _weighted([(_read(source, dx, dtype), by) for dx, by in sorted(row.items())], dtype)
        across = self._across(source, "sum", body, sum(row.values()))
        return [(PixelAccess(across, 0, dy, source[1], dtype), by) for dy, by in sorted(column.items())]

    def _free(self, dtype: str) -> bool:
        """Whether operations of a type may be put in another order."""
        return dtype == "int32" or (dtype == "float32" and self.relaxed)

    def _extreme(self, expr: Expr) -> Expr | None:
        dtype = expr.dtype
        if not self._free(dtype) or not isinstance(expr, FunctionCall) or expr.function not in tree.EXTREMES:
            return None
        found: dict[Source, set[tuple[int, int]]] = {}
        if not gathered(expr, expr.function, found) or len(found) != 1:
            return None
        source, window = next(iter(found.items()))
        if source[0] in self.kernel.steps:
            return None
        columns, rows = sorted({dx for dx, _ in window}), sorted({dy for _, dy in window})
        if len(window) != len(columns) * len(rows) or min(len(columns), len(rows)) < 2 or len(window) < self.least:
            return None
        join = functools.partial(tree.call, expr.function)
        body = functools.reduce(join, [_read(source, dx, dtype) for dx in columns])
        across = self._across(source, expr.function, body, 1)
        below: list[Expr] = [PixelAccess(across, 0, dy, source[1], dtype) for dy in rows]
        return functools.reduce(join, below)

    def _across(self, source: Source, kind: str, body: Expr, weight: Number) -> str:
        """The name of the stage that computes `body`, of one image across; of constants it gives `weight` times one."""
        key = (source, kind, body)
        if key not in self.made:
            name = free_name(f"{self.kernel.name}_across", self.taken)
            reach = max(abs(each.dx) for each in tree.accesses(body))
            self.made[key] = ImageKernel(
                name=name,
                pattern="local",
                mask=(2 * reach + 1, 1),
                bodies=(body,),
                dtype=body.dtype,
                channels=self.kernel.channels,
                area=self.kernel.area,
                borders={source[0]: self.kernel.border(source[0])},
            )
            border = self.kernel.border(source[0])
            value = border.value * weight
            wrapped = (int(value) + _MODULUS // 2) % _MODULUS - _MODULUS // 2 if body.dtype == "int32" else value
            self.borders[name] = dataclasses.replace(border, value=wrapped)
        return self.made[key].name


def free_name(stem: str, taken: set[str]) -> str:
    """The stem, with the least number behind it that makes a new name; from now on that is taken."""
    name = next(each for n in itertools.count() if (each := f"{stem}{n or ''}") not in taken)
    taken.add(name)
    return name


def _read(source: Source, dx: int, dtype: str, dy: int = 0) -> Expr:
    image, channel, own = source
    return tree.converted(PixelAccess(image, dx, dy, channel, own), dtype)


def linear(expr: Expr, factor: Number, taps: dict[Source, Taps]) -> bool:
    """Adds `factor` times a tree to `taps`; whether it is a sum of pixels with constant factors, of one dtype."""
    match expr:
        case PixelAccess(image, dx, dy, channel, dtype) | Cast(
            PixelAccess(image, dx, dy, channel, dtype), "int32" | "float32"
        ):
            if image in tree.POSITIONS.values() or (dtype.startswith("float") and expr.dtype == "int32"):
                return False
            window = taps.setdefault((image, channel, dtype), {})
            window[dx, dy] = window.get((dx, dy), 0) + factor
            return True
        case UnaryOperation("-", operand, "int32" | "float32"):
            return linear(operand, -factor, taps)
        case BinaryOperation("+", left, right, "int32" | "float32"):
            return linear(left, factor, taps) and linear(right, factor, taps)
        case BinaryOperation("-", left, right, "int32" | "float32"):
            return linear(left, factor, taps) and linear(right, -factor, taps)
        case BinaryOperation("*", Const(value), operand, "int32" | "float32") | BinaryOperation(
            "*", operand, Const(value)
        ):
            return linear(operand, factor * value, taps)
        case BinaryOperation("*", Cast(Const(value)), operand, "float32"):
            return linear(operand, factor * value, taps)
    return False


def gathered(expr: Expr, function: str, found: dict[Source, set[tuple[int, int]]]) -> bool:
    match expr:
        case PixelAccess(image, dx, dy, channel, dtype) | Cast(
            PixelAccess(image, dx, dy, channel, dtype), "int32" | "float32"
        ):
            if image in tree.POSITIONS.values():
                return False
            found.setdefault((image, channel, dtype), set()).add((dx, dy))
            return not (dtype.startswith("float") and expr.dtype == "int32")
        case FunctionCall(name, arguments, "int32" | "float32") if name == function:
            return all(gathered(each, function, found) for each in arguments)
    return False


def _rank_one(window: Taps) -> tuple[dict[int, Number], dict[int, Number]] | None:
    """(row, column) whose product is the window, exactly; None where it is not of rank 1, or large."""
    if not window or max(abs(each) for each in window.values()) >= _MODULUS // 2:
        return None
    window = {at: int(factor) for at, factor in window.items()}
    rows = sorted({dy for _, dy in window})
    first = {dx: by for (dx, dy), by in window.items() if dy == rows[0]}
    shared = math.gcd(*map(int, first.values()))
    row: dict[int, Number] = {dx: by // shared for dx, by in first.items()}
    pivot = next(iter(row))
    column: dict[int, Number] = {}
    for dy in rows:
        own = {dx: by for (dx, at), by in window.items() if at == dy}
        factor, rest = divmod(own.get(pivot, 0), row[pivot])
        if rest or own != {dx: factor * by for dx, by in row.items()}:
            return None
        column[dy] = factor
    return row, column


def _nearly_rank_one(window: Taps) -> tuple[dict[int, Number], dict[int, Number]] | None:
    """The same for floats, up to what rounds away in single precision."""
    if not window:
        return None
    greatest = max(window, key=lambda at: abs(window[at]))
    row = {dx: window[dx, greatest[1]] / window[greatest] for dx, dy in window if dy == greatest[1]}
    column = {dy: window[greatest[0], dy] for dx, dy in window if dx == greatest[0]}
    near = _NEAR * abs(window[greatest])
    rectangle = ((dx, dy) for dx in {dx for dx, _ in window} for dy in {dy for _, dy in window})
    same = all(abs(window.get((dx, dy), 0) - row.get(dx, 0) * column.get(dy, 0)) <= near for dx, dy in rectangle)
    return (row, column) if same else None


def _weighted(terms: list[tuple[Expr, Number]], dtype: str) -> Expr:
    """The sum of factor times tree."""
    ordered = sorted(terms, key=lambda each: each[1] < 0)  # a positive one first, so that no first term is negated
    total: Expr | None = None
    for value, by in ordered:
        scaled = value if abs(by) == 1 else tree.binary("*", tree.const(abs(by), dtype), value)
        if total is None:
            total = scaled if by > 0 else tree.unary("-", scaled)
        else:
            total = tree.binary("+" if by > 0 else "-", total, scaled)
    assert total is not None
    return total
