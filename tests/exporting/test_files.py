"""The files of an export: the plan is the Program, sources are untouched, README.txt says what is there."""

import dataclasses
import json
from pathlib import Path

import pytest

from fusiond.build.exporting.adapters import adapter
from fusiond.build.exporting.files import export
from fusiond.build.exporting.launch import __file__ as launcher
from fusiond.model.language.extents import size
from fusiond.model.program import Alloc, Buffer, Program, Role, decode, problems
from tests.exporting import programs
from tests.exporting.programs import CASES


def files(program: Program) -> dict[str, bytes]:
    return dict(export(program, about={"verdict": "fuse"}, binaries={}, arch=None))


@pytest.mark.parametrize("name", CASES)
def test_the_plan_is_the_program(name: str) -> None:
    program = CASES[name]().program
    plan = json.loads(files(program)["plan.json"])
    assert plan["program_key"] == program.key == decode(plan).key
    other = CASES[name]().sizes
    assert decode(plan).at(other).key == program.at(other).key


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_sources_word_for_word_and_the_same_files_for_the_same_program(name: str) -> None:
    program = CASES[name]().program
    found = files(program)
    for source in program.sources:
        assert found[f"{source.name}.{'cu' if source.kind == 'device' else 'cpp'}"] == source.text.encode()
    assert found["launch.py"] == Path(launcher).read_bytes()
    assert found == files(CASES[name]().program)
    said = found["README.txt"].decode()
    for file in set(found) - {"README.txt"}:
        assert file in said
    for seam in program.seams:
        assert f"{seam.name}: {seam.operation}" in said
    assert max(map(len, said.splitlines())) <= 130


def test_readme_says_what_the_user_must_do() -> None:
    program = programs.one().program
    source = dataclasses.replace(
        program.sources[0], text="__global__ void __launch_bounds__(64) add() {}", register_cap=40,
        flags=("-lineinfo",), include_dirs=("/opt/theirs",), defines=(("N", "4"),),
    )  # fmt: skip
    said = files(dataclasses.replace(program, sources=(source,)))["README.txt"].decode()
    assert "nvcc -arch=native -std=c++17 -O3 -lineinfo -I/opt/theirs -maxrregcount=40 -c basic.entries.cu" in said
    assert "nvcc ignores -maxrregcount for kernels with __launch_bounds__" in " ".join(said.split())
    assert "__maxnreg__(40)" in said
    assert "headers from /opt/theirs" in said
    for name, note in (
        ("graph", "captured into a CUDA graph"),
        ("structs", "call set_lut"),
        ("transfers", "call place_in."),
        ("several", "k  5  fixed: the source depends on it"),
        ("transfers", "allocate(sizes) returns NumPy arrays"),
        ("transfers", "cudaMemcpyBatchAsync (C++: CUDA 12.8; Python: a driver of CUDA 13)"),
    ):
        said = " ".join(files(CASES[name]().program)["README.txt"].decode().split())
        assert " ".join(note.split()) in said, note


def test_adapters_carry_defines_and_rename_entries() -> None:
    program = programs.structs().program
    text = adapter(program, program.sources[0])
    assert "#define LENGTH 8\n" in text
    assert f"#define wide wide_{program.key[:8]}_0\n" in text
    text = adapter(programs.cooperative().program, programs.cooperative().program.sources[0])
    assert text.index("#include <cooperative_groups.h>") < text.index("#define sums")


def test_a_plan_that_allocates_an_argument_cannot_be_called() -> None:
    n = size("n", 10)
    buffers = (Buffer(name="y", dtype="float32", elements=n, role=Role.OUTPUT, arena="block"),)
    program = Program(
        name="p", buffers=buffers, sources=(), steps=(Alloc(name="a", arena="block"),), sizes=(("n", 10),)
    )
    assert problems(program) == ()
    with pytest.raises(ValueError, match="the plan itself allocates 'block', which holds the argument 'y'"):
        files(program)
