"""What a job file stands for is remembered, and not longer than it is true: after every change, `best JOB.yaml` says
what it says with no memory at all."""

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

from fusiond import Client
from fusiond.model.errors import DaemonError
from fusiond.model.outcomes import JobState
from fusiond.requests import content_lookup, job_cache, jobs
from fusiond.requests.isolation import registry as isolated
from fusiond.requests.planning import prepare
from fusiond.requests.registry import Registry
from fusiond.service.client import connection
from fusiond.service.frameworks.region_answers import Asker, Question
from fusiond.store.database import Store
from tests.cli.test_best_content import _FAST, SOURCE, folder_of, tuned

Run = Callable[..., Any]
LARGE = np.zeros(1_200_000, np.float32)
"""4.8 MB: larger than what is compared by content."""


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
        monkeypatch.setattr(Client, "_ask", lambda *words: pytest.fail("the daemon was asked"))
        with Client() as client:
            assert client.submit(job) == (first.id,)
            assert client.submit(job, trials=7, seed=3, priority=2) == (second.id,)
            asked: list[Any] = []
            monkeypatch.setattr(
                Client, "_ask", lambda self, *words: asked.append(words) or {"jobs": [{"id": "from the daemon"}]}
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
