"""Bytes that a plan moves through global memory, and the least that any plan must."""

from __future__ import annotations

from collections.abc import Container, Iterable

from fusiond_stitching.analysis.plan import LibraryCall, Plan, base_of
from fusiond_stitching.frontend.graph import SOURCES, Module


def moved(module: Module, plan: Plan) -> int:
    """Bytes that the counted kernels read and write in global memory, each buffer once per kernel that touches it."""
    total = 0
    buffered = set(module.parameters)
    for step in plan.steps:
        if isinstance(step, LibraryCall):
            buffered.add(step.instruction)
            continue
        own = {each.instruction for program in step.programs for each in program.results}
        stored = {each.instruction for program in step.programs for each in program.results if each.stored}
        read = inputs(module, own, buffered)
        for program in step.programs:
            if program.updates:  # it touches what its updates fall on, and no more
                base = module.in_place[program.root]
                touched = module[module[program.root].operands[2]].elements
                total += 2 * min(touched, module[base].elements) * module[base].size_bytes // module[base].elements
                read = read - {base}
                buffered.add(program.root)
                stored = stored - {program.root}
        total += sum(module[name].size_bytes for name in stored | read)
        buffered |= stored
    return total


def inputs(module: Module, members: Iterable[str], buffered: Container[str]) -> set[str]:
    """What instructions read from buffers, through what is inlined: parameters, and names in `buffered`."""
    own = set(members)
    found: set[str] = set()
    seen: set[str] = set()
    stack = list(own)
    while stack:
        for operand in module[stack.pop()].operands:
            if operand in seen or operand in own:
                continue
            seen.add(operand)
            if operand in buffered or module[operand].opcode == "parameter":
                found.add(operand)
            else:
                stack.append(operand)
    return found


def ideal_bytes(module: Module) -> int:
    """Every input that other work reads once, every result that an output or a library call needs once: what no plan
    that leaves dots to the library can go below."""
    calls = {each.name for each in module.instructions if module.library(each) and each.name not in module.launches}
    read = {
        base_of(module, operand).name
        for each in module.instructions
        if each.name not in calls and (each.opcode != "reshape" or each.name in module.is_output)
        for operand in each.operands
    }
    read = {name for name in read if name in calls or module[name].opcode == "parameter"}
    looked_up = {name: bytes_ for name in read if (bytes_ := _looked_up(module, name)) is not None}
    read -= looked_up.keys()
    written = {name for name in module.outputs if name not in calls and module[name].opcode != "parameter"}
    for name in calls:
        for operand in module[name].operands:
            source = base_of(module, operand)
            if source.name not in calls and source.opcode not in SOURCES:
                written.add(source.name)
    return sum(looked_up.values()) + sum(module[name].size_bytes for name in (*sorted(read), *sorted(written)))


def _looked_up(module: Module, name: str) -> int | None:
    """Bytes of what is cut out of a value, where nothing else is done with it; None where it is read whole."""
    users = [module[each] for each in module.users[name]]
    cut = ("slice", "dynamic-slice", "gather")
    if not users or name in module.is_output:
        return None
    if any(each.opcode not in cut or each.operands[0] != name or name in each.operands[1:] for each in users):
        return None
    return min(module[name].size_bytes, sum(each.size_bytes for each in users))
