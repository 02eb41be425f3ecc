"""`fusiond best` for what a job or the files of a folder ask, with the plugins of this environment. What was tuned is
made up: a record of a job is what counts here, not how it came about."""

import dataclasses
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond import Ambiguous, Client, __version__
from fusiond.model.errors import DaemonError, RequestError
from fusiond.model.nouns import Config, DeviceInfo
from fusiond.model.outcomes import JobState, Record, Verdict
from fusiond.model.program import Program, Source
from fusiond.requests import content_lookup, job_cache, jobs
from fusiond.requests.isolation import registry as isolated
from fusiond.requests.planning import prepare
from fusiond.requests.registry import Registry
from fusiond.service.client import connection
from fusiond.service.frameworks.region_answers import Asker, Question
from fusiond.store.database import Store
from tests.fake_daemon import DEVICE

Run = Callable[..., Any]

KERNEL = """\
kernel: {name}
source: {name}.cu
entry: {name}
sizes: {{n: 4096}}
arguments:
  - {{name: x, dtype: float32, elements: n, role: inout, fill: {{uniform: [0, 1]}}}}
  - {{name: n, dtype: int32, value: n}}
block: {{shape: [128]}}
grid: ["ceil_div(n, block.x)"]
"""
SOURCE = """\
extern "C" __global__ void {name}(float *x, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] {sign} 2.0f;
}}
"""
UNFUSED = Program(
    name="unfused",
    buffers=(),
    sources=(Source(name="scale", text="// one\n", entries=("scale",)),
             Source(name="shift", text="// two", entries=("shift",))),
    steps=(),
)  # fmt: skip


def folder_of(path: Path, sign: str) -> Path:
    """A folder with two kernels, one of them its own, and a job that fuses them."""
    path.mkdir()
    for name, each in (("scale", sign), ("shift", "-")):
        (path / f"{name}.yaml").write_text(KERNEL.format(name=name))
        (path / f"{name}.cu").write_text(SOURCE.format(name=name, sign=each))
    (path / "job.yaml").write_text("strategy: hfuse\npair: [./scale.yaml, ./shift.yaml]\n")
    return path


def tuned(
    database: Path,
    registry: Registry,
    job: Path,
    *,
    device: DeviceInfo = DEVICE,
    cache: str = "warm",
    version: int | None = None,
    sizes: dict[str, int] | None = None,
    **fields: Any,
) -> Record:
    """Leave a record of a job; `version` as if that version of the strategy had found it."""
    (given,) = jobs.read(job)
    ready = prepare(registry, dataclasses.replace(given, sizes={**given.sizes, **(sizes or {})}))
    workload = ready.workload
    if version is not None:
        workload = dataclasses.replace(workload, strategy_version=version)
    record = Record(
        **{
            "strategy": workload.strategy, "workload_name": workload.name, "workload_key": workload.key,
            "sizes": workload.sizes, "device_name": device.name, "device_key": device.key, "env_key": device.env_key,
            "verdict": Verdict.FUSE, "config": Config.of({"kind": "horizontal"}), "program_key": UNFUSED.key,
            "time_us": 10.0, "baseline": "sequential", "baseline_us": 15.0, "baseline_program_key": UNFUSED.key,
            "baseline_config": Config.of({"threads.a": 512}), "speedup": 1.5, "ci95": (1.4, 1.6), "verified": True,
            "evidence": device.evidence, "cache": cache, "trials": 9, "found_at": "2026-01-01T00:00:00.000+00:00",
            **fields,
        },
    )  # fmt: skip
    with Store.open(database) as store:
        row = store.submit(ready.job, workload)
        store.save_device(device)
        store.save_program(UNFUSED)
        store.save_record(record, job=row.id, source_hashes=workload.source_hashes)
    return record


@pytest.fixture
def folders(tmp_path: Path, database: Path, real: Registry) -> dict[str, Path]:
    """One multiplies and one adds, both are tuned; a third folder has no kernels."""
    made = {"times": folder_of(tmp_path / "times", "*"), "plus": folder_of(tmp_path / "plus", "+")}
    for trials, path in enumerate(made.values(), start=1):
        tuned(database, real, path / "job.yaml", trials=trials)
    (tmp_path / "elsewhere").mkdir()
    return {**made, "elsewhere": tmp_path / "elsewhere"}


# --- names ---


def test_each_folder_gets_its_own_answer(
    fusiond: Run, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for trials, name in ((1, "times"), (2, "plus")):
        monkeypatch.chdir(folders[name])
        found = fusiond("best", "--pair", "shift,scale", "--json").json
        assert (found["match"], found["trials"]) == ("exact", trials)
    monkeypatch.chdir(folders["elsewhere"])
    said = fusiond("best", "--pair", "scale,shift", "--json")
    assert said.status == 2
    assert said.json["match"] == "ambiguous"
    paths = [str(folders[name] / "scale.cu") for name in ("plus", "times")]
    assert "scale,shift stands for 2 contents" in said.err
    assert all(str(Path(each).parent) in said.err for each in paths)
    assert "`fusiond best JOB.yaml`" in said.err
    for form in ("--source", "--export=out"):
        said = fusiond("best", "--pair", "scale,shift", form)
        assert (said.status, said.out) == (2, "")
    assert fusiond("verify", "--pair", "scale,shift").status == 2


@pytest.mark.slow
def test_the_client_answers_as_the_command_line(
    fusiond: Run, database: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = folders["plus"] / "job.yaml"
    with Client(db=database) as client:
        monkeypatch.chdir(folders["times"])
        found = client.best("scale,shift")
        assert found is not None
        assert found.trials == 1
        said = fusiond("best", "--pair", "scale,shift", "--json").json
        assert (found.document, found.verdict, found.time_us) == (said, said["verdict"], said["time_us"])
        assert (found.workload.name, found.device.name) == (said["workload"]["name"], "cpu")
        assert found.ci95 == (said["ci95"] and tuple(said["ci95"]))
        of_job = client.best(job=job)
        assert of_job is not None
        assert of_job.trials == 2
        assert client.best(job=job, cache="cold") is None
        (folders["times"] / "scale.cu").write_text(SOURCE.format(name="scale", sign="/"))
        assert client.best("scale,shift") is None
        monkeypatch.chdir(folders["elsewhere"])
        with pytest.raises(Ambiguous, match="scale,shift stands for 2 contents") as caught:
            client.best("scale,shift")
        assert len(caught.value.answers) == 2
        with pytest.raises(RequestError, match="give one of name and job"):
            client.best("scale,shift", job=job)
        job.write_text(job.read_text() + "sweep: {scale.n: [4096, 64]}\n")
        with pytest.raises(RequestError, match="asks about 2 workloads"):
            client.best(job=job)
        assert [each and each.match for each in client.best_of_job(job)] == ["exact", "nearest"]


_FAST = """
import sys
from fusiond.cli import main
status = main(sys.argv[1:])
assert not {"pluggy", "yaml", "dataclasses", "sqlite_utils"} & set(sys.modules), "slow"
sys.exit(status)
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["times", "elsewhere"])
def test_a_name_that_files_settle_loads_no_plugin(
    fusiond: Run, folders: dict[str, Path], database: Path, real: Registry, where: str
) -> None:
    with Store.open(database) as store:
        content_lookup.index(store, real)
    done = subprocess.run(
        [sys.executable, "-c", _FAST, "best", "--pair", "scale,shift"], cwd=folders[where],
        env={**os.environ, "FUSIOND_DB": str(database)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, "slow" in done.stderr) == (0 if where == "times" else 2, False), done.stderr


def test_the_plugins_are_asked_once_after_an_upgrade(
    fusiond: Run, folders: dict[str, Path], database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folders["times"])
    loaded = []
    load = isolated.load
    monkeypatch.setattr(isolated, "load", lambda **_: loaded.append(1) or load())
    for _ in range(2):
        assert fusiond("best", "--pair", "scale,shift").status == 0
    assert len(loaded) == 1
    with Store.open(database) as store, store._transaction() as writer:
        writer.execute("UPDATE strategies SET fusiond = '0.0.9'")
    for _ in range(2):
        assert fusiond("best", "--pair", "scale,shift").status == 0
    assert len(loaded) == 2
    with Store.open(database) as store:
        assert {row["fusiond"] for row in store._rows("SELECT fusiond FROM strategies")} == {__version__}


# --- jobs ---


@pytest.mark.slow
def test_a_job_is_answered_by_its_content(fusiond: Run, folders: dict[str, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(folders["times"], tmp_path / "copy")
    found = fusiond("best", copy / "job.yaml", "--json").json
    assert (found["match"], found["trials"], found["notes"]) == ("exact", 1, [])
    found = fusiond("best", copy / "job.yaml", "--size", "scale.n=64", "--json").json
    assert (found["match"], found["sizes_asked"]["scale.n"]) == ("nearest", 64)
    assert "measured at scale.n=4096; nothing is known at scale.n=64" in found["notes"]
    assert fusiond("best", copy / "job.yaml", "--device", "cuda:0").status == 3
    said = fusiond("best", copy / "job.yaml", "--device", "toaster")
    assert (said.status, "--device: unknown device 'toaster'; known: " in said.err) == (2, True)
    (copy / "scale.cu").write_text(SOURCE.format(name="scale", sign="/"))
    said = fusiond("best", copy / "job.yaml")
    assert said.status == 3
    assert f"as {copy / 'job.yaml'} asks it; an answer for other content of that name exists" in said.err
    (copy / "job.yaml").write_text("strategy: hfuse\npair: [./gone.yaml, hist]\n")
    assert fusiond("best", copy / "job.yaml").status == 2


@pytest.mark.slow
def test_a_store_of_an_earlier_version_is_read_when_plugins_are_at_hand(
    fusiond: Run, folders: dict[str, Path], database: Path, real: Registry
) -> None:
    with Store.open(database) as store:
        lost = store.submit(jobs.read("/gone.yaml", "strategy: hfuse\npair: [./gone.yaml, hist]\n")[0], _lost(real))
        with store._transaction() as writer:
            writer.execute("UPDATE workloads SET content_key = NULL, content_family_key = NULL")
        assert len(store.without_content()) == 3
    assert fusiond("best", folders["times"] / "job.yaml", "--json").json["trials"] == 1
    with Store.open(database) as store:
        assert store.without_content() == []  # the one that does not parse is not tried again
        (row,) = store._rows("SELECT content_key FROM workloads WHERE workload_key = ?", [lost.workload_key])
        assert row == {"content_key": ""}


def _lost(registry: Registry) -> Any:
    (job,) = jobs.read("/job.yaml", "strategy: hfuse\npair: [hist, maxpool]\n")
    return prepare(registry, job).workload


@pytest.mark.slow
def test_a_sweep_is_a_document_each(fusiond: Run, folders: dict[str, Path]) -> None:
    job = folders["times"] / "job.yaml"
    job.write_text(job.read_text() + "sweep: {scale.n: [4096, 128]}\nmeasure: {cache: both}\n")
    said = fusiond("best", job, "--cache", "warm", "--json")
    assert [each["match"] for each in said.json] == ["exact", "nearest"]
    assert said.status == 0
    said = fusiond("best", job, "--json")
    assert said.status == 3  # nothing was measured with cold caches
    assert [each.get("match") for each in said.json] == ["exact", None, "nearest", None]
    assert said.json[1]["error"]["kind"] == "NothingKnown"
    said = fusiond("best", job, "--source")
    assert said.status == 2
    assert "--source: " in said.err
    assert "asks about 4 workloads" in said.err
    assert fusiond("best", job, "--cache", "warm", "--size", "scale.n=4096", "--source").status == 3


# --- the unfused way ---


def test_the_unfused_sources_are_printed_word_for_word(fusiond: Run, folders: dict[str, Path]) -> None:
    said = fusiond("best", folders["times"] / "job.yaml", "--source", "--unfused")
    assert (said.status, said.out) == (0, "// --- scale ---\n// one\n// --- shift ---\n// two\n")


def test_an_export_is_told_which_way_and_for_what(
    fusiond: Run, folders: dict[str, Path], database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    def export(path: Path, document: Any, folder: Path, *, unfused: bool, arch: str | None) -> list[Path]:
        told.append((path, document["verdict"], folder, unfused, arch))
        return [folder / "file"]

    monkeypatch.setattr("fusiond.service.client.exporting.export", export)
    said = fusiond("best", folders["times"] / "job.yaml", "--export", "out", "--unfused", "--arch", "sm_90", "--json")
    assert said.json["files"] == ["out/file"]
    assert fusiond("best", folders["times"] / "job.yaml", "--export", "out").out == "out/file\n"
    said = fusiond("best", folders["times"] / "job.yaml", "--export", "")
    assert (said.status, "--export: is empty; name a folder" in said.err) == (2, True)
    assert told == [(database, "fuse", Path("out"), True, "sm_90"), (database, "fuse", Path("out"), False, None)]


# --- what a job file stands for is remembered, and not longer than it is true ---------------------------


LARGE = np.zeros(1_200_000, np.float32)  #: 4.8 MB: larger than what is compared by content


@pytest.fixture
def job(tmp_path: Path, database: Path, real: Registry) -> Path:
    """A tuned job of two kernels, one with headers in two folders and data in two files."""
    folder = folder_of(tmp_path / "mine", "*")
    (folder / "far").mkdir()
    (folder / "near").mkdir()
    (folder / "far" / "two.h").write_text("#define TWO 2.0f\n")
    text = '#include "two.h"\n' + SOURCE.format(name="scale", sign="*").replace("2.0f", "TWO")
    (folder / "scale.cu").write_text(text.replace("float *x,", "float *x, const float *small, const float *large,"))
    np.save(folder / "small.npy", np.ones(16, np.float32))
    np.save(folder / "large.npy", LARGE)
    said = (folder / "scale.yaml").read_text()
    data = "  - {{name: {0}, dtype: float32, elements: {1}, role: input, fill: {{file: {0}.npy}}}}\n"
    said = said.replace("  - {name: n,", data.format("small", 16) + data.format("large", 64) + "  - {name: n,")
    (folder / "scale.yaml").write_text(said + "include: [near, far]\n")
    for each in (folder / "large.npy", folder):
        os.utime(each, (1e9, 1e9))
    tuned(database, real, folder / "job.yaml")
    return folder / "job.yaml"


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every time that plugins are loaded. Data is old enough to be trusted."""
    monkeypatch.setattr(job_cache, "_SETTLED_NS", -1)
    load, loaded = isolated.load, list[int]()
    monkeypatch.setattr(isolated, "load", lambda **options: loaded.append(1) or load(**options))
    return loaded


def said(fusiond: Run, job: Path, *words: str) -> tuple[int, str, str]:
    found = fusiond("best", job, *words)
    return found.status, found.out, found.err


def test_it_is_parsed_once(fusiond: Run, job: Path, parsed: list[int]) -> None:
    first = said(fusiond, job)
    assert (first[0], len(parsed)) == (0, 1)
    assert said(fusiond, job) == first
    assert Client().best(job=job) is not None
    assert len(parsed) == 1
    at_another = said(fusiond, job, "--size", "scale.n=64")
    assert ("nothing is known at scale.n=64" in at_another[1], len(parsed)) == (True, 2)
    assert said(fusiond, job, "--size", "scale.n=64") == at_another
    assert said(fusiond, job, "--device", "cuda:0")[0] == 3
    assert said(fusiond, job, "--cache", "cold")[0] == 3
    assert len(parsed) == 2


@pytest.mark.slow
def test_the_second_time_imports_no_plugin(fusiond: Run, job: Path, database: Path) -> None:
    os.utime(job.parent / "large.npy")
    done = []
    for _ in range(2):
        done.append(
            subprocess.run(
                [sys.executable, "-c", _FAST.replace("status = main", "import time; time.sleep(2.1); status = main"),
                 "best", str(job)],
                env={**os.environ, "FUSIOND_DB": str(database)},
                capture_output=True,
                text=True,
                check=False,
            )
        )  # fmt: skip
    assert ["slow" in each.stderr for each in done] == [True, False]
    assert (done[1].returncode, done[1].stdout) == (0, said(fusiond, job)[1])


def edited(*names: str) -> Callable[[Path], None]:
    """One byte of a file becomes another one; its size, its date and its inode stay."""

    def change(folder: Path) -> None:
        path = folder.joinpath(*names)
        before, data = path.stat(), bytearray(path.read_bytes())
        place = data.rindex(b"2") if b"2" in data and path.suffix != ".npy" else -1
        data[place] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return change


CHANGES: dict[str, Callable[[Path], object]] = {
    "a source": edited("shift.cu"),
    "a header": edited("far", "two.h"),
    "data": edited("small.npy"),
    "large data": edited("large.npy"),
    "a kernel's file": lambda folder: (folder / "shift.yaml").write_text(
        (folder / "shift.yaml").read_text().replace("n: 4096", "n: 4097")
    ),
    "the job": lambda folder: (folder / "job.yaml").write_text("strategy: hfuse\npair: [./scale.yaml, hist]\n"),
    "a header that comes before it": lambda folder: (folder / "near" / "two.h").write_text("#define TWO 3.0f\n"),
    "a header beside the source": lambda folder: (folder / "two.h").write_text("#define TWO 3.0f\n"),
    "a header goes": lambda folder: (folder / "far" / "two.h").unlink(),
    "a link to another file": lambda folder: (
        (folder / "other.cu").write_text((folder / "shift.cu").read_text().replace("2.0f", "5.0f")),
        (folder / "shift.cu").unlink(),
        (folder / "shift.cu").symlink_to("other.cu"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_is_parsed_again(
    fusiond: Run, job: Path, database: Path, parsed: list[int], change: str
) -> None:
    before = said(fusiond, job)
    CHANGES[change](job.parent)
    after = said(fusiond, job)
    assert len(parsed) == 2
    assert after != before
    shutil.rmtree(f"{database.with_suffix('')}.asked")
    assert said(fusiond, job) == after


@pytest.mark.parametrize(
    "what", ["fusiond", "environment", "plugins of the store", "b''", "b'nonsense'", "flipped", "no JSON", "no entry"]
)
def test_another_version_and_damage_are_a_miss(
    fusiond: Run, job: Path, database: Path, parsed: list[int], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    before = said(fusiond, job)
    (entry,) = Path(f"{database.with_suffix('')}.asked").iterdir()
    data = entry.read_bytes()
    match what:
        case "fusiond":
            monkeypatch.setattr(job_cache, "__version__", "9.9")
        case "environment":
            monkeypatch.setenv("PYTHONPATH", str(job.parent))
        case "plugins of the store":
            with Store.open(database) as store, store._transaction() as writer:
                writer.execute("UPDATE strategies SET wrong_versions = '[7]' WHERE strategy = 'hfuse'")
        case "flipped":
            entry.write_bytes(data[:400] + bytes([data[400] ^ 1]) + data[401:])
        case "no JSON":
            entry.write_bytes(job_cache.hashed(b"{").hex().encode() + b"\n{")
        case "no entry":
            entry.write_bytes(job_cache.hashed(b"{}").hex().encode() + b"\n{}")
        case _:
            entry.write_bytes(eval(what))
    assert said(fusiond, job)[:1] == before[:1]
    assert len(parsed) == 2


def test_a_plugin_that_changes_is_another_environment(tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text("version = 1\n")
    before = job_cache.Environment([], [str(tmp_path)])
    assert job_cache.Environment([], [str(tmp_path)]).digest == before.digest
    edited_at = (tmp_path / "plugin.py").stat().st_mtime_ns
    (tmp_path / "plugin.py").write_text("version = 2\n")
    os.utime(tmp_path / "plugin.py", ns=(edited_at, edited_at))
    assert job_cache.Environment([], [str(tmp_path)]).digest != before.digest


def test_data_that_has_just_changed_is_not_trusted(
    fusiond: Run, job: Path, database: Path, parsed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_cache, "_SETTLED_NS", 3600 * 10**9)  # the test may take longer than the real 2 s
    assert said(fusiond, job)[0] == 0
    assert job_cache.recall(database, job, None, None) is None
    monkeypatch.setattr(job_cache, "_SETTLED_NS", -1)
    assert said(fusiond, job)[0] == 0
    assert job_cache.recall(database, job, None, None) is not None


def test_processes_that_write_at_once(job: Path, database: Path, parsed: list[int]) -> None:
    registry = isolated.load()
    text = job.read_text()
    ready = content_lookup.ready(registry, jobs.read(job, text))
    problems = []

    def work() -> None:
        for _ in range(40):
            content_lookup.remember(database, registry, job, text, jobs.read(job, text), ready)
            found = job_cache.recall(database, job, None, None)
            if found is None or found.questions[0].key != ready[0].workload.key:
                problems.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not problems
    assert len(list(Path(f"{database.with_suffix('')}.asked").iterdir())) == 1


def test_the_first_entries_go(job: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_cache, "MOST", 3)
    here, says = job_cache.Environment([], []), job_cache.lookup.Says(
        versions={}, wrong={}, kinds={}, catalogue={}, fusiond=()
    )  # fmt: skip
    for size in range(1, 7):
        job_cache.remember(database, job, "", [], {"n": size}, files={}, looked={}, says=says, here=here)
    found = [size for size in range(1, 7) if job_cache.recall(database, job, "", {"n": size}) is not None]
    assert found == [4, 5, 6]


# --- who else asks ---


def test_a_job_that_waits_already_is_named_without_the_daemon(
    job: Path, database: Path, fusiond: Run, parsed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    said(fusiond, job)
    registry = isolated.load()
    with Store.open(database) as store:
        (wanted,) = jobs.read(job)
        ready = prepare(registry, wanted)
        store._transaction  # noqa: B018 - the record's own job goes first
        for row in store.jobs():
            store.finish(row.id, JobState.DONE)
        first = store.submit(ready.job, ready.workload)
        other = dataclasses.replace(ready.job, search=dataclasses.replace(wanted.search, trials=7, seed=3))
        second = store.submit(other, ready.workload, priority=2)
        monkeypatch.setattr(connection, "answering", lambda socket: socket)
        monkeypatch.setattr(connection, "ask", lambda *words: pytest.fail("the daemon was asked"))
        with Client() as client:
            assert client.submit(job) == (first.id,)
            assert client.submit(job, trials=7, seed=3, priority=2) == (second.id,)
            asked: list[Any] = []
            monkeypatch.setattr(
                connection, "ask", lambda socket, *words: asked.append(words) or {"jobs": [{"id": "from the daemon"}]}
            )
            for options in ({"trials": 8}, {"device": "cuda:0"}, {"priority": 1}):
                assert client.submit(job, **options) == ("from the daemon",)
            store.cancel(first.id)
            assert client.submit(job) == ("from the daemon",)
            assert len(asked) == 4
            monkeypatch.undo()
            with pytest.raises(DaemonError):  # nobody would take it up
                client.submit(job, trials=7, seed=3)


def test_a_program_that_starts_again_loads_no_plugin(database: Path, parsed: list[int]) -> None:
    text = "HloModule m\n\nENTRY e {\n  p = f32[64]{0} parameter(0)\n  ROOT s = f32[64]{0} sine(p)\n}\n"
    Store.open(database).close()
    for _ in range(2):
        assert Asker(database).look(Question("part", text, "cpu")).state == "unknown"
    assert len(parsed) == 1
    assert Asker(database).look(Question("part", text.replace("sine", "cosine"), "cpu")).state == "unknown"
    assert len(parsed) == 2
