"""Coefficient masks, and the trees that run over their windows.

    sum(m, e)        the sum over the mask of coefficient * e, where e is seen from each pixel of the window
    product(m, e)    the product of e; a coefficient says only whether a pixel takes part (0 or empty: a hole)
    smallest(m, e)   the least e
    largest(m, e)    the greatest e

A hole costs nothing, and neither does a factor of 1. Terms are put together row by row, from left to right, and the
rows from top to bottom; that order is part of the meaning where floats are added.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.expr import Const, Expr, TypeProblem

WIDEST = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """`rows` of coefficients, all of one dtype (int32 or float32), top row first; a hole is 0. Both sides are odd."""

    name: str
    dtype: str
    rows: tuple[tuple[int | float, ...], ...]

    @property
    def width(self) -> int:
        return len(self.rows[0])

    @property
    def height(self) -> int:
        return len(self.rows)

    @property
    def taps(self) -> tuple[tuple[tuple[int, int, int | float], ...], ...]:
        """(dx, dy, coefficient) of every pixel that takes part, row by row; rows of holes only are left out."""
        found = (
            tuple(
                (column - self.width // 2, row - self.height // 2, value)
                for column, value in enumerate(values)
                if value != 0
            )
            for row, values in enumerate(self.rows)
        )
        return tuple(each for each in found if each)


def windowed(kind: str, mask: Mask, expr: Expr) -> Expr:
    """The tree of a window operation: `kind` is sum, product, smallest or largest."""
    rows = mask.taps
    if kind == "sum":
        return _folded("+", [_row_sum(mask, row, expr) for row in rows])
    operation = {"product": "*", "smallest": "min", "largest": "max"}[kind]
    seen = [[tree.promoted(tree.shifted(expr, dx, dy)) for dx, dy, _ in row] for row in rows]
    return _folded(operation, [_folded(operation, row) for row in seen])


WINDOWED = ("sum", "product", "smallest", "largest")


def _row_sum(mask: Mask, row: tuple[tuple[int, int, int | float], ...], expr: Expr) -> Expr:
    total: Expr | None = None
    for dx, dy, value in row:
        seen = tree.promoted(tree.shifted(expr, dx, dy))
        if total is None:
            total = _scaled(mask, value, seen)
        elif value < 0:  # a - 2 * b is a + -2 * b, exactly
            total = tree.binary("-", total, _scaled(mask, -value, seen))
        else:
            total = tree.binary("+", total, _scaled(mask, value, seen))
    assert total is not None
    return total


def _scaled(mask: Mask, value: int | float, seen: Expr) -> Expr:
    dtype = tree.common(mask.dtype, seen.dtype)
    return tree.converted(seen, dtype) if value == 1 else tree.binary("*", Const(value, mask.dtype), seen)


def _folded(operation: str, terms: list[Expr]) -> Expr:
    join: Callable[..., Expr] = tree.call if operation in ("min", "max") else tree.binary
    return functools.reduce(functools.partial(join, operation), terms)


def checked(name: str, rows: tuple[tuple[int | float | None, ...], ...]) -> Mask:
    """A mask from rows of numbers (None is a hole). TypeProblem with one line when the rows are not a mask."""
    width = len(rows[0]) if rows else 0
    if any(len(row) != width for row in rows):
        raise TypeProblem(f"the rows of {name} differ in length")
    if width % 2 == 0 or len(rows) % 2 == 0 or max(width, len(rows)) > WIDEST:
        raise TypeProblem(f"{name} is {width} x {len(rows)}; a mask has odd sides of at most {WIDEST}")
    values = [0 if each is None else each for row in rows for each in row]
    if not any(values):
        raise TypeProblem(f"{name} has nothing but holes")
    dtype = "int32" if all(isinstance(each, int) for each in values) else "float32"
    held = [tree.const(each, dtype).value for each in values]
    if len(rows) * width > 0 and dtype == "int32" and min(held) == tree.INT32[0]:
        raise TypeProblem(f"a coefficient of {name} is too small")
    return Mask(
        name=name, dtype=dtype, rows=tuple(tuple(held[start : start + width]) for start in range(0, len(held), width))
    )
