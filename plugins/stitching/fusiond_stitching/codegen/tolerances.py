"""How two ways to compute an output may differ, by how often values are rounded and summed up on the way to it."""

import math
from dataclasses import dataclass

from fusiond.model.program import Compare
from fusiond_stitching.codegen.semantics import TYPES
from fusiond_stitching.frontend.graph import HloInstruction, HloModule

_EPSILON = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}
_STEP = {"f8e4m3fn": 2.0**-3, "f8e5m2": 2.0**-2}
"""What one step of a float of 8 bits is of its value: other errors are so much smaller that they come to one step."""
_LEAST = {
    "f8e4m3fn": 2.0**-9, "f8e5m2": 2.0**-16, "f16": 2.0**-20, "bf16": 2.0**-120, "f32": 2.0**-120, "f64": 2.0**-1000,
}  # fmt: skip
"""What is smaller than this need not be right: numbers that lose bits as they become subnormal."""
_POSITIVE = frozenset({"exponential", "abs", "sqrt", "rsqrt", "logistic"})
_KEEPS_SIGN = frozenset({
    "add", "multiply", "divide", "maximum", "minimum", "select", "clamp", "convert", "copy", "reshape", "broadcast",
    "transpose", "slice", "reverse", "concatenate", "gather", "dynamic-slice", "reduce-precision",
})  # fmt: skip
_RELATIVE = (_KEEPS_SIGN - {"add"}) | {"parameter", "constant", "abs", "negate", "sqrt", "rsqrt", "cbrt", "iota"}
"""What keeps the relative error of its operands."""


@dataclass(frozen=True, slots=True)
class Precision:
    """How exact an instruction's value is. `length`: how many values at most are summed up on the way to it. `epsilon`:
    the coarsest precision on that way. `step`: of the coarsest float of 8 bits on it, 0.0 where there is none."""

    length: int
    epsilon: float
    step: float = 0.0


def precisions(module: HloModule) -> dict[str, Precision]:
    """Of all instructions. Ways begin anew behind a foreign instruction: its result is filled, and the same in every
    plan."""
    found: dict[str, Precision] = {}
    for each in module.instructions:
        length, epsilon, step = 1, _EPSILON.get(each.dtype, 0.0), _STEP.get(each.dtype, 0.0)
        if each.name in module.foreign:
            found[each.name] = Precision(length, epsilon, step)
            continue
        for operand in (found[name] for name in each.operands):
            length = max(length, operand.length)
            epsilon = max(epsilon, operand.epsilon)
            step = max(step, operand.step)
        if each.opcode == "dot" or (each.opcode == "reduce" and not each.attributes["computation"].chooses):
            length += module.inputs(each)
        elif each.opcode == "scatter":
            length += module[each.operands[1]].elements
        elif each.opcode == "scan":
            loop = each.attributes["loop"]
            inside = precisions(loop.body).values()
            length += loop.trips * max(one.length for one in inside)
            epsilon = max(epsilon, *(one.epsilon for one in inside))
            step = max(step, *(one.step for one in inside))
        found[each.name] = Precision(length, epsilon, step)
    return found


def without_cancellation(module: HloModule) -> frozenset[str]:
    """Instructions whose rounding errors are relative to themselves, however small they are: products, quotients, roots
    and exponentials, and sums of what is not negative. The probabilities of a long softmax are so small that any
    absolute tolerance would prove nothing of them."""
    positive: set[str] = set()  # what is not negative
    unsummed: set[str] = set()  # what no sum leads to
    found: set[str] = set()
    for each in module.instructions:
        if _is_exact(module, each):
            unsummed.add(each.name)
            found.add(each.name)
            continue
        values, extreme, sums = set(_values(each)), _is_extreme(each), _operation(each) == "add"
        keeps_sign = each.opcode in _KEEPS_SIGN or extreme or sums
        if each.opcode in _POSITIVE or _is_positive(each) or (keeps_sign and values <= positive):
            positive.add(each.name)
        # The errors of an exponent are small in themselves, as long as no sum has made them large.
        power = each.opcode == "exponential" and values <= unsummed
        keeps = each.opcode in _RELATIVE or extreme or ((sums or each.opcode == "add") and values <= positive)
        if power or (keeps and values <= found):
            found.add(each.name)
        if (each.opcode not in ("reduce", "dot", "scatter") or extreme) and values <= unsummed:
            unsummed.add(each.name)
    return frozenset(found)


def _is_positive(each: HloInstruction) -> bool:
    return each.opcode == "constant" and all(value >= 0 for value in each.attributes["values"])


def _is_exact(module: HloModule, each: HloInstruction) -> bool:
    """What is the same in every plan: whole numbers, and what a library gives, which is filled."""
    return each.name in module.foreign or TYPES[each.dtype].kind != "float"


def _values(each: HloInstruction) -> tuple[str, ...]:
    """The operands that a result's values come from: no predicate, no init value."""
    return each.operands[1:] if each.opcode == "select" else each.values


def _operation(each: HloInstruction) -> str | None:
    """What a reduce applies, where that is one operation."""
    return each.attributes["computation"].simple if each.opcode == "reduce" else None


def _is_extreme(each: HloInstruction) -> bool:
    return _operation(each) in ("maximum", "minimum")


def tolerance(instruction: HloInstruction, precision: Precision, *, relative: bool = False) -> Compare:
    """How two ways to compute an output may differ. Whole numbers must be equal. For floats, rounding errors grow with
    the root of the sums' length, and those of a serial sum that cancels (its parts are as large as the root of their
    number) with the length itself. `relative`: nothing cancels on the way."""
    if TYPES[instruction.dtype].kind != "float":
        return Compare()
    root, epsilon, step = math.sqrt(precision.length), precision.epsilon, precision.step
    rtol = epsilon * (64 + 16 * root) + step
    if relative:
        return Compare(kind="close", rtol=rtol, atol=_LEAST[instruction.dtype])
    cancelled = min(epsilon, _EPSILON["f32"]) * precision.length / 8
    return Compare(kind="close", rtol=rtol, atol=epsilon * (8 + 2 * root) + cancelled + step)


def near_ties(module: HloModule) -> tuple[str, ...]:
    """Buffers of whole numbers and truth values that depend on sums of floats: by a comparison, an argmax, a rounding.
    They are compared exactly, and where two values all but tie, another order of a sum may give another result."""
    precision = precisions(module)
    return tuple(
        buffer
        for name, buffer in module.computed.items()
        if TYPES[module[name].dtype].kind != "float" and precision[name].length > 1 and precision[name].epsilon > 0
    )


def compares(module: HloModule) -> dict[str, Compare]:
    """Buffer of an output, or of what a foreign instruction reads -> how it is compared."""
    precision = precisions(module)
    relative = without_cancellation(module)
    return {
        buffer: tolerance(module[name], precision[name], relative=name in relative)
        for name, buffer in module.computed.items()
    }
