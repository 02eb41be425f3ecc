"""What is known of the points of a space from elsewhere: times of other searches, facts of compiled candidates."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from fusiond.model.nouns import Config
from fusiond.tuning.search import gaussian
from fusiond.tuning.search.asks import chosen, standardised
from fusiond.tuning.search.features import Feature
from fusiond.tuning.search.gaussian import Process, Reals
from fusiond.tuning.search.points import Levels, Points

MODELLED = 250  #: Trials in the model: of more, the best half and as many of the others
FITTED = 120  #: Trials from which lengths are fitted, chosen likewise
LEAST_DONATED = 5  #: Of a donor of fewer configs nothing is learned
_PART = 4096

Donor: TypeAlias = "Sequence[tuple[Config, float | None]]"
"""Configs of this space that were tried elsewhere, and the logarithm of how fast they were there, in any unit; None for
those that failed. As a column: configs of which a fact is known, and the fact."""


class DonorTrials:
    """What another search of the space has measured, and between that what a Gaussian process makes of it."""

    def __init__(self, donor: Donor, features: Sequence[Feature], points: Points, *, clip: bool = True) -> None:
        """`clip`: how slow the slow ones are says nothing about the fast ones; how many registers they take may."""
        rows = np.stack([points.levels(config) for config, _ in donor])
        logs = np.array([np.nan if value is None else value for _, value in donor])
        values = standardised(logs, np.isnan(logs), clip=clip)
        kept = chosen(values, MODELLED)
        fitted = chosen(values, FITTED)
        lengths = gaussian.fit(features, rows[fitted], values[fitted])
        self._process = Process(features, rows[:0], lengths, rows[kept])
        self._values = values[kept]
        self._known = {row.tobytes(): float(value) for row, value in zip(rows, values, strict=True)}

    def at(self, points: Levels) -> Reals:
        """Standardised, at each point."""
        found = np.concatenate(
            [
                self._process.expected(self._values, points[begin : begin + _PART])[0]
                for begin in range(0, len(points), _PART)
            ]
            or [np.empty(0)]
        )
        for k, row in enumerate(points):
            if (value := self._known.get(row.tobytes())) is not None:
                found[k] = value
        return found
