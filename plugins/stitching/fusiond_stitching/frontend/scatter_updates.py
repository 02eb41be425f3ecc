"""Scatters as a GPU does them: the operand is laid down first, then every update goes to its element, by itself.

    y = scatter(x, indices, u), add
      -->  y~base = copy(x)                          an ordinary value, fused with whatever makes x
           y = scatter(y~base, indices, u), in place: y[indices[b] + w] += u[b, w], atomically, for all updates at once

Seen from the elements of the result, a scatter looks at all updates for each of them: the gradient of an embedding
(8,192 rows into 128,256 x 4,096) would look 4e12 times. Seen from the updates it is as much work as there are updates.
Sums of floats come in any order then. Where the module says that no two updates meet (`unique_indices`), nothing needs
to be atomic. A value that replaces another goes in there only: else the last one has to win, and the loop over all
updates stays.
"""

from __future__ import annotations

import dataclasses
import math

from fusiond.model import frozen
from fusiond_stitching.frontend.graph import BYTES, Instruction, Module, topological

MOST_LOOKS = 1 << 32
"""Updates that a scatter may look at, for all of its elements together: some milliseconds of a GPU."""
_WIDE_ENOUGH = 2
"""Bytes that an atomic operation has at least."""


def looks(scatter: Instruction, updates: Instruction) -> int:
    """How many updates are looked at where each element of the result looks at all of them."""
    windows = scatter.attributes["update_window_dims"]
    return scatter.elements * math.prod(dim for at, dim in enumerate(updates.dims) if at not in windows)


def possible(scatter: Instruction) -> bool:
    """Whether its updates can be applied in any order, each by itself."""
    if scatter.attributes.get("unique", False):
        return True
    return BYTES.get(scatter.dtype, 0) >= _WIDE_ENOUGH and scatter.attributes["computation"].simple is not None


def in_place(instruction: Instruction) -> bool:
    """A scatter into the buffer of its first operand."""
    return instruction.opcode == "scatter" and bool(instruction.attributes.get("in_place", False))


def rewritten(module: Module, *, all_of_them: bool = True) -> Module:
    """The module with its scatters in place, where that is possible; the very same one where there are none.
    `all_of_them`: else only those whose loops would look at more than `MOST_LOOKS` updates."""
    found: list[Instruction] = []
    for each in module.instructions:
        if each.opcode == "scatter" and each.name not in module.foreign and not in_place(each) and possible(each):
            operand, _, updates = module.operands(each)
            if each.elements and updates.elements and (all_of_them or looks(each, updates) > MOST_LOOKS):
                base = dataclasses.replace(
                    operand, name=f"{each.name}~base", opcode="copy", operands=(operand.name,), attributes=frozen({})
                )
                attributes = frozen({**each.attributes, "in_place": True})
                moved = dataclasses.replace(each, operands=(base.name, *each.operands[1:]), attributes=attributes)
                found += [base, moved]
                continue
        found.append(each)
    if len(found) == len(module.instructions):
        return module
    return dataclasses.replace(module, instructions=topological(found))
