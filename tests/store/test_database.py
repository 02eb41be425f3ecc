"""Opening a store: what is made, what is refused, and who may use it at the same time."""

import errno
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from sqlite_utils import Database, Migrations

from fusiond.model.errors import StoreError, StoreUnavailable
from fusiond.model.keys import text_key
from fusiond.model.outcomes import JobState, Purpose
from fusiond.model.program import Buffer, Launch, Pointer, Program, Role, Source, SourceKind, to_text
from fusiond.store import location, lookup
from fusiond.store.database import Store
from fusiond.store.format import SCHEMA_VERSION
from fusiond.store.migrations import STEPS, migrate
from fusiond.store.plans import pack

PLACE = {"device_key": "device", "gpu_uuid": "GPU-0", "env_key": "env", "against": "baseline"}

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /home rw,relatime shared:5 - nfs4 server:/home rw
31 30 0:41 / /home/local rw - xfs /dev/vdb rw
32 22 0:42 / /mnt/two\\040words rw - fuse.sshfs me@there rw
33 22 0:43 / /data rw - xfs /dev/vdc rw
34 22 0:44 / /data rw master:3 - cifs //server/data rw
"""


def test_a_store_is_made_with_its_folders_and_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "fusiond.sqlite"
    with Store.open(path) as store:
        assert store.path == path
        assert store.artifacts == path.with_suffix(".artifacts")
    with Store.open(str(path), create=False) as again:
        assert again.jobs() == []


def test_what_is_acknowledged_is_on_disk(store: Store) -> None:
    writer = store._database.conn
    assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert writer.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    assert writer.execute("PRAGMA foreign_keys").fetchone() == (1,)


def test_a_missing_file_is_made_only_when_asked(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such file"):
        Store.open(tmp_path / "none" / "fusiond.sqlite", create=False)
    assert not (tmp_path / "none").exists()


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "fusiond.sqlite"
    Store.open(path).close()
    with sqlite3.connect(path) as other:
        other.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    other.close()
    with pytest.raises(StoreError, match=rf"newer fusiond \(schema {SCHEMA_VERSION + 1}; this one knows"):
        Store.open(path)
    with sqlite3.connect(path) as other:
        assert other.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION + 1,)
    other.close()


def test_another_programs_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="not one of fusiond's"):
        Store.open(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"not a database at all, but long enough to have a header" * 20, b"SQLite format 3\0" + b"\x07" * 200]
)
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "fusiond.sqlite"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="no SQLite file, or a damaged one"):
        Store.open(path)
    assert path.read_bytes() == content


def test_a_folder_in_the_way_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="folder cannot be made"):
        Store.open(tmp_path / "file" / "fusiond.sqlite")
    with pytest.raises(StoreError, match=r"is a folder; name a file with --db or FUSIOND_DB"):
        Store.open(tmp_path)
    with pytest.raises(StoreError, match=r"is a folder; name a file with --db or FUSIOND_DB"):
        lookup.best(tmp_path, name="a,b", driver=None, version="0")


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "fusiond.sqlite")
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.jobs()
    with pytest.raises(StoreError, match="closed"):
        store.recover()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/f.sqlite", "ext4"), ("/home/me/f.sqlite", "nfs4"), ("/home/local/me/f.sqlite", "xfs"),
        ("/homes/f.sqlite", "ext4"), ("/mnt/two words/f.sqlite", "fuse.sshfs"), ("/data/f.sqlite", "cifs"),
    ],
)  # fmt: skip
def test_the_file_system_is_that_of_the_innermost_last_mount(path: str, kind: str) -> None:
    assert location.file_system(path, MOUNTS) == kind


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / / rw - ext4 /dev/vda rw\n2 1 0:2 / {tmp_path.resolve()} rw - nfs4 server:/x rw\n")
    with pytest.raises(StoreError, match=r"network file system \(nfs4\).*--db"):
        location.refuse_network(tmp_path / "new" / "fusiond.sqlite", mounts)
    location.refuse_network(Path("/elsewhere/fusiond.sqlite"), mounts)
    location.refuse_network(tmp_path / "fusiond.sqlite", tmp_path / "no such mountinfo")
    monkeypatch.setattr(location.refuse_network, "__defaults__", (mounts,))
    with pytest.raises(StoreError, match="network file system"):
        Store.open(tmp_path / "new" / "fusiond.sqlite")
    assert not (tmp_path / "new").exists()


# --- a full disk ---


@pytest.mark.slow
def test_a_full_database_is_a_store_error_and_loses_nothing(store: Store, job: str, make: Any) -> None:
    def fill() -> None:
        for sequence in range(len(store.trials(job)), 100):
            store.add_trial(job, make.trial(sequence, reason="x" * 2000), **PLACE)
            acknowledged.append(sequence)

    acknowledged: list[int] = []
    (pages,) = store._database.conn.execute("PRAGMA page_count").fetchone()
    store._database.conn.execute(f"PRAGMA max_page_count = {pages + 10}")
    with pytest.raises(StoreError, match="disk is full; free some space"):
        fill()
    assert [trial.sequence for trial in store.trials(job)] == acknowledged != []
    store._database.conn.execute("PRAGMA max_page_count = 1000000")
    fill()
    assert [trial.sequence for trial in store.trials(job)] == acknowledged == list(range(100))


def test_a_full_disk_leaves_no_half_artifact(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="disk is full"):
        store.save_artifact(b"data", ".cu")
    monkeypatch.undo()
    assert [path for path in store.artifacts.rglob("*") if path.is_file()] == []


# --- several at once ---


@pytest.mark.slow
def test_many_threads_write_and_read(store: Store, job: str, make: Any) -> None:
    problems: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for index in range(20):
                store.add_trial(job, make.trial(thread * 100 + index), **PLACE)
                assert any(trial.sequence == thread * 100 + index for trial in store.trials(job))
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(store.trials(job)) == 120


def test_a_reader_does_not_wait_for_a_writer(store: Store, job: str) -> None:
    with store._transaction() as database:
        database.execute("UPDATE jobs SET priority = 5")
        seen = []
        reader = threading.Thread(target=lambda: seen.append(store.job(job)))
        reader.start()
        reader.join(timeout=5)
        assert seen[0] is not None
        assert seen[0].priority == 0


@pytest.mark.slow
def test_several_processes_make_one_store(tmp_path: Path) -> None:
    script = f"from fusiond.store.database import Store; Store.open({str(tmp_path / 'fusiond.sqlite')!r}).close()"
    children = [subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [child.communicate()[1] for child in children] == [""] * 4


def test_a_store_that_cannot_be_made_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(os, "replace", full)
    folder = tmp_path / "new"
    folder.mkdir()
    with pytest.raises(StoreUnavailable, match="the disk is full"), Store.open(folder / "fusiond.sqlite"):
        pass
    assert [each.name for each in folder.iterdir() if each.name.startswith(".")] == []


# --- devices, and the boards that are sick --------------------------------------------------------------


def test_two_boards_of_one_model_are_two_rows_with_one_key(store: Store, make: Any) -> None:
    first, second = make.device("cuda:0"), make.device("cuda:1")
    assert first.key == second.key
    store.save_device(first)
    store.save_device(second)
    assert {row.info.name for row in store.devices()} == {"cuda:0", "cuda:1"}


def test_a_name_belongs_to_the_board_that_has_it_now(store: Store, make: Any) -> None:
    store.save_device(make.device("cuda:0", uuid="old"))
    store.save_device(make.device("cuda:0", uuid="new"))
    assert {row.info.uuid: row.info.name for row in store.devices()} == {"old": "", "new": "cuda:0"}


def test_a_board_is_sick_until_it_is_well(store: Store, make: Any) -> None:
    info = make.device()
    store.save_device(info)
    assert store.sick(info.key, info.uuid) is None
    store.set_sick(info.key, info.uuid, "three deaths on a known good baseline")
    store.save_device(info)
    assert store.sick(info.key, info.uuid) == "three deaths on a known good baseline"
    assert store.devices()[0].sick is not None
    store.set_sick(info.key, info.uuid, None)
    assert store.sick(info.key, info.uuid) is None
    store.set_sick(info.key, "GPU-never-seen", "why")
    assert {row.info.uuid: row.sick for row in store.devices()} == {info.uuid: None, "GPU-never-seen": "why"}
    with pytest.raises(StoreError, match="not stored"):
        store.set_sick("unknown", "", "why")


# --- programs by key, artifacts by content --------------------------------------------------------------


def program(name: str = "fused") -> Program:
    source = Source(name="k", kind=SourceKind.DEVICE, text="__global__ void k(int *x) {}", entries=("k",))
    launch = Launch(name="k", source="k", entry="k", grid=(2, 1, 1), block=(32, 1, 1), arguments=(Pointer(buffer="x"),))
    buffer = Buffer(name="x", dtype="int32", elements=64, role=Role.OUTPUT)
    return Program(name=name, buffers=(buffer,), sources=(source,), steps=(launch,))


def test_a_plan_of_another_version_is_a_store_error(store: Store) -> None:
    store.save_program(program())
    with store._transaction() as database:
        text = to_text(program())
        assert '"plan_version": 2' in text
        plan = pack(text.replace('"plan_version": 2', '"plan_version": 99'))
        database.execute("UPDATE programs SET plan = ?", [plan])
    with pytest.raises(StoreError, match="reads plans of version 2, not 99"):
        store.program(program().key)


def test_an_artifact_is_named_by_its_content(store: Store) -> None:
    path = store.save_artifact(b"cubin", ".cubin")
    assert path.read_bytes() == b"cubin"
    assert path.is_relative_to(store.artifacts)
    assert path.name == text_key(b"cubin") + ".cubin"
    assert store.save_artifact(b"cubin", ".cubin") == path
    assert store.save_artifact(b"cubin", ".cu") != path


def test_a_damaged_artifact_is_written_again(store: Store) -> None:
    path = store.save_artifact(b"cubin", ".cubin")
    path.write_bytes(b"cu")
    assert store.save_artifact(b"cubin", ".cubin").read_bytes() == b"cubin"


def test_a_file_is_whole_before_a_row_names_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "_transaction", killed)
        with pytest.raises(KeyboardInterrupt):
            store.save_artifact(b"whole", ".cu")
    (orphan,) = store.artifacts.rglob("*.cu")
    assert orphan.read_bytes() == b"whole"
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            store.save_artifact(b"another", ".cu")
    assert store.collect_orphans(older_than_secs=-1) == [orphan]
    assert [path for path in store.artifacts.rglob("*") if path.is_file()] == []


def test_orphans_are_files_that_no_row_names_and_nobody_is_writing(store: Store) -> None:
    kept = store.save_artifact(b"kept", ".cu")
    orphan, young = kept.parent / "orphan.cu", kept.parent / ".writing-abc"
    for path in (kept, orphan, young):
        path.write_bytes(b"kept")
    long_ago = time.time() - 7200
    os.utime(orphan, (long_ago, long_ago))
    os.utime(kept, (long_ago, long_ago))
    assert store.collect_orphans() == [orphan]
    assert kept.exists()
    assert young.exists()
    assert store.collect_orphans(older_than_secs=-1) == [young]
    assert store.collect_orphans() == []


# --- the schema's steps ---------------------------------------------------------------------------------


HERE = Path(__file__).parent


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    """A file as version 1 wrote it."""
    path = tmp_path / "fusiond.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript((HERE / "version_1.sql").read_text())
    connection.close()
    return path


def test_the_steps_are_numbered_and_counted() -> None:
    names = [step.name for step in STEPS.pending(Database(memory=True))]
    assert [name[:5] for name in names] == [f"m{number:03d}_" for number in range(1, SCHEMA_VERSION + 1)]


def test_a_file_of_version_1_is_brought_up_to_date_with_all_it_holds(version_1: Path, make: Any) -> None:
    with Store.open(version_1) as store:
        (row,) = store.jobs()
        assert (row.id, row.state, row.trials, row.best_ratio) == ("abcdefgh", JobState.DONE, 1, 2.0)
        assert store.load_job(row.id) == make.job()
        assert store.trials(row.id) == [make.trial(0)]
        assert store.finals(row.id) == {"program0": {0: make.measurement(purpose=Purpose.FINAL)}}
        assert [ask.origin for ask in store.asks(row.id)] == ["sampler"]
        assert [each.rule for each in store.rejections(row.id)] == ["shared"]
        device = make.device(env={"driver": "580.1", "fusiond": "0.1.0"})
        assert [each.info for each in store.devices()] == [device]
        assert store.probe("add", device.key, 1) == 3.0
        # The key of the file's workload: today's has what draws the data in it.
        assert [record.trials for record in store.history("7918a182033828629336682e02bb478e", device.key)] == [2, 1]
    found = lookup.best(version_1, name="maxpool,hist", driver="580.1", version="0.1.0")
    assert found is not None
    assert (found["match"], found["trials"]) == ("exact", 2)


def test_an_old_file_and_a_new_one_have_the_same_schema(version_1: Path, tmp_path: Path) -> None:
    paths = version_1, tmp_path / "new.sqlite"
    schemas = []
    for path in paths:
        with Store.open(path) as store:
            schemas.append({row["name"]: row["sql"] for row in store._rows("SELECT name, sql FROM sqlite_master")})
            assert store._rows("PRAGMA user_version") == [{"user_version": SCHEMA_VERSION}]
    assert schemas[0] == schemas[1]


def test_a_later_step_keeps_what_is_there(version_1: Path) -> None:
    steps = Migrations("fusiond")
    for step in STEPS.pending(Database(memory=True)):
        steps(name=step.name)(step.fn)

    @steps()
    def m999_notes(database: Database) -> None:
        database.table("jobs").add_column("note", str)

    with Store.open(version_1) as store:
        with store._transaction() as database:
            migrate(database, steps, SCHEMA_VERSION + 1)
        assert store._rows("SELECT id, note FROM jobs") == [{"id": "abcdefgh", "note": None}]
        (row,) = store.jobs()
        assert row.trials == 1
    with pytest.raises(StoreError, match="newer fusiond"):
        Store.open(version_1)
    with pytest.raises(StoreError, match="newer fusiond"):
        lookup.best(version_1, name="hist,maxpool", driver=None, version="0.1.0")


def test_a_step_that_fails_changes_nothing(version_1: Path) -> None:
    steps = Migrations("fusiond")
    for step in STEPS.pending(Database(memory=True)):
        steps(name=step.name)(step.fn)

    @steps()
    def m999_half(database: Database) -> None:
        database.execute("DROP TABLE finals")
        database.execute("NOT SQL")

    with Store.open(version_1) as store:
        with pytest.raises(StoreError, match="syntax error"), store._transaction() as database:
            migrate(database, steps, SCHEMA_VERSION + 1)
        assert len(store.finals("abcdefgh")) == 1
    Store.open(version_1).close()


# --- a writer that is killed at any moment --------------------------------------------------------------


_WRITER = """
import sys
from fusiond.model.nouns import Config, Job, Workload
from fusiond.model.outcomes import Measurement, Outcome, Purpose, Trial
from fusiond.store.database import Store
from fusiond.store.process_identity import this_process

store = Store.open(sys.argv[1])
store.recover()
workload = Workload(strategy="s", strategy_version=1, name="n", members=(), sizes={}, content=0, payload=None)
job = store.submit(Job(strategy="s", request={}, sizes={}), workload).id
assert store.claim(this_process(), job=job), "the job of a dead process was not given back"
print(job, flush=True)
for sequence in range(len(store.trials(job)), 1_000_000):
    path = store.save_artifact(b"%d" % sequence * 5000, ".bin")
    measurement = Measurement(span_us=(1.0,) * 50, clock="device", purpose=Purpose.SEARCH)
    trial = Trial(sequence=sequence, config=Config.of({"n": sequence}), origin="grid", reason=str(path),
                  outcome=Outcome.MEASURED, measurement=measurement)
    store.add_trial(job, trial, device_key="d", gpu_uuid="", env_key="e", against=None)
    print(sequence, flush=True)
"""


def kill_writers(path: Path, rounds: int, seed: int) -> None:
    """Start a writer, kill it (while it opens the file, or after some rows), check all that it ever said; again."""
    draw = random.Random(seed)
    jobs: set[str] = set()
    acknowledged = -1
    for _ in range(rounds):
        command = [sys.executable, "-c", _WRITER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            said = []
            if draw.random() < 0.3:
                time.sleep(draw.uniform(0.1, 0.4))
            else:
                said = [child.stdout.readline() for _ in range(draw.randrange(1, 30))]
                time.sleep(draw.uniform(0, 0.004))
            child.kill()
            said += child.stdout.readlines()
        jobs.update(line.strip() for line in said[:1])
        acknowledged = max([acknowledged, *(int(line) for line in said[1:])])
        if jobs:
            (job,) = jobs  # one job for all of them: the same one is not submitted twice
            check(path, job, acknowledged)
    assert acknowledged > rounds


def check(path: Path, job: str, acknowledged: int) -> None:
    with Store.open(path, create=False) as store:
        trials = store.trials(job)
        assert [trial.sequence for trial in trials] == list(range(len(trials)))
        assert len(trials) in (acknowledged + 1, acknowledged + 2)  # one may be written and not yet acknowledged
        for trial in trials:
            assert trial.measurement is not None
            artifact = Path(trial.reason)
            assert artifact.stem == text_key(artifact.read_bytes())
        assert [row["integrity_check"] for row in store._rows("PRAGMA integrity_check")] == ["ok"]
        assert store._rows("PRAGMA foreign_key_check") == []
        (row,) = store._rows("SELECT COUNT(*) AS count FROM measurements")
        assert row["count"] == len(trials)
        assert len(store.collect_orphans(older_than_secs=-1)) <= 2  # a file without its row, or a part of one


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_many_killed_writers_lose_nothing(tmp_path: Path) -> None:
    kill_writers(tmp_path / "fusiond.sqlite", rounds=40, seed=2)
