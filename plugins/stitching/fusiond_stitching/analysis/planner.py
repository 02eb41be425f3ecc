"""A policy and a module to a plan: fusion, the choice of schedules, block programs, launches.

Schedules are tuned (section 4.3): of a group's surviving candidates the one with the smallest sum over its
instructions is taken whose shared memory suffices. The sums come from the performance library where it knows all of
an instruction's entries, else from an estimate. A group for which shared memory never suffices is split (section
5.1.2): what needs most becomes the root of a group of its own, and fusion runs again.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fusiond.model.nouns import DeviceLimits, frozen
from fusiond_stitching.analysis import performance_library, row_groups, rows, tiles, traffic
from fusiond_stitching.analysis.deep_fusion import fuse
from fusiond_stitching.analysis.fusion import (
    Elsewhere,
    Fusion,
    FusionCandidate,
    FusionGroup,
    GroupContext,
    LaunchPlace,
    read,
)
from fusiond_stitching.analysis.performance_library import Library
from fusiond_stitching.analysis.plan import (
    BlockProgram,
    BoxChunk,
    Global,
    LibraryCall,
    Phase,
    Split,
    Stage,
    StageResult,
    Step,
    StitchedKernel,
    StitchingPlan,
    alone,
    tiled,
)
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.analysis.schedule import flat
from fusiond_stitching.analysis.stages import block_program
from fusiond_stitching.frontend.graph import BYTES, HloInstruction, HloModule

ROUNDS = 64  #: How often fusion runs again because shared memory did not suffice
PATIENCE = 8  #: Of these, how many pass before twice as many members are set apart at once
REMEMBERED = 8  #: Plans that are kept with a module
LIFTS = 6
LIFT_GAIN = 0.98
LIFTED_INSTRUCTIONS = 3000
"""How many groups of outputs are tried in an earlier launch, for how much less traffic, in modules of what size."""
UPDATES = 4  #: Of a scatter in place, how many a thread applies
TILE_BYTES = 128  #: Of a window, what is applied of all updates before the next: a cache line
WARP = 32
ROWS = 8  #: Rows of a loop's state that a block has at most
REGISTERS = 128  #: Registers of a thread that the size of a cooperative grid allows for
_UNKNOWN: Library = frozen()


@dataclass(frozen=True, kw_only=True)
class PlannedModule:
    """A plan, and what led to it."""

    plan: StitchingPlan
    fusion: Fusion
    programs: Mapping[str, BlockProgram]  #: By the group's root
    problems: tuple[str, ...] = ()  #: Why groups cannot be: then there is no plan for them, and it is empty


def plan(
    module: HloModule, policy: FusionPolicy, limits: DeviceLimits | None = None, library: Library = _UNKNOWN
) -> PlannedModule:
    """Plan a whole module. `limits` bound the grid of a cooperative launch."""
    found = _planned(module, policy, limits, library, {})
    if policy.lift and not found.problems and len(module.instructions) <= LIFTED_INSTRUCTIONS:
        found = _with_lifts(module, policy, limits, library, found)
    return found


def remembered(
    module: HloModule, policy: FusionPolicy, limits: DeviceLimits, library: Library = _UNKNOWN
) -> PlannedModule:
    """`plan`, kept with the module where nothing was measured: a config is asked for when it is analysed, emitted,
    shown, and emitted again with another way to issue it."""
    if library:
        return plan(module, policy, limits, library)
    key = ("planned", policy, limits)
    found = module.kept.get(key)
    if not isinstance(found, PlannedModule):
        found = module.kept[key] = plan(module, policy, limits)
        for oldest in tuple(module.kept)[:-REMEMBERED]:  # emit is called in several threads at once
            module.kept.pop(oldest, None)
    return found


def _with_lifts(
    module: HloModule, policy: FusionPolicy, limits: DeviceLimits | None, library: Library, first: PlannedModule
) -> PlannedModule:
    """The plan with groups of outputs moved earlier, one after the other, where that saves traffic and costs no launch.
    Launches are placed as late as they can be; a group that only makes outputs may sit beside one that reads the
    same, and become one with it."""
    best, lifted = first, dict[str, LaunchPlace]()
    least = traffic.moved(module, best.plan)
    for outputs, place in _liftable(module, first)[:LIFTS]:
        trial = {**lifted, **dict.fromkeys(outputs, place)}
        found = _planned(module, policy, limits, library, trial)
        if found.problems or len(found.plan.kernels) > len(best.plan.kernels):
            continue
        moved = traffic.moved(module, found.plan)
        if moved < LIFT_GAIN * least:
            best, lifted, least = found, trial, moved
    return best


def _liftable(module: HloModule, planned: PlannedModule) -> list[tuple[tuple[str, ...], LaunchPlace]]:
    """(outputs, place): groups that nobody waits for, and the earlier place where most of what they read is read too;
    those with most to save first."""
    groups = planned.fusion.groups
    owner = {name for group in groups for name in group.members}
    stored = stored_members(module, planned.fusion)
    calls = {name for names in planned.fusion.read.values() for name in names}
    reads = [read(module, group.members, {*owner, *planned.fusion.calls}) for group in groups]
    needed = {name for each in reads for name in each} | calls
    found = []
    for at, group in enumerate(groups):
        if any(name in needed for name in stored[at]):
            continue
        best, place = 0, group.place
        for other, theirs in enumerate(groups):
            if theirs.place > group.place:
                shared = sum(module[name].size_bytes for name in reads[at] & reads[other])
                if shared > best:
                    best, place = shared, theirs.place
        if best:
            found.append((best, tuple(sorted(stored[at])), place))
    found.sort(key=lambda each: (-each[0], each[1]))
    return [(outputs, place) for _, outputs, place in found]


def _planned(
    module: HloModule,
    policy: FusionPolicy,
    limits: DeviceLimits | None,
    library: Library,
    lifted: Mapping[str, LaunchPlace],
) -> PlannedModule:
    apart: frozenset[str] = frozenset()
    for attempt in range(ROUNDS):
        fusion = row_groups.merged(module, policy, fuse(module, policy, apart, lifted), lifted)
        stored = [frozenset(each) for each in stored_members(module, fusion)]
        owner = {name for group in fusion.groups for name in group.members}
        filled = {*owner, *fusion.calls}
        programs: dict[str, BlockProgram] = {}
        blamed: list[str] = []
        problem = ""
        for place, group in enumerate(fusion.groups):
            elsewhere, name = Elsewhere(filled, frozenset(group.members)), f"g{place}"
            context = GroupContext(module, policy, group, stored[place], elsewhere)
            found: BlockProgram | str | None = tiles.block_program(context, name) or rows.block_program(context, name)
            for candidate in performance_library.ordered(module, policy, group, library) if found is None else ():
                found = block_program(context, candidate, name)
                if isinstance(found, BlockProgram):
                    break
            if isinstance(found, BlockProgram):
                programs[group.root] = found
                continue
            problem = f"{group.root}: {found or 'no schedule'}"
            blamed += _heaviest(module, group, candidate, apart, 1 << attempt // PATIENCE)
        if not problem:
            steps = _steps(module, policy, fusion, programs, limits)
            made = StitchingPlan(steps=steps, notes=fusion.reasons)
            return PlannedModule(plan=made, fusion=fusion, programs=frozen(programs))
        if not blamed:
            break
        apart |= frozenset(blamed)
    return PlannedModule(plan=StitchingPlan(steps=()), fusion=fusion, programs=frozen({}), problems=(problem,))


def stored_members(module: HloModule, fusion: Fusion) -> list[set[str]]:
    """For each group the members that must reach global memory: outputs, what library calls read, what other groups
    read."""
    buffered = {*fusion.calls, *(name for group in fusion.groups for name in group.members)}
    needed = set(module.outputs).union(*fusion.read.values())
    needed |= {name for group in fusion.groups for name in read(module, group.members, buffered)}
    return [needed.intersection(group.members) for group in fusion.groups]


# --- feedback -------------------------------------------------------------------------------------------


def _heaviest(
    module: HloModule, group: FusionGroup, candidate: FusionCandidate, apart: frozenset[str], count: int
) -> list[str]:
    """The members (not the root) whose chunks are largest; of equals those that cut the group into even pieces."""
    sizes = {
        name: candidate.chunks[name].size * (1 + (module[name].opcode in ("reduce", "dot", "scatter")))
        for name in group.members
        if name != group.root and name not in apart
    }
    most = max(sizes.values(), default=0)
    equals = [name for name, size in sizes.items() if size == most]
    count = min(count, len(equals))
    return [equals[(2 * at + 1) * len(equals) // (2 * count)] for at in range(count)]


# --- launches -------------------------------------------------------------------------------------------


def _steps(
    module: HloModule,
    policy: FusionPolicy,
    fusion: Fusion,
    programs: Mapping[str, BlockProgram],
    limits: DeviceLimits | None,
) -> tuple[Step, ...]:
    """Kernels and library calls in order: before the kernels of a level come the calls whose results it reads."""
    calls: dict[int, list[str]] = {}
    for name, place in fusion.calls.items():
        if module[name].opcode != "scan":
            calls.setdefault(place[0], []).append(name)
    for results in module.scans.values():  # one launch for all of them, before the first is read
        calls.setdefault(max(fusion.calls[each][0] for each in results), []).append(results[0])
    levels: dict[int, list[tuple[LaunchPlace, BlockProgram]]] = {}
    for group in fusion.groups:
        levels.setdefault(group.place[0], []).append((group.place, programs[group.root]))
    steps: list[Step] = []
    count = 0
    for level in sorted({*calls, *levels}, reverse=True):
        for name in sorted(calls.get(level, ()), key=module.number.__getitem__):
            if name in module.in_place:
                steps.append(_in_place(module, policy, name, f"k{count}"))
                count += 1
            elif name in module.launches:
                steps.append(_scan(module, policy, name, f"k{count}", limits))
                count += 1
            else:
                steps.append(LibraryCall(instruction=name))
        for phases in _launches(policy, levels.get(level, [])):
            steps.append(kernel(policy, f"k{count}", phases, limits))
            count += 1
    return tuple(steps)


def _in_place(module: HloModule, policy: FusionPolicy, scatter: str, name: str) -> StitchedKernel:
    """The launch that applies the updates of a scatter in place."""
    updates = module[module[scatter].operands[2]]
    schedule = flat(updates.elements, UPDATES * policy.threads)
    chunk = schedule.chunk(updates.dims)
    tile = columns(updates, module[scatter].attributes["update_window_dims"], UPDATES * policy.threads)
    if policy.update_tiles and tile is not None:
        chunk = tile
    home = Global(module.buffer_of(scatter))
    stage = Stage(chunk=chunk, dims=updates.dims, results=(StageResult(scatter, (home,)),))
    program = BlockProgram(
        name=scatter, blocks=chunk.parts, stages=(stage,), root=scatter, schedule=schedule, updates=True
    )
    return alone(program, name, policy.threads)


def _scan(
    module: HloModule, policy: FusionPolicy, result: str, name: str, limits: DeviceLimits | None
) -> StitchedKernel:
    """The launch that runs a whole loop: few threads to a block where there are few, so that all multiprocessors have
    some; as few rows where blocks have the state."""
    loop = module[result].attributes["loop"]
    count = math.prod(loop.axes)
    share = -(-count // (limits.multiprocessors if limits is not None else 1))
    threads, shared = min(policy.threads, max(WARP, -(-share // WARP) * WARP)), 0
    size = threads
    if loop.by_block:
        size, threads = max(1, min(share, ROWS)), policy.threads
        most = max(policy.shared_limit, policy.row_shared)
        while size > 1 and loop.shared_bytes(size) > most:
            size -= 1
        shared = loop.shared_bytes(size)
    schedule = flat(count, size)
    chunk = schedule.chunk(loop.axes)
    results = tuple(StageResult(each, (Global(module.buffer_of(each)),)) for each in module.scans[loop.name])
    stage = Stage(chunk=chunk, dims=loop.axes, results=results)
    program = BlockProgram(
        name=loop.name, blocks=chunk.parts, stages=(stage,), root=result, schedule=schedule, scan=True,
        shared_bytes=shared,
    )  # fmt: skip
    return alone(program, name, threads)


def columns(updates: HloInstruction, windows: Sequence[int], elements: int) -> BoxChunk | None:
    """Chunks of about so many elements, that are taken column by column: all updates' first `TILE_BYTES` of their
    windows, then the next. Where rows are hit many times and all rows are larger than the second-level cache, those
    of one column fit. None where windows are not longer, or do not lie side by side."""
    last = len(updates.dims) - 1
    width = TILE_BYTES // BYTES[updates.dtype]
    if last not in windows or updates.dims[last] <= width:
        return None
    sizes, room = [width], elements // width
    for dim in reversed(updates.dims[:-1]):
        sizes.insert(0, max(1, min(dim, room)))
        room //= max(1, sizes[0])
    rows = tiled(updates.dims[:-1], sizes[:-1])
    stride = math.prod(each.parts for each in rows)
    return BoxChunk((*rows, Split(width, -(-updates.dims[last] // width), stride)))


def _launches(policy: FusionPolicy, level: Sequence[tuple[LaunchPlace, BlockProgram]]) -> Iterator[tuple[Phase, ...]]:
    phases: dict[int, list[BlockProgram]] = {}
    for place, program in level:
        phases.setdefault(place[1], []).append(program)
    ordered = [phases[each] for each in sorted(phases, reverse=True)]
    if threads_of(policy, [program for programs in ordered for program in programs]) is None:
        # Without barriers there is one phase; programs that want other threads are launches of their own.
        for programs in ordered:
            wanted = sorted({_threads(policy, each) for each in programs})
            for threads in wanted:
                yield (Phase(programs=tuple(each for each in programs if _threads(policy, each) == threads)),)
    elif not policy.packing:
        for programs in ordered:
            for program in programs:
                yield (Phase(programs=(program,)),)
    elif ordered:
        yield tuple(Phase(programs=tuple(each)) for each in ordered)


def threads_of(policy: FusionPolicy, programs: Sequence[BlockProgram]) -> int | None:
    """The threads of a launch; None where its programs want different numbers."""
    found = {_threads(policy, each) for each in programs}
    return found.pop() if len(found) == 1 else None


def _threads(policy: FusionPolicy, program: BlockProgram) -> int:
    return (program.rows.threads if program.rows is not None else 0) or policy.threads


def kernel(policy: FusionPolicy, name: str, phases: tuple[Phase, ...], limits: DeviceLimits | None) -> StitchedKernel:
    shared = max(program.shared_bytes for phase in phases for program in phase.programs)
    blocks = max(phase.blocks for phase in phases)
    threads = threads_of(policy, [program for phase in phases for program in phase.programs])
    if threads is None:
        raise ValueError(f"{name}: its programs need different numbers of threads")
    if len(phases) > 1:
        blocks = min(blocks, resident(threads, shared, limits))
    return StitchedKernel(name=name, phases=phases, threads=threads, grid=blocks, shared_bytes=shared)


def resident(threads: int, shared: int, limits: DeviceLimits | None) -> int:
    """Blocks that surely fit on the device at once, whatever registers the compiler needs (up to 128 a thread)."""
    if limits is None:
        return 1
    each = min(limits.threads_per_sm // threads, limits.blocks_per_sm)
    if shared:
        each = min(each, limits.shared_bytes_per_sm // (shared + limits.shared_bytes_reserved))
    if limits.registers_per_sm > 0:
        each = min(each, limits.registers_per_sm // (threads * REGISTERS))
    return max(1, each) * limits.multiprocessors
