"""Evaluates an expression over many configs at once, one column per name.

Whole numbers are calculated in NumPy; whatever could be an error or leave 64 bits is given to the scalar evaluator, so
that both say the same, errors included. `and` and `or` look at their right side only in the rows that need it.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fusiond.model.language.expressions import LIMIT, Expression
from fusiond.model.language.grammar import Call, Literal, Name, Node

Column: TypeAlias = "NDArray[Any]"  #: One value for each row: int64, bool, or objects

_SAFE = float(LIMIT) / 2
_FUNCTIONS: Mapping[str, Callable[[Column, Column], Column]] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.floor_divide,
    "//": np.floor_divide,
    "%": np.remainder,
    "ceil_div": lambda left, right: -(-left // right),
}


class _ScalarNeeded(Exception):
    """A row may be an error, or mixes types: the scalar evaluator decides."""


def column(values: tuple[object, ...]) -> Column:
    """The values as a column: int64 where all are whole numbers of 62 bits, bool where all are, else objects (a float
    is its text, as in `fusiond.strategy.space`)."""
    if all(type(each) is int and abs(each) < _SAFE for each in values):
        return np.array(values, np.int64)
    if all(type(each) is bool for each in values):
        return np.array(values, np.bool_)
    found = np.empty(len(values), object)
    found[:] = [str(each) if isinstance(each, float) else each for each in values]
    return found


def holds(expression: Expression, columns: Mapping[str, Column], rows: int) -> NDArray[np.bool_]:
    """In which of `rows` rows the expression holds; `columns` has a column for each of its names. ExpressionError as
    the scalar evaluator has it, for the first row that is one."""
    try:
        return _truth(_evaluate(expression.root, columns, rows))
    except _ScalarNeeded:
        names = sorted(expression.names)
        listed = [columns[name].tolist() for name in names]
        each_row = zip(*listed, strict=True) if names else [()] * rows
        return np.fromiter(
            (expression.holds(dict(zip(names, row, strict=True))) for row in each_row), np.bool_, count=rows
        )


def _evaluate(node: Node, columns: Mapping[str, Column], rows: int) -> Column:
    if isinstance(node, Literal):
        return np.full(rows, node.value, None if isinstance(node.value, int) else object)
    if isinstance(node, Name):
        return columns[node.name]
    if node.operator in ("and", "or"):
        return _short_circuit(node, columns, rows)
    values = [_evaluate(each, columns, rows) for each in node.operands]
    if node.operator == "not":
        return ~_truth(values[0])
    if node.operator in ("==", "!="):
        equal: Column = np.asarray(values[0] == values[1], np.bool_)
        return equal if node.operator == "==" else ~equal
    if any(each.dtype != np.int64 for each in values):
        raise _ScalarNeeded
    return _calculate(node.operator, values)


def _short_circuit(node: Call, columns: Mapping[str, Column], rows: int) -> Column:
    found = _truth(_evaluate(node.operands[0], columns, rows)).copy()
    open_ = found if node.operator == "and" else ~found
    needed = np.flatnonzero(open_)
    if len(needed):
        part = {name: each[needed] for name, each in columns.items()}
        found[needed] = _truth(_evaluate(node.operands[1], part, len(needed)))
    return found


def _calculate(name: str, values: list[Column]) -> Column:
    if len(values) == 1 and name == "-":
        return -values[0]
    if name in ("min", "max"):
        extreme: Column = np.minimum.reduce(values) if name == "min" else np.maximum.reduce(values)
        return extreme
    left, right = values
    if name in ("/", "//", "%", "ceil_div") and (right == 0).any():
        raise _ScalarNeeded
    function = _FUNCTIONS[name]
    if name in ("+", "-", "*") and np.abs(function(left.astype(float), right.astype(float))).max(initial=0) >= _SAFE:
        raise _ScalarNeeded
    found = function(left, right)
    if name == "/" and (found * right != left).any():
        raise _ScalarNeeded
    return found


def _truth(values: Column) -> NDArray[np.bool_]:
    if values.dtype != np.bool_:
        raise _ScalarNeeded
    return values
