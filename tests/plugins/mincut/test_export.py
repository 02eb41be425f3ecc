"""What `best --export` writes for a pipeline: a program without fusiond builds it and runs it, at other sizes too."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

from fusiond import jobs
from fusiond.devices.cpu import commands, native
from fusiond.devices.cpu.lower import lower
from fusiond.model import DeviceLimits
from fusiond.program import Launch, Pointer, Scalar
from fusiond.registry import Registry
from fusiond.strategy import Target
from fusiond.testing.commands import compiled
from fusiond_mincut import blocks, emit, export, plugin
from fusiond_mincut.emit import BlockParams
from fusiond_mincut.graph import part
from fusiond_mincut.strategy import Mincut

from .running import application, emitted, images, pipeline, resized, wanted_of

PARAMS = BlockParams(block_x=16, block_y=4, pixels=2)
MIXED = """
pipeline: mixed
image: {width: 64, height: 32, dtype: uint8, channels: 3}
inputs: [src, {name: weight, dtype: float32, channels: 1}]
outputs: [blurred, top]
kernels:
  gray: {pattern: point, channels: 1, dtype: int32, reads: [src], body: "src.r + src.g + src.b"}
  top: {pattern: global, reduce: max, channels: 1, dtype: int32, reads: [gray], body: "gray"}
  scaled: {pattern: point, reads: [src, top, weight], body: "src * 700 / top + weight"}
  blurred: {pattern: local, mask: [3, 3], border: mirror, reads: [scaled],
    body: "(scaled[1, 0] + scaled[-1, 1] + scaled) / 3"}
"""


def exported(given, partition, params=PARAMS):
    kernels = tuple(emit.block_kernel(given, block, params) for block in partition.blocks)
    return emitted(given, partition, params), export.files(given, partition, kernels)


def mixed():
    given = pipeline(MIXED, 64, 32)
    return given, blocks.partition(given, [["gray"], ["top"], ["scaled", "blurred"]])


def module_of(text):
    found = {}
    exec(compile(text, "launch.py", "exec"), found)
    return found


@pytest.fixture(params=["mixed", "harris"])
def case(request):
    if request.param == "mixed":
        return mixed()
    given = application("harris", 256, 256)
    return given, blocks.partition(
        given, [[n] for n in ("dx", "dy", "hc")] + [["sx", "gx"], ["sy", "gy"], ["sxy", "gxy"]]
    )


def test_the_launcher_agrees_with_the_program(case):
    given, partition = case
    _, files = exported(given, partition)
    module = module_of(files["launch.py"])
    for sizes in ({}, {"width": 5, "height": 900}, {"width": 2000, "height": 1}):
        program = emitted(resized(given, sizes.get("width", given.width), sizes.get("height", given.height)), partition,
                          PARAMS)  # fmt: skip
        assert module["elements"](sizes) == {each.name: each.elements for each in program.buffers}
        shapes = list(module["shapes"](sizes))
        assert len(shapes) == len(program.steps)
        for step, (source, entry, grid, block, shared, buffers, scalars) in zip(program.steps, shapes, strict=True):
            assert isinstance(step, Launch)
            assert (step.source, step.entry, step.grid, step.block) == (source, entry, grid, block)
            assert step.shared_bytes == shared
            assert [each.buffer for each in step.arguments if isinstance(each, Pointer)] == list(buffers)
            assert [each.value for each in step.arguments if isinstance(each, Scalar)] == list(scalars)


def test_a_program_without_fusiond_builds_and_runs_it(runner, tmp_path):
    """The exported sources and launcher, a build of our own, memory of our own; on the processor's runtime."""
    given, partition = mixed()
    _, files = exported(given, partition)
    assert set(files) == {"gray.cu", "top.cu", "scaled-blurred.cu", "mixed.h", "launch.py", "README.txt"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    launcher = module_of((tmp_path / "launch.py").read_text())
    kernels = {}
    for source, entry, *_ in launcher["LAUNCHES"]:
        cpp, out = tmp_path / f"{entry}.cpp", tmp_path / f"{entry}.so"
        cpp.write_text(commands.translation_unit(lower((tmp_path / f"{source}.cu").read_text()), {"it": entry}))
        subprocess.run(commands.kernel(cpp, out, flags=["-O0"]), check=True, capture_output=True)
        kernels[entry] = runner.runtime.load(out).entry("it")

    def call(entry):
        def kernel(*passed, grid, block, shared, stream):
            launch = native.Launch(grid=grid, block=block, shared_bytes=shared, seed=3, checked=True)
            done = runner.runtime.launch(entry, launch, list(passed))
            assert isinstance(done, native.Finished), done

        return kernel

    sizes = {"width": 53, "height": 41}
    other = resized(given, 53, 41)
    random = np.random.default_rng(3)
    arrays = {
        name: np.zeros(count, launcher["BUFFERS"][name][0]) for name, count in launcher["elements"](sizes).items()
    }
    arrays["src"] = random.integers(0, 256, arrays["src"].size).astype(np.uint8)
    arrays["weight"] = random.random(arrays["weight"].size, np.float32) * 9
    pointers = {name: array.ctypes.data for name, array in arrays.items()}
    launcher["launch"]({name: call(entry) for name, entry in kernels.items()}, pointers, sizes)
    expected = wanted_of(other, {"src": arrays["src"], "weight": arrays["weight"]})
    for name in ("blurred", "top"):
        np.testing.assert_array_equal(images(other, arrays)[name], expected[name])
    with pytest.raises(KeyError, match="no device pointer for \\['top'\\]"):
        launcher["launch"]({}, {name: 0 for name in pointers if name != "top"}, sizes)


MAIN = """\
#include "mixed.h"
#include <cstdio>
int main()
{
    fused::Sizes sizes;
    sizes.width = 53;
    sizes.height = 4100;
    const fused::Elements found = fused::elements(sizes);
    const fused::Grid last = fused::scaled_blurred_kernel_grid(sizes), first = fused::top_kernel_grid(sizes);
    std::printf("%u %u %u %u %lld %lld %lld\\n", last.x, last.y, first.x, fused::top_finish_grid(sizes).x,
                found.src_buffer, found.top_buffer, found.top_partial);
    return 0;
}
"""


def test_the_header_agrees_with_the_program(tmp_path):
    """Any C++ compiler reads it: the launches are worked out without CUDA."""
    given, partition = mixed()
    _, files = exported(given, partition)
    (tmp_path / "mixed.h").write_text(files["mixed.h"])
    (tmp_path / "main.cpp").write_text(MAIN)
    said = compiled(tmp_path / "main.cpp")
    program = emitted(resized(given, 53, 4100), partition, PARAMS)
    steps = {each.name: each for each in program.steps}
    counts = {each.name: each.elements for each in program.buffers}
    grids = [*steps["scaled_blurred_kernel"].grid[:2], steps["top_kernel"].grid[0], steps["top_finish"].grid[0]]
    assert [int(each) for each in said] == [*grids, counts["src"], counts["top"], counts["top.partial"]]


CALL = """\
#include "NAME.h"
cudaError_t call(const fused::Buffers& buffers)
{
    fused::Sizes sizes;
    sizes.width = 100;
    return fused::launch(buffers, sizes);
}
"""


@pytest.mark.slow
@pytest.mark.needs_nvcc
def test_nvcc_compiles_the_call_and_links_the_sources(tmp_path):
    given, partition = mixed()
    _, files = exported(given, partition)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "call.cu").write_text(CALL.replace("NAME", given.name))
    sources = [str(tmp_path / name) for name in files if name.endswith(".cu")]
    command = ["nvcc", "-arch=sm_90", "-shared", "-Xcompiler", "-fPIC,-Wall", "--Werror", "all-warnings", *emit.FLAGS]
    done = subprocess.run(
        [*command, *sources, str(tmp_path / "call.cu"), "-o", str(tmp_path / "all.so")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr + done.stdout == ""


def test_the_strategy_exports_every_block_of_a_config(analysed):
    """Sources as they are in the program, one for each block."""
    strategy, analysis = analysed("strategy: mincut\npipeline: harris\nsizes: {width: 64, height: 64}\nblocks: 0\n")
    space = strategy.space(analysis, {})
    config = dict(strategy.seeds(analysis, space, {}))["algorithm1"]
    program = strategy.emit(analysis, config, {})
    files = strategy.export(analysis, config, program)
    assert {f"{each.name}.cu": each.text for each in program.sources} == {
        name: text for name, text in files.items() if name.endswith(".cu")
    }
    assert {"harris.h", "launch.py", "README.txt"} <= set(files)


@pytest.fixture
def analysed(tmp_path):
    def of(text):
        registry = Registry()
        registry.add(plugin, "mincut")
        (job,) = jobs.read(tmp_path / "job.yaml", text)
        strategy = Mincut()
        limits = DeviceLimits(
            multiprocessors=1, shared_bytes_per_sm=2**17, shared_bytes_per_block=2**16, threads_per_sm=1024,
            blocks_per_sm=1,
        )  # fmt: skip
        target = Target(arch="cpu", limits=limits, facts=lambda source: None)
        return strategy, strategy.analyse(strategy.parse(job, jobs.JobInputs(registry, job)), target)

    return of


def test_a_block_s_header_has_a_name_that_every_system_takes():
    block = part(application("harris", 64, 48), ["sx", "gx"], ["gx"])
    _, files = exported(block, blocks.partition(block, [["sx", "gx"]]))
    assert "harris-sx+gx.h" in files
    assert "include harris-sx+gx.h" in files["README.txt"]
    assert not any(":" in name for name in files)
