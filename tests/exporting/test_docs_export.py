"""The examples of docs/export.md are programs: the C++ one compiles against an export, the Python one parses."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from fusiond.build.exporting import launch
from fusiond.build.exporting.adapters import space
from fusiond.build.exporting.files import file_stem
from tests.exporting import programs
from tests.exporting.test_launch_cxx import ABI, STUB, run, written

TEXT = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_example_in_cxx_compiles(tmp_path: Path, gxx_here: None) -> None:
    program = dataclasses.replace(programs.two_streams().program, name="documented")
    written(program, tmp_path / "out")
    text = blocks("cpp")[0].replace("fusiond_5f0c9a1e", space(program)).replace("launch_5f0c9a1e", file_stem(program))
    head = "#define cudaStreamCreate(stream) cudaStreamCreateWithFlags(stream, 0)\n"
    (tmp_path / "out" / "main.cpp").write_text("#include <cstdio>\n" + text.replace("int main", f"{head}int main"))
    stub = tmp_path / "stub"
    stub.mkdir()
    typed = (
        "template <class T> cudaError_t cudaMalloc(T** to, std::size_t size) { return cudaMalloc((void**)to, size); }\n"
    )
    (stub / "cuda_runtime.h").write_text((STUB / "cuda_runtime.h").read_text() + typed)
    run(
        ["g++", "-std=c++17", "-Wall", "-Werror", f"-I{stub}", f'-DSTUB_ABI="{ABI}"', "-c", "main.cpp"],
        tmp_path / "out",
    )


def test_the_examples_in_python_are_python() -> None:
    assert len(blocks("python")) == 2
    for text in blocks("python"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module == "launch":
                assert all(hasattr(launch, each.name) for each in node.names)
