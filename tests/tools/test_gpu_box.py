"""The folder for a GPU box: built for the processor, and run there with the one command, in a bare environment."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tools.gpu_box import build, run_all, wheels

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
        [str(out), "--arch", "cpu", "--seeds", "1", "--no-fetch", "--wheels", str(folder), "--only", "transfer:fig2",
         "questions"]
    )  # fmt: skip
    assert status == 0
    return out


@pytest.fixture(autouse=True)
def _nothing_done_yet(request: pytest.FixtureRequest) -> None:
    if "box" in request.fixturenames:
        shutil.rmtree(request.getfixturevalue("box") / "results", ignore_errors=True)


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


def states(report: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["state"] for each in report["steps"]}


def test_it_is_one_file_to_carry(box: Path) -> None:
    with tarfile.open(box.with_name("out.tar.gz")) as archive:
        names = set(archive.getnames())
    assert {"out/run_all.py", "out/manifest.json", "out/wheels/extra-1-py3-none-any.whl"} <= names


def test_the_one_command(box: Path) -> None:
    status, report = run(box, "--steps", "check:questions", "check:transfer", "check:hfuse", "control", "sanitize")
    assert status == 0
    assert states(report) == {
        "check:questions": "done", "check:hfuse": "skipped", "check:transfer": "done", "control": "done",
        "sanitize": "skipped",
    }  # fmt: skip
    assert {each["reason"] for each in report["steps"] if each["state"] == "skipped"} == {
        "none were built", "only for a GPU",
    }  # fmt: skip
    (session,) = report["runs"]
    assert session["machine"]["device"] == "cpu"
    assert session["command"].startswith("python run_all.py --device cpu")
    assert str(box) not in json.dumps([each["command"] for each in report["steps"]])
    assert (box / "site" / "fusiond_extra.py").is_file()
    checked = json.loads((box / "results" / "check-transfer.json").read_text())["results"]
    assert {(each["name"], each["outcome"]) for each in checked} == {("transfer/fig2", "right")}
    # On the cpu device a warp that returned never arrives at a counted barrier; a whole block's does not wait for it.
    answers = json.loads((box / "results" / "check-questions.json").read_text())["results"]
    asked = {(each["name"], each["candidate"]): each["outcome"] for each in answers}
    assert asked["questions/early-return-counted", "halves<2>"] == "crashed"
    assert asked["questions/early-return-whole", "whole<2>"] == "right"
    controls = json.loads((box / "results" / "control.json").read_text())
    assert controls["evidence"] == "emulated"
    assert [each["name"] for each in controls["controls"]] == ["transfer/fig2"]
    with tarfile.open(box / "results.tar.gz") as archive:
        names = set(archive.getnames())
    assert {"results/run_all.json", "results/control.json"} <= names
    assert not any(name.startswith("results/work") for name in names)


def test_a_candidate_that_is_wrong_fails_the_command(box: Path) -> None:
    """The mutant: a candidate's bundle is that of a question, which computes something else."""
    index = json.loads((box / "bundles" / "index.json").read_text())
    kept = json.dumps(index)
    index["entries"][0]["candidates"][0]["path"] = "questions/early-return-counted/1"
    try:
        (box / "bundles" / "index.json").write_text(json.dumps(index))
        status, report = run(box, "--steps", "check:transfer", "--minutes", "5")
    finally:
        (box / "bundles" / "index.json").write_text(kept)
    assert status == 1
    assert states(report) == {"check:transfer": "failed"}
    (wrong,) = [each for each in json.loads((box / "results" / "check-transfer.json").read_text())["results"]
                if not each["as_expected"]]  # fmt: skip
    assert (wrong["name"], wrong["outcome"]) == ("transfer/fig2", "wrong_result")


def test_no_step_begins_when_no_time_is_left_and_it_is_begun_the_next_time(box: Path) -> None:
    first = str([each.name for each in run_all.steps("cpu", box)].index("check:transfer") + 1)
    status, report = run(box, "--steps", first, "--minutes", "0.1")
    assert (status, report["steps"][0]["reason"]) == (0, "no time left")
    status, report = run(box, "--steps", first, "--limit", "0.0005")
    assert (status, states(report)) == (1, {"check:transfer": "timed out"})
    _, report = run(box, "--steps", first)
    assert states(report) == {"check:transfer": "done"}
    assert len(report["runs"]) == 3
    # Done before a fresh machine: what was carried back there is what it goes on from, and nothing is forgotten.
    _, report = run(box, "--steps", "sanitize", "--minutes", "0.1")
    assert states(report) == {"check:transfer": "done", "sanitize": "skipped"}


@pytest.mark.parametrize(("limit_secs", "left_secs", "state"), [(0.5, 100.0, "timed out"), (600.0, 0.5, "cut short")])
def test_a_step_that_hangs_is_ended_with_all_it_began(
    tmp_path: Path, limit_secs: float, left_secs: float, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its own time it had its share; of the session's it is given another."""
    monkeypatch.setattr(run_all, "HERE", tmp_path)
    (tmp_path / "source").mkdir()
    monkeypatch.setattr(run_all, "LEAST_SECS", 0.0)
    shell = "sleep 600 & echo $!; wait"
    step = run_all.Step(name="hang", what="", command=["sh", "-c", shell], minutes=limit_secs / 60)
    entry = run_all.run(step, tmp_path, dict(os.environ), left_secs)
    assert entry["state"] == state
    status = Path(f"/proc/{int(entry['output'])}/stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while status.read_text().rpartition(")")[2].split()[0] != "Z":  # gone, but for whoever has to be told
            time.sleep(0.05)  # it dies as soon as it is given a core; the test has its timeout


@pytest.mark.parametrize(
    ("words", "found"),
    [(["2"], "b"), (["2-3", "a"], "abc"), (["3-"], "cd"), (["d", "d"], "d"), ([], "abcd"), (None, "abcd")],
)
def test_steps_by_name_and_number(words: list[str] | None, found: str) -> None:
    every = [run_all.Step(name=name, what="", command=[]) for name in "abcd"]
    assert "".join(each.name for each in run_all.chosen(every, words)) == found


@pytest.mark.parametrize("word", ["e", "0", "5", "-2", "5-", "x-y"])
def test_a_step_that_is_not_there(word: str) -> None:
    every = [run_all.Step(name=name, what="", command=[]) for name in "abcd"]
    with pytest.raises(ValueError, match="no step"):
        run_all.chosen(every, [word])


def test_no_test_that_needs_a_gpu_is_forgotten() -> None:
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if "mark.needs_gpu" in path.read_text("utf-8")]
    found = {path.relative_to(ROOT).as_posix() for path in marked if path != Path(__file__)}
    assert found == set(run_all.GPU_TESTS)


def test_a_toolkit_that_is_not_on_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_all, "CUDA", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    assert run_all.tool("nvcc") is None
    for version in ("cuda-12.8", "cuda-13.0"):
        (tmp_path / version / "bin").mkdir(parents=True)
        (tmp_path / version / "bin" / "nvcc").touch(mode=0o755)
    assert run_all.tool("nvcc") == str(tmp_path / "cuda-13.0" / "bin" / "nvcc")
    (tmp_path / "source" / "plugins").mkdir(parents=True)
    monkeypatch.setattr(run_all, "HERE", tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = run_all.made_environment(tmp_path)["PATH"]
    assert shutil.which("nvcc", path=path) == run_all.tool("nvcc")


def test_what_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip is asked for all that fusiond, its GPU devices and their tests need; what the box has is left out."""
    asked: list[list[str]] = []
    own = tmp_path / "own"
    own.mkdir()
    (own / "pycuda-1-cp312-cp312-linux_x86_64.whl").write_bytes(b"")

    def pip(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        for name in ("numpy-2-cp312.whl", "sqlite_utils-4-py3.whl", "pip-26-py3.whl"):
            (tmp_path / "wheels" / name).write_bytes(b"")
        return subprocess.CompletedProcess(command, len(asked) - 1, "", "WARNING: w\nERROR: no pycuda\nERROR: more\n")

    monkeypatch.setattr(wheels.subprocess, "run", pip)
    assert wheels.fetch(tmp_path / "wheels", own=own, python="3.12") == ""
    (command,) = asked
    assert {"optuna>=5,<6", "libclang==18.1.1", "pycuda>=2025.1", "pytest>=8.3"} <= set(command)
    assert not any(each.startswith(("ruff", "jax", "mypy")) for each in command)
    assert command[command.index("--python-version") + 1] == "3.12"
    found = sorted(each.name.partition("-")[0] for each in (tmp_path / "wheels").iterdir())
    assert found == ["pycuda", "sqlite_utils"]
    assert wheels.fetch(tmp_path / "wheels", own=None, python="3.12") == "the wheels: ERROR: no pycuda"


def test_a_folder_that_is_there_is_not_overwritten(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main([str(box)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_every_catalogue_has_its_jobs(real: Any) -> None:
    """What is not in REQUESTS would silently be left out."""
    assert set(build.REQUESTS) == set(real.strategies)
    assert {kind for kind, _ in build.REQUESTS.values()} == {kind for kind, _ in real.catalogue}
    found = [(strategy, name) for strategy, name, _ in build.catalogue(real)]
    assert len(found) == len(set(found))
    for strategy, (kind, key) in build.REQUESTS.items():
        names = real.names(kind)
        expected = len(names) * (len(names) - 1) // 2 if key == "pair" else len(names)
        assert sum(each == strategy for each, _ in found) == expected


def test_the_steps_name_what_they_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").mkdir()
    shutil.copytree(ROOT / "configs", tmp_path / "source" / "configs")
    monkeypatch.setattr(run_all, "HERE", tmp_path)
    made = list(run_all.steps("cuda:0", tmp_path))
    names = [each.name for each in made]
    assert names[:7] == [*(f"check:{each}" for each in ("questions", *build.REQUESTS)), "tests", "control"]
    assert {name for name in names if name.startswith("bench:")} == {f"bench:{each}" for each in build.REQUESTS}
    assert {name.partition(":")[2] for name in names if name.startswith("job:")} == {
        each.stem for each in (ROOT / "configs" / "jobs").glob("*.yaml")
    }
    # A machine is lent for minutes: none of them takes longer than one command there may.
    assert max(each.minutes for each in made) <= 9
    assert len({each.name for each in made}) == len(made)
    shutil.rmtree(tmp_path)


def test_a_box_that_is_taken_away_leaves_nothing_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while it unpacks or writes its report: the next start finds neither half of one."""
    monkeypatch.setattr(run_all, "HERE", tmp_path)
    monkeypatch.setattr(run_all, "SITE", tmp_path / "site")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(run_all.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1, "", "no pip"))
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "a-1-py3-none-any.whl", "w") as archive:
        archive.writestr("a.py", "")

    def killed(self: zipfile.ZipFile, into: Path) -> None:
        (into / "half.py").write_text("")
        raise KeyboardInterrupt

    def half(self: Path, text: str) -> None:
        self.write_bytes(text[:9].encode())
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "extractall", killed)
        with pytest.raises(KeyboardInterrupt):
            run_all.unpack()
    run_all.unpack()
    assert [each.name for each in (tmp_path / "site").iterdir()] == ["a.py"]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", half)
        with pytest.raises(KeyboardInterrupt):
            run_all.save({"runs": [], "steps": []}, tmp_path)
    assert run_all.earlier(tmp_path) == {"runs": [], "steps": []}


def test_ctrl_c_ends_the_step_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in a session of its own, so that nobody else would."""
    monkeypatch.setattr(run_all, "HERE", tmp_path)
    (tmp_path / "source").mkdir()
    begun: list[Any] = []
    wait = subprocess.Popen.wait

    def interrupted(self: Any, timeout: float | None = None) -> int:
        if not begun:
            begun.append(self)
            raise KeyboardInterrupt
        return wait(self, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    step = run_all.Step(name="long", what="", command=["sleep", "600"])
    with pytest.raises(KeyboardInterrupt):
        run_all.run(step, tmp_path, dict(os.environ), 100.0)
    assert begun[0].returncode == -signal.SIGTERM
