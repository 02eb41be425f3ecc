"""One search of a recorded space by the study itself (`fusiond.tuning.search.study`), as the tuner drives it."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fusiond.model.nouns import Config
from fusiond.model.outcomes import Ask, Measurement, Outcome, Purpose, Trial
from fusiond.tuning.search.study import Study
from fusiond_replay.pack import Pack, Row

AT = (25, 50, 100)
NEAR = 0.95  #: A config that reaches this share of the optimum is as good as found
SAMPLES = 5  #: Behind the warm-ups, which a search takes of a candidate before it is told
FINALISTS = 3  #: Of a search, which are measured afresh at its end
OUTCOMES = {
    "compile": Outcome.BUILD_FAILED,
    "runtime": Outcome.CRASHED,
    "timeout": Outcome.TIMED_OUT,
    "correctness": Outcome.WRONG_RESULT,
    "constraints": Outcome.REFUSED,
}


class Recorded:
    """A pack, ready for many searches."""

    def __init__(self, pack: Pack, samples: int = SAMPLES) -> None:
        """`samples`: behind the warm-ups, which a search is told the median of."""
        self.pack = pack
        self.samples = samples
        self.space = pack.space
        self.rows: dict[Config, Row] = {Config.of(pack.values(each)): each for each in pack.rows}
        self.true_us = {config: time for config, row in self.rows.items() if (time := pack.time_us(row)) is not None}
        self.told_us = {config: pack.time_us(self.rows[config], samples) or 0.0 for config in self.true_us}
        self.best_us = min(self.true_us.values())
        self.scale_us = sorted(self.true_us.values())[len(self.true_us) // 2]
        """Ratios are told against the median config, as if that were the unfused way."""

    def trial(self, ask: Ask) -> Trial:
        """What becomes of an ask here."""
        row = self.rows[ask.config]
        plain = {"sequence": ask.sequence, "config": ask.config, "origin": ask.origin}
        if row.failure:
            return Trial(outcome=OUTCOMES[row.failure], **plain)
        told_us = self.told_us[ask.config]
        samples_us = self.pack.samples_us(row, self.samples)
        measured = Measurement(
            span_us=samples_us, baseline_us=(self.scale_us,) * len(samples_us), clock="device", purpose=Purpose.SEARCH
        )
        ratio = self.scale_us / told_us
        return Trial(outcome=Outcome.MEASURED, ratio=ratio, time_us=told_us, measurement=measured, **plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A search: after each trial the share of the optimum that its answer reaches (0 before anything was measured).

    The search is told the median of SAMPLES; its answer is, as after fusiond's finals, the best of FINALISTS by the
    median of all samples.
    """

    shares: tuple[float, ...]

    def at(self, trials: int) -> float | None:
        """None where the search was not asked for so many trials."""
        return self.shares[trials - 1] if 0 < trials <= len(self.shares) else None

    @property
    def trials_to_near(self) -> int | None:
        return next((number for number, share in enumerate(self.shares, 1) if share >= NEAR), None)

    def document(self, pack: str, seed: int, sampler: str) -> dict[str, Any]:
        """What a line of the benchmark's output holds."""
        shares = {str(each): None if (share := self.at(each)) is None else round(share, 4) for each in AT}
        return {"pack": pack, "seed": seed, "sampler": sampler, "share": shares, "trials_to_95": self.trials_to_near}


def curve(recorded: Recorded, asked: Sequence[Config], trials: int) -> Curve:
    """Of the configs in the order in which they were tried; where a space is used up before `trials`, the last share
    holds on."""
    shares: list[float] = []
    finalists: list[tuple[float, float]] = []
    share = 0.0
    for config in itertools.islice(asked, trials):
        if config in recorded.true_us:
            finalists = sorted([*finalists, (recorded.told_us[config], recorded.true_us[config])])[:FINALISTS]
            share = recorded.best_us / min(true_us for _, true_us in finalists)
        shares.append(share)
    return Curve(shares=(*shares, *[share] * (trials - len(shares))))


def at_random(recorded: Recorded, trials: int) -> tuple[float, float]:
    """Drawing without replacement, exactly: the expected share after so many trials, and the chance of NEAR."""
    shares = sorted((recorded.best_us / time_us for time_us in recorded.true_us.values()), reverse=True)
    whole = len(recorded.rows)
    missed = 1.0  #: The chance that none of the better ones was drawn
    expected = near = 0.0
    for better, share in enumerate(shares):
        left = missed * max(0, whole - better - trials) / (whole - better)
        expected += share * (missed - left)
        near += (missed - left) * (share >= NEAR)
        missed = left
    return expected, near


def study(
    recorded: Recorded,
    make: Callable[..., Study],
    *,
    trials: int,
    ahead: int,
    observe: Callable[[Trial], None] = lambda trial: None,
) -> Iterator[Config]:
    """The configs that a study tries: `ahead` asks are out at once, and after each trial comes another ask."""
    study = make(recorded.space, (), budget=trials, remember=lambda ask: None)
    out: deque[Ask] = deque()
    while True:
        while len(out) < ahead and (ask := study.next()) is not None:
            out.append(ask)
        if not out:
            return
        ask = out.popleft()
        trial = recorded.trial(ask)
        study.tell(ask, trial)
        observe(trial)
        yield ask.config
