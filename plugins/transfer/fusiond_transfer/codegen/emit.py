"""A script as a Program: buffers on both sides, messages as copies, allocations, streams and what waits for what.

issue        one_stream   every step on one stream, in the order of time
             overlapped   kernels, uploads, downloads and host work on a stream each; a step waits for those that write
                          what it reads, and for those that still use what it overwrites
             graph        the same as one CUDA graph (no host kernels, no allocations, no batches, pinned memory)
send         message      a group is one copy of a run of neighbours
             batch        a group is one call of cudaMemcpyBatchAsync
allocation   ahead        everything is allocated before the run, and not counted
             each         every cell on the device by itself, just before it is used, freed behind its last use
             group        one allocation for each group that crosses together
             one          one allocation for all
             pooled       as group, from the driver's stream-ordered pool
chunks       N            vectors of which kernels make row by row come and go in up to N chunks, if they are large
streams      engines      of chunks: those of overlapped issue
             2, 3, 4      so many streams, which chunks take in turn, each with its copies and its kernels
chunk_order  depth_first, breadth_first: `codegen.pipeline` has them
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fusiond.language.dtypes import DTYPES
from fusiond.program import (
    Alloc,
    Buffer,
    Copy,
    CopyBatch,
    Free,
    HostCall,
    Launch,
    Memory,
    Pointer,
    Prefetch,
    Program,
    Role,
    Step,
    sized,
)
from fusiond_transfer.analysis import layout
from fusiond_transfer.analysis.chunks import LEAST_BYTES, Chunks, Cut, chunks
from fusiond_transfer.analysis.lines import cell_of
from fusiond_transfer.analysis.script import Cell, Evict, KernelCall, Migrate, Move, Op, Script, Staging
from fusiond_transfer.codegen import body, pipeline
from fusiond_transfer.codegen.pipeline import Item
from fusiond_transfer.frontend import sizes
from fusiond_transfer.frontend.graph import CutVector, FusedBody

ISSUES = ("one_stream", "overlapped", "graph")
ALLOCATIONS = ("each", "group", "one", "pooled")
KERNELS, UPLOADS, DOWNLOADS, HOSTS, RING = range(5)
"""The streams of overlapped issue; from RING on those that chunks take in turn."""
STREAMS = ("engines", "2", "3", "4")
DEVICE_SUFFIX = "@device"
"""The cell A is the buffer `A` on the host and `A@device` on the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How a schedule is carried out; the module's docstring has the words."""

    memory: str = "pageable"
    issue: str = "one_stream"
    send: str = "message"
    allocation: str = "ahead"
    chunks: int = 1
    streams: str = "engines"
    chunk_order: str = "depth_first"
    least_chunk_bytes: int = LEAST_BYTES


def program(script: Script, execution: Execution, *, name: str) -> Program:
    """The Program of a script."""
    code = body.called(script)
    cut = chunks(script, execution.chunks, least_bytes=execution.least_chunk_bytes)
    buffers = _buffers(script, execution, cut)
    found = Program(
        name=name,
        buffers=buffers,
        sources=code.sources,
        steps=_Steps(script, execution, code, cut, buffers).all(),
        issue="graph" if execution.issue == "graph" else "streams",
    )
    if len(script.graph.kernels) > sizes.MANY_KERNELS:  # there are no formulas to walk through
        return replace(found, sizes=script.graph.sizes, fixed=tuple(sorted(sizes.fixed(script.graph))))
    return sized(found, dict(script.graph.sizes), sizes.fixed(script.graph) | sizes.names(cut.equal))


# --- buffers --------------------------------------------------------------------------------------------


def arenas(script: Script, execution: Execution) -> tuple[tuple[str, ...], ...]:
    """The cells that share an allocation on the device, in memory order."""
    on_device = {each.name for each in script.cells if each.device}
    crossing = set(script.order)
    rest = [each.name for each in script.cells if each.device and each.name not in crossing]
    if execution.allocation in ("ahead", "one"):
        return ((*script.order, *rest),)
    if execution.allocation == "each":
        return tuple((name,) for name in (*script.order, *rest) if name in on_device)
    return (*script.arenas, *((name,) for name in rest))


def arena_names(groups: Sequence[Sequence[str]]) -> list[str]:
    """What the allocations are called: a cell by itself as its buffer, others are numbered."""
    return [f"{group[0]}{DEVICE_SUFFIX}" if len(group) == 1 else f"arena{n}@device" for n, group in enumerate(groups)]


def _buffers(script: Script, execution: Execution, cut: Chunks) -> tuple[Buffer, ...]:
    lengths = {each.name: each.like.elements * DTYPES[each.like.dtype].bytes for each in script.cells}
    memory = Memory.PINNED if execution.memory == "pinned" else Memory.PAGEABLE
    places = _places(script, execution, lengths)
    buffers = []
    for vector, role in ((script.inputs, Role.INPUT), (script.outputs, Role.OUTPUT)):
        buffers += [
            Buffer(name=each.name, dtype=each.dtype, elements=each.elements, role=role, fill=each.fill,
                   memory=Memory.PAGEABLE, compare=each.compare)
            for each in vector
        ]  # fmt: skip
    for cell in script.cells:
        here = Memory.MANAGED if cell.managed else memory
        for there, name, where in ((cell.host, cell.name, here), (cell.device, device(cell.name), Memory.DEVICE)):
            if there and cell.name in script.graph.home:
                buffers += _piece(script.graph.home[cell.name], cell, name, where, places, lengths)
                buffers += _parts(buffers[-1], cut.cells.get(cell.name))
            elif there:
                if cell.name in cut.cells:
                    places.setdefault(name, (name, 0))
                buffers.append(_buffer(cell, name, where, places))
                buffers += _parts(buffers[-1], cut.cells.get(cell.name))
    known = {each.name: each for each in buffers}
    return (*buffers, *dict.fromkeys(_over_pieces(script, cut, known)))


def _places(script: Script, execution: Execution, lengths: Mapping[str, int]) -> dict[str, tuple[str, int]]:
    """Buffer -> the arena in which it lies, and its offset there in bytes; absent where it is one by itself."""
    places: dict[str, tuple[str, int]] = {}

    def share(arena: str, cells: Sequence[str], side: str = "") -> None:
        found, _ = layout.offsets(cells, lengths, script.graph.glued)
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


def device(cell: str) -> str:
    """The buffer that a cell is on the device."""
    return cell + DEVICE_SUFFIX


def part(buffer: str, number: int) -> str:
    """What a chunk of a buffer is called: names of the user's hold no `#`."""
    return f"{buffer}#{number}"


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
    for op in script.ops if script.graph.cut else ():
        own = cut.calls.get(op.name) if isinstance(op, KernelCall) else None
        if own is None or not isinstance(op, KernelCall):
            continue
        for name in own.how.split:
            cells = pipeline.split_cells(script, op, (name,))
            base = operand_name(script, op, name)
            if len(cells) == 1:
                continue
            side = DEVICE_SUFFIX if op.kernel.device else ""
            for number in sorted({k for cell in cells for k in cut.cells[cell].numbers}):
                own_parts = [known[part(cell + side, number)] for cell in cells if number in cut.cells[cell].numbers]
                elements = own_parts[0].elements
                for each in own_parts[1:]:
                    elements = elements + each.elements
                yield replace(own_parts[0], name=part(base + side, number), elements=elements)


def operand_name(script: Script, call: KernelCall, name: str) -> str:
    """What an operand's chunks are called after: its cell, or, where it is several, its own name."""
    pieces = script.graph.pieces.get(name, (name,))
    cell = cell_of(call)[pieces[0]]
    return cell if len(pieces) == 1 else name + cell.removeprefix(pieces[0])


def _piece(
    of: CutVector,
    cell: Cell,
    name: str,
    memory: Memory,
    places: Mapping[str, tuple[str, int]],
    lengths: Mapping[str, int],
) -> Iterator[Buffer]:
    """A piece of a vector that is cut, as a part of a buffer that is all of it; behind that buffer, if it is the
    first."""
    side = name.removeprefix(cell.name)
    whole = of.vector.name + side
    arena, at = places.get(of.pieces[0] + side, (whole, 0))
    if cell.name == of.pieces[0]:
        yield _buffer(replace(cell, like=of.vector), whole, memory, {whole: (arena, at)})
    for before in of.pieces[: of.pieces.index(cell.name)]:
        at += lengths[before]
    yield Buffer(name=name, dtype=cell.like.dtype, elements=cell.like.elements, role=Role.SCRATCH, memory=memory,
                 arena=arena, offset_bytes=at, part_of=whole)  # fmt: skip


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


# --- steps ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Uses:
    """Who touched a buffer last: its writer, and the readers since."""

    writer: str | None = None
    readers: list[str] = field(default_factory=list)


class _Steps:
    """Turns items into steps, with allocations round the first and the last that touch an arena."""

    def __init__(
        self, script: Script, execution: Execution, code: body.Generated, cut: Chunks, buffers: Sequence[Buffer]
    ) -> None:
        self._script = script
        self._execution = execution
        self._code = code
        self._cut = cut
        self._atoms_of = _atoms(buffers)
        self._on_device = {each.name for each in script.cells if each.device}
        self._overlapped = execution.issue != "one_stream"
        self._steps: list[Step] = []
        self._uses: dict[str, _Uses] = {}
        self._stream: dict[str, int] = {}
        self._number: dict[str, int] = {}
        self._ended: dict[str, dict[int, int]] = {}
        self._last: dict[int, str] = {}

    def all(self) -> tuple[Step, ...]:
        execution = self._execution
        found = pipeline.items(self._script, self._cut, execution.chunk_order, batches=execution.send == "batch")
        counted = execution.allocation != "ahead"
        groups = arenas(self._script, execution) if counted else ()
        names = arena_names(groups)
        first: dict[int, list[tuple[int, int]]] = {}
        last: dict[int, list[tuple[int, int]]] = {}
        home = {cell: index for index, group in enumerate(groups) for cell in group}
        begun: dict[tuple[int, int], int] = {}  # (group, how often it was evicted) -> position
        ended: dict[tuple[int, int], int] = {}
        turn = dict.fromkeys(range(len(groups)), 0)
        for position, item in enumerate(found):
            if isinstance(item.op, Evict) and item.op.cell in home:
                turn[home[item.op.cell]] += 1
            for cell in _device_cells(item):
                if cell in home:
                    stay = home[cell], turn[home[cell]]
                    begun.setdefault(stay, position)
                    ended[stay] = position
        for stay, position in begun.items():
            first.setdefault(position, []).append(stay)
            last.setdefault(ended[stay], []).append(stay)
        for position, item in enumerate(found):
            for index, number in first.get(position, ()):
                self._allocate(names[index], groups[index], item.op, number)
            self._item(item)
            for index, number in last.get(position, ()):
                self._free(names[index], groups[index], number)
        return tuple(self._steps)

    def _item(self, item: Item) -> None:
        op = item.op
        if isinstance(op, KernelCall):
            self._call(op, item)
        elif isinstance(op, Move):
            self._move(op, item)
        elif isinstance(op, Migrate):
            stream = self._lane(UPLOADS if op.up else DOWNLOADS)
            # As a write: whoever uses them next waits for the pages, and the pages for whoever uses them before.
            after = self._touch(op.name, [], op.cells, stream)
            self._add(Prefetch(name=op.name, buffers=op.cells, to_device=op.up, stream=stream, after=after,
                               counted=op.counted))  # fmt: skip
        elif isinstance(op, Staging):
            near = device(op.cell) if op.device else op.cell
            source, target = (op.buffer, near) if op.into else (near, op.buffer)
            stream = self._lane(HOSTS)
            after = self._touch(op.name, [source], [target], stream)
            self._add(Copy(name=op.name, source=(source,), target=(target,), after=after, counted=False,
                           stream=stream))  # fmt: skip

    def _call(self, op: KernelCall, item: Item) -> None:
        on_device = op.kernel.device
        stream = self._chunk_lane(KERNELS if on_device else HOSTS, item)
        entry = self._code.entries[op.name]
        if item.chunk is not None:
            own = self._cut.calls[op.name]
            entry = body.at_rows(self._script.graph, op.kernel, own.how, own.rows(item.chunk), entry)
        reads, writes = (
            [self._near(op, cell, item) for cell in cells if self._has_chunk(cell, item)]
            for cells in (op.reads, op.writes)
        )
        arguments = (*(Pointer(buffer=name) for name in self._passed(op, item)), *entry.scalars)
        after = self._touch(item.name, reads, writes, stream)
        if isinstance(op.kernel.body, FusedBody):
            names = dict(zip((*op.kernel.reads, *op.kernel.writes), (*reads, *writes), strict=True))
            launch = op.kernel.body.fragment.launch
            given = (
                Pointer(buffer=names[each.buffer]) if isinstance(each, Pointer) else each for each in launch.arguments
            )
            self._add(replace(launch, name=item.name, source=entry.source, arguments=tuple(given), stream=stream,
                              after=after))  # fmt: skip
        elif on_device:
            self._add(
                Launch(
                    name=item.name, source=entry.source, entry=entry.entry, grid=entry.grid, block=entry.block,
                    shared_bytes=entry.shared_bytes, arguments=arguments, stream=stream, after=after,
                )
            )  # fmt: skip
        else:
            self._add(
                HostCall(name=item.name, source=entry.source, entry=entry.entry, arguments=arguments,
                         stream=stream, after=after)
            )  # fmt: skip

    def _passed(self, op: KernelCall, item: Item) -> Iterator[str]:
        """The buffers that a kernel is passed: of several pieces the first, of all of them the vector that is cut, and
        in chunks what goes over them."""
        graph = self._script.graph
        if not graph.cut:
            yield from (self._near(op, cell, item) for cell in (*op.reads, *op.writes))
            return
        cells, own, runs = cell_of(op), self._cut.calls.get(op.name), dict(graph.runs)
        for name in (*op.kernel.read_operands, *op.kernel.write_operands):
            first = cells[graph.pieces.get(name, (name,))[0]]
            base = self._side(op, first, operand_name(self._script, op, name))
            if name not in graph.pieces:
                yield self._near(op, first, item)
            elif item.chunk is not None and own is not None and name in own.how.split:
                yield part(base, item.chunk)
            else:
                yield self._side(op, first, first) if name in runs else base

    def _near(self, op: KernelCall, cell: str, item: Item) -> str:
        """The buffer of a cell that a call has to do with: that of its side, and of its chunk."""
        name = self._side(op, cell, cell)
        return part(name, item.chunk) if item.chunk is not None and cell in item.cells else name

    def _side(self, op: KernelCall, cell: str, name: str) -> str:
        # What is mapped or managed is one memory for both sides.
        return device(name) if op.kernel.device and cell in self._on_device else name

    def _has_chunk(self, cell: str, item: Item) -> bool:
        """Whether a call for a chunk has to do with a cell: of the pieces of an operand it has some."""
        own = self._cut.calls.get(item.op.name) if item.chunk is not None else None
        return own is None or cell in item.cells or cell not in self._split(item.op, own.how.split)

    def _split(self, op: Op, names: Sequence[str]) -> tuple[str, ...]:
        return pipeline.split_cells(self._script, op, names) if isinstance(op, KernelCall) else ()

    def _move(self, op: Move, item: Item) -> None:
        near, far = list(item.cells), [device(name) for name in item.cells]
        if item.chunk is not None:
            near, far = ([part(name, item.chunk) for name in names] for names in (near, far))
        source, target = (near, far) if op.up else (far, near)
        stream = self._chunk_lane(UPLOADS if op.up else DOWNLOADS, item)
        after = self._touch(item.name, source, target, stream)
        if self._execution.send == "batch" and len(source) > 1:
            copies = tuple(zip(source, target, strict=True))
            self._add(CopyBatch(name=item.name, copies=copies, stream=stream, after=after, counted=op.counted))
        else:
            self._add(Copy(name=item.name, source=tuple(source), target=tuple(target), stream=stream,
                           after=after, counted=op.counted))  # fmt: skip

    def _allocate(self, name: str, group: Sequence[str], op: Op, number: int) -> None:
        counted = not (isinstance(op, Staging) or (isinstance(op, Move) and not op.counted))
        stream, again = self._lane(self._allocating()), f"~{number}" if number else ""
        after = self._touch(f"alloc_{name}{again}", [], [device(cell) for cell in group], stream)
        self._add(Alloc(name=f"alloc_{name}{again}", arena=name, pooled=self._execution.allocation == "pooled",
                        stream=stream, after=after, counted=counted))  # fmt: skip

    def _free(self, name: str, group: Sequence[str], number: int) -> None:
        stream, again = self._lane(self._allocating()), f"~{number}" if number else ""
        after = self._touch(f"free_{name}{again}", [], [device(cell) for cell in group], stream)
        self._add(Free(name=f"free_{name}{again}", arena=name, stream=stream, after=after))

    def _allocating(self) -> int:
        """All on one stream: what is freed before an allocation in the list is free by then."""
        return KERNELS if self._execution.allocation == "pooled" else HOSTS

    def _lane(self, lane: int) -> int:
        return lane if self._overlapped else 0

    def _chunk_lane(self, lane: int, item: Item) -> int:
        """The stream of an item: its engine's, or one of a few that chunks take in turn. Host calls keep theirs."""
        if item.chunk is None or self._execution.streams == "engines" or lane == HOSTS:
            return self._lane(lane)
        return self._lane(RING + item.chunk % int(self._execution.streams))

    def _atoms(self, buffers: Iterable[str]) -> dict[str, None]:
        """What is waited for: a buffer that is cut is all of its chunks."""
        return dict.fromkeys(atom for name in buffers for atom in self._atoms_of.get(name, (name,)))

    def _touch(self, step: str, reads: Iterable[str], writes: Iterable[str], stream: int) -> tuple[str, ...]:
        """The steps of other streams that this one has to wait for, without those that others wait for already."""
        if not self._overlapped:
            return ()
        waits: list[str] = []
        written = self._atoms(writes)
        for name in self._atoms(reads):
            uses = self._uses.setdefault(name, _Uses())
            waits += [uses.writer] if uses.writer else []
            if name not in written:
                uses.readers.append(step)
        for name in written:
            uses = self._uses.setdefault(name, _Uses())
            waits += [*([uses.writer] if uses.writer else []), *uses.readers]
            self._uses[name] = _Uses(writer=step)
        number = len(self._number)
        self._stream[step], self._number[step] = stream, number
        # What has ended for certain when this step begins: stream -> the last such step's number.
        ended = dict(self._ended.get(self._last.get(stream, ""), {}))
        after = []
        for each in sorted(set(waits) - {step}, key=self._number.__getitem__, reverse=True):
            if ended.get(self._stream[each], -1) < self._number[each]:
                after.append(each)
                for other, last in self._ended[each].items():
                    ended[other] = max(ended.get(other, -1), last)
        ended[stream] = number
        self._ended[step], self._last[stream] = ended, step
        return tuple(sorted(after, key=self._number.__getitem__))

    def _add(self, step: Step) -> None:
        self._steps.append(step)


def _device_cells(item: Item) -> tuple[str, ...]:
    op = item.op
    if isinstance(op, Move):
        return item.cells
    if isinstance(op, KernelCall):
        return (*op.reads, *op.writes) if op.kernel.device else ()
    return (op.cell,) if isinstance(op, Staging) and op.device else ()


def _atoms(buffers: Sequence[Buffer]) -> dict[str, tuple[str, ...]]:
    """Buffer -> what no part divides further, by name; absent where it is itself."""
    parts: dict[str, list[Buffer]] = {}
    for each in buffers:
        if each.part_of is not None:
            parts.setdefault(each.part_of, []).append(each)
    found: dict[str, tuple[str, ...]] = {}
    for whole in (each for each in buffers if each.name in parts):
        own = [(int(each.offset_bytes), int(each.size_bytes), each.name) for each in (whole, *parts[whole.name])]
        bounds = sorted({bound for at, size, _ in own for bound in (at, at + size)})
        for at, size, name in own:
            inside = bounds[bisect.bisect_left(bounds, at) : bisect.bisect_left(bounds, at + size)]
            found[name] = tuple(f"{whole.name}~{each}" for each in inside)
    return found
