"""How likely a point is not to fail."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fusiond.tuning.search import gaussian
from fusiond.tuning.search.features import Feature
from fusiond.tuning.search.gaussian import Reals
from fusiond.tuning.search.points import Levels

FAILURE_SHARPNESS = 4.0  #: A failure says as much about its surroundings as a time does at half the prior's lengths


class Safety:
    """How likely a point is not to fail: what became of those around it, weighted by their correlation with it."""

    def __init__(self, features: Sequence[Feature], pool: Levels) -> None:
        weights = gaussian.prior_lengths(features).weights * FAILURE_SHARPNESS
        self._near = gaussian.Correlations(features, weights, pool)
        self.failures = 0
        self._told: list[tuple[Levels, bool]] = []
        self._summed = 0
        self._sums = np.zeros((2, len(pool)))

    def tell(self, row: Levels, sound: bool) -> None:
        self._told.append((row, sound))
        self.failures += not sound

    def look(self) -> None:
        """Take in what was told, one after the other, so that the sums are the same after an interruption. At each ask,
        failures or none: the first of them must not pay for all that was told before."""
        for row, sound in self._told[self._summed :]:
            near = self._near.to_pool(row[None, :])[0]
            self._sums[0] += near
            if sound:
                self._sums[1] += near
        self._summed = len(self._told)

    def chance(self, extra: Levels | None) -> Reals:
        """At each point of the pool, then of `extra`. One sound trial is taken for granted everywhere."""
        self.look()
        sums = self._sums
        if extra is not None and len(extra):
            near = self._near.between(np.stack([row for row, _ in self._told]), extra)
            sound = np.array([each for _, each in self._told], float)
            sums = np.concatenate([sums, [near.sum(axis=0), sound @ near]], axis=1)
        found: Reals = (sums[1] + 1) / (sums[0] + 1)
        return found
