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
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    Program,
    Role,
    Step,
    sized,
)
from fusiond_transfer.analysis import layout
from fusiond_transfer.analysis.script import Call, Cell, Move, Op, Script, Transfer
from fusiond_transfer.codegen import body
from fusiond_transfer.frontend import sizes

ISSUES = ("one_stream", "overlapped", "graph")
ALLOCATIONS = ("each", "group", "one", "pooled")
KERNELS, UPLOADS, DOWNLOADS, HOSTS = range(4)
"""The streams of overlapped issue."""
DEVICE_SUFFIX = "@device"
"""The cell A is the buffer `A` on the host and `A@device` on the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How a schedule is carried out; the module's docstring has the words."""

    memory: str = "pageable"
    issue: str = "one_stream"
    send: str = "message"
    allocation: str = "ahead"


def program(script: Script, execution: Execution, *, name: str) -> Program:
    """The Program of a script."""
    code = body.code(replace(script.graph, kernels=script.calls))
    steps = _Steps(script, execution, code)
    found = Program(
        name=name,
        buffers=_buffers(script, execution),
        sources=code.sources,
        steps=steps.all(),
        issue="graph" if execution.issue == "graph" else "streams",
    )
    return sized(found, dict(script.graph.sizes), sizes.fixed(script.graph))


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


def _buffers(script: Script, execution: Execution) -> tuple[Buffer, ...]:
    lengths = {each.name: each.like.elements * DTYPES[each.like.dtype].bytes for each in script.cells}
    memory = Memory.PINNED if execution.memory == "pinned" else Memory.PAGEABLE
    together = execution.send == "message" and any(
        isinstance(op, Move) and len(op.cells) > 1 and op.counted for op in script.ops
    )
    places: dict[str, tuple[str, int]] = {}
    if together:
        found, _ = layout.offsets(script.order, lengths)
        places = {name: ("arena@host", offset) for name, offset in found.items()}
    groups = arenas(script, execution)
    for name, group in zip(arena_names(groups), groups, strict=True):
        if len(group) > 1:
            found, _ = layout.offsets(group, lengths)
            places |= {cell + DEVICE_SUFFIX: (name, offset) for cell, offset in found.items()}
    buffers = []
    for vector, role in ((script.inputs, Role.INPUT), (script.outputs, Role.OUTPUT)):
        buffers += [
            Buffer(name=each.name, dtype=each.dtype, elements=each.elements, role=role, fill=each.fill,
                   memory=Memory.PAGEABLE, compare=each.compare)
            for each in vector
        ]  # fmt: skip
    for cell in script.cells:
        if cell.host:
            buffers.append(_buffer(cell, cell.name, memory, places))
        if cell.device:
            buffers.append(_buffer(cell, cell.name + DEVICE_SUFFIX, Memory.DEVICE, places))
    return tuple(buffers)


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
    """Turns ops into steps, with allocations round the first and the last that touch an arena."""

    def __init__(self, script: Script, execution: Execution, code: body.Generated) -> None:
        self._script = script
        self._execution = execution
        self._code = code
        self._overlapped = execution.issue != "one_stream"
        self._steps: list[Step] = []
        self._uses: dict[str, _Uses] = {}
        self._stream: dict[str, int] = {}
        self._number: dict[str, int] = {}
        self._ended: dict[str, dict[int, int]] = {}
        self._last: dict[int, str] = {}

    def all(self) -> tuple[Step, ...]:
        ops = self._script.ops
        counted = self._execution.allocation != "ahead"
        groups = arenas(self._script, self._execution) if counted else ()
        names = arena_names(groups)
        first: dict[int, list[int]] = {}
        last: dict[int, list[int]] = {}
        home = {cell: index for index, group in enumerate(groups) for cell in group}
        begun: dict[int, int] = {}
        ended: dict[int, int] = {}
        for position, op in enumerate(ops):
            for cell in _device_cells(op):
                if cell in home:
                    begun.setdefault(home[cell], position)
                    ended[home[cell]] = position
        for index, position in begun.items():
            first.setdefault(position, []).append(index)
            last.setdefault(ended[index], []).append(index)
        for position, op in enumerate(ops):
            for index in first.get(position, ()):
                self._allocate(names[index], groups[index], op)
            self._op(op)
            for index in last.get(position, ()):
                self._free(names[index], groups[index], op)
        return tuple(self._steps)

    def _op(self, op: Op) -> None:
        if isinstance(op, Call):
            self._call(op)
        elif isinstance(op, Move):
            self._move(op)
        else:
            near = op.cell + DEVICE_SUFFIX if op.device else op.cell
            source, target = (op.buffer, near) if op.into else (near, op.buffer)
            after = self._touch(op.name, [source], [target], HOSTS)
            self._add(Copy(name=op.name, source=(source,), target=(target,), after=after, counted=False,
                           stream=self._lane(HOSTS)))  # fmt: skip

    def _call(self, op: Call) -> None:
        suffix = DEVICE_SUFFIX if op.kernel.device else ""
        lane = KERNELS if op.kernel.device else HOSTS
        entry = self._code.entries[op.name]
        reads, writes = ([name + suffix for name in names] for names in (op.reads, op.writes))
        arguments = (*(Pointer(buffer=name) for name in (*reads, *writes)), *entry.scalars)
        after = self._touch(op.name, reads, writes, lane)
        if op.kernel.device:
            self._add(
                Launch(
                    name=op.name, source=entry.source, entry=entry.entry, grid=entry.grid, block=entry.block,
                    shared_bytes=entry.shared_bytes, arguments=arguments, stream=self._lane(lane), after=after,
                )
            )  # fmt: skip
        else:
            self._add(
                HostCall(name=op.name, source=entry.source, entry=entry.entry, arguments=arguments,
                         stream=self._lane(lane), after=after)
            )  # fmt: skip

    def _move(self, op: Move) -> None:
        near, far = list(op.cells), [name + DEVICE_SUFFIX for name in op.cells]
        source, target = (near, far) if op.up else (far, near)
        lane = UPLOADS if op.up else DOWNLOADS
        after = self._touch(op.name, source, target, lane)
        if self._execution.send == "batch" and len(source) > 1:
            copies = tuple(zip(source, target, strict=True))
            self._add(CopyBatch(name=op.name, copies=copies, stream=self._lane(lane), after=after, counted=op.counted))
        else:
            self._add(Copy(name=op.name, source=tuple(source), target=tuple(target), stream=self._lane(lane),
                           after=after, counted=op.counted))  # fmt: skip

    def _allocate(self, name: str, group: Sequence[str], op: Op) -> None:
        counted = not (isinstance(op, Transfer) or (isinstance(op, Move) and not op.counted))
        lane = self._allocating()
        after = self._touch(f"alloc_{name}", [], [cell + DEVICE_SUFFIX for cell in group], lane)
        self._add(Alloc(name=f"alloc_{name}", arena=name, pooled=self._execution.allocation == "pooled",
                        stream=self._lane(lane), after=after, counted=counted))  # fmt: skip

    def _free(self, name: str, group: Sequence[str], op: Op) -> None:
        lane = self._allocating()
        after = self._touch(f"free_{name}", [], [cell + DEVICE_SUFFIX for cell in group], lane)
        self._add(Free(name=f"free_{name}", arena=name, stream=self._lane(lane), after=after))

    def _allocating(self) -> int:
        """All on one stream: what is freed before an allocation in the list is free by then."""
        return KERNELS if self._execution.allocation == "pooled" else HOSTS

    def _lane(self, lane: int) -> int:
        return lane if self._overlapped else 0

    def _touch(self, step: str, reads: Iterable[str], writes: Iterable[str], lane: int) -> tuple[str, ...]:
        """The steps of other streams that this one has to wait for, without those that others wait for already."""
        waits: list[str] = []
        written = dict.fromkeys(writes)
        for name in dict.fromkeys(reads):
            uses = self._uses.setdefault(name, _Uses())
            waits += [uses.writer] if uses.writer else []
            if name not in written:
                uses.readers.append(step)
        for name in written:
            uses = self._uses.setdefault(name, _Uses())
            waits += [*([uses.writer] if uses.writer else []), *uses.readers]
            self._uses[name] = _Uses(writer=step)
        stream, number = self._lane(lane), len(self._number)
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


def _device_cells(op: Op) -> tuple[str, ...]:
    if isinstance(op, Move):
        return op.cells
    if isinstance(op, Call):
        return (*op.reads, *op.writes) if op.kernel.device else ()
    return (op.cell,) if op.device else ()
