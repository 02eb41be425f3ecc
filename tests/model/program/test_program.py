"""A plan's invariants, its key, and its JSON form."""

import contextlib
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusiond.model.program import (
    Alloc,
    Buffer,
    Bytes,
    Compare,
    Copy,
    Fill,
    FillStep,
    Free,
    HostCall,
    Launch,
    Memory,
    Pointer,
    Prefetch,
    Program,
    Role,
    Scalar,
    Source,
    SourceKind,
    SourceLanguage,
    decode,
    encode,
    problems,
    to_text,
)

SOURCES = (
    Source(name="dev", text="__global__ void f() {}", entries=("f", "g<float, 5>"), symbols=("table",),
           defines=(("A", "1"), ("B", "")), include_dirs=("/x",), flags=("-fmad=false",), register_cap=32),
    Source(name="host", kind=SourceKind.HOST, text='extern "C" void h() {}', entries=("h",)),
)  # fmt: skip
BUFFERS = (
    Buffer(name="x", dtype="float32", elements=8, role=Role.INPUT, fill=Fill(kind="uniform"), arena="left"),
    Buffer(name="y", dtype="float32", elements=8, role=Role.INPUT, arena="left", offset_bytes=64),
    Buffer(name="u", dtype="float32", elements=8, role=Role.SCRATCH, arena="right", offset_bytes=128),
    Buffer(name="v", dtype="float32", elements=8, role=Role.SCRATCH, arena="right", offset_bytes=192),
    Buffer(name="out", dtype="float64", elements=3, role=Role.OUTPUT, compare=Compare(kind="close", rtol=1e-5)),
    Buffer(name="acc", dtype="int32", elements=2, role=Role.INOUT, reset="never", memory=Memory.PINNED),
    Buffer(name="lut", dtype="uint8", elements=16, role=Role.INPUT, symbol="dev:table"),
    Buffer(name="p", dtype="int8", elements=4, role=Role.SCRATCH, memory=Memory.MANAGED, arena="pages"),
    Buffer(name="q", dtype="int8", elements=4, role=Role.SCRATCH, memory=Memory.MANAGED, arena="pages", offset_bytes=8),
)
STEPS: tuple[Any, ...] = (
    Alloc(name="alloc", arena="right", counted=False),
    Copy(name="up", source=("x", "y"), target=("u", "v"), stream=1, after=("alloc",)),
    FillStep(name="clear", buffer="acc", byte=255),
    Launch(
        name="run", source="dev", entry="g<float, 5>", grid=(2, 1, 1), block=(32, 2, 1), shared_bytes=16,
        arguments=(Pointer(buffer="u"), Scalar(dtype="int32", value=-3), Scalar(dtype="float32", value=0.5),
                   Bytes(hex="00ff"), Bytes(hex="00" * 24, pointers=((0, "x"), (16, "out")))),
        stream=2, after=("up", "clear"),
    ),
    HostCall(name="call", source="host", entry="h", arguments=(Pointer(buffer="acc"),), after=("run",)),
    Free(name="free", arena="right", after=("call",)),
    Prefetch(name="fetch", buffers=("p", "q"), to_device=True, stream=3),
)  # fmt: skip
PROGRAM = Program(name="all kinds", buffers=BUFFERS, sources=SOURCES, steps=STEPS)


def changed(where: str, index: int, **fields: Any) -> Program:
    items = list(getattr(PROGRAM, where))
    items[index] = dataclasses.replace(items[index], **fields)
    return dataclasses.replace(PROGRAM, **{where: tuple(items)})


def test_a_sound_plan_has_no_problems() -> None:
    assert problems(PROGRAM) == ()


def test_plan_json_is_the_whole_plan() -> None:
    text = to_text(PROGRAM)
    again = decode(json.loads(text))
    assert again == PROGRAM
    assert again.key == PROGRAM.key
    assert to_text(again) == text
    assert text.isascii()


def test_the_key_is_the_content_without_the_name() -> None:
    assert dataclasses.replace(PROGRAM, name="other").key == PROGRAM.key


def test_keys_are_those_from_before_sources_had_a_language() -> None:
    assert (PROGRAM.key, PROGRAM.work_key) == ("d4a86e57c55af8b5253b633da0c2b2dd", "d4a86e57c55af8b5253b633da0c2b2dd")
    assert all("language" not in each for each in encode(PROGRAM)["sources"])


PTX = Source(name="p", text=".version 8.0\n.target sm_90a, debug\n", entries=("f",), language=SourceLanguage.PTX)


def test_ptx_is_a_language_of_sources() -> None:
    program = dataclasses.replace(PROGRAM, sources=(*SOURCES, PTX))
    assert problems(program) == ()
    again = decode(json.loads(to_text(program)))
    assert again == program
    assert again.source("p").language is SourceLanguage.PTX
    assert (
        program.key
        != dataclasses.replace(program, sources=(*SOURCES, dataclasses.replace(PTX, language=SourceLanguage.CUDA))).key
    )


@pytest.mark.parametrize(
    ("target", "arch", "built"),
    [("sm_80", "sm_90", "sm_90"), ("sm_90a", "sm_90", "sm_90a"), ("sm_100f", "sm_103", "sm_103f"),
     ("sm_90", "sm_90", "sm_90"), ("sm_90a", "sm_90a", "sm_90a")],
)  # fmt: skip
def test_ptx_says_itself_what_it_is_built_for(target: str, arch: str, built: str) -> None:
    text = f".version 8.0\n.target {target}\n// wgmma in a comment\n"
    assert dataclasses.replace(PTX, text=text).target(arch) == built


@pytest.mark.parametrize(
    ("changes", "problem"),
    [({"defines": (("A", "1"),)}, "source 'p' is PTX and has defines"),
     ({"include_dirs": ("/x",)}, "source 'p' is PTX and has include_dirs"),
     ({"kind": SourceKind.HOST}, "source 'p' is PTX and host code")],
)  # fmt: skip
def test_what_ptx_cannot_have(changes: dict[str, Any], problem: str) -> None:
    program = dataclasses.replace(PROGRAM, sources=(*SOURCES, dataclasses.replace(PTX, **changes)))
    assert problems(program) == (problem,)


LEAVES: list[Callable[[], Program]] = [
    *(lambda i=i, f=f, v=v: changed("buffers", i, **{f: v}) for i, f, v in [  # type: ignore[misc]
        (0, "elements", 7), (0, "fill", Fill(kind="normal")), (0, "fill", Fill(kind="uniform", high=2.0)),
        (0, "offset_bytes", 4), (4, "compare", Compare()), (5, "reset", "each_run"), (5, "memory", Memory.DEVICE),
        (6, "symbol", None), (0, "role", Role.INOUT)]),
    *(lambda i=i, f=f, v=v: changed("sources", i, **{f: v}) for i, f, v in [  # type: ignore[misc]
        (0, "text", "other"), (0, "register_cap", None), (0, "flags", ()), (0, "defines", ()), (1, "text", "")]),
    *(lambda i=i, f=f, v=v: changed("steps", i, **{f: v}) for i, f, v in [  # type: ignore[misc]
        (0, "counted", True), (1, "stream", 0), (1, "after", ()), (2, "byte", 0), (3, "grid", (1, 1, 1)),
        (3, "shared_bytes", 0), (3, "arguments", ()), (4, "arguments", (Bytes(hex="00"),)),
        (3, "arguments", (Bytes(hex="00" * 8, pointers=((0, "y"),)),)), (6, "to_device", False),
        (6, "buffers", ("p",))]),
    lambda: dataclasses.replace(PROGRAM, issue="graph"),
]  # fmt: skip


def test_a_stored_plan_for_several_devices_is_refused_in_a_line() -> None:
    plan = encode(PROGRAM)
    plan["buffers"][0]["device"] = 1
    with pytest.raises(ValueError, match="the plan is for several devices"):
        decode(plan)


def test_every_part_of_the_content_changes_the_key() -> None:
    keys = [each().key for each in LEAVES]
    assert len({PROGRAM.key, *keys}) == len(LEAVES) + 1


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        (changed("buffers", 0, name="y"), "two buffers are called 'y'"),
        (changed("buffers", 0, dtype="float8"), "unknown dtype 'float8'"),
        (changed("buffers", 0, elements=0), "0 elements"),
        (changed("buffers", 0, elements=17), "'x' and 'y' overlap"),
        (changed("buffers", 1, offset_bytes=62), "not aligned at offset 62"),
        (changed("buffers", 0, offset_bytes=-4), "offset -4"),
        (changed("buffers", 0, memory=Memory.PINNED), "mixes kinds of memory"),
        (changed("buffers", 0, fill=Fill(kind="random")), "unknown fill 'random'"),
        (changed("buffers", 0, reset="sometimes"), "not each_run or never"),
        (changed("buffers", 4, name="left"), "'left' is the name of an arena"),
        (changed("buffers", 6, symbol="dev:other"), "unknown variable 'dev:other'"),
        (changed("buffers", 6, symbol="nowhere:table"), "unknown variable"),
        (changed("sources", 1, name="dev"), "two sources are called 'dev'"),
        (changed("steps", 0, name="up"), "two steps are called 'up'"),
        (changed("steps", 0, arena="nowhere"), "unknown arena 'nowhere'"),
        (changed("steps", 0, arena="u"), "unknown arena 'u'"),
        (changed("steps", 1, after=("run",)), "'up' waits for 'run', which is not listed before it"),
        (changed("steps", 1, after=("up",)), "waits for 'up'"),
        (changed("steps", 1, target=("u",)), "copies 2 buffers to 1"),
        (changed("steps", 1, source=(), target=()), "copies 0 buffers to 0"),
        (changed("steps", 1, source=("x", "out")), "another size"),
        (changed("steps", 1, source=("x", "nil")), "unknown buffer 'nil'"),
        (changed("steps", 1, source=("y", "x"), target=("v", "u")), "do not lie in this order"),
        (changed("steps", 1, source=("x", "u")), "do not lie in one arena"),
        (changed("buffers", 3, offset_bytes=256), "laid out otherwise"),
        (changed("steps", 2, buffer="nil"), "unknown buffer 'nil'"),
        (changed("steps", 3, source="nil"), "unknown source 'nil'"),
        (changed("steps", 3, source="host", entry="h"), "needs a device source"),
        (changed("steps", 4, source="dev", entry="f"), "needs a host source"),
        (changed("steps", 3, entry="zzz"), "unknown entry 'zzz'"),
        (changed("steps", 3, grid=(0, 1, 1)), "has the grid"),
        (changed("steps", 3, block=(32, 1)), "has the block"),
        (changed("steps", 3, shared_bytes=-1), "-1 bytes of shared memory"),
        (changed("steps", 3, arguments=(Pointer(buffer="nil"),)), "unknown buffer 'nil'"),
        (changed("steps", 3, arguments=(Scalar(dtype="int32", value=2**31),)), "is not of type int32"),
        (changed("steps", 3, arguments=(Bytes(hex="00" * 16, pointers=((0, "no"),)),)), "to the unknown buffer 'no'"),
        (changed("steps", 3, arguments=(Bytes(hex="00" * 16, pointers=((4, "x"),)),)), "an address at byte 4"),
        (changed("steps", 3, arguments=(Bytes(hex="00" * 16, pointers=((16, "x"),)),)), "at byte 16 of a struct of 16"),
        (changed("steps", 3, arguments=(Bytes(hex="00" * 8, pointers=((0, "lut"),)),)), "'lut', which is a variable"),
        (changed("steps", 3, arguments=(Bytes(hex="00" * 8, pointers=((0, "u"),)),)), "'u' inside a struct"),
        (changed("steps", 3, arguments=(Scalar(dtype="uint8", value=-1),)), "is not of type uint8"),
        (changed("steps", 3, arguments=(Scalar(dtype="int32", value=0.5),)), "is not of type int32"),
        (changed("steps", 3, arguments=(Scalar(dtype="quad", value=1),)), "is not of type quad"),
        (changed("steps", 6, buffers=("p", "acc")), "prefetches 'acc', which is not in managed memory"),
        (changed("steps", 6, buffers=("q", "p")), "prefetches q, p, which do not lie in this order"),
        (changed("buffers", 8, arena=None), "prefetches p, q, which do not lie in one arena"),
        (changed("steps", 6, buffers=()), "prefetches nothing"),
        (changed("steps", 6, buffers=("nil",)), "unknown buffer 'nil'"),
        (changed("steps", 0, arena="pages", pooled=True), "takes 'pages' from the device's pool, and it is managed"),
        (dataclasses.replace(PROGRAM, issue="eager"), "not streams or graph"),
        (dataclasses.replace(PROGRAM, steps=()), "nothing to time"),
    ],
)  # fmt: skip
def test_each_broken_invariant_is_named(program: Program, problem: str) -> None:
    found = problems(program)
    assert any(problem in line for line in found), found
    assert all(len(line.splitlines()) == 1 for line in found)


def test_a_run_may_not_step_over_a_buffer() -> None:
    between = Buffer(name="w", dtype="int32", elements=1, role=Role.SCRATCH, arena="left", offset_bytes=40)
    program = dataclasses.replace(PROGRAM, buffers=(*BUFFERS, between))
    assert any("copies over 'w'" in line for line in problems(program))


def test_a_run_of_parts_may_not_step_over_one() -> None:
    """Three parts of a buffer, and of its copy, then another buffer: a run names all that it goes over."""
    buffers = []
    for arena in ("here", "there"):
        base = {"dtype": "int8", "role": Role.SCRATCH, "arena": arena}
        buffers += [Buffer(name=f"x@{arena}", elements=12, **base),
                    Buffer(name=f"y@{arena}", elements=4, offset_bytes=16, **base)]  # fmt: skip
        buffers += [
            Buffer(name=f"{k}@{arena}", elements=4, offset_bytes=4 * k, part_of=f"x@{arena}", **base) for k in range(3)
        ]

    def found(*names: object) -> tuple[str, ...]:
        source, target = (tuple(f"{name}@{arena}" for name in names) for arena in ("here", "there"))
        copy = Copy(name="c", source=source, target=target)
        return problems(Program(name="p", buffers=tuple(buffers), sources=(), steps=(copy,)))

    assert found(0, 1, 2, "y") == found(1, 2, "y") == found("x", "y") == found(0, 1) == ()
    for names in ((0, 2), (1, "y"), (0, 2, "y")):
        assert any("copies over 'x@here', which lies between" in line for line in found(*names)), names


PLAN = encode(PROGRAM)


@given(st.data())
def test_a_damaged_plan_is_refused_and_nothing_else(data: st.DataObject) -> None:
    """Anything but a plan is a ValueError, whichever part is missing or of another type."""
    plan = json.loads(json.dumps(PLAN))
    node = plan
    while True:
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        inner = node[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        node = inner
    if data.draw(st.booleans()):
        del node[key]
    else:
        node[key] = data.draw(st.sampled_from([None, 3, "text", [], {}, [1], {"a": 1}]))
    with contextlib.suppress(ValueError):
        decode(plan)


def test_a_part_lies_within_its_whole() -> None:
    part = Buffer(name="x#1", dtype="float32", elements=4, role=Role.SCRATCH, arena="left", offset_bytes=8, part_of="x")

    def with_part(**fields: Any) -> Program:
        return dataclasses.replace(PROGRAM, buffers=(*BUFFERS, dataclasses.replace(part, **fields)))

    assert problems(with_part()) == (), "a part may overlap its whole, and a run of wholes may step over it"
    again = decode(json.loads(to_text(with_part())))
    assert (again, again.key) == (with_part(), with_part().key) != (PROGRAM, PROGRAM.key)
    assert "part_of" not in to_text(PROGRAM), "older programs keep their keys"
    for fields, problem in (
        ({"part_of": "nil"}, "a part of 'nil', which is not a buffer"),
        ({"part_of": "x#1"}, "a part of 'x#1', which is not a buffer, or a part itself"),
        ({"part_of": "u"}, "differs from 'u'"),
        ({"dtype": "int64"}, "differs from 'x'"),
        ({"role": Role.INPUT}, "has the role input"),
        ({"elements": 400}, "reaches beyond 'x'"),
        ({"part_of": "y"}, "reaches beyond 'y'"),
    ):
        found = problems(with_part(**fields))
        assert any(problem in line for line in found), (fields, found)
