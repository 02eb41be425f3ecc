"""A loop that is one launch: its body, its carried values, and the axes that threads or blocks divide."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fusiond.model.keys import content_key
from fusiond.model.nouns import frozen
from fusiond_stitching.frontend.graph import BYTES, Computation, HloModule

ALIGNED = 16  #: What each value begins at a multiple of, in bytes


@dataclass(frozen=True, kw_only=True, repr=False)
class Loop:
    """A loop as one launch runs it."""

    name: str
    body: HloModule  #: One trip. No name in it is one of the module round it.
    trips: int
    inputs: tuple[str, ...]
    """The body's parameter for each operand of the results: one of `carries` begins with it, any other is that."""
    carries: Mapping[str, str]  #: Parameter -> what it is after a trip, those first that others are computed of
    stacked: tuple[str, ...]
    """The dynamic-update-slices that store a trip's part of a result: all trips' parts are the whole of it."""
    numbers: Mapping[str, tuple[int, int]]
    """Whole scalars of the body -> (in the first trip, how much more in each that follows)."""
    reads: tuple[str, ...]
    """The dynamic-slices of what no trip changes, at such numbers, of which a thread needs one element a trip."""
    axes: tuple[int, ...]  #: A thread for each index of these dims, or so many rows of a block
    axis_of: Mapping[str, tuple[int | None, ...]]
    """Of each carry, read, update of a stacked result and what is kept: dimension -> axis; None stays inside a thread
    or block, or is 1."""
    by_block: bool = False  #: Blocks have the state, in shared memory: else threads, in registers
    before: frozenset[str] = frozenset()
    """Those of `inputs` that are computed before the loop because its trips would do it many times."""
    groups: Mapping[str, tuple[str, int, int]] = field(default_factory=frozen)
    """Those of `stacked` that hold sums of neighbouring threads' values -> (the value, the dimension of it that is
    summed up, how many at a time: a part of a warp)."""
    kept: tuple[str, ...] = ()  #: What blocks store in shared memory beside the state in each trip, in order

    def __repr__(self) -> str:
        """Equal for loops that do the same, whatever the names are."""
        return f"Loop({self.key})"

    @functools.cached_property
    def key(self) -> str:
        number = self.body.number
        lines = [
            [each.opcode, each.dtype, list(each.dims), [number[o] for o in each.operands], _shown(each.attributes)]
            for each in self.body.instructions
        ]
        return content_key(
            [lines, self.trips, [number[each] for each in self.inputs], list(self.axes),
             [[number[a], number[b]] for a, b in self.carries.items()], [number[each] for each in self.stacked],
             sorted([number[a], *b] for a, b in self.numbers.items()), [number[each] for each in self.reads],
             self.by_block, [number[each] for each in self.kept],
             sorted([number[a], number[value], *b] for a, (value, *b) in self.groups.items())]
        )  # fmt: skip

    def inside(self, name: str) -> int:
        """Elements of a carry, update or what is kept, for an index of the axes."""
        dims = self.body[name].dims
        return math.prod(dim for dim, axis in zip(dims, self.axis_of[name], strict=True) if axis is None)

    def offsets(self, rows: int) -> tuple[Mapping[str, int], int]:
        """Where the state before and after a trip, and what is kept in it, lie in the shared memory of a block that has
        so many rows, and how many bytes that is."""
        found, size = dict[str, int](), 0
        for name in (*self.carries, *self.kept):
            found[name] = size
            bytes_ = rows * self.inside(name) * BYTES[self.body[name].dtype] * (1 + (name in self.carries))
            size += -(-bytes_ // ALIGNED) * ALIGNED
        return found, size

    def shared_bytes(self, rows: int) -> int:
        return self.offsets(rows)[1]

    def place(self, result: str) -> int:
        """The number of a result's carry or dynamic-update-slice in the body."""
        return self.body.number[result]


def _shown(attributes: Mapping[str, Any]) -> str:
    """Attributes as text, which says nothing of names, or of where they stand in a file."""
    said = {name: value.text if isinstance(value, Computation) else value for name, value in attributes.items()}
    return repr(sorted((name, value) for name, value in said.items() if name != "call"))
