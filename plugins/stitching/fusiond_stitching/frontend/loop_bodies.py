"""The body of a loop with more in it, or with other names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from fusiond.model import frozen
from fusiond_stitching.frontend.graph import HloInstruction, HloModule, topological

BEFORE = "~all"
"""What the names of values end with that are computed for all trips before the loop."""


def reshaped(body: HloModule) -> HloModule:
    """Results have the dims that the state has: a reshape costs no buffer, and may have been left out."""
    added, outputs = [], []
    for before, last in zip(body.parameters, body.outputs, strict=False):
        if body[before].dims == body[last].dims:
            outputs.append(last)
        else:
            outputs.append(f"{last}~{before}")
            made = dataclasses.replace(body[before], name=outputs[-1], opcode="reshape", operands=(last,))
            added.append(dataclasses.replace(made, attributes=frozen({})))
    return dataclasses.replace(body, instructions=(*body.instructions, *added), outputs=tuple(outputs))


def with_read(body: HloModule, of: HloInstruction, whole: HloInstruction, trip: str) -> HloModule:
    """The body with a value read from `whole`, all trips' values: one more part of the state that no trip changes."""
    body = with_state(body, f"{of.name}{BEFORE}", dataclasses.replace(of, dims=whole.dims))
    zero = dataclasses.replace(body[trip], name=f"{of.name}~0", opcode="constant", operands=(),
                               attributes=frozen({"values": (0,)}))  # fmt: skip
    sizes = (1, *of.dims)
    slice_ = dataclasses.replace(of, name=f"{of.name}~one", opcode="dynamic-slice", dims=sizes,
                                 operands=(body.parameters[-1], trip, *[zero.name] * len(of.dims)),
                                 attributes=frozen({"sizes": sizes}))  # fmt: skip
    read = dataclasses.replace(of, opcode="reshape", operands=(slice_.name,), attributes=frozen({}))
    return with_instruction(body, zero, slice_, read)


def with_state(body: HloModule, name: str, like: HloInstruction) -> HloModule:
    """The body with one more part of the state, which no trip changes."""
    given = dataclasses.replace(like, name=name, opcode="parameter", operands=(),
                                attributes=frozen({"number": len(body.parameters)}))  # fmt: skip
    return dataclasses.replace(
        body,
        instructions=(given, *body.instructions),
        parameters=(*body.parameters, name),
        outputs=(*body.outputs, name),
    )


def with_instruction(body: HloModule, *made: HloInstruction) -> HloModule:
    """The body with these instructions, in place of those of the same names."""
    new = {each.name for each in made}
    others = [each for each in body.instructions if each.name not in new]
    return dataclasses.replace(body, instructions=topological([*made, *others]))


def renamed(body: HloModule, own: Callable[[str], str]) -> HloModule:
    instructions = tuple(
        dataclasses.replace(each, name=own(each.name), operands=tuple(own(name) for name in each.operands))
        for each in body.instructions
    )
    return HloModule(
        name=body.name,
        instructions=topological(instructions),
        parameters=tuple(own(each) for each in body.parameters),
        outputs=tuple(own(each) for each in body.outputs),
    )
