"""The buffers of a script's cells on both sides, with their arenas and parts.

A cell A is the buffer `A` on the host and `A@device` on the device. A vector that is cut is one buffer, of which its
pieces are parts; on the device, where allocations count, only the pieces that something touches are there, those that
follow each other in one allocation as one buffer. Chunks are parts, too.
"""

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fusiond.model.language.dtypes import DTYPES
from fusiond.model.program import Buffer, Memory, Role
from fusiond_transfer.analysis import layout
from fusiond_transfer.analysis.cells import Cell, KernelCall, Move, Script
from fusiond_transfer.analysis.chunks import LEAST_BYTES, Chunks, Cut
from fusiond_transfer.frontend.graph import Graph, Vector

DEVICE_SUFFIX = "@device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How a schedule is carried out; `codegen.emit` has the words."""

    memory: str = "pageable"
    issue: str = "one_stream"
    send: str = "message"
    allocation: str = "ahead"
    chunks: int = 1
    streams: str = "engines"
    chunk_order: str = "depth_first"
    least_chunk_bytes: int = LEAST_BYTES


def device(cell: str) -> str:
    """The buffer that a cell is on the device."""
    return cell + DEVICE_SUFFIX


def part(buffer: str, number: int) -> str:
    """What a chunk of a buffer is called: names of the user's hold no `#`."""
    return f"{buffer}#{number}"


def operand_name(graph: Graph, cells: tuple[str, ...]) -> str:
    """What an operand's buffer and chunks are called after: its cell; of pieces that follow each other what they
    are all of, or which elements of that."""
    if len(cells) == 1:
        return cells[0]
    home, first = graph.homes[cells[0]]
    whole = graph.wholes[home]
    if cells == whole.pieces:
        return home
    following = whole.pieces[whole.pieces.index(cells[-1]) + 1 :]
    end = graph.homes[following[0]][1] if following else whole.vector.elements
    return f"{home}[{int(first)}:{int(end)}]"


def arenas(script: Script, execution: Execution) -> tuple[tuple[str, ...], ...]:
    """The cells that share an allocation on the device, in memory order. Where allocations count, the pieces that
    nothing touches are not there, and those together that have to be."""
    crossing = set(script.order)
    order = (*script.order, *(each.name for each in script.cells if each.device and each.name not in crossing))
    if execution.allocation == "ahead":
        return (order,)
    there = tuple(name for name in order if name not in script.spare)
    if execution.allocation == "one":
        return (there,)
    if execution.allocation == "each":
        with_others = {name: run for run in script.graph.device_runs for name in run}
        return tuple(dict.fromkeys(with_others.get(name, (name,)) for name in there))
    grouped = {name for group in script.arenas for name in group}
    return (*script.arenas, *((name,) for name in there if name not in grouped))


def arena_names(groups: Sequence[Sequence[str]]) -> list[str]:
    """What the allocations are called: a cell by itself as its buffer, others are numbered."""
    return [f"{group[0]}{DEVICE_SUFFIX}" if len(group) == 1 else f"arena{n}@device" for n, group in enumerate(groups)]


def buffers(script: Script, execution: Execution, cut: Chunks) -> tuple[Buffer, ...]:
    """All buffers of a script, and their parts."""
    likes = {each.name: each.like for each in script.cells}
    lengths = {name: like.elements * DTYPES[like.dtype].bytes for name, like in likes.items()}
    memory = Memory(execution.memory)
    places = _places(script, execution, lengths)
    runs = _runs(script, execution)
    found: list[Buffer] = []
    for vector, role in ((script.inputs, Role.INPUT), (script.outputs, Role.OUTPUT)):
        found += (buffer for each in vector for buffer in _given_or_taken(script, each, role))
    for cell in script.cells:
        here = Memory.MANAGED if cell.managed else memory
        for there, name, where in ((cell.host, cell.name, here), (cell.device, device(cell.name), Memory.DEVICE)):
            if not there or (run := runs.get(name, (cell.name,))) == ():
                continue
            if len(run) > 1:
                found += _piece(script, cell, name, where, run, places, likes)
            else:
                if cell.name in cut.cells:
                    places.setdefault(name, (name, 0))
                found.append(_buffer(cell, name, where, places))
            found += _parts(found[-1], cut.cells.get(cell.name))
    known = {each.name: each for each in found}
    return (*found, *dict.fromkeys(_over_pieces(script, cut, known)))


def _given_or_taken(script: Script, vector: Vector, role: Role) -> Iterator[Buffer]:
    """An input or output that is not a cell itself, and its pieces, from and to which is copied outside the count."""
    pieces = script.graph.pieces.get(vector.name, ())
    arena = vector.name if pieces else None
    yield Buffer(name=vector.name, dtype=vector.dtype, elements=vector.elements, role=role, fill=vector.fill,
                 memory=Memory.PAGEABLE, compare=vector.compare, arena=arena)  # fmt: skip
    at = 0
    for each in map(script.graph.vector, pieces):
        yield Buffer(name=each.name, dtype=each.dtype, elements=each.elements, role=Role.SCRATCH,
                     memory=Memory.PAGEABLE, arena=arena, offset_bytes=at, part_of=vector.name)  # fmt: skip
        at += each.elements * DTYPES[each.dtype].bytes


def _runs(script: Script, execution: Execution) -> dict[str, tuple[str, ...]]:
    """Buffer of a piece -> the pieces with which it is part of one buffer; nothing where it is not there."""
    wholes = script.graph.wholes.values()
    found = {cell + side: whole.pieces for whole in wholes for cell in whole.pieces for side in ("", DEVICE_SUFFIX)}
    if found and execution.allocation != "ahead":
        found |= {device(name): () for name in script.spare}
        following = {pair for whole in wholes for pair in itertools.pairwise(whole.pieces)}
        for group in arenas(script, execution):
            found |= {device(each): run for run in layout.runs(group, lambda a, b: (a, b) in following) for each in run}
    return found


def _places(script: Script, execution: Execution, lengths: Mapping[str, int]) -> dict[str, tuple[str, int]]:
    """Buffer -> the arena in which it lies, and its offset there in bytes; absent where it is one by itself."""
    places: dict[str, tuple[str, int]] = {}
    glued = script.graph.glued

    def share(arena: str, cells: Sequence[str], side: str = "") -> None:
        found, _ = layout.offsets(cells, lengths, glued)
        places.update({cell + side: (arena, offset) for cell, offset in found.items()})

    if execution.send == "message" and any(
        isinstance(op, Move) and len(op.cells) > 1 and op.counted for op in script.ops
    ):
        share("arena@host", script.order)
    groups = arenas(script, execution)
    for name, group in zip(arena_names(groups), groups, strict=True):
        if len(group) > 1:
            share(name, group, DEVICE_SUFFIX)
    for number, group in enumerate(script.managed):
        if len(group) > 1:
            share(f"arena{number}@managed", group)
    return places


def _piece(
    script: Script,
    cell: Cell,
    name: str,
    memory: Memory,
    run: tuple[str, ...],
    places: Mapping[str, tuple[str, int]],
    likes: Mapping[str, Vector],
) -> Iterator[Buffer]:
    """A piece of a vector that is cut, as a part of a buffer of several; behind that buffer, if it is the first."""
    side = name.removeprefix(cell.name)
    whole = script.graph.wholes[script.graph.homes[cell.name][0]]
    whole_name = operand_name(script.graph, run) + side
    arena, at = places.get(run[0] + side, (whole_name, 0))
    if cell.name == run[0]:
        elements = whole.vector.elements if run == whole.pieces else sum(likes[each].elements for each in run)
        like = replace(whole.vector, elements=elements)
        yield _buffer(replace(cell, like=like), whole_name, memory, {whole_name: (arena, at)})
    before = sum(likes[each].elements for each in run[: run.index(cell.name)])
    yield Buffer(name=name, dtype=cell.like.dtype, elements=cell.like.elements, role=Role.SCRATCH, memory=memory,
                 arena=arena, offset_bytes=at + before * DTYPES[cell.like.dtype].bytes, part_of=whole_name)  # fmt: skip


def _buffer(cell: Cell, name: str, memory: Memory, places: Mapping[str, tuple[str, int]]) -> Buffer:
    role = Role.SCRATCH
    if memory is not Memory.DEVICE:
        role = Role.INPUT if cell.input else Role.OUTPUT if cell.output else Role.SCRATCH
    arena, offset = places.get(name, (None, 0))
    return Buffer(
        name=name,
        dtype=cell.like.dtype,
        elements=cell.like.elements,
        role=role,
        fill=cell.like.fill,
        memory=memory,
        arena=arena,
        offset_bytes=offset,
        compare=cell.like.compare,
    )


def _parts(whole: Buffer, cut: Cut | None) -> list[Buffer]:
    if cut is None:
        return []
    width = DTYPES[whole.dtype].bytes
    return [
        Buffer(name=part(whole.name, number), dtype=whole.dtype, elements=elements, role=Role.SCRATCH,
               memory=whole.memory, arena=whole.arena, offset_bytes=whole.offset_bytes + first * width,
               part_of=whole.part_of or whole.name)
        for number in cut.numbers for first, elements in [cut.within(number)]
    ]  # fmt: skip


def _over_pieces(script: Script, cut: Chunks, known: Mapping[str, Buffer]) -> Iterator[Buffer]:
    """The chunks of operands that are several pieces."""
    calls = (op for op in script.ops if isinstance(op, KernelCall) and op.name in cut.calls)
    for op in calls if script.graph.cut else ():
        side = DEVICE_SUFFIX if op.kernel.device else ""
        for name in cut.calls[op.name][0].split:
            cells = op.cells(script.graph, name)
            base = operand_name(script.graph, cells) + side
            for number in sorted({k for cell in cells for k in cut.cells[cell].numbers}) if len(cells) > 1 else ():
                own = [known[part(cell + side, number)] for cell in cells if number in cut.cells[cell].numbers]
                yield replace(own[0], name=part(base, number), elements=sum(each.elements for each in own))


def atoms(found: Sequence[Buffer]) -> dict[str, tuple[str, ...]]:
    """Buffer -> what no part divides further, by name; absent where it is itself."""
    parts: dict[str, list[Buffer]] = {}
    for each in found:
        if each.part_of is not None:
            parts.setdefault(each.part_of, []).append(each)
    divided: dict[str, tuple[str, ...]] = {}
    for whole in (each for each in found if each.name in parts):
        own = [(int(each.offset_bytes), int(each.size_bytes), each.name) for each in (whole, *parts[whole.name])]
        bounds = sorted({bound for at, size, _ in own for bound in (at, at + size)})
        for at, size, name in own:
            first, last = bisect.bisect_left(bounds, at), bisect.bisect_left(bounds, at + size)
            divided[name] = tuple(f"{whole.name}~{each}" for each in bounds[first:last])
    return divided
