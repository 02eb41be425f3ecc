"""An ask of a search and its outcome."""

import bisect
from array import array
from collections.abc import Sequence

import numpy as np

from fusiond.tuning.search.gaussian import Reals
from fusiond.tuning.search.points import Levels
from fusiond.tuning.search.values import spreads, standardised


class Asks:
    """All that was asked, in order; what came of it, as far as it is told."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.rows: list[Levels] = []
        self.values = array("d")  #: NaN for what failed and what is out
        self.failed = array("b")
        self.errors = array("d")  #: Standard errors of the values
        self.out: dict[int, None] = {}
        self.told: list[int] = []  #: Those that are not out, in order

    @property
    def seen(self) -> int:
        return len(self.rows)

    def standardised(self, indices: Sequence[int]) -> Reals:
        """Of these, see `fusiond.tuning.search.values`."""
        return standardised(np.array(self.values)[indices], np.array(self.failed, np.bool_)[indices])

    def add(self, number: int, row: Levels) -> None:
        self.numbers.append(number)
        self.rows.append(row)
        self.values.append(np.nan)
        self.failed.append(False)
        self.errors.append(0.0)
        self.out[self.seen - 1] = None

    def spreads(self, indices: Sequence[int]) -> Reals:
        """Of what is measured of these, see `fusiond.tuning.search.values`."""
        values, errors = (np.array(each)[indices] for each in (self.values, self.errors))
        return spreads(values, np.array(self.failed, np.bool_)[indices], errors)

    def tell(self, index: int, value: float | None, error: float = 0.0) -> None:
        del self.out[index]
        bisect.insort(self.told, index)
        self.errors[index] = error
        self.failed[index] = value is None
        self.values[index] = np.nan if value is None else value
