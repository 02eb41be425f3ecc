"""launch.py on a GPU, in PyCUDA's context: every case at its sizes and at others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.build import nvcc, ptxas
from fusiond.build.exporting.files import export
from fusiond.build.exporting.launch import Launcher
from fusiond.model.program import Memory, Program, Role, SourceKind
from tests.build.exporting import programs
from tests.build.exporting.programs import CASES

pytestmark = pytest.mark.needs_gpu


@pytest.fixture
def cuda() -> Any:
    """PyCUDA with the primary context current."""
    driver = pytest.importorskip("pycuda.driver", reason="needs PyCUDA: pip install 'fusiond[cuda]', with nvcc on PATH")
    pytest.importorskip("pycuda.autoprimaryctx")
    return driver


def written(program: Program, folder: Path, arch: str | None) -> Path:
    binaries = {}
    for source in program.sources:
        if arch is not None and source.kind is SourceKind.DEVICE:
            built = nvcc.build(source, arch)
            assert isinstance(built, ptxas.Cubin), built
            binaries[source.name] = built.path
    folder.mkdir()
    for name, data in export(program, about={}, binaries=binaries, arch=arch).items():
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("name", [name for name in CASES if "seams" not in name])
def test_it_computes_what_numpy_does(name: str, cuda: Any, tmp_path: Path) -> None:
    from pycuda import gpuarray

    case = CASES[name]()
    major, minor = cuda.Context.get_device().compute_capability()
    launcher = Launcher(written(case.program, tmp_path / "out", f"sm_{major}{minor}"), cache=tmp_path / "cache")
    stream = cuda.Stream()
    for sizes in ({}, dict(case.sizes)):
        program = case.program.at(sizes)
        given = programs.inputs(program)
        passed: dict[str, Any] = {}
        for each in program.buffers:
            if each.role is not Role.SCRATCH:
                values = given.get(each.name, np.zeros(int(each.elements), each.dtype))
                on_host = each.memory is not Memory.DEVICE or each.symbol is not None
                passed[each.name] = values.copy() if on_host else gpuarray.to_gpu(values)
        launcher.launch(passed, sizes, stream)
        stream.synchronize()
        for buffer, values in case.expected(given, dict(program.sizes)).items():
            found = passed[buffer] if isinstance(passed[buffer], np.ndarray) else passed[buffer].get()
            np.testing.assert_allclose(found, values, rtol=1e-6, err_msg=f"{buffer} at {sizes}")
    launcher.close()


def test_it_builds_for_this_gpu_where_no_cubin_is_there(cuda: Any, tmp_path: Path) -> None:
    from pycuda import gpuarray

    if missing := nvcc.missing():
        pytest.skip(missing)
    case = programs.one()
    launcher = Launcher(written(case.program, tmp_path / "out", None), cache=tmp_path / "cache")
    given = programs.inputs(case.program)
    x, y = gpuarray.to_gpu(given["a.x"]), gpuarray.zeros(1000, np.float32)
    launcher.launch({"a.x": x, "y": y})
    np.testing.assert_allclose(y.get(), case.expected(given, {})["y"], rtol=1e-6)
    launcher.close()
