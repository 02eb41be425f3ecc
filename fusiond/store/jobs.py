"""The queue: jobs, their workloads, owners and outcomes. `job_reading.py` reads them.

queued --claim--> running --finish--> done | failed | cancelled
  ^                  |
  +-- requeue, recover (the owner's process is gone)

running --wait--> waiting (for the machine) --claim, once its time has come--> running
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fusiond.model.errors import StoreError, StoreUnavailable
from fusiond.model.keys import canonical
from fusiond.model.nouns import Job, Workload
from fusiond.model.outcomes import JobState
from fusiond.store.connection import Row
from fusiond.store.encoding import decoding, job_from, printable, search_from
from fusiond.store.format import lookup_name, new_id, now
from fusiond.store.job_reading import JobReading
from fusiond.store.job_rows import JobRow
from fusiond.store.process_identity import is_alive, this_process
from fusiond.store.tables import checked, columns

if TYPE_CHECKING:  # it takes a while to load, and only what writes needs it
    from sqlite_utils import Database

__all__ = ["JobRow", "Jobs", "absolute"]

_A_FEW = 8  #: Jobs that a claim reads at once: the first of them will nearly always do
_BY_DEVICE = "idx_jobs_queue"
_COME = "NOT (retry_at > :now AND retry_at <= :latest)"
"""A time further ahead than any that is set means that the clock was put back since."""
_DUE = f"(state = 'queued' OR (state = 'waiting' AND {_COME}))"
_ACTIVE = "state IN ('queued', 'running', 'waiting')"

MOST_WAIT_SECS = 300.0  #: How long a job that waits for the machine is left alone at most


_BEGAN_ON_A_SICK_ONE = """
    EXISTS (SELECT 1 FROM boards b WHERE b.device_key = jobs.device_key AND b.sick IS NOT NULL)
    AND NOT EXISTS (SELECT 1 FROM boards b WHERE b.device_key = jobs.device_key AND b.sick IS NULL AND b.name != '')
"""


class Jobs(JobReading):
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
        return self._known(self._queue(job, workload, kind, priority, parent))

    def begin_anew(self, id: str, problem: str, job: Job, workload: Workload) -> JobRow:
        """End a job as failed and queue `job` in its place, with its kind, priority and parent: both or neither.
        RequestError when there is no such job."""
        with self._transaction():
            old = self._plain(id)
            self.finish(id, JobState.FAILED, problem)
            found = self._queue(job, workload, old["kind"], old["priority"], old["parent_id"])
        return self._known(found)

    def _queue(self, job: Job, workload: Workload, kind: str, priority: int, parent: str | None) -> str:
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
        return found

    def verified_lately(self, workload_key: str, device: str, within_secs: float = 3600.0) -> bool:
        """Whether a check of a workload on a device is under way, or ended a short while ago."""
        rows = self._rows(
            "SELECT 1 AS one FROM jobs WHERE kind = 'verify' AND workload_key = ? AND device = ? "
            f"AND ({_ACTIVE} OR ended_at > ?) LIMIT 1",
            [workload_key, device, now(ago_secs=within_secs)],
        )
        return bool(rows)

    # --- running ---

    def claim(self, owner: str, *, devices: Collection[str] | None = None, job: str | None = None) -> JobRow | None:
        """Take the oldest queued job of the highest priority, or the one named; None when there is none to take.

        `owner` is `owner.this_process()`; `devices` are the device requests that the caller can serve (None: any).
        A job that began on a device of which only sick ones are left waits, unless it is named. A damaged row is
        passed over. No two callers, in any process, are given the same job; where this raises, nobody is."""
        if job is None and self._next(self._rows, devices) is None:
            return None  # the usual case for a daemon that asks again and again: no lock taken
        with self._write_lock:  # until it is among `_claimed`, for `recover`
            row = self._claim(owner, devices, job)
            if row is not None:
                self._claimed.add(row.id)
            return row

    def _claim(self, owner: str, devices: Collection[str] | None, job: str | None) -> JobRow | None:
        passed: set[str] = set()
        with self._transaction() as database:

            def select(sql: str, parameters: Mapping[str, object]) -> Iterable[Row]:
                return database.query(sql, dict(parameters))

            while True:
                if job is None:
                    found = self._next(select, devices, passed)
                else:  # whoever names it has a reason to try it now
                    query = "SELECT id, device FROM jobs WHERE state IN ('queued', 'waiting') AND id = :id"
                    named = next(iter(select(query, {"id": job})), None)
                    found = named["id"] if named and (devices is None or named["device"] in devices) else None
                if found is None:
                    return None
                try:
                    with database.atomic():
                        database.execute(
                            "UPDATE jobs SET state = 'running', owner = ?, started_at = COALESCE(started_at, ?), "
                            "waiting_for = NULL, retry_at = NULL WHERE id = ?",
                            [owner, now(), found],
                        )
                        return self._known(found, connection=database.conn)
                except StoreUnavailable:
                    raise
                except StoreError as problem:  # its workload, for example
                    if job is not None:
                        raise
                    self._tell(f"{problem}; the job {found} is passed over")
                    passed.add(found)

    def _next(
        self,
        select: Callable[[str, Mapping[str, object]], Iterable[Row]],
        devices: Collection[str] | None,
        passed: Collection[str] = (),
    ) -> str | None:
        """The id of the job to be claimed next, none of `passed`. Each state and device is a walk along an index, in
        order."""
        times = {"now": now(), "latest": now(ago_secs=-MOST_WAIT_SECS)}
        if devices is None:
            devices = [row["device"] for row in select(f"SELECT DISTINCT device FROM jobs WHERE {_DUE}", times)]
        best: Row | None = None
        for state, due in (("queued", ""), ("waiting", f"AND {_COME} ")):
            for device in devices:
                query = (
                    f"SELECT {columns(jobs='jobs')} FROM jobs INDEXED BY {_BY_DEVICE} WHERE state = :state "
                    f"AND device = :device {due}AND NOT ({_BEGAN_ON_A_SICK_ONE}) "
                    f"ORDER BY priority DESC, number LIMIT {_A_FEW} OFFSET :start"
                )
                for row in _paged(select, query, {**times, "state": state, "device": device}):
                    if row["id"] in passed:
                        continue
                    *values, seal = row.values()
                    if not isinstance(checked("jobs", values, seal), dict):
                        self._tell(
                            f"{self.path}: the damaged job {row['id']} is passed over; see `fusiond store check`"
                        )
                        continue
                    if best is None or (-row["priority"], row["number"]) < (-best["priority"], best["number"]):
                        best = row
                    break
        return best["id"] if best else None

    def recover(self, *, own: str | None = None, running: Collection[str] = ()) -> list[str]:
        """Queue the running jobs whose owner's process is gone, and say which; one that was to be cancelled is.

        `own` is the caller's process: what is its, but neither among `running` nor claimed by this Store and not given
        back yet, nobody runs either. No lock is taken where there is nothing to do."""

        def left(row: Row) -> bool:
            if own is not None and row["owner"] == own:
                return row["id"] not in running and row["id"] not in self._claimed
            return not is_alive(row["owner"] or "")

        query = "SELECT id, owner FROM jobs WHERE state = 'running' ORDER BY number"
        if not any(map(left, self._rows(query))):
            return []
        lost = []
        with self._transaction() as database:
            for row in filter(left, list(database.query(query))):
                try:
                    with database.atomic():
                        _give_back(database, row["id"])
                except sqlite3.IntegrityError as problem:  # the others are not to blame
                    self._tell(f"{self.path}: the job {row['id']} is not given back: {problem}")
                    continue
                lost.append(row["id"])
        return lost

    def _adopt(self, ids: Iterable[str]) -> None:
        """In a file that has taken the place of another: what this process runs is nobody else's to run."""
        for id in ids:
            try:
                with self._transaction() as database:
                    database.execute(
                        "UPDATE jobs SET state = 'running', owner = ?, waiting_for = NULL, retry_at = NULL "
                        "WHERE id = ? AND state IN ('queued', 'waiting')",
                        [this_process(), id],
                    )
            except StoreUnavailable:
                raise
            except StoreError as problem:  # the others are not to blame
                self._tell(f"the job {id} may be run twice: {problem}")

    def requeue(self, id: str, *, waits_for: str = "") -> None:
        """Give a running job back, to be gone on with later; one that was to be cancelled is cancelled. `waits_for`
        says why it is not gone on with at once.

        A job in another state is left alone. RequestError when there is no such job."""
        with self._transaction() as database:
            self._demand(database, id)
            _give_back(database, id)
            if waits_for:
                database.execute(
                    "UPDATE jobs SET waiting_for = ? WHERE id = ? AND state = 'queued'", [printable(waits_for), id]
                )
        self._claimed.discard(id)

    def wait(self, id: str, reason: str, *, secs: float) -> JobState:
        """Put a running job aside until the machine has what it lacks, and for `secs` at least (MOST_WAIT_SECS at
        most); one that was to be cancelled is. A job in another state is left alone. Returns the job's state.
        RequestError when there is no such job."""
        with self._transaction() as database:
            self._demand(database, id)
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
        self._claimed.discard(id)
        return self._known(id).state

    def set_waiting_for(self, id: str, who: str) -> None:
        """What a running job waits for at this moment; empty when it goes on. A job in another state is left alone."""
        with self._transaction() as database:
            sql = "UPDATE jobs SET waiting_for = ? WHERE id = ? AND state = 'running'"
            database.execute(sql, [printable(who) or None, id])

    def finish(self, id: str, state: JobState, problem: str | None = None) -> None:
        """End a job; one that has ended keeps its state. RequestError when there is no such job."""
        if not state.ended:
            raise ValueError(f"{state} is not an end")
        with self._transaction() as database:
            self._demand(database, id)
            database.execute(
                f"UPDATE jobs SET state = ?, problem = ?, owner = NULL, ended_at = ? WHERE id = ? AND {_ACTIVE}",
                [state.value, printable(problem) if problem is not None else None, now(), id],
            )
        self._claimed.discard(id)

    def cancel(self, id: str) -> JobRow:
        """Cancel a queued job at once, and ask for a running one to be stopped; a prefix of the id will do.

        RequestError when there is no such job; a job that has ended stays as it is."""
        row = self.named_job(id)
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

    def finish_early(self, id: str) -> JobRow:
        """Ask that a job's search ends and its finals begin, at the next trial or when it is claimed; a prefix of the
        id will do. RequestError when there is no such job; a job that has ended stays as it is."""
        row = self.named_job(id)
        with self._transaction() as database:
            database.execute(f"UPDATE jobs SET finish_requested = 1 WHERE id = ? AND {_ACTIVE}", [row.id])
        return self._known(row.id)

    def resume(self, job: Job, workload: Workload) -> JobRow | None:
        """The job of this workload and device that was interrupted and that nobody runs, with the budget that is given
        now (its seed stays, so that it goes on as it began); None when there is none."""
        with self._transaction() as database:
            rows = self._sealed(
                f"FROM jobs j INDEXED BY idx_jobs_same WHERE kind = 'tune' AND workload_key = ? AND device = ? "
                f"AND {_ACTIVE} ORDER BY number DESC",  # what else it must be is not asked of a row that may be damaged
                [workload.key, job.device],
                skip=True,
                connection=database.conn,
                j="jobs",
            )
            for (row,) in rows:
                if row["state"] == "running" or row["started_at"] is None or row["parent_id"] is not None:
                    continue
                with decoding(self.path, "jobs", row["id"]):
                    old = search_from(row["search"])
                    before = job_from(row["job"])
                if old.cache != job.search.cache:
                    continue
                search = dataclasses.replace(job.search, seed=old.seed)
                changed = dataclasses.replace(before, search=search)
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

    def set_device(self, id: str, device_key: str) -> None:
        """Write down on which device a job runs. RequestError when there is no such job."""
        with self._transaction() as database:
            self._demand(database, id)
            database.execute("UPDATE jobs SET device_key = ? WHERE id = ?", [device_key, id])

    def add_time(self, id: str, *, wall_secs: float, device_secs: float) -> None:
        """Add a session to how long a job ran. RequestError when there is no such job."""
        with self._transaction() as database:
            self._demand(database, id)
            database.execute(
                "UPDATE jobs SET wall_secs = COALESCE(wall_secs, 0) + ?, device_secs = COALESCE(device_secs, 0) + ? "
                "WHERE id = ?",
                [wall_secs, device_secs, id],
            )

    def set_finding(self, id: str, finding: str) -> None:
        """Write down what a job found that is not an answer. RequestError when there is no such job."""
        with self._transaction() as database:
            self._demand(database, id)
            database.execute("UPDATE jobs SET finding = ? WHERE id = ?", [printable(finding), id])

    def set_space(self, id: str, space_hash: str) -> None:
        """Write down which space a job searches. RequestError when there is no such job."""
        with self._transaction() as database:
            self._demand(database, id)
            database.execute("UPDATE jobs SET space_hash = ? WHERE id = ?", [space_hash, id])

    def _demand(self, database: Database, id: str) -> None:
        if _first(database, "SELECT 1 FROM jobs WHERE id = ?", [id]) is None:
            self._look_for_hidden(database.conn, id)
            raise self._unknown(id)


def absolute(source_hashes: Any) -> dict[str, str]:
    """Files by their absolute paths, so that a lookup from another folder compares the same ones."""
    return {os.path.abspath(path): digest for path, digest in source_hashes.items()}


def got_on(database: Database, id: str) -> None:
    """Inside a transaction that writes down something measured: a job, and the one it is a part of, wait no longer the
    next time than the first time."""
    database.execute(
        "UPDATE jobs SET retries = 0 WHERE retries > 0 AND id IN (?, (SELECT parent_id FROM jobs WHERE id = ?))",
        [id, id],
    )


def _paged(
    select: Callable[[str, Mapping[str, object]], Iterable[Row]], query: str, parameters: Mapping[str, object]
) -> Iterator[Row]:
    """The rows of a query with LIMIT _A_FEW OFFSET :start, as far as they are asked for."""
    start = 0
    while True:
        rows = list(select(query, {**parameters, "start": start}))
        yield from rows
        if len(rows) < _A_FEW:
            return
        start += _A_FEW


def _first(database: Database, sql: str, parameters: list[Any]) -> Row | None:
    return next(iter(database.query(sql, parameters)), None)


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
