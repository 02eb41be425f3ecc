"""A variant's program over the arguments of the reference, which decides their contents, comparison and roles.

y: output, rtol 10, filled with zeros     -->     y: output, as the reference compares it, poisoned
"""

import dataclasses
from collections.abc import Mapping

from fusiond.model.language import expressions, extents
from fusiond.model.language.extents import Extent
from fusiond.model.program import Buffer, Program, Role, sized
from fusiond.model.program.formulas import replaced


def mismatch(reference: Program, program: Program) -> str:
    """Why a program does not have the reference's arguments; empty where it has them. It need not read every input."""
    wanted = {each.name: each for each in reference.buffers if each.role is not Role.SCRATCH}
    for each in program.buffers:
        if each.role is Role.SCRATCH:
            continue
        if each.name not in wanted:
            known = ", ".join(wanted)
            return f"it has a buffer {each.name!r}, which the reference has not (it has {known})"
        own, other = (f"{int(one.elements)} x {one.dtype}" for one in (each, wanted[each.name]))
        if own != other:
            return f"{each.name} is {own}, in the reference {other}"
    there = {each.name for each in program.buffers}
    lost = next((name for name, each in wanted.items() if each.role.compared and name not in there), None)
    return f"it has no buffer {lost!r}, which the reference writes" if lost is not None else ""


def adopted(reference: Program, program: Program) -> Program:
    """The program with the reference's buffers, over its sizes. Sizes that only the variant has are plain numbers."""
    given = {each.name: each for each in reference.buffers if each.role is not Role.SCRATCH}
    sizes = dict(reference.sizes)
    own: Mapping[str, int] = {
        name: extents.size(name, value) if name in sizes else value for name, value in program.sizes
    }

    def changed(number: Extent) -> int:
        return expressions.parse_formula(number.text).integer(own)

    buffers, steps = replaced((program.buffers, program.steps), changed)
    buffers = tuple(_held(each, given.get(each.name)) for each in buffers)
    plain = dataclasses.replace(program, buffers=buffers, steps=steps, sizes=(), fixed=())
    return sized(plain, sizes, {*reference.fixed, *(name for name in program.fixed if name in sizes)})


def _held(own: Buffer, given: Buffer | None) -> Buffer:
    """A buffer of the variant's: where it lies is its own affair."""
    if given is None or own.role is Role.SCRATCH:
        return own
    return dataclasses.replace(
        own, elements=given.elements, role=given.role, fill=given.fill, reset=given.reset, compare=given.compare
    )
