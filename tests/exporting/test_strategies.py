"""What the strategies of this project emit, exported: launch.py computes what the cpu device does, nvcc takes it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.build import gxx, nvcc
from fusiond.devices.cpu.executor import CpuExecutor
from fusiond.devices.cpu.provider import LIMITS
from fusiond.model.inputs.fills import initial
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Program, Role
from fusiond.requests import jobs
from fusiond.requests.planning import prepare
from fusiond.requests.registry import Registry
from fusiond.strategy import Target
from fusiond.strategy.space import check_seeds
from tests.exporting import test_launch_cxx, test_launch_py
from tests.exporting.test_launch_py import Exported

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
