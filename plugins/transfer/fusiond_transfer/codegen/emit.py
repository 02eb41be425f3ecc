"""A script as a Program: buffers on both sides, copies, allocations, streams and waits.

What an Execution may say is in docs/transfer.md, under Parameters. Allocations that count are made just before the
first use of an arena, and freed behind its last. With overlap a step waits for those that write what it reads, and for
those that still use what it overwrites.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from fusiond.model.program import Alloc, Buffer, Copy, CopyBatch, Free, Pointer, Prefetch, Program, Step, sized
from fusiond_transfer.analysis.cells import KernelCall, Migrate, Move, Op, Script, Staging, stays, touched
from fusiond_transfer.analysis.chunks import Chunks, chunks
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
        groups = arenas(self._script, execution) if execution.allocation != "ahead" else ()
        names = arena_names(groups)
        first: dict[int, list[tuple[int, int]]] = {}
        last: dict[int, list[tuple[int, int]]] = {}
        touching = ((each.op, each.cells if isinstance(each.op, Move) else touched(each.op)) for each in found)
        there = stays(touching, groups, leaving=execution.allocation != "one")
        for stay, (begun, ended) in there.items():
            first.setdefault(begun, []).append(stay)
            last.setdefault(ended, []).append(stay)
        for position, item in enumerate(found):
            for index, number in first.get(position, ()):
                self._allocate(names[index], groups[index], number, item.op)
            self._item(item)
            for index, number in last.get(position, ()):
                self._allocate(names[index], groups[index], number)
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
            self._add(
                Prefetch(name=op.name, buffers=op.cells, to_device=op.up, stream=stream, counted=op.counted),
                writes=op.cells,
            )
        elif isinstance(op, Staging):
            near = device(op.cell) if op.device else op.cell
            source, target = (op.buffer, near) if op.into else (near, op.buffer)
            step = Copy(name=op.name, source=(source,), target=(target,), counted=False, stream=self._lane(HOSTS))
            self._add(step, [source], [target])

    def _call(self, op: KernelCall, item: Item) -> None:
        graph, kernel = self._script.graph, op.kernel
        stream = self._lane(KERNELS if kernel.device else HOSTS, item.chunk)
        entry = self._code.entries[op.name]
        split: tuple[str, ...] = ()
        if item.chunk is not None:
            how, cut = self._cut.calls[op.name]
            split = how.split
            entry = body.at_rows(graph, kernel, how, cut.within(item.chunk)[1], entry)
        # Of the pieces of an operand, a chunk has to do with some.
        other = {cell for name in split for cell in op.cells(graph, name)}.difference(item.cells)
        reads, writes = (
            [self._near(op, cell, item) for cell in cells if cell not in other] for cells in (op.reads, op.writes)
        )
        passed = tuple(self._passed(op, item, split))
        if isinstance(kernel.body, FusedBody):
            names = dict(zip((*kernel.read_operands, *kernel.write_operands), passed, strict=True))
            launch = kernel.body.fragment.launch
            given = (
                Pointer(buffer=names[each.buffer]) if isinstance(each, Pointer) else each for each in launch.arguments
            )
            step: Step = replace(launch, name=item.name, source=entry.source, arguments=tuple(given), stream=stream)
        else:
            arguments = (*(Pointer(buffer=name) for name in passed), *entry.scalars)
            step = entry.call(item.name, arguments, device=kernel.device, stream=stream)
        self._add(step, reads, writes)

    def _passed(self, op: KernelCall, item: Item, split: Sequence[str]) -> Iterator[str]:
        """The buffers that a kernel is passed: of several pieces the first, of all of them the vector that is cut, and
        in chunks what goes over them."""
        graph = self._script.graph
        runs = dict(graph.runs)
        for name in (*op.kernel.read_operands, *op.kernel.write_operands):
            if name not in graph.pieces:
                yield self._near(op, op.cell[name], item)
                continue
            cells = op.cells(graph, name)
            base = self._side(op, cells[0], operand_name(graph, cells))
            if name in split and item.chunk is not None:
                yield part(base, item.chunk)
            else:
                yield self._side(op, cells[0], cells[0]) if name in runs else base

    def _near(self, op: KernelCall, cell: str, item: Item) -> str:
        """The buffer of a cell that a call has to do with: that of its side, and of its chunk."""
        name = self._side(op, cell, cell)
        return part(name, item.chunk) if item.chunk is not None and cell in item.cells else name

    def _side(self, op: KernelCall, cell: str, name: str) -> str:
        # What is mapped or managed is one memory for both sides.
        return device(name) if op.kernel.device and cell in self._on_device else name

    def _move(self, op: Move, item: Item) -> None:
        near, far = list(item.cells), [device(name) for name in item.cells]
        if item.chunk is not None:
            near, far = ([part(name, item.chunk) for name in names] for names in (near, far))
        source, target = (near, far) if op.up else (far, near)
        stream = self._lane(UPLOADS if op.up else DOWNLOADS, item.chunk)
        step: Step
        if self._execution.send == "batch" and len(source) > 1:
            copies = tuple(zip(source, target, strict=True))
            step = CopyBatch(name=item.name, copies=copies, stream=stream, counted=op.counted)
        else:
            step = Copy(name=item.name, source=tuple(source), target=tuple(target), stream=stream, counted=op.counted)
        self._add(step, source, target)

    def _allocate(self, name: str, group: Sequence[str], number: int, op: Op | None = None) -> None:
        """Allocate an arena before an op, or free it. All on one stream: what is freed before an allocation in the list
        is free by then."""
        pooled = self._execution.allocation == "pooled"
        stream, again = self._lane(KERNELS if pooled else HOSTS), f"~{number}" if number else ""
        step: Step = Free(name=f"free_{name}{again}", arena=name, stream=stream)
        if op is not None:
            counted = not (isinstance(op, Staging) or (isinstance(op, Move) and not op.counted))
            step = Alloc(name=f"alloc_{name}{again}", arena=name, pooled=pooled, stream=stream, counted=counted)
        self._add(step, writes=[device(cell) for cell in group])

    def _lane(self, lane: int, chunk: int | None = None) -> int:
        """The stream of an engine, or one of a few that chunks take in turn (host calls keep theirs); the one that is
        there without overlap."""
        if chunk is not None and self._execution.streams != "engines" and lane != HOSTS:
            lane = RING + chunk % int(self._execution.streams)
        return lane if self._overlapped else 0

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

    def _add(self, step: Step, reads: Iterable[str] = (), writes: Iterable[str] = ()) -> None:
        """A step that touches these buffers, behind those that it has to wait for."""
        after = self._touch(step.name, reads, writes, step.stream)
        self._steps.append(replace(step, after=after) if after else step)
