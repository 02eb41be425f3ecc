"""Every header that may stand above the namespaces: both compilers take all of them in one file, behind each other."""

import subprocess

import pytest

from fusiond.build.cpu import commands
from fusiond.build.cpu.lowering import lower
from fusiond_hfuse.frontend.includes import HOISTED

TEXT = (
    "".join(f"#include <{name}>\n" for name in sorted(HOISTED)) + "__global__ void k(int* p) { p[threadIdx.x] = 1; }\n"
)


@pytest.mark.slow
@pytest.mark.usefixtures("gxx_here")
def test_the_cpu_device_takes_all_headers(tmp_path):
    source = tmp_path / "headers.cpp"
    source.write_text(commands.translation_unit(lower(TEXT), {"k": "k"}))
    command = [*commands.kernel(source, tmp_path / "out.so"), "-fsyntax-only"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.needs_nvcc
def test_nvcc_takes_all_headers(tmp_path):
    source = tmp_path / "headers.cu"
    source.write_text(TEXT)
    command = ["nvcc", "-arch=sm_90", "-ptx", str(source), "-o", str(tmp_path / "out.ptx")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
