"""The invariants of a fused kernel: its schedule and Program before the build, its PTX afterwards."""

from collections.abc import Iterator, Mapping

from fusiond.model.gpu.limits import BARRIER_IDS
from fusiond.model.program import Argument, FillStep, Launch, Pointer, Program, Scalar
from fusiond.model.ptx import parser, printer
from fusiond.model.ptx.tree import Instruction, PtxError, instructions
from fusiond_hfuse.analysis.fusion_schedule import FusionSchedule, shapes_of
from fusiond_hfuse.analysis.registers import LEAST_KEPT, MOST_TAKEN, STEP, WARPGROUP
from fusiond_hfuse.codegen import hidden_arguments, sides
from fusiond_hfuse.frontend.fusion_group import LaunchShape
from fusiond_hfuse.frontend.ptx_kernel import barrier_id, is_block_barrier
from fusiond_hfuse.frontend.source_kernel import WARP


def problems(schedule: FusionSchedule, program: Program) -> tuple[str, ...]:
    """Every broken invariant, one line each.

    A side's threads are whole warps, so that no warp serves two kernels and barrier counts are legal; 0 stays with the
    hardware's whole-block barrier; counters are zeroed on the launch's own stream, in the measured span."""
    launch = program.steps[-1]
    assert isinstance(launch, Launch)
    shapes = shapes_of(schedule)
    counts = [-(-shapes[side.slot.letter].blocks // side.virtual) for side in schedule.sides]
    blocks = schedule.blocks or (sum(counts) if schedule.level == "block" else max(counts))
    found = [*_side_problems(schedule), *_partition_problems(schedule)]
    if launch.cooperative != any(side.slot.kernel.parsed.cooperative for side in schedule.sides):
        found.append("a side waits for its grid, and the launch is not cooperative, or none does")
    if launch.block != (schedule.threads, 1, 1):
        found.append(f"a block of {launch.block} for {schedule.threads} threads")
    if launch.grid != (blocks, 1, 1):
        found.append(f"a grid of {launch.grid} for {blocks} blocks")
    offsets = hidden_arguments.offset_letters(schedule)
    told = block_arguments(schedule, counts, shapes)
    behind = len(offsets) + len(told) + (schedule.map == "stride") + bool(hidden_arguments.counters(schedule))
    wanted = sum(len(side.slot.kernel.arguments) + len(sides.grid_axes(side.slot)) for side in schedule.sides) + behind
    if len(launch.arguments) != wanted:
        return (*found, f"{len(launch.arguments)} arguments for {wanted} parameters")
    hidden = list(launch.arguments[wanted - behind :])
    found += _arena_problems(schedule, launch.shared_bytes, shapes, dict(zip(offsets, hidden, strict=False)))
    found += _told_problems(schedule, hidden[len(offsets) :], told, blocks)
    found += _ticket_problems(schedule, program, launch)
    return tuple(found)


def _side_problems(schedule: FusionSchedule) -> Iterator[str]:
    """What one side by itself breaks: whole warps, the barrier's id, static arrays under virtual blocks."""
    for side in schedule.sides:
        alone = schedule.level == "block" and side.virtual == 1
        if side.threads % WARP and not alone:
            yield f"side {side.slot.letter} has {side.threads} threads, which are not whole warps"
        if side.slot.kernel.parsed.warpgroups and side.first % WARPGROUP:
            yield f"side {side.slot.letter} works by warpgroups, and begins at thread {side.first}"
        ids = side.virtual * side.slot.kernel.parsed.barrier_ids
        if not 0 < side.barrier <= BARRIER_IDS - ids and not (alone and side.barrier == 0):
            yield f"side {side.slot.letter} has the barrier {side.barrier}"
        if side.virtual > 1 and (schedule.level != "block" or side.slot.kernel.parsed.static_shared_bytes != 0):
            yield f"side {side.slot.letter} has {side.virtual} blocks in one, and they would share an array"


def _told_problems(schedule: FusionSchedule, passed: list[Argument], told: list[int], blocks: int) -> Iterator[str]:
    """`passed`: the arguments behind the arena's offsets."""
    if [each.value for each in passed[: len(told)] if isinstance(each, Scalar)] != told:
        yield f"the kernel is told {passed[: len(told)]} for {told}"
    if schedule.map == "stride" and passed[0] != Scalar(dtype="uint32", value=blocks):
        yield f"the kernel is told {passed[0]} for {blocks} blocks"


def register_problems(schedule: FusionSchedule, launched: int) -> tuple[str, ...]:
    """What is wrong with a trade of registers in blocks that are launched with so many a thread: whoever takes would
    wait for ever for registers that no side gives."""
    sides = [side for side in schedule.sides if side.registers]
    if not sides:
        return ()
    found = []
    if len(sides) < len(schedule.sides):
        found.append("some sides trade registers and others do not")
    if sum(side.registers * side.threads for side in sides) > launched * schedule.threads:
        found.append(f"sides trade for more registers than the {launched} a thread that the block has")
    for side in sides:
        if side.first % WARPGROUP or side.threads % WARPGROUP:
            found.append(f"side {side.slot.letter} does not consist of whole warpgroups")
        if side.registers % STEP or not LEAST_KEPT <= side.registers <= MOST_TAKEN:
            found.append(f"side {side.slot.letter} has {side.registers} registers, which no instruction gives")
    return tuple(found)


def _partition_problems(schedule: FusionSchedule) -> Iterator[str]:
    if schedule.level == "warp" and len({side.barrier for side in schedule.sides}) < len(schedule.sides):
        yield f"sides of one block share a barrier: {[side.barrier for side in schedule.sides]}"
    beside = schedule.kind == "horizontal" and schedule.level == "warp"
    end = 0
    for side in schedule.sides:
        if side.first != end:
            yield f"side {side.slot.letter}'s threads begin at {side.first}, not at {end}"
        end += side.threads if beside else 0
    if schedule.kind == "vertical" and len({side.threads for side in schedule.sides}) > 1:
        yield "a vertical schedule has several block sizes"


def _arena_problems(
    schedule: FusionSchedule, shared_bytes: int, shapes: Mapping[str, LaunchShape], offsets: Mapping[str, Argument]
) -> Iterator[str]:
    end = 0
    unit = hidden_arguments.alignment(schedule)
    for side in schedule.by_letter:
        letter = side.slot.letter
        if not side.slot.kernel.parsed.uses_dynamic_shared:
            continue
        offset = offsets.get(letter, Scalar(dtype="uint32", value=0))
        if not isinstance(offset, Scalar) or not isinstance(offset.value, int):
            yield f"slot {letter}'s offset is {offset}, which is not a place in the arena"
            continue
        if letter in offsets and offset.value < end:
            yield f"slot {letter}'s shared memory begins at {offset.value}, inside another's that ends at {end}"
        if offset.value % unit:
            yield f"slot {letter}'s shared memory begins at {offset.value}, which is not aligned"
        own = shapes[letter].shared_bytes
        own = own if side.virtual == 1 else -(-own // unit) * unit * side.virtual
        end = offset.value + own
        if shared_bytes < end:
            yield f"{shared_bytes} bytes of shared memory, and slot {letter}'s end at {end}"


def block_arguments(schedule: FusionSchedule, counts: list[int], shapes: Mapping[str, LaunchShape]) -> list[int]:
    """What the kernel has to be told at block level: each side's share of what is left, and the slices of the arena."""
    found = []
    if schedule.assign in ("interleaved", *hidden_arguments.TICKETED):
        found += [-(-(part << 32) // sum(counts[at:])) for at, part in enumerate(counts[:-1])]
    for side in schedule.by_letter:
        if side.virtual > 1 and side.slot.kernel.parsed.uses_dynamic_shared:
            unit = hidden_arguments.alignment(schedule)
            found.append(-(-int(shapes[side.slot.letter].shared_bytes) // unit) * unit)
    return found


def _ticket_problems(schedule: FusionSchedule, program: Program, launch: Launch) -> list[str]:
    steps = [each for each in program.steps if each.counted]
    if not hidden_arguments.counters(schedule):
        return [] if len(steps) == 1 else [f"{len(steps)} steps for one launch"]
    tickets = launch.arguments[-1]
    if not isinstance(tickets, Pointer):
        return ["the last argument is not a counter"]
    first = steps[0]
    if not isinstance(first, FillStep) or (first.buffer, first.byte) != (tickets.buffer, 0):
        return ["the counter is not zeroed before the launch"]
    if first.stream != launch.stream:
        return ["zeroing the counter is on another stream"]
    return []


_LEAKS = {
    "%ntid": "the fused block's size", "%nctaid": "the fused grid's size", "%nwarpid": "the fused block's size",
    "%warpid": "a warp of the fused block", "%envreg": "what a cooperative launch is told",
    "%dynamic_smem_size": "the fused block's shared memory", "%total_smem_size": "the fused block's shared memory",
    "%gridid": "the fused launch",
}  # fmt: skip
"""Special registers that speak of the whole fused block or launch."""


def lint(
    ptx: str, *, barriers: tuple[int, ...] = (1, 2), trades: bool = False, compiled: bool = False
) -> tuple[str, ...]:
    """What leaks past the sides in the PTX of a fused kernel, one line each; empty when nothing does.

    `barriers` are the ids that the sides may use: each but 0 with a count, neither in a register. `compiled`: the sides
    were PTX already, so that they may have their own forms of barriers, and read no register of the block at all. Of
    C++, a leak of `%tid.x` alone cannot be told from the kernel's own reading of it (nvcc repeats that at will): the
    poisoned names in each namespace, and the front end's second look at the edited text, are what keeps it out."""
    try:
        module = parser.parse(ptx)
    except PtxError as error:
        return (str(error),)
    if not module.entries:
        return ("it has no entry",)
    found = []
    for function in module.functions:
        if function.body is None:
            continue
        top = {id(each) for each in function.body.statements} if function.kind == "entry" else set()
        for each in instructions(function.body):
            inside = compiled and id(each) not in top
            for problem in _problems(each, barriers, trades, compiled, inside):
                found.append(f"line {each.line}: {problem}: {printer.instruction_text(each)}")
    return tuple(found)


def _problems(
    each: Instruction, barriers: tuple[int, ...], trades: bool, compiled: bool, inside: bool
) -> Iterator[str]:
    for word in each.words:
        if word[:1] != "%":
            continue
        stem, _, axis = word.partition(".")
        if axis in ("y", "z") and stem in ("%tid", "%ctaid"):
            yield f"the {axis} of a fused thread or block, which is one-dimensional"
        elif inside and axis and stem in ("%tid", "%ctaid"):
            yield "the fused block's own thread or block"
        elif inside and (stem in ("%envreg1", "%envreg2") or stem.startswith("%cluster_")):
            continue  # the same for each side
        elif stem in _LEAKS or stem.rstrip("0123456789") in _LEAKS or "cluster" in stem:
            yield _LEAKS.get(stem, "what belongs to the whole fused block or launch")
    if each.base == "griddepcontrol" or (each.base == "setmaxnreg" and not trades and not compiled):
        yield "what acts on the whole fused block or launch"
    if is_block_barrier(each):
        problem = _barrier_problem(each, barriers, compiled)
        if problem is not None:
            yield problem


def _barrier_problem(each: Instruction, barriers: tuple[int, ...], compiled: bool) -> str | None:
    """What is wrong with one barrier of a fused kernel."""
    named = barrier_id(each)
    if not named.isdigit():
        return "a barrier whose id is in a register"
    at = each.words.index(named)
    counted = each.words[at + 1 : at + 2] == (",",) and each.words[at + 2].isdigit()
    number = int(named)
    if number not in barriers:
        return "the block's own barrier 0" if number == 0 else f"barrier {number} belongs to no side"
    if compiled or (counted and each.opcode in ("bar.sync", "barrier.sync")):
        return None
    return None if number == 0 and not counted else "a barrier that fusiond does not write"
