"""Carries progress from the workers' threads to HTTP clients that watch.

A worker's thread publishes; a watcher's coroutine reads its own queue. A watcher too slow for its queue loses the
oldest lines, and never costs the worker time; the end of a job is read from the store, so that it cannot be lost.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

from fusiond.model.events import Event
from fusiond.model.outcomes import JobState
from fusiond.service.progress import Progress, end_of_row, of_event, of_row
from fusiond.service.remaining import Standings
from fusiond.store.jobs import JobRow

QUEUE_LINES = 1000


class _Watcher:
    """One reader: the queue of one job's progress, filled from any thread."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.queue: asyncio.Queue[Progress] = asyncio.Queue(QUEUE_LINES)
        self._loop = asyncio.get_running_loop()

    def offer(self, progress: Progress) -> None:
        self._loop.call_soon_threadsafe(self._put, progress)

    def _put(self, progress: Progress) -> None:
        if self.queue.full():
            self.queue.get_nowait()
        self.queue.put_nowait(progress)


class Broker:
    """Subscribes to the workers' events and hands them to the watchers of that job."""

    def __init__(self) -> None:
        self._watchers: list[_Watcher] = []
        self._phases: dict[str, Progress] = {}
        self.standings = Standings()
        self._lock = threading.Lock()
        self.closing = False

    def __call__(self, event: Event) -> None:
        """A subscriber of `Events`; called in a worker's thread."""
        self.publish(of_event(event))

    def publish(self, progress: Progress) -> None:
        """To whoever watches that job, and, but for its end, the one whose part it is."""
        whole = self.standings.whole(progress.job)
        self.standings.tell(progress)
        if progress.parent is not None:
            whole = progress.parent
        to = {progress.job} if progress.event == "ended" else {progress.job, whole}
        with self._lock:
            if progress.event == "phase":
                self._phases[progress.job] = progress
            elif progress.event == "ended":
                self._phases.pop(progress.job, None)
            watchers = [each for each in self._watchers if each.job in to]
        for each in watchers:
            each.offer(progress)

    def waiting(self, job: str | None) -> str | None:
        """Whom a job waits for now, if it does."""
        with self._lock:
            phase = self._phases.get(job or "")
        return phase.detail if phase is not None and phase.phase == "waiting" else None

    def close(self) -> None:
        """Let every stream end within its next tick."""
        self.closing = True

    @contextmanager
    def _watching(self, job: str) -> Iterator[_Watcher]:
        watcher = _Watcher(job)
        with self._lock:
            self._watchers.append(watcher)
            phase = self._phases.get(job)
        if phase is not None:
            watcher.offer(phase)
        try:
            yield watcher
        finally:
            with self._lock:
                self._watchers.remove(watcher)

    async def follow(
        self, job: str, read: Callable[[str], JobRow], *, tick_secs: float = 1.0
    ) -> AsyncIterator[Progress | None]:
        """How the job stands, then what happens, until it ends. None once a tick when nothing happened.

        `read` reads the job's row; the store is asked once a tick, since another process may be running the job."""
        with self._watching(job) as watcher:
            shown = await asyncio.to_thread(read, job)
            yield of_row(shown)
            while not self.closing:
                if JobState(shown.state).ended:
                    while not watcher.queue.empty():
                        rest = watcher.queue.get_nowait()
                        if rest.event != "ended":
                            yield rest
                    yield end_of_row(shown)
                    return
                try:
                    progress = await asyncio.wait_for(watcher.queue.get(), tick_secs)
                except TimeoutError:
                    row = await asyncio.to_thread(read, job)
                    moved = (row.state, row.trials) != (shown.state, shown.trials)
                    shown = row
                    yield of_row(row) if moved else None
                    continue
                if progress.event == "ended":
                    yield progress
                    return
                yield progress
