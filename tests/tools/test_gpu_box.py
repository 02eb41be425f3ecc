"""The folder for a GPU box: built for the processor, and run there with the one command, in a bare environment."""

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.headlines import rivals
from benchmarks.headlines.order import ORDER
from benchmarks.hfuse.pairs import PAIRS
from benchmarks.mincut import paper
from benchmarks.stitching import modules
from benchmarks.transfer import measure as transfer
from fusiond.devices.base import MORE
from tools.gpu_box import build, run_all, units, wheels
from tools.gpu_box.box import Box
from tools.gpu_box.units import Unit

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
         "questions", "alive", "null", "headlines:llama_rows"]
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
    assert (manifest["arch"], manifest["headlines"], manifest["not_built"]) == ("cpu", ["llama_rows"], [])
    names = [each["name"] for each in json.loads((box / "bundles" / "index.json").read_text())["entries"]]
    questions = [f"questions/{each.name}" for each in build.questions.QUESTIONS]
    assert names == ["transfer/fig2", "alive/launches", "alive/transfer/fig2", *questions]
    (headline,) = json.loads((box / "bundles" / "headlines" / "index.json").read_text())["entries"]
    roles = [each["role"] for each in headline["entries"]]
    assert roles[0] == "unfused"
    assert min(roles.count("unfused"), roles.count("fused")) >= 5
    null = json.loads((box / "bundles" / "null" / "index.json").read_text())["entries"]
    assert [each["name"] for each in null] == ["streams 20 us", "computes 200 us", "computes 5 ms"]
    assert (box / "source" / "fusiond" / "devices" / "check.py").is_file()
    assert (box / "source" / "plugins" / "transfer" / "fusiond_transfer" / "plugin.py").is_file()
    assert not list((box / "source").rglob("*.pyc"))
    assert [path.name for path in (box / "wheels").iterdir()] == ["extra-1-py3-none-any.whl"]


def states(report: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["state"] for each in report["units"]}


def test_it_is_one_file_to_carry(box: Path) -> None:
    with tarfile.open(box.with_name("out.tar.gz")) as archive:
        names = set(archive.getnames())
    assert {"out/run_all.py", "out/manifest.json", "out/wheels/extra-1-py3-none-any.whl"} <= names


def test_the_one_command(box: Path) -> None:
    status, report = run(
        box, "--units", "check:questions", "check:transfer", "check:hfuse", "control", "sanitize", "check:alive"
    )
    assert status == 0
    assert states(report) == {
        "check:questions": "done", "check:hfuse": "skipped", "check:transfer": "done", "control": "done",
        "sanitize": "skipped", "check:alive": "done",
    }  # fmt: skip
    kinds = json.loads((box / "results" / "check-alive.json").read_text())["results"]
    assert {each["outcome"] for each in kinds} == {"right"}
    assert {each.name for each in build.smoke_programs.programs()} < {each["candidate"] for each in kinds}
    assert {each["reason"] for each in report["units"] if each["state"] == "skipped"} == {
        "none were built", "only for a GPU",
    }  # fmt: skip
    (session,) = report["runs"]
    assert session["machine"]["device"] == "cpu"
    assert session["command"].startswith("python run_all.py --device cpu")
    assert str(box) not in json.dumps([each["command"] for each in report["units"]])
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
    assert next(each["name"] for each in controls["controls"]) == "transfer/fig2"
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
        status, report = run(box, "--units", "check:transfer", "--minutes", "5")
    finally:
        (box / "bundles" / "index.json").write_text(kept)
    assert status == 1
    assert states(report) == {"check:transfer": "failed"}
    (wrong,) = [each for each in json.loads((box / "results" / "check-transfer.json").read_text())["results"]
                if not each["as_expected"]]  # fmt: skip
    assert (wrong["name"], wrong["outcome"]) == ("transfer/fig2", "wrong_result")


def test_no_unit_begins_when_no_time_is_left_and_it_is_begun_the_next_time(box: Path) -> None:
    status, report = run(box, "--units", "check:transfer", "--minutes", "0.05")
    assert (status, report["units"][0]["reason"]) == (0, "no time left")
    _, report = run(box, "--units", "check:transfer")
    assert states(report) == {"check:transfer": "done"}
    assert len(report["runs"]) == 2
    assert all(each["secs"] >= each["setup_secs"] >= 0 for each in report["runs"])
    # What is done is not done again, and nothing is forgotten.
    _, report = run(box, "--call", "2", "--units", "check:*", "--minutes", "0.05")
    assert states(report)["check:transfer"] == "skipped"  # who names it wants it again, and there was no time
    _, report = run(box, "--call", "4", "--minutes", "1")
    assert states(report)["check:questions"] == "done"


def test_a_fresh_machine_goes_on_from_the_file_that_came_back(box: Path, tmp_path: Path) -> None:
    run(box, "--units", "check:transfer", "--archive", str(tmp_path / "back.tar.gz"))
    shutil.rmtree(box / "results")
    _, report = run(box, "--after", str(tmp_path / "back.tar.gz"), "--call", "4")
    assert states(report) == {"check:transfer": "done", "check:questions": "done"}
    assert len(report["runs"]) == 2
    assert (box / "results" / "check-transfer.json").is_file()


def test_a_check_that_had_not_all_of_its_time_goes_on_where_it_was(box: Path, tmp_path: Path) -> None:
    out = tmp_path / "checked.json"
    words = [sys.executable, "-m", "fusiond.devices.check", str(box / "bundles"), "--device", "cpu", "--out", str(out)]
    done = subprocess.run([*words, "--minutes", "0"], capture_output=True, text=True, check=False)
    assert (done.returncode, out.exists()) == (MORE, False)
    assert "the same command goes on" in done.stdout
    assert subprocess.run([*words, "--only", "transfer/"], capture_output=True, check=False).returncode == 0
    before = json.loads(out.read_text())["results"]
    assert before[0]["samples"]["span_us"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert json.loads(out.read_text())["results"][: len(before)] == before
    assert not any(line.startswith("transfer/fig2") for line in done.stdout.splitlines())
    out.write_text("[]")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_a_headline_goes_on_from_what_was_kept_and_comes_to_a_verdict(box: Path, tmp_path: Path) -> None:
    """On the processor, whose times are nobody's result: its slice is over again and again, and nothing is lost."""
    seen: list[int] = []
    for _ in range(8):
        _, report = run(box, "--units", "headlines:3", "--minutes", "0.5")
        kept = box / "results" / "headlines" / "llama_rows.json"
        found = json.loads(kept.read_text()) if kept.exists() else None
        seen.append(len(found["screened"]) + len(found["finals"]["processes"]) if found else 0)
        if states(report)["headlines:3"] == "done":
            break
    assert seen == sorted(seen)
    assert found["evidence"] == "emulated"
    assert {each["outcome"] for each in found["screened"].values()} == {"right"}
    assert found["conclusion"]["verdict"] in ("fuse", "keep", "undecided")
    assert found["conclusion"]["opponent"] in found["finalists"]["unfused"]
    assert len(found["screened"]) + found["untried"] == len(found["entries"])


@pytest.fixture
def here(tmp_path: Path) -> Box:
    (tmp_path / "source" / "plugins").mkdir(parents=True)
    return Box(tmp_path)


def unit(*command: str, name: str = "it", **options: Any) -> Unit:
    return Unit(name=name, what="", command=command, **options)


@pytest.mark.parametrize(
    ("secs", "left_secs", "goes", "state"),
    [(0.5, 100.0, 1, "timed out"), (0.5, 100.0, 2, run_all.LEFT), (600.0, 0.5, 2, run_all.LEFT)],
)
def test_a_unit_that_hangs_is_ended_with_all_it_began(
    here: Box, secs: float, left_secs: float, goes: int, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_all, "LEAST_SECS", 0.0)
    hangs = unit("sh", "-c", "sleep 600 & echo $!; wait", secs=secs, goes=goes)
    entry = run_all.one(here, hangs, here.folder, dict(os.environ), left_secs, {})
    assert entry["state"] == state
    status = Path(f"/proc/{int(entry['output'])}/stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while status.read_text().rpartition(")")[2].split()[0] != "Z":  # gone, but for whoever has to be told
            time.sleep(0.05)  # it dies as soon as it is given a core; the test has its timeout


def test_the_archive_has_stores_and_stays_small_enough(here: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    out = here.folder / "results"
    (out / "work").mkdir(parents=True)
    (out / "small.json").write_text("{}")
    with contextlib.closing(sqlite3.connect(out / "work" / "bench.sqlite")) as store:
        store.execute("PRAGMA journal_mode = WAL")
        store.execute("CREATE TABLE noise (data)")
        store.execute("INSERT INTO noise VALUES (randomblob(400000))")
        store.commit()
        run_all.snapshots(out)  # while it is open
    archive = here.folder / "back" / "all.tar.gz"
    assert run_all.pack(out, archive) == []
    run_all.go_on_from(archive, here.folder / "again")
    with contextlib.closing(sqlite3.connect(here.folder / "again" / "work" / "bench.sqlite")) as store:
        assert store.execute("SELECT length(data) FROM noise").fetchone() == (400000,)
    assert not (here.folder / "again" / "work" / "bench.sqlite-wal").exists()
    monkeypatch.setattr(run_all, "MOST_BYTES", 100_000)
    assert run_all.pack(out, archive) == ["stores/bench.sqlite"]
    assert archive.stat().st_size <= 100_000
    with tarfile.open(archive) as packed:
        assert packed.getnames() == ["results/small.json"]


@pytest.mark.parametrize(
    ("words", "calls", "found"),
    [(["b"], None, "b"), (["c?", "a"], None, "ac1"), (None, [2], "c1"), (["a", "c*"], [1], "a"), (None, None, "abc1")],
)
def test_units_by_name_and_call(words: list[str] | None, calls: list[int] | None, found: str) -> None:
    every = [unit(name="a"), unit(name="b"), unit(name="c1", call=2)]
    assert "".join(each.name for each in run_all.chosen(every, words, calls)) == found


def test_the_second_command_first_does_once_more_what_did_not_end_well() -> None:
    """What was cut before what failed: it lacks only time."""
    every = [*(unit(name=name) for name in "abcde"), unit(name="f", call=2)]
    before = [
        {"name": name, "state": state}
        for name, state in zip("abcd", ("done", "failed", run_all.LEFT, "skipped"), strict=True)
    ]
    assert "".join(each.name for each in run_all.chosen(every, None, [2], before)) == "cebf"
    assert "".join(each.name for each in run_all.chosen(every, ["f"], [2], before)) == "f"
    assert "".join(each.name for each in run_all.chosen(every, None, [1], before)) == "abcde"


def test_no_test_that_needs_a_gpu_is_forgotten() -> None:
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if "mark.needs_gpu" in path.read_text("utf-8")]
    found = {path.relative_to(ROOT).as_posix() for path in marked if path != Path(__file__)}
    assert found == set(units.GPU_TESTS)


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
    assert {"libclang==18.1.1", "pycuda>=2025.1", "pytest>=8.3"} <= set(command)
    assert not any(each.startswith(("ruff", "jax", "mypy")) for each in command)
    assert command[command.index("--python-version") + 1] == "3.12"
    found = sorted(each.name.partition("-")[0] for each in (tmp_path / "wheels").iterdir())
    assert found == ["pycuda", "sqlite_utils"]
    assert wheels.fetch(tmp_path / "wheels", own=None, python="3.12") == "the wheels: ERROR: no pycuda"


def test_a_folder_that_is_there_is_not_overwritten(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main([str(box)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_every_catalogue_has_its_jobs(real: Any) -> None:
    """What is not in REQUESTS would silently be left out; a recorded space is measured by nobody, and variants have no
    catalogue."""
    assert set(build.REQUESTS) == set(real.strategies) - {"replay", "variants"}
    assert {kind for kind, _ in build.REQUESTS.values()} == {kind for kind, _ in real.catalogue}
    found = [(strategy, name) for strategy, name, _ in build.catalogue(real)]
    assert len(found) == len(set(found))
    for strategy, (kind, key) in build.REQUESTS.items():
        names = real.names(kind)
        expected = len(names) * (len(names) - 1) // 2 if key == "pair" else len(names)
        assert sum(each == strategy for each, _ in found) == expected


def test_the_units_are_all_there_and_short(here: Box) -> None:
    shutil.copytree(ROOT / "configs", here.source / "configs")
    made = units.units(here, "cuda:0", here.folder / "results")
    names = [each.name for each in made]
    assert len(set(names)) == len(names)
    assert {f"check:{each}" for each in ("questions", *build.REQUESTS)} <= set(names)
    assert {name for name in names if name.startswith("bench:")} == {
        *(f"bench:hfuse:{each.name}" for each in PAIRS),
        *(f"bench:stitching:{each}" for each in (*modules.names(), *modules.large())),
        *(f"bench:mincut:{each}" for each in paper.APPLICATIONS),
        *(f"bench:transfer:{each}" for each in ("overlap", *transfer.GRAPHS)),
    }
    assert {name.partition(":")[2] for name in names if name.startswith("job:")} == {
        each.stem for each in (ROOT / "configs" / "jobs" / "gpu").glob("*.yaml")
    }
    assert max(each.secs for each in made) <= 60
    assert [each.call for each in made] == sorted(each.call for each in made)
    assert names[-1] == "check:questions"  # a kernel may hang there
    for each in made:  # what can be stopped and go on says so to its command, or has a store
        assert each.goes == 1 or "{minutes}" in " ".join(each.command) or each.name.startswith(("bench:", "job:"))


def test_the_first_ten_minutes(here: Box) -> None:
    """Eight and a half, by slices: half a minute is left for unpacking and packing. Ours stand before the rivals, so
    that a machine that goes away has measured what they would stand beside."""
    for folder, names in (("headlines", ORDER), ("null", ()), ("alive", ())):
        (here.bundles / folder).mkdir(parents=True)
        index = {"entries": [{"name": name} for name in names]}
        (here.bundles / folder / "index.json").write_text(json.dumps(index))
    made = [each for each in units.units(here, "cuda:0", here.folder / "results") if each.call == units.FIRST]
    stages = {
        "ruler": ("calibrate", "agreement"), "null": ("null",), "alive": ("check:alive",),
        "headlines": ("headlines:1", "headlines:2", "headlines:3", "bench:transfer:overlap",
                      *(f"rivals:{name}" for name in rivals.GROUPS)),
        "steps": ("steps",), "capture": ("capture",), "counters": ("counters",),
    }  # fmt: skip
    assert [each.name for each in made] == [name for stage in stages.values() for name in stage]
    secs = {stage: sum(each.secs for each in made if each.name in names) for stage, names in stages.items()}
    assert secs == {
        "ruler": 45, "null": 30, "alive": 45, "headlines": 225, "steps": 45, "capture": 45, "counters": 45,
    }  # fmt: skip
    assert all(each.goes > 1 for each in made if each.name != "calibrate")


def test_a_box_that_is_taken_away_leaves_nothing_half_done(here: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while it unpacks or writes its report: the next start finds neither half of one."""
    (here.folder / "wheels").mkdir()
    with zipfile.ZipFile(here.folder / "wheels" / "a-1-py3-none-any.whl", "w") as archive:
        archive.writestr("a.py", "")
        archive.writestr("a-1.data/purelib/b.py", "")

    def killed(self: zipfile.ZipFile, into: Path) -> None:
        (into / "half.py").write_text("")
        raise KeyboardInterrupt

    def half(self: Path, text: str) -> None:
        self.write_bytes(text[:9].encode())
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "extractall", killed)
        with pytest.raises(KeyboardInterrupt):
            here.unpack()
    here.unpack()
    assert {each.name for each in here.site.glob("*.py")} == {"a.py", "b.py"}
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", half)
        with pytest.raises(KeyboardInterrupt):
            run_all.save({"runs": [], "units": []}, here.folder)
    assert run_all.earlier(here.folder) == {"runs": [], "units": []}
