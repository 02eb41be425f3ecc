"""What an ask and its tell cost, in milliseconds: spaces of known sizes, and trials that cost nothing else.

Processor time is what counts where others share the machine; the wall's is given beside it. Refits of the model's
lengths are among the asks, and are the slowest of them.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.pages import table
from fusiond.model import Ask, Config, Outcome, Trial
from fusiond.search.space import Parameter, Space
from fusiond.search.study import Study

LAST = 50
"""Asks over which a median is taken, at the end of each search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A search whose asks are timed."""

    name: str
    space: Space
    trials: int
    goal: str
    """What the median of the last asks, or each ask, may cost."""


def _product(digits: str, several: int, restriction: str) -> Space:
    parameters = tuple(Parameter(name=name, values=tuple(range(1, several + 1))) for name in digits)
    return Space(parameters=parameters, restrictions=(restriction,))


def _gemm() -> Space:
    """Some 20,000 points of ten parameters, as blocked products of matrices have them."""
    tiles, threads, vectors, flags = (16, 32, 64, 128), (8, 16, 32), (1, 2, 4, 8), (0, 1)
    values = {"mwg": tiles, "nwg": tiles, "mdimc": threads, "ndimc": threads, "mdima": threads, "ndimb": threads}
    values |= {"vwm": vectors, "vwn": vectors, "sa": flags, "sb": flags}
    return Space(
        parameters=tuple(Parameter(name=name, values=each) for name, each in values.items()),
        restrictions=(
            "mwg % (mdimc * vwm) == 0",
            "nwg % (ndimc * vwn) == 0",
            "mwg % (mdima * vwm) == 0",
            "nwg % (ndimb * vwn) == 0",
            "mdimc * ndimc <= 1024",
        ),
    )


CASES: Mapping[str, Case] = {
    each.name: each
    for each in (
        Case(name="20,000 points, 200 trials", space=_gemm(), trials=200, goal="median below 10"),
        Case(name="20,000 points, 5,000 trials", space=_gemm(), trials=5000, goal="median below 25"),
        Case(
            name="1,000,000 points, 200 trials",
            space=_product("abcdef", 10, "a * b * c * d * e * f != 7"),
            trials=200,
            goal="each below 50",
        ),
        Case(
            name="1,000,000 combinations whose product is 720, 200 trials",
            space=_product("abcdef", 10, "a * b * c * d * e * f == 720"),
            trials=200,
            goal="each below 50",
        ),
    )
}


def measure(case: Case) -> dict[str, Any]:
    """The costs of one search; times in ms."""
    begun = time.process_time()
    study = Study(case.space, (), budget=case.trials, seed=0, remember=lambda ask: None)
    build_ms = (time.process_time() - begun) * 1e3
    cpu_ms, wall_ms = [], []
    while True:
        cpu, wall = time.process_time(), time.perf_counter()
        ask = study.next()
        if ask is None:
            break
        trial = _trial(ask)
        study.tell(ask, trial)
        cpu_ms.append((time.process_time() - cpu) * 1e3)
        wall_ms.append((time.perf_counter() - wall) * 1e3)
    return {
        "case": case.name,
        "goal": case.goal,
        "trials": len(cpu_ms),
        "build_ms": round(build_ms, 1),
        "mean_ms": round(statistics.mean(cpu_ms), 2),
        "median_ms": round(statistics.median(cpu_ms), 2),
        "last_median_ms": round(statistics.median(cpu_ms[-LAST:]), 2),
        "last_mean_ms": round(statistics.mean(cpu_ms[-LAST:]), 2),
        "most_ms": round(max(cpu_ms), 1),
        "wall_last_median_ms": round(statistics.median(wall_ms[-LAST:]), 2),
    }


def render(found: Sequence[Mapping[str, Any]]) -> str:
    """A table for people."""
    columns = ("build_ms", "mean_ms", "median_ms", "last_median_ms", "last_mean_ms", "most_ms", "wall_last_median_ms")
    words = ("space built", "mean", "median", f"median of the last {LAST}", "mean of those", "most", "on the wall")
    rows = [[each["case"], *(f"{each[name]:.1f}" for name in columns), each["goal"]] for each in found]
    return table(("ask and tell, ms of processor time", *words, "goal"), rows)


def _trial(ask: Ask) -> Trial:
    """A bowl with some ripples: its lowest point lies in the middle of each parameter."""
    time_us = 1.0 + sum(_away(ask.config, name) for name in ask.config)
    return Trial(
        sequence=ask.sequence,
        config=ask.config,
        origin=ask.origin,
        outcome=Outcome.MEASURED,
        ratio=1 / time_us,
        time_us=time_us,
    )


def _away(config: Config, name: str) -> float:
    value = config.integer(name)
    return (math.log(value + 1) - 2) ** 2 + 0.1 * math.sin(7 * value)
