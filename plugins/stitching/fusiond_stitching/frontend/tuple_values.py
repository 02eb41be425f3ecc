"""The graph value of an instruction: one result, the two of a complex number, or a tuple."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from fusiond_stitching.frontend.complex_numbers import Complex
from fusiond_stitching.frontend.hlo import ArrayShape, Raw, RawShape

Value: TypeAlias = "str | Complex | tuple[Value, ...]"
"""The name of an instruction, the two of a complex number, or the members of a tuple."""


def members(value: Value) -> Iterable[str | Complex]:
    if isinstance(value, str | Complex):
        yield value
    else:
        for each in value:
            yield from members(each)


def leaves(value: Value) -> Iterable[str]:
    for each in members(value):
        yield from (each,) if isinstance(each, str) else (each.real, each.imag)


def names(values: Sequence[Value]) -> list[str]:
    return [each for value in values for each in leaves(value)]


def shaped(shape: RawShape, names: Any) -> Value:
    if isinstance(shape, ArrayShape):
        return next(names)  # type: ignore[no-any-return]
    return tuple(shaped(each, names) for each in shape.members)


def member(raw: Raw, members: Value) -> Value:
    """The element of a tuple that a get-tuple-element names."""
    index = raw.integer("index")
    if not isinstance(members, tuple):
        raise raw.fail("its operand is not a tuple")
    if not 0 <= index < len(members):
        raise raw.fail(f"index={index} is out of range: the tuple has {len(members)} elements")
    return members[index]
