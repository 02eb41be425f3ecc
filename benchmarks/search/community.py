"""The community's score of a search (Willemsen, Schoonhoven, Filipovic, Tørring, van Nieuwpoort and van Werkhoven, "A
methodology for comparing auto-tuning optimization algorithms", Future Generation Computer Systems 159, 2024).

Over the seconds in which random choice, by its expectation, comes from 1 to 95 % of the way between the median and the
optimum: how far above that expectation the best time so far is, 1 being the optimum throughout and 0 random choice.
Seconds are those that compiling, checking and measuring took where a space was recorded. Statistics, range and random
choice are those of the package `autotuning_methodology`; the curve is the mean over the seeds.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from benchmarks.search.drive import Recorded
from fusiond.errors import RequestError
from fusiond.model import Config

FROM, TO = 0.01, 0.95
STEPS = 1000
"""Points in time over which the mean is taken."""
_SECONDS = "compilation"


def score(recorded: Recorded, searches: Sequence[Sequence[Config]]) -> float:
    """Of the configs that searches with several seeds tried, in their order. RequestError where the package is not
    installed, or the recording has no seconds."""
    if not any(each.secs > 0 for each in recorded.rows.values()):
        raise RequestError("says of no config how many seconds it took", where=recorded.pack.name)
    statistics_, baseline = _package()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        where = Path(folder) / "space.json"
        where.write_text(json.dumps(_t4(recorded)), encoding="utf-8")
        space = statistics_.SearchspaceStatistics("kernel", "device", True, [_SECONDS], ["time"], where, False)
        begin, end = (space.cutoff_point_fevals_time(each)[2] for each in (FROM, TO))
        seconds = np.linspace(begin, end, STEPS)
        worst_ms = float(space.objective_performances_total_sorted[-1])
        curve = np.mean([_best_ms(recorded, tried, seconds, worst_ms) for tried in searches], axis=0)
        chance = baseline.RandomSearchCalculatedBaseline(space)
        return statistics.mean(chance.get_standardised_curve(seconds, curve, "time"))


def _best_ms(
    recorded: Recorded, tried: Sequence[Config], seconds: NDArray[np.float64], worst_ms: float
) -> NDArray[np.float64]:
    """The best time so far at each second; the slowest of the space before anything was measured."""
    ends = np.cumsum([recorded.rows[each].secs for each in tried])
    times = [recorded.told_us.get(each, np.inf) / 1e3 for each in tried]
    best = np.minimum(np.minimum.accumulate(np.array([np.inf, *times])), worst_ms)
    found: NDArray[np.float64] = best[np.searchsorted(ends, seconds, side="right")]
    return found


def _t4(recorded: Recorded) -> Mapping[str, object]:
    """As T4 has it; all seconds under one name."""
    results = []
    for config, row in recorded.rows.items():
        told_ms = recorded.told_us.get(config, math.nan) / 1e3
        results.append(
            {
                "configuration": dict(config),
                "times": {_SECONDS: row.secs},
                "invalidity": row.failure or "correct",
                "correctness": 0 if row.failure else 1,
                "measurements": [{"name": "time", "value": told_ms, "unit": "ms"}],
                "objectives": ["time"],
            }
        )
    return {"schema_version": "1.0.0", "metadata": {"timeunit": "seconds"}, "results": results}


def _package() -> tuple[ModuleType, ModuleType]:
    try:
        from autotuning_methodology import baseline, searchspace_statistics
    except ImportError:
        remedy = "pip install 'fusiond[peers]'"
        raise RequestError(f"needs the package autotuning_methodology: {remedy}", where="--score") from None
    return searchspace_statistics, baseline
