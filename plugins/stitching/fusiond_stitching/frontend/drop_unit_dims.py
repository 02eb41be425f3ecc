"""Dimensions of size 1 dropped: `f32[64,8,1]` and `f32[64,8]` are the same tensor, and should be one to the planner.

jax writes `keepdims` as reshapes back and forth. Without those dimensions a mean and what is computed from it have
equal dims, and sit in one loop nest. Element-wise instructions, broadcasts, reshapes, transposes and reduces lose them;
everything else keeps its dims and reads its operands through a reshape, which costs nothing.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from fusiond.model.nouns import frozen
from fusiond_stitching.frontend.graph import ELEMENTWISE, HloInstruction, topological

_DROPPED_FROM = ELEMENTWISE | {"broadcast", "reshape", "transpose", "reduce", "constant"}


def dropped(given: Mapping[str, HloInstruction], foreign: Mapping[str, str]) -> dict[str, HloInstruction]:
    """The same instructions under the same names (an output's dims may be fewer; its elements are the same), and
    reshapes where dims with ones are wanted back. Sizes of 0 are left alone."""
    found: dict[str, HloInstruction] = {}
    back: dict[tuple[str, tuple[int, ...]], str] = {}

    def reshaped(name: str, dims: tuple[int, ...]) -> str:
        """The name of a value with these dims."""
        if found[name].dims == dims:
            return name
        key = (name, dims)
        if key not in back:
            own = f"{name}~{'x'.join(map(str, dims)) or 'scalar'}"
            found[own] = found[name].becoming("reshape", name, name=own, dims=dims)
            back[key] = own
        return back[key]

    for each in topological(given.values()):
        before = [given[name].dims for name in each.operands]
        if each.opcode == "reshape" and _dims(each.dims) == _dims(before[0]):
            # It only adds or drops ones, as those do that are added here: a graph without them stays as it is.
            found[each.name] = each
            continue
        new = None if each.name in foreign else _without_ones(each, before)
        if new is None and each.opcode == "reduce" and (single := _of_one(each, before)) is not None:
            spread, applied = single
            found[spread.name] = spread
            found[each.name] = dataclasses.replace(
                applied, operands=(spread.name, reshaped(each.operands[0], _dims(before[0])))
            )
        elif new is None:
            operands = tuple(reshaped(name, dims) for name, dims in zip(each.operands, before, strict=True))
            found[each.name] = dataclasses.replace(each, operands=operands)
        else:
            operands = tuple(reshaped(name, _dims(dims)) for name, dims in zip(each.operands, before, strict=True))
            found[each.name] = dataclasses.replace(new, operands=operands)
    return found


def bare(given: Mapping[str, HloInstruction], name: str) -> str:
    """The value behind reshapes that only add or drop ones: its elements are the same."""
    while given[name].opcode == "reshape":
        (operand,) = given[name].operands
        if _dims(given[operand].dims) != _dims(given[name].dims):
            break
        name = operand
    return name


def _dims(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dim for dim in dims if dim != 1)


def _of_one(reduce: HloInstruction, operands: list[tuple[int, ...]]) -> tuple[HloInstruction, HloInstruction] | None:
    """A reduce over dimensions of size 1 only, as (its init value, spread; the operation on it and the operand); None
    where it reduces more, or by more than one operation."""
    computation = reduce.attributes.get("computation")
    operation = None if computation is None else computation.simple
    if operation is None or len(reduce.operands) != 2 or 0 in operands[0]:
        return None
    if any(operands[0][at] != 1 for at in reduce.attributes["dimensions"]):
        return None
    dims = _dims(reduce.dims)
    value, init = reduce.operands
    spread = reduce.becoming("broadcast", init, name=f"{reduce.name}~init", dims=dims, dimensions=())
    return spread, reduce.becoming(operation, value, init, dims=dims)


def _without_ones(instruction: HloInstruction, operands: list[tuple[int, ...]]) -> HloInstruction | None:
    """The instruction over dims without ones; None when it keeps its own."""
    if instruction.opcode not in _DROPPED_FROM:
        return None
    attributes: dict[str, Any] = dict(instruction.attributes)
    if "dimensions" in attributes:
        attributes["dimensions"] = _kept_dimensions(instruction, operands[0])
        if instruction.opcode == "reduce" and not attributes["dimensions"]:
            return None  # reduces nothing but applies the init
    return dataclasses.replace(instruction, dims=_dims(instruction.dims), attributes=frozen(attributes))


def _kept_dimensions(instruction: HloInstruction, source: tuple[int, ...]) -> tuple[int, ...]:
    """The `dimensions` of a broadcast, transpose or reduce of what has these dims, numbered as they are without ones.
    (A broadcast's are the result's, one for each of the operand's; the others' are the operand's.)"""
    numbers = instruction.attributes["dimensions"]
    if instruction.opcode == "broadcast":
        place = _new_numbers(instruction.dims)
        return tuple(place[at] for at, dim in zip(numbers, source, strict=True) if dim != 1)
    place = _new_numbers(source)
    return tuple(place[at] for at in numbers if at in place)


def _new_numbers(dims: tuple[int, ...]) -> dict[int, int]:
    """Dimension -> its number without those of size 1."""
    return {at: new for new, at in enumerate(at for at, dim in enumerate(dims) if dim != 1)}
