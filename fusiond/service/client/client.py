"""The client for programs: `fusiond.Client().best("hist,maxpool")`.

What only reads goes to the SQLite file itself and works without a daemon; what changes something goes to the daemon's
Unix socket. `best` of a name is a lookup by the standard library, of about a millisecond; of a job file, too, where its
files are those of before: else it loads the plugins.

A program that asks for an answer starts as fast as Python does: NumPy, sqlite-utils and httpx are imported where a
method needs them, here and nowhere else in the project.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from fusiond.model.errors import Ambiguous, DaemonError, NothingKnown, RequestError, StoreError
from fusiond.requests import job_cache
from fusiond.service import best
from fusiond.service.client import connection
from fusiond.store.location import default_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Any

    from fusiond.model.outcomes import JobState
    from fusiond.service.client.answers import Answer, Judgement
    from fusiond.service.progress import Progress
    from fusiond.store.database import Store
    from fusiond.store.jobs import JobRow

SUBMIT_SECS = 600.0  #: A sweep may make a hundred jobs, each of which the daemon parses and checks before it answers
JUDGE_SECS = 3 * 3600.0  #: A candidate may have to wait for many others
POLL_SECS = 0.5
LOST = "the process that ran it is gone; `fusiond serve`, or the same `fusiond run`, goes on with it"


class Client:
    """`db` names the store (default: FUSIOND_DB, else the user's own), `socket` the daemon's socket (default: where the
    daemon of that store listens). Use it as a context manager, or call `close`."""

    def __init__(self, socket: Path | str | None = None, db: Path | str | None = None) -> None:
        self.db = Path(db) if db is not None else default_path()
        self._socket = Path(socket) if socket is not None else None
        self._store: Store | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    @property
    def socket(self) -> Path:
        """Where the daemon listens, or would."""
        return self._socket if self._socket is not None else connection.socket_of(self.db)

    @property
    def store(self) -> Store:
        """The store, opened when it is first needed. NothingKnown when there is no file yet."""
        if self._store is None:
            if not self.db.exists():
                raise NothingKnown(f"there is no store at {self.db} yet; `fusiond run` or `fusiond serve` makes it")
            from fusiond.store.database import Store

            self._store = Store.open(self.db, create=False)
        return self._store

    # --- the daemon ---

    def health(self) -> Mapping[str, Any]:
        """What the daemon is and does; DaemonError when none answers."""
        found: Mapping[str, Any] = connection.ask(self.socket, "GET", "/health")
        return found

    def submit(
        self,
        path: Path | str,
        text: str | None = None,
        *,
        device: str | None = None,
        trials: int | None = None,
        seed: int | None = None,
        priority: int = 0,
    ) -> tuple[str, ...]:
        """Hand a job file to the daemon: the ids of its jobs (several where it sweeps a size). Those that it has
        already, of the same content and search, are named at once.

        RequestError for a mistake in the file, DaemonError when no daemon answers."""
        from fusiond.model.system import files

        path = Path(path).absolute()
        if text is None:
            text = files.read_text(path)
        known = job_cache.recall(self.db, path, text, None)
        if known is not None:
            with contextlib.suppress(StoreError):  # the daemon says what is wrong with it
                same = job_cache.same_jobs(self.db, known, device=device, trials=trials, seed=seed, priority=priority)
                if same:
                    connection.answering(self.socket)
                    return same
        body = {"path": str(path), "text": text, "device": device, "trials": trials, "seed": seed, "priority": priority}
        return tuple(each["id"] for each in connection.ask(self.socket, "POST", "/jobs", body, SUBMIT_SECS)["jobs"])

    def judge(
        self,
        reference: Path | str | Mapping[str, Any],
        candidate: Path | str | Mapping[str, Any],
        *,
        device: str = "auto",
        trials: int | None = None,
        timeout_secs: float | None = None,
    ) -> Judgement:
        """Whether a candidate computes what a reference does, and how fast. Each is the path of a kernel's YAML file,
        or `{"yaml": text, "files": {name: text}}`. The daemon judges several at once and has others wait their turn;
        `timeout_secs` is for each by itself.

        RequestError for a mistake in either, DaemonError when no daemon answers or too many wait."""
        from fusiond.service.client.answers import Judgement

        kernels = {"reference": reference, "candidate": candidate}
        body: dict[str, Any] = {
            role: str(Path(each).absolute()) if isinstance(each, Path | str) else dict(each)
            for role, each in kernels.items()
        }
        body |= {"device": device} | ({} if trials is None else {"trials": trials})
        body |= {} if timeout_secs is None else {"timeout_secs": timeout_secs}
        return Judgement.of(connection.ask(self.socket, "POST", "/judge", body, JUDGE_SECS))

    def cancel(self, job: str) -> JobRow:
        """Stop a job or take it off the queue; through the store when no daemon answers.

        RequestError when there is no such job."""
        row = self.show(job)
        try:
            connection.ask(self.socket, "POST", f"/jobs/{row.id}/cancel")
        except DaemonError:
            return self.store.cancel(row.id)
        return self.show(row.id)

    def finish(self, job: str) -> JobRow:
        """End a job's search: the finals of what it has measured come next. Whoever runs it looks into the store.

        RequestError when there is no such job; a job that has ended stays as it is."""
        return self.store.finish_early(self.show(job).id)

    def watch(self, job: str) -> Iterator[Progress]:
        """How the job stands, then what happens, until it ends (`event == "ended"`).

        Streamed by the daemon; from the store when none answers, or when it goes away meanwhile."""
        from fusiond.service.progress import from_json

        row = self.show(job)
        try:
            for document in connection.stream(self.socket, f"/jobs/{row.id}/events"):
                progress = from_json(document)
                yield progress
                if progress.event == "ended":
                    return
        except DaemonError:
            pass
        yield from self._poll(row.id)

    # --- the store ---

    def count_jobs(self, states: Sequence[JobState] = ()) -> int:
        """How many jobs there are, however many `jobs` hands out."""
        return self.store.count_jobs(list(states) or None)

    def jobs(
        self, states: Sequence[JobState] = (), limit: int = 100, *, before: str | None = None
    ) -> tuple[JobRow, ...]:
        """The jobs, newest first; `before`: those that came before that job, for the next page. One whose process is
        gone is shown as what it will be: queued. RequestError when there is no job `before`."""
        number = None if before is None else self.show(before).number
        found = self.store.jobs(list(states) or None, limit, before=number)
        rows = tuple(self._shown(each.as_it_is(LOST)) for each in found)
        return tuple(row for row in rows if not states or row.state in states)

    def show(self, job: str) -> JobRow:
        """One job, by its id or the beginning of it; RequestError when there is none."""
        if not self.db.exists():
            from fusiond.store.job_reading import unknown_job

            raise unknown_job(job)
        return self._shown(self.store.named_job(job).as_it_is(LOST))

    def _shown(self, row: JobRow) -> JobRow:
        from fusiond.service.client.rows import ShownRow

        return ShownRow.of(row, self.db)

    def best(
        self,
        name: str | None = None,
        *,
        job: Path | str | None = None,
        device: str | None = None,
        sizes: Mapping[str, int] | None = None,
        cache: str | None = None,
    ) -> Answer | None:
        """The best known answer, or None when nothing is known. A pair is `A,B`, in any order.

        A name is resolved as on the command line: by the files of the current folder, the catalogue, the store. `job`,
        in place of a name, is the path of a job file of one workload, whose content is looked up (the plugins are
        loaded for it where a file of it has changed). A stale answer (`match`) is given at once, and a check of it is
        queued.

        RequestError for a mistake in the job file, and for one that makes several workloads (`best_of_job` gives all);
        Ambiguous, which is one, where a name stands for several contents."""
        if (name is None) == (job is None):
            raise RequestError("give one of name and job", where="best")
        if cache not in (None, "warm", "cold"):
            raise RequestError(f"is {cache!r}; it can be warm, cold", where="cache")
        if job is not None:
            found = self.best_of_job(job, device=device, sizes=sizes, cache=cache)
            if len(found) > 1:
                raise RequestError(f"asks about {len(found)} workloads; best_of_job answers for all", where=str(job))
            return found[0]
        document = None
        with contextlib.suppress(NothingKnown):
            document = best.by_name(self.db, name or "", device=device, sizes=sizes, cache=cache or "warm")
        return _answer(document)

    def best_of_job(
        self,
        job: Path | str,
        *,
        device: str | None = None,
        sizes: Mapping[str, int] | None = None,
        cache: str | None = None,
    ) -> tuple[Answer | None, ...]:
        """The same for each workload of a job file, in its order; None for one of which nothing is known."""
        found = best.by_job(self.db, job, device=device, sizes=sizes, cache=cache)
        return tuple(None if isinstance(each, NothingKnown) else _answer(each) for each in found)

    # --- inside ---

    def _poll(self, job: str) -> Iterator[Progress]:
        from fusiond.service.daemon import lock
        from fusiond.service.progress import end_of_row, of_row

        shown: JobRow | None = None
        while True:
            row = self.show(job)
            if shown is None or (row.state, row.trials) != (shown.state, shown.trials):
                yield of_row(row)
                shown = row
            if row.state.ended or (row.problem == LOST and lock.holder(self.db) is None):
                yield end_of_row(row)
                return
            time.sleep(POLL_SECS)


def _answer(document: Mapping[str, Any] | None) -> Answer | None:
    from fusiond.service.client.answers import Answer

    if document is not None and document["match"] == "ambiguous":
        raise Ambiguous(document)
    return None if document is None else Answer.of(document)
