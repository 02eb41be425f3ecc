"""Exchange with upstreams: signs and pushes answers, asks for missing ones, claims questions.

A thread of its own does what takes time: it signs what was found since, hands it to each upstream, as far as that was
told before (`marks`: what was not taken is pushed again, also after a restart), and holds on to the claims of the jobs
that run. Nobody who asks this daemon waits for it.
"""

import contextlib
import functools
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from fusiond.model.errors import FusiondError
from fusiond.model.events import RecordChanged
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import JobState
from fusiond.service.daemon.config import UpstreamAddress
from fusiond.service.daemon.logs import Complaints
from fusiond.service.daemon.upstream_client import Unreachable, Upstream
from fusiond.store.database import Store
from fusiond.store.exchange import signing
from fusiond.store.exchange.database import Exchange
from fusiond.store.exchange.entry import ExchangeEntry, Refused, parse
from fusiond.store.exchange.records import publish, with_programs
from fusiond.store.exchange.signing import Signer
from fusiond.store.exchange.tokens import digest
from fusiond.store.jobs import JobRow

log = logging.getLogger(__name__)

CLAIM_SECS = 90.0  #: A claim whose holder is gone is anybody's after that
BEAT_SECS = 20.0
LOOK_SECS = 15.0  #: How often a job that another box tunes is looked at again
PUSH_BYTES = 4_000_000  #: Of one push, about; a single entry may be longer


class Between:
    """Of one daemon. `close` ends its thread."""

    def __init__(self, store: Store, addresses: Sequence[UpstreamAddress], secs: float) -> None:
        """`secs`: how long an upstream is waited for."""
        self._store = store
        self.exchange = Exchange.beside(store.path)
        self._signer = Signer.of(store.path)
        self._secs = secs
        self.upstreams = [Upstream(each, secs) for each in addresses]
        self._holder = f"{socket.gethostname()[:60]} ({self._signer.public[:12]})"
        self._held: dict[str, Upstream] = {}
        self._done: list[tuple[str, Upstream]] = []
        self._lock = threading.Lock()
        self._bell = threading.Event()
        self._closing = False
        self._waited: set[str] = set()  #: Jobs that another box's claim has kept from running
        self._complaints = Complaints(log)
        self._thread = threading.Thread(target=self._loop, name="between", daemon=True)
        for each in self.upstreams:  # `fusiond best` sees that a miss may be asked here
            if self.exchange.mark(each.url) == 0:
                self.exchange.set_mark(each.url, 0)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        self._bell.set()
        if self._thread.is_alive():
            self._thread.join(self._secs + 1)
        self._try(functools.partial(self._release, self._done))
        for each in self.upstreams:
            each.close()

    def state(self) -> tuple[dict[str, int], list[dict[str, object]]]:
        """How many entries and claims there are here, and how each upstream stands."""
        kept = {**self.exchange.count(), "claims": self.exchange.claimed(time.time())}
        return kept, [
            {"upstream": each.url, "rests": each.rests, "behind": self.exchange.behind(each.url)}
            for each in self.upstreams
        ]

    # --- misses ---

    @property
    def listens(self) -> bool:
        """Whether there is anybody to ask now."""
        return any(not each.rests for each in self.upstreams)

    def ask(self, family: str, devices: tuple[str, ...], cache: str, sizes: str | None) -> bool:
        """Ask every upstream that is well, at the same time, for an answer to a content; whether any came that is now
        among the imports. `sizes`: the canonical text of all of them, None for any. Takes no longer than a call may."""
        found: list[ExchangeEntry] = []

        def call(upstream: Upstream) -> None:
            found.extend(self._of(upstream, family, devices, cache, sizes))

        callers = [
            threading.Thread(target=call, args=[each], name="miss", daemon=True)
            for each in self.upstreams
            if not each.rests
        ]
        deadline = time.monotonic() + self._secs + 0.2
        for each in callers:
            each.start()
        for each in callers:
            each.join(max(0.0, deadline - time.monotonic()))
        came = list(found)
        return bool(came) and bool(sum(self.exchange.put(came)))

    def _of(
        self, upstream: Upstream, family: str, devices: tuple[str, ...], cache: str, sizes: str | None
    ) -> Iterator[ExchangeEntry]:
        for device in devices:
            try:
                text = upstream.answer(family=family, device=device, cache=cache, sizes=sizes)
                if text is None:
                    continue
                entry = parse(text)
                signing.verify(entry)
            except Unreachable:
                return
            except Refused as problem:
                self._complaints.add(f"upstream {upstream.url}: an answer is refused: {problem}")
                continue
            body = entry.body
            its = body["workload"]["content_family_key"], body["device"]["key"], body["cache"]
            if its == (family, device, cache):
                yield entry

    # --- claims ---

    def claim(self, question: str) -> tuple[str, float] | None:
        """Ask the first upstream that answers to tune a question alone: None when that is granted, or when nobody can
        be asked; else who tunes it, and for how many seconds at most unless it says so again."""
        for each in self.upstreams:
            try:
                granted, holder, left = each.claim(question, self._holder, CLAIM_SECS)
            except Unreachable:
                continue
            if not granted:
                return holder, left
            with self._lock:
                self._held[question] = each
            return None
        return None

    def release(self, question: str) -> None:
        """Let go of a claim, once the answer that came of it was pushed: whoever waits for it finds that there."""
        with self._lock:
            upstream = self._held.pop(question, None)
            if upstream is not None:
                self._done.append((question, upstream))
        self._bell.set()

    def _release(self, done: list[tuple[str, Upstream]]) -> None:
        for question, upstream in done:
            with contextlib.suppress(Unreachable):
                upstream.release(question, self._holder)

    @contextlib.contextmanager
    def alone(
        self, row: JobRow, device: DeviceInfo, answered: Callable[[JobRow, DeviceInfo], str | None]
    ) -> Iterator[JobState | None]:
        """For a claimed job: None, and as long as the block runs no other box tunes its question; else how the job
        stands: waiting for the other one, or done, since that has answered meanwhile."""
        if not self.upstreams:
            yield None
            return
        cache = self._store.load_job(row.id).search.cache
        question = f"{row.workload_key} {device.key} {cache}"
        taken = self.claim(question)
        if taken is not None:
            holder, left = taken
            self._waited.add(row.id)
            log.info("job %s waits: %s tunes the same", row.id, holder)
            yield self._store.wait(row.id, f"{holder} tunes the same", secs=max(1.0, min(left, LOOK_SECS)))
            return
        try:
            by = answered(row, device) if row.id in self._waited else None
            self._waited.discard(row.id)
            if by is not None:
                self._store.set_finding(row.id, f"answered meanwhile by {by}; it is measured again here")
                self._store.finish(row.id, JobState.DONE)
            yield JobState.DONE if by is not None else None
        finally:
            self.release(question)

    # --- who may ask ---

    def rights(self, token: str) -> str | None:
        """What a program with this token may do: read, write; None where there is no such token."""
        with contextlib.suppress(FusiondError):
            found = self.exchange.rights(digest(token))
            return found[1] if found is not None else None
        return None

    def heard(self, event: object) -> None:
        """An answer has changed: there is something to push."""
        if isinstance(event, RecordChanged):
            self._bell.set()

    # --- the thread ---

    def _loop(self) -> None:
        while not self._closing:
            self._bell.clear()
            with self._lock:  # those whose answers are in the store by now, and pushed before they are let go
                done, self._done = self._done, []
            sign = functools.partial(publish, self._store, self.exchange, self._signer)
            for each in (sign, self._push, functools.partial(self._release, done), self._hold):
                self._try(each)
            self._bell.wait(BEAT_SECS)

    def _try(self, task: Callable[[], object]) -> None:
        try:
            task()
        except Exception as problem:
            self._complaints.add(f"between: {problem}", None if isinstance(problem, FusiondError) else problem)

    def _push(self) -> None:
        for each in self.upstreams:
            with contextlib.suppress(Unreachable):
                while not self._closing and not each.rests and self._push_some(each):
                    pass

    def _push_some(self, upstream: Upstream) -> bool:
        """Some of what an upstream was not told yet; whether there may be more."""
        numbered = self.exchange.own_after(self.exchange.mark(upstream.url), 50)
        lines: list[str] = []
        last = size = 0
        for number, key in numbered:
            entry = with_programs(self.exchange, key)
            line = entry.line() if entry is not None else ""
            if lines and size + len(line) > PUSH_BYTES:
                break
            if line:
                lines.append(line)
                size += len(line)
            last = number
        if not numbered:
            return False
        if lines:
            told = upstream.push(lines)
            for each in told.get("why") or ():
                log.warning("upstream %s refused an answer: %s", upstream.url, str(each)[:300])
        self.exchange.set_mark(upstream.url, last)
        return True

    def _hold(self) -> None:
        with self._lock:
            held = dict(self._held)
        for question, upstream in held.items():
            with contextlib.suppress(Unreachable):
                upstream.claim(question, self._holder, CLAIM_SECS)
