"""Reads jobs: one, or pages of them, and explains a missing one."""

import sqlite3
from collections.abc import Iterable, Sequence

from fusiond.model.errors import RequestError, StoreError
from fusiond.model.nouns import Job
from fusiond.model.outcomes import JobState
from fusiond.store import tables
from fusiond.store.connection import Connected, Row
from fusiond.store.encoding import decoding, job_from
from fusiond.store.format import decoded
from fusiond.store.job_rows import JobRow, job_row

_WHOLE = "FROM jobs j LEFT JOIN workloads w USING (workload_key) LEFT JOIN tallies t ON t.job_id = j.id"
_AT_ONCE = 500  #: Keys in one query; SQLite takes 999 parameters in its oldest builds
_BY_NUMBER, _BY_STATE = "idx_jobs_by_number", "idx_jobs_by_state"


class JobReading(Connected):
    def job(self, id: str) -> JobRow | None:
        """The job of that id, or of the only id that begins so; RequestError when several do, StoreError where damage
        hides it."""
        if not id:
            return None
        between = [id, id + "\U0010ffff"]
        with self._moment():
            rows = self._jobs("WHERE j.id >= ? AND j.id < ? ORDER BY j.id LIMIT 2", between)
            if not rows:
                self._look_for_hidden(self._reader, id)
                return None
        if len(rows) > 1 and rows[0].id != id:
            raise RequestError(f"several jobs begin with {id!r}; give more of the id", where="job")
        return rows[0]

    def named_job(self, id: str) -> JobRow:
        """The same; RequestError when there is none."""
        row = self.job(id)
        if row is None:
            raise self._unknown(id)
        return row

    def jobs(
        self, states: Iterable[JobState] | None = None, limit: int = 100, *, before: int | None = None
    ) -> list[JobRow]:
        """The newest jobs first, those of the given states only; `before`: those that came before the job of that
        number, for the next page. Damaged rows are left out, and said so in the log."""
        wanted = [state.value for state in (JobState if states is None else states)]
        if not wanted:
            return []
        parameters = {f"state{index}": state for index, state in enumerate(wanted)}
        marks = ", ".join(f":{name}" for name in parameters)
        last = "AND number < :before " * (before is not None) + "ORDER BY number DESC LIMIT :limit"
        by_state = " UNION ALL ".join(
            f"SELECT number FROM (SELECT number FROM jobs INDEXED BY {_BY_STATE} WHERE state = :{name} {last})"
            for name in parameters
        )
        with self._moment():
            numbers = self._same(
                f"SELECT number FROM jobs INDEXED BY {_BY_NUMBER} WHERE state IN ({marks}) {last}",
                f"SELECT number FROM ({by_state}) ORDER BY number DESC LIMIT :limit",
                {**parameters, "before": before, "limit": limit},
            )
            found = []
            for start in range(0, len(numbers), _AT_ONCE):
                chunk = numbers[start : start + _AT_ONCE]
                marks = ", ".join("?" * len(chunk))
                where = f"WHERE j.number IN ({marks}) ORDER BY j.number DESC"
                found += self._jobs(where, chunk, skip=True, expected=len(chunk))
            return found

    def count_jobs(self, states: Iterable[JobState] | None = None) -> int:
        """How many there are in the given states."""
        wanted = [state.value for state in (JobState if states is None else states)]
        marks = ", ".join("?" * len(wanted))
        (count,) = self._same(
            f"SELECT count(*) FROM jobs INDEXED BY {_BY_STATE} WHERE state IN ({marks})",
            f"SELECT count(*) FROM jobs INDEXED BY {_BY_NUMBER} WHERE state IN ({marks})",
            wanted,
        )
        return int(count)

    def parts(self, job: str, limit: int = 1000) -> list[JobRow]:
        """The jobs that were made as parts of a job, in the order in which they were. Damaged rows are left out."""
        with self._moment():
            rows = self._rows("SELECT number FROM jobs WHERE parent_id = ? ORDER BY number LIMIT ?", [job, limit])
            numbers = [int(row["number"]) for row in rows]
            marks = ", ".join("?" * len(numbers))
            where = f"WHERE j.number IN ({marks}) ORDER BY j.number"
            return self._jobs(where, numbers, skip=True, expected=len(numbers)) if numbers else []

    def jobs_by_state(self) -> dict[str, int]:
        """How many there are in each state."""
        rows = self._same(
            f"SELECT state || ' ' || count(*) FROM jobs INDEXED BY {_BY_STATE} GROUP BY state",
            f"SELECT state || ' ' || count(*) FROM jobs INDEXED BY {_BY_NUMBER} GROUP BY state",
            (),
        )
        counts = {state: int(count) for state, _, count in (row.partition(" ") for row in rows)}
        return {state.value: counts.get(state.value, 0) for state in JobState}

    def load_job(self, id: str) -> Job:
        """The Job that was submitted, files and all. RequestError when there is no such job."""
        row = self._plain(id)
        with decoding(self.path, "jobs", id):
            return job_from(row["job"])

    def _jobs(
        self,
        where: str,
        parameters: Sequence[object],
        *,
        skip: bool = False,
        expected: int | None = None,
        connection: sqlite3.Connection | None = None,
    ) -> list[JobRow]:
        found = []
        rows = self._sealed(
            f"{_WHOLE} {where}",
            parameters,
            skip=skip,
            expected=expected,
            connection=connection,
            j="jobs",
            w="workloads",
            t="tallies",
        )
        for job, workload, tally in rows:
            lacking = ""
            if workload is None or workload["workload_key"] != job["workload_key"]:
                lacking = "workload"
            elif tally is None or tally["job_id"] != job["id"]:
                lacking = "tally of trials"
            try:
                if lacking:
                    raise StoreError(
                        f"{self.path}: the {lacking} of the job {job['id']} is gone; `fusiond store check` says how to "
                        "go on"
                    )
                with decoding(self.path, "jobs", job["id"]):
                    found.append(job_row(job, workload, tally))
            except StoreError as problem:
                if not skip:
                    raise
                self._tell(str(problem))
        return found

    def cancel_requested(self, id: str) -> bool:
        """Whether somebody wants a job to stop. RequestError when there is no such job."""
        row = self._plain(id)
        return bool(row["cancel_requested"]) or row["state"] == JobState.CANCELLED

    def finish_requested(self, id: str) -> bool:
        """Whether somebody wants a job's search to end. RequestError when there is no such job."""
        return bool(self._plain(id)["finish_requested"])

    def tuned(self, workload_key: str, device_key: str, cache: str) -> bool:
        """Whether a workload was ever tuned to the end on a device of this kind, with such caches."""
        rows = self._sealed(
            "FROM jobs j WHERE workload_key = ? AND device_key = ? AND kind = 'tune' AND state = 'done'",
            [workload_key, device_key],
            skip=True,
            j="jobs",
        )
        return any(decoded(row["search"]).get("cache") == cache for (row,) in rows)

    def _plain(self, id: str) -> Row:
        """A job's row. RequestError when there is no such job."""
        for (row,) in self._sealed("FROM jobs j WHERE j.id = ?", [id], j="jobs"):
            found: Row = row
            return found
        with self._moment():
            self._look_for_hidden(self._reader, id)
        raise self._unknown(id)

    def _look_for_hidden(self, connection: sqlite3.Connection, id: str) -> None:
        """Of an id, or the beginning of one, that no index finds: StoreError where damage may hide it. Inside a
        transaction."""
        [(hidden, count, written)] = tables.fetched(
            connection,
            f"SELECT EXISTS (SELECT 1 FROM jobs INDEXED BY {_BY_NUMBER} WHERE id >= ? AND id < ?), "
            "(SELECT count(*) FROM jobs NOT INDEXED), "
            "(SELECT rows FROM sums WHERE name = 'jobs')",
            [id, id + "\U0010ffff"],
        )
        if hidden:
            what = "an index is damaged and hides it"
        elif count != written:
            what = "rows of jobs have vanished, and it may have been among them"
        else:
            return
        raise StoreError(
            f"{self.path}: the job {id[:80]!r} is not found: {what}; `fusiond store check` says how to go on"
        )

    def _unknown(self, id: str) -> RequestError:
        """Of a job that is not there; with a note where changes of the store were lost, since it may have been among
        them."""
        if self._row("SELECT 1 FROM losses LIMIT 1") is None:
            return unknown_job(id)
        note = " (changes of this store were lost, and it may have been among them: see `fusiond store check`)"
        return unknown_job(id, note)

    def _known(self, id: str, *, connection: sqlite3.Connection | None = None) -> JobRow:
        rows = self._jobs("WHERE j.id = ?", [id], connection=connection)
        if not rows:
            raise StoreError(f"{self.path}: the job {id} has vanished")
        return rows[0]


def unknown_job(id: str, note: str = "") -> RequestError:
    return RequestError(f"there is no job {id[:80]!r}{note}", where="job")
