"""Bundles beside each other in fresh processes, as finalists are measured (`fusiond.tuning.finals`), where bundles are
there already and no store is: NumPy is enough, and PyCUDA for a GPU.
"""

from __future__ import annotations

import dataclasses
import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusiond.devices import protocol
from fusiond.devices.calibration import fitted
from fusiond.devices.supervisor import Runner
from fusiond.devices.timing import Sampling, throttled
from fusiond.keys import plain
from fusiond.model import MeasureFailed, Measurement, Outcome, Purpose
from fusiond.tuning import verdict

LEAST_GAIN = 1.02
MOST_LOST = 10
"""As in `fusiond.tuning.finals`, which needs more than NumPy."""
CALL_SECS = 60.0
BATCHES = 2
FINAL = Sampling(purpose=Purpose.FINAL, warm_up_secs=0.3, pairs=16, budget_secs=0.5)
"""Half of what a job's finals take: what is beside each other here was chosen before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A bundle, and the one that it is sampled in pairs with."""

    candidate: Path
    baseline: Path
    cold: bool = False


@dataclass(slots=True, kw_only=True)
class Samples:
    """What fresh processes have measured: of each, its matches by name."""

    processes: list[dict[str, Measurement]] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    """Match -> why it failed, the last time."""
    struck: set[str] = field(default_factory=set)
    """Matches that failed for a reason that does not pass."""

    def document(self) -> dict[str, Any]:
        return {"processes": plain(self.processes), "lost": dict(self.lost), "struck": sorted(self.struck)}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Samples:
        processes = [{name: protocol.measurement(each) for name, each in one.items()} for one in document["processes"]]
        return cls(processes=processes, lost=dict(document["lost"]), struck=set(document["struck"]))

    def logs(self, name: str, beside: tuple[str, ...] = ()) -> list[float]:
        """The log ratio of each process that measured this match, and all of `beside`."""
        shared = [each for each in self.processes if all(other in each for other in (name, *beside))]
        return [verdict.process_ratio(each[name]) for each in shared]


def measure(
    runner: Runner,
    matches: Mapping[str, Match],
    found: Samples,
    *,
    together: bool,
    until: float,
    keep: Callable[[], None],
    figures: Mapping[str, float] | None = None,
) -> bool:
    """Add processes to `found` until each match that stands has as many as a verdict needs; whether that is so.
    `together`: in the same processes. None is begun after `until` (of the monotonic clock)."""
    while True:
        standing = [name for name in matches if name not in found.struck]
        wanted = _wanted(found, standing, together=together)
        if not wanted or len(found.processes) >= verdict.LEAST_PROCESSES + MOST_LOST:
            return not wanted
        if time.monotonic() > until:
            return False
        runner.fresh()
        random.Random(len(found.processes)).shuffle(wanted)
        process = {}
        for name in wanted:
            reply = _sampled(runner, matches[name], figures or {})
            if isinstance(reply, Measurement):
                process[name] = reply
                continue
            found.lost[name] = f"{reply.outcome.value}: {reply.reason}"
            if reply.outcome not in (Outcome.TOO_NOISY, Outcome.WORKER_DIED):
                found.struck.add(name)
        found.processes.append(process)
        keep()


def _wanted(found: Samples, standing: list[str], *, together: bool) -> list[str]:
    lacking = [
        name for name in standing
        if len(found.logs(name, tuple(standing) if together else ())) < verdict.LEAST_PROCESSES
    ]  # fmt: skip
    return standing if together and lacking else lacking


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
