"""The files of an export: the plan is the Program, sources are untouched, README.txt says what is there."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.build import gxx, nvcc
from fusiond.build.exporting.adapters import adapter
from fusiond.build.exporting.files import export
from fusiond.build.exporting.launch import __file__ as launcher
from fusiond.devices.cpu.executor import CpuExecutor
from fusiond.devices.cpu.provider import LIMITS
from fusiond.model.inputs.fills import initial
from fusiond.model.language.extents import size
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Alloc, Buffer, Program, Role, decode, problems
from fusiond.requests import jobs
from fusiond.requests.planning import prepare
from fusiond.requests.registry import Registry
from fusiond.strategy import Target
from fusiond.strategy.space import check_seeds
from tests.build.exporting import programs, test_launch_cxx, test_launch_py
from tests.build.exporting.programs import CASES
from tests.build.exporting.test_launch_py import Exported


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


# --- what the strategies of this project emit -----------------------------------------------------------


JOBS = {
    "hfuse": "strategy: hfuse\npair: [hist, maxpool]\n"
    "sizes: {hist.n: 1000, maxpool.channels: 2, maxpool.height: 20, maxpool.width: 17}\n",
    "mincut": "strategy: mincut\npipeline: sobel\nsizes: {width: 33, height: 21}\nblocks: 0\n",
    "stitching": "strategy: stitching\nmodule: nmt_fig3\n",
    "transfer": "strategy: transfer\ngraph: fig2\nsizes: {elements: 257}\n",
    "transfer, allocating": "strategy: transfer\ngraph: fig2\nallocations: counted\nsizes: {elements: 65}\n",
    "transfer, limited": "strategy: transfer\ngraph: fig2\nlimits: {device_bytes: 7680}\nsizes: {elements: 256}\n",
}
exported = test_launch_py.exported


def programs_of(registry: Registry, text: str, most: int = 3) -> list[Program]:
    """A few of what the strategy emits: for seeds, and as a baseline."""
    (job,) = jobs.read("job.yaml", text)
    prepared = prepare(registry, job)
    strategy = prepared.strategy
    analysis = strategy.analyse(prepared.workload, Target(arch="cpu", limits=LIMITS, facts=lambda _: None))
    space = strategy.space(analysis, {})
    seeds, _ = check_seeds(space, strategy.seeds(analysis, space, {}))
    baseline = strategy.baselines(analysis)[0]
    made = [baseline.emit(next(iter(baseline.space.points())))]
    made += [strategy.emit(analysis, config, {}) for _, config in seeds]
    found = {each.key: each for each in made if isinstance(each, Program)}
    return [*found.values()][:most]


@pytest.mark.parametrize(
    "name", [each if each == "transfer" else pytest.param(each, marks=pytest.mark.slow) for each in JOBS]
)
def test_python_computes_what_the_device_does(real: Registry, exported: Callable[..., Exported], name: str) -> None:
    for program in programs_of(real, JOBS[name]):
        wanted = run(program)
        here = exported(program)
        given = {each.name: initial(each, 3) for each in program.buffers if each.role is not Role.SCRATCH}
        here.launcher.launch(test_launch_py.wrapped(program, given), stream=500, naive=True)
        here.driver.drain()
        for output, values in wanted.items():
            np.testing.assert_array_equal(given[output], values, err_msg=f"{program.name}: {output}")
        here.launcher.close()


def run(program: Program) -> dict[str, Any]:
    """The outputs of a run on the cpu device."""
    binaries = {}
    for source in program.sources:
        built = gxx.build(source)
        assert not isinstance(built, BuildFailed), built
        binaries[source.name] = built
    loaded = CpuExecutor().load(program, binaries)
    for each in program.buffers:
        if each.part_of is None:  # what fills the whole does it for its parts
            loaded.write(each.name, initial(each, 3))
    loaded.run(seed=0, checked=False)
    return {each.name: loaded.read(each.name) for each in program.buffers if each.role.compared}


@pytest.mark.needs_nvcc
@pytest.mark.parametrize("name", JOBS)
@pytest.mark.sampled(8)
def test_nvcc_compiles_it(real: Registry, tmp_path: Path, name: str) -> None:
    toolkit = nvcc.find()
    assert toolkit is not None
    program = programs_of(real, JOBS[name])[-1]
    folder = test_launch_cxx.written(program, tmp_path / "out")
    stem = test_launch_cxx.file_stem(program)
    (folder / "main.cpp").write_text(f'#include "{stem}.h"\nint main() {{}}\n')
    files = [*sorted(folder.glob("*.entries.c*")), folder / f"{stem}.cpp", folder / "main.cpp"]
    test_launch_cxx.run([toolkit.nvcc, "-arch=sm_90", *files, "-o", "program"], folder)
