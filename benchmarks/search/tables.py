"""Curves as a table for people."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TypeAlias

from benchmarks.pages import table
from benchmarks.search.drive import AT, Curve

Found: TypeAlias = tuple[str, int, str, Curve]
"""Pack, seed, sampler, curve."""

HEAD = ("sampler (runs)", *(f"@{each}" for each in AT), "95 % by 50", "by 100", "median trials to 95 %")


def render(found: Sequence[Found]) -> str:
    """A row for each sampler over all packs, then one for each pack."""
    samplers = list(dict.fromkeys(each[2] for each in found))
    packs = list(dict.fromkeys(each[0] for each in found))
    whole = table(HEAD, [row(name, [each[3] for each in found if each[2] == name]) for name in samplers])
    parts = [
        row(f"{pack}, {name}", [each[3] for each in found if each[0] == pack and each[2] == name])
        for pack in packs
        for name in samplers
    ]
    return whole + "\n" + table(("pack, sampler (runs)", *HEAD[1:]), parts)


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
