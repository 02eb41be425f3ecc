"""The child: answers requests, each in a thread with a deep stack, and keeps the results.

`Desk` has a method for each request. What is made (a workload, an analysis) stays here under the number that the other
side gave it; what goes back has no `payload`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fusiond.model.errors import FusiondError, PluginError
from fusiond.model.events import Event
from fusiond.model.inputs import documents
from fusiond.model.inputs.documents import Node
from fusiond.model.nouns import Analysis, CompileFacts, Config, Job, NamedPtx, Rejection, Workload
from fusiond.model.outcomes import BuildFailed, Record
from fusiond.model.program import Program, Source
from fusiond.model.ptx.triton import TritonKernel, TritonSource
from fusiond.model.system import faults
from fusiond.requests import jobs
from fusiond.requests.isolation import messages
from fusiond.requests.isolation.messages import Here
from fusiond.requests.other_strategies import with_others
from fusiond.requests.registry import Registry
from fusiond.strategy import Answers, Baseline, Probe, Strategy, Target, description_of
from fusiond.strategy.space import Space

Call = Callable[..., Any]  #: (name, *arguments) -> what the other side says to that


def serve(connection: Connection, registry: Registry, *, stack_bytes: int) -> None:
    """Answer requests until nobody is there to ask."""
    threading.stack_size(stack_bytes)
    link = _Link(connection)
    logging.getLogger().handlers[:] = [_ToOtherSide(link)]
    logging.getLogger().setLevel(logging.INFO)
    desk = Desk(registry)
    try:
        while True:
            kind, *rest = link.receive()
            if kind == "ask":
                threading.Thread(target=_work, args=(link, desk, *rest), daemon=True).start()
            elif kind == "answer":
                link.answered(*rest)
            elif kind == "drop":
                desk.drop(rest[0])
    except (EOFError, OSError):
        return


def _work(link: _Link, desk: Desk, request: int, method: str, arguments: tuple[Any, ...]) -> None:
    def call(name: str, *given: object) -> Any:
        return link.call(request, name, given)

    try:
        link.send(("done", request, getattr(desk, method)(call, *arguments)))
    except (EOFError, BrokenPipeError, ConnectionError):
        os._exit(0)
    except BaseException as problem:
        link.send(("raised", request, _portable(_named(problem, method))))


def _named(problem: BaseException, method: str) -> BaseException:
    """A mistake in a plugin's code as a PluginError that says where; everything else as it is."""
    if isinstance(problem, FusiondError) or not isinstance(problem, Exception) or faults.of(problem) is not None:
        return problem
    import traceback  # of the rare case

    *_, last = traceback.extract_tb(problem.__traceback__)
    where = f"{Path(last.filename).name}:{last.lineno}"
    found = PluginError(f"the plugin failed in {method} ({where}): {type(problem).__name__}: {problem}")
    found.__notes__ = ["".join(traceback.format_exception(problem))]
    return found


def _portable(problem: BaseException) -> BaseException:
    """An exception that can be sent, its traceback as a note."""
    import traceback  # of the rare case

    if not isinstance(problem, FusiondError):
        problem.add_note("".join(traceback.format_exception(problem)))
    try:
        messages.portable(problem)
    except Exception:
        plain = RuntimeError(f"{type(problem).__name__}: {problem}")
        plain.__notes__ = getattr(problem, "__notes__", [])
        return plain
    return problem


class _Link:
    """The connection, for many threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._waiting: dict[int, queue.SimpleQueue[tuple[bool, Any]]] = {}

    def send(self, message: tuple[object, ...]) -> None:
        with self._sending:
            messages.send(self._connection, message)

    def receive(self) -> tuple[Any, ...]:
        return messages.receive(self._connection)

    def call(self, request: int, name: str, arguments: tuple[object, ...]) -> Any:
        """Have the other side do something, and wait for it. A request has one call under way at a time."""
        answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._waiting[request] = answers
        self.send(("call", request, name, arguments))
        fine, value = answers.get()
        del self._waiting[request]
        if not fine:
            raise value
        return value

    def answered(self, request: int, fine: bool, value: Any) -> None:
        self._waiting[request].put((fine, value))


class _ToOtherSide(logging.Handler):
    """What is logged here is logged there."""

    def __init__(self, link: _Link) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        self._link.send(("log", record.levelno, record.name, record.getMessage()))


class _Inputs:
    """`fusiond.strategy.Inputs`: files are read on the other side, and taken apart on this one."""

    def __init__(self, call: Call, registry: Registry) -> None:
        self._call, self._registry = call, registry

    def taking(self, kind: str) -> tuple[Strategy, str] | None:
        return self._registry.taking(kind)

    def resolve(self, kind: str, name: str, *, where: str) -> str:
        found: str = self._call("resolve", kind, name, where)
        return found

    def beside(self, path: str, relative: str, *, where: str) -> str:
        found: str = self._call("beside", path, relative, where)
        return found

    def text(self, path: str, *, where: str) -> str:
        found: str = self._call("text", path, where)
        return found

    def document(self, path: str, *, where: str) -> Node:
        return documents.parse(self.text(path, where=where), path)

    def digest(self, path: str, *, where: str) -> str:
        found: str = self._call("digest", path, where)
        return found

    def compiled(self, source: Source) -> NamedPtx | BuildFailed | None:
        found: NamedPtx | BuildFailed | None = self._call("compiled", source)
        return found

    def triton(self, source: TritonSource) -> tuple[TritonKernel | str, ...] | BuildFailed:
        found: tuple[TritonKernel | str, ...] | BuildFailed = self._call("triton", source)
        return found


class _Facts:
    """`fusiond.strategy.Facts`: the compiler runs on the other side, for whichever request is under way in this
    thread."""

    def __init__(self, here: threading.local) -> None:
        self._here = here

    def __call__(self, source: Source) -> Mapping[str, CompileFacts] | BuildFailed | None:
        found: Mapping[str, CompileFacts] | BuildFailed | None = self._here.call("facts", source)
        return found


class Desk:
    """The requests. The first argument of each is the way to call the other side."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._here = threading.local()
        self._kept: dict[int, tuple[Strategy, Any]] = {}
        self._baselines: dict[int, tuple[Baseline, ...]] = {}
        self._known: dict[int, Answers] = {}

    def drop(self, numbers: list[int]) -> None:
        for number in numbers:
            self._kept.pop(number, None)
            self._baselines.pop(number, None)
            self._known.pop(number, None)

    def _strategy(self, name: str) -> Strategy:
        if name not in self._registry.strategies:
            self._registry.complete()
        return self._registry.strategies[name]

    # --- without a workload ---

    def read(self, call: Call, path: str, text: str, options: Mapping[str, Any]) -> tuple[Job, ...]:
        return jobs.read(path, text, **options)

    def inspect(self, call: Call, strategy: str, program: Program, ptx: Mapping[str, str]) -> Rejection | None:
        return self._strategy(strategy).inspect(program, ptx)

    def draft(self, call: Call, strategy: str, path: str, name: str, include: tuple[str, ...]) -> str:
        return self._strategy(strategy).draft(path, name, _Inputs(call, self._registry), include)

    def notify(self, call: Call, event: Event) -> None:
        self._registry.complete()
        self._registry.notify(event)

    # --- what is kept ---

    def parse(self, call: Call, number: int, strategy: str, job: Job) -> Workload:
        found = self._strategy(strategy)
        workload = found.parse(job, _Inputs(call, self._registry))
        self._kept[number] = found, workload
        return _without_payload(workload)

    def analyse(self, call: Call, number: int, workload: int, target: Here) -> Analysis:
        self._here.call = call
        strategy, parsed = self._kept[workload]
        facts = _Facts(self._here)
        own = Target(arch=target.arch, limits=target.limits, facts=facts)
        whole = with_others(self._registry, own)
        analysis = strategy.analyse(parsed, whole)
        self._kept[number] = strategy, analysis
        return dataclasses.replace(analysis, workload=_without_payload(parsed), payload=None)

    # --- of a workload ---

    def odd_sizes(self, call: Call, number: int) -> Mapping[str, int] | None:
        strategy, workload = self._kept[number]
        return strategy.odd_sizes(workload)

    # --- of an analysis ---

    def know(self, call: Call, number: int, answers: Answers) -> None:
        """What `known` is from here on, for requests about this analysis."""
        self._known[number] = answers

    def describe(self, call: Call, number: int) -> str:
        strategy, analysis = self._of(call, number)
        return description_of(strategy, analysis, self._known[number])

    def parts(self, call: Call, number: int) -> tuple[Job, ...]:
        strategy, analysis = self._of(call, number)
        return tuple(strategy.parts(analysis))

    def probes(self, call: Call, number: int) -> tuple[Probe, ...]:
        strategy, analysis = self._of(call, number)
        return tuple(strategy.probes(analysis))

    def probe_limit(self, call: Call, number: int) -> int | None:
        strategy, analysis = self._of(call, number)
        return strategy.probe_limit(analysis)

    def space(self, call: Call, number: int) -> Space:
        strategy, analysis = self._of(call, number)
        return strategy.space(analysis, self._known[number])

    def seeds(self, call: Call, number: int, space: Space) -> tuple[tuple[str, Config], ...]:
        strategy, analysis = self._of(call, number)
        return tuple(strategy.seeds(analysis, space, self._known[number]))

    def baselines(self, call: Call, number: int) -> tuple[dict[str, Any], ...]:
        """Without their emitters: `emit_baseline` is one for all."""
        found = self._baselines_of(call, number)
        return tuple({"name": b.name, "detail": b.detail, "space": b.space, "like": b.like} for b in found)

    def emit_baseline(self, call: Call, number: int, index: int, config: Config) -> Program:
        return self._baselines_of(call, number)[index].emit(config)

    def emit(self, call: Call, number: int, config: Config) -> Program | Rejection:
        strategy, analysis = self._of(call, number)
        return strategy.emit(analysis, config, self._known[number])

    def resolved(self, call: Call, number: int, config: Config) -> Config:
        strategy, analysis = self._of(call, number)
        return strategy.resolved(analysis, config, self._known[number])

    def figures(self, call: Call, number: int, record: Record | None) -> dict[str, float]:
        strategy, analysis = self._of(call, number)
        return dict(strategy.figures(analysis, record, self._known[number]))

    def unfused(self, call: Call, number: int, config: Config) -> Program | None:
        strategy, analysis = self._of(call, number)
        return strategy.unfused(analysis, config)

    def _of(self, call: Call, number: int) -> tuple[Strategy, Analysis]:
        self._here.call = call
        return self._kept[number]

    def _baselines_of(self, call: Call, number: int) -> tuple[Baseline, ...]:
        strategy, analysis = self._of(call, number)
        if number not in self._baselines:
            self._baselines[number] = tuple(strategy.baselines(analysis))
        return self._baselines[number]


def _without_payload(workload: Workload) -> Workload:
    return dataclasses.replace(workload, payload=None)
