"""The command that counts a bundle: what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fusiond.build import nvcc
from fusiond.build.exporting.bundle import write_bundle
from fusiond.devices.counting.command import main
from fusiond.model.program import Buffer, Launch, Pointer, Program, Role, Source

TEXT = """
extern "C" __global__ void twice(const float* x, float* y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }
extern "C" __global__ void outside(const float* x, float* y) { y[threadIdx.x + 1] = x[threadIdx.x]; }
"""
KEYS = {
    *("program", "launch", "kernel", "global_read_bytes", "global_write_bytes", "read_sectors", "write_sectors"),
    *("minimal_bytes", "dram_bytes", "shared_wavefronts", "shared_minimal_wavefronts", "instructions"),
    *("ptx_instructions", "model", "sampled", "error", "failed"),
}


def bundle(folder: Path, *kernels: str, text: str = TEXT) -> str:
    """A folder with a launch of 64 threads for each of these."""
    roles = {"x": Role.INPUT, "y": Role.OUTPUT}
    source = Source(name="k", text=text, entries=tuple(dict.fromkeys(kernels)))
    program = Program(
        name="pair",
        buffers=tuple(Buffer(name=name, dtype="float32", elements=64, role=role) for name, role in roles.items()),
        sources=(source,),
        steps=tuple(
            Launch(
                name=f"{k}:{kernel}",
                source="k",
                entry=kernel,
                grid=(1, 1, 1),
                block=(64, 1, 1),
                arguments=(Pointer(buffer="x"), Pointer(buffer="y")),
            )
            for k, kernel in enumerate(kernels)
        ),
    )
    write_bundle(folder, program, {})
    return str(folder)


@pytest.fixture
def tools(gxx_here: None, shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = nvcc.missing()
    if line is not None:
        pytest.skip(line)
    monkeypatch.setenv("FUSIOND_CACHE", str(shared_cache))


@pytest.mark.needs_nvcc
def test_a_row_for_each_launch(tools: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = bundle(tmp_path / "b", "twice", "twice")
    assert main([folder, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["counted"]
    assert set(rows[0]) >= KEYS
    assert [each["launch"] for each in rows] == ["0:twice", "1:twice"]
    assert [each["program"] for each in rows] == ["pair", "pair"]
    assert [each["kernel"] for each in rows] == ["twice", "twice"]
    assert [(each["global_read_bytes"], each["read_sectors"], each["failed"]) for each in rows] == [(256, 8, None)] * 2
    assert main([folder]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("0:twice (twice): global read bytes 256,")


@pytest.mark.needs_nvcc
def test_a_launch_that_fails(tools: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rows behind it say that they were not run; the status is 1."""
    folder = bundle(tmp_path / "b", "outside", "twice")
    assert main([folder, "--json"]) == 1
    said = capsys.readouterr()
    first, second = json.loads(said.out)["counted"]
    assert "k.cu:3: st.global" in first["failed"]
    assert first["read_sectors"] is None
    assert second["failed"] == "not run: 0:outside failed"
    assert said.err == ""
    assert main([folder]) == 1
    assert capsys.readouterr().out.splitlines()[1] == "1:twice (twice): not run: 0:outside failed"


@pytest.mark.needs_nvcc
def test_a_source_that_does_not_build(tools: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = bundle(tmp_path / "b", "twice", text='extern "C" __global__ void twice(float* x) { x[0] = y; }')
    assert main([folder]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == 'k does not build: k.cu:1: identifier "y" is undefined\n'


def test_without_a_compiler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSIOND_NVCC", "/nowhere/nvcc")
    assert main([bundle(tmp_path / "b", "twice"), "--json"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "FUSIOND_NVCC=/nowhere/nvcc is not an nvcc that runs, with ptxas beside it\n"


def test_a_plan_that_contradicts_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = bundle(tmp_path / "b", "twice")
    plan = Path(folder, "plan.json")
    plan.write_text(plan.read_text().replace('"source": "k"', '"source": "q"'))
    assert main([folder]) == 2
    said = capsys.readouterr().err
    assert said == f"{folder}: plan.json is not a Program that can run: step '0:twice' names the unknown source 'q'\n"


@pytest.mark.parametrize("arguments", [[], ["b", "--jsn"], ["b", "--seed", "x"]])
def test_options_that_are_wrong(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]
