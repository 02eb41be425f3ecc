"""Among all ways with the fewest messages, the one that keeps data on the device for the least bytes x slots.

An uploaded vector is on the device from its slot to its last use there, a downloaded one from its producer to its last
use or its slot, whichever is later. So uploads go to the last point of their interval, downloads to the first, and
what is left to choose is the points. Let R_i be the points of the greedy from the left and L_i those of the one from
the right: the i-th point of every least set is in [L_i, R_i], and moving it to the first end (uploads) or the last
beginning (downloads) among what crosses there loses nothing. Dynamic programming over these candidates: a point q can
be followed by p if no interval lies between them.

    uploads      sum over v of bytes(v) * (last use - point + 1)
    downloads    sum over v of bytes(v) * max(0, point - last use), beside what lies there in any case

Above MOST_WORK steps there is no answer.
"""

import bisect
import itertools
from collections.abc import Callable, Sequence

from fusiond_transfer.analysis.interval_stabbing import Stabbing, stab
from fusiond_transfer.analysis.intervals import Crossing

MOST_WORK = 3_000_000


def uploads(intervals: Sequence[Crossing]) -> Stabbing | None:
    """The points of the tightest uploads; None where that is too much work."""
    windows = _windows(intervals, sorted({each.latest for each in intervals}))
    if _work(windows) > MOST_WORK:
        return None
    by_end = sorted(intervals, key=lambda each: each.latest)
    slots = [each.latest for each in by_end]
    weights = [0, *itertools.accumulate(each.size_bytes for each in by_end)]

    def gained(q: int, p: int | None) -> int:
        """Bytes x slots that are saved by the vectors that cross at q, when the next point is p."""
        behind = weights[-1] if p is None else weights[bisect.bisect_left(slots, p)]
        return q * (behind - weights[bisect.bisect_left(slots, q)])

    return Stabbing(points=_best(intervals, windows, gained), witnesses=())


def downloads(intervals: Sequence[Crossing]) -> Stabbing | None:
    """The points of the tightest downloads; None where that is too much work."""
    windows = _windows(intervals, sorted({each.earliest for each in intervals}))
    if _work(windows) * max(1, len(intervals) // max(1, len(windows))) > MOST_WORK:
        return None
    # Seen from the end, a download is an upload: slots count backwards.
    flipped = _flipped(intervals)
    windows = [[-slot for slot in reversed(window)] for window in reversed(windows)]
    by_end = sorted(flipped, key=lambda each: each.latest)
    slots = [each.latest for each in by_end]

    def gained(q: int, p: int | None) -> int:
        first, last = bisect.bisect_left(slots, q), len(slots) if p is None else bisect.bisect_left(slots, p)
        return -sum(each.size_bytes * max(0, -q - each.last_use) for each in by_end[first:last])

    points = tuple(-point for point in reversed(_best(flipped, windows, gained)))
    return Stabbing(points=points, witnesses=())


def byte_slots(crossings: Sequence[Crossing], slots: Sequence[int]) -> int:
    """Bytes x slots on the device of crossings that take place at these slots."""
    total = 0
    for each, slot in zip(crossings, slots, strict=True):
        if each.up:
            total += each.size_bytes * (each.last_use - slot + 1)
        else:
            total += each.size_bytes * (max(each.last_use, slot) - each.earliest + 1)
    return total


def _windows(intervals: Sequence[Crossing], candidates: list[int]) -> list[list[int]]:
    """For each point of a least set the candidates that it can be."""
    early = (-point for point in reversed(stab(_flipped(intervals)).points))
    pairs = zip(early, stab(intervals).points, strict=True)
    return [
        candidates[bisect.bisect_left(candidates, low) : bisect.bisect_right(candidates, high)] for low, high in pairs
    ]


def _flipped(intervals: Sequence[Crossing]) -> list[Crossing]:
    return [each._replace(earliest=-each.latest, latest=-each.earliest) for each in intervals]


def _work(windows: Sequence[Sequence[int]]) -> int:
    return sum(len(a) * len(b) for a, b in itertools.pairwise(windows)) + sum(len(each) for each in windows)


def _best(
    intervals: Sequence[Crossing], windows: Sequence[Sequence[int]], gained: Callable[[int, int | None], int]
) -> tuple[int, ...]:
    """One point out of each window, so that no interval lies between two and the most is gained; ties go to the
    later."""
    if not windows:
        return ()
    by_begin = sorted(intervals, key=lambda each: each.earliest)
    begins = [each.earliest for each in by_begin]
    least = list(itertools.accumulate((each.latest for each in reversed(by_begin)), min))
    least.reverse()

    def reach(point: int) -> int | None:
        """The last slot at which the next point may be; None when nothing is left."""
        behind = bisect.bisect_right(begins, point)
        return least[behind] if behind < len(least) else None

    best = {p: 0 for p in windows[0] if p <= least[0]}
    back: list[dict[int, int]] = []
    for window in windows[1:]:
        found: dict[int, int] = {}
        came: dict[int, int] = {}
        for p in window:
            for q, value in best.items():
                limit = reach(q)
                if q < p and (limit is None or p <= limit):
                    total = value + gained(q, p)
                    if p not in found or total >= found[p]:
                        found[p], came[p] = total, q
        best = found
        back.append(came)
    last = max((p for p in best if reach(p) is None), key=lambda p: (best[p] + gained(p, None), p))
    points = [last]
    for came in reversed(back):
        points.append(came[points[-1]])
    return tuple(reversed(points))
