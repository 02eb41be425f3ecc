"""Finds the instructions that are left to a library, with the reason, and those with side effects."""

import re
from collections.abc import Callable, Mapping, Sequence

from fusiond_stitching.frontend import windows
from fusiond_stitching.frontend.graph import BYTES, DTYPES, ELEMENTWISE, KNOWN, Computation, HloInstruction
from fusiond_stitching.frontend.hlo import ArrayShape, Raw, RawComputation, RawModule, Several
from fusiond_stitching.frontend.tuple_values import Value, names

EFFECTS = frozenset({"infeed", "outfeed", "send", "send-done", "recv", "recv-done", "rng-get-and-update-state"})
"""What does something even where nobody reads its result."""
CALLED = ("to_apply", "calls", "body", "condition", "true_computation", "false_computation", "branch_computations",
          "called_computations")  # fmt: skip
_NAME = re.compile(r"[\w.\-$]+")
_INLINED = ("call", "tuple", "parameter", "constant", "get-tuple-element")


def reason(
    raw: Raw,
    operands: Sequence[Value],
    found: Mapping[str, HloInstruction],
    applied: Callable[[], RawComputation],
    computation: Callable[[], Computation],
) -> str:
    """Why this instruction is a boundary; empty when it is not. `applied` and `computation`: what it applies, as it is
    written and as it is imported."""
    if raw.opcode == "convolution" and (len(operands) != 2 or not windows.small(raw, found[names(operands)[1]])):
        return "a convolution of many channels or a large window is left to a library"
    if raw.opcode not in KNOWN and raw.opcode not in ("bitcast", "reduce-window", "convolution"):
        target = raw.attributes.get("custom_call_target", "")
        return f"{raw.opcode} {target}".strip() + " is left to a library"
    if any(isinstance(each, tuple) for each in operands):
        return "an operand is a tuple"
    problem = _type_problem(raw, [found[each].dtype for each in names(operands)])
    if problem:
        return problem
    if raw.opcode == "scatter" and len(operands) != 3:
        return "a scatter of several tensors is left to a library"
    if raw.opcode == "reduce-window":
        if len(operands) != 2:
            return "a reduce-window of several tensors is left to a library"
        problem, init = scalar_problem(raw, applied()), found[names(operands)[1]]
        if problem or not windows.outside(windows.attributes_of(raw)) or windows.neutral(computation(), init):
            return problem
        return "a reduce-window whose padding is not neutral is left to a library"
    if raw.opcode in ("reduce", "scatter"):
        return scalar_problem(raw, applied())
    return ""


def _type_problem(raw: Raw, given: Sequence[str]) -> str:
    shapes = raw.shape.members if isinstance(raw.shape, Several) else (raw.shape,)
    kinds = [*(each.dtype if isinstance(each, ArrayShape) else "tuple" for each in shapes), *given]
    odd = sorted({each for each in kinds if each not in DTYPES})
    if odd:
        return f"the type {odd[0]} is not known"
    if raw.opcode == "bitcast-convert" and len({BYTES[each] for each in kinds}) > 1:
        return "a bitcast-convert between types of different sizes is left to a library"
    return ""


def scalar_problem(raw: Raw, applied: RawComputation) -> str:
    """Why what it applies cannot be written as code for scalars; empty when it can."""
    for each in applied.instructions:
        if each.opcode in _INLINED:
            continue
        if each.opcode not in ELEMENTWISE or (isinstance(each.shape, ArrayShape) and each.shape.dims):
            return f"{raw.opcode} applies {each.opcode}, which is not element-wise"
    return ""


def acts(module: RawModule, raw: Raw) -> bool:
    """Whether it does something beside giving a result, itself or in a computation that it calls."""
    stack, seen = [raw], set[str]()
    while stack:
        each = stack.pop()
        if each.opcode in EFFECTS or "channel_id" in each.attributes:
            return True
        if each.attributes.get("custom_call_has_side_effect", "").strip() == "true":
            return True
        called = {name for attribute in CALLED for name in _NAME.findall(each.attributes.get(attribute, ""))}
        for name in (called & module.computations.keys()) - seen:
            seen.add(name)
            stack += module.computations[name].instructions
    return False
