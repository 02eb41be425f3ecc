"""Guard zones: a write that misses its buffer is seen, wherever it lands within a zone, and blamed on the right one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusiond.devices.cpu.memory import ALIGNMENT_BYTES, GUARD_BYTES, HostAllocation
from fusiond.model.language.dtypes import DTYPES
from fusiond.model.language.narrow import numpy_dtype
from fusiond.model.program import Buffer, Role


def buffer(name: str, dtype: str = "uint8", elements: int = 100, offset: int = 0) -> Buffer:
    return Buffer(name=name, dtype=dtype, elements=elements, role=Role.SCRATCH, arena="a", offset_bytes=offset)


def raw(block: HostAllocation) -> np.ndarray:
    return block._bytes


def first(block: HostAllocation) -> int:
    """Where in these the first byte of the allocation lies."""
    return int(block.inside.ctypes.data - raw(block).ctypes.data)


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_are_the_buffers(dtype: str) -> None:
    block = HostAllocation("x", [buffer("x", dtype, 7)])
    view = block.views["x"]
    assert (view.shape, view.dtype) == ((7,), numpy_dtype(dtype))
    assert view.ctypes.data % ALIGNMENT_BYTES == 0
    view[:] = 1
    assert list(block.broken()) == []


@given(st.integers(0, 2 * GUARD_BYTES + 99), st.integers(0, 255))
def test_one_byte_anywhere_outside_is_seen(place: int, value: int) -> None:
    block = HostAllocation("x", [buffer("x")])
    begin = first(block)
    inside = begin <= place < begin + 100
    changed = raw(block)[place] != value
    raw(block)[place] = value
    where = "before x" if place < begin else "behind x"
    assert list(block.broken()) == ([] if inside or not changed else [f"1 bytes written {where}"])
    assert list(block.broken()) == []


def test_every_gap_of_an_arena_is_a_zone_of_its_own() -> None:
    block = HostAllocation("a", [buffer("second", offset=256), buffer("first", offset=16), buffer("third", offset=356)])
    for view in block.views.values():
        view[:] = 9
    assert list(block.broken()) == []
    for place in (-GUARD_BYTES, 15, 116, 255, 456):
        raw(block)[first(block) + place] = 1
    assert list(block.broken()) == [
        "2 bytes written before first",
        "2 bytes written between first and second",
        "1 bytes written behind third",
    ]


def test_what_is_freed_holds_a_pattern() -> None:
    block = HostAllocation("a", [buffer("x", "float32", 8), buffer("y", "bool", 8, offset=64)])
    for view in block.views.values():
        view[:] = 1
    block.release()
    assert not block.live
    assert (block.views["x"].view(np.uint8) == 0xDD).all()
    assert list(block.broken()) == []
