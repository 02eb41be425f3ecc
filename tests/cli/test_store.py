"""`fusiond store` and `fusiond prune --older-than` as one types them."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusiond.store.database import Store

Run = Callable[..., Any]


@pytest.mark.slow
def test_what_is_damaged_is_named_and_can_be_forgotten(fusiond: Run, database: Path, done_job: str) -> None:
    damage(database)
    said = fusiond("store", "check")
    assert said.status == 1
    assert f"jobs '{done_job}': is damaged: it was a job; it is neither listed nor run\n    remedy: restore" in said.out
    (finding,) = fusiond("store", "check", "--json").json["findings"]
    assert finding["where"] == f"jobs '{done_job}'"
    command = [sys.executable, "-m", "fusiond", "jobs", "--db", str(database)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert listed.stdout == "no jobs\n"
    assert f"the row '{done_job}' of jobs is damaged" in listed.stderr
    shown = fusiond("show", done_job)
    assert (shown.status, len(shown.err.splitlines())) == (1, 1)
    assert "Traceback" not in fusiond("explain", done_job).err
    said = fusiond("store", "check", "--forget")
    assert said.status == 0
    assert "removed" in said.err
    assert (fusiond("jobs").err, fusiond("store", "check").status) == ("", 0)


def test_old_jobs_go_and_the_sizes_are_said(fusiond: Run, database: Path, done_job: str) -> None:
    found = fusiond("prune", "--json").json
    assert found["removed"] is None
    assert found["bytes"]["store"] > 0
    found = fusiond("prune", "--older-than", "0h", "--json").json
    assert found["removed"]["jobs"] == 0  # an answer is from it
    with Store.open(database) as store:
        store._database.execute("UPDATE records SET job_id = NULL")
    said = fusiond("prune", "--older-than", "0h")
    assert said.out.startswith("removed  1 job with ")
    assert fusiond("jobs").out == "no jobs\n"


def damage(database: Path) -> None:
    """A bit of a job's row, behind the triggers' back."""
    with sqlite3.connect(database) as connection:
        names = "jobs_changed", "jobs_sealed"
        query = "SELECT sql FROM sqlite_master WHERE name = ?"
        triggers = [connection.execute(query, [name]).fetchone()[0] for name in names]
        for name in names:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("UPDATE jobs SET priority = priority + 1")
        for trigger in triggers:
            connection.execute(trigger)
    connection.close()
