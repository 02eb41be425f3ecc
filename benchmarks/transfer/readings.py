"""Which reading of the heuristic (Kessler, section 4) gives what table 4 prints, in the rows whose graphs are known.

The text leaves two things open. Of several candidates for a path "the best one" is kept: the heaviest, or the one that
saves most. And a tight upload crosses late where that "is still locally optimal": whenever it has a neighbour there, or
only with a sibling, for which it gets its "affinity bonus". For every reading and row: in how many of so many runs with
other ties it saves what the paper prints, with 4 attempts, and with 400, which must save the same where the table has
no second number. And over all orders in memory, whatever walk finds them: the least and the most that a rule saves.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.transfer.paper import TABLE_4, Row
from benchmarks.transfer.planning import MANY, catalogued
from fusiond_transfer.analysis import affinity, heuristic, intervals
from fusiond_transfer.analysis.heuristic import WAITS, Emission, HeuristicReading, Run
from fusiond_transfer.analysis.intervals import Crossing
from fusiond_transfer.frontend.graph import Graph

RUNS = 300
RUNS_OF_MANY = 30
READINGS = tuple(HeuristicReading(waits=waits, best=best) for best in ("heaviest", "fewest") for waits in WAITS)
ROWS = tuple(row for row in TABLE_4 if row.graph is not None and row.graph != "cg")
"""Conjugate gradient saves 2 in every reading (`variants`)."""
ALL_ORDERS = ("Horner's rule", "matrix product, 2x2 blocks")


def table(say: Callable[[str], None], *, runs: int = RUNS, runs_of_many: int = RUNS_OF_MANY) -> list[dict[str, Any]]:
    """A line for each reading and row."""
    found = []
    for reading, row in itertools.product(READINGS, ROWS):
        assert row.graph is not None
        graph = catalogued(row.graph)
        crossings = intervals.crossings(graph)
        line: dict[str, Any] = {"row": row.name, "waits": reading.waits, "best": reading.best, "runs": runs,
                                "runs_of_many": runs_of_many}  # fmt: skip
        for tight, theirs in ((False, row.greedy), (True, row.tight)):
            for count, tries, number in ((runs, heuristic.TRIES, 0), (runs_of_many, MANY, 1)):
                saved = [
                    _saved(graph, crossings, reading, tight=tight, tries=tries, seed=seed) for seed in range(count)
                ]
                name = ("tight" if tight else "greedy") + ("_of_many" if number else "")
                line |= {
                    name: saved.count(theirs[number]),
                    f"{name}_least": min(saved, default=0),
                    f"{name}_most": max(saved, default=0),
                }
        found.append(line)
        say(f"{line}")
    return found


def everywhere(lines: Sequence[dict[str, Any]], name: str) -> bool:
    """Whether a reading (`heaviest, siblings`) gives every number of the paper in some run, with 4 attempts and with
    400."""
    mine = [each for each in lines if f"{each['best']}, {each['waits']}" == name]
    return all(each[kind] > 0 for each in mine for kind in ("greedy", "tight", "greedy_of_many", "tight_of_many"))


def _saved(
    graph: Graph, crossings: Sequence[Crossing], reading: HeuristicReading, *, tight: bool, tries: int, seed: int
) -> int:
    made = heuristic.search(graph, crossings, tight=tight, tries=tries, seed=seed, reading=reading)
    return len(crossings) - made.messages


# --- all orders -----------------------------------------------------------------------------------------


def over_all_orders(say: Callable[[str], None], rows: Sequence[Row] = TABLE_4) -> list[dict[str, Any]]:
    """The least and the most that a tight rule saves over every order of the vectors in memory, uploads and downloads
    each by themselves (no message has both)."""
    found = []
    for row, waits in itertools.product(rows, WAITS):
        if row.name in ALL_ORDERS and row.graph is not None:
            least, most = extremes(catalogued(row.graph), waits)
            found.append({"row": row.name, "waits": waits, "least": least, "most": most, "paper": row.tight[0]})
            say(f"{found[-1]}")
    return found


def extremes(graph: Graph, waits: str) -> tuple[int, int]:
    """(least, most) startups that the tight rule saves."""
    crossings = intervals.crossings(graph)
    emission = Emission(crossings, affinity.affinity(graph, crossings), tight=True, waits=waits)
    fewest = most = 0
    for up in (True, False):
        numbers = [number for number, each in enumerate(crossings) if each.up is up]
        few, many = _messages(emission, numbers)
        fewest, most = fewest + few, most + many
    return len(crossings) - most, len(crossings) - fewest


def _messages(emission: Emission, numbers: Sequence[int]) -> tuple[int, int]:
    """(fewest, most) messages over all orders: by the set of vectors that are placed, the run that is open, and who is
    placed next, as the rule looks one vector ahead."""
    if not numbers:
        return 0, 0
    states: dict[tuple[frozenset[int], Run | None, int], tuple[int, int]] = {
        (frozenset(), None, number): (0, 0) for number in numbers
    }
    ends: list[tuple[int, int]] = []
    for _ in numbers:
        found: dict[tuple[frozenset[int], Run | None, int], tuple[int, int]] = {}
        for (placed, run, number), (few, many) in states.items():
            after = placed | {number}
            for follower in [each for each in numbers if each not in after] or [None]:
                made, new = emission.step(run, number, follower)
                if follower is None:
                    ends.append((few + new, many + new))
                    continue
                # Who was last matters to a second vector only.
                key = after, made if not made.several else made._replace(last=numbers[0]), follower
                known = found.get(key, (few + new, many + new))
                found[key] = min(known[0], few + new), max(known[1], many + new)
        states = found
    return min(few for few, _ in ends), max(many for _, many in ends)
