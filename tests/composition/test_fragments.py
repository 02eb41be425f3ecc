"""A Program of one launch in somebody else's words, and every reason why one cannot be it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fusiond.model.language.extents import ceil_div, size, text_of
from fusiond.model.program import Buffer, Bytes, FillStep, Launch, Pointer, Program, Role, Scalar, Seam, Source
from fusiond.strategy.composition.fragments import Unfit, fragment

X = Buffer(name="a.x", dtype="float32", elements=8, role=Role.INPUT)
Y = Buffer(name="a.y", dtype="float32", elements=8, role=Role.OUTPUT)
LAUNCH = Launch(
    name="k", source="s", entry="k", grid=(2, 1, 1), block=(4, 1, 1), stream=3,
    arguments=(Pointer(buffer="a.x"), Scalar(dtype="int32", value=8), Pointer(buffer="a.y"), Pointer(buffer="a.x")),
)  # fmt: skip
PROGRAM = Program(
    name="p", buffers=(X, Y), sources=(Source(name="s", text="...", entries=("k",)),), steps=(LAUNCH,)
)  # fmt: skip
NAMES = {"x": "photo", "y": "light"}
BYTES = {"photo": 32, "light": 32}


def test_a_launch_in_other_words() -> None:
    found = fragment(PROGRAM, NAMES, BYTES)
    assert (found.reads, found.writes) == (("photo",), ("light",))
    assert found.launch.arguments == (
        Pointer(buffer="photo"), Scalar(dtype="int32", value=8), Pointer(buffer="light"), Pointer(buffer="photo"),
    )  # fmt: skip
    assert (found.launch.grid, found.launch.stream, found.launch.after) == ((2, 1, 1), 0, ())
    assert fragment(PROGRAM, {"a.x": "photo", "a.y": "light"}, BYTES) == found


def test_numbers_follow_from_the_callers_sizes() -> None:
    """Of two sizes one is twice the caller's n, the other stands in the text."""
    rows, depth = size("a.rows", 8), size("a.depth", 3)
    launch = dataclasses.replace(
        LAUNCH, grid=(ceil_div(rows, 4), depth, 1), arguments=(*LAUNCH.arguments, Scalar(dtype="int32", value=rows + 1))
    )
    buffers = tuple(dataclasses.replace(each, elements=rows) for each in (X, Y))
    program = dataclasses.replace(
        PROGRAM, buffers=buffers, steps=(launch,), sizes=(("a.rows", 8), ("a.depth", 3)), fixed=("a.depth",)
    )
    n, d = size("n", 4), size("d", 3)
    found = fragment(program, NAMES, {"photo": 8 * n, "light": 8 * n}, {"a.rows": 2 * n, "a.depth": d})
    assert [text_of(each) for each in found.launch.grid] == ["ceil_div(2 * n, 4)", "d", "1"]
    last = found.launch.arguments[-1]
    assert isinstance(last, Scalar)
    assert isinstance(last.value, int)
    assert text_of(last.value) == "2 * n + 1"
    assert found.fixed == {"d"}
    assert fragment(program, NAMES, {"photo": 32, "light": 8 * n}, {"a.rows": 2 * n}).fixed == {"n"}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"steps": (LAUNCH, dataclasses.replace(LAUNCH, name="again"))}, "2 steps"),
        ({"steps": (FillStep(name="f", buffer="a.y", byte=0),)}, "1 steps"),
        ({"seams": (Seam(name="dot", operation="dot", reads=("a.x",), writes=("a.y",)),)}, "leaves dot to a library"),
        ({"buffers": (X, dataclasses.replace(Y, role=Role.INOUT))}, "uses a.y as inout"),
        ({"buffers": (X, dataclasses.replace(Y, role=Role.SCRATCH))}, "uses a.y as scratch"),
        ({"buffers": (X, dataclasses.replace(Y, elements=9))}, "a.y has 36 bytes, and light 32"),
        ({"buffers": (X, dataclasses.replace(Y, symbol="s:v"))}, "not plain device memory"),
        ({"steps": (dataclasses.replace(LAUNCH, arguments=(Bytes(hex="00"),)),)}, "passes a struct"),
    ],
)
def test_what_cannot_stand_for_kernels(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(Unfit, match=why):
        fragment(dataclasses.replace(PROGRAM, **changed), NAMES, BYTES)


def test_names_that_stand_for_nothing_and_for_both_sides() -> None:
    with pytest.raises(Unfit, match=r"a\.y, which stands for nothing"):
        fragment(PROGRAM, {"x": "photo"}, BYTES)
    with pytest.raises(Unfit, match="reads and writes photo"):
        fragment(PROGRAM, {"x": "photo", "y": "photo"}, BYTES)
