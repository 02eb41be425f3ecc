"""What must hold of a fused kernel: of its schedule and Program before it is built, and of its PTX afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from fusiond.cuda.limits import BARRIER_IDS
from fusiond.program import Argument, FillStep, Launch, Pointer, Program, Scalar
from fusiond_hfuse.analysis.fusion_schedule import FusionSchedule
from fusiond_hfuse.analysis.registers import LEAST_KEPT, MOST_TAKEN, STEP, WARPGROUP
from fusiond_hfuse.codegen import hidden_arguments, host_variables, sides
from fusiond_hfuse.frontend.fusion_group import LaunchShape
from fusiond_hfuse.frontend.launch_shapes import shape_of
from fusiond_hfuse.frontend.source_kernel import WARP


def problems(schedule: FusionSchedule, program: Program) -> tuple[str, ...]:
    """Every broken invariant, one line each.

    - whole warps: a side's threads are a multiple of 32, so that no warp serves two kernels and barrier counts are
      legal;
    - partition: the sides' threads lie end to end and fill the block (vertical: all are the whole block; block level:
      the block is as large as the largest);
    - barriers: sides that share a block have an id each, from 1 to 15; 0 stays with the hardware's whole-block barrier;
    - coverage: the grid has as many blocks as the kernel that has most of them; at block level as many as all together;
      strided, as many as the kernel is told;
    - arena: the parts begin behind each other, aligned, and all fit;
    - registers: the text has each side give or take what the schedule says, in the sides' order, before its work;
    - tickets: the counter is zeroed, counted and on the same stream, before the launch that is handed it;
    - variables: all that the host sets are set before anything else, and not timed;
    - arguments: as many as the fused kernel has parameters.
    """
    launch = program.steps[-1]
    assert isinstance(launch, Launch)
    shapes = {side.slot.letter: shape_of(side.slot, side.shape) for side in schedule.sides}
    counts = [-(-shapes[side.slot.letter].blocks // side.virtual) for side in schedule.sides]
    blocks = _launched_blocks(schedule, counts)
    found = [*_side_problems(schedule), *_partition_problems(schedule)]
    if launch.block != (schedule.threads, 1, 1):
        found.append(f"a block of {launch.block} for {schedule.threads} threads")
    if launch.grid != (blocks, 1, 1):
        found.append(f"a grid of {launch.grid} for {blocks} blocks")
    offsets = hidden_arguments.offset_letters(schedule)
    told = block_arguments(schedule, counts, shapes)
    behind = len(offsets) + len(told) + (schedule.map == "stride") + (schedule.assign in hidden_arguments.TICKETED)
    wanted = sum(len(side.slot.kernel.arguments) + len(sides.grid_axes(side.slot)) for side in schedule.sides) + behind
    if len(launch.arguments) != wanted:
        return (*found, f"{len(launch.arguments)} arguments for {wanted} parameters")
    hidden = list(launch.arguments[wanted - behind :])
    found += _arena_problems(schedule, launch.shared_bytes, shapes, dict(zip(offsets, hidden, strict=False)))
    found += _told_problems(schedule, hidden[len(offsets) :], told, blocks)
    found += _ticket_problems(schedule, program, launch)
    found += _variable_problems(schedule, program)
    found += _trade_problems(schedule, program.source(launch.source).text)
    return tuple(found)


def _launched_blocks(schedule: FusionSchedule, counts: list[int]) -> int:
    if schedule.map == "stride":
        return schedule.blocks
    return sum(counts) if schedule.level == "block" else max(counts)


def _side_problems(schedule: FusionSchedule) -> Iterator[str]:
    """What one side by itself breaks: whole warps, the barrier's id, static arrays under virtual blocks."""
    for side in schedule.sides:
        alone = schedule.level == "block" and side.virtual == 1
        if side.threads % WARP and not alone:
            yield f"side {side.slot.letter} has {side.threads} threads, which are not whole warps"
        if not 0 < side.barrier <= BARRIER_IDS - side.virtual and not (alone and side.barrier == 0):
            yield f"side {side.slot.letter} has the barrier {side.barrier}"
        if side.virtual > 1 and (schedule.level != "block" or side.slot.kernel.parsed.static_shared_bytes != 0):
            yield f"side {side.slot.letter} has {side.virtual} blocks in one, and they would share an array"


def _told_problems(schedule: FusionSchedule, passed: list[Argument], told: list[int], blocks: int) -> Iterator[str]:
    """`passed`: the arguments behind the arena's offsets."""
    if [each.value for each in passed[: len(told)] if isinstance(each, Scalar)] != told:
        yield f"the kernel is told {passed[: len(told)]} for {told}"
    if schedule.map == "stride" and passed[0] != Scalar(dtype="uint32", value=blocks):
        yield f"the kernel is told {passed[0]} for {blocks} blocks"


def _trade_problems(schedule: FusionSchedule, text: str) -> list[str]:
    """A side that gives what it should take would run with the other one's registers."""
    fewest = min(side.registers for side in schedule.sides)
    wanted = [
        ("dec" if side.registers == fewest else "inc", str(side.registers), side.slot.letter)
        for side in schedule.sides
        if side.registers
    ]
    found = _TRADE.findall(text)
    return [] if found == wanted else [f"the sides trade registers as {found}, and should as {wanted}"]


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


def _partition_problems(schedule: FusionSchedule) -> list[str]:
    found = []
    if schedule.level == "warp" and len({side.barrier for side in schedule.sides}) < len(schedule.sides):
        found.append(f"sides of one block share a barrier: {[side.barrier for side in schedule.sides]}")
    beside = schedule.kind == "horizontal" and schedule.level == "warp"
    end = 0
    for side in schedule.sides:
        if side.first != end:
            found.append(f"side {side.slot.letter}'s threads begin at {side.first}, not at {end}")
        end += side.threads if beside else 0
    if schedule.kind == "vertical" and len({side.threads for side in schedule.sides}) > 1:
        found.append("a vertical schedule has several block sizes")
    return found


def _arena_problems(
    schedule: FusionSchedule, shared_bytes: int, shapes: Mapping[str, LaunchShape], offsets: Mapping[str, Argument]
) -> list[str]:
    found = []
    end = 0
    unit = hidden_arguments.alignment(schedule)
    for side in schedule.by_letter:
        letter = side.slot.letter
        if not side.slot.kernel.parsed.uses_dynamic_shared:
            continue
        offset = offsets.get(letter, Scalar(dtype="uint32", value=0))
        if not isinstance(offset, Scalar) or not isinstance(offset.value, int):
            found.append(f"slot {letter}'s offset is {offset}, which is not a place in the arena")
            continue
        if letter in offsets and offset.value < end:
            found.append(f"slot {letter}'s shared memory begins at {offset.value}, inside another's that ends at {end}")
        if offset.value % unit:
            found.append(f"slot {letter}'s shared memory begins at {offset.value}, which is not aligned")
        own = shapes[letter].shared_bytes
        own = own if side.virtual == 1 else -(-own // unit) * unit * side.virtual
        end = offset.value + own
        if shared_bytes < end:
            found.append(f"{shared_bytes} bytes of shared memory, and slot {letter}'s end at {end}")
    return found


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
    if schedule.assign not in hidden_arguments.TICKETED:
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


def _variable_problems(schedule: FusionSchedule, program: Program) -> list[str]:
    """A variable that is not set would hold the address of the run before, or none."""
    found = []
    first = next(at for at, each in enumerate(program.steps) if each.counted)
    messages = {pair for each in program.steps[:first] for pair in each.messages}
    if any(not each.counted for each in program.steps[first:]):
        found.append("a step behind the first that is counted is not")
    for side in schedule.sides:
        for each in host_variables.structs(side.slot.kernel):
            name = f"{side.slot.letter}.{each.name}"
            written = any(
                isinstance(step, Launch) and step.arguments[0] == Pointer(buffer=f"staged.{name}")
                for step in program.steps[:first]
            )
            if not written or (f"staged.{name}", f"variable.{name}") not in messages:
                found.append(f"the variable {name} is not set before the launch")
    return found


_TRADE = re.compile(
    r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32 (\d+);(?:(?!setmaxnreg|fusiond_side|\}).)*fusiond_(\w)::fusiond_side\(",
    re.DOTALL,
)
"""A trade and the side whose work follows it, in the same block of statements or one within it."""
_ENTRY = re.compile(r"^\s*(?:\.visible\s+)?\.entry\s+([\w$]+)", re.MULTILINE)
_BARRIER = re.compile(r"\bbar(?:rier)?\.(?!warp\b)[\w.:]+\s+[^;]*;")
_PARTIAL = re.compile(
    r"bar\.sync\s+(\d+)\s*,\s*(\d+)\s*;"
    r"|(?:bar\.red\.(?:popc\.u32|or\.pred)|barrier\.red\.and\.pred)\s+[%\w]+\s*,\s*(\d+)\s*,\s*(\d+)\s*,\s*!?[%\w]+\s*;"
)
_LEAKS = (
    (re.compile(r"%ntid\b"), "the fused block's size"),
    (re.compile(r"%tid\.[yz]\b"), "the y or z of a fused thread, which is one-dimensional"),
    (re.compile(r"%n?ctaid\.[yz]\b"), "the y or z of a fused grid, which is one-dimensional"),
    (re.compile(r"%nctaid\b"), "the fused grid's size"),
    (re.compile(r"%(?:n?warpid|envreg\d+|dynamic_smem_size|total_smem_size|gridid|cluster_\w+|\w*cluster\w*)\b"),
     "what belongs to the whole fused block or launch"),
    (re.compile(r"\bgriddepcontrol\b"), "what acts on the whole fused block or launch"),
)  # fmt: skip


def lint(ptx: str, *, barriers: tuple[int, ...] = (1, 2), trades: bool = False) -> tuple[str, ...]:
    """What leaks past the shadows in the PTX of a fused kernel, one line each; empty when nothing does.

    `barriers` are the ids that the sides may use: each but 0 with a count, neither in a register. nvcc writes tabs
    between an instruction and its operands. A leak of `%tid.x` alone cannot be told from the kernel's own reading of it
    (nvcc repeats that at will): the poisoned names in each namespace, and the front end's second look at the edited
    text, are what keeps it out.
    """
    found = []
    code = re.sub(r"//[^\n]*", "", ptx)
    if not _ENTRY.search(code):
        return ("it has no entry",)
    for number, line in enumerate(code.splitlines(), 1):
        said = " ".join(line.split())
        found += [f"line {number}: {what}: {said}" for pattern, what in _LEAKS if pattern.search(line)]
        if "setmaxnreg" in line and not trades:
            found.append(f"line {number}: what acts on the whole fused block or launch: {said}")
        for match in _BARRIER.finditer(line):
            problem = _barrier_problem(match.group(), barriers)
            if problem is not None:
                found.append(f"line {number}: {problem}: {said}")
    return tuple(found)


def _barrier_problem(instruction: str, barriers: tuple[int, ...]) -> str | None:
    """What is wrong with one barrier of a fused kernel."""
    partial = _PARTIAL.fullmatch(instruction)
    if partial is not None:
        number = int(partial.group(1) or partial.group(3))
        if number in barriers:
            return None
        return "the block's own barrier 0" if number == 0 else f"barrier {number} belongs to no side"
    operands = re.sub(r"^\S+\s+", "", instruction)
    if ".red" in instruction:
        operands = operands.partition(",")[2]
    first = operands.strip(" ;").partition(",")[0].strip()
    if first == "0":
        return None if 0 in barriers else "the block's own barrier 0"
    if not first.isdigit():
        return "a barrier whose id is in a register"
    return "a barrier that fusiond does not write"
