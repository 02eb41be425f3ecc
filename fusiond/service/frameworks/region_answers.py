"""Parts of a program as questions to the store and the daemon.

    question = Question(name="step_0", text=hlo)
    found = asker.look(question)             from the store of this box (and what it has of others): milliseconds
    asker.want(question, changed)            in the background: handed to the daemon, polled, then `changed` called
    asker.later(task)                        in the background, before the next look
    found = asker.tune(question, {...})      here and now

A program is never kept waiting and never broken by this: whatever goes wrong is a `Found` with its reason. A daemon
that does not answer is asked again after a while. `FUSIOND=off` turns everything off.
"""

import atexit
import hashlib
import json
import logging
import os
import re
import signal
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fusiond.model.errors import DaemonError, FusiondError, Interrupted, NothingKnown
from fusiond.model.program import Program, decode
from fusiond.service.frameworks import detached_submit

log = logging.getLogger("fusiond.service.frameworks")

POLL_SECS = 2.0
AGAIN_SECS = 60.0  #: After which a daemon that did not answer is asked again
_MODULE = re.compile(r"^HloModule [^,\s]+")


def enabled() -> bool:
    """Whether the environment leaves fusiond on: `FUSIOND=off` turns it off."""
    return os.environ.get("FUSIOND", "").lower() not in ("off", "0", "no", "false")


def check_options(search: Mapping[str, Any] | None, device: str | None) -> None:
    """ValueError, in one line, for a `search` or a `device` that a job could not have either."""
    if search is None and device is None:
        return  # a program that says neither imports nothing for it
    from fusiond.model.errors import RequestError
    from fusiond.requests import jobs

    try:
        if search is not None:
            jobs.check_search(search, where="search")
        if device is not None:
            jobs.device_name(device, where="device")
    except RequestError as problem:
        raise ValueError(str(problem)) from None


class Askable(Protocol):
    """A question: a job that nobody wrote."""

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str | None: ...
    @property
    def digest(self) -> str:
        """Of all that is asked."""

    @property
    def workload(self) -> str:
        """What the store calls it, by which jobs of several processes know each other."""

    @property
    def loops(self) -> bool:
        """Whether it has a loop of which a framework launches each trip's kernels."""

    @property
    def path(self) -> str:
        """What the job is called; files that it names lie beside it."""

    def job(self, search: Mapping[str, Any] | None = None) -> str:
        """The text of a job file."""


@dataclass(frozen=True, slots=True)
class Question:
    """A region: an HLO module whose parameters and results are arrays in device memory."""

    name: str  #: For people: it is not part of what is asked
    text: str = field(repr=False)
    device: str | None = None
    """As a job names it (`cuda:0`, `cpu`); None: any that an answer is known of, and the daemon's choice."""
    search: Mapping[str, Any] | None = field(default=None, compare=False)
    """How the daemon searches, as a job says it; no part of what is asked."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.device}\n{self._named('')}".encode()).hexdigest()[:16]

    def _named(self, name: str) -> str:
        """The module under another name: equal steps of an unrolled loop are one question."""
        return _MODULE.sub(f"HloModule {name}", self.text, count=1)

    @property
    def loops(self) -> bool:
        """Whether it has a loop. Then our unfused kernels, one launch for all trips, are better than the framework's
        where nothing is gained by fusing more."""
        return " while(" in self.text

    @property
    def workload(self) -> str:
        """The name of the module, by which jobs of several processes know each other."""
        return f"{self.name}_{self.digest}"

    @property
    def path(self) -> str:
        """What the job is called: there is no such file."""
        return str(Path("/fusiond/frameworks") / f"{self.workload}.yaml")

    def job(self, search: Mapping[str, Any] | None = None) -> str:
        """The text of a job file."""
        lines = ["strategy: stitching", "module: |", textwrap.indent(self._named(self.workload), "  ")]
        lines += [f"device: {json.dumps(self.device)}"] if self.device else []
        lines += ["accept_constant: true"]  # a mask of a region may be true everywhere for what it is tried with
        search = search or self.search
        lines += [f"search: {json.dumps(dict(search))}"] if search else []  # JSON is YAML
        return "\n".join([*lines, ""])


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionOptions:
    """Which answers a program uses, and how it asks."""

    always: bool = False
    """Run our kernels whatever the verdict, emulated ones on a processor too: for scripts and tests."""
    block: bool = False  #: Tune here and now, without a daemon, what is unknown
    search: Mapping[str, Any] | None = field(default=None, compare=False)  #: How, as in a job: `{"trials": 20}`
    device: str | None = None  #: As a job names it; else the one that the program uses
    db: Path | str | None = None  #: Another store than the user's


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is known of a question."""

    state: str  #: `fuse`, `keep`, `unknown`, or `refused` (this region cannot be asked for)
    reason: str = ""  #: Of `unknown` and `refused`, in one line
    evidence: str = ""  #: `measured`, `emulated`, `counted`
    speedup: float | None = None
    arch: str | None = None  #: Of the answer's device, where it is a GPU
    program: Program | None = None
    """Of `fuse`; of `keep` the best fused one, where there is one. Of a question with a loop, where fusing gains
    nothing, the unfused kernels: then without `speedup`."""

    def wanted(self, options: FusionOptions) -> bool:
        """Whether a program that wants such answers launches this one."""
        return options.always or (self.state, self.evidence) == ("fuse", "measured")

    def usable(self, options: FusionOptions) -> bool:
        """Whether its kernels are to be launched."""
        return self.program is not None and self.wanted(options)

    def why_not(self, options: FusionOptions, without: str) -> tuple[str, str]:
        """(state, reason) of one that is not usable. `without`: what runs in its place, as in `XLA's is`."""
        if self.state in ("unknown", "refused"):
            return self.state, self.reason
        if self.wanted(options):
            return "kept", "there is no fused program"
        return "kept", f"{without} as fast" if self.state == "keep" else f"its answer is {self.evidence}: always=True"


class Asker:
    """Asks a store, and its daemon in a thread of its own. One for a process and store (`of`)."""

    def __init__(self, db: Path | None = None) -> None:
        from fusiond.store.location import default_path

        self.db = db or default_path()
        self._lock = threading.Lock()
        self._wanted: dict[str, tuple[Askable, list[Callable[[], None]]]] = {}
        self._submitted: dict[str, float] = {}
        """Digest -> when the daemon has to be asked again; infinite once it took the job, or never will."""
        self._over: dict[str, Callable[[], object]] = {}  #: Digest -> whether there will be no answer
        self._not_taken: dict[str, str] = {}  #: Digest -> why it was not handed in
        self._tasks: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None
        self._woken = threading.Event()
        self._taking_up = threading.Lock()

    def look(self, question: Askable) -> Found:
        """What the store knows. Never raises."""
        if _inherited:
            return Found(state="unknown", reason=_inherited)
        try:
            return self._look(question)
        except FusiondError as problem:
            return Found(state="refused", reason=line(problem))
        except Exception as problem:  # a plugin or a damaged store must not end the caller's program
            log.debug("%s could not be looked up", question.name, exc_info=True)
            return Found(state="refused", reason=f"{type(problem).__name__}: {line(problem)}")

    def _look(self, question: Askable) -> Found:
        from fusiond.service import best
        from fusiond.store import lookup

        if not self.db.is_file():
            return Found(state="unknown")
        (document,) = best.by_job(self.db, question.path, question.job(), device=question.device)
        if isinstance(document, NothingKnown):
            return Found(state="unknown")
        if document.get("match") == "nearest":
            return Found(state="unknown")  # of other sizes
        if document.get("imported"):
            return Found(state="unknown", reason="the answer is another box's, and was not measured here yet")
        verdict = "fuse" if document["verdict"] == "fuse" else "keep"
        key, speedup = document.get("program_key"), document.get("speedup")
        if verdict == "keep" and question.loops:
            # The framework launches kernels for each trip, which no way does that was measured.
            verdict, key, speedup = "fuse", document["unfused"]["program_key"], None
        plan = lookup.program(self.db, key) if key else None
        if verdict == "fuse" and plan is None:
            return Found(state="unknown", reason="the program of the answer is not in the store")
        arch = lookup.arch(self.db, document["device"]["key"])
        return Found(
            state=verdict,
            evidence=str(document.get("evidence", "")),
            speedup=speedup,
            arch=arch if arch is not None and arch.startswith("sm_") else None,
            program=None if plan is None else decode(plan),
        )

    def found(self, question: Askable, options: FusionOptions) -> Found:
        """What the store knows, or what comes of tuning here and now where that is wanted."""
        found = self.look(question)
        return self.tune(question, options.search) if found.state == "unknown" and options.block else found

    def tune(self, question: Askable, search: Mapping[str, Any] | None = None) -> Found:
        """Measures here and now, in this thread, without a daemon; what is then known. Ctrl-C twice and SIGTERM, which
        the measuring ends by, are the program's again afterwards."""
        from fusiond.service.client import functions

        if _inherited:
            return Found(state="unknown", reason=_inherited)
        log.info("%s is tuned here and now", question.path)
        try:
            functions.tune(question.path, question.job(search), db=self.db)
        except Interrupted as stopped:
            if stopped.by_signal == signal.SIGTERM:
                signal.raise_signal(signal.SIGTERM)
            elif stopped.by_signal is not None:
                raise KeyboardInterrupt from None
            return Found(state="unknown", reason=line(stopped))
        except FusiondError as problem:
            return Found(state="refused", reason=line(problem))
        return self.look(question)

    def problem(self, question: Askable) -> str:
        """Why there is nothing to try for a question, in one line; empty where there is."""
        from fusiond.requests import jobs, planning
        from fusiond.requests.isolation import registry

        try:
            plugins = registry.load()
            (job,) = jobs.read(question.path, question.job())
            prepared = planning.prepare(plugins, job)
            target = planning.target_of(*planning.choose_device(plugins, question.device or "auto"))
            analysis = prepared.strategy.analyse(prepared.workload, target)
            if prepared.strategy.space(analysis, {}).parameters:
                return ""
            return "; ".join(each.detail for each in analysis.rejections[:2]) or "there is nothing to try"
        except FusiondError as problem:
            return line(problem)

    # --- in the background ---

    def later(self, task: Callable[[], None]) -> None:
        """Call a function soon, in the thread that asks; what it raises is logged."""
        if _inherited:
            return
        with self._lock:
            self._tasks.append(task)
            self._awake()

    def _awake(self) -> None:
        self._woken.set()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._follow, name="fusiond", daemon=True)
            self._thread.start()

    def want(
        self,
        question: Askable,
        changed: Callable[[], None],
        *,
        known: bool = False,
        over: Callable[[], object] | None = None,
    ) -> None:
        """Hand an unknown question to the daemon. `changed` is called once it is known, from a thread of its own; of
        what is `known` at once, from that thread; and once it is `over`, where there will be no answer."""
        if _inherited:
            return
        with self._lock:
            if over is not None:
                self._over[question.digest] = over
            if known:
                self._submitted[question.digest] = float("inf")
            self._wanted.setdefault(question.digest, (question, []))[1].append(changed)
            self._awake()

    def waiting(self) -> tuple[Askable, ...]:
        """The questions that were asked for, and are not known yet."""
        return tuple(question for question, _ in list(self._wanted.values()))

    def standing(self, question: Askable) -> str:
        """Where an unknown question is, for people."""
        asked = self._submitted.get(question.digest)
        if _inherited:
            return _inherited
        if question.digest in self._not_taken:
            return f"not handed in: {self._not_taken[question.digest]}"
        if asked is None:
            return "not asked for yet"
        if asked == float("inf"):
            return "handed to the daemon, which has no answer yet"
        return "no daemon answers; `fusiond serve` starts one"

    @property
    def in_background(self) -> bool:
        """Whether this is the thread that calls `changed`."""
        return threading.current_thread() is self._thread

    def _follow(self) -> None:
        looked: dict[str, object] = {}
        while not _ending.is_set():
            with self._lock:
                self._woken.clear()
                tasks, self._tasks = self._tasks, []
                wanted = [question for question, _ in self._wanted.values()]
                if not wanted and not tasks:
                    self._thread = None
                    return
            for task in tasks:
                self._do(task)
            if tasks:
                continue
            for question in wanted:
                if self._submitted.get(question.digest, 0.0) <= time.monotonic():
                    self._submit(question)
            now = self._stamp()
            for question in wanted:
                if looked.get(question.digest) == now:
                    continue
                looked[question.digest] = now
                try:
                    self._taken_up(question)
                except Exception:
                    log.warning("an answer to %s could not be taken up", question.name, exc_info=True)
            self._woken.wait(POLL_SECS)

    def _do(self, task: Callable[[], None]) -> None:
        with self._taking_up:
            if _ending.is_set():
                return
            try:
                task()
            except Exception:
                log.warning("a question could not be put", exc_info=True)

    def _taken_up(self, question: Askable) -> None:
        known = self.look(question).state in ("fuse", "keep")
        if not known and not self._over.get(question.digest, bool)():
            return
        with self._taking_up:
            if _ending.is_set():
                return
            with self._lock:
                _, told = self._wanted.pop(question.digest, (question, []))
            for changed in told:
                changed()

    def end(self) -> None:
        """Wait for what is being taken up, begin nothing more, and leave what was not handed in yet to a process that
        is not waited for."""
        self._taking_up.acquire()
        left = [question for question in self.waiting() if question.digest not in self._submitted]
        try:
            detached_submit.leave(self.db, left)
        except Exception:
            log.debug("%d questions were not handed in", len(left), exc_info=True)

    def _stamp(self) -> object:
        """Changes with the store."""
        files = (self.db, self.db.with_name(self.db.name + "-wal"))
        return tuple((each.stat().st_mtime_ns, each.stat().st_size) if each.exists() else None for each in files)

    def _submit(self, question: Askable) -> None:
        try:
            detached_submit.hand_in(self.db, [(question.path, question.job(), question.workload)])
            self._submitted[question.digest] = float("inf")
        except (DaemonError, NothingKnown):  # a daemon that is started makes a store, too
            self._submitted[question.digest] = time.monotonic() + AGAIN_SECS
        except Exception as problem:  # a mistake in what was asked, or another version's: not the caller's matter
            self._not_taken[question.digest] = line(problem)
            log.info("%s was not handed in: %s", question.name, line(problem))
            self._submitted[question.digest] = float("inf")


_askers: dict[Path | None, Asker] = {}
_guard = threading.Lock()


def of(db: Path | str | None = None) -> Asker:
    """The process' asker of a store."""
    path = None if db is None else Path(db).expanduser()
    with _guard:
        if path not in _askers:
            _askers[path] = Asker(path)
        return _askers[path]


_ending = threading.Event()


def silent() -> str:
    """Why this process asks nothing; empty where it does."""
    return _inherited


def ending() -> bool:
    """Whether the process is about to end."""
    return _ending.is_set()


def _end() -> None:
    """XLA aborts the process if the interpreter ends below it: what is being compiled is waited for, the rest is not
    begun."""
    _ending.set()
    for each in _askers.values():
        each.end()


atexit.register(_end)


_inherited = ""
"""Why this process asks nothing, where it was forked from one that had asked: locks may be held for ever, and the
processes that parse are the parent's."""


def _forget() -> None:
    """A forked child has none of its parent's threads."""
    global _guard, _inherited
    _guard = threading.Lock()
    if _askers:
        _inherited = "this process was forked from one that had asked, and does not ask"
    _askers.clear()
    parsers = sys.modules.get("fusiond.requests.isolation.registry")
    if parsers is not None and parsers._shared.cache_info().currsize:
        atexit.unregister(parsers._shared().close)  # they are the parent's to end


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def line(problem: BaseException) -> str:
    """What is wrong, in one line."""
    return " ".join(str(problem).split())[:300]


def weakly(method: Callable[..., Any], *given: Any) -> Callable[[], Any]:
    """Calls a method of what may be gone by then: None."""
    held = weakref.WeakMethod(method)
    return lambda: None if (found := held()) is None else found(*given)
