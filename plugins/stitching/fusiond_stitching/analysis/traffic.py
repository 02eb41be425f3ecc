"""Bytes that a plan moves through global memory, and the least that any plan must."""

from collections.abc import Collection, Container, Iterable, Iterator

from fusiond_stitching.analysis import fusion
from fusiond_stitching.analysis.plan import BlockProgram, LibraryCall, Rows, StitchedKernel, StitchingPlan
from fusiond_stitching.frontend.graph import BYTES, MOVEMENT, SOURCES, HloInstruction, HloModule, reached

CACHE_BYTES = 40 << 20
MULTIPROCESSORS = 132
"""Of the GPUs that have such rows to stream: at least so large a second-level cache, about so many blocks at once."""
LAUNCH_BYTES = 4 << 20  #: What such a GPU moves in the microsecond or two in which one launch ends and the next begins
_CUTS = frozenset({"slice", "dynamic-slice", "gather"})


def moved(module: HloModule, plan: StitchingPlan) -> int:
    """Bytes that the counted kernels read and write in global memory, each buffer once per kernel that touches it: of
    what is only cut out of it, that; of rows that are too long to be held, what each of their sweeps reads anew."""
    return sum(_touched(module, step.programs, buffered) for step, buffered in _launches(module, plan))


def by_program(module: HloModule, plan: StitchingPlan) -> dict[str, int]:
    """Root of each block program -> the bytes that it would move in a launch of its own."""
    return {
        program.root: _touched(module, (program,), buffered)
        for step, buffered in _launches(module, plan)
        for program in step.programs
    }


def cost(module: HloModule, plan: StitchingPlan) -> float:
    """What puts plans in an order before any is measured: the bytes that their launches move, more where there are too
    few blocks to move them as fast as the device can, and those that could be moved while launches begin and end. No
    time, and no promise."""
    return sum(
        LAUNCH_BYTES * len(step.phases)
        + _touched(module, step.programs, buffered) * max(1.0, MULTIPROCESSORS / step.grid)
        for step, buffered in _launches(module, plan)
    )


def _launches(module: HloModule, plan: StitchingPlan) -> Iterator[tuple[StitchedKernel, set[str]]]:
    """The counted kernels, and what lies in buffers when they begin."""
    buffered = set(module.parameters)
    for step in plan.steps:
        if isinstance(step, LibraryCall):
            buffered.add(step.instruction)
            continue
        yield step, set(buffered)
        buffered |= {each.instruction for program in step.programs for each in program.results if each.stored}


def _touched(module: HloModule, programs: Iterable[BlockProgram], buffered: set[str]) -> int:
    """Bytes that block programs of one launch move."""
    total = 0
    programs = tuple(programs)
    own = {each.instruction for program in programs for each in program.results}
    stored = {each.instruction for program in programs for each in program.results if each.stored}
    read = read_bytes(module, own, buffered)
    for program in programs:
        if program.updates:  # it touches what its updates fall on, and no more
            base = module.in_place[program.root]
            touched = module[module[program.root].operands[2]].elements
            total += 2 * min(touched, module[base].elements) * module[base].size_bytes // module[base].elements
            read.pop(base, None)
            stored = stored - {program.root}
        if program.rows is not None and program.rows.streamed:
            total += _read_anew(module, program, program.rows, buffered)
    return total + sum(read.values()) + sum(module[name].size_bytes for name in stored)


def _cut(module: HloModule, name: str, users: Iterable[HloInstruction]) -> int:
    """Bytes that are read of a value: all of it, unless these users only cut something out of it."""
    whole = module[name].size_bytes
    if any(each.opcode not in _CUTS or each.operands[0] != name or name in each.operands[1:] for each in users):
        return whole
    return min(whole, sum(each.size_bytes for each in users))


def _read_anew(module: HloModule, program: BlockProgram, rows: Rows, buffered: Container[str]) -> int:
    """Of rows that are streamed: what the sweeps behind the first one read, but for the packs in shared memory, and for
    what has stayed in the second-level cache (every other sweep goes backwards)."""
    sweeps: dict[int, set[str]] = {}
    for stage in program.stages:
        own = [each.instruction for each in stage.results]
        sweeps.setdefault(stage.sweep, set()).update(fusion.read(module, own, buffered))
    seen: set[str] = set()
    again = 0
    for _, names in sorted(sweeps.items()):
        wide = {name for name in names if module[name].elements == rows.count * rows.columns}
        again += sum(module[name].size_bytes for name in wide & seen)
        seen |= wide
    streamed = max(0, rows.steps - rows.shared_steps) / rows.steps
    in_use = streamed * sum(module[name].size_bytes for name in seen) * min(1.0, MULTIPROCESSORS / program.blocks)
    return int(again * streamed * (1 - min(1.0, CACHE_BYTES / max(1.0, in_use))))


def read_bytes(module: HloModule, members: Iterable[str], buffered: Container[str]) -> dict[str, int]:
    """What `fusion.read` names, with how many bytes of each: of what is only looked up, also through what is inlined,
    that."""
    own = set(members)
    evaluated = {name: module[name].elements for name in own}
    found: dict[str, int] = {}
    inlined = reached(
        own,
        lambda name: [
            each for each in module[name].operands if each not in buffered and module[each].opcode != "parameter"
        ],
    )
    for name in sorted(inlined, key=module.number.__getitem__, reverse=True):
        user, count = module[name], evaluated.get(name, 0)
        for place, operand in enumerate(user.operands):
            source = module[operand]
            if operand in own:
                continue
            asked = _asked(user, place, count, source)
            if operand in buffered or source.opcode == "parameter":
                found[operand] = min(source.size_bytes, found.get(operand, 0) + asked * BYTES[source.dtype])
            else:
                evaluated[operand] = min(source.elements, evaluated.get(operand, 0) + asked)
    return found


def _asked(user: HloInstruction, place: int, count: int, source: HloInstruction) -> int:
    """At how many elements an operand is read where so many of its reader are computed."""
    if user.opcode in _CUTS or user.elementwise or user.opcode in MOVEMENT:
        return min(source.elements, count)
    if count >= user.elements:
        return source.elements
    return min(source.elements, -(-source.elements * count // max(1, user.elements)))


def ideal_bytes(module: HloModule) -> int:
    """Every input that other work reads once, every result that an output or a library call needs once: what no plan
    that leaves dots to the library can go below."""
    calls = {each.name for each in module.instructions if module.library(each) and each.name not in module.launches}
    total = sum(module[name].size_bytes for name in _needed(module, calls))
    for name in _read_by_work(module, calls):
        looked_up = _looked_up(module, name)
        total += module[name].size_bytes if looked_up is None else looked_up
    return total


def _read_by_work(module: HloModule, calls: Container[str]) -> set[str]:
    """Inputs, and results of library calls, that other instructions read."""
    read = {
        module.base(operand).name
        for each in module.instructions
        if each.name not in calls and (each.opcode != "reshape" or each.name in module.is_output)
        for operand in each.operands
    }
    return {name for name in read if name in calls or module[name].opcode == "parameter"}


def _needed(module: HloModule, calls: Collection[str]) -> set[str]:
    """Results that are outputs or that library calls read."""
    needed = {name for name in module.outputs if name not in calls and module[name].opcode != "parameter"}
    for name in calls:
        sources = (module.base(operand) for operand in module[name].operands)
        needed |= {each.name for each in sources if each.name not in calls and each.opcode not in SOURCES}
    return needed


def _looked_up(module: HloModule, name: str) -> int | None:
    """Bytes of what is cut out of a value, where nothing else is done with it; None where it is read whole."""
    users = [module[each] for each in module.users[name]]
    if not users or name in module.is_output:
        return None
    found = _cut(module, name, users)
    return found if found < module[name].size_bytes else None
