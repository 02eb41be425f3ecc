"""A script as a Program: buffers on both sides, copies, allocations, streams and waits.

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

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from fusiond.model.program import (
    Alloc,
    Buffer,
    Copy,
    CopyBatch,
    Free,
    HostCall,
    Launch,
    Pointer,
    Prefetch,
    Program,
    Step,
    sized,
)
from fusiond_transfer.analysis.cells import Evict, KernelCall, Migrate, Move, Op, Script, Staging
from fusiond_transfer.analysis.chunks import Chunks, chunks
from fusiond_transfer.analysis.row_lines import cell_of
from fusiond_transfer.codegen import body, pipeline
from fusiond_transfer.codegen.buffers import Execution, arena_names, arenas, atoms, buffers, device, operand_name, part
from fusiond_transfer.codegen.pipeline import Item
from fusiond_transfer.frontend import sizes
from fusiond_transfer.frontend.graph import FusedBody

ALLOCATIONS = ("each", "group", "one", "pooled")
KERNELS, UPLOADS, DOWNLOADS, HOSTS, RING = range(5)
"""The streams of overlapped issue; from RING on those that chunks take in turn."""
STREAMS = ("engines", "2", "3", "4")


def program(script: Script, execution: Execution, *, name: str) -> Program:
    """The Program of a script."""
    code = body.called(script)
    cut = chunks(script, execution.chunks, least_bytes=execution.least_chunk_bytes)
    made = buffers(script, execution, cut)
    found = Program(
        name=name,
        buffers=made,
        sources=code.sources,
        steps=_Steps(script, execution, code, cut, made).all(),
        issue="graph" if execution.issue == "graph" else "streams",
    )
    if len(script.graph.kernels) > sizes.MANY_KERNELS:  # there are no formulas to walk through
        return replace(found, sizes=script.graph.sizes, fixed=tuple(sorted(sizes.fixed(script.graph))))
    return sized(found, dict(script.graph.sizes), sizes.fixed(script.graph) | sizes.names(cut.equal))


# --- steps ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Uses:
    """Who touched a buffer last: its writer, and the readers since."""

    writer: str | None = None
    readers: list[str] = field(default_factory=list)


class _Steps:
    """Turns items into steps, with allocations round the first and the last that touch an arena."""

    def __init__(
        self, script: Script, execution: Execution, code: body.Generated, cut: Chunks, made: Sequence[Buffer]
    ) -> None:
        self._script = script
        self._execution = execution
        self._code = code
        self._cut = cut
        self._atoms_of = atoms(made)
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
            if isinstance(item.op, Evict) and item.op.cell in home and execution.allocation != "one":
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
        passed = tuple(self._passed(op, item))
        arguments = (*(Pointer(buffer=name) for name in passed), *entry.scalars)
        after = self._touch(item.name, reads, writes, stream)
        if isinstance(op.kernel.body, FusedBody):
            names = dict(zip((*op.kernel.read_operands, *op.kernel.write_operands), passed, strict=True))
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
        """The stream of an engine; the one that there is without overlap."""
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
