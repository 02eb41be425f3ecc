"""What `best --export` writes for a module: programs without fusiond launch it."""

# ruff: noqa: N802 (the driver's own names)
from __future__ import annotations

import ctypes
import itertools
import subprocess

import numpy as np
import pytest

from fusiond.program import Launch
from fusiond_stitching import export, planner

from .checking import Batch
from .policies import LIMITS, POLICIES
from .test_catalogue_results import module


@pytest.fixture(scope="module", params=[("w2v_step", "grid"), ("lr_step", "paper")], ids=str)
def exported(request):
    name, policy = request.param
    batch = module(name)
    program = batch.program(planner.plan(batch.module, POLICIES[policy], LIMITS).plan)
    return batch, program, export.files(batch.module, program)


def launcher(text: str) -> dict:
    found = {"__name__": "launch"}
    exec(text, found)  # our own text; that it runs is what is tested
    return found


class Driver:
    """Stands in for libcuda: remembers what was launched."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.launched: list[tuple] = []

    def cuModuleLoad(self, module, path):
        module._obj.value = 7
        return 0

    def cuModuleGetFunction(self, function, module, name):
        function._obj.value = 100 + len(self.names)
        self.names[function._obj.value] = name.decode()
        return 0

    def cuFuncSetAttribute(self, function, attribute, value):
        assert attribute == 8
        return 0

    def cuLaunchKernel(self, function, *shape):
        return self._launch(function, shape[:-1], cooperative=False)

    def cuLaunchCooperativeKernel(self, function, *shape):
        return self._launch(function, shape, cooperative=True)

    def _launch(self, function, shape, *, cooperative):
        *sizes, _, arguments = shape
        values = [ctypes.cast(each, ctypes.POINTER(ctypes.c_void_p))[0] for each in arguments]
        self.launched.append((self.names[function.value], tuple(sizes), cooperative, values))
        return 0


def test_the_files(exported):
    _, program, files = exported
    assert set(files) == {"module.cu", "module.h", "launch.py", "README.txt"}
    assert files["module.cu"] == program.sources[0].text
    for step in program.steps:
        assert step.name in files["README.txt"]


def test_python_launches_what_the_program_has(exported):
    _, program, files = exported
    python = launcher(files["launch.py"])
    driver = Driver()
    kernels = python["Kernels"]("module.cubin", driver)
    names = [*python["INPUTS"], *python["OUTPUTS"], "scratch"]
    pointers = {name: (place + 1) << 32 for place, name in enumerate(names)}
    kernels.launch(pointers, stream=5)
    places = {**pointers, **{name: pointers["scratch"] + at for name, at in python["SCRATCH"].items()}}
    wanted = [
        (each.entry, (*each.grid, *each.block, each.shared_bytes), each.cooperative,
         [places[argument.buffer] for argument in each.arguments])
        for each in program.steps if isinstance(each, Launch)
    ]  # fmt: skip
    assert driver.launched == wanted
    ends = sorted((at, at + program.buffer(name).size_bytes) for name, at in python["SCRATCH"].items())
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ends))
    assert max(end for _, end in ends) <= python["SCRATCH_BYTES"]
    with pytest.raises(ValueError, match="in_0"):
        kernels.launch({})


def test_an_error_of_the_driver_is_raised(exported):
    _, _, files = exported

    class Broken(Driver):
        def cuLaunchKernel(self, function, *shape):
            return 701

    python = launcher(files["launch.py"])
    kernels = python["Kernels"]("module.cubin", Broken())
    pointers = dict.fromkeys([*python["INPUTS"], *python["OUTPUTS"], "scratch"], 4096)
    with pytest.raises(RuntimeError, match="cuLaunchKernel: CUDA error 701"):
        kernels.launch(pointers)


MAIN = """\
#include "module.h"
#include <cstdio>
int main()
{
    std::printf("%zu\\n", stitched::scratch_bytes);
    return stitched::launch(ARGUMENTS) == cudaSuccess ? 0 : 0;
}
"""


@pytest.mark.slow
@pytest.mark.needs_nvcc
def test_cpp_builds_it(tmp_path):
    batch = module("lr_step")
    files = export.files(batch.module, batch.program(planner.plan(batch.module, POLICIES["grid"], LIMITS).plan))
    python = launcher(files["launch.py"])
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    nulls = ", ".join("nullptr" for _ in [*python["INPUTS"], *python["OUTPUTS"], "scratch", "stream"])
    (tmp_path / "main.cu").write_text(MAIN.replace("ARGUMENTS", nulls))
    command = ["nvcc", "-arch=sm_90", "-o", "main", "main.cu", "module.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert said.stdout.split() == [str(python["SCRATCH_BYTES"])]


def test_a_module_whose_output_is_empty():
    batch = Batch.alone("empty")
    program = batch.program(planner.plan(batch.module, POLICIES["paper"], LIMITS).plan)
    python = launcher(export.files(batch.module, program)["launch.py"])
    assert set(python["OUTPUTS"]) == {f"out_{place}" for place in range(len(batch.wanted))}
    assert np.prod(batch.wanted[-1].shape) == 0
