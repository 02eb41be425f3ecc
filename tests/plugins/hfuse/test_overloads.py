"""The list of CUDA's functions that a text may overload: both compilers must know every one of them."""

from __future__ import annotations

import subprocess

import pytest

from fusiond.devices.cpu import commands
from fusiond_hfuse import overloads

USING = f"namespace fusiond_a {{\n{overloads.kept(tuple(sorted(overloads.NAMES)))}}}\n"


@pytest.mark.usefixtures("gxx_here")
def test_the_cpu_device_has_all_of_them(tmp_path):
    source = tmp_path / "names.cpp"
    source.write_text(commands.translation_unit(USING, {}))
    command = commands.kernel(source, tmp_path / "out.so")
    done = subprocess.run([*command, "-fsyntax-only"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.needs_nvcc
def test_nvcc_has_all_of_them(tmp_path):
    source = tmp_path / "names.cu"
    source.write_text(USING)
    done = subprocess.run(
        ["nvcc", "-arch=sm_75", "-ptx", str(source), "-o", str(tmp_path / "out.ptx")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_what_a_text_declares():
    code = "using std::max; using ops :: deep::fminf ; using namespace min; using plain;"
    assert overloads.declared({"atomicAdd", "histogram"}, code) == ("atomicAdd", "fminf", "max")
    assert overloads.kept(("max",)) == "using ::max;\n"
