"""Which fused blocks fit the device's limits, and which caps bound their registers, from the compiler's facts."""

import dataclasses
import itertools
from collections.abc import Mapping

from fusiond.model.gpu.limits import STATIC_SHARED_BYTES
from fusiond.model.gpu.occupancy import carveout_pct, launch_problem
from fusiond.model.nouns import CompileFacts, Config, Rejection, Value
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Launch, Program, Source
from fusiond.strategy import Target
from fusiond_hfuse import space
from fusiond_hfuse.analysis import partition, registers
from fusiond_hfuse.analysis.fusion_schedule import FusionSchedule, shapes_of
from fusiond_hfuse.analysis.request import GroupAnalysis
from fusiond_hfuse.codegen import emit, ptx_fuse
from fusiond_hfuse.frontend.fusion_group import FusionSlot, KernelGroup
from fusiond_hfuse.frontend.launch_shapes import shape_of
from fusiond_hfuse.frontend.source_kernel import volume


def facts_of(target: Target, slot: FusionSlot, threads: int | None = None) -> CompileFacts | BuildFailed | None:
    """A kernel's own facts at a block size; by default at its given one."""
    source = emit.native_source(slot, threads or volume(slot.kernel.block.shapes[0]), None)
    found = target.facts(source)
    return found if found is None or isinstance(found, BuildFailed) else found.get(slot.kernel.instance)


def _of_entry(target: Target, source: Source, entry: str) -> CompileFacts | None:
    found = target.facts(source)
    return found.get(entry) if isinstance(found, Mapping) else None


def described(slot: FusionSlot, facts: CompileFacts | BuildFailed | None) -> dict[str, object]:
    shape = shape_of(slot, slot.kernel.block.shapes[0])
    known = facts if isinstance(facts, CompileFacts) else None
    found: dict[str, object] = {
        "name": slot.kernel.name,
        "registers": known.registers if known else None,
        "shared_bytes": known.shared_bytes + int(shape.shared_bytes) if known else None,
        "barriers": known.barriers if known else None,
        "threads": volume(shape.block),
    }
    if slot.kernel.ptx is not None:
        found["form"] = "ptx"
        if slot.kernel.why_ptx:
            found["compiled_because"] = slot.kernel.why_ptx
    return found


def own_problems(
    group: KernelGroup, slot: FusionSlot, target: Target, facts: CompileFacts | BuildFailed | None
) -> list[Rejection]:
    """Why a kernel cannot be fused with anything."""
    found = list(slot.kernel.parsed.rejections)
    if isinstance(facts, BuildFailed):
        detail = f"{slot.kernel.name} does not build by itself: {facts.reason}"
        found.append(Rejection(rule="does_not_build", nodes=(slot.kernel.name,), detail=detail))
    if not partition.counts(group, slot.letter, target.limits):
        why = "within the limits of the device and of __launch_bounds__ gives a launch at these sizes"
        detail = f"{slot.kernel.where('block')}: no block shape of {slot.kernel.name} {why}"
        found.append(Rejection(rule="block_shape", nodes=(slot.kernel.name,), detail=detail))
    return found


def alone_in_blocks(group: KernelGroup, target: Target) -> list[str]:
    """Why kernels can only be fused block by block."""
    found = []
    for slot in group.slots:
        found += [each.detail for each in slot.kernel.parsed.beside]
        if not slot.kernel.parsed.beside and not partition.counts(group, slot.letter, target.limits, beside=True):
            found.append(
                f"{slot.kernel.where('block')}: no block shape of {slot.kernel.name} is whole warps, and a partial "
                f"barrier counts warps"
            )
    return list(dict.fromkeys(found))


def joint_problems(group: KernelGroup, facts: Mapping[str, CompileFacts | BuildFailed | None]) -> list[Rejection]:
    """Why kernels that could be fused cannot be one launch."""
    found: dict[str, str] = {}  # rule -> why
    static = [_static_bytes(slot, facts[slot.letter]) for slot in group.slots]
    fits = sum(static) <= STATIC_SHARED_BYTES
    moves = partition.static_bytes(group.slots) > STATIC_SHARED_BYTES
    if not fits and not (moves and partition.static_bytes(partition.placed(group)) <= STATIC_SHARED_BYTES):
        found["static_shared"] = (
            f"static shared arrays of {' and '.join(map(str, static))} bytes; together at most "
            f"{STATIC_SHARED_BYTES} compile, and they cannot all become dynamic"
        )
    if group.slots[0].kernel.ptx is not None:
        try:
            ptx_fuse.target([slot.kernel.ptx for slot in group.slots if slot.kernel.ptx is not None])
        except ValueError as problem:
            found["target"] = str(problem)
        clusters = [slot.kernel.parsed.cluster for slot in group.slots]
        if len(set(clusters)) > 1:
            found["cluster"] = f"clusters of {' and '.join(map(str, clusters))} blocks; a launch has one kind"
    else:
        pairs = itertools.pairwise(slot.kernel for slot in group.slots)
        for first, second in (each for each in pairs if sorted(each[0].flags) != sorted(each[1].flags)):
            found.setdefault(
                "flags_differ",
                f"{first.name} is compiled with {' '.join(first.flags) or 'no flags'}, {second.name} with "
                f"{' '.join(second.flags) or 'none'}; one source has one set of flags",
            )
    return [Rejection(rule=rule, nodes=group.names, detail=detail) for rule, detail in found.items()]


def _static_bytes(slot: FusionSlot, facts: CompileFacts | BuildFailed | None) -> int:
    """Static shared memory: what ptxas says, else what the tree says, else nothing is known and the build will tell."""
    if isinstance(facts, CompileFacts):
        return facts.shared_bytes
    return slot.kernel.parsed.static_shared_bytes or 0


def _bound(known: GroupAnalysis, schedule: FusionSchedule) -> dict[str, int | None] | None:
    """The paper's r0 for a schedule, with its terms; None where no compiler knows the kernels' registers."""
    used = _natives(known, schedule)
    if used is None:
        return None
    shared = sum(facts.shared_bytes for facts in used) + int(emit.arena_bytes(schedule, shapes_of(schedule)))
    return registers.bound(
        known.target.limits,
        threads=tuple(side.threads for side in schedule.by_letter),
        registers=tuple(facts.registers for facts in used),
        shared_bytes=shared,
        block=schedule.threads,
    )


def _natives(known: GroupAnalysis, schedule: FusionSchedule) -> list[CompileFacts] | None:
    """What the compiler says of a schedule's kernels by themselves, at its block sizes."""
    found = [facts_of(known.target, side.slot, side.threads) for side in schedule.by_letter]
    used = [each for each in found if isinstance(each, CompileFacts)]
    return used if len(used) == len(found) else None


def even_bound(known: GroupAnalysis) -> dict[str, object] | None:
    """r0 with all its terms at the paper's even split, for the report."""
    group = known.group
    split = partition.even(group, known.target.limits)
    if split is None or known.target.limits.registers_per_sm <= 0:
        return None
    threads = dict(zip(group.letters, split, strict=True))
    order = group.letters if len(group.slots) == 2 else "given"
    config = Config.of(
        {"kind": "horizontal", "order": order, **{f"threads.{letter}": each for letter, each in threads.items()}}
    )
    bound = _bound(known, partition.schedule(group, config))
    return None if bound is None else {"threads": threads, **bound}


def cap(
    known: GroupAnalysis, group: KernelGroup, schedule: FusionSchedule, config: Config
) -> registers.RegisterCap | Rejection:
    """What bounds the registers of a config's kernel; `paper` needs a compiler. So many blocks as no multiprocessor
    has are refused here, before anything is compiled."""
    wanted = config.get("cap", "none")
    compiled = schedule.sides[0].slot.kernel.ptx is not None  # to PTX, which assembles quickly
    if wanted == "none":
        return registers.RegisterCap()
    if wanted == "native":
        used = _natives(known, schedule)
        if used is None:
            return registers.RegisterCap()
        limits, own = known.target.limits, max(each.registers for each in used)
        found = registers.RegisterCap(registers=registers.as_native(limits, schedule.threads, own))
        roomy = registers.RegisterCap(registers=own + registers.SLACK)
        if not compiled or found == roomy or any(map(_spills, used)):
            return found
        source = emit.fused(group, schedule, found).sources[0]
        built = known.target.facts(source)
        spilt = isinstance(built, Mapping) and any(map(_spills, built.values()))
        fits = (registers.fitting(limits, schedule.threads, 1) or 0) >= own + registers.SLACK
        return roomy if spilt and fits else found
    if wanted != "paper":
        blocks = _inherited(schedule) if wanted == "given" else int(config.text("cap").removeprefix(space.FIT))
        most = registers.fitting(known.target.limits, schedule.threads, blocks)
        if most is None:
            detail = f"{blocks} blocks of {schedule.threads} threads are more than a multiprocessor can have"
            return Rejection(rule="launch", nodes=group.names, detail=detail)
        if wanted == "given" and compiled and (used := _natives(known, schedule)):  # ptxas takes whatever it may
            return registers.RegisterCap(registers=min(most, max(each.registers for each in used) + registers.SLACK))
        return registers.RegisterCap(blocks=blocks)
    bound = _bound(known, schedule)
    if bound is None:
        detail = "cap=paper needs the registers of all its kernels, and no compiler here tells them"
        return Rejection(rule="no_compiler_facts", nodes=group.names, detail=detail)
    return registers.RegisterCap(registers=bound["r0"])


def _spills(facts: CompileFacts) -> bool:
    return facts.spill_store_bytes + facts.spill_load_bytes > 0


def launched(known: GroupAnalysis, schedule: FusionSchedule, cap: registers.RegisterCap) -> int:
    """Registers of each thread at the launch of a kernel of which so many blocks fit; 0 where no step bounds them."""
    if not cap.blocks:
        return 0
    most = registers.fitting(known.target.limits, schedule.threads, cap.blocks) or 0
    return most // registers.STEP * registers.STEP


def traded(
    known: GroupAnalysis, schedule: FusionSchedule, cap: registers.RegisterCap, config: Config
) -> FusionSchedule:
    """The schedule with what each side has once one has given registers to the other. ValueError where there are none
    to give."""
    taker = config.get("taker", "none")
    if taker == "none":
        return schedule
    kept, most_launched = config.integer("kept"), launched(known, schedule, cap)
    (giving,) = (side for side in schedule.sides if side.slot.letter != taker)
    (taking,) = (side for side in schedule.sides if side.slot.letter == taker)
    most = registers.traded(most_launched, giving.threads, taking.threads, kept)
    if most is None:
        raise ValueError(f"with {most_launched} registers for each thread, none can be given while {kept} are kept")
    own = {giving.slot.letter: kept, taking.slot.letter: most}
    sides = tuple(dataclasses.replace(side, registers=own[side.slot.letter]) for side in schedule.sides)
    return dataclasses.replace(schedule, sides=sides)


def _inherited(schedule: FusionSchedule) -> int:
    """The blocks that the kernels' own launch bounds ask for: what the most modest of them asks."""
    request = [side.slot.kernel.parsed.resident_blocks for side in schedule.sides]
    return min((blocks for blocks in request if blocks), default=1)


def own_cap(known: GroupAnalysis, threads: int, wanted: Value) -> int | None:
    """Registers that let so many blocks of a kernel by itself be resident as a config asks for."""
    if wanted == "none":
        return None
    return registers.fitting(known.target.limits, threads, int(str(wanted).removeprefix(space.FIT)))


def launchable(
    known: GroupAnalysis, group: KernelGroup, schedule: FusionSchedule, program: Program
) -> Program | Rejection:
    """The program, unless no launch of it can succeed: too much shared memory, or more registers than there are."""
    limits = known.target.limits
    source = program.sources[0]
    launch = program.steps[-1]
    assert isinstance(launch, Launch)
    shared, facts = int(launch.shared_bytes), None
    if shared <= limits.shared_bytes_per_block:  # else so much is known without a compiler
        facts = _of_entry(known.target, source, source.entries[0])
        static = partition.static_bytes(side.slot for side in schedule.sides)
        shared += static if facts is None else facts.shared_bytes
    if shared > limits.shared_bytes_per_block:
        detail = f"{shared} bytes of shared memory in one block; there are {limits.shared_bytes_per_block}"
        return Rejection(rule="shared_memory", nodes=group.names, detail=detail)
    if facts is None:
        return program
    wanted = sum(side.registers * side.threads for side in schedule.sides)
    if wanted > facts.registers * schedule.threads:
        detail = f"ptxas launches it with {facts.registers} registers a thread, and its sides trade for more"
        return Rejection(rule="registers", nodes=group.names, detail=detail)
    problem = launch_problem(limits, facts.registers, shared, schedule.threads)
    if problem is not None:
        return Rejection(rule="launch", nodes=group.names, detail=problem)
    return carved(known, program)


def carved(known: GroupAnalysis, program: Program) -> Program:
    """The program with as much shared memory asked for as its blocks need to be resident, where any of its kernels has
    some and a compiler knows all of them. All launches ask for the same: a multiprocessor that is to be divided
    otherwise has to run empty first, and kernels on two streams could not share one."""
    limits = known.target.limits
    if limits.registers_per_sm <= 0:
        return program
    most, any_shared = 0, False
    for step in program.launches:
        facts = _of_entry(known.target, program.source(step.source), step.entry)
        if facts is None:
            return program
        threads, shared = volume(step.block), facts.shared_bytes + int(step.shared_bytes)
        any_shared |= shared > 0
        most = max(most, carveout_pct(limits, facts.registers, shared, threads, barriers=facts.barriers))
    if not any_shared:
        return program
    steps = (
        dataclasses.replace(each, carveout_pct=most) if isinstance(each, Launch) else each for each in program.steps
    )
    return dataclasses.replace(program, steps=tuple(steps))
