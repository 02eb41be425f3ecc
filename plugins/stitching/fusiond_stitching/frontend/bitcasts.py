"""A `bitcast` between layouts becomes transposes and a reshape: in the graph everything is in row-major order."""

from __future__ import annotations

from fusiond_stitching.frontend.building import Add
from fusiond_stitching.frontend.graph import HloInstruction
from fusiond_stitching.frontend.hlo import ArrayShape, Raw, RawModule


def layout_of_operand(module: RawModule, raw: Raw) -> tuple[int, ...]:
    """The layout that the text gives a bitcast's operand, which the graph does not keep; empty where it gives none."""
    for computation in module.computations.values():
        if any(each is raw for each in computation.instructions):
            for each in computation.instructions:
                if each.name == raw.operands[0] and isinstance(each.shape, ArrayShape):
                    return each.shape.layout
    return ()


def converted(name: str, before: HloInstruction, layout: tuple[int, ...], after: ArrayShape, add: Add) -> str:
    """The bytes in their order of storage read as another shape (layouts of both ends matter)."""
    physical = tuple(reversed(layout)) if layout else tuple(range(len(before.dims)))
    value = before.name
    if physical != tuple(range(len(before.dims))):
        stored = ArrayShape(before.dtype, tuple(before.dims[each] for each in physical))
        value = add(f"{name}.stored", "transpose", stored, [value], {"dimensions": physical})
    if after.plain:
        return add(name, "reshape", after, [value], {})
    order = tuple(reversed(after.layout))
    read = ArrayShape(after.dtype, tuple(after.dims[each] for each in order))
    value = add(f"{name}.read", "reshape", read, [value], {})
    back = tuple(order.index(each) for each in range(len(order)))
    return add(name, "transpose", after, [value], {"dimensions": back})
