"""The whole numbers of a loop, run by themselves: how many trips there are, and where each of them reads and writes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence

from fusiond_stitching.frontend.graph import Module

MOST_TRIPS = 1 << 16
"""How long a loop is followed."""
BITS = {"s8": 8, "s16": 16, "s32": 32, "s64": 64, "u8": 8, "u16": 16, "u32": 32, "u64": 64, "pred": 1}


def run(body: Module, condition: Module, begin: Mapping[str, int]) -> tuple[int, Mapping[str, Sequence[int]]] | None:
    """(how often the body runs, what its whole scalars are in each trip); None where that is not known before."""
    known = dict(begin)
    while True:
        followed = _whole(body, known)
        lost = [name for name, last in zip(body.parameters, body.outputs, strict=True)
                if name in known and last not in followed]  # fmt: skip
        if not lost:
            break
        for name in lost:
            known.pop(name)
    same = dict(zip(body.parameters, condition.parameters, strict=True))
    tested = _whole(condition, {same[name]: value for name, value in known.items()})
    if condition.outputs[0] not in tested:
        return None
    last = dict(zip(body.parameters, body.outputs, strict=True))
    found: dict[str, list[int]] = {name: [] for name in followed}
    for trip in range(MOST_TRIPS + 1):
        if not _values(condition, tested, {same[name]: value for name, value in known.items()})[condition.outputs[0]]:
            return (trip, found) if trip else None
        values = _values(body, followed, known)
        for name, value in values.items():
            found[name].append(value)
        known = {name: values[last[name]] for name in known}
    return None


def _whole(module: Module, known: Mapping[str, int]) -> list[str]:
    """The scalars that follow from the known ones, in order."""
    found = dict.fromkeys(known)
    for each in module.instructions:
        if each.name in found or each.elements != 1 or each.dtype not in BITS:
            continue
        if each.opcode == "constant" or (each.opcode in _OPERATIONS and all(name in found for name in each.operands)):
            found[each.name] = None
    return [each.name for each in module.instructions if each.name in found]


def _values(module: Module, names: Iterable[str], known: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        each = module[name]
        if name in known:
            found[name] = known[name]
        elif each.opcode == "constant":
            found[name] = int(each.attributes["values"][0])
        else:
            found[name] = _wrapped(_OPERATIONS[each.opcode](each, *(found[one] for one in each.operands)), each.dtype)
    return found


def _wrapped(value: int, dtype: str) -> int:
    if dtype == "pred":
        return int(bool(value))
    bits = BITS[dtype]
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.startswith("s") and value >> (bits - 1) else value


_DIRECTIONS: Mapping[str, Callable[[int, int], bool]] = {
    "EQ": operator.eq, "NE": operator.ne, "LT": operator.lt, "GT": operator.gt, "LE": operator.le, "GE": operator.ge,
}  # fmt: skip
_OPERATIONS: Mapping[str, Callable[..., int]] = {
    "add": lambda _, a, b: a + b,
    "subtract": lambda _, a, b: a - b,
    "multiply": lambda _, a, b: a * b,
    "maximum": lambda _, a, b: max(a, b),
    "minimum": lambda _, a, b: min(a, b),
    "negate": lambda _, a: -a,
    "and": lambda _, a, b: a & b,
    "or": lambda _, a, b: a | b,
    "not": lambda each, a: 1 - a if each.dtype == "pred" else ~a,
    "compare": lambda each, a, b: _DIRECTIONS[each.attributes["direction"]](a, b),
    "select": lambda _, test, a, b: a if test else b,
    "clamp": lambda _, low, a, high: min(max(a, low), high),
    "convert": lambda _, a: a,
    "copy": lambda _, a: a,
    "reshape": lambda _, a: a,
    "broadcast": lambda _, a: a,
}
