"""The verdict on simulated noise: what docs/measuring.md promises, with fewer runs."""

from __future__ import annotations

import random

import pytest

from benchmarks import verdict

RUNS = 60


@pytest.mark.parametrize("noise", sorted(verdict.HARDER))
def test_equal_is_not_called_faster_and_faster_is_found(noise: str) -> None:
    generator = random.Random(7)
    usual = verdict.NOISE["usual"]
    equal = verdict.shares(generator, 1.00, *usual, RUNS, verdict.HARDER[noise])
    faster = verdict.shares(generator, 1.03, *usual, RUNS, verdict.HARDER[noise])
    assert equal["fuse"] <= 0.02
    assert faster["fuse"] >= 0.9


def test_the_simulation_can_tell() -> None:
    """Pooled samples of one process do call equal programs faster, under drift nearly always: the noise is there."""
    drift = verdict.shares(random.Random(7), 1.00, *verdict.NOISE["usual"], RUNS, {"drift"})
    assert drift["pooled_says_faster"] > 0.5


@pytest.mark.parametrize("trouble", ["drift", "bimodal", "outliers"])
def test_each_trouble_shows_in_the_samples(trouble: str) -> None:
    generator = random.Random(3)
    spread = []
    for given in ((), {trouble}):
        found = [verdict.samples(generator, 1.0, 0.0, 0.001, given) for _ in range(50)]
        spread.append(max(max(each.span_us) / min(each.span_us) for each in found))
    assert spread[0] < 1.02
    assert spread[1] > 1.08
