"""Scatters as a GPU does them: the operand is stored first, then every update goes to its element, by itself.

    y = scatter(x, indices, u), add
      -->  y~base = copy(x)                          an ordinary value, fused with whatever makes x
           y = scatter(y~base, indices, u), in place: y[indices[b] + w] += u[b, w], atomically, for all updates at once

Seen from the elements of the result, a scatter looks at all updates for each of them: the gradient of an embedding
(8,192 rows into 128,256 x 4,096) would look 4e12 times. Seen from the updates it is as much work as there are updates.
Sums of floats come in any order then. Where the module says that no two updates meet (`unique_indices`), nothing needs
to be atomic. Where the order matters (a value that replaces another, or sums that are to be the same in every run),
the updates are sorted by where they fall (`sorted_scatters`).
"""

import dataclasses
import math
from collections.abc import Container, Mapping

from fusiond_stitching.frontend import sorted_scatters
from fusiond_stitching.frontend.graph import BYTES, HloInstruction, HloModule, topological

MOST_LOOKS = 1 << 32
"""Updates that a scatter may look at, for all of its elements together: some milliseconds of a GPU."""
_WIDE_ENOUGH = 2  #: Bytes that an atomic operation has at least


def looks(scatter: HloInstruction, updates: HloInstruction) -> int:
    """How many updates are looked at where each element of the result looks at all of them."""
    windows = scatter.attributes["update_window_dims"]
    return scatter.elements * math.prod(dim for at, dim in enumerate(updates.dims) if at not in windows)


def possible(scatter: HloInstruction) -> bool:
    """Whether its updates can be applied in any order, each by itself."""
    if scatter.attributes.get("unique", False):
        return True
    return BYTES.get(scatter.dtype, 0) >= _WIDE_ENOUGH and scatter.attributes["computation"].simple is not None


def in_place(instruction: HloInstruction) -> bool:
    """A scatter into the buffer of its first operand."""
    return instruction.opcode == "scatter" and bool(instruction.attributes.get("in_place", False))


def endless(given: Mapping[str, HloInstruction], foreign: Container[str], *, deterministic: bool) -> dict[str, int]:
    """Scatters that nothing of all this is possible for, and how many updates code would look at in a loop over all of
    them for each element, which would not come to an end."""
    found = {}
    for each in given.values():
        if each.opcode == "scatter" and each.name not in foreign:
            _, indices, updates = (given[operand] for operand in each.operands)
            count = looks(each, updates)
            if count > MOST_LOOKS and way(each, indices, updates, deterministic=deterministic) is None:
                found[each.name] = count
    return found


def way(
    scatter: HloInstruction, indices: HloInstruction, updates: HloInstruction, *, deterministic: bool
) -> str | None:
    """`updates`: each by itself, in any order; `sorted`; None where neither is possible."""
    if possible(scatter) and (not deterministic or sorted_scatters.order_free(scatter)):
        return "updates"
    return "sorted" if sorted_scatters.possible(scatter, indices, updates) else None


def rewritten(module: HloModule, *, all_of_them: bool = True, deterministic: bool = False) -> HloModule:
    """The module with its scatters in place, where that is possible; the very same one where there are none.
    `all_of_them`: else only those whose loops would look at more than `MOST_LOOKS` updates. `deterministic`: sums are
    the same, bit by bit, in every run."""
    found: list[HloInstruction] = []
    for each in module.instructions:
        if each.opcode == "scatter" and each.name not in module.foreign and not in_place(each):
            operand, indices, updates = module.operands(each)
            many = looks(each, updates) > MOST_LOOKS
            how = way(each, indices, updates, deterministic=deterministic)
            # What replaces values is sorted only where it must be: a loop over few updates is one launch.
            wanted = many or (all_of_them and (how == "updates" or deterministic))
            if each.elements and updates.elements and how is not None and wanted:
                base = operand.becoming("copy", operand.name, name=f"{each.name}~base")
                operands, attributes = (base.name, *each.operands[1:]), {**each.attributes, "in_place": True}
                found.append(base)
                found += (
                    sorted_scatters.expanded(module, each, base.name)
                    if how == "sorted"
                    else [each.becoming("scatter", *operands, **attributes)]
                )
                continue
        found.append(each)
    if len(found) == len(module.instructions):
        return module
    return dataclasses.replace(module, instructions=topological(found))
