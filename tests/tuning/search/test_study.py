"""The study: what is asked, in which order, and that an interruption changes nothing."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from fusiond.model.nouns import Config
from fusiond.model.outcomes import Ask, Outcome, Trial
from fusiond.strategy.space import Parameter, Space, check_seeds
from fusiond.tuning.search import points, sampler
from fusiond.tuning.search.study import Study

GRID = Space(parameters=(Parameter(name="x", values=(0, 1, 2)), Parameter(name="y", values=("a", "b"))))
CONDITIONAL = Space(
    parameters=(Parameter(name="kind", values=("tiled", "plain")),
                Parameter(name="tile", values=tuple(range(8, 200, 8)), when="kind == 'tiled'"),
                Parameter(name="unroll", values=(1, 2, 4, 8), when="kind == 'tiled' and tile > 64"),
                Parameter(name="threads", values=tuple(range(32, 1025, 32))),
                Parameter(name="cap", values=("none", "paper", 32, 64))),
    restrictions=("threads % 64 == 0 or kind == 'plain'", "tile * 8 <= threads"),
)  # fmt: skip
SEEDS = (
    ("plain", Config.of({"kind": "plain", "threads": 128, "cap": "none"})),
    ("paper", Config.of({"kind": "tiled", "tile": 8, "threads": 256, "cap": "paper"})),
    ("same", Config.of({"cap": "none", "threads": 128, "kind": "plain"})),
)

Judge = Callable[[Config], tuple[Outcome, float | None]]


def judge(config: Config) -> tuple[Outcome, float | None]:
    """A landscape of known ratios in which a third of the configs fails in one way or another."""
    number = int(config.key[:6], 16)
    if number % 3 == 0:
        return list(Outcome)[1 + number % (len(Outcome) - 1)], None
    threads = config.get("threads", 0)
    assert isinstance(threads, int)
    return Outcome.MEASURED, math.exp(-(((threads - 512) / 400) ** 2)) + (0.3 if config.get("cap") == 32 else 0.0)


def trial_of(ask: Ask, judge: Judge = judge) -> Trial:
    outcome, ratio = judge(ask.config)
    return Trial(sequence=ask.sequence, config=ask.config, origin=ask.origin, outcome=outcome, ratio=ratio)


def new(space: Space, budget: int, *, seeds: Sequence[tuple[str, Config]] = (), seed: int = 0, asks: Sequence[Ask] = (),
        trials: Sequence[Trial] = (), log: list[Ask] | None = None) -> Study:  # fmt: skip
    remembered = list(asks) if log is None else log
    return Study(space, seeds, budget=budget, seed=seed, remember=remembered.append, asks=asks, trials=trials)


def drive(study: Study, ahead: int = 2, stop_after: int | None = None) -> tuple[list[Ask], list[Trial]]:
    """As the tuner does: `ahead` asks are out at once; stops after so many trials."""
    waiting: list[Ask] = []
    asks: list[Ask] = []
    trials: list[Trial] = []
    while stop_after is None or len(trials) < stop_after:
        while len(waiting) < ahead and (ask := study.next()) is not None:
            waiting.append(ask)
            asks.append(ask)
        if not waiting:
            break
        ask = waiting.pop(0)
        trial = trial_of(ask)
        trials.append(trial)
        study.tell(ask, trial)
    return asks, trials


# --- what is asked ---


@pytest.mark.parametrize("budget", [6, 7, 1000])
def test_a_space_no_larger_than_the_budget_is_searched_whole(budget: int) -> None:
    study = new(GRID, budget)
    asks, _ = drive(study)
    assert study.whole
    assert study.budget == 6
    assert [each.config for each in asks] == list(GRID.points())
    assert {each.origin for each in asks} == {"grid"}
    assert study.next() is None
    assert study.done == 6


def test_seeds_come_first_also_in_a_whole_search() -> None:
    seed = Config.of({"x": 2, "y": "b"})
    asks, _ = drive(new(GRID, 6, seeds=[("paper", seed)]))
    assert (asks[0].config, asks[0].origin) == (seed, "seed:paper")
    assert {each.config for each in asks} == set(GRID.points())
    assert len(asks) == 6


@pytest.mark.parametrize("budget", [1, 2, 3, 25])
def test_the_budget_is_respected_and_nothing_is_asked_twice(budget: int) -> None:
    log: list[Ask] = []
    study = new(CONDITIONAL, budget, seeds=SEEDS, log=log)
    asks, trials = drive(study)
    assert not study.whole
    assert len(asks) == len(trials) == budget
    assert [each.origin for each in asks[:2]] == ["seed:plain", "seed:paper"][:budget]
    assert len({each.config.key for each in asks}) == budget
    assert all(CONDITIONAL.problems(each.config) == () for each in asks)
    assert log == asks
    assert [each.sequence for each in log] == list(range(len(log)))


def test_asks_are_remembered_before_they_are_handed_out() -> None:
    log: list[Ask] = []
    study = new(CONDITIONAL, 12, seeds=SEEDS, log=log)
    while (ask := study.next()) is not None:
        assert log[-1] == ask
        study.tell(ask, trial_of(ask))


def test_another_seed_asks_otherwise_and_the_same_seed_the_same() -> None:
    runs = [[each.config for each in drive(new(CONDITIONAL, 12, seed=seed))[0]] for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_a_space_too_large_to_be_held_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10^8 combinations 99 in 100 are points; and where next to nothing is one, what can be drawn is asked for."""
    names = "abcdefgh"
    parameters = tuple(Parameter(name=name, values=tuple(range(1, 11))) for name in names)
    monkeypatch.setattr(points, "HELD", 1000)
    monkeypatch.setattr(points.Points.__init__, "__kwdefaults__", {"held": 1000})
    product = " * ".join(names)
    asks, _ = drive(new(Space(parameters=parameters, restrictions=(f"{product} % 7 != 3",)), 15))
    assert len({each.config for each in asks}) == 15
    rare = Space(parameters=parameters, restrictions=(f"{product} == 10",))
    monkeypatch.setattr(points, "_BATCHES", 2)
    found = points.Points(rare, held=10)
    assert len(sampler._drawn(found, 1000, np.random.default_rng(0))) < 1000


# --- interruptions ---


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize(("space", "budget", "seeds"), [(CONDITIONAL, 30, SEEDS), (GRID, 6, ()), (GRID, 4, ())])
@pytest.mark.parametrize("ahead", [1, 2, 3, 7])
def test_rebuilding_goes_on_exactly(space: Space, budget: int, seeds: Sequence[tuple[str, Config]], ahead: int) -> None:
    """Interrupted after any number of trials: the same configs come, in the same order."""
    log: list[Ask] = []
    wanted, _ = drive(new(space, budget, seeds=seeds, log=log), ahead)
    cuts = range(len(wanted) + 1)
    for cut in cuts if budget < 10 else (0, 1, 2, 5, 11, 12, 20, 29, 30):
        first: list[Ask] = []
        _, trials = drive(new(space, budget, seeds=seeds, log=first), ahead, stop_after=cut)
        again = new(space, budget, seeds=seeds, asks=tuple(first), trials=trials, log=first)
        assert again.done == cut
        rest, _ = drive(again, ahead)
        assert [each.config for each in rest] == [each.config for each in wanted[cut:]]
        assert [each.sequence for each in rest] == [each.sequence for each in wanted[cut:]]
        assert first == log


@pytest.mark.slow
def test_asks_that_were_not_written_down_are_asked_again() -> None:
    """The store writes asks with the next trial, so a killed process loses the last ones: nothing changes."""
    space = Space(
        parameters=tuple(Parameter(name=name, values=tuple(range(8))) for name in "ab"),
        restrictions=("a + b == 9 or a == b",),
    )
    log: list[Ask] = []
    wanted, _ = drive(new(space, 12, log=log), ahead=1)
    for ask in wanted[:-1]:
        kept = log[: log.index(ask) + 1]  # everything up to an ask, and its trial
        told = [trial_of(each) for each in kept]
        again = new(space, 12, asks=tuple(kept), trials=told, log=kept)
        rest, _ = drive(again, ahead=1)
        assert kept == log
        assert [each.config for each in rest] == [each.config for each in wanted[len(told) :]]


# --- seeds ---


def test_seeds_outside_the_space_are_refused_with_the_reason() -> None:
    seeds = (
        ("good", Config.of({"x": 1, "y": "a"})),
        ("far", Config.of({"x": 99, "y": "a"})),
        ("short", Config.of({"x": 1})),
        ("typed", Config.of({"x": True, "y": "a"})),
    )
    sound, refused = check_seeds(GRID, seeds)
    assert sound == seeds[:1]
    assert set(refused) == {"far", "short", "typed"}
    assert refused["far"] == "x is 99; it can be 0, 1, 2"
    assert refused["short"] == "y is missing"


def test_every_kind_of_value_can_be_asked_for() -> None:
    values = (None, True, 3, 0.5, "text", "")
    space = Space(parameters=(Parameter(name="a", values=values), Parameter(name="b", values=tuple(range(20)))))
    asks, _ = drive(new(space, 30, seeds=[("none", Config.of({"a": None, "b": 19}))]))
    assert asks[0].config["a"] is None
    assert len({each.config.key for each in asks}) == 30
    assert all(space.problems(each.config) == () for each in asks)


def test_a_study_of_a_sampler_that_there_was_goes_on() -> None:
    """Its asks that broke a restriction are no trials, and take up numbers."""
    broken = Ask(sequence=0, config=Config.of({"kind": "tiled"}), origin="invalid")
    study = new(CONDITIONAL, 3, asks=[broken])
    assert [each.sequence for each in drive(study)[0]] == [1, 2, 3]
