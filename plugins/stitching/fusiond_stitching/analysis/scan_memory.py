"""Shared memory of a loop that a block runs: the state before and after a trip, and the values of each trip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusiond_stitching.frontend.graph import BYTES
from fusiond_stitching.frontend.scan_loop import Loop

ALIGNED = 16


@dataclass(frozen=True, slots=True)
class ScanLayout:
    """Where everything lies, in bytes."""

    offsets: Mapping[str, int]
    size: int


def layout(loop: Loop, rows: int) -> ScanLayout:
    """For a block that has so many rows."""
    offsets: dict[str, int] = {}
    size = 0
    for name in (*loop.carries, *loop.kept):
        offsets[name] = size
        bytes_ = rows * loop.inside(name) * BYTES[loop.body[name].dtype] * (1 + (name in loop.carries))
        size += -(-bytes_ // ALIGNED) * ALIGNED
    return ScanLayout(offsets, size)
