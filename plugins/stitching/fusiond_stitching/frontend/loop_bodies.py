"""The body of a loop with more in it, or with other names."""

import dataclasses
from collections.abc import Callable

from fusiond_stitching.frontend.graph import HloInstruction, HloModule, topological
from fusiond_stitching.frontend.scan_loop import Loop

BEFORE = "~all"  #: What the names of values end with that are computed for all trips before the loop


def reshaped(body: HloModule) -> HloModule:
    """Results have the dims that the state has: a reshape costs no buffer, and may have been left out."""
    added, outputs = [], []
    for before, last in zip(body.parameters, body.outputs, strict=False):
        if body[before].dims == body[last].dims:
            outputs.append(last)
        else:
            outputs.append(f"{last}~{before}")
            added.append(body[before].becoming("reshape", last, name=outputs[-1]))
    return dataclasses.replace(body, instructions=(*body.instructions, *added), outputs=tuple(outputs))


def with_read(body: HloModule, of: HloInstruction, whole: HloInstruction, trip: str) -> HloModule:
    """The body with a value read from `whole`, all trips' values: one more part of the state that no trip changes."""
    body = with_state(body, f"{of.name}{BEFORE}", dataclasses.replace(of, dims=whole.dims))
    zero = body[trip].becoming("constant", name=f"{of.name}~0", values=(0,))
    starts, sizes = (trip, *[zero.name] * len(of.dims)), (1, *of.dims)
    slice_ = of.becoming("dynamic-slice", body.parameters[-1], *starts, name=f"{of.name}~one", dims=sizes, sizes=sizes)
    return with_instruction(body, zero, slice_, of.becoming("reshape", slice_.name))


def with_state(body: HloModule, name: str, like: HloInstruction) -> HloModule:
    """The body with one more part of the state, which no trip changes."""
    given = like.becoming("parameter", name=name, number=len(body.parameters))
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


def inner_loops(body: HloModule) -> list[Loop]:
    """The loops that stand in a body, those in them behind them."""
    found: dict[str, Loop] = {}
    for each in body.instructions:
        if each.opcode == "scan" and each.attributes["loop"].name not in found:
            loop = each.attributes["loop"]
            found |= {one.name: one for one in (loop, *inner_loops(loop.body))}
    return list(found.values())


def expanded(body: HloModule) -> HloModule:
    """The body with one trip of each loop in it in the place of that: which elements meet, whatever they are."""
    return dataclasses.replace(body, instructions=topological(_expanded(body)))


def _expanded(body: HloModule) -> list[HloInstruction]:
    found: dict[str, HloInstruction] = {}
    for each in body.instructions:
        if each.opcode != "scan":
            found[each.name] = each
            continue
        loop, result = each.attributes["loop"], each.attributes["result"]
        found[each.name] = each.becoming("copy", loop.carries.get(result, result))
        begin = dict(zip(loop.inputs, each.operands, strict=True))
        for one in _expanded(loop.body):
            found[one.name] = one.becoming("copy", begin[one.name]) if one.name in begin else one
    return list(found.values())


def divided(body: HloModule, by: Callable[[Loop], Loop]) -> HloModule:
    """The body with other ones in the place of the loops in it, at all depths."""
    loops = {
        loop.name: by(dataclasses.replace(loop, body=divided(loop.body, by)))
        for loop in (each.attributes["loop"] for each in body.instructions if each.opcode == "scan")
    }
    found = (
        each.becoming("scan", *each.operands, **{**each.attributes, "loop": loops[each.attributes["loop"].name]})
        if each.opcode == "scan"
        else each
        for each in body.instructions
    )
    return dataclasses.replace(body, instructions=tuple(found))
