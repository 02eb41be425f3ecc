"""What choosing among the finalists loses to noise, and whether racing would lose less at equal cost.

    python -m benchmarks.search.finals PACK...

The samples of each config behind its warm-ups are resampled; their median is the truth. A search of 100 trials is told
the median of five; its best few are measured afresh, 90 samples in all: three with 30 each as now, or more of them
first, the best three of which get the rest. Drift between processes is not in such files. The figure is the regret:
how much slower the choice is than the best that was tried, in per cent, over two seeds for each pack.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.pages import table
from benchmarks.search import samplers
from benchmarks.search.drive import FINALISTS, SAMPLES, Recorded
from fusiond.model import Config
from fusiond_replay import t4

DRAWS, SEEDS, TRIALS = 300, 2, 100
RULES: Mapping[str, tuple[int, int, int]] = {
    "three, 30 samples each (now)": (3, 0, 30),
    "six, 8 each, then three, 14 each": (6, 8, 14),
    "nine, 5 each, then three, 15 each": (9, 5, 15),
}
"""Finalists, samples of each at first, and samples of each of the three that are left."""


def regrets(recorded: Recorded, seed: int) -> dict[str, float]:
    """Of each rule, its mean, as a share of the time of the best that was tried."""
    tried = [each for each in samplers.own("gp", recorded, seed, TRIALS, 1) if each in recorded.true_us]
    samples = {each: recorded.pack.samples_us(recorded.rows[each]) for each in tried}
    best_us = min(recorded.true_us[each] for each in tried)
    generator = random.Random(seed)
    found: dict[str, list[float]] = {name: [] for name in RULES}
    for _ in range(DRAWS):
        told = {each: statistics.median(generator.choices(samples[each], k=SAMPLES)) for each in tried}
        order = sorted(tried, key=told.__getitem__)
        for name, rule in RULES.items():
            choice = _chosen(order, samples, rule, generator)
            found[name].append(recorded.true_us[choice] / best_us - 1)
    return {name: statistics.mean(each) for name, each in found.items()}


def _chosen(
    order: Sequence[Config],
    samples: Mapping[Config, Sequence[float]],
    rule: tuple[int, int, int],
    generator: random.Random,
) -> Config:
    many, first, last = rule
    drawn = {each: generator.choices(samples[each], k=first) for each in order[:many]}
    left = sorted(drawn, key=lambda each: statistics.median(drawn[each]) if first else 0.0)[:FINALISTS]
    return min(left, key=lambda each: statistics.median([*drawn[each], *generator.choices(samples[each], k=last)]))


def main(paths: Sequence[str]) -> int:
    """A row for each rule."""
    found = [regrets(each, seed) for each in (Recorded(t4.read(Path(path))) for path in paths) for seed in range(SEEDS)]
    rows = [
        [name, f"{statistics.mean(each[name] for each in found):.3%}", f"{max(each[name] for each in found):.3%}"]
        for name in RULES
    ]
    print(table(("finals", "mean regret", "worst of the searches"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
