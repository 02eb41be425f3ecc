"""The schema's steps: an old file goes on, with all that it holds; a step that fails changes nothing."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlite_utils import Database, Migrations

from fusiond.model.errors import StoreError
from fusiond.model.outcomes import JobState, Purpose
from fusiond.store import lookup
from fusiond.store.database import Store
from fusiond.store.format import SCHEMA_VERSION
from fusiond.store.migrations import STEPS, migrate

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
