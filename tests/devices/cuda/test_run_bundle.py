"""`python -m fusiond.devices.KIND.run`: a bundle with one's own inputs, and what it says when they do not fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.build.exporting.bundle import write_bundle
from fusiond.devices import run
from fusiond.model.program import Buffer, Launch, Pointer, Program, Role, Scalar, Source

N = 16


def _bundle(gpu: Any, folder: Path, entry: str = "double_it") -> Path:
    arguments = (Pointer(buffer="out_0"), Scalar(dtype="int32", value=N))
    step = Launch(name="a", source="k", entry=entry, grid=(1, 1, 1), block=(32, 1, 1), arguments=arguments)
    program = Program(
        name="twice", buffers=(Buffer(name="out_0", dtype="float32", elements=N, role=Role.INOUT),),
        sources=(Source(name="k", text="", entries=(entry,)),), steps=(step,),
    )  # fmt: skip
    write_bundle(folder, program, gpu.binaries(program))
    return folder


def main(gpu: Any, *arguments: object) -> int:
    return run.main([str(each) for each in arguments], device="cuda:0", executor=lambda name: gpu.executor)


def test_own_inputs_and_outputs(gpu: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = _bundle(gpu, tmp_path / "bundle")
    np.savez(tmp_path / "x.npz", out_0=np.arange(N, dtype=np.float32))
    inputs, outputs = tmp_path / "x.npz", tmp_path / "y.npz"
    assert main(gpu, bundle, "--inputs", inputs, "--outputs", outputs, "--samples", 2) == 0
    with np.load(outputs) as found:
        assert found.files == ["out_0"]
        assert np.array_equal(found["out_0"], 2 * np.arange(N, dtype=np.float32))
    said = capsys.readouterr().out
    assert "twice: ran on cuda:0; out_0 float32[16]" in said
    assert "device clock" in said


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"in_0": np.zeros(N, np.float32)}, "no buffer is called 'in_0'; there are out_0"),
        ({"out_0": np.zeros(3, np.float32)}, "out_0 holds 3 x float32; 16 x float32 are wanted"),
        ({"out_0": np.zeros(N, np.float64)}, "out_0 holds 16 x float64; 16 x float32 are wanted"),
    ],
)
def test_inputs_that_do_not_fit(
    gpu: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], arrays: Any, problem: str
) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    assert main(gpu, _bundle(gpu, tmp_path / "bundle"), "--inputs", tmp_path / "x.npz") == 2
    assert problem in capsys.readouterr().err


def test_writes_out_of_bounds_are_a_failure(gpu: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(gpu, _bundle(gpu, tmp_path / "bundle", "overrun")) == 1
    assert "crashed: out of bounds: out_0: " in capsys.readouterr().err


def test_a_folder_that_is_no_bundle(gpu: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(gpu, tmp_path) == 2
    assert "plan.json" in capsys.readouterr().err
