"""The pool of children, seen from the program that asks.

A request whose child dies is asked again, alone, in a child that has done nothing else: what dies of its own doing
there (`fusiond.model.system.faults`) is to blame, and nobody else is. One that is killed from outside is asked again
as long as the machine may be to blame, with a pause before each.
"""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusiond.model.errors import MachineFault, PluginError
from fusiond.model.system import faults
from fusiond.requests.isolation.messages import ChildLimits, Description
from fusiond.requests.isolation.processes import (
    Child,
    Crashed,
    DiedLoading,
    Helper,
    Lost,
    TookTooLong,
    Zygote,
    by_itself,
    how,
    nobody,
)

log = logging.getLogger(__name__)

KILLED_AT_MOST = 5  #: Times that a request is killed from outside, alone, before the machine is said to be at fault
PAUSE_SECS = 0.1  #: Before it is asked again; doubled each time
_PARSED_AT_MOST = 500  #: Workloads after which a child is replaced, once nothing is kept in it: parsers keep caches


class ChildObject:
    """Something that a child made and keeps: how it was made, so that another child can make it again."""

    def __init__(
        self, planner: Planner, method: str, arguments: tuple[Any, ...], helper: Helper, within: ChildObject | None
    ) -> None:
        self.number = next(planner.numbers)
        self.method, self.arguments, self.helper, self.within = method, arguments, helper, within
        self.child: Child | None = None
        self.known: bytes = b""  #: What the strategy was last told that is known, pickled
        self.lock = threading.Lock()
        weakref.finalize(self, planner.forgotten.append, self.number).atexit = False


class Planner:
    """Children that compute what strategies say. Any thread may ask; nothing is started before somebody does.

    `source` names a function that makes the Registry of the children (`module:name`); empty: the entry points. Of
    these, the plugins named in `only` are loaded at once, the others where a child needs them; `description` is theirs
    alone then."""

    def __init__(
        self,
        *,
        source: str = "",
        limits: ChildLimits | None = None,
        children: int | None = None,
        environment: Mapping[str, str] | None = None,
        only: Sequence[str] | None = None,
    ) -> None:
        self.limits = limits or ChildLimits()
        self.numbers = itertools.count()
        self.forgotten: deque[int] = deque()
        """Numbers of what nobody needs any more. Objects may end at any moment, in the middle of a message to a child:
        the children are told later."""
        self._source, self._only = source, only
        self._most = children or min(4, max(2, os.cpu_count() or 1))
        self._environment = dict(environment or {})
        self._zygote: Zygote | None = None
        self.children: list[Child] = []
        self._lock = threading.RLock()
        self._without: tuple[str, ...] = ()

    def __enter__(self) -> Planner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the children; a request that is under way is lost."""
        with self._lock:
            if self._zygote is not None:
                self._zygote.close()
                self._zygote = None
            self.children = []

    @property
    def description(self) -> Description:
        """What the plugins have registered. PluginError when they cannot be loaded at all."""
        return self._running().description

    # --- requests ---

    def make(
        self, method: str, arguments: tuple[Any, ...], helper: Helper, within: ChildObject | None = None
    ) -> tuple[ChildObject, Any]:
        """Have a child make something and keep it: its handle, and what there is to say of it."""
        kept = ChildObject(self, method, arguments, helper, within)
        return kept, self._insist(kept, lambda child: self._made(kept, child))

    def use(self, kept: ChildObject, method: str, *arguments: object, known: Mapping[str, Any] | None = None) -> Any:
        """Ask the child that keeps something about it. `known`: what the device has answered, where that matters."""
        blob = None if known is None else pickle.dumps(dict(known), pickle.HIGHEST_PROTOCOL)

        def ask(child: Child) -> Any:
            with kept.lock:
                self._ensure(kept, child)
                if blob is not None and kept.known != blob:
                    child.ask("know", (kept.number, known), kept.helper, self.limits.secs)
                    kept.known = blob
            return child.ask(method, (kept.number, *arguments), kept.helper, self.limits.secs)

        return self._insist(kept, ask)

    def ask(self, method: str, *arguments: object, helper: Helper | None = None) -> Any:
        """Ask any child something that needs nothing kept."""
        return self._insist(None, lambda child: child.ask(method, arguments, helper or nobody, self.limits.secs))

    def dies(self, method: str, arguments: tuple[Any, ...], helper: Helper, *, secs: float) -> bool:
        """Whether a child dies of a request; asked once, alone, in a new one. What it says does not matter."""
        child = self._fork()
        try:
            child.ask(method, arguments, helper, secs)
        except Lost as lost:
            return lost.status is not None and by_itself(lost.status)
        except Exception:
            return False
        finally:
            child.kill()
        return False

    def _insist(self, kept: ChildObject | None, ask: Callable[[Child], Any]) -> Any:
        """Ask until there is an answer. Raises what the request raised; Crashed, TookTooLong, MachineFault."""
        child = self._pick(kept)
        crashed, killed, alone = 0, 0, False
        while True:
            try:
                found = ask(child)
                self._settle(child)
                return found
            except TookTooLong:
                child.kill()
                raise
            except Lost as lost:
                if lost.status is not None and by_itself(lost.status):
                    crashed += alone
                    if crashed:
                        raise Crashed(how(lost.status)) from None
                elif alone:
                    killed += 1
                    if killed == KILLED_AT_MOST:
                        raise MachineFault(
                            f"a planning process was killed {killed} times ({how(lost.status)}); "
                            "was the memory used up?"
                        ) from None
                    time.sleep(PAUSE_SECS * 2**killed)
            finally:
                if alone and child not in self.children:
                    self._adopt(child)
            child, alone = self._fork(), True

    def _made(self, kept: ChildObject, child: Child) -> Any:
        with kept.lock:
            return self._make_in(kept, child)

    def _make_in(self, kept: ChildObject, child: Child) -> Any:
        arguments = kept.arguments
        if kept.within is not None:
            with kept.within.lock:
                self._ensure(kept.within, child)
            arguments = (kept.within.number, *arguments)
        found = child.ask(kept.method, (kept.number, *arguments), kept.helper, self.limits.secs)
        child.keeps.add(kept.number)
        kept.child, kept.known = child, b""
        return found

    def _ensure(self, kept: ChildObject, child: Child) -> None:
        if kept.number not in child.keeps:
            self._make_in(kept, child)

    # --- children ---

    def _pick(self, kept: ChildObject | None) -> Child:
        """The child that keeps it, or what it is made of; else the one with least to do."""
        self._forget()
        each = kept
        while each is not None:
            if each.child is not None and each.child.alive:
                return each.child
            each = each.within
        with self._lock:
            self.children = [child for child in self.children if child.alive]
            idle = next((child for child in self.children if not child.keeps and not child.busy), None)
            if idle is None and len(self.children) < self._most:
                idle = self._fork()
                self.children.append(idle)
            return idle or min(self.children, key=lambda child: (child.busy, len(child.keeps)))

    def _forget(self) -> None:
        while self.forgotten:
            number = self.forgotten.popleft()
            for child in tuple(self.children):
                child.forget(number)

    def _fork(self) -> Child:
        """A new child; another zygote is started where this one is gone."""
        for _ in range(KILLED_AT_MOST):
            try:
                return self._running().fork()
            except OSError as problem:
                fault = faults.of_system(problem, "starting a planning process")
                if fault is not None:
                    raise fault from problem
                self._discard()
        raise MachineFault("the process that starts planning processes is killed again and again")

    def _adopt(self, child: Child) -> None:
        """A child that was started for one request goes on as one of the pool, or when nothing is kept in it, ends."""
        with self._lock:
            self.children = [each for each in self.children if each.alive]
            if child.alive and (child.keeps or len(self.children) < self._most):
                self.children.append(child)
                return
        child.kill()

    def _settle(self, child: Child) -> None:
        """Replace a child that has done much, once nothing is left in it."""
        if child.parsed > _PARSED_AT_MOST and not child.keeps and not child.busy:
            with self._lock:
                if child in self.children:
                    self.children.remove(child)
            child.kill()

    def _running(self) -> Zygote:
        with self._lock:
            if self._zygote is None or not self._zygote.alive:
                self._zygote = self._start()
                self.children = []
            return self._zygote

    def _discard(self) -> None:
        with self._lock:
            if self._zygote is not None:
                self._zygote.close()
                self._zygote = None

    def _start(self) -> Zygote:
        """Start a zygote. A plugin whose import kills it is left out; a zygote that is killed, or for which the machine
        has no process just now, is started again."""
        for attempt in range(KILLED_AT_MOST):
            try:
                return Zygote(self._source, self.limits, self._environment, self._without, self._only)
            except OSError as problem:
                fault = faults.of_system(problem, "starting the process that loads the plugins")
                if fault is None or attempt + 1 == KILLED_AT_MOST:
                    raise fault or problem from None
                time.sleep(PAUSE_SECS * 2**attempt)
            except DiedLoading as died:
                if died.plugin and by_itself(died.status):
                    log.error("plugin %s: %s while it was loaded; it is left out", died.plugin, how(died.status))
                    self._without = (*self._without, died.plugin)
                elif attempt + 1 == KILLED_AT_MOST:
                    raise MachineFault(f"no planning process starts: {died}") from None
                elif died.status > 0:
                    raise PluginError(f"the plugins cannot be loaded: {died}") from None
                else:
                    time.sleep(PAUSE_SECS * 2**attempt)
        raise PluginError("too many plugins end the process that loads them")
