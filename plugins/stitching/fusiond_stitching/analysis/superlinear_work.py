"""How much is evaluated beside what goes in and out: a warning for what grows faster than its data.

A reduction evaluates each element of its operand, whether or not that is ever in memory: all pairs of a sort by
counting, all windows of a running sum, all updates that an element of a scatter looks at. Products of matrices are a
library's, and are not counted unless a plan computes them itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusiond_stitching.frontend import scatter_updates
from fusiond_stitching.frontend.graph import HloModule

MANY_TIMES = 16
"""Evaluations for each element that goes in or out, from which on it is said."""


@dataclass(frozen=True, slots=True)
class SuperlinearWork:
    """`elements` are evaluated for an instruction: so many `times` what goes into the module and out of it."""

    instruction: str
    elements: int
    times: float


def more_than_linear(module: HloModule) -> tuple[SuperlinearWork, ...]:
    """The instructions that evaluate MANY_TIMES as many elements as all parameters, stand-ins and outputs have, those
    with most first."""
    ends = {*module.parameters, *module.outputs, *module.foreign}
    data = max(1, sum(module[name].elements for name in ends))
    found = [
        SuperlinearWork(name, count, count / data) for name, count in _evaluated(module) if count > MANY_TIMES * data
    ]
    return tuple(sorted(found, key=lambda each: (-each.elements, each.instruction)))


def _evaluated(module: HloModule) -> Iterator[tuple[str, int]]:
    for each in module.instructions:
        if each.name in module.foreign:
            continue
        if each.opcode == "reduce":
            yield each.name, module[each.operands[0]].elements
        elif each.opcode == "scatter" and not scatter_updates.possible(each):
            yield each.name, scatter_updates.looks(each, module[each.operands[2]])
