"""`best --export`: which Program it takes and what it builds. What files hold: tests/build/exporting."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from fusiond.build import nvcc
from fusiond.devices.cpu.provider import CpuProvider
from fusiond.model.errors import NothingKnown, RequestError
from fusiond.model.program import decode
from fusiond.service.client.exporting import export
from fusiond.store.database import Store
from tests.build.exporting import programs

FUSED, UNFUSED = programs.several().program, programs.one().program


@pytest.fixture
def answer(tmp_path: Path, gxx_here: None) -> tuple[Path, dict[str, Any]]:
    """A store with two programs, and a document about them."""
    database = tmp_path / "fusiond.sqlite"
    (info,) = CpuProvider().devices()
    with Store.open(database) as store:
        store.save_device(info)
        store.save_program(FUSED)
        store.save_program(UNFUSED)
    return database, {
        "workload": {"name": "job", "strategy": "toy", "sizes": {"n": 300}},
        "device": {"name": "cpu", "key": info.key},
        "verdict": "fuse",
        "evidence": "emulated",
        "program_key": FUSED.key,
        "unfused": {"program_key": UNFUSED.key},
    }


def key_in(folder: Path) -> str:
    return decode(json.loads((folder / "plan.json").read_text())).key


def test_the_program_of_the_answer(
    answer: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvcc, "missing", lambda: "no nvcc on PATH")
    database, document = answer
    paths = export(database, document, tmp_path / "out")
    assert key_in(tmp_path / "out") == FUSED.key
    assert sorted(paths) == sorted((tmp_path / "out").iterdir())
    assert not [path for path in paths if path.suffix == ".cubin"]
    readme = (tmp_path / "out" / "README.txt").read_text()
    assert "workload     job [toy] at n=300\n" in readme
    assert "device       cpu (emulated: its times say nothing about a GPU)\n" in readme
    assert f"program key  {FUSED.key}\n" in readme
    assert export(database, document, tmp_path / "out") == paths  # the same files once more


@pytest.mark.needs_nvcc
def test_an_answer_of_the_processor_is_built_for_a_gpu_that_is_named(
    answer: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    database, document = answer
    paths = export(database, document, tmp_path / "out")
    assert {path.name for path in paths if path.suffix == ".cubin"} == {
        f"{each.name}.sm_90.cubin" for each in FUSED.sources
    }
    assert "for sm_90, since the answer's device is not a GPU" in (tmp_path / "out" / "README.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("verdict", ["keep", "undecided"])
def test_what_is_not_to_be_fused(answer: tuple[Path, dict[str, Any]], tmp_path: Path, verdict: str) -> None:
    database, document = answer
    export(database, {**document, "verdict": verdict, "program_key": None}, tmp_path / "out")
    assert key_in(tmp_path / "out") == UNFUSED.key
    assert "This is the tuned unfused program." in (tmp_path / "out" / "README.txt").read_text()


def test_programs_that_are_not_there(answer: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    database, document = answer
    with pytest.raises(NothingKnown, match="the program 1234 of this answer is not in the store; run the job again"):
        export(database, {**document, "program_key": "1234"}, tmp_path / "out")
    with pytest.raises(NothingKnown, match="this answer names no unfused program"):
        export(database, {**document, "unfused": None}, tmp_path / "out", unfused=True)
    with pytest.raises(NothingKnown, match="this answer names no program: an older fusiond found it"):
        export(database, {name: each for name, each in document.items() if name != "program_key"}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_all_files_or_none(answer: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    database, document = answer
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "README.txt").write_text("the user's own")
    with pytest.raises(RequestError, match=r"README\.txt exists already, and is something else; name an empty folder"):
        export(database, document, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["README.txt"]


@pytest.mark.needs_nvcc
def test_cubins_for_the_device_or_as_asked(answer: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    database, document = answer
    export(database, document, tmp_path / "asked", arch="sm_80")
    assert (tmp_path / "asked" / "basic.sm_80.cubin").read_bytes().startswith(b"\x7fELF")
    (cpu,) = CpuProvider().devices()
    gpu = dataclasses.replace(cpu, name="cuda:0", arch="sm_90", model="a GPU")
    with Store.open(database) as store:
        store.save_device(gpu)
    export(database, {**document, "device": {"name": "cuda:0", "key": gpu.key}}, tmp_path / "own")
    assert (tmp_path / "own" / "basic.sm_90.cubin").is_file()
    assert "basic.sm_90.cubin" in (tmp_path / "own" / "README.txt").read_text()
