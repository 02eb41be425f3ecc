"""Bundles beside each other in fresh processes, as finalists are measured (`fusiond.tuning.finals`), where bundles are
there already and no store is: NumPy is enough, and PyCUDA for a GPU.
"""

from __future__ import annotations

import dataclasses
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fusiond.devices import protocol
from fusiond.devices.calibration import fitted
from fusiond.devices.supervisor import Runner
from fusiond.devices.timing import Sampling, throttled
from fusiond.model.keys import plain
from fusiond.model.outcomes import MeasureFailed, Measurement, Outcome, Purpose
from fusiond.tuning import verdict

LEAST_GAIN = 1.02
MOST_LOST = 10  #: As in `fusiond.tuning.finals`, which needs more than NumPy
CALL_SECS = 20.0  #: A kernel that hangs costs no more of a slice
BATCHES = 2
FINAL = Sampling(purpose=Purpose.FINAL, warm_up_secs=0.3, pairs=16, budget_secs=0.5)
"""Half of what a job's finals take: what is beside each other here was chosen before."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A bundle, and the one that it is sampled in pairs with."""

    candidate: Path
    baseline: Path
    cold: bool = False


@dataclass(slots=True, kw_only=True)
class Samples:
    """What fresh processes have measured of matches that are compared with each other: of each process, its matches by
    name."""

    processes: list[dict[str, Measurement]] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)  #: Match -> why it failed, the last time
    struck: set[str] = field(default_factory=set)  #: Matches that failed for a reason that does not pass

    def document(self) -> dict[str, Any]:
        return {"processes": plain(self.processes), "lost": dict(self.lost), "struck": sorted(self.struck)}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Samples:
        given: list[Mapping[str, Any]] = document["processes"]
        processes = [{name: protocol.restored(Measurement, each) for name, each in one.items()} for one in given]
        return cls(processes=processes, lost=dict(document["lost"]), struck=set(document["struck"]))

    def standing(self, matches: Iterable[str]) -> list[str]:
        return [name for name in matches if name not in self.struck]

    def shared(self, matches: Iterable[str]) -> list[dict[str, Measurement]]:
        """The processes that have measured all of these."""
        wanted = list(matches)
        return [each for each in self.processes if all(name in each for name in wanted)]


def measure(
    runner: Runner,
    groups: Mapping[str, Mapping[str, Match]],
    found: Mapping[str, Samples],
    *,
    until: float,
    keep: Callable[[str], None],
    figures: Mapping[str, float] | None = None,
) -> bool:
    """Add processes until those of each group that stand share as many as a verdict needs; whether that is so. A fresh
    process measures all groups that lack one, each as a whole: what is compared comes from the same processes. `keep`
    is called with each group that has a process more. None is begun after `until` (of the monotonic clock)."""
    while wanted := [name for name in groups if not is_over(groups[name], found[name])]:
        if time.monotonic() > until:
            return False
        runner.fresh()
        draw = random.Random(sum(len(each.processes) for each in found.values()))
        draw.shuffle(wanted)
        for name in wanted:
            _process(runner, groups[name], found[name], draw, figures or {})
            keep(name)
    return all(_enough(groups[name], found[name]) for name in groups)


def _enough(matches: Mapping[str, Match], found: Samples) -> bool:
    standing = found.standing(matches)
    return not standing or len(found.shared(standing)) >= verdict.LEAST_PROCESSES


def is_over(matches: Mapping[str, Match], found: Samples) -> bool:
    """Whether no process is added any more: there are enough, nothing stands, or too many were lost."""
    return _enough(matches, found) or len(found.processes) >= verdict.LEAST_PROCESSES + MOST_LOST


def _process(
    runner: Runner, matches: Mapping[str, Match], found: Samples, draw: random.Random, figures: Mapping[str, float]
) -> None:
    """One group's part of a process."""
    names = found.standing(matches)
    draw.shuffle(names)
    process = {}
    for name in names:
        reply = _sampled(runner, matches[name], figures)
        if isinstance(reply, Measurement):
            process[name] = reply
            continue
        found.lost[name] = f"{reply.outcome.value}: {reply.reason}"
        if reply.outcome not in (Outcome.TOO_NOISY, Outcome.WORKER_DIED):
            found.struck.add(name)
    found.processes.append(process)


def _sampled(runner: Runner, match: Match, figures: Mapping[str, float]) -> Measurement | MeasureFailed:
    """As a job does it: a batch in which the device throttled is taken once more."""
    reason = ""
    for _ in range(BATCHES):
        plan = fitted(FINAL, figures) if figures else FINAL
        reply = sample(runner, match, plan)
        if isinstance(reply, MeasureFailed):
            return reply
        if not (reason := throttled(reply.after, reply.before)):
            return reply
    return MeasureFailed(outcome=Outcome.TOO_NOISY, reason=reason)


def sample(runner: Runner, match: Match, plan: Sampling) -> Measurement | MeasureFailed:
    """One batch of a match, in the process at hand."""
    plan = dataclasses.replace(plan, cold=match.cold)
    request = protocol.SampleRequest(candidate=str(match.candidate), baseline=str(match.baseline), plan=plan)
    reply = runner.call(request, CALL_SECS)
    assert isinstance(reply, Measurement | MeasureFailed)
    return reply


def concluded(found: Mapping[str, list[float]]) -> dict[str, Any] | None:
    """A verdict on candidates from the log ratios of their processes, as JSON; None where none has enough of them."""
    conclusion = verdict.conclude(found, LEAST_GAIN)
    if conclusion is None:
        return None
    estimate = conclusion.estimate
    return {
        "winner": conclusion.key,
        "verdict": conclusion.verdict.value,
        "speedup": round(estimate.speedup, 4),
        "ci95": [round(estimate.low, 4), round(estimate.high, 4)],
        "processes": [round(math.exp(each), 4) for each in found[conclusion.key]],
    }


def spread(found: Sequence[T], most: int) -> list[T]:
    """So many of them, evenly."""
    wanted = min(max(0, most), len(found))
    return [found[number * len(found) // wanted] for number in range(wanted)]
