"""The asks of a search, and their values as the model is given them: standardised, and reduced to those that matter."""

import bisect
import math
from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fusiond.model.outcomes import Measurement
from fusiond.tuning.search.gaussian import Reals
from fusiond.tuning.search.points import Levels

LEAST_SAMPLES = 3
MOST_SPREAD = 1.0  #: What varies more than all values do says nothing more about it
CLIPPED = 0.3  #: This share of the values, the slowest, count as the fastest of them


class Asks:
    """All that was asked, in order; what came of it, as far as it is told."""

    def __init__(self) -> None:
        self.rows: list[Levels] = []
        self.values = array("d")  #: NaN for what failed and what is out
        self.failed = array("b")
        self.errors = array("d")  #: Standard errors of the values
        self.told: list[int] = []  #: Those that are not out, in order

    @property
    def seen(self) -> int:
        return len(self.rows)

    def standardised(self, indices: Sequence[int]) -> Reals:
        """Of these, see the function."""
        return standardised(np.array(self.values)[indices], np.array(self.failed, np.bool_)[indices])

    def spreads(self, indices: Sequence[int]) -> Reals:
        """Of what is measured of these, see the function."""
        values, errors = (np.array(each)[indices] for each in (self.values, self.errors))
        return spreads(values, np.array(self.failed, np.bool_)[indices], errors)

    def add(self, row: Levels) -> None:
        self.rows.append(row)
        self.values.append(np.nan)
        self.failed.append(False)
        self.errors.append(0.0)

    def tell(self, index: int, value: float | None, error: float = 0.0) -> None:
        bisect.insort(self.told, index)
        self.errors[index] = error
        self.failed[index] = value is None
        self.values[index] = np.nan if value is None else value


def spread(measurement: Measurement | None) -> float:
    """The standard error of the logarithm of a measured ratio (of a time, where it was measured alone): that of a
    median of normal samples, from their median absolute deviation. 0 where fewer than three samples say nothing."""
    if measurement is None or len(measurement.span_us) < LEAST_SAMPLES:
        return 0.0
    logs = np.log(measurement.span_us)
    if measurement.baseline_us:
        pairs = min(len(logs), len(measurement.baseline_us))
        logs = logs[:pairs] - np.log(measurement.baseline_us[:pairs])
    deviation = 1.4826 * float(np.median(np.abs(logs - np.median(logs))))
    return deviation * math.sqrt(math.pi / 2 / len(logs))


def spreads(values: Reals, failed: NDArray[np.bool_], errors: Reals) -> Reals:
    """Standard errors of values as variances of what `standardised` makes of them; what failed has none."""
    measured = np.isfinite(values)
    if not measured.any():
        return np.zeros(len(values))
    lowest = float(np.quantile(values[measured], CLIPPED))
    told = np.maximum(np.where(failed, lowest, values)[measured | failed], lowest)
    found: Reals = np.where(measured, errors, 0.0) ** 2 / (told.var() + 1e-9)
    return np.minimum(found, MOST_SPREAD)


def standardised(values: Reals, failed: NDArray[np.bool_], *, clip: bool = True) -> Reals:
    """Values with mean 0 and variance 1, NaN where they are out. The lowest are clipped: how slow the slow ones are
    says nothing about the fast ones, and takes lengths for it. What failed is as slow as the slowest then."""
    known = np.isfinite(values) | failed
    found = np.full(len(values), np.nan)
    measured = values[np.isfinite(values)]
    if known.any():
        lowest = float(np.quantile(measured, CLIPPED if clip else 0.0)) if len(measured) else 0.0
        told = np.maximum(np.where(failed, lowest, values)[known], lowest)
        found[known] = (told - told.mean()) / (told.std() + 1e-9)
    return found


def chosen(values: Reals, many: int) -> list[int]:
    """Up to so many of them, in order: the best half, and of the others every so many."""
    if len(values) <= many:
        return list(range(len(values)))
    order = np.argsort(-values, kind="stable")
    rest = order[many // 2 :]
    spread = rest[np.linspace(0, len(rest) - 1, many - many // 2).round().astype(int)]
    return sorted({*order[: many // 2].tolist(), *spread.tolist()})
