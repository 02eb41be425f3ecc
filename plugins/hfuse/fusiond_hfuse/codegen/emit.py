"""Programs: kernels one after the other, each on a stream of its own, fused, and some of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from fusiond.language.extents import ceil_div, most
from fusiond.program import Argument as Passed
from fusiond.program import Buffer, FillStep, Launch, Pointer, Program, Role, Scalar, Source, Step, sized
from fusiond_hfuse.analysis import partition
from fusiond_hfuse.analysis.registers import Cap
from fusiond_hfuse.codegen import fuse, hidden_arguments, host_variables, sides
from fusiond_hfuse.frontend.graph import Argument, Group, Kernel, Plan, Shape, Side, Slot
from fusiond_hfuse.frontend.kernel import define_values
from fusiond_hfuse.frontend.shapes import buffers_of, shape_of


def native_source(slot: Slot, threads: int, cap: int | None) -> Source:
    """A kernel's own source: the user's text as it is, with the macros that this block shape asks for."""
    kernel = slot.kernel
    shape = kernel.block.shape(threads)
    if shape is None:
        raise ValueError(f"{kernel.name} has no block of {threads} threads")
    return Source(
        name=f"{slot.letter}_{_file_name(kernel)}",
        text=kernel.unit.whole + host_variables.text(kernel),
        entries=(kernel.instance, *host_variables.entries(kernel)),
        register_cap=cap,
        flags=kernel.flags,
        defines=define_values(kernel.defines, slot.sizes, shape, where=kernel.lines.get("defines", kernel.path)),
        symbols=tuple(each.symbol for each in kernel.variables),
    )


MOST_BLOCKS = 2**31 - 1
"""Of a launch, along x."""


def unfused(
    group: Group,
    threads: Mapping[str, int],
    caps: Mapping[str, int | None],
    *,
    order: str | None = None,
    streams: bool = False,
    issue: str = "streams",
) -> Program:
    """The kernels as they are: one after the other, or each on a stream of its own, launched in `order` (of letters).

    `issue` is `graph` for the same as one CUDA graph.
    """
    order = order or group.letters
    sources = {slot.letter: native_source(slot, threads[slot.letter], caps[slot.letter]) for slot in group.slots}
    places = {letter: f"{source.name}:" for letter, source in sources.items()}
    shapes = {slot.letter: _native_shape(slot, threads[slot.letter]) for slot in group.slots}
    steps: list[Step] = [*host_variables.steps(group, shapes, places)]
    set_before = tuple(each.name for each in steps[-1:])
    for stream, letter in enumerate(order):
        slot, shape = group.slot(letter), shapes[letter]
        steps.append(
            Launch(
                name=letter,
                source=sources[letter].name,
                entry=slot.kernel.instance,
                grid=shape.grid,
                block=shape.block,
                shared_bytes=shape.shared_bytes,
                arguments=_arguments(slot, shape),
                stream=stream if streams else 0,
                after=set_before if streams and stream else (),
            )
        )
    how = f"{_COUNTS.get(len(order), str(len(order)))} streams" if streams else "one after the other"
    if issue == "graph":
        how = "a CUDA graph"
    program = Program(
        name=f"{fuse.listed(group.names)}, {how} ({order})",
        buffers=_buffers(group, places),
        sources=tuple(sources[letter] for letter in group.letters),
        steps=tuple(steps),
        issue=issue,
    )
    return sized(program, group.sizes, group.fixed_sizes)


def _native_shape(slot: Slot, threads: int) -> Shape:
    block = slot.kernel.block.shape(threads)
    assert block is not None  # native_source has seen to it
    return shape_of(slot, block)


_COUNTS = {2: "two", 3: "three", 4: "four"}


def fused(group: Group, plan: Plan, cap: Cap, version: int) -> Program:
    """One launch that does the work of all. ValueError when the grid is longer than a launch can have."""
    shapes = {side.slot.letter: shape_of(side.slot, side.shape) for side in plan.sides}
    grid = launched_blocks(plan, shapes)
    arguments: list[Passed] = [each for slot in group.slots for each in _arguments(slot, shapes[slot.letter])]
    for slot in group.slots:
        lengths = shapes[slot.letter].grid[: len(sides.grid_axes(slot))]
        arguments += [Scalar(dtype="uint32", value=length) for length in lengths]
    places = arena_places(plan, shapes)
    arguments += [Scalar(dtype="uint32", value=places[letter]) for letter in hidden_arguments.offset_letters(plan)]
    arguments += [Scalar(dtype="uint32", value=each) for each in block_arguments(plan, shapes)]
    if plan.map == "stride":
        arguments.append(Scalar(dtype="uint32", value=grid))
    namespaces = {letter: f"fused:fusiond_{letter}::" for letter in group.letters}
    buffers = _buffers(group, namespaces)
    before: tuple[Step, ...] = host_variables.steps(group, shapes, namespaces)
    if plan.assign in hidden_arguments.TICKETED:
        elements = hidden_arguments.tickets(plan)
        tickets = Buffer(name=f"tickets.{group.letters}", dtype="uint32", elements=elements, role=Role.SCRATCH)
        buffers = (*buffers, tickets)
        before = (*before, FillStep(name="zero_tickets", buffer=tickets.name))
        arguments.append(Pointer(buffer=tickets.name))
    how = plan.kind if plan.level == "warp" else f"{plan.kind} by blocks"
    program = Program(
        name=f"{fuse.listed(group.names)}, fused ({how})",
        buffers=buffers,
        sources=(fused_source(group, plan, cap, version),),
        steps=(
            *before,
            Launch(
                name="fused",
                source="fused",
                entry=fuse.entry_name(plan),
                grid=(grid, 1, 1),
                block=(plan.threads, 1, 1),
                shared_bytes=arena_bytes(plan, shapes),
                arguments=tuple(arguments),
            ),
        ),
    )
    return sized(program, group.sizes, group.fixed_sizes)


def launched_blocks(plan: Plan, shapes: Mapping[str, Shape]) -> int:
    """How many blocks the fused launch has. ValueError for more than a launch can have, or than 31 bits can number."""
    counts = [units(side, shapes) for side in plan.sides]
    blocks = sum(counts) if plan.level == "block" else most(*counts)
    if blocks > MOST_BLOCKS:
        raise ValueError(f"a fused grid of {blocks} blocks; a launch has at most {MOST_BLOCKS}")
    return plan.blocks if plan.map == "stride" else blocks


def units(side: Side, shapes: Mapping[str, Shape]) -> int:
    """How many fused blocks a side's own come to."""
    blocks = shapes[side.slot.letter].blocks
    return blocks if side.virtual == 1 else ceil_div(blocks, side.virtual)


def block_arguments(plan: Plan, shapes: Mapping[str, Shape]) -> list[int]:
    """What the fused kernel is told at block level, in the order of `fuse.parameters`."""
    found: list[int] = []
    if hidden_arguments.ratio_letters(plan):
        counts = [units(side, shapes) for side in plan.sides]
        found += [partition.ratio(part, sum(counts[at:])) for at, part in enumerate(counts[:-1])]
    for letter in hidden_arguments.slice_letters(plan):
        found.append(aligned(plan, shapes[letter].shared_bytes))
    return found


def composed(group: Group, programs: Sequence[tuple[str, Program]], launch: str) -> Program:
    """Several programs over parts of a group (letters, program), as one: one after the other (`sequence`), each on a
    stream of its own (`streams`), or these as one CUDA graph (`graph`)."""
    names = {letters: f"fused_{letters}" for letters, program in programs if len(letters) > 1}
    sources, before, steps, scratch = [], [], [], []
    places = {}
    for stream, (letters, program) in enumerate(programs):
        name = names.get(letters)
        for letter in letters:
            places[letter] = f"{name}:fusiond_{letter}::" if name else f"{program.sources[0].name}:"
        sources += [dataclasses.replace(each, name=name) if name else each for each in program.sources]
        for step in program.steps:
            if not step.counted:  # what sets variables
                before.append(dataclasses.replace(step, source=name) if name and isinstance(step, Launch) else step)
                continue
            changes: dict[str, object] = {"stream": 0 if launch == "sequence" else stream}
            if name:
                changes["name"] = name if isinstance(step, Launch) else f"{step.name}_{letters}"
                if isinstance(step, Launch):
                    changes["source"] = name
            steps.append(dataclasses.replace(step, **changes))  # type: ignore[arg-type]
        scratch += [each for each in program.buffers if each.name.startswith("tickets.")]
    if before:
        steps = [dataclasses.replace(each, after=(before[-1].name,)) if each.stream else each for each in steps]
    parts = [fuse.listed(group.among(letters).names) for letters, _ in programs]
    program = Program(
        name=f"{' | '.join(parts)} ({launch})",
        buffers=(*_buffers(group, places), *scratch),
        sources=tuple(sources),
        steps=(*before, *steps),
        issue="graph" if launch == "graph" else "streams",
    )
    fixed = {name for _, each in programs for name in each.fixed}
    return sized(program, group.sizes, fixed)


def fused_source(group: Group, plan: Plan, cap: Cap, version: int) -> Source:
    return Source(
        name="fused",
        text=fuse.write(plan, version, cap)
        + "".join(host_variables.text(each.kernel, each.letter) for each in group.slots),
        entries=(
            fuse.entry_name(plan),
            *(entry for each in group.slots for entry in host_variables.entries(each.kernel, each.letter)),
        ),
        register_cap=cap.registers,
        flags=group.slots[0].kernel.flags,
        symbols=tuple(
            f"fusiond_{slot.letter}::{each.symbol}" for slot in group.slots for each in slot.kernel.variables
        ),
    )


def aligned(plan: Plan, shared_bytes: int) -> int:
    """Where the next part of the arena may begin."""
    return ceil_div(shared_bytes, hidden_arguments.alignment(plan)) * hidden_arguments.alignment(plan)


def arena_places(plan: Plan, shapes: Mapping[str, Shape]) -> dict[str, int]:
    """Letter -> where its dynamic shared memory begins: behind each other, or all at 0 where no two share a block.

    A kernel without a dynamic array gets none, whatever its YAML says.
    """
    places = {}
    end = 0
    for side in plan.by_letter:
        if side.slot.kernel.parsed.uses_dynamic_shared:
            places[side.slot.letter] = 0 if plan.level == "block" else aligned(plan, end)
            end = aligned(plan, end) + shapes[side.slot.letter].shared_bytes
    return places


def arena_share(plan: Plan, side: Side, shapes: Mapping[str, Shape]) -> int:
    """Bytes of the arena that a side has: a slice for each of its virtual blocks."""
    own = shapes[side.slot.letter].shared_bytes
    return own if side.virtual == 1 else aligned(plan, own) * side.virtual


def arena_bytes(plan: Plan, shapes: Mapping[str, Shape]) -> int:
    """Dynamic shared memory of the fused kernel."""
    places = arena_places(plan, shapes)
    ends = [place + arena_share(plan, plan.side(letter), shapes) for letter, place in places.items()]
    return most(*ends) if ends else 0


def _buffers(group: Group, places: Mapping[str, str]) -> tuple[Buffer, ...]:
    """All slots' buffers. `places`: by letter, what stands before the name of a variable of that slot's source."""
    found = []
    for slot in group.slots:
        symbols = {
            f"{slot.letter}.{each.name}": f"{places[slot.letter]}{each.symbol}"
            for each in slot.kernel.variables
            if not each.members
        }
        found += [dataclasses.replace(each, symbol=symbols.get(each.name)) for each in buffers_of(slot)]
        found += host_variables.buffers(slot, places[slot.letter])
    return tuple(found)


def _arguments(slot: Slot, shape: Shape) -> tuple[Passed, ...]:
    def passed(argument: Argument) -> Passed:
        if argument.buffer is not None:
            return Pointer(buffer=f"{slot.letter}.{argument.name}")
        if argument.bytes:
            return host_variables.addressed(slot, argument, shape)
        return Scalar(dtype=argument.dtype, value=shape.scalars[argument.name])

    return tuple(passed(argument) for argument in slot.kernel.arguments)


def _file_name(kernel: Kernel) -> str:
    return "".join(each if each.isalnum() else "_" for each in kernel.name)
