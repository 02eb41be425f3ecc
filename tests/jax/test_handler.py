"""The handler's part for GPUs, where there is none: a stand-in for the driver does what it is asked for. And plans that
are refused."""

import ctypes
import dataclasses
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fusiond.model.program import (
    Buffer,
    Bytes,
    Copy,
    FillStep,
    Launch,
    Memory,
    Pointer,
    Program,
    Role,
    Scalar,
    Seam,
    Source,
)
from fusiond.service.frameworks import launching
from fusiond.service.frameworks.launching import Unusable

pytest.importorskip("jax", reason="needs JAX: pip install 'fusiond[jax]'")


def program() -> Program:
    """out_0 = 3 * in_0 + 2 * in_0, by way of scratch memory in an arena."""

    def buffer(name: str, role: Role, **more: Any) -> Buffer:
        return Buffer(name=name, dtype="float32", elements=10, role=role, **more)

    pointers = ((0, "t"), (16, "out_0"))
    both = Bytes(hex=(bytes(8) + (10).to_bytes(4, "little") + bytes(12)).hex(), pointers=pointers)
    scale = Launch(
        name="a", source="one", entry="scale", grid=(2, 1, 1), block=(64, 1, 1), shared_bytes=60 << 10, carveout_pct=50,
        arguments=(Pointer(buffer="in_0"), Pointer(buffer="t"), Scalar(dtype="float32", value=1.0),
                   Scalar(dtype="int32", value=10)),
    )  # fmt: skip
    again = dataclasses.replace(
        scale, name="c", arguments=(*scale.arguments[:1], Pointer(buffer="out_0"), Scalar(dtype="float32", value=3.0),
                                    scale.arguments[3]), shared_bytes=50 << 10, carveout_pct=None, cooperative=True,
    )  # fmt: skip
    twice = Launch(
        name="d", source="two", entry="twice", grid=(1, 1, 1), block=(32, 1, 1), shared_bytes=512, arguments=(both,)
    )
    return Program(
        name="p",
        buffers=(buffer("in_0", Role.INPUT), buffer("out_0", Role.OUTPUT), buffer("s", Role.SCRATCH, arena="A"),
                 buffer("t", Role.SCRATCH, arena="A", offset_bytes=256)),
        sources=(Source(name="one", text="", entries=("scale",)), Source(name="two", text="", entries=("twice",))),
        steps=(FillStep(name="z", buffer="s", byte=1), scale, again, twice),
    )  # fmt: skip


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory, gxx_here: None) -> Path:
    out = tmp_path_factory.mktemp("driver") / "libdriver.so"
    source = Path(__file__).with_name("stub_driver.cpp")
    subprocess.run(["g++", "-std=c++17", "-O0", "-fPIC", "-shared", str(source), "-o", str(out)], check=True)
    return out


def launch(driver: Path, plan: Any, images: list[bytes], buffers: list[Any]) -> str:
    from fusiond.jax import ffi

    library = ctypes.CDLL(str(ffi.build()))
    held = [ctypes.create_string_buffer(each, len(each)) for each in images]
    pointers = (ctypes.c_char_p * len(held))(*(ctypes.cast(each, ctypes.c_char_p) for each in held))
    sizes = (ctypes.c_size_t * len(held))(*map(len, images))
    addresses = (ctypes.c_void_p * len(buffers))(*(each.ctypes.data for each in buffers))
    words = np.ascontiguousarray(plan.words)
    problem = ctypes.create_string_buffer(300)
    library.fusiond_launch_with(
        str(driver).encode(), ctypes.c_void_p(words.ctypes.data), ctypes.c_size_t(len(words)),
        "\n".join(plan.entries).encode(), pointers, sizes, ctypes.c_size_t(len(images)), addresses,
        ctypes.c_size_t(len(buffers)), ctypes.c_void_p(7), problem, ctypes.c_size_t(300),
    )  # fmt: skip
    return problem.value.decode()


def test_the_driver_is_asked_for_what_the_plan_says(driver: Path) -> None:
    plan = launching.flat(program(), ["in_0"], ["out_0"])
    x, y, scratch = np.arange(10, dtype=np.float32), np.zeros(10, np.float32), np.zeros(256 // 4 + 10, np.float32)
    stub = ctypes.CDLL(str(driver))
    stub.clear()
    assert launch(driver, plan, [b"cubin 1", b"cubin 2"], [x, y, scratch]) == ""
    np.testing.assert_array_equal(y, 5 * x)
    np.testing.assert_array_equal(scratch[64:], x)
    assert scratch[:10].view(np.uint8).tolist() == [1] * 40
    stub.log_of_driver.restype = ctypes.c_char_p
    assert stub.log_of_driver().decode().strip() == (
        "load load attribute 8=61440 attribute 9=50 attribute 8=512 fill 40 launch 2x64 shared 61440 stream 7 "
        "cooperative launch 2x64 shared 51200 stream 7 launch 1x32 shared 512 stream 7"
    )


@pytest.mark.parametrize(
    ("change", "images", "said"),
    [
        (lambda plan: plan, [b"elf", b"cubin"], "cuModuleLoadData: device kernel image is invalid"),
        (lambda plan: dataclasses.replace(plan, entries=("scale", "thrice")), [b"cubin", b"cubin"],
         "thrice: named symbol not found"),
        (lambda plan: SimpleNamespace(entries=plan.entries, words=plan.words + (np.arange(len(plan.words)) == 0)),
         [b"cubin", b"cubin"], "this plan is of another version of fusiond"),
        (lambda plan: SimpleNamespace(entries=plan.entries, words=plan.words[:-1]), [b"cubin", b"cubin"],
         "this plan is of another version of fusiond"),
    ],
)  # fmt: skip
def test_what_the_driver_refuses_is_one_line(
    driver: Path, change: Callable[[Any], Any], images: list[bytes], said: str
) -> None:
    plan = change(launching.flat(program(), ["in_0"], ["out_0"]))
    buffers = [np.zeros(100, np.float32) for _ in range(3)]
    assert launch(driver, plan, images, buffers) == said


def changed(**more: Any) -> Program:
    return dataclasses.replace(program(), **more)


def rebuffered(of: str, /, **more: Any) -> Program:
    found = program()
    buffers = tuple(dataclasses.replace(each, **more) if each.name == of else each for each in found.buffers)
    return dataclasses.replace(found, buffers=buffers)


SEAM = Seam(name="dot.1", operation="a dot", reads=("in_0",), writes=("out_0",))
COPY = Copy(name="k", source=("in_0",), target=("out_0",))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (changed(seams=(SEAM,)), "it leaves dot.1 to a library"),
        (changed(steps=(COPY,)), r"k is not a launch \(Copy\)"),
        (rebuffered("in_0", role=Role.INOUT), "in_0 is not an argument of the region"),
        (rebuffered("in_0", memory=Memory.PINNED), "in_0 is not plain device memory"),
        (rebuffered("in_0", arena="B"), "in_0 lies in an arena"),
        (rebuffered("out_0", name="out_7"), "out_7 is not an argument of the region"),
        (changed(buffers=program().buffers[:1]), "the program has no out_0"),
        (changed(sources=(dataclasses.replace(program().sources[0], symbols=("c",)),)), "variables in constant memory"),
    ],
)
def test_programs_that_cannot_be_launched_from_another(made: Program, said: str) -> None:
    with pytest.raises(Unusable, match=said):
        launching.flat(made, ["in_0"], ["out_0"])
