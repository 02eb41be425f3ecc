"""The client for programs that run an event loop: `await AsyncClient().best("hist,maxpool")`.

Every method is that of `Client`, in one thread of its own: SQLite and the daemon's socket are read there, the loop goes
on meanwhile. Cancelling a call leaves the thread to finish it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from fusiond.service.client.client import Client

if TYPE_CHECKING:
    from fusiond.service.progress import Progress

Given = ParamSpec("Given")
Made = TypeVar("Made")


def _awaited(
    method: Callable[Concatenate[Client, Given], Made], *, beside_others: bool = False
) -> Callable[Concatenate[AsyncClient, Given], Coroutine[Any, Any, Made]]:
    """A method of `Client`. `beside_others`: in a thread and with a client of its own, since it takes long."""

    @functools.wraps(method)
    async def called(self: AsyncClient, /, *given: Given.args, **named: Given.kwargs) -> Made:
        client = Client(self._client._socket, self._client.db) if beside_others else self._client
        thread = None if beside_others else self._thread
        call = functools.partial(method, client, *given, **named)
        return await asyncio.get_running_loop().run_in_executor(thread, call)

    return called


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
        await asyncio.get_running_loop().run_in_executor(self._thread, self._client.close)
        self._thread.shutdown(wait=False)

    health = _awaited(Client.health)
    submit = _awaited(Client.submit)
    judge = _awaited(Client.judge, beside_others=True)
    cancel = _awaited(Client.cancel)
    finish = _awaited(Client.finish)
    count_jobs = _awaited(Client.count_jobs)
    jobs = _awaited(Client.jobs)
    show = _awaited(Client.show)
    best = _awaited(Client.best)
    best_of_job = _awaited(Client.best_of_job)

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
