"""The folder for a GPU box: built for the processor, and run there with the one command, in a bare environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tools.gpu_box import build, run_all

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, gxx_here: None) -> Path:
    folder = tmp_path_factory.mktemp("box")
    wheel = folder / "extra-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("fusiond_extra.py", "HERE = True\n")
        archive.writestr("extra-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: extra\nVersion: 1\n")
        archive.writestr("extra-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("extra-1.dist-info/RECORD", "")
    out = folder / "out"
    status = build.main(
        [str(out), "--arch", "cpu", "--seeds", "1", "--wheels", str(folder), "--only", "transfer:fig2", "questions"]
    )
    assert status == 0
    return out


def run(box: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """`python run_all.py`, without anything of ours on the path; the exit status and the report."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("FUSIOND", "PYTHONPATH"))}
    done = subprocess.run(
        [sys.executable, "run_all.py", "--device", "cpu", *words], cwd=box, env=bare, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    print(done.stdout, done.stderr)
    return done.returncode, json.loads((box / "results" / "run_all.json").read_text())


def test_what_is_in_it(box: Path) -> None:
    manifest = json.loads((box / "manifest.json").read_text())
    assert (manifest["arch"], manifest["entries"], manifest["not_built"]) == (
        "cpu",
        1 + len(build.questions.QUESTIONS),
        [],
    )
    names = [each["name"] for each in json.loads((box / "bundles" / "index.json").read_text())["entries"]]
    assert names[0] == "transfer/fig2"
    assert (box / "source" / "fusiond" / "devices" / "check.py").is_file()
    assert (box / "source" / "plugins" / "transfer" / "fusiond_transfer" / "plugin.py").is_file()
    assert not list((box / "source").rglob("*.pyc"))
    assert [path.name for path in (box / "wheels").iterdir()] == ["extra-1-py3-none-any.whl"]


def test_the_one_command(box: Path) -> None:
    status, report = run(box, "--steps", "check", "control", "sanitize")
    assert status == 0
    assert {each["name"]: each["state"] for each in report["steps"]} == {
        "check": "done", "control": "done", "sanitize": "skipped",
    }  # fmt: skip
    assert report["steps"][2]["reason"] == "only for a GPU"
    assert report["machine"]["device"] == "cpu"
    assert report["command"].startswith("python run_all.py --device cpu")
    assert str(box) not in json.dumps([each["command"] for each in report["steps"]])
    assert (box / "site" / "fusiond_extra.py").is_file()
    checked = json.loads((box / "results" / "check.json").read_text())["results"]
    assert {each["outcome"] for each in checked if each["name"] == "transfer/fig2"} == {"right"}
    # On the cpu device a warp that returned never arrives at a counted barrier; a whole block's does not wait for it.
    asked = {(each["name"], each["candidate"]): each["outcome"] for each in checked}
    assert asked["questions/early-return-counted", "halves<2>"] == "crashed"
    assert asked["questions/early-return-whole", "whole<2>"] == "right"
    controls = json.loads((box / "results" / "control.json").read_text())
    assert controls["evidence"] == "emulated"
    assert [each["name"] for each in controls["controls"]] == ["transfer/fig2"]


def test_a_candidate_that_is_wrong_fails_the_command(box: Path) -> None:
    """The mutant: a candidate's bundle is that of a question, which computes something else."""
    index = json.loads((box / "bundles" / "index.json").read_text())
    kept = json.dumps(index)
    index["entries"][0]["candidates"][0]["path"] = "questions/early-return-counted/1"
    try:
        (box / "bundles" / "index.json").write_text(json.dumps(index))
        status, report = run(box, "--steps", "check", "--minutes", "5")
    finally:
        (box / "bundles" / "index.json").write_text(kept)
    assert status == 1
    assert report["steps"][0]["state"] == "failed"
    (wrong,) = [each for each in json.loads((box / "results" / "check.json").read_text())["results"]
                if not each["as_expected"]]  # fmt: skip
    assert (wrong["name"], wrong["outcome"]) == ("transfer/fig2", "wrong_result")


def test_no_step_begins_when_no_time_is_left(box: Path) -> None:
    status, report = run(box, "--steps", "check", "--minutes", "0.1")
    assert status == 0
    assert report["steps"][0]["reason"] == "no time left"


def test_a_folder_that_is_there_is_not_overwritten(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main([str(box)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_every_catalogue_has_its_jobs(real: Any) -> None:
    """What is not in REQUESTS would silently be left out."""
    assert set(build.REQUESTS) == set(real.strategies)
    assert {kind for kind, _ in build.REQUESTS.values()} == {kind for kind, _ in real.catalogue}
    found = [(strategy, name) for strategy, name, _ in build.catalogue(real, small=False)]
    assert len(found) == len(set(found))
    for strategy, (kind, key) in build.REQUESTS.items():
        names = real.names(kind)
        expected = len(names) * (len(names) - 1) // 2 if key == "pair" else len(names)
        assert sum(each == strategy for each, _ in found) == expected


def test_the_steps_name_what_they_write(tmp_path: Path) -> None:
    made = list(run_all.steps("cuda:0", tmp_path))
    assert [each.name for each in made][:3] == ["check", "contract", "control"]
    assert len({each.name for each in made}) == len(made)
    shutil.rmtree(tmp_path)
