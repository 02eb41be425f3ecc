"""What the values of a module are as numbers, sides and text, for a document of an image pipeline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fusiond_stitching.frontend.graph import HloInstruction, HloModule

_BINARY = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "and": "&&", "or": "||", "xor": "!="}
_COMPARE = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}
_CALLS = {"maximum": "max", "minimum": "min", "abs": "abs", "sqrt": "sqrt", "rsqrt": "rsqrt", "exponential": "exp",
          "log": "log", "sine": "sin", "cosine": "cos", "tan": "tan", "tanh": "tanh", "atan2": "atan2", "power": "pow",
          "floor": "floor", "ceil": "ceil", "round-nearest-even": "rint"}  # fmt: skip
_OTHERS = {"negate": "-{}", "not": "!{}", "copy": "{}", "select": "({} ? {} : {})", "clamp": "min(max({1}, {0}), {2})",
           "logistic": "1.0f / (1.0f + exp(-{}))"}  # fmt: skip


class NoPipeline(Exception):
    """This module is none."""


def sides(value: HloInstruction) -> tuple[int, ...]:
    return tuple(each for each in value.dims if each > 1)


def behind_planes(roles: Sequence[str]) -> tuple[str, ...]:
    """The roles behind the planes, which have to lie in their order, in front of all others."""
    at = sum(role[0] == "p" for role in roles)
    if [*roles[:at]] != [f"p{each}" for each in range(at)]:
        raise NoPipeline
    return tuple(roles[at:])


def spread(roles: Sequence[str], dims: Sequence[int]) -> list[str | None]:
    """The role of each dimension; None of one with one element."""
    left = iter(roles)
    return [next(left) if dim > 1 else None for dim in dims]


def constant(module: HloModule, name: str) -> tuple[float] | None:
    """The number that all elements of a value are, where it is known."""
    while module[name].opcode in ("broadcast", "reshape", "convert"):
        name = module[name].operands[0]
    each = module[name]
    values = {*each.attributes["values"]} if each.opcode == "constant" else set()
    return (float(values.pop()),) if len(values) == 1 else None


def numbers(module: HloModule, name: str) -> tuple[Any, tuple[int, ...]] | None:
    """(a constant's elements, as which of the dimensions of the value they are); None where they are not known."""
    each = module[name]
    if each.opcode == "constant":
        return np.array(each.attributes["values"], np.float64).reshape(each.dims), tuple(range(len(each.dims)))
    if each.opcode not in ("broadcast", "reshape", "transpose", "reverse", "slice", "convert"):
        return None
    found = numbers(module, each.operands[0])
    if found is None:
        return None
    source = module[each.operands[0]]
    shape = [dim if at in found[1] else 1 for at, dim in enumerate(source.dims)]
    values = np.broadcast_to(found[0].reshape(shape), source.dims) if math.prod(source.dims) <= 65536 else None
    if each.opcode == "broadcast" and values is not None:
        return values, each.attributes["dimensions"]
    if values is None:
        return None
    given = each.attributes
    if each.opcode == "reshape":
        values = values.reshape(each.dims)
    elif each.opcode == "transpose":
        values = values.transpose(given["dimensions"])
    elif each.opcode == "reverse":
        values = np.flip(values, given["dimensions"])
    elif each.opcode == "slice":
        values = values[tuple(map(slice, given["starts"], given["limits"], given["strides"]))]
    return values, tuple(range(len(each.dims)))


def literal(value: float, dtype: str) -> str:
    if dtype == "pred":
        return str(int(value))
    if math.isinf(value):
        return f"({'-' if value < 0 else ''}1.0f / 0.0f)"
    if math.isnan(value):
        raise NoPipeline
    text = repr(float(np.float32(value)))
    return f"({text}f)" if text.startswith("-") else f"{text}f"


def applied(value: HloInstruction, given: Sequence[str]) -> str:
    if value.opcode in _BINARY:
        return f"{given[0]} {_BINARY[value.opcode]} {given[1]}"
    if value.opcode in _CALLS:
        return f"{_CALLS[value.opcode]}({', '.join(given)})"
    if value.opcode == "compare":
        return f"{given[0]} {_COMPARE[value.attributes['direction']]} {given[1]}"
    if value.opcode in _OTHERS:
        return _OTHERS[value.opcode].format(*given)
    raise NoPipeline
