"""Optuna's tree of Parzen estimators as the sampler of a study. The one home of Optuna."""

import itertools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import TrialState

from fusiond.model.nouns import Config, Value
from fusiond.strategy.space import Parameter, Space

optuna.logging.set_verbosity(optuna.logging.ERROR)

STARTUP = 10  #: Asks until its model is used; as many are drawn from the prior


class Tpe:
    """An Optuna study in memory; our store is the truth."""

    def __init__(self, space: Space, number: Callable[[int], int]) -> None:
        """`number`: of which a sampler draws for an ask."""
        self._space = space
        self._number = number
        self._conditional = any(each.when is not None for each in space.parameters)
        # By name, as Optuna has them: the order decides what the sampler draws.
        several = sorted((each for each in space.parameters if len(each.values) > 1), key=lambda each: each.name)
        self._distributions = {each.name: _distribution(each) for each in several}
        self.study = optuna.create_study(direction="maximize", sampler=self._sampler(0))

    def add(self, config: Config) -> optuna.Trial:
        """A trial for a config that somebody else chose."""
        self.study.enqueue_trial(dict(config))
        trial = self.study.ask()
        for parameter in self._space.parameters:
            if parameter.name in config:
                _suggested(trial, parameter)
        return trial

    def tell(self, trial: optuna.Trial, value: float | None, error: float) -> None:
        """A failed one is told as pruned, since no number is honest, and a FAIL would teach the sampler nothing."""
        self.study.tell(trial, value, state=TrialState.PRUNED if value is None else None)

    def forget(self, trial: optuna.Trial) -> None:
        """Tell it as failed, which the sampler does not look at: a point counts once, however often it is proposed."""
        self.study.tell(trial, state=TrialState.FAIL)

    def propose(self, sequence: int) -> tuple[optuna.Trial, Config]:
        """What the sampler of that ask draws; it may be known already, or break a restriction."""
        self.study.sampler = self._sampler(sequence)
        trial = self.study.ask()
        chosen: dict[str, Value] = {}
        for parameter in self._space.parameters:
            if self._space.active(chosen, parameter):
                chosen[parameter.name] = _suggested(trial, parameter)
        return trial, Config.of(chosen)

    def _sampler(self, sequence: int) -> optuna.samplers.BaseSampler:
        with warnings.catch_warnings():
            # `group` is what samples conditional parameters jointly; it has been "experimental" since Optuna 2.8.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # No constant liar: what it takes from trials that are out cannot be rebuilt, and few of them are.
            seed = self._number(sequence)
            if self._conditional:
                return optuna.samplers.TPESampler(seed=seed, group=True, constant_liar=False, n_startup_trials=STARTUP)
            return _JointSampler(self._distributions, seed=seed, constant_liar=False, n_startup_trials=STARTUP)


class _JointSampler(optuna.samplers.TPESampler):
    """TPE over parameters that every trial has, which Optuna finds out by looking at all trials for each ask."""

    def __init__(self, distributions: Mapping[str, BaseDistribution], **options: Any) -> None:
        super().__init__(**options)
        self._distributions = dict(distributions)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: optuna.trial.FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self._distributions


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
