"""Which config to try next: ask and tell, in memory; our store is the truth.

Seeds come first. A space no larger than the budget is searched whole, in its own order. Otherwise a sampler asks: `gp`
(`fusiond.tuning.search.sampler`), or `tpe` (`fusiond.tuning.search.tpe`), after a start-up that is random, or drawn by
rank from configs of which something is known before (`prior`). Random states are drawn from (job's seed, number of the
ask), so that a study that was interrupted and rebuilt from its asks and trials goes on exactly as it would have gone on
(for equal measurements).

Every ask is handed to `remember`. Those of TPE's that break a restriction are remembered too, because they are part of
what it knows. An ask that was never written down is asked again in the same words, so it is enough to store asks
together with the next trial.
"""

import hashlib
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fusiond.model.nouns import GP, Config, Value
from fusiond.model.outcomes import Ask, Outcome, Trial
from fusiond.strategy.space import Space
from fusiond.tuning.search.asks import spread
from fusiond.tuning.search.donors import Donor
from fusiond.tuning.search.points import Points
from fusiond.tuning.search.sampler import PointSampler

if TYPE_CHECKING:
    from fusiond.tuning.search.tpe import Tpe

STARTUP = 10  #: Asks that are drawn from the prior, where there is one
INVALID_LIMIT = 8  #: After this many asks in a row that break a restriction, a point near the last one is taken instead
DRAWS = 100  #: Points that are drawn to find an untried one, before all are looked at
ENUMERATED = 1_000_000


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
        sampler: str = GP,
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
        self._by_points: PointSampler | None = None
        self._tpe: Tpe | None = None
        if not self.whole and sampler == GP:
            known = self._sound(donors), self._sound(columns)
            self._by_points = PointSampler(self._points, self._number(0), *known)
        elif not self.whole:
            from fusiond.tuning.search import tpe  # Optuna takes its time

            self._tpe = tpe.Tpe(space, self._number)
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
        if self._tpe is not None:
            return self._ask_tpe(self._tpe)
        assert self._by_points is not None
        chosen = self._by_points.choose()
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

    def _ask(self, config: Config, origin: str, known: Any = None) -> Ask:
        """`known`: what the sampler calls the ask, where it knows of it already."""
        ask = Ask(sequence=self._sequence, config=config, origin=origin)
        self._remember(ask)
        self._issue(ask, known)
        return ask

    def _issue(self, ask: Ask, known: Any = None) -> None:
        self._sequence = ask.sequence + 1
        self._asked.add(ask.config)
        self._out[ask.sequence] = self._added(ask.config) if known is None else known

    def _added(self, config: Config) -> Any:
        sampler = self._by_points or self._tpe
        return None if sampler is None else sampler.add(config)

    def _settle(self, known: Any, trial: Trial | None) -> None:
        """Only a measured trial has a value."""
        value, error = None, 0.0
        if trial is not None and trial.outcome is Outcome.MEASURED and trial.ratio:
            value, error = math.log(trial.ratio), spread(trial.measurement)
        if (sampler := self._by_points or self._tpe) is not None:
            sampler.tell(known, value, error)

    def _from_prior(self) -> Config | None:
        """An untried config of the prior, the first one twice as likely as the second; None when all are tried."""
        left = [(each, 1 / rank) for rank, each in enumerate(self._prior, 1) if each not in self._asked]
        if not left:
            return None
        configs, weights = zip(*left, strict=True)
        found: Config = random.Random(self._number(self._sequence)).choices(configs, weights)[0]
        return found

    def _ask_tpe(self, tpe: "Tpe") -> Ask | None:
        """What TPE proposes; a point next to it where that is known, or breaks restrictions again and again."""
        config = Config(())
        for _ in range(INVALID_LIMIT):
            trial, config = tpe.propose(self._sequence)
            if self._space.broken(config):
                self._remember(Ask(sequence=self._sequence, config=config, origin="invalid"))
                self._sequence += 1
                self._settle(trial, None)
            elif config in self._asked:
                tpe.forget(trial)
                break
            else:
                return self._ask(config, "sampler", trial)
        near = self._near(config)
        return None if near is None else self._ask(near, "neighbour")

    def _near(self, config: Config) -> Config | None:
        """An untried point that differs from this one in one parameter; else any; None when none is found."""
        generator = random.Random(self._number(self._sequence))
        for parameter in generator.sample(self._space.parameters, len(self._space.parameters)):
            for value in generator.sample(parameter.values, len(parameter.values)):
                other = self._completed({**config, parameter.name: value}, generator)
                if other not in self._asked and not self._space.problems(other):
                    return other
        drawn = self._points.draw(DRAWS, np.random.default_rng(self._number(self._sequence)))
        found = (other for other in map(self._points.config, drawn) if other not in self._asked)
        return next(found, None) or self._any_untried()

    def _any_untried(self) -> Config | None:
        if self._points.count is None or self._points.count > ENUMERATED:
            return None
        return next((each for each in map(self._points.config, self._points.all()) if each not in self._asked), None)

    def _completed(self, values: Mapping[str, Value], generator: random.Random) -> Config:
        """The values that apply, with those that now apply too drawn at random."""
        chosen: dict[str, Value] = {}
        for parameter in self._space.parameters:
            if self._space.active(chosen, parameter):
                given = parameter.name in values
                chosen[parameter.name] = values[parameter.name] if given else generator.choice(parameter.values)
        return Config.of(chosen)

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
            if ask.origin == "invalid":
                self._sequence = ask.sequence + 1
                self._settle(self._added(ask.config), None)
                continue
            self._issue(ask)
            if ask.sequence in results:
                self._settle(self._out.pop(ask.sequence), results[ask.sequence])
            else:
                self._pending.append(ask)
