"""Chooses the vectors that leave the device for a while when its memory is too small.

A vector that is evicted between two kernels that use it comes up again before the second: one more upload. If nothing
else brings it to the host (it was made on the device and nobody there wants it), it also has to go down before it
leaves: one more download, once. So the least is a matter of who stays in each gap between two uses, kernel by kernel.

Belady's rule (who is used again last leaves) is optimal for vectors of one length that are all on the host already;
with lengths and downloads it is where the search over all states begins: what costs more is not followed.

Where storage is shared in place, what stays or leaves is a cell: vectors that kernels on the device store one where the
other was are one item, called after the first of them. What is in it when it leaves comes up again, and goes down
before if that is not on the host. What a kernel on the host stores there is another item: it comes up as it does
anyway, and until then the room is free.
"""

import bisect
import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fusiond_transfer.analysis.intervals import Crossing
from fusiond_transfer.frontend.graph import Graph

MOST_STATES = 20_000  #: In all, above which Belady's choice is taken as it is
MOST_STEPS = 40_000
"""Ways to go on from a state that are looked at in all (most lead to states that are known): a second or two."""
MOST_KERNELS = 200
MOST_CANDIDATES = 14  #: Vectors of which the sets to evict are all tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """A vector (or what is stored where it was) on the device from kernel `first` to kernel `last`, both of which use
    it."""

    vector: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """`stays` of every vector that is ever on the device, in order of time; `more`: the transfers that evictions cost;
    `least`: none costs fewer."""

    stays: tuple[Stay, ...]
    more: int
    least: bool

    @property
    def split(self) -> frozenset[str]:
        """The vectors that are evicted and come again."""
        count = Counter(each.vector for each in self.stays)
        return frozenset(name for name, stays in count.items() if stays > 1)


class _Uses:
    """Who uses what, when; all by numbers of kernels on the device."""

    def __init__(self, graph: Graph, crossings: Sequence[Crossing]) -> None:
        self.size = {each.name: int(each.size_bytes) for each in graph.vectors}
        self.at: dict[int, tuple[str, ...]] = {}
        self.of: dict[str, list[int]] = {}
        self.item: dict[str, str] = {}  #: Vector -> the item that it is in, where that is not called after it
        self._held: dict[str, list[tuple[int, str]]] = {}
        """Item -> (kernel, what that stores in it), where there is more than one vector in it."""
        made: set[str] = set()
        for k, kernel in enumerate(graph.kernels):
            if kernel.device:
                for new, old in kernel.in_place:
                    self.item[new] = self.item.get(old, old)
                    self._held.setdefault(self.item[new], [(-1, self.item[new])]).append((k, new))
                self.at[k] = tuple(dict.fromkeys(self.item.get(name, name) for name in (*kernel.reads, *kernel.writes)))
                for name in self.at[k]:
                    self.of.setdefault(name, []).append(k)
                made.update(kernel.writes)
        down = {each.vector for each in crossings if not each.up}
        self.placed = tuple(name for name in graph.placed if name in self.of)
        self.costly = frozenset((made | set(graph.placed)) - down)
        """What has to be brought to the host before it can be evicted."""

    def content(self, name: str, k: int) -> str:
        """The vector that an item is behind kernel `k`."""
        held = self._held.get(name)
        return name if held is None else held[bisect.bisect_right(held, k, key=lambda each: each[0]) - 1][1]

    def use(self, name: str, position: int) -> int:
        """The kernel of so many-th use; beyond all kernels when there is none."""
        return self.of[name][position] if position < len(self.of[name]) else 1 << 60


def too_large(graph: Graph) -> str | None:
    """Which kernel needs more than the graph's limit by itself, in one line; None where none does."""
    limit = graph.limit_bytes
    if limit is None:
        return None
    uses = _Uses(graph, ())
    needs = [(f"{graph.kernels[k].name} alone needs", names) for k, names in uses.at.items()]
    for what, names in (*needs, ("what is placed there takes", graph.placed)):
        needed = sum(uses.size[name] for name in names)
        if needed > limit:
            return f"{limit} bytes on the device are too few: {what} {needed} at once"
    return None


def least(graph: Graph, crossings: Sequence[Crossing], limit: int) -> Residency:
    """The evictions that cost fewest transfers, where no kernel is `too_large`."""
    uses = _Uses(graph, crossings)
    seed = belady(uses, limit)
    if seed.least or len(uses.at) > MOST_KERNELS:
        return seed
    return _searched(uses, limit, seed.more) or seed


# --- Belady's rule --------------------------------------------------------------------------------------


def belady(uses: _Uses, limit: int) -> Residency:
    """Evict who is used again last."""
    there: dict[str, int] = dict.fromkeys(uses.placed, 0)
    position = dict.fromkeys(uses.of, 0)  #: How many uses of a vector are behind us
    clean: set[str] = set()
    stays: list[Stay] = []
    more = 0
    held = sum(uses.size[name] for name in there)
    ranked = [_rank(uses, name, 0) for name in there]
    heapq.heapify(ranked)
    for k, names in uses.at.items():
        for name in names:
            if name not in there:
                more += position[name] > 0 or name in uses.placed
                there[name] = k
                held += uses.size[name]
            position[name] += 1
        kept = []
        while held > limit:
            rank = heapq.heappop(ranked)
            out = rank[2]
            if out not in there or -rank[0] != uses.use(out, position[out]):
                continue  # it has left since, or was used again
            if out in names:
                kept.append(rank)
                continue
            last = uses.of[out][position[out] - 1] if position[out] else -1
            content = uses.content(out, last)
            more += content in uses.costly and content not in clean
            clean.add(content)
            stays.append(Stay(vector=out, first=there.pop(out), last=last))
            held -= uses.size[out]
        for rank in kept:
            heapq.heappush(ranked, rank)
        for name in names:
            if position[name] < len(uses.of[name]):
                heapq.heappush(ranked, _rank(uses, name, position[name]))
            else:
                stays.append(Stay(vector=name, first=there.pop(name), last=k))
                held -= uses.size[name]
    in_order = tuple(sorted(stays, key=lambda each: (each.first, each.vector)))
    return Residency(stays=in_order, more=more, least=more == 0)


def _rank(uses: _Uses, name: str, position: int) -> tuple[int, bool, str]:
    """Who is used again last comes first; of those, who costs no download."""
    last = uses.of[name][position - 1] if position else -1
    return -uses.use(name, position), uses.content(name, last) in uses.costly, name


# --- all states -----------------------------------------------------------------------------------------

State = tuple[frozenset[str], frozenset[str]]
"""Which items are on the device and used again; which vectors have been brought to the host though nobody there wants
them."""
_Path = tuple[tuple[int, frozenset[str]], ...]  #: (kernel, who was evicted before it)


def _searched(uses: _Uses, limit: int, bound: int) -> Residency | None:
    """The least, if MOST_STATES suffice; `bound` is what is known to be enough."""
    states: dict[State, tuple[int, _Path]] = {(frozenset(uses.placed), frozenset()): (0, ())}
    seen = steps = 0
    for k, names in uses.at.items():
        found: dict[State, tuple[int, _Path]] = {}
        for state, (cost, path) in states.items():
            room = limit - sum(uses.size[name] for name in {*state[0], *names})
            others = sorted(state[0].difference(names))  # the same in every run
            if room < 0 and len(others) > MOST_CANDIDATES:
                return None
            for out in _minimal(others, uses.size, -room):
                steps += 1
                if steps > MOST_STEPS:
                    return None
                after, more = _step(uses, k, state, out)
                total = cost + more
                if total <= bound and (after not in found or total < found[after][0]):
                    found[after] = total, (*path, (k, frozenset(out))) if out else path
        seen += len(found)
        if seen > MOST_STATES:
            return None
        states = _undominated(found)
    best, path = min(states.values(), key=lambda each: (each[0], len(each[1])))
    return Residency(stays=_stays(uses, dict(path)), more=best, least=True)


def _step(uses: _Uses, k: int, state: State, out: Sequence[str]) -> tuple[State, int]:
    """The state behind kernel `k`, before which some were evicted, and the transfers that this costs."""
    (there, clean), names = state, uses.at[k]
    again = sum(name not in there and (uses.of[name][0] < k or name in uses.placed) for name in names)
    dirty = (uses.costly & {uses.content(name, k - 1) for name in out}) - clean
    left = frozenset(name for name in {*there, *names} - {*out} if uses.of[name][-1] > k)
    # What is on the host matters as long as it may be read on the device.
    items = {name: uses.item.get(name, name) for name in clean | dirty}
    known = (name for name, item in items.items() if uses.of[item][-1] > k and uses.content(item, k) == name)
    return (left, frozenset(known)), again + len(dirty)


def _minimal(names: Sequence[str], size: Mapping[str, int], needed: int) -> Iterator[tuple[str, ...]]:
    """The sets of vectors that free so many bytes, of which no member can be left out."""
    if needed <= 0:
        yield ()
        return
    for count in range(1, len(names) + 1):
        for out in itertools.combinations(names, count):
            freed = sum(size[name] for name in out)
            if freed >= needed > freed - min(size[name] for name in out):
                yield out


def _undominated(states: Mapping[State, tuple[int, _Path]]) -> dict[State, tuple[int, _Path]]:
    """Without those that hold no more than another one, and have cost no less."""
    ranked = sorted(states.items(), key=lambda each: (each[1][0], -len(each[0][0]), -len(each[0][1])))
    kept: dict[State, tuple[int, _Path]] = {}
    for (there, clean), value in ranked:
        if not any(there <= more and clean <= cleaner for more, cleaner in kept):
            kept[there, clean] = value
    return kept


def _stays(uses: _Uses, evicted: Mapping[int, frozenset[str]]) -> tuple[Stay, ...]:
    """The stays that evictions before these kernels leave."""
    found = []
    for name, at in uses.of.items():
        first, last = (0 if name in uses.placed else at[0]), (-1 if name in uses.placed else at[0])
        for use in at:
            if any(last < k <= use and name in out for k, out in evicted.items()):
                found.append(Stay(vector=name, first=first, last=last))
                first = use
            last = use
        found.append(Stay(vector=name, first=first, last=last))
    return tuple(sorted(found, key=lambda each: (each.first, each.vector)))


# --- as crossings ---------------------------------------------------------------------------------------


def crossings_with(
    graph: Graph, crossings: Sequence[Crossing], found: Residency
) -> tuple[tuple[Crossing, ...], tuple[tuple[str, int], ...]]:
    """The crossings of a graph in which vectors leave and come again; and (vector, kernel behind which it leaves)."""
    uses = _Uses(graph, crossings)
    stays: dict[str, list[Stay]] = {}
    for stay in found.stays:
        stays.setdefault(stay.vector, []).append(stay)
    split = found.split
    made: list[Crossing] = []
    for each in crossings:
        item = uses.item.get(each.vector, each.vector)
        made.append(_within(each, stays[item]) if item in split else each)
    down = {each.vector for each in crossings if not each.up}
    leaves = list(_rewritten(graph, uses))
    for name in sorted(split):
        for stay, again in itertools.pairwise(stays[name]):
            vector = uses.content(name, stay.last)
            size = graph.vector(vector).size_bytes
            if vector in uses.costly and vector not in down:
                down.add(vector)
                made.append(Crossing(vector, False, graph.producer.get(vector, -1), stay.last, stay.last, size))
            made.append(Crossing(vector, True, again.first, again.first, again.last, size))
            leaves.append((vector, stay.last))
    return tuple(made), tuple(leaves)


def _within(each: Crossing, stays: Sequence[Stay]) -> Crossing:
    """A crossing of something that leaves the device: in the stay in which it comes up, or is made."""
    if each.up:
        first = stays[0]
        return each._replace(earliest=first.first, latest=first.first, last_use=min(each.last_use, first.last))
    placed = each.earliest < 0  # which is there before any kernel
    here = stays[0] if placed else next(stay for stay in reversed(stays) if stay.first <= each.earliest)
    latest = max(each.earliest, min(each.latest, here.last))
    return each._replace(latest=latest, last_use=min(each.last_use, here.last))


def _rewritten(graph: Graph, uses: _Uses) -> Iterator[tuple[str, int]]:
    """What a kernel on the host stores something else in the place of: it has left the device by then, and its room is
    free until that comes up."""
    there = {graph.cell[name] for name in graph.placed}
    for k, kernel in enumerate(graph.kernels):
        if kernel.device:
            there.update(graph.cell[name] for name in (*kernel.reads, *kernel.writes))
            continue
        for new, old in kernel.in_place:
            if graph.cell[old] in there and new in uses.of:
                yield old, k
