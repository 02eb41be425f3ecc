"""A maximum and the sum of exponentials below it in one reduction (online softmax).

    M = max(x)                      (M, S) = reduce over pairs (x, 1):
    S = sum(exp(x - M))      -->        m = max(m1, m2)
                                        s = s1 * exp(m1 - m) + s2 * exp(m2 - m)

Rows that no registers hold are read once less so (Milakov and Gimelshein, 2018). What overflows or is NaN stays
so: an infinite maximum makes the sum a NaN, as `inf - inf` does. Where 0 is subtracted in place of an infinite maximum
(jax's logsumexp), the sum is exp(M) then: 0, infinite, or no number. The order of the sum changes, as it does between
any two schedules.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from fusiond_stitching.frontend.graph import Computation, HloInstruction, HloModule, behind, scalar, topological

LEAST_ROW = 16_384  #: Elements of a row: shorter ones are held in registers, and read once anyway
LEAST_COLUMN = 2048  #: Of a column, of which a block has eight side by side
_TYPES = ("f32", "f64")


def rewritten(module: HloModule) -> HloModule:
    """The module with such pairs in one reduction; itself where there are none."""
    found = {each.name: each for each in module.instructions}
    changed = False
    for total in module.instructions:
        below = _greatest(module, total)
        if below is not None and len(found[below.name].operands) == 2:
            guarded = _spread(module, total).opcode == "select"
            found.update((each.name, each) for each in _pair(module, below, total, guarded=guarded))
            changed = True
    return dataclasses.replace(module, instructions=topological(found.values())) if changed else module


def _greatest(module: HloModule, total: HloInstruction) -> HloInstruction | None:
    """The maximum under a sum of exponentials; None for everything else."""
    if not _reduces(module, total, "add", 0.0):
        return None
    power = module[total.operands[0]]
    if power.opcode != "exponential" or power.dtype not in _TYPES:
        return None
    difference = module[power.operands[0]]
    if difference.opcode != "subtract":
        return None
    values, spread = (module[name] for name in difference.operands)
    if not _spread_back(module, spread, values, total):
        return None
    greatest = _spread(module, total)
    if greatest.opcode == "select":
        greatest = _guarded(module, greatest)
    if not _reduces(module, greatest, "maximum", -math.inf) or greatest.operands[0] != values.name:
        return None
    same = greatest.attributes["dimensions"] == total.attributes["dimensions"]
    return greatest if same and _long(values, total) else None


def _spread(module: HloModule, total: HloInstruction) -> HloInstruction:
    """What is subtracted in the exponent, as it is before it is spread over the rows."""
    difference = module[module[total.operands[0]].operands[0]]
    return _behind(module, module[difference.operands[1]])


def _guarded(module: HloModule, select: HloInstruction) -> HloInstruction:
    """What is subtracted where it is finite, and 0 where it is not; the select itself where it is another."""
    guard, then, otherwise = (module[name] for name in select.operands)
    value = _behind(module, then)
    zero = _behind(module, otherwise)
    if guard.opcode != "is-finite" or zero.opcode != "constant" or set(zero.attributes["values"]) != {0}:
        return select
    return value if _behind(module, module[guard.operands[0]]) is value else select


def _reduces(module: HloModule, each: HloInstruction, operation: str, init: float) -> bool:
    if each.opcode != "reduce" or each.name in module.foreign or len(each.operands) != 2:
        return False
    start = module[each.operands[1]]
    if start.opcode != "constant" or each.attributes["computation"].simple != operation:
        return False
    return bool(start.attributes["values"][0] == init)


def _long(values: HloInstruction, total: HloInstruction) -> bool:
    if total.elements == 0:
        return False
    columns = 0 in total.attributes["dimensions"] and len(values.dims) - 1 not in total.attributes["dimensions"]
    return values.elements // total.elements > (LEAST_COLUMN if columns else LEAST_ROW)


def _behind(module: HloModule, spread: HloInstruction) -> HloInstruction:
    """What is spread over the rows; a maximum with -inf changes nothing."""
    each = spread
    while True:
        if each.opcode in ("broadcast", "reshape") and each.operands:
            each = module[each.operands[0]]
            continue
        if each.opcode == "maximum":
            rest = [name for name in each.operands if not _lowest(module, module[name])]
            if len(rest) == 1:
                each = module[rest[0]]
                continue
        return each


def _lowest(module: HloModule, each: HloInstruction) -> bool:
    each = behind(module, each.name, "broadcast", "reshape")
    return each.opcode == "constant" and all(value == -math.inf for value in each.attributes["values"])


def _spread_back(module: HloModule, spread: HloInstruction, values: HloInstruction, total: HloInstruction) -> bool:
    """Whether each row gets its own maximum: one broadcast along what is reduced, reshapes between."""
    reduced = total.attributes["dimensions"]
    kept = tuple(at for at in range(len(values.dims)) if at not in reduced)
    if spread.opcode != "broadcast" or spread.attributes["dimensions"] != kept:
        return False
    each = module[spread.operands[0]]
    while each.opcode in ("reshape", "maximum", "broadcast", "select"):
        if each.opcode == "broadcast" and each.dims != module[each.operands[0]].dims:
            return False
        if each.opcode == "select":
            each = module[each.operands[1]]
            continue
        rest = [name for name in each.operands if not _lowest(module, module[name])]
        each = module[rest[0]]
    return each.opcode == "reduce"


def _pair(
    module: HloModule, greatest: HloInstruction, total: HloInstruction, *, guarded: bool
) -> Iterator[HloInstruction]:
    """The instructions that stand for both, under their names. `guarded`: where the maximum is infinite, 0 was
    subtracted."""
    values = module[greatest.operands[0]]

    def made(word: str, opcode: str, *operands: str, **given: Any) -> HloInstruction:
        return total.becoming(opcode, *operands, name=f"{total.name}~{word}", **given)

    one = made("one", "constant", dims=(), values=(1.0,))
    ones = made("ones", "broadcast", one.name, dims=values.dims, dimensions=())
    pair = {"dimensions": total.attributes["dimensions"], "computation": _computation(total.dtype)}
    operands = (values.name, ones.name, greatest.operands[1], total.operands[1])
    summed = made("sum", "reduce", *operands, **pair, result=1)
    yield from (one, ones, greatest.becoming("reduce", *operands, **pair, result=0), summed)
    if guarded:
        finite = made("finite", "is-finite", greatest.name, dtype="pred")
        alone = made("alone", "exponential", greatest.name)
        yield from (finite, alone, total.becoming("select", finite.name, summed.name, alone.name))
        return
    nothing = made("nothing", "subtract", greatest.name, greatest.name)
    yield from (nothing, total.becoming("add", summed.name, nothing.name))


def _computation(kind: str) -> Computation:
    steps = [scalar("m", "maximum", kind, "m1", "m2")]
    for side in "12":  # a side that has the maximum is taken as it is: the difference of two infinities is NaN
        steps += [
            scalar(f"d{side}", "subtract", kind, f"m{side}", "m"),
            scalar(f"e{side}", "exponential", kind, f"d{side}"),
            scalar(f"p{side}", "multiply", kind, f"s{side}", f"e{side}"),
            scalar(f"c{side}", "compare", "pred", f"m{side}", "m", direction="EQ", total=False),
            scalar(f"a{side}", "select", kind, f"c{side}", f"s{side}", f"p{side}"),
        ]
    steps.append(scalar("s", "add", kind, "a1", "a2"))
    return Computation.of(dict.fromkeys(("m1", "s1", "m2", "s2"), kind), steps, "m", "s")


NEUTRAL = (-math.inf, 0.0)  #: What changes no pair


def is_pair(reduce: HloInstruction) -> bool:
    """Whether a reduce is one of those that are made here."""
    computation = reduce.attributes["computation"]
    return bool(computation.results == ("m", "s") and computation == _computation(reduce.dtype))
