"""What stands beside the study: Optuna's own samplers, and Kernel Tuner's optimizers in its simulation mode.

Both see the same space (the recorded configs are the valid ones) and are told the same times. A config that is not a
point of the space, or was asked before, costs them no trial.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import math
import random
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import optuna

from benchmarks.search.drive import Recorded
from fusiond.model.errors import RequestError
from fusiond.model.nouns import Config

Search: TypeAlias = "Callable[[Recorded, int, int, int], Sequence[Config]]"
"""(space, seed, trials, asks that are out at once) -> the configs in the order in which they were tried."""

ASKED_IN_VAIN = 50  #: After so many asks for each trial that were not new points, a search ends
OPTIMIZERS = ("genetic_algorithm", "pso", "greedy_ils", "simulated_annealing", "adaptive_tabu_greywolf")
"""Of Kernel Tuner."""


def optuna_s(
    make: Callable[[int], optuna.samplers.BaseSampler], recorded: Recorded, seed: int, trials: int, ahead: int
) -> Sequence[Config]:
    """Optuna, with categorical parameters; what breaks a restriction is told as pruned."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(direction="maximize", sampler=make(seed))
        tried: list[Config] = []
        known: set[Config] = set()
        out: list[tuple[optuna.Trial, Config]] = []
        for _ in range(trials * ASKED_IN_VAIN):
            trial = study.ask()
            parameters = recorded.pack.parameters
            config = Config.of({each.name: trial.suggest_categorical(each.name, each.values) for each in parameters})
            if config not in recorded.rows or config in known:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                continue
            known.add(config)
            out.append((trial, config))
            if len(out) == ahead:
                _tell(study, recorded, *out.pop(0), tried)
            if len(tried) == trials:
                break
        for each in out[: trials - len(tried)]:
            _tell(study, recorded, *each, tried)
    return tried


def _tell(study: optuna.Study, recorded: Recorded, trial: optuna.Trial, config: Config, tried: list[Config]) -> None:
    tried.append(config)
    told_us = recorded.told_us.get(config)
    if told_us is None:
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    else:
        study.tell(trial, -math.log(told_us))


def kernel_tuner_s(strategy: str, recorded: Recorded, seed: int, trials: int, ahead: int) -> Sequence[Config]:
    """One optimizer of Kernel Tuner, one config at a time; RequestError where Kernel Tuner is not installed."""
    try:
        import kernel_tuner
    except ImportError:
        remedy = "pip install 'fusiond[peers]'"
        raise RequestError(f"kt:{strategy} needs Kernel Tuner: {remedy}", where="--sampler") from None
    names = [each.name for each in recorded.pack.parameters]
    logging.disable(logging.CRITICAL)
    random.seed(seed)
    np.random.seed(seed)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cache = Path(folder) / "cache.json"
        cache.write_text(json.dumps(_cache(recorded, names)))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            results, _ = kernel_tuner.tune_cache(
                str(cache), strategy=strategy, strategy_options={"max_fevals": trials}, verbose=False, quiet=True
            )
    logging.disable(logging.NOTSET)
    asked = (Config.of({name: each[name] for name in names}) for each in results)
    return list(dict.fromkeys(each for each in asked if each in recorded.rows))[:trials]


def _cache(recorded: Recorded, names: Sequence[str]) -> Mapping[str, Any]:
    """The recorded space as Kernel Tuner's simulation reads it, times in ms."""
    cached = {}
    for config, row in recorded.rows.items():
        entry: dict[str, Any] = {name: config[name] for name in names}
        told_us = recorded.told_us.get(config)
        entry |= {
            "time": _FAILED[row.failure] if told_us is None else told_us / 1e3,
            "times": [] if told_us is None else [told_us / 1e3],
            **dict.fromkeys(
                ("compile_time", "verification_time", "benchmark_time", "strategy_time", "framework_time"), 0
            ),
            "timestamp": "2026-01-01T00:00:00+00:00",
        }
        cached[",".join(str(config[name]) for name in names)] = entry
    return {
        "device_name": recorded.pack.device,
        "kernel_name": recorded.pack.kernel or "kernel",
        "problem_size": [1],
        "tune_params_keys": list(names),
        "tune_params": {each.name: list(each.values) for each in recorded.pack.parameters},
        "objective": "time",
        "cache": cached,
    }


_SPENT = ("compile_time", "verification_time", "benchmark_time", "strategy_time", "framework_time")
_FAILED = dict.fromkeys(("runtime", "timeout", "correctness"), "RuntimeFailedConfig") | {
    "compile": "CompilationFailedConfig",
    "constraints": "InvalidConfig",
}


def _tpe(seed: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)


SEARCHES: Mapping[str, Search] = {
    "optuna:tpe": functools.partial(optuna_s, _tpe),
    "optuna:random": functools.partial(optuna_s, lambda seed: optuna.samplers.RandomSampler(seed=seed)),
    **{f"kt:{each}": functools.partial(kernel_tuner_s, each) for each in OPTIMIZERS},
}
