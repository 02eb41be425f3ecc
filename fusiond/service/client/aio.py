"""The client for programs that run an event loop: `await AsyncClient().best("hist,maxpool")`.

Every method is that of `Client`, in one thread of its own: SQLite and the daemon's socket are read there, the loop goes
on meanwhile. Cancelling a call leaves the thread to finish it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from fusiond.service.client.client import Client

if TYPE_CHECKING:
    from fusiond.model.outcomes import JobState
    from fusiond.service.client.answers import Answer, Judgement
    from fusiond.service.progress import Progress
    from fusiond.store.job_rows import JobRow

Made = TypeVar("Made")


class AsyncClient:
    """As `Client`; use it as an asynchronous context manager, or await `close`."""

    def __init__(self, socket: Path | str | None = None, db: Path | str | None = None) -> None:
        self._client = Client(socket, db)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fusiond")

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._call(self._client.close)
        self._thread.shutdown(wait=False)

    async def health(self) -> Mapping[str, Any]:
        return await self._call(self._client.health)

    async def submit(
        self,
        path: Path | str,
        text: str | None = None,
        *,
        device: str | None = None,
        trials: int | None = None,
        seed: int | None = None,
        priority: int = 0,
    ) -> tuple[str, ...]:
        asked = functools.partial(self._client.submit, device=device, trials=trials, seed=seed, priority=priority)
        return await self._call(asked, path, text)

    async def judge(
        self,
        reference: Path | str | Mapping[str, Any],
        candidate: Path | str | Mapping[str, Any],
        *,
        device: str = "auto",
        trials: int | None = None,
        timeout_secs: float | None = None,
    ) -> Judgement:
        """Several may be asked for at once, and other calls go on meanwhile."""
        given = {"device": device, "trials": trials, "timeout_secs": timeout_secs}
        own = Client(self._client._socket, self._client.db)  # each in a thread of its own
        return await asyncio.to_thread(functools.partial(own.judge, reference, candidate, **given))  # type: ignore[arg-type]

    async def cancel(self, job: str) -> JobRow:
        return await self._call(self._client.cancel, job)

    async def finish(self, job: str) -> JobRow:
        return await self._call(self._client.finish, job)

    async def watch(self, job: str) -> AsyncIterator[Progress]:
        """How the job stands, then what happens, until it ends. Other calls go on meanwhile."""
        loop, left = asyncio.get_running_loop(), threading.Event()
        events: asyncio.Queue[Progress | BaseException | None] = asyncio.Queue()

        def post(event: Progress | BaseException | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(events.put_nowait, event)

        def follow() -> None:
            try:
                with Client(self._client._socket, self._client.db) as own:
                    for event in own.watch(job):
                        if left.is_set():
                            return
                        post(event)
                post(None)
            except BaseException as problem:  # whatever it is, it is for whoever waits
                post(problem)

        # Not of a pool: whoever leaves does not wait for the next event, nor does the end of the program.
        threading.Thread(target=follow, name="fusiond-watch", daemon=True).start()
        try:
            while (event := await events.get()) is not None:
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            left.set()

    async def count_jobs(self, states: Sequence[JobState] = ()) -> int:
        return await self._call(self._client.count_jobs, states)

    async def jobs(
        self, states: Sequence[JobState] = (), limit: int = 100, *, before: str | None = None
    ) -> tuple[JobRow, ...]:
        return await self._call(functools.partial(self._client.jobs, before=before), states, limit)

    async def show(self, job: str) -> JobRow:
        return await self._call(self._client.show, job)

    async def best(
        self,
        name: str | None = None,
        *,
        job: Path | str | None = None,
        device: str | None = None,
        sizes: Mapping[str, int] | None = None,
        cache: str | None = None,
    ) -> Answer | None:
        asked = functools.partial(self._client.best, job=job, device=device, sizes=sizes, cache=cache)
        return await self._call(asked, name)

    async def best_of_job(
        self,
        job: Path | str,
        *,
        device: str | None = None,
        sizes: Mapping[str, int] | None = None,
        cache: str | None = None,
    ) -> tuple[Answer | None, ...]:
        asked = functools.partial(self._client.best_of_job, device=device, sizes=sizes, cache=cache)
        return await self._call(asked, job)

    async def _call(self, method: Callable[..., Made], *arguments: object) -> Made:
        return await asyncio.get_running_loop().run_in_executor(self._thread, functools.partial(method, *arguments))
