"""Loops whose state is too large for a thread: a block keeps some rows of it in shared memory.

What is multiplied by a matrix, or reduced, is stored whole before it is read crosswise; so is what comes of it. All
else of a trip is element by element, and computed where it is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from fusiond_stitching.frontend.graph import BYTES, HloInstruction
from fusiond_stitching.frontend.scan_axes import Axes, ScanPartition

MOST_SHARED = 40 << 10  #: Bytes of shared memory that one row may need: every device has them
MOST_READ = 2 << 20
"""Bytes of matrices that a block reads in each trip, from the second-level cache: of an LSTM with 256 units it is 1 MB,
some 10 us, and a library's trip is half a dozen launches. What is the faster one is measured."""
MOST_ROWS = 1024  #: Rows that are multiplied: beyond, a library's product of all rows at once is the faster one
MOST_SUMMED = 1 << 20  #: Numbers that are gone through for a row's reductions, one after the other or by a warp
_SEEN_THROUGH = frozenset({"reshape", "transpose", "broadcast", "slice", "convert", "copy"})


def kept(axes: Axes, places: ScanPartition) -> tuple[str, ...] | str:
    """What each trip stores beside the state, in order; why a block cannot run the loop."""
    body = axes.body
    found: dict[str, None] = {}

    def at_hand(name: str) -> bool:
        while name not in axes.carried and name not in found and body[name].opcode in _SEEN_THROUGH:
            name = body[name].operands[0]
        return name in axes.carried or name in found

    read = 0
    for each in body.instructions:
        if each.name not in axes.live or each.opcode not in ("dot", "reduce"):
            continue
        varying = [name for name in _values(each) if name in axes.varying]
        if not varying:
            if each.opcode == "dot":
                return f"the product {each.name!r} could be computed before the loop"
            continue
        if each.opcode == "dot":
            read += sum(axes.inside_elements(name) * BYTES[body[name].dtype] for name in _values(each)
                        if name not in axes.varying)  # fmt: skip
        elif axes.inside_elements(each.operands[0]) > MOST_SUMMED:
            return f"it reduces more than {MOST_SUMMED} numbers for a row"
        found |= dict.fromkeys(name for name in varying if not at_hand(name))
        found[each.name] = None
    if read > MOST_READ:
        return f"it would read {read >> 10} KB of matrices in each trip ({MOST_READ >> 10} at most)"
    if read and math.prod(places.sizes) > MOST_ROWS:
        return f"it multiplies {math.prod(places.sizes)} rows ({MOST_ROWS} at most)"
    needed = sum(axes.inside_elements(name) * BYTES[body[name].dtype] * (1 + (name in axes.carried))
                 for name in (*axes.carried, *found))  # fmt: skip
    if needed > MOST_SHARED:
        return f"a row of its state needs {needed >> 10} KB of shared memory ({MOST_SHARED >> 10} at most)"
    return tuple(found)


def _values(each: HloInstruction) -> Iterator[str]:
    """What a dot or a reduce goes through."""
    yield from each.operands if each.opcode == "dot" else each.operands[: len(each.operands) // 2]
