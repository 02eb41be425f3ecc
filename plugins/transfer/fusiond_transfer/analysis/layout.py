"""The layout of cells in memory, and the messages of a group of crossings.

What crosses together is one message where it lies side by side. A cell that is in one group only (the usual case)
makes no conflict: the groups are laid out one after the other. Storage that is shared, and vectors that the user wants
next to each other, put a cell into several groups. Then the messages of a layout are

    sum over groups of |group|  -  sum over neighbours (a, b) of the groups that hold both

so the best layout is a path of the greatest weight through the cells (the paper's Hamiltonian path, section 4, here
over groups that are decided). It is found exactly for up to EXACT cells that share groups with each other, by joining
the heaviest edges first otherwise.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from fusiond.model.language.extents import ceil_div

ALIGNMENT = 256
"""Bytes: what cudaMalloc gives, so that a kernel sees no other alignment than with an allocation of its own."""
EXACT = 10
Member = TypeVar("Member", str, int)


def laid_out(groups: Sequence[Sequence[str]], adjacent: Sequence[Sequence[str]] = ()) -> tuple[str, ...]:
    """An order of all cells of the groups; `adjacent` runs are kept together as they stand (all of their cells, whether
    they cross or not)."""
    count: dict[str, int] = {}
    for name in itertools.chain.from_iterable(dict.fromkeys(each) for each in groups):
        count[name] = count.get(name, 0) + 1
    if not adjacent and all(each == 1 for each in count.values()):
        return tuple(itertools.chain.from_iterable(groups))
    pieces = _pieces(list(count), adjacent)
    weight = _weights(groups, pieces)
    order: list[int] = []
    for part in joined(range(len(pieces)), weight):
        order += _heaviest_path(part, weight) if len(part) <= EXACT else _joined(part, weight)
    return tuple(itertools.chain.from_iterable(pieces[index] for index in order))


def joined(order: Iterable[Member], groups: Iterable[Sequence[Member]]) -> list[tuple[Member, ...]]:
    """Groups that have a member in common as one, in the order of all members."""
    home = {each: each for each in order}

    def root(each: Member) -> Member:
        while home[each] != each:
            home[each] = home[home[each]]
            each = home[each]
        return each

    for group in groups:
        for each in group[1:]:
            home[root(each)] = root(group[0])
    found: dict[Member, list[Member]] = {}
    for each in home:
        found.setdefault(root(each), []).append(each)
    return [tuple(members) for members in found.values()]


def runs(cells: Iterable[str], follows: Callable[[str, str], bool]) -> list[tuple[str, ...]]:
    """Cells as runs, as long as possible, of which each `follows` the one before."""
    found: list[list[str]] = []
    for cell in cells:
        if found and follows(found[-1][-1], cell):
            found[-1].append(cell)
        else:
            found.append([cell])
    return [tuple(each) for each in found]


def offsets(
    order: Sequence[str], sizes: Mapping[str, int], glued: Mapping[str, tuple[str, int]] = MappingProxyType({})
) -> tuple[dict[str, int], int]:
    """Cell -> its offset in bytes in an arena that holds exactly these cells, and the arena's bytes (up to the last
    cell's end). `glued`: a piece, the vector of which it is one, and the bytes of that before it. A piece follows the
    one before it without a gap; all else is aligned, a piece so far as its vector would be: then what follows it lies
    alike wherever it is."""
    at = length = 0
    expected = "", 0
    found = {}
    for cell in order:
        of, lead = glued.get(cell, ("", 0))
        if not of or expected != (of, int(lead)):
            at += ceil_div(length, ALIGNMENT) * ALIGNMENT
            length = lead % ALIGNMENT if lead else 0
        found[cell] = at + length
        length += sizes[cell]
        expected = of, int(lead) + int(sizes[cell])
    return found, at + length


# --- cells in several groups-------------------------------------------------------------------------------
# A piece is a run of cells that is kept together, in its order.


def _pieces(cells: Sequence[str], adjacent: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    within = {name: tuple(run) for run in adjacent for name in run}
    return list(dict.fromkeys(within.get(name, (name,)) for name in cells))


def _weights(groups: Sequence[Sequence[str]], pieces: Sequence[tuple[str, ...]]) -> dict[tuple[int, int], int]:
    """(i, j) -> how many groups hold both the last cell of piece i and the first of piece j."""
    first = {piece[0]: index for index, piece in enumerate(pieces)}
    last = {piece[-1]: index for index, piece in enumerate(pieces)}
    weight: dict[tuple[int, int], int] = {}
    for group in groups:
        members = list(dict.fromkeys(group))
        for a, b in itertools.permutations(members, 2):
            if a in last and b in first and last[a] != first[b]:
                edge = last[a], first[b]
                weight[edge] = weight.get(edge, 0) + 1
    return weight


def _heaviest_path(part: Sequence[int], weight: Mapping[tuple[int, int], int]) -> list[int]:
    """Held and Karp: over all subsets, the heaviest path that ends in each piece."""
    size = len(part)
    best: list[dict[int, tuple[int, int]]] = [{} for _ in range(1 << size)]
    for i in range(size):
        best[1 << i][i] = (0, -1)
    for subset in range(1, 1 << size):
        for i, (value, _) in best[subset].items():
            for j in range(size):
                if subset >> j & 1:
                    continue
                total = value + weight.get((part[i], part[j]), 0)
                known = best[subset | 1 << j].get(j)
                if known is None or total > known[0]:
                    best[subset | 1 << j][j] = (total, i)
    subset = (1 << size) - 1
    at = max(best[subset], key=lambda i: (best[subset][i][0], -i))
    path = []
    while at >= 0:
        path.append(part[at])
        subset, at = subset & ~(1 << at), best[subset][at][1]
    return path[::-1]


def _joined(part: Sequence[int], weight: Mapping[tuple[int, int], int]) -> list[int]:
    """Paths joined by their heaviest edges; then laid end to end."""
    follows: dict[int, int] = {}
    leads: dict[int, int] = {}
    members = set(part)
    edges = [edge for edge in weight if edge[0] in members and edge[1] in members]
    for a, b in sorted(edges, key=lambda edge: (-weight[edge], edge)):
        if a in follows or b in leads:
            continue
        start = a
        while start in leads:
            start = leads[start]
        if start == b:
            continue
        follows[a], leads[b] = b, a
    order = []
    for index in part:
        if index in leads:
            continue
        at: int | None = index
        while at is not None:
            order.append(at)
            at = follows.get(at)
    return order
