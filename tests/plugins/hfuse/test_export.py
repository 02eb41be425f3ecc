"""What `best --export` writes: a program without fusiond builds it and calls it, at other sizes too."""

from __future__ import annotations

import ast
import subprocess

import numpy as np
import pytest

from fusiond.devices.cpu import commands, native
from fusiond.devices.cpu.lower import lower
from fusiond.fills import initial
from fusiond.model import Config
from fusiond.program import Launch, Pointer
from fusiond.testing.commands import compiled

SIDES = {"kind": "horizontal", "order": "ba", "threads.a": 512, "threads.b": 256}
CONFIGS = {
    "beside": Config.of(SIDES),
    "strided": Config.of({**SIDES, "level": "warp", "map": "stride", "blocks": 4}),
    "interleaved": Config.of({**SIDES, "level": "block", "assign": "interleaved"}),
    "ticket": Config.of({**SIDES, "level": "block", "assign": "ticket"}),
    "vertical": Config.of({"kind": "vertical", "threads": 256, "order": "ab"}),
}
OTHER_SIZES = ({}, {"a.n": 12_345, "a.bins": 33}, {"b.n": 900})
THREE = Config.of({
    "groups": "a+b+c", "kind": "horizontal", "level": "warp", "map": "pad", "order": "threads", "threads.a": 256,
    "threads.b": 512, "threads.c": 128,
})  # fmt: skip


def exported(strategy, analysis, config):
    program = strategy.emit(analysis, config, {})
    return program, strategy.export(analysis, config, program)


def module_of(text: str) -> dict:
    ast.parse(text)
    module = {"__name__": "launch"}
    exec(text, module)  # our own text; that it runs is what is tested
    return module


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("sizes", OTHER_SIZES, ids=str)
def test_the_launcher_agrees_with_the_program(analyse, strategy, name, sizes):
    _, files = exported(strategy, analyse("hist", "hist", sizes={"a.n": 1000}), CONFIGS[name])
    assert set(files) == {"fused.cu", "fused.h", "launch.py", "README.txt"}
    wanted = strategy.emit(analyse("hist", "hist", sizes={"a.n": 1000, **sizes}), CONFIGS[name], {}).steps[-1]
    _agrees(module_of(files["launch.py"]), wanted, sizes)


def test_the_launcher_of_three_agrees_with_the_program(analyse, strategy):
    names = ("hist", "maxpool", "hist")
    _, files = exported(strategy, analyse(*names), THREE)
    sizes = {"b.bins": 50, "maxpool.channels": 7}
    _agrees(module_of(files["launch.py"]), strategy.emit(analyse(*names, sizes=sizes), THREE, {}).steps[-1], sizes)


def _agrees(module: dict, wanted: Launch, sizes: dict) -> None:
    calls, zeroed = [], []
    module["_zero"] = lambda pointer, stream: zeroed.append(pointer)
    module["launch"](
        lambda *passed, **shape: calls.append((passed, shape)), dict.fromkeys(module["BUFFERS"], 4096), sizes
    )
    ((passed, shape),) = calls
    assert (shape["grid"], shape["block"], shape["shared"]) == (wanted.grid, wanted.block, wanted.shared_bytes)
    values = [4096 if isinstance(each, Pointer) else each.value for each in wanted.arguments]
    assert [each.item() for each in passed] == values
    assert zeroed == ([4096] if "tickets" in module["BUFFERS"] else [])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_program_without_fusiond_builds_and_runs_it(analyse, strategy, runner, tmp_path, name):
    """The exported source and launcher, a build of our own, memory of our own; on the processor's runtime."""
    _, files = exported(strategy, analyse("hist", "hist", sizes={"a.n": 1000, "b.n": 2000}), CONFIGS[name])
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    launcher = module_of((tmp_path / "launch.py").read_text())
    cpp, library = tmp_path / "fused.cpp", tmp_path / "fused.so"
    entries = {"fused": launcher["ENTRY"]}
    cpp.write_text(commands.translation_unit(lower((tmp_path / "fused.cu").read_text()), entries))
    subprocess.run(commands.kernel(cpp, library, precompiled=runner.folder), check=True, capture_output=True)
    entry = runner.runtime.load(library).entry("fused")

    def kernel(*passed, grid, block, shared, stream):
        launch = native.Launch(grid=grid, block=block, shared_bytes=shared, seed=5, checked=True)
        done = runner.runtime.launch(entry, launch, list(passed))
        assert isinstance(done, native.Finished), done

    def zero(pointer, stream):
        tickets[:] = 0

    launcher["_zero"] = zero
    sizes = {"a.n": 7_001, "b.n": 4_999, "b.bins": 31}
    values = {"a.x": np.random.default_rng(1).random(7_001, np.float32), "b.x": np.linspace(-1, 2, 4_999, dtype="f4")}
    counts = {"a.counts": np.zeros(20, np.uint32), "b.counts": np.zeros(31, np.uint32)}
    tickets = np.full(1, 77, np.uint32)
    arrays = {**values, **counts, "tickets": tickets}
    launcher["launch"](kernel, {name: array.ctypes.data for name, array in arrays.items()}, sizes)
    for letter, bins in (("a", 20), ("b", 31)):
        x = values[f"{letter}.x"]
        inside = x[(x >= 0) & (x < 1)]
        at = np.minimum((inside * np.float32(bins)).astype(int), bins - 1)
        np.testing.assert_array_equal(counts[f"{letter}.counts"], np.bincount(at, minlength=bins))


MAIN = """\
#include "fused.h"
#include <cstdio>
int main()
{
    fused::Sizes sizes;
%s
    const fused::Shape shape = fused::shape(sizes);
    std::printf("%%u %%d %%u\\n", shape.grid, FUSED_BLOCK, shape.shared_bytes);
    return 0;
}
"""


@pytest.mark.parametrize("name", CONFIGS)
def test_the_header_agrees_with_the_program(analyse, strategy, tmp_path, name):
    """Any C++ compiler reads it: the launch is worked out without CUDA."""
    program, files = exported(strategy, analyse("hist", "hist", sizes={"a.n": 1000}), CONFIGS[name])
    launch = program.steps[-1]
    assert f"#define FUSED_BLOCK {launch.block[0]}\n" in files["fused.h"]
    assert f"#define FUSED_GRID {launch.grid[0]}\n" in files["fused.h"]
    assert f"#define FUSED_SHARED_BYTES {launch.shared_bytes} " in files["fused.h"]
    (tmp_path / "fused.h").write_text(files["fused.h"])
    for number, sizes in enumerate(OTHER_SIZES):
        main = tmp_path / f"main{number}.cpp"
        main.write_text(MAIN % "".join(f"    sizes.{key.replace('.', '_')} = {each};\n" for key, each in sizes.items()))
        said = compiled(main)
        wanted = strategy.emit(analyse("hist", "hist", sizes={"a.n": 1000, **sizes}), CONFIGS[name], {}).steps[-1]
        assert [int(each) for each in said] == [wanted.grid[0], wanted.block[0], wanted.shared_bytes]


CALL = """\
#include "fused.cu"
#include "fused.h"
cudaError_t call(unsigned int* counts, const float* x, float* largest, long long* position, unsigned int* tickets)
{
    (void)tickets;
    fused::Sizes sizes;
    sizes.a_n = 1000;
    return fused::launch(counts, x, largest, position, x, %s sizes, nullptr);
}
"""


@pytest.mark.needs_nvcc
@pytest.mark.parametrize("name", CONFIGS)
def test_nvcc_compiles_the_call_without_a_word(analyse, strategy, tmp_path, name):
    _, files = exported(strategy, analyse("hist", "maxpool"), CONFIGS[name])
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    (tmp_path / "call.cu").write_text(CALL % ("tickets," if name == "ticket" else ""))
    done = subprocess.run(
        ["nvcc", "-arch=sm_90", "-c", "--Werror", "all-warnings", "-Xcompiler", "-Wall", str(tmp_path / "call.cu"),
         "-o", str(tmp_path / "call.o")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr + done.stdout == ""


def test_a_composition_has_a_launcher_for_each_fused_pair(analyse, strategy, runner):
    analysis = analyse("hist", "maxpool", "hist", sizes={"a.n": 3_000, "b.n": 1_000})
    pair = {
        "kind": "horizontal",
        "level": "block",
        "assign": "ticket",
        "order": "ca",
        "threads.a": 512,
        "threads.c": 256,
    }
    config = Config.of({
        "groups": "a+c|b", "launch": "streams", "alone.b": 256, **{f"ac.{name}": each for name, each in pair.items()},
    })  # fmt: skip
    program, files = exported(strategy, analysis, config)
    assert set(files) == {"fused_ac.cu", "fused_ac.h", "fused_ac.py", "b_hist.cu", "README.txt"}
    assert "stream 0  zero tickets.ac" in files["README.txt"]
    assert "stream 1  b_hist.cu: histogram" in files["README.txt"]
    launches = {step.name: step for step in program.steps if isinstance(step, Launch)}
    module = module_of(files["fused_ac.py"])
    _agrees(module, launches["fused_ac"], {})
    assert initial(program.buffer("tickets.ac"), 1).size == 1
