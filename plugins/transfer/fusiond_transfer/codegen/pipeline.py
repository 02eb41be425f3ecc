"""The ops of a script as items, one per chunk, in an order in which chunks can overlap.

    depth_first     chunk by chunk: its uploads, its kernels, its downloads, then the next one's
    breadth_first   op by op: all chunks of the first, then all of the second

A run of ops that are cut is rearranged only as far as each of them touches chunk by chunk what the others of the run
have to do with; whatever needs a whole vector ends the run. Chunks of several vectors do not lie side by side: each is
a message of its own, and what is not cut keeps its messages, ahead of the chunks.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusiond_transfer.analysis import layout
from fusiond_transfer.analysis.cells import KernelCall, Move, Op, Script, trimmed
from fusiond_transfer.analysis.chunks import Chunks

ORDERS = ("depth_first", "breadth_first")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One step to come. `chunk`: of a call or a move that is cut; `cells`: of a move, those that it carries."""

    op: Op
    name: str
    chunk: int | None = None
    cells: tuple[str, ...] = ()


def items(script: Script, chunks: Chunks, order: str, *, batches: bool = False) -> list[Item]:
    """Everything in the order in which it is issued. `batches`: the chunks of one number are one item."""
    found: list[Item] = []
    run = _Run(script, chunks, order, batches=batches)
    for op in script.ops:
        whole, cut = _divided(script, op, chunks)
        if isinstance(op, Move):
            for number, cells in enumerate(whole):
                name = op.name if len(whole) == 1 and not cut else f"{op.name}#whole{number or ''}"
                item = Item(op=op, name=name, cells=cells)
                if run.conflicts(op, cells):
                    found += run.flushed()
                found.append(item)
        elif not cut:
            found += run.flushed()
            found.append(Item(op=op, name=op.name))
        if cut:
            if not run.takes(op, cut):
                found += run.flushed()
            run.add(op, cut)
    return [*found, *run.flushed()]


def _divided(script: Script, op: Op, chunks: Chunks) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Of a move: its runs of cells that are not cut (without what only lay between), and those that are. Of a call that
    is cut: nothing, and its operands that are."""
    if isinstance(op, KernelCall):
        split = chunks.calls[op.name][0].split if op.name in chunks.calls else ()
        return [], tuple(dict.fromkeys(cell for name in split for cell in op.cells(script.graph, name)))
    if not isinstance(op, Move) or not any(cell in chunks.cells for cell in op.wanted):
        return ([op.cells] if isinstance(op, Move) else []), ()
    wanted = set(op.wanted)
    runs = layout.runs(op.cells, lambda a, b: a not in chunks.cells and b not in chunks.cells)
    whole = (trimmed(run, wanted) for run in runs if run[0] not in chunks.cells)
    return [run for run in whole if run], tuple(cell for cell in op.cells if cell in chunks.cells and cell in wanted)


class _Run:
    """Ops that are cut and follow each other, before they are put in order."""

    def __init__(self, script: Script, chunks: Chunks, order: str, *, batches: bool) -> None:
        self._homes, self._chunks, self._order, self._batches = script.graph.homes, chunks, order, batches
        self._ops: list[tuple[Op, tuple[str, ...]]] = []
        self._by_chunk: set[str] = set()  #: Cells that the run touches chunk by chunk
        self._read_whole: set[str] = set()

    def add(self, op: Op, cut: tuple[str, ...]) -> None:
        self._ops.append((op, cut))
        self._by_chunk.update(cut)
        self._read_whole.update(_read_whole(op, cut))

    def takes(self, op: Op, cut: tuple[str, ...]) -> bool:
        """Whether an op that is cut can be one more of the run."""
        return self._read_whole.isdisjoint(cut) and self._by_chunk.isdisjoint(_read_whole(op, cut))

    def conflicts(self, move: Op, cells: Sequence[str]) -> bool:
        """Whether whole cells may not be moved ahead of the run."""
        return any(cell in self._by_chunk or cell in self._read_whole for cell in cells)

    def flushed(self) -> list[Item]:
        """The items of the run, which is empty from then on."""
        found = [(self._key(position, item), item) for position, item in self._all()]
        self._ops, self._by_chunk, self._read_whole = [], set(), set()
        return [item for _, item in sorted(found, key=lambda each: each[0])]

    def _all(self) -> Iterator[tuple[int, Item]]:
        for position, (op, cut) in enumerate(self._ops):
            cells = self._chunks.cells
            for k in sorted({k for cell in cut for k in cells[cell].numbers}):
                there = tuple(cell for cell in cut if k in cells[cell].numbers)
                if isinstance(op, Move) and not self._batches:
                    for run in layout.runs(there, functools.partial(self._follows, k=k)):
                        name = f"{op.name}#{k}" + (f".{run[0]}" if len(cut) > 1 else "")
                        yield position, Item(op=op, name=name, chunk=k, cells=run)
                    continue
                # Chunk k of what is cut into more chunks comes at another moment.
                counts = dict.fromkeys(cells[cell].of for cell in there)
                for number, count in enumerate(counts):
                    own = tuple(cell for cell in there if cells[cell].of == count)
                    name = f"{op.name}#{k}" + (f".{own[0]}" if number else "")
                    yield position, Item(op=op, name=name, chunk=k, cells=own)

    def _follows(self, one: str, other: str, k: int) -> bool:
        """Whether chunk `k` of two cells is one message: pieces of one vector that follow each other are."""
        if one not in self._homes or other not in self._homes:
            return False
        (home, at), (other_home, begin) = self._homes[one], self._homes[other]
        before, behind = self._chunks.cells[one], self._chunks.cells[other]
        beside = home == other_home and int(at) + int(before.bounds[-1]) == int(begin)
        return beside and k == before.numbers[-1] and k == behind.first

    def _key(self, position: int, item: Item) -> tuple[float, float]:
        assert item.chunk is not None
        count = self._chunks.cells[item.cells[0]].of
        share = item.chunk / count
        return (share, position) if self._order == "depth_first" else (position, share)


def _read_whole(op: Op, cut: Sequence[str]) -> set[str]:
    return {cell for cell in op.reads if cell not in cut} if isinstance(op, KernelCall) else set()
