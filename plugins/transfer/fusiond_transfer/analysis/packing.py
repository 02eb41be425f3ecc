"""Addresses on the device that are used again: one allocation, in which cells lie by when they are needed.

What crosses together has to lie side by side, but not everything of it is needed as long as the last of it. With an
allocation for each group, the room of the rest is idle till then; here another cell has it. A cell that is evicted
leaves its room to others, too, and comes again at the same address. That is dynamic storage allocation with known
lifetimes, which is NP-hard: blocks (the cells of a group, in their order) are put at the lowest address at which
everybody's lifetimes allow it, in a few orders, of which the one that needs the least room is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fusiond_transfer.analysis import layout
from fusiond_transfer.analysis.cells import Evict, Move, Script, touched

MOST_CELLS = 400
"""On the device, above which nothing is packed."""
MOST_WORK = 25_000
"""Of `limited_cells.work`, above which groups that were found without packing are packed as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Byte at which each cell on the device begins, and how many bytes there are."""

    offsets: Mapping[str, int]
    size_bytes: int


class _Block(NamedTuple):
    cells: tuple[str, ...]
    offsets: tuple[int, ...]
    """Within the block."""
    size_bytes: int


class _Put(NamedTuple):
    begin: int
    end: int
    stays: tuple[tuple[int, int], ...]


def packable(script: Script) -> bool:
    """Whether cells can be packed: all on the device are parts of one buffer, so they have one type; and what lies
    between two of a message would be another cell's, so there must be nothing."""
    graph = script.graph
    cells = {each.name: each.like for each in script.cells if each.device and each.name not in script.spare}
    if graph.loop or not 2 <= len(cells) <= MOST_CELLS:
        return False
    runs = [op.cells for op in script.ops if isinstance(op, Move)]
    size = {name: int(each.size_bytes) for name, each in cells.items()}
    return len({each.dtype for each in cells.values()}) == 1 and not any(_has_gap(script, run, size) for run in runs)


def _has_gap(script: Script, run: tuple[str, ...], size: Mapping[str, int]) -> bool:
    """Whether cells that lie side by side are not without a gap."""
    offsets, end = layout.offsets(run, size, script.glued)
    return int(end) - int(offsets[run[0]]) != sum(size[name] for name in run)


def packed(script: Script) -> Packing:
    """Where the cells of a script lie on the device, if it is `packable`."""
    stays = _stays(script)
    size = {
        each.name: int(each.like.size_bytes) for each in script.cells if each.device and each.name not in script.spare
    }
    grouped = {name for group in script.arenas for name in group}
    groups = [*script.arenas, *((name,) for name in size if name not in grouped)]
    blocks = [_block(tuple(group), size, script.glued) for group in groups]

    def lasting(block: _Block) -> int:
        return sum(size[name] * sum(b - a + 1 for a, b in stays.get(name, ())) for name in block.cells)

    def begun(block: _Block) -> int:
        return min((stays[name][0][0] for name in block.cells if name in stays), default=0)

    orders: tuple[Callable[[_Block], tuple[int, ...]], ...] = (
        lambda block: (begun(block),),
        lambda block: (-block.size_bytes, begun(block)),
        lambda block: (-lasting(block), begun(block)),
        lambda block: (-len(block.cells), begun(block)),
    )
    found = (_put(sorted(blocks, key=order), size, stays) for order in orders)
    return min(found, key=lambda each: each.size_bytes)


def _stays(script: Script) -> dict[str, tuple[tuple[int, int], ...]]:
    """(first, last) op of each stay of a cell on the device."""
    open_: dict[str, tuple[int, int]] = {}
    found: dict[str, list[tuple[int, int]]] = {}
    for position, op in enumerate(script.ops):
        if isinstance(op, Evict) and op.cell in open_:
            found.setdefault(op.cell, []).append(open_.pop(op.cell))
        for name in touched(op):
            open_[name] = open_.get(name, (position, position))[0], position
    for name, stay in open_.items():
        found.setdefault(name, []).append(stay)
    return {name: tuple(each) for name, each in found.items()}


def _block(cells: tuple[str, ...], size: Mapping[str, int], glued: Mapping[str, tuple[str, int]]) -> _Block:
    offsets, end = layout.offsets(cells, size, glued)
    return _Block(cells, tuple(int(offsets[name]) for name in cells), int(end))


def _put(
    blocks: Sequence[_Block], size: Mapping[str, int], stays: Mapping[str, tuple[tuple[int, int], ...]]
) -> Packing:
    """Every block at the lowest address that is free, one after the other."""
    put: list[_Put] = []
    offsets: dict[str, int] = {}
    for block in blocks:
        starts = {
            0,
            *(-(-(each.end - at) // layout.ALIGNMENT) * layout.ALIGNMENT for each in put for at in block.offsets),
        }
        start = next(at for at in sorted(starts) if at >= 0 and _free(at, block, size, stays, put))
        for name, at in zip(block.cells, block.offsets, strict=True):
            offsets[name] = start + at
            put.append(_Put(start + at, start + at + size[name], stays.get(name, ())))
    return Packing(offsets=offsets, size_bytes=max(each.end for each in put))


def _free(
    start: int,
    block: _Block,
    size: Mapping[str, int],
    stays: Mapping[str, tuple[tuple[int, int], ...]],
    put: Sequence[_Put],
) -> bool:
    for name, at in zip(block.cells, block.offsets, strict=True):
        begin, end = start + at, start + at + size[name]
        for other in put:
            if begin < other.end and other.begin < end and _meet(stays.get(name, ()), other.stays):
                return False
    return True


def _meet(some: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> bool:
    return any(a <= d and c <= b for a, b in some for c, d in others)
