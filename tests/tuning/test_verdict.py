"""Verdicts against SciPy, and simulated: how often native against native is called a gain."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fusiond.model.outcomes import Measurement, Purpose, Verdict
from fusiond.tuning.verdict import LEAST_PROCESSES, beats, conclude, estimate, opponent, process_ratio, shared


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=12), st.integers(1, 4))
def test_the_interval_is_scipys_at_the_corrected_level(logs: list[float], finalists: int) -> None:
    found = estimate(logs, finalists)
    assert found.speedup == pytest.approx(math.exp(np.mean(logs)))
    spread = stats.sem(logs)
    if spread < 1e-12:
        assert found.low == pytest.approx(found.high)
        return
    level = 1 - 0.05 / finalists
    low, high = stats.t.interval(level, len(logs) - 1, loc=np.mean(logs), scale=spread)
    assert found.low == pytest.approx(math.exp(low), rel=1e-6)
    assert found.high == pytest.approx(math.exp(high), rel=1e-6)


@pytest.mark.parametrize("logs", [[], [0.1]])
def test_one_process_has_no_interval(logs: list[float]) -> None:
    with pytest.raises(ValueError, match="two processes"):
        estimate(logs, 1)


def final(*ratios: float) -> Measurement:
    return Measurement(span_us=tuple(1.0 for _ in ratios), baseline_us=ratios, clock="device", purpose=Purpose.FINAL)


def test_a_process_is_one_observation_however_many_pairs_it_has() -> None:
    assert process_ratio(final(2.0, 2.0, 1000.0)) == pytest.approx(math.log(2))
    with pytest.raises(ValueError, match="no samples"):
        process_ratio(Measurement(span_us=(1.0,), clock="device", purpose=Purpose.FINAL))


def logs(*ratios: float) -> list[float]:
    return [math.log(each) for each in ratios]


SURE = logs(1.079, 1.080, 1.080, 1.081, 1.080)


def test_the_best_is_chosen_and_too_few_processes_do_not_count() -> None:
    finals = {"slow": logs(1.1, 1.11, 1.1, 1.1, 1.11), "fast": logs(1.5, 1.51, 1.5, 1.5, 1.51), "twice": logs(9.0, 9.0)}
    found = conclude(finals, 1.02)
    assert found is not None
    assert found.key == "fast"
    assert found.estimate == estimate(finals["fast"], 2)
    assert conclude({"four": SURE[:4]}, 1.02) is None
    assert conclude({}, 1.02) is None


def test_a_tie_goes_to_the_better_one_of_the_search() -> None:
    found = conclude({"first": SURE, "second": SURE}, 1.02)
    assert found is not None
    assert found.key == "first"


def test_a_noisy_finalist_does_not_hide_one_that_is_surely_faster() -> None:
    noisy = logs(0.9, 1.4, 1.0, 1.3, 0.95)
    assert math.fsum(noisy) > math.fsum(SURE)
    found = conclude({"noisy": noisy, "sure": SURE}, 1.02)
    assert found is not None
    assert (found.key, found.verdict) == ("sure", Verdict.FUSE)


def test_keep_means_that_no_finalist_can_gain_enough() -> None:
    tight = logs(1.005, 1.005, 1.006, 1.005, 1.005)
    wide = logs(0.9, 1.1, 0.95, 1.05, 1.0)
    assert conclude({"tight": tight}, 1.02).verdict is Verdict.KEEP  # type: ignore[union-attr]
    found = conclude({"tight": tight, "wide": wide}, 1.02)
    assert found is not None
    assert (found.verdict, found.key) == (
        Verdict.UNDECIDED,
        "wide",
    )  # and not the other one, which is not a gain for sure


@pytest.mark.parametrize(
    ("gain", "scatter", "verdict"),
    [
        (1.5, 0.01, Verdict.FUSE), (1.03, 0.005, Verdict.FUSE), (1.03, 0.05, Verdict.UNDECIDED),
        (1.015, 0.008, Verdict.UNDECIDED), (1.005, 0.002, Verdict.KEEP), (0.9, 0.01, Verdict.KEEP),
        (0.95, 0.3, Verdict.UNDECIDED),
    ],
)  # fmt: skip
def test_verdicts_of_one_finalist(gain: float, scatter: float, verdict: Verdict) -> None:
    values = [math.log(gain) + scatter * step for step in (-1, -0.5, 0, 0.5, 1)]
    found = conclude({"only": values}, 1.02)
    assert found is not None
    assert found.verdict is verdict


def test_the_opponent_is_the_fastest_unfused_way_of_the_finals() -> None:
    """The pick of the search was 5 % slower than another unfused way, in the very same processes."""
    fused = logs(1.06, 1.07, 1.05, 1.06, 1.06)
    unfused = {"picked": [0.0] * 5, "rival": logs(1.05, 1.06, 1.04, 1.05, 1.05)}
    assert opponent(unfused, None) == "rival"
    found = conclude({"fused": [own - other for own, other in zip(fused, unfused["rival"], strict=True)]}, 1.02)
    assert found is not None
    assert found.verdict is Verdict.KEEP


def test_an_unfused_way_that_is_known_keeps_its_place_among_equals() -> None:
    """0.2 % faster in the mean is not a reason to say something else; 5 % is."""
    known = logs(1.0, 1.01, 0.99, 1.0, 1.0)
    assert opponent({"known": known, "new": logs(1.0, 1.0, 1.0, 1.01, 1.0)}, "known") == "known"
    assert opponent({"known": known, "new": logs(1.05, 1.06, 1.04, 1.05, 1.05)}, "known") == "new"
    assert opponent({"new": known}, "not measured") == "new"
    with pytest.raises(ValueError, match="no unfused way"):
        opponent({}, None)


@given(
    measured=st.dictionaries(
        st.sampled_from(["fused", "other", "rival", "incumbent"]), st.sets(st.integers(0, 20)), min_size=1
    )
)
def test_five_processes_that_all_share_always_give_a_verdict(measured: dict[str, set[int]]) -> None:
    """However processes drop out, and of whomever: in November 2026 a finalist and a rival with five good processes
    each, three of them common, came to no verdict."""
    common = set.intersection(*measured.values())
    assert set(shared(measured, measured)) == common
    rows = {key: [0.1 + 0.001 * process for process in shared(measured, measured)] for key in measured}
    assert (conclude(rows, 1.02) is not None) == (len(common) >= LEAST_PROCESSES)


def test_better_beyond_the_noise() -> None:
    steady = logs(1.05, 1.05, 1.06, 1.05, 1.05)
    assert beats(steady, logs(1.0, 1.01, 1.0, 1.0, 1.0), 2)
    assert not beats(steady, logs(1.04, 1.06, 1.05, 1.05, 1.05), 2)
    assert not beats(steady, logs(0.8, 1.3, 0.9, 1.2, 1.0), 2)


def verdicts(true_gain: float, process_sd: float, finalists: int, jobs: int = 1000) -> dict[Verdict, float]:
    """How often each verdict is given, for `jobs` simulated jobs whose finalists all gain `true_gain`."""
    generator = np.random.Generator(np.random.PCG64(7))
    counts = dict.fromkeys(Verdict, 0)
    for _ in range(jobs):
        values = generator.normal(math.log(true_gain), process_sd, (finalists, LEAST_PROCESSES))
        found = conclude({str(index): list(each) for index, each in enumerate(values)}, 1.02)
        assert found is not None
        counts[found.verdict] += 1
    return {verdict: count / jobs for verdict, count in counts.items()}


@pytest.mark.parametrize("process_sd", [0.002, 0.01, 0.03])
@pytest.mark.parametrize("finalists", [1, 3])
def test_native_against_native_is_seldom_called_a_gain(process_sd: float, finalists: int) -> None:
    """The level is 2.5 % on the one side that matters, and `least_gain` comes on top."""
    assert verdicts(1.0, process_sd, finalists)[Verdict.FUSE] <= 0.03


def test_a_loss_is_never_called_a_gain_and_a_large_gain_always() -> None:
    assert verdicts(0.9, 0.02, 3)[Verdict.FUSE] == 0
    assert verdicts(1.3, 0.02, 3)[Verdict.FUSE] > 0.99


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    generator = np.random.Generator(np.random.PCG64(11))
    for finalists, level in ((1, 0.95), (3, 1 - 0.05 / 3)):
        found = [estimate(list(generator.normal(0.1, 0.05, LEAST_PROCESSES)), finalists) for _ in range(1500)]
        covered = np.mean([each.low <= math.exp(0.1) <= each.high for each in found])
        assert covered == pytest.approx(level, abs=0.02)
