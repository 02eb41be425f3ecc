"""Which config to try next: Optuna's ask and tell, in memory; our store is the truth.

Seeds come first. A space no larger than the budget is searched whole, in its own order. Otherwise a sampler asks: `gp`
(`fusiond.tuning.search.sampler`), or `tpe`, Optuna's, after a start-up that is random, or drawn by rank from configs
of which something is known before (`prior`). Random states are drawn from (job's seed, number of the ask), so that a
study that was interrupted and rebuilt from its asks and trials goes on exactly as it would have gone on (for equal
measurements).

Every ask is handed to `remember`. Those of TPE's that break a restriction are remembered too, because they are part of
what it knows. An ask that was never written down is asked again in the same words, so it is enough to store asks
together with the next trial.
"""

import hashlib
import itertools
import math
import random
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import TrialState

from fusiond.model.nouns import GP, Config, Value
from fusiond.model.outcomes import Ask, Outcome, Trial
from fusiond.strategy.space import Parameter, Space
from fusiond.tuning.search.donors import Donor
from fusiond.tuning.search.points import Points
from fusiond.tuning.search.sampler import SPREAD_OF, PointSampler
from fusiond.tuning.search.values import spread

optuna.logging.set_verbosity(optuna.logging.ERROR)

STARTUP = 10  #: Asks until TPE's model is used; as many are drawn from the prior
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
        self._budget = budget
        self._points = Points(space)
        self.whole = not self._points.more_than(budget)  #: The budget covers the space, so all of it is tried
        self.budget = budget if self._points.count is None else min(budget, self._points.count)
        self._told: set[Config] = set()
        self._out: dict[int, optuna.Trial | None] = {}
        self._pending: list[Ask] = []
        self._sequence = 0
        self._useful = 0
        self._conditional = any(each.when is not None for each in space.parameters)
        # By name, as Optuna has them: the order decides what the sampler draws.
        several = sorted((each for each in space.parameters if len(each.values) > 1), key=lambda each: each.name)
        self._distributions = {each.name: _distribution(each) for each in several}
        self._by_points: PointSampler | None = None
        if sampler == GP and not self.whole:
            known = self._sound(donors), self._sound(columns)
            self._by_points = PointSampler(self._points, self._distributions, self._number(0), *known)
        self._study = optuna.create_study(direction="maximize", sampler=self._by_points or self._sampler(0))
        self._seeds = _distinct(seeds)
        self._prior = tuple(each for each in prior if not space.problems(each))
        self._grid = space.points() if self.whole else iter(())
        self._asked: set[Config] = set()
        self._rebuild(asks, trials)

    def next(self) -> Ask | None:
        """The next config to try; None when there is nothing more to ask."""
        if self._pending:
            return self._pending.pop(0)
        if self._useful >= self.budget:
            return None
        for name, config in self._seeds:
            if config not in self._asked:
                return self._ask(config, f"seed:{name}")
        if self.whole:
            for config in self._grid:
                if config not in self._asked:
                    return self._ask(config, "grid")
            return None
        if self._useful < STARTUP and (drawn := self._from_prior()) is not None:
            return self._ask(drawn, "prior")
        return self._ask_sampler() if self._by_points is None else self._ask_points(self._by_points)

    def tell(self, ask: Ask, trial: Trial) -> None:
        """What became of an ask. Only a measured trial has a value; a failed one is told as pruned, since no number is
        honest, and a FAIL would teach the sampler nothing."""
        self._told.add(ask.config)
        self._settle(self._out.pop(ask.sequence), trial)

    @property
    def done(self) -> int:
        """Trials told so far."""
        return len(self._told)

    # --- asking ---

    def _ask(self, config: Config, origin: str, trial: optuna.Trial | None = None) -> Ask:
        ask = Ask(sequence=self._sequence, config=config, origin=origin)
        self._remember(ask)
        self._issue(ask, trial)
        return ask

    def _issue(self, ask: Ask, trial: optuna.Trial | None = None) -> None:
        """Take an ask into the study's state; `trial` is the sampler's, where the sampler asked."""
        self._count(ask)
        if trial is None and not self.whole:  # a study that needs no sampler need not know of anything
            trial = self._fixed(ask.config)
        self._out[ask.sequence] = trial

    def _count(self, ask: Ask) -> None:
        self._sequence = ask.sequence + 1
        self._asked.add(ask.config)
        self._useful += 1

    def _from_prior(self) -> Config | None:
        """An untried config of the prior, the first one twice as likely as the second; None when all are tried."""
        left = [(each, 1 / rank) for rank, each in enumerate(self._prior, 1) if each not in self._asked]
        if not left:
            return None
        configs, weights = zip(*left, strict=True)
        found: Config = random.Random(self._number(self._sequence)).choices(configs, weights)[0]
        return found

    def _ask_points(self, sampler: PointSampler) -> Ask | None:
        trial = self._study.ask()
        _ = trial.relative_params  # Optuna has the sampler choose when somebody looks
        if sampler.chosen is None:
            self._study.tell(trial, state=TrialState.FAIL)
            return None
        self._record(trial, sampler.chosen)
        return self._ask(sampler.chosen, "sampler", trial)

    def _ask_sampler(self) -> Ask | None:
        """What TPE proposes; where that is known already, or breaks restrictions again and again, a point next to
        it."""
        config = Config(())
        for _ in range(INVALID_LIMIT):
            self._study.sampler = self._sampler(self._sequence)
            trial = self._study.ask()
            config = self._suggest(trial)
            if self._space.broken(config):
                self._remember(Ask(sequence=self._sequence, config=config, origin="invalid"))
                self._sequence += 1
                self._study.tell(trial, state=TrialState.PRUNED)
            elif config in self._asked:
                # Told as failed, which the sampler does not look at: a point counts once, however often it is proposed.
                self._study.tell(trial, state=TrialState.FAIL)
                break
            else:
                return self._ask(config, "sampler", trial)
        near = self._near(config)
        return None if near is None else self._ask(near, "neighbour")

    def _near(self, config: Config) -> Config | None:
        """An untried point that differs from this one in one parameter; else any untried one; None when none is
        found."""
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

    def _settle(self, trial: optuna.Trial | None, result: Trial | None) -> None:
        if trial is None:
            return
        if result is not None and result.outcome is Outcome.MEASURED and result.ratio:
            trial.set_user_attr(SPREAD_OF, spread(result.measurement))
            self._study.tell(trial, math.log(result.ratio))
        else:
            self._study.tell(trial, state=TrialState.PRUNED)

    def _sound(self, donors: Sequence[Donor]) -> list[Donor]:
        return [[(config, value) for config, value in each if not self._space.problems(config)] for each in donors]

    # --- Optuna's side ---

    def _sampler(self, sequence: int) -> optuna.samplers.BaseSampler:
        with warnings.catch_warnings():
            # `group` is what samples conditional parameters jointly; it has been "experimental" since Optuna 2.8.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # No constant liar: what it takes from trials that are out cannot be rebuilt, and few of them are.
            seed = self._number(sequence)
            if self._conditional:
                return optuna.samplers.TPESampler(seed=seed, group=True, constant_liar=False, n_startup_trials=STARTUP)
            return _JointSampler(self._distributions, seed=seed, constant_liar=False, n_startup_trials=STARTUP)

    def _number(self, sequence: int) -> int:
        """A 32-bit number from (job's seed, number of the ask)."""
        digest = hashlib.blake2b(f"{self._seed}:{sequence}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big")

    def _suggest(self, trial: optuna.Trial) -> Config:
        chosen: dict[str, Value] = {}
        for parameter in self._space.parameters:
            if self._space.active(chosen, parameter):
                chosen[parameter.name] = _suggested(trial, parameter)
        return Config.of(chosen)

    def _record(self, trial: optuna.Trial, config: Config) -> None:
        """Have an Optuna trial take the values of a config, of which it knows already."""
        for parameter in self._space.parameters:
            if parameter.name in config:
                _suggested(trial, parameter)

    def _fixed(self, config: Config) -> optuna.Trial:
        """An Optuna trial for a config that somebody else chose."""
        self._study.enqueue_trial(dict(config))
        trial = self._study.ask()
        self._record(trial, config)
        return trial

    def _rebuild(self, asks: Iterable[Ask], trials: Iterable[Trial]) -> None:
        results = {trial.sequence: trial for trial in trials}
        self._told = {trial.config for trial in results.values()}
        for ask in asks:
            result = results.get(ask.sequence)
            if ask.origin == "invalid":
                self._sequence = ask.sequence + 1
            elif result is None:
                self._issue(ask)
                self._pending.append(ask)
                continue
            else:
                self._count(ask)
            if not self.whole:
                self._study.add_trial(self._past(ask.config, result))

    def _past(self, config: Config, result: Trial | None) -> optuna.trial.FrozenTrial:
        measured = result is not None and result.outcome is Outcome.MEASURED and result.ratio
        active = [each for each in self._space.parameters if each.name in config]
        return optuna.trial.create_trial(
            state=TrialState.COMPLETE if measured else TrialState.PRUNED,
            value=math.log(result.ratio) if measured and result and result.ratio else None,
            params={each.name: config[each.name] for each in active},
            user_attrs={SPREAD_OF: spread(result.measurement)} if measured and result else {},
            distributions={each.name: _distribution(each) for each in active},
        )


class _JointSampler(optuna.samplers.TPESampler):
    """TPE over parameters that every trial has. Optuna finds out which those are by looking at all trials, for each ask
    anew; here it is known."""

    def __init__(self, distributions: Mapping[str, BaseDistribution], **options: Any) -> None:
        super().__init__(**options)
        self._distributions = dict(distributions)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: optuna.trial.FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self._distributions


def _distinct(seeds: Sequence[tuple[str, Config]]) -> tuple[tuple[str, Config], ...]:
    """Seeds that are the same config under two names are tried once, under the first."""
    found: dict[str, tuple[str, Config]] = {}
    for name, config in seeds:
        found.setdefault(config.key, (name, config))
    return tuple(found.values())


def _distribution(parameter: Parameter) -> BaseDistribution:
    """Evenly spaced whole numbers keep their order, which TPE makes use of; all else is a categorical choice."""
    values = parameter.values
    if len(values) >= 3 and all(type(each) is int for each in values):
        numbers = [each for each in values if isinstance(each, int)]
        step = numbers[1] - numbers[0]
        if step > 0 and all(right - left == step for left, right in itertools.pairwise(numbers)):
            return IntDistribution(numbers[0], numbers[-1], step=step)
    return CategoricalDistribution(values)


def _suggested(trial: optuna.Trial, parameter: Parameter) -> Value:
    distribution = _distribution(parameter)
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(parameter.name, distribution.low, distribution.high, step=distribution.step)
    value: Value = trial.suggest_categorical(parameter.name, parameter.values)
    return value
