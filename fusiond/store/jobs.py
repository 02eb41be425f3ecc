"""Jobs and their workloads: the queue, who runs what, and how it ended.

queued --claim--> running --finish--> done | failed | cancelled
  ^                  |
  +-- requeue, recover (the owner's process is gone)

running --wait--> waiting (for the machine) --claim, once its time has come--> running
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sqlite_utils import Database

from fusiond.errors import RequestError, StoreError
from fusiond.keys import canonical
from fusiond.model import Job, JobState, Search, Workload
from fusiond.store.connection import Connected, Row
from fusiond.store.encoding import job_from, printable
from fusiond.store.format import lookup_name, new_id, now
from fusiond.store.owner import is_alive

_COLUMNS = """
    SELECT j.number, j.id, j.kind, w.strategy, w.name AS workload_name, j.workload_key, j.device, j.device_key, j.state,
        j.priority, j.parent_id, j.problem, j.search, j.space_hash, j.created_at, j.started_at, j.ended_at,
        j.cancel_requested, j.finish_requested, j.finding, j.waiting_for, j.retry_at, j.retries,
        j.owner, j.wall_secs, j.device_secs,
        (SELECT COUNT(*) FROM trials t WHERE t.job_id = j.id AND t.role = 'candidate') AS trials,
        (SELECT MAX(t.ratio) FROM trials t WHERE t.job_id = j.id AND t.role = 'candidate') AS best_ratio
    FROM jobs j JOIN workloads w USING (workload_key)
"""
_ACTIVE = "state IN ('queued', 'running', 'waiting')"

MOST_WAIT_SECS = 300.0
"""How long a job that waits for the machine is left alone at most."""


_BEGAN_ON_A_SICK_ONE = """
    EXISTS (SELECT 1 FROM boards b WHERE b.device_key = jobs.device_key AND b.sick IS NOT NULL)
    AND NOT EXISTS (SELECT 1 FROM boards b WHERE b.device_key = jobs.device_key AND b.sick IS NULL AND b.name != '')
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job as the queue sees it. Times of day are UTC in ISO 8601."""

    id: str
    kind: str
    """`tune`, or `verify`: measure the recorded winner again."""
    strategy: str
    workload_name: str
    workload_key: str
    device: str
    """As asked for: `auto`, `cpu`, `cuda:0`."""
    device_key: str | None
    """Of the device that it runs on, once that is known."""
    state: JobState
    priority: int
    parent: str | None
    problem: str | None
    """One line on why it failed."""
    search: Search
    space_hash: str | None
    created_at: str
    started_at: str | None
    ended_at: str | None
    trials: int
    """Candidates that have an outcome."""
    budget: int
    """Candidates that it may try."""
    best_ratio: float | None
    """Of the candidates measured so far; search samples, no verdict."""
    cancel_requested: bool
    finish_requested: bool = False
    """Its search is to end, and its finals to begin."""
    finding: str = ""
    """What it found, where the answer of before stands."""
    owner: str = ""
    """The process that runs it (`fusiond.store.owner`); empty when none does."""
    waiting_for: str = ""
    """What the machine lacked when it was run last, or why its device is not used; of a job that waits or is queued."""
    retry_at: str | None = None
    """When a job that waits is tried again."""
    retries: int = 0
    """How often it waited since it last got on."""
    wall_secs: float = 0.0
    """How long it ran, waiting for the device not included; of sessions that were killed nothing is known."""
    device_secs: float = 0.0
    """For how much of that its device was busy."""

    @property
    def device_share(self) -> float | None:
        """The part of its time in which the device measured; None before that is known."""
        return self.device_secs / self.wall_secs if self.wall_secs else None

    @property
    def lost(self) -> bool:
        """It runs, as far as the store knows, but the process that ran it is gone."""
        return self.state is JobState.RUNNING and not is_alive(self.owner)


class Jobs(Connected):
    # --- arrival ---

    def save_workload(self, workload: Workload) -> None:
        """Write down a workload; one that is there already (a key is its content) is left as it is."""
        with self._transaction() as database:
            database.table("workloads").insert(
                {
                    "workload_key": workload.key,
                    "family_key": workload.family_key,
                    "strategy": workload.strategy,
                    "strategy_version": workload.strategy_version,
                    "name": workload.name,
                    "lookup_name": lookup_name(workload.name),
                    "members": canonical(sorted(workload.members)),
                    "sizes": canonical(workload.sizes),
                    "source_hashes": canonical(absolute(workload.source_hashes)),
                    "created_at": now(),
                    "content_key": workload.content_key,
                    "content_family_key": workload.content_family_key,
                },
                ignore=True,
            )
            database.execute(  # of one that an earlier version wrote
                "UPDATE workloads SET content_key = ?, content_family_key = ? "
                "WHERE workload_key = ? AND COALESCE(content_key, '') = ''",
                [workload.content_key, workload.content_family_key, workload.key],
            )

    def submit(
        self, job: Job, workload: Workload, *, kind: str = "tune", priority: int = 0, parent: str | None = None
    ) -> JobRow:
        """Queue a job. The same one (kind, workload, device, search) that is queued or running is returned instead,
        with the higher of the two priorities. StoreError when there is no job `parent`."""
        search = canonical(job.search)
        with self._transaction() as database:
            self.save_workload(workload)
            same = _first(
                database,
                f"SELECT id FROM jobs WHERE kind = ? AND workload_key = ? AND device = ? AND search = ? AND {_ACTIVE}",
                [kind, workload.key, job.device, search],
            )
            if same:
                database.execute("UPDATE jobs SET priority = MAX(priority, ?) WHERE id = ?", [priority, same["id"]])
                found: str = same["id"]
            else:
                found = _free_id(database)
                database.table("jobs").insert(
                    {
                        "id": found,
                        "kind": kind,
                        "workload_key": workload.key,
                        "device": job.device,
                        "state": JobState.QUEUED.value,
                        "priority": priority,
                        "parent_id": parent,
                        "cancel_requested": 0,
                        "search": search,
                        "created_at": now(),
                        "job": canonical(job),
                    }
                )
        return self._known(found)

    # --- reading ---

    def job(self, id: str) -> JobRow | None:
        """The job of that id, or of the only id that begins so; RequestError when several do."""
        rows = self._rows(f"{_COLUMNS} WHERE j.id >= ? AND j.id < ? ORDER BY j.id LIMIT 2", [id, id + "\U0010ffff"])
        if not id or not rows:
            return None
        if len(rows) > 1 and rows[0]["id"] != id:
            raise RequestError(f"several jobs begin with {id!r}; give more of the id", where="job")
        return _job_row(rows[0])

    def jobs(self, states: Iterable[JobState] | None = None, limit: int = 100) -> list[JobRow]:
        """The newest jobs first, those of the given states only."""
        wanted = [state.value for state in (JobState if states is None else states)]
        marks = ", ".join("?" * len(wanted))
        rows = self._rows(f"{_COLUMNS} WHERE j.state IN ({marks}) ORDER BY j.number DESC LIMIT ?", [*wanted, limit])
        return [_job_row(row) for row in rows]

    def count_jobs(self, states: Iterable[JobState] | None = None) -> int:
        """How many there are in the given states."""
        wanted = [state.value for state in (JobState if states is None else states)]
        marks = ", ".join("?" * len(wanted))
        row = self._row(f"SELECT count(*) AS found FROM jobs WHERE state IN ({marks})", wanted)
        assert row is not None
        return int(row["found"])

    def load_job(self, id: str) -> Job:
        """The Job that was submitted, files and all. RequestError when there is no such job."""
        row = self._row("SELECT job FROM jobs WHERE id = ?", [id])
        if row is None:
            raise unknown_job(id)
        return job_from(row["job"])

    # --- running ---

    def claim(
        self, owner: str, *, kinds_of_device: Callable[[str], bool] | None = None, job: str | None = None
    ) -> JobRow | None:
        """Take the oldest queued job of the highest priority, or the one named; None when there is none to take.

        `owner` is `owner.this_process()`; `kinds_of_device` says of a device's name whether the caller can run on it.
        A job that began on a device of which only sick ones are left waits, unless it is named.
        No two callers, in any process, are given the same job.
        """
        # A time further ahead than any that is set means that the clock was put back since.
        due = "(state = 'queued' OR (state = 'waiting' AND NOT (retry_at > :now AND retry_at <= :latest)))"
        times = {"now": now(), "latest": now(ago_secs=-MOST_WAIT_SECS)}
        if self._row(f"SELECT 1 FROM jobs WHERE {due} LIMIT 1", times) is None and job is None:
            return None  # the usual case for a daemon that asks again and again: no lock taken
        with self._transaction() as database:
            query = f"SELECT id, device FROM jobs WHERE {due} AND NOT ({_BEGAN_ON_A_SICK_ONE})"
            parameters = times
            if job is not None:  # whoever names it has a reason to try it now
                query = "SELECT id, device FROM jobs WHERE state IN ('queued', 'waiting') AND id = :id"
                parameters = {"id": job}
            found = None
            for row in database.query(f"{query} ORDER BY priority DESC, number", parameters):
                if kinds_of_device is None or kinds_of_device(row["device"]):
                    found = row["id"]
                    break
            if found is None:
                return None
            database.execute(
                "UPDATE jobs SET state = 'running', owner = ?, started_at = COALESCE(started_at, ?), "
                "waiting_for = NULL, retry_at = NULL WHERE id = ?",
                [owner, now(), found],
            )
        return self._known(found)

    def recover(self) -> list[str]:
        """Queue the running jobs whose owner's process is gone, and say which; one that was to be cancelled is."""
        with self._transaction() as database:
            rows = database.query("SELECT id, owner FROM jobs WHERE state = 'running' ORDER BY number")
            lost = [row["id"] for row in rows if not is_alive(row["owner"] or "")]
            for id in lost:
                _give_back(database, id)
        return lost

    def requeue(self, id: str, *, waits_for: str = "") -> None:
        """Give a running job back, to be gone on with later; one that was to be cancelled is cancelled. `waits_for`
        says why it is not gone on with at once.

        A job in another state is left alone. RequestError when there is no such job.
        """
        with self._transaction() as database:
            _demand(database, id)
            _give_back(database, id)
            if waits_for:
                database.execute(
                    "UPDATE jobs SET waiting_for = ? WHERE id = ? AND state = 'queued'", [printable(waits_for), id]
                )

    def wait(self, id: str, reason: str, *, secs: float) -> JobState:
        """Put a running job aside until the machine has what it lacks, and for `secs` at least (MOST_WAIT_SECS at
        most); one that was to be cancelled is. A job in another state is left alone. Returns the job's state.
        RequestError when there is no such job."""
        with self._transaction() as database:
            _demand(database, id)
            database.execute(
                "UPDATE jobs SET state = 'cancelled', owner = NULL, ended_at = ? "
                "WHERE id = ? AND state = 'running' AND cancel_requested",
                [now(), id],
            )
            database.execute(
                "UPDATE jobs SET state = 'waiting', owner = NULL, waiting_for = ?, retry_at = ?, "
                "retries = COALESCE(retries, 0) + 1 WHERE id = ? AND state = 'running'",
                [printable(reason), now(ago_secs=-min(secs, MOST_WAIT_SECS)), id],
            )
        return self._known(id).state

    def set_waiting_for(self, id: str, who: str) -> None:
        """What a running job waits for at this moment; empty when it goes on. A job in another state is left alone."""
        with self._transaction() as database:
            sql = "UPDATE jobs SET waiting_for = ? WHERE id = ? AND state = 'running'"
            database.execute(sql, [printable(who) or None, id])

    def finish(self, id: str, state: JobState, problem: str | None = None) -> None:
        """End a job; one that has ended keeps its state. RequestError when there is no such job."""
        if not state.ended:
            raise ValueError(f"{state} is no end")
        with self._transaction() as database:
            _demand(database, id)
            database.execute(
                f"UPDATE jobs SET state = ?, problem = ?, owner = NULL, ended_at = ? WHERE id = ? AND {_ACTIVE}",
                [state.value, printable(problem) if problem is not None else None, now(), id],
            )

    def cancel(self, id: str) -> JobRow:
        """Cancel a queued job at once, and ask for a running one to be stopped; a prefix of the id will do.

        RequestError when there is no such job; a job that has ended stays as it is.
        """
        row = self.job(id)
        if row is None:
            raise unknown_job(id)
        with self._transaction() as database:
            database.execute(
                "UPDATE jobs SET state = 'cancelled', ended_at = ? WHERE id = ? AND state IN ('queued', 'waiting')",
                [now(), row.id],
            )
            database.execute("UPDATE jobs SET cancel_requested = 1 WHERE id = ? AND state = 'running'", [row.id])
            owners = database.execute("SELECT owner FROM jobs WHERE id = ? AND state = 'running'", [row.id]).fetchall()
            if owners and not is_alive(owners[0][0] or ""):  # nobody is there who would stop it
                database.execute(
                    "UPDATE jobs SET state = 'cancelled', owner = NULL, ended_at = ? WHERE id = ?", [now(), row.id]
                )
        return self._known(row.id)

    def cancel_requested(self, id: str) -> bool:
        """Whether somebody wants a job to stop. RequestError when there is no such job."""
        row = self._row("SELECT cancel_requested, state FROM jobs WHERE id = ?", [id])
        if row is None:
            raise unknown_job(id)
        return bool(row["cancel_requested"]) or row["state"] == JobState.CANCELLED

    def finish_early(self, id: str) -> JobRow:
        """Ask that a job's search ends and its finals begin, at the next trial or when it is claimed; a prefix of the
        id will do. RequestError when there is no such job; a job that has ended stays as it is."""
        row = self.job(id)
        if row is None:
            raise unknown_job(id)
        with self._transaction() as database:
            database.execute(f"UPDATE jobs SET finish_requested = 1 WHERE id = ? AND {_ACTIVE}", [row.id])
        return self._known(row.id)

    def finish_requested(self, id: str) -> bool:
        """Whether somebody wants a job's search to end. RequestError when there is no such job."""
        row = self._row("SELECT finish_requested FROM jobs WHERE id = ?", [id])
        if row is None:
            raise unknown_job(id)
        return bool(row["finish_requested"])

    def resume(self, job: Job, workload: Workload) -> JobRow | None:
        """The job of this workload and device that was interrupted and that nobody runs, with the budget that is given
        now (its seed stays, so that it goes on as it began); None when there is none."""
        with self._transaction() as database:
            rows = database.query(
                "SELECT id, job, search FROM jobs WHERE kind = 'tune' AND workload_key = ? AND device = ? "
                "AND state IN ('queued', 'waiting') AND started_at IS NOT NULL AND parent_id IS NULL "
                "ORDER BY number DESC",
                [workload.key, job.device],
            )
            for row in list(rows):
                old = Search(**json.loads(row["search"]))
                if old.cache != job.search.cache:
                    continue
                search = dataclasses.replace(job.search, seed=old.seed)
                changed = dataclasses.replace(job_from(row["job"]), search=search)
                with contextlib.suppress(sqlite3.IntegrityError):  # the same search is queued already: that one runs
                    database.execute(
                        "UPDATE jobs SET search = ?, job = ? WHERE id = ?",
                        [canonical(search), canonical(changed), row["id"]],
                    )
                    found: str = row["id"]
                    break
            else:
                return None
        return self._known(found)

    def tuned(self, workload_key: str, device_key: str, cache: str) -> bool:
        """Whether a workload was ever tuned to the end on a device of this kind, with such caches."""
        rows = self._rows(
            "SELECT search FROM jobs WHERE workload_key = ? AND device_key = ? AND kind = 'tune' AND state = 'done'",
            [workload_key, device_key],
        )
        return any(Search(**json.loads(row["search"])).cache == cache for row in rows)

    def set_device(self, id: str, device_key: str) -> None:
        """Write down on which device a job runs. RequestError when there is no such job."""
        with self._transaction() as database:
            _demand(database, id)
            database.execute("UPDATE jobs SET device_key = ? WHERE id = ?", [device_key, id])

    def add_time(self, id: str, *, wall_secs: float, device_secs: float) -> None:
        """Add a session to how long a job ran. RequestError when there is no such job."""
        with self._transaction() as database:
            _demand(database, id)
            database.execute(
                "UPDATE jobs SET wall_secs = COALESCE(wall_secs, 0) + ?, device_secs = COALESCE(device_secs, 0) + ? "
                "WHERE id = ?",
                [wall_secs, device_secs, id],
            )

    def set_finding(self, id: str, finding: str) -> None:
        """Write down what a job found that is no answer. RequestError when there is no such job."""
        with self._transaction() as database:
            _demand(database, id)
            database.execute("UPDATE jobs SET finding = ? WHERE id = ?", [printable(finding), id])

    def set_space(self, id: str, space_hash: str) -> None:
        """Write down which space a job searches. RequestError when there is no such job."""
        with self._transaction() as database:
            _demand(database, id)
            database.execute("UPDATE jobs SET space_hash = ? WHERE id = ?", [space_hash, id])

    def _known(self, id: str) -> JobRow:
        row = self._row(f"{_COLUMNS} WHERE j.id = ?", [id])
        if row is None:
            raise StoreError(f"{self.path}: the job {id} has vanished")
        return _job_row(row)


def unknown_job(id: str) -> RequestError:
    return RequestError(f"there is no job {id[:80]!r}", where="job")


def absolute(source_hashes: Any) -> dict[str, str]:
    """Files by their absolute paths, so that a lookup from another folder compares the same ones."""
    return {os.path.abspath(path): digest for path, digest in source_hashes.items()}


def _job_row(row: Row) -> JobRow:
    search = Search(**json.loads(row["search"]))
    return JobRow(
        id=row["id"],
        kind=row["kind"],
        strategy=row["strategy"],
        workload_name=row["workload_name"],
        workload_key=row["workload_key"],
        device=row["device"],
        device_key=row["device_key"],
        state=JobState(row["state"]),
        priority=row["priority"],
        parent=row["parent_id"],
        problem=row["problem"],
        search=search,
        space_hash=row["space_hash"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        trials=row["trials"],
        budget=search.trials,
        best_ratio=row["best_ratio"],
        cancel_requested=bool(row["cancel_requested"]),
        finish_requested=bool(row["finish_requested"]),
        finding=row["finding"] or "",
        owner=row["owner"] or "",
        waiting_for=row["waiting_for"] or "",
        retry_at=row["retry_at"],
        retries=row["retries"] or 0,
        wall_secs=row["wall_secs"] or 0.0,
        device_secs=row["device_secs"] or 0.0,
    )


def got_on(database: Database, id: str) -> None:
    """Inside a transaction that writes down something measured: a job, and the one it is a part of, wait no longer the
    next time than the first time."""
    database.execute(
        "UPDATE jobs SET retries = 0 WHERE retries > 0 AND id IN (?, (SELECT parent_id FROM jobs WHERE id = ?))",
        [id, id],
    )


def _first(database: Database, sql: str, parameters: list[Any]) -> Row | None:
    return next(iter(database.query(sql, parameters)), None)


def _demand(database: Database, id: str) -> None:
    if _first(database, "SELECT 1 FROM jobs WHERE id = ?", [id]) is None:
        raise unknown_job(id)


def _free_id(database: Database) -> str:
    while True:
        id = new_id()
        if _first(database, "SELECT 1 FROM jobs WHERE id = ?", [id]) is None:
            return id


def _give_back(database: Database, id: str) -> None:
    database.execute(
        "UPDATE jobs SET state = 'cancelled', owner = NULL, ended_at = ? "
        "WHERE id = ? AND state = 'running' AND cancel_requested",
        [now(), id],
    )
    database.execute("UPDATE jobs SET state = 'queued', owner = NULL WHERE id = ? AND state = 'running'", [id])
