"""There: headlines' bundles, screened in one process and measured again in fresh ones, to a verdict on each.

    reference   the unfused program as given, on two seeds
    screened    each program compared with it and sampled in a few pairs, unfused and fused in turn, as long as there is
                time; what there was no time for is counted
    finals      the two best of either side, in pairs with the best unfused one, in five fresh processes, each of which
                measures all headlines: to start one takes longer than to measure in it

What was found is kept after each program and each process, and gone on from.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import contest
from benchmarks.contest import Match, Samples
from fusiond.devices import protocol
from fusiond.devices.supervisor import Runner
from fusiond.devices.timing import Sampling
from fusiond.model.outcomes import MeasureFailed, Outcome, Purpose
from fusiond.tuning import verdict

SEEDS = (0, 1)
FINALISTS = 2  #: Of either side
SCREENING = Sampling(purpose=Purpose.SEARCH, warm_up_secs=0.1, least_pairs=4, pairs=10, budget_secs=0.15)
RIGHT = "right"

Document = dict[str, Any]  #: What is known of a headline, as JSON


def new(entry: Mapping[str, Any]) -> Document:
    """`entry` is the headline's part of index.json."""
    return {
        "headline": entry["name"],
        "sizes": entry["sizes"],
        "entries": {each["name"]: {key: each[key] for key in ("role", "config", "program_key")}
                    for each in entry["entries"]},
        "screened": {},
        "finalists": {},
        "finals": Samples().document(),
        "conclusion": None,
        "rivals": {},
    }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadlineRun:
    """A headline on its way."""

    entry: Mapping[str, Any]  #: Its part of index.json
    folder: Path  #: Of its bundles
    found: Document
    keep: Callable[[], None]

    @property
    def paths(self) -> dict[str, Path]:
        return {each["name"]: self.folder / each["path"] for each in self.entry["entries"]}

    @property
    def matches(self) -> dict[str, Match]:
        """Of its finals."""
        best, *contenders = self.found["finalists"]["unfused"]
        paths = self.paths
        names = [*self.found["finalists"]["fused"], *contenders]
        return {name: Match(candidate=paths[name], baseline=paths[best]) for name in names}


def measure(
    runner: Runner,
    headlines: Mapping[str, HeadlineRun],
    work: Path,
    *,
    screen_until: float,
    until: float,
    figures: Mapping[str, float] | None = None,
) -> bool:
    """Whether each has a verdict, or a reason why it has none (`problem`). Times are of the monotonic clock."""
    unscreened = [each for each in headlines.values() if not each.found["finalists"]]
    for number, each in enumerate(unscreened):
        now = time.monotonic()
        problem = _screen(runner, each, work, now + (screen_until - now) / (len(unscreened) - number))
        if problem:
            each.found["problem"] = problem
        each.keep()
    left = {name: each for name, each in headlines.items() if "problem" not in each.found}
    samples = {name: Samples.read(each.found["finals"]) for name, each in left.items()}

    def keep(name: str) -> None:
        found = left[name].found
        found["finals"], found["conclusion"] = samples[name].document(), _concluded(found, samples[name])
        left[name].keep()

    groups = {name: each.matches for name, each in left.items()}
    done = contest.measure(runner, groups, samples, until=until, keep=keep, figures=figures)
    for name, each in left.items():
        if each.found["conclusion"] is None and contest.is_over(groups[name], samples[name]):
            reasons = [f"{lost}: {why}" for lost, why in samples[name].lost.items()]
            each.found["problem"] = "; ".join(reasons) or "no finalist is left"
            each.keep()
    return done or all("problem" in each.found or each.found["conclusion"] for each in headlines.values())


def _screen(runner: Runner, headline: HeadlineRun, work: Path, until: float) -> str:
    """Fills `screened` and `finalists`; why there are none, empty where there are."""
    entry, paths, found = headline.entry, headline.paths, headline.found
    native = entry["entries"][0]["name"]
    references = []
    for seed in SEEDS:
        path = str(work / f"{entry['name']}-{seed}.npz")
        reply = runner.call(protocol.Reference(bundle=str(paths[native]), seed=seed, outputs=path), contest.CALL_SECS)
        if isinstance(reply, MeasureFailed):
            return f"the unfused program: {reply.outcome.value}: {reply.reason}"
        references.append((seed, path))
    screened, best = found["screened"], {"unfused": 0.0, "fused": 0.0}
    for name in in_turn(entry):
        role = found["entries"][name]["role"]
        if name not in screened:
            if time.monotonic() > until and all(best.values()):
                break
            screened[name] = _one(runner, paths[name], paths[native], references, best[role])
            headline.keep()
        best[role] = max(best[role], screened[name].get("ratio") or 0.0)
    for _, path in references:
        Path(path).unlink()
    found["untried"] = len(paths) - len(screened)
    for role in best:
        ratios = {
            name: each["ratio"] for name, each in screened.items()
            if found["entries"][name]["role"] == role and each.get("ratio")
        }  # fmt: skip
        if not ratios:
            failed = next((f"{name}: {each['outcome']}: {each['reason']}" for name, each in screened.items()
                           if found["entries"][name]["role"] == role), "none was built")  # fmt: skip
            return f"nothing {role} could be measured: {failed}"
        found["finalists"][role] = sorted(ratios, key=lambda name: -ratios[name])[:FINALISTS]
    return ""


def in_turn(entry: Mapping[str, Any]) -> list[str]:
    """Unfused and fused in turn, so that one side is not tried more than the other where the time is short."""
    sides = [[each["name"] for each in entry["entries"] if each["role"] == role] for role in ("unfused", "fused")]
    return [name for both in itertools.zip_longest(*sides) for name in both if name is not None]


def _one(
    runner: Runner, path: Path, native: Path, references: list[tuple[int, str]], incumbent: float
) -> dict[str, Any]:
    reply = runner.call(protocol.CheckRequest(bundle=str(path), references=tuple(references)), contest.CALL_SECS)
    if isinstance(reply, MeasureFailed):
        return {"outcome": reply.outcome.value, "reason": reply.reason}
    plan = dataclasses.replace(SCREENING, incumbent=incumbent or None)
    measured = contest.sample(runner, Match(candidate=path, baseline=native), plan)
    if isinstance(measured, MeasureFailed):
        outcome = RIGHT if measured.outcome is Outcome.TOO_NOISY else measured.outcome.value
        return {"outcome": outcome, "reason": measured.reason}
    ratio = None if measured.ratio is None else round(measured.ratio, 4)
    return {"outcome": RIGHT, "ratio": ratio, "time_us": round(measured.time_us, 3)}


def _concluded(found: Document, samples: Samples) -> dict[str, Any] | None:
    """The verdict on the fused finalists over the fastest unfused one, from the processes that all of them share."""
    best, *contenders = found["finalists"]["unfused"]
    standing = samples.standing([*found["finalists"]["fused"], *contenders])
    shared = samples.shared(standing)
    if not shared or not any(name in standing for name in found["finalists"]["fused"]):
        return None
    logs = {name: [verdict.process_ratio(each[name]) for each in shared] for name in standing}
    unfused = {best: [0.0] * len(shared)} | {name: logs[name] for name in contenders if name in logs}
    opponent = verdict.opponent(unfused, None)
    fused = {
        name: [one - other for one, other in zip(logs[name], unfused[opponent], strict=True)]
        for name in found["finalists"]["fused"] if name in logs
    }  # fmt: skip
    concluded = contest.concluded(fused)
    if concluded is None:
        return None
    spans = [each[concluded["winner"]].span_us for each in shared]
    against = [each[standing[0]].baseline_us if opponent == best else each[opponent].span_us for each in shared]
    return concluded | {
        "opponent": opponent,
        "time_us": _middle(spans),
        "opponent_us": _middle(against),
        "clock": shared[0][concluded["winner"]].clock,
    }


def _middle(samples: list[tuple[float, ...]]) -> float:
    every = sorted(itertools.chain.from_iterable(samples))
    return round(every[len(every) // 2], 3)
