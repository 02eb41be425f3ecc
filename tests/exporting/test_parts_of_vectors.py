"""Programs over parts of vectors, exported: launch.py computes what the cpu device does, nvcc takes the C++."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.build import nvcc
from fusiond.devices.cpu.provider import LIMITS
from fusiond.inputs.fills import initial
from fusiond.model import Config
from fusiond.program import Program, Role
from fusiond.registry import Registry
from fusiond.requests import jobs
from fusiond.requests.planning import prepare
from fusiond.strategy import Target
from tests.exporting import test_launch_cxx, test_launch_py
from tests.exporting.test_launch_py import Exported
from tests.exporting.test_strategies import run

HALVES = """\
graph: halves
sizes: {n: 16384}
elements: n
dtype: float64
inputs: [x]
outputs: [y, z]
kernels:
  - {name: low, on: device, reads: ["x[0:n // 2]"], writes: ["y[:n // 2]"], body: 2 * x}
  - {name: high, on: host, reads: ["x[n // 2:]"], writes: ["y[n // 2:]"], body: x + 1}
  - {name: all, on: device, reads: [y], writes: [z], body: y * y}
"""
STORED = """\
graph: stored
elements: 512
dtype: float64
inputs: [x, c]
outputs: [y]
placed: [c]
kernels:
  - {name: low, on: device, reads: ["x[:256]", "c[:256]"], writes: ["y[:256]"], in_place: {"y[:256]": "x[:256]"},
     body: x + c}
  - {name: high, on: host, reads: ["x[256:]"], writes: ["y[256:]"], in_place: {"y[256:]": "x[256:]"}, body: 2 * x}
"""
WAYS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "chunks": (HALVES, "", {"chunks": 4, "streams": "engines", "chunk_order": "depth_first"}),
    "group": (HALVES, "allocations: counted\n", {"allocation": "group"}),
    "managed": (HALVES.replace("inputs", "memory: managed\ninputs"), "", {"managed": "all", "chunks": 1}),
    "stored": (STORED, "", {}),
}
exported = test_launch_py.exported
pytestmark = pytest.mark.slow


def emitted(registry: Registry, name: str, folder: Path) -> Program:
    graph, lines, values = WAYS[name]
    (folder / "graph.yaml").write_text(graph)
    (job,) = jobs.read(folder / "job.yaml", f"strategy: transfer\ngraph: ./graph.yaml\n{lines}")
    prepared = prepare(registry, job)
    analysis = prepared.strategy.analyse(prepared.workload, Target(arch="cpu", limits=LIMITS, facts=lambda _: None))
    usual = {"grouping": "interval_stabbing", "memory": "pinned", "issue": "overlapped", "send": "message"}
    space = prepared.strategy.space(analysis, {})
    given = {each.name: each.values[0] for each in space.parameters if each.name in ("order", "chunks")}
    found = prepared.strategy.emit(analysis, Config.of({**given, **usual, **values}), {})
    assert isinstance(found, Program), found
    return found


@pytest.mark.parametrize("name", WAYS)
def test_python_computes_what_the_device_does(
    real: Registry, exported: Callable[..., Exported], tmp_path: Path, name: str
) -> None:
    program = emitted(real, name, tmp_path)
    wanted = run(program)
    here = exported(program)
    given = {each.name: initial(each, 3) for each in program.buffers if each.role is not Role.SCRATCH}
    here.launcher.launch(test_launch_py.wrapped(program, given), stream=500, naive=True)
    here.driver.drain()
    for output, values in wanted.items():
        np.testing.assert_array_equal(given[output], values, err_msg=output)
    here.launcher.close()


@pytest.mark.needs_nvcc
@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", WAYS)
def test_nvcc_compiles_it(real: Registry, tmp_path: Path, name: str) -> None:
    program = emitted(real, name, tmp_path)
    toolkit = nvcc.find()
    assert toolkit is not None
    folder = test_launch_cxx.written(program, tmp_path / "out")
    stem = test_launch_cxx.file_stem(program)
    (folder / "main.cpp").write_text(f'#include "{stem}.h"\nint main() {{}}\n')
    files = [*sorted(folder.glob("*.entries.c*")), folder / f"{stem}.cpp", folder / "main.cpp"]
    test_launch_cxx.run([toolkit.nvcc, "-arch=sm_90", *files, "-o", "program"], folder)
