"""Programs: kernels one after the other, each on a stream of its own, fused, and some of each."""

import dataclasses
from collections.abc import Mapping, Sequence

from fusiond.model.language.extents import ceil_div, most
from fusiond.model.program import Argument as Passed
from fusiond.model.program import (
    Buffer,
    FillStep,
    Launch,
    Pointer,
    Program,
    Role,
    Scalar,
    Source,
    SourceLanguage,
    Step,
    sized,
)
from fusiond_hfuse.analysis import partition
from fusiond_hfuse.analysis.fusion_schedule import FusedSide, FusionSchedule, shapes_of
from fusiond_hfuse.analysis.registers import RegisterCap
from fusiond_hfuse.codegen import fuse, hidden_arguments, host_variables, ptx_fuse, sides
from fusiond_hfuse.frontend.fusion_group import FusionSlot, KernelGroup, LaunchShape
from fusiond_hfuse.frontend.kernel_file import define_values
from fusiond_hfuse.frontend.launch_shapes import buffers_of, shape_of
from fusiond_hfuse.frontend.source_kernel import KernelArgument


def native_source(slot: FusionSlot, threads: int, cap: int | None) -> Source:
    """A kernel's own source: the user's text as it is, with the macros that this block shape asks for."""
    kernel, shape = slot.kernel, partition.block_shape(slot, threads)
    name = f"{slot.letter}_" + "".join(each if each.isalnum() else "_" for each in kernel.name)
    symbols = tuple(each.symbol for each in kernel.variables)
    if kernel.ptx is not None:
        return Source(
            name=name, text=kernel.ptx.text, language=SourceLanguage.PTX, entries=(kernel.instance,), register_cap=cap,
            symbols=symbols,
        )  # fmt: skip
    defines = dict(define_values(kernel, slot.sizes, shape))
    return Source(
        name=name, text=kernel.unit.whole + host_variables.text(kernel), symbols=symbols,
        entries=(kernel.instance, *host_variables.entries(kernel)), register_cap=cap, flags=kernel.flags,
        defines=tuple({**defines, **{macro: str(value) for macro, value in slot.macros.items()}}.items()),
    )  # fmt: skip


MOST_BLOCKS = 2**31 - 1  #: Of a launch, along x


def unfused(
    group: KernelGroup,
    threads: Mapping[str, int],
    caps: Mapping[str, int | None],
    *,
    order: str = "",
    issue: str = "sequence",
) -> Program:
    """The kernels as they are, launched in `order` (of letters): one after the other (`sequence`), each on a stream of
    its own (`streams`), or these as one CUDA graph (`graph`)."""
    order, streams = order or group.letters, issue != "sequence"
    sources = {slot.letter: native_source(slot, threads[slot.letter], caps[slot.letter]) for slot in group.slots}
    places = {letter: f"{source.name}:" for letter, source in sources.items()}
    shapes = {slot.letter: shape_of(slot, partition.block_shape(slot, threads[slot.letter])) for slot in group.slots}
    before = host_variables.steps(group, shapes, places)
    launches = []
    for stream, letter in enumerate(order):
        slot, shape = group.slot(letter), shapes[letter]
        launch = Launch(
            name=letter, source=sources[letter].name, entry=slot.kernel.instance, grid=shape.grid, block=shape.block,
            shared_bytes=shape.shared_bytes, arguments=_arguments(slot, shape), stream=stream if streams else 0,
            cooperative=slot.kernel.parsed.cooperative,
        )  # fmt: skip
        launches.append(launch)
    how = f"{_COUNTS.get(len(order), str(len(order)))} streams" if streams else "one after the other"
    if issue == "graph":
        how = "a CUDA graph"
    program = Program(
        name=f"{fuse.listed(group.names)}, {how} ({order})", buffers=_buffers(group, places),
        sources=tuple(sources[letter] for letter in group.letters), steps=(*before, *_behind(before, launches)),
        issue="graph" if issue == "graph" else "streams",
    )  # fmt: skip
    return sized(program, group.sizes, group.fixed_sizes)


_COUNTS = {2: "two", 3: "three", 4: "four"}


def fused(group: KernelGroup, schedule: FusionSchedule, cap: RegisterCap) -> Program:
    """One launch that does the work of all. ValueError when the grid is longer than a launch can have."""
    shapes = shapes_of(schedule)
    grid = launched_blocks(schedule, shapes)
    arguments: list[Passed] = [each for slot in group.slots for each in _arguments(slot, shapes[slot.letter])]
    arguments += [Scalar(dtype="uint32", value=each) for each in _hidden_values(schedule, shapes, grid)]
    ptx = group.slots[0].kernel.ptx is not None
    namespaces = {letter: f"fused:{_namespace(letter, ptx=ptx)}" for letter in group.letters}
    buffers = _buffers(group, namespaces)
    before: tuple[Step, ...] = host_variables.steps(group, shapes, namespaces)
    elements = hidden_arguments.counters(schedule)
    if elements:
        tickets = Buffer(name=f"tickets.{group.letters}", dtype="uint32", elements=elements, role=Role.SCRATCH)
        buffers = (*buffers, tickets)
        before = (*before, FillStep(name="zero_tickets", buffer=tickets.name))
        arguments.append(Pointer(buffer=tickets.name))
    how = schedule.kind if schedule.level == "warp" else f"{schedule.kind} by blocks"
    launch = Launch(
        name="fused", source="fused", entry=fuse.entry_name(schedule), grid=(grid, 1, 1),
        block=(schedule.threads, 1, 1), shared_bytes=arena_bytes(schedule, shapes), arguments=tuple(arguments),
        cooperative=any(slot.kernel.parsed.cooperative for slot in group.slots),
    )  # fmt: skip
    program = Program(
        name=f"{fuse.listed(group.names)}, fused ({how})", buffers=buffers,
        sources=(fused_source(group, schedule, cap),), steps=(*before, launch),
    )  # fmt: skip
    return sized(program, group.sizes, group.fixed_sizes)


def launched_blocks(schedule: FusionSchedule, shapes: Mapping[str, LaunchShape]) -> int:
    """How many blocks the fused launch has. ValueError for more than a launch can have, or than 31 bits can number."""
    counts = [units(side, shapes) for side in schedule.sides]
    blocks = sum(counts) if schedule.level == "block" else most(*counts)
    if blocks > MOST_BLOCKS:
        raise ValueError(f"a fused grid of {blocks} blocks; a launch has at most {MOST_BLOCKS}")
    return schedule.blocks if schedule.map == "stride" else blocks


def units(side: FusedSide, shapes: Mapping[str, LaunchShape]) -> int:
    """How many fused blocks a side's own come to."""
    blocks = shapes[side.slot.letter].blocks
    return blocks if side.virtual == 1 else ceil_div(blocks, side.virtual)


def _hidden_values(schedule: FusionSchedule, shapes: Mapping[str, LaunchShape], launched: int) -> list[int]:
    """What `sides.hidden_words` names, in its order."""
    found = [
        shapes[side.slot.letter].grid["xyz".index(axis)]
        for side in schedule.by_letter
        for axis in sides.grid_axes(side.slot)
    ]
    places = arena_places(schedule, shapes)
    found += [places[letter] for letter in hidden_arguments.offset_letters(schedule)]
    if hidden_arguments.ratio_letters(schedule):
        counts = [units(side, shapes) for side in schedule.sides]
        found += [partition.ratio(part, sum(counts[at:])) for at, part in enumerate(counts[:-1])]
    slices = hidden_arguments.slice_letters(schedule)
    found += [aligned(schedule, shapes[letter].shared_bytes) for letter in slices]
    return [*found, launched] if schedule.map == "stride" else found


def composed(group: KernelGroup, programs: Sequence[tuple[str, Program]], launch: str) -> Program:
    """Several programs over parts of a group (letters, program), as one: one after the other (`sequence`), each on a
    stream of its own (`streams`), or these as one CUDA graph (`graph`)."""
    parts = [
        _part(letters, program, 0 if launch == "sequence" else number)
        for number, (letters, program) in enumerate(programs)
    ]
    before = [step for part in parts for step in part.steps if not step.counted]
    steps = [step for part in parts for step in part.steps if step.counted]
    places: dict[str, str] = {}
    for (letters, _), part in zip(programs, parts, strict=True):
        places |= _places(letters, part.sources[0])
    tickets = (each for _, program in programs for each in program.buffers if each.name.startswith("tickets."))
    names = (fuse.listed(group.among(letters).names) for letters, _ in programs)
    found = Program(
        name=f"{' | '.join(names)} ({launch})", buffers=(*_buffers(group, places), *tickets),
        sources=tuple(source for part in parts for source in part.sources),
        steps=(*before, *_behind(before, steps)), issue="graph" if launch == "graph" else "streams",
    )  # fmt: skip
    fixed = {name for _, each in programs for name in each.fixed}
    return sized(found, group.sizes, fixed)


def _behind(before: Sequence[Step], steps: Sequence[Step]) -> list[Step]:
    """The steps, on whichever stream, behind those that set variables, which are on the first."""
    last = (before[-1].name,) if before else ()
    return [dataclasses.replace(each, after=last) if last and each.stream else each for each in steps]


def _part(letters: str, program: Program, stream: int) -> Program:
    """A program over some letters of a group, inside the program of the whole group: what is fused is called after
    its letters, and a kernel by itself keeps its names."""
    name = f"fused_{letters}"

    def renamed(step: Step) -> Step:
        if len(letters) > 1:
            if isinstance(step, Launch):
                step = dataclasses.replace(step, source=name, name=name if step.counted else step.name)
            elif step.counted:
                step = dataclasses.replace(step, name=f"{step.name}_{letters}")
        return dataclasses.replace(step, stream=stream) if step.counted else step

    sources = program.sources
    if len(letters) > 1:
        sources = tuple(dataclasses.replace(each, name=name) for each in sources)
    return dataclasses.replace(program, sources=sources, steps=tuple(map(renamed, program.steps)))


def _places(letters: str, source: Source) -> dict[str, str]:
    """Letter -> what stands before the name of a variable of the slot in the source of a part."""
    ptx, alone = source.language is SourceLanguage.PTX, len(letters) == 1
    return {letter: f"{source.name}:{'' if alone else _namespace(letter, ptx=ptx)}" for letter in letters}


def _namespace(letter: str, *, ptx: bool) -> str:
    """What stands before the name of a variable of a slot in a fused source."""
    return f"{letter}_" if ptx else f"fusiond_{letter}::"


def fused_source(group: KernelGroup, schedule: FusionSchedule, cap: RegisterCap) -> Source:
    variables = ((slot.letter, each.symbol) for slot in group.slots for each in slot.kernel.variables)
    ptx = group.slots[0].kernel.ptx is not None
    setters = [entry for each in group.slots for entry in host_variables.entries(each.kernel, each.letter)]
    setting = "".join(host_variables.text(each.kernel, each.letter) for each in group.slots)
    return Source(
        name="fused",
        text=(ptx_fuse.write if ptx else fuse.write)(schedule, cap) + setting,
        language=SourceLanguage.PTX if ptx else SourceLanguage.CUDA,
        entries=(fuse.entry_name(schedule), *setters),
        register_cap=cap.registers,
        flags=() if ptx else group.slots[0].kernel.flags,
        symbols=tuple(f"{_namespace(letter, ptx=ptx)}{symbol}" for letter, symbol in variables),
    )


def aligned(schedule: FusionSchedule, shared_bytes: int) -> int:
    """Where the next part of the arena may begin."""
    unit = hidden_arguments.alignment(schedule)
    return ceil_div(shared_bytes, unit) * unit


def arena_places(schedule: FusionSchedule, shapes: Mapping[str, LaunchShape]) -> dict[str, int]:
    """Letter -> where its dynamic shared memory begins: behind each other, or all at 0 where no two share a block.

    A kernel without a dynamic array gets none, whatever its YAML says."""
    places = {}
    end = 0
    for side in schedule.by_letter:
        if side.slot.kernel.parsed.uses_dynamic_shared:
            places[side.slot.letter] = 0 if schedule.level == "block" else aligned(schedule, end)
            end = aligned(schedule, end) + shapes[side.slot.letter].shared_bytes
    return places


def arena_bytes(schedule: FusionSchedule, shapes: Mapping[str, LaunchShape]) -> int:
    """Dynamic shared memory of the fused kernel: each side's, of which its virtual blocks have a slice each."""
    ends = []
    for letter, place in arena_places(schedule, shapes).items():
        own, virtual = shapes[letter].shared_bytes, schedule.side(letter).virtual
        ends.append(place + (own if virtual == 1 else aligned(schedule, own) * virtual))
    return most(*ends) if ends else 0


def _buffers(group: KernelGroup, places: Mapping[str, str]) -> tuple[Buffer, ...]:
    """All slots' buffers. `places`: by letter, what stands before the name of a variable of that slot's source."""
    found = []
    for slot in group.slots:
        plain = (each for each in slot.kernel.variables if not each.members)
        symbols = {slot.named(each.name): f"{places[slot.letter]}{each.symbol}" for each in plain}
        found += [dataclasses.replace(each, symbol=symbols.get(each.name)) for each in buffers_of(slot)]
        found += host_variables.buffers(slot, places[slot.letter])
    return tuple(found)


def _arguments(slot: FusionSlot, shape: LaunchShape) -> tuple[Passed, ...]:
    def passed(argument: KernelArgument) -> Passed:
        if argument.buffer is not None:
            return Pointer(buffer=slot.named(argument.name))
        if argument.bytes:
            return host_variables.addressed(slot, argument, shape)
        return Scalar(dtype=argument.dtype, value=shape.scalars[argument.name])

    return tuple(passed(argument) for argument in slot.kernel.arguments)
