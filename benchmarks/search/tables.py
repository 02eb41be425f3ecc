"""Curves as a table for people."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TypeAlias

from benchmarks.pages import table
from benchmarks.search import drive
from benchmarks.search.drive import AT, Curve, Recorded

Found: TypeAlias = tuple[str, int, str, Curve]  #: Pack, seed, sampler, curve

HEAD = ("sampler (runs)", *(f"@{each}" for each in AT), "95 % by 50", "by 100", "median trials to 95 %")


def render(found: Sequence[Found], spaces: Sequence[Recorded] = ()) -> str:
    """A row for each sampler over all packs, one for random choice exactly, then one for each pack."""
    samplers = list(dict.fromkeys(each[2] for each in found))
    packs = list(dict.fromkeys(each[0] for each in found))
    rows = [row(name, [each[3] for each in found if each[2] == name]) for name in samplers]
    whole = table(HEAD, rows + ([at_random(spaces)] if spaces else []))
    parts = [
        row(f"{pack}, {name}", [each[3] for each in found if each[0] == pack and each[2] == name])
        for pack in packs
        for name in samplers
    ]
    return whole + "\n" + table(("pack, sampler (runs)", *HEAD[1:]), parts)


def at_random(spaces: Sequence[Recorded]) -> list[str]:
    """What random choice comes to on the average of these spaces."""
    by_trials = {trials: [drive.at_random(each, trials) for each in spaces] for trials in AT}
    shares = [f"{statistics.mean(share for share, _ in each):.3f}" for each in by_trials.values()]
    near = [f"{statistics.mean(chance for _, chance in by_trials[trials]):.0%}" for trials in (50, 100)]
    return ["random (exactly)", *shares, *near, ""]


def row(name: str, curves: Sequence[Curve]) -> list[str]:
    """Means of the shares, and how many of the runs reach 95 %."""
    shares = [[share for each in curves if (share := each.at(trials)) is not None] for trials in AT]
    needed = [each.trials_to_near or 10**9 for each in curves]
    median = statistics.median(needed)
    longest = max(len(each.shares) for each in curves)
    return [
        f"{name} ({len(curves)})",
        *(f"{statistics.mean(each):.3f}" if each else "" for each in shares),
        *(
            f"{sum(each <= trials for each in needed) / len(curves):.0%}" if trials <= longest else ""
            for trials in (50, 100)
        ),
        f"{median:.0f}" if median <= longest else f">{longest}",
    ]
