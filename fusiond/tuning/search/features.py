"""Distances between values of a parameter, for the model of `fusiond.tuning.search.gaussian`.

Each feature is a table of squared distances between the levels of one parameter, from 0 to 1. Numbers lie on a line,
by their logarithms where these are spaced more evenly than the numbers themselves (1, 2, 4, 8); labels, truth values
and pairs of values are all equally far apart. Where numbers are not powers, how often two divides them is a feature of
its own: 32 and 64 have in common what 48 has not (warps, banks, vectors). What is not a number among numbers, and a
parameter that does not apply, lie beside the line, each in a direction of its own: all are distances of points in
space, without which there is no correlation (Schoenberg 1938).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from fusiond.model.nouns import Value
from fusiond.strategy.space import Parameter
from fusiond.tuning.search.points import Levels

MOST_TWOS = 6  #: 64 and its multiples are alike
EVEN = 0.3  #: The coefficient of variation of the steps below which values are powers of something


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Feature:
    """A way in which points differ."""

    column: int  #: The position of the parameter that it is about
    squared: NDArray[np.float64]
    """(levels + 1, levels + 1); the last row and column are INACTIVE's, so that -1 indexes them."""


def features(parameters: Sequence[Parameter]) -> tuple[Feature, ...]:
    """Of all parameters that can differ."""
    found: list[Feature] = []
    for column, parameter in enumerate(parameters):
        if len(parameter.values) > 1 or parameter.when is not None:
            found.append(_feature(column, _line(parameter.values)))
            if (twos := _twos(parameter.values)) is not None:
                found.append(_feature(column, twos))
    return tuple(found)


def rough(found: Sequence[Feature]) -> tuple[Feature, ...]:
    """The same with the distances themselves in place of their squares. A process over these is no smooth curve but a
    random walk along each parameter: between two values that were tried, a third can be better than both."""
    return tuple(Feature(column=each.column, squared=np.sqrt(each.squared)) for each in found)


def squared(each: Feature, left: Levels, right: Levels) -> NDArray[np.float64]:
    """(left, right): the squared distances of points."""
    found: NDArray[np.float64] = each.squared[left[:, each.column]][:, right[:, each.column]]
    return found


def _feature(column: int, places: Sequence[float | None]) -> Feature:
    """From the places of the values on a line from 0 to 1; None is beside it, as far from its middle as makes two such
    places 1 apart."""
    table = np.ones((len(places) + 1, len(places) + 1))
    for k, one in enumerate((*places, None)):
        for j, other in enumerate((*places, None)):
            if one is not None and other is not None:
                table[k, j] = (one - other) ** 2
            elif one is not None or other is not None:
                table[k, j] = 0.5 + ((other if one is None else one) - 0.5) ** 2  # type: ignore[operator]
    np.fill_diagonal(table, 0.0)
    return Feature(column=column, squared=table)


def _line(values: Sequence[Value]) -> list[float | None]:
    numbers = [float(each) for each in values if _is_number(each)]
    if len(numbers) < 3:
        return [None] * len(values)
    logs = min(numbers) > 0 and _unevenness([math.log(each) for each in numbers]) < _unevenness(numbers)
    scale = math.log if logs else float
    return _scaled([scale(each) if _is_number(each) else None for each in values])


def _scaled(places: Sequence[float | None]) -> list[float | None]:
    """From 0 to 1."""
    known = [each for each in places if each is not None]
    low, width = min(known), max(known) - min(known)
    return [None if each is None else (each - low) / width for each in places]


def _twos(values: Sequence[Value]) -> list[float | None] | None:
    """How often two divides each, scaled; None where that says nothing new."""
    whole = [each for each in values if type(each) is int and each > 0]
    if len(whole) < 5 or len(whole) < len([each for each in values if _is_number(each)]):
        return None
    counts = {each: min(MOST_TWOS, (each & -each).bit_length() - 1) for each in whole}
    if _unevenness([math.log(each) for each in whole]) <= EVEN or len(set(counts.values())) == 1:
        return None
    return _scaled([counts[each] if type(each) is int else None for each in values])


def _unevenness(numbers: Sequence[float]) -> float:
    """The coefficient of variation of the steps between neighbours."""
    steps = np.abs(np.diff(sorted(numbers)))
    mean = float(steps.mean())
    return float(steps.std()) / mean if mean > 0 else math.inf


def _is_number(value: Value) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
