"""The fewest messages, exactly: the fewest slots that stab all intervals.

All that cross at one slot in one direction can lie side by side, so a message is a point in time, and what is wanted is
the smallest set of points that has one in every interval. The classic greedy finds it: take the interval that ends
first, put a point at its end, drop what that stabs. The intervals that were taken are disjoint, and disjoint intervals
need a point each: they are the proof. O(n log n).

On the circle of a loop one point is tried out (every end within the shortest interval: some point has to be there), the
circle cut open at it, and the rest stabbed as above.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from fusiond_transfer.analysis.intervals import Crossing


@dataclass(frozen=True, slots=True, kw_only=True)
class Stabbing:
    """`points` in order; `witnesses` are as many crossings, no two of which have a slot in common. There may
    be fewer witnesses on a circle than points: then `points` is the least by trying them all."""

    points: tuple[int, ...]
    witnesses: tuple[Crossing, ...]


def stab(intervals: Sequence[Crossing]) -> Stabbing:
    """The least set of points, each as late as possible, and why it cannot be smaller."""
    points: list[int] = []
    witnesses: list[Crossing] = []
    last: int | None = None
    for each in sorted(intervals, key=lambda each: (each.latest, -each.earliest)):
        if last is None or each.earliest > last:
            last = each.latest
            points.append(last)
            witnesses.append(each)
    return Stabbing(points=tuple(points), witnesses=tuple(witnesses))


def stab_circle(intervals: Sequence[Crossing], period: int) -> Stabbing:
    """The least set of points modulo `period`; O(n m log n) for m ends within the shortest interval."""
    if not intervals:
        return Stabbing(points=(), witnesses=())
    shortest = min(intervals, key=lambda each: (each.latest - each.earliest, each.earliest))
    ends = {each.latest % period for each in intervals}
    within = [end for end in sorted(ends) if on_circle(shortest, end, period)]
    best: tuple[int, ...] | None = None
    disjoint: tuple[Crossing, ...] = ()
    for first in within:  # at which the circle is cut: slots are distances behind it
        rest = [
            each._replace(earliest=(each.earliest - first) % period, latest=(each.latest - first) % period)
            for each in intervals
            if not on_circle(each, first, period)
        ]
        found = stab(rest)
        points = tuple(sorted({first, *((point + first) % period for point in found.points)}))
        if best is None or len(points) < len(best):
            names = {each.vector for each in found.witnesses}
            best, disjoint = points, tuple(each for each in intervals if each.vector in names)
    assert best is not None
    met = any(
        on_circle(shortest, each.earliest, period) or on_circle(each, shortest.earliest, period) for each in disjoint
    )
    return Stabbing(points=best, witnesses=disjoint if met else (shortest, *disjoint))


def on_circle(each: Crossing, point: int, period: int) -> bool:
    """Whether a point of the circle is in an interval that may wrap round."""
    return (point - each.earliest) % period <= each.latest - each.earliest


def chosen(crossing: Crossing, points: Sequence[int], *, late: bool, period: int | None = None) -> int:
    """The point at which a vector crosses: the first (or the last) of the sorted `points` within its interval.
    ValueError when there is none."""
    if period is not None:
        turns = range(crossing.latest // period + 1)
        points = [point + turn * period for turn in turns for point in points]
    first, behind = bisect.bisect_left(points, crossing.earliest), bisect.bisect_right(points, crossing.latest)
    if first == behind:
        raise ValueError(f"{crossing.vector} has no point in its interval")
    return points[behind - 1] if late else points[first]
