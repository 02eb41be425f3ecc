"""Which config to try next: ask and tell, in memory; our store is the truth.

Seeds come first. A space no larger than the budget is searched whole, in its own order. Otherwise a sampler asks
(`fusiond.tuning.search.sampler`), after configs drawn by rank from those of which something is known before (`prior`),
where there are any. Random states are drawn from (job's seed, number of the ask), so that a study that was
interrupted and rebuilt from its asks and trials goes on exactly as it would have gone on (for equal measurements).

Every ask is handed to `remember`. An ask that was never written down is asked again in the same words, so it is enough
to store asks together with the next trial.
"""

import hashlib
import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fusiond.model.nouns import Config
from fusiond.model.outcomes import Ask, Outcome, Trial
from fusiond.strategy.space import Space
from fusiond.tuning.search.asks import spread
from fusiond.tuning.search.donors import Donor
from fusiond.tuning.search.points import Points
from fusiond.tuning.search.sampler import PointSampler

STARTUP = 10  #: Asks that are drawn from the prior, where there is one


class Study:
    """`next` hands out asks until the budget is spent or nothing is left; `tell` takes what became of them.

    Several asks may be out at once: the next candidates compile while one is measured."""

    def __init__(
        self,
        space: Space,
        seeds: Sequence[tuple[str, Config]],
        *,
        budget: int,
        seed: int,
        remember: Callable[[Ask], None],
        prior: Sequence[Config] = (),
        donors: Sequence[Donor] = (),
        columns: Sequence[Donor] = (),
        asks: Iterable[Ask] = (),
        trials: Iterable[Trial] = (),
    ) -> None:
        """`prior`: configs that something is known of, the most promising first; what is not a point of the space is
        left out. `donors`: what other searches of the same configs found (another device, other sizes, a workload that
        is nearly the same), `columns`: facts of configs that may explain their times (registers, spills); likewise.
        `asks` and `trials` are those of an earlier session of the same job, in order."""
        self._space = space
        self._seed = seed
        self._remember = remember
        self._points = Points(space)
        self.whole = not self._points.more_than(budget)  #: The budget covers the space, so all of it is tried
        self.budget = budget if self._points.count is None else min(budget, self._points.count)
        self._told: set[Config] = set()
        self._asked: set[Config] = set()
        self._out: dict[int, Any] = {}  #: Sequence -> what the sampler calls that ask
        self._pending: list[Ask] = []
        self._sequence = 0
        self._seeds = seeds
        self._prior = tuple(each for each in prior if not space.problems(each))
        self._grid = space.points() if self.whole else iter(())
        self._sampler: PointSampler | None = None
        if not self.whole:
            known = self._sound(donors), self._sound(columns)
            self._sampler = PointSampler(self._points, self._number(0), *known)
        self._rebuild(asks, trials)

    def next(self) -> Ask | None:
        """The next config to try; None when there is nothing more to ask."""
        if self._pending:
            return self._pending.pop(0)
        if len(self._asked) >= self.budget:
            return None
        for name, config in self._seeds:
            if config not in self._asked:
                return self._ask(config, f"seed:{name}")
        if self.whole:
            following = next((each for each in self._grid if each not in self._asked), None)
            return None if following is None else self._ask(following, "grid")
        if len(self._asked) < STARTUP and (drawn := self._from_prior()) is not None:
            return self._ask(drawn, "prior")
        assert self._sampler is not None
        chosen = self._sampler.choose()
        return None if chosen is None else self._ask(chosen, "sampler")

    def tell(self, ask: Ask, trial: Trial) -> None:
        """What became of an ask."""
        self._told.add(ask.config)
        self._settle(self._out.pop(ask.sequence), trial)

    @property
    def done(self) -> int:
        """Trials told so far."""
        return len(self._told)

    # --- asking ---

    def _ask(self, config: Config, origin: str) -> Ask:
        ask = Ask(sequence=self._sequence, config=config, origin=origin)
        self._remember(ask)
        self._issue(ask)
        return ask

    def _issue(self, ask: Ask) -> None:
        self._sequence = ask.sequence + 1
        self._asked.add(ask.config)
        self._out[ask.sequence] = None if self._sampler is None else self._sampler.add(ask.config)

    def _settle(self, known: Any, trial: Trial) -> None:
        """Only a measured trial has a value."""
        value, error = None, 0.0
        if trial.outcome is Outcome.MEASURED and trial.ratio:
            value, error = math.log(trial.ratio), spread(trial.measurement)
        if self._sampler is not None:
            self._sampler.tell(known, value, error)

    def _from_prior(self) -> Config | None:
        """An untried config of the prior, the first one twice as likely as the second; None when all are tried."""
        left = [(each, 1 / rank) for rank, each in enumerate(self._prior, 1) if each not in self._asked]
        if not left:
            return None
        configs, weights = zip(*left, strict=True)
        found: Config = random.Random(self._number(self._sequence)).choices(configs, weights)[0]
        return found

    def _sound(self, donors: Sequence[Donor]) -> list[Donor]:
        return [[(config, value) for config, value in each if not self._space.problems(config)] for each in donors]

    def _number(self, sequence: int) -> int:
        """A 32-bit number from (job's seed, number of the ask)."""
        digest = hashlib.blake2b(f"{self._seed}:{sequence}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big")

    def _rebuild(self, asks: Iterable[Ask], trials: Iterable[Trial]) -> None:
        results = {trial.sequence: trial for trial in trials}
        self._told = {trial.config for trial in results.values()}
        for ask in asks:
            if ask.origin == "invalid":  # of a sampler that there was: it broke a restriction
                self._sequence = ask.sequence + 1
                continue
            self._issue(ask)
            if ask.sequence in results:
                self._settle(self._out.pop(ask.sequence), results[ask.sequence])
            else:
                self._pending.append(ask)
