"""Whole numbers that follow from constants, worked out: indices of a scatter, the branch of a conditional.

    concatenate(reshape(select(compare(1, 0, LT), 1 + 8192, 1)), 2)   -->   (1, 2)

jax writes `x.at[1:-1, 2:].set(y)` as a scatter whose one index is a small tensor of such numbers.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence

from fusiond_stitching.frontend.graph import HloInstruction, HloModule, behind

BITS = {"s8": 8, "s16": 16, "s32": 32, "s64": 64, "u8": 8, "u16": 16, "u32": 32, "u64": 64, "pred": 1}
MOST_ELEMENTS = 64  #: Of a tensor that is worked out
MOST_TRIPS = 1 << 16  #: How long a loop is followed
MOST_DEPTH = 64  #: Instructions between a number and its constants
_DIRECTIONS: Mapping[str, Callable[[int, int], bool]] = {
    "EQ": operator.eq, "NE": operator.ne, "LT": operator.lt, "GT": operator.gt, "LE": operator.le, "GE": operator.ge,
}  # fmt: skip
OPERATIONS: Mapping[str, Callable[..., int]] = {
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
    **dict.fromkeys(("convert", "copy", "reshape", "broadcast"), lambda _, a: a),
}
"""Opcode -> one element, of the instruction and the elements of its operands."""


def wrapped(value: int, dtype: str) -> int:
    """As a type of so many bits has it."""
    if dtype == "pred":
        return int(bool(value))
    bits = BITS[dtype]
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.startswith("s") and value >> (bits - 1) else value


def elements(given: Mapping[str, HloInstruction], name: str) -> tuple[int, ...] | None:
    """The elements of a small tensor in row-major order; None where they depend on what is not known."""
    found: dict[str, tuple[int, ...] | None] = {}

    def of(name: str, depth: int) -> tuple[int, ...] | None:
        if name not in found:
            each = given[name]
            small = each.dtype in BITS and each.elements <= MOST_ELEMENTS and depth > 0
            operands = [of(operand, depth - 1) for operand in each.operands] if small else [None]
            known = [operand for operand in operands if operand is not None]
            dims = [given[operand].dims for operand in each.operands]
            found[name] = _of(each, known, dims) if len(known) == len(operands) else None
        return found[name]

    return of(name, MOST_DEPTH)


def _of(
    each: HloInstruction, known: Sequence[tuple[int, ...]], dims: Sequence[tuple[int, ...]]
) -> tuple[int, ...] | None:
    """The elements of an instruction whose operands are known."""
    if each.opcode == "constant":
        values = each.attributes["values"]
        return tuple(int(value) for value in (values if len(values) == each.elements else values * each.elements))
    if each.opcode == "iota":
        at = each.attributes["dimension"]
        return tuple(index[at] for index in _indices(each.dims))
    if each.opcode == "concatenate":
        return _concatenated(each, known, dims)
    if each.opcode == "slice":
        starts, strides = each.attributes["starts"], each.attributes["strides"]
        cut = [
            [start + at * step for at, start, step in zip(index, starts, strides, strict=True)]
            for index in _indices(each.dims)
        ]
        return tuple(known[0][_place(index, dims[0])] for index in cut)
    if each.opcode == "broadcast":
        order = each.attributes["dimensions"]
        return tuple(known[0][_place([index[at] for at in order], dims[0])] for index in _indices(each.dims))
    if each.opcode not in OPERATIONS:
        return None
    operation = OPERATIONS[each.opcode]
    spread = [one if len(one) == each.elements else one * each.elements for one in known]
    return tuple(wrapped(operation(each, *values), each.dtype) for values in zip(*spread, strict=True))


def _concatenated(
    each: HloInstruction, known: Sequence[tuple[int, ...]], dims: Sequence[tuple[int, ...]]
) -> tuple[int, ...]:
    at = each.attributes["dimension"]
    found = []
    for index in _indices(each.dims):
        place, rest = 0, index[at]
        while rest >= dims[place][at]:
            rest -= dims[place][at]
            place += 1
        found.append(known[place][_place([*index[:at], rest, *index[at + 1 :]], dims[place])])
    return tuple(found)


def _indices(dims: Sequence[int]) -> itertools.product[tuple[int, ...]]:
    return itertools.product(*(range(dim) for dim in dims))


def _place(index: Sequence[int], dims: Sequence[int]) -> int:
    return sum(at * math.prod(dims[place + 1 :]) for place, at in enumerate(index))


def counts_along(given: Mapping[str, HloInstruction], name: str, depth: int = MOST_DEPTH) -> int | None:
    """The dimension whose index a tensor holds everywhere, as `iota` does; None where there is no such dimension. It
    looks through what jax does to indices: `select(i < 0, i + n, i)`, clamping, broadcasts, dimensions of size 1."""
    each = given[name]
    if each.dtype not in BITS or depth == 0 or max(each.dims, default=0) > 1 << (BITS[each.dtype] - 1):
        return None

    def of(operand: str) -> int | None:
        return counts_along(given, operand, depth - 1)

    if each.opcode == "iota":
        return int(each.attributes["dimension"])
    if each.opcode in ("convert", "copy"):
        return of(each.operands[0])
    if each.opcode in ("broadcast", "reshape"):
        at = of(each.operands[0])
        if at is None or each.opcode == "broadcast":
            return None if at is None else int(each.attributes["dimensions"][at])
        return kept_dimension(given[each.operands[0]].dims, at, each.dims)
    if each.opcode == "select":
        test = given[each.operands[0]]
        below = test.opcode == "compare" and test.attributes["direction"] == "LT" and of(test.operands[0]) is not None
        least = _same(given, test.operands[1]) if below else None
        return of(each.operands[2]) if least is not None and least <= 0 else None
    if each.opcode == "clamp":
        at = of(each.operands[1])
        return at if at is not None and _clamps_nothing(given, each, each.dims[at]) else None
    return None


def _clamps_nothing(given: Mapping[str, HloInstruction], clamp: HloInstruction, count: int) -> bool:
    """Whether 0, 1, ..., count - 1 all lie between its bounds."""
    low, high = _same(given, clamp.operands[0]), _same(given, clamp.operands[2])
    return low is not None and high is not None and low <= 0 and high >= count - 1


def part(given: Mapping[str, HloInstruction], name: str, dimension: int, at: int) -> str | None:
    """The operand of a concatenation (or of a tensor with one such part, the tensor) that is the part `at` along a
    dimension, where each part is of size 1."""
    each = given[name]
    if dimension >= len(each.dims) or each.dims[dimension] == 1:
        return name
    if each.opcode != "concatenate" or each.attributes["dimension"] != dimension:
        return None
    ones = all(given[operand].dims[dimension] == 1 for operand in each.operands)
    return each.operands[at] if ones else None


def _same(given: Mapping[str, HloInstruction], name: str) -> int | None:
    """The one number that all elements are; None where that is not known."""
    each = behind(given, name, "broadcast", "reshape", "copy", "convert")
    return int(each.attributes["values"][0]) if each.opcode == "constant" and each.elements == 1 else None


def kept_dimension(before: Sequence[int], at: int, after: Sequence[int]) -> int | None:
    """Where a dimension is behind a reshape, if it is there by itself."""
    ahead = math.prod(before[:at])
    found = [
        place for place, dim in enumerate(after) if dim == before[at] and math.prod(after[:place]) == ahead and dim > 1
    ]
    return found[0] if found else None


# --- of loops -------------------------------------------------------------------------------------------


def loop_run(
    body: HloModule, condition: HloModule, begin: Mapping[str, int]
) -> tuple[int, Mapping[str, Sequence[int]]] | None:
    """(how often the body runs, what its whole scalars are in each trip); None where that is not known before."""
    known = dict(begin)
    while True:
        followed = _followed(body, known)
        lost = [
            name
            for name, last in zip(body.parameters, body.outputs, strict=True)
            if name in known and last not in followed
        ]
        if not lost:
            break
        for name in lost:
            known.pop(name)
    same = dict(zip(body.parameters, condition.parameters, strict=True))
    tested = _followed(condition, {same[name]: value for name, value in known.items()})
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


def steps(values: Sequence[int]) -> tuple[int, int] | None:
    """(first, step) of numbers that grow by the same amount from trip to trip."""
    step = values[1] - values[0] if len(values) > 1 else 0
    return (values[0], step) if list(values) == [values[0] + step * trip for trip in range(len(values))] else None


def _followed(module: HloModule, known: Mapping[str, int]) -> list[str]:
    """The scalars that follow from the known ones, in order."""
    found = dict.fromkeys(known)
    for each in module.instructions:
        if each.name in found or each.elements != 1 or each.dtype not in BITS:
            continue
        if each.opcode == "constant" or (each.opcode in OPERATIONS and all(name in found for name in each.operands)):
            found[each.name] = None
    return [each.name for each in module.instructions if each.name in found]


def _values(module: HloModule, names: Iterable[str], known: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        each = module[name]
        if name in known:
            found[name] = known[name]
        elif each.opcode == "constant":
            found[name] = int(each.attributes["values"][0])
        else:
            found[name] = wrapped(OPERATIONS[each.opcode](each, *(found[one] for one in each.operands)), each.dtype)
    return found
