"""The time of a Program on streams and engines, from the time of each step.

A device has an engine for copies to it, one for copies from it, and one for kernels; each does one step at a time. A
step is issued by the calling thread, in the order of the plan. It begins when the step before it in its stream and
those that it waits for have ended, and its engine is free; among those that could begin at a moment an engine takes the
one that was ready first (or last: `late`). What the calling thread does itself, and what makes it wait (copies of
pageable memory, allocations), holds up the issue of all that is listed behind it, but in a graph.
"""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fusiond.model.program.buffers import Memory
from fusiond.model.program.program import Program, blocking_steps, host_steps
from fusiond.model.program.steps import Launch, Prefetch, Step

UP, DOWN, KERNELS, HOST = "up", "down", "kernels", "host"
"""The engines: copies to the device, copies from it, kernels (and what else the device does by itself), the calling
thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    span_us: float  #: From the first begin to the last end
    busy_us: Mapping[str, float]  #: Engine -> what its steps take together
    steps: Mapping[str, tuple[float, float]]  #: Counted step -> its begin and end, in microseconds


def on_link(engine: str) -> bool:
    """Whether what an engine does crosses a link."""
    return engine in (UP, DOWN)


def engines(program: Program) -> Callable[[Step], str]:
    """Which engine does a step."""
    buffers = {each.name: each for each in program.buffers}
    on_host = host_steps(program)

    def engine(step: Step) -> str:
        if step.name in on_host:
            return HOST
        if isinstance(step, Prefetch):
            return UP if step.to_device else DOWN
        if isinstance(step, Launch) or not step.messages:
            return KERNELS
        source, target = (buffers[name] for name in step.messages[0])
        if source.memory is target.memory is Memory.DEVICE:
            return KERNELS
        return UP if target.memory is Memory.DEVICE else DOWN

    return engine


def timeline(program: Program, step_us: Mapping[str, float], *, late: bool = False) -> Timeline:
    """The counted steps of a plan in time. `step_us` has the microseconds of each of them."""
    return _Simulation(program, step_us, late=late).done()


class _Simulation:
    def __init__(self, program: Program, step_us: Mapping[str, float], *, late: bool) -> None:
        self._steps = [step for step in program.steps if step.counted]
        self._us, self._late = step_us, late
        engine = engines(program)
        self._engine = {step.name: engine(step) for step in self._steps}
        waits = frozenset() if program.issue == "graph" else blocking_steps(program)
        self._blocking = waits | {name for name, each in self._engine.items() if each == HOST}
        self._missing: dict[str, int] = {}
        self._behind: dict[str, list[str]] = {}
        last: dict[int, str] = {}
        for step in self._steps:
            before = {name for name in (*step.after, last.get(step.stream)) if name in self._missing}
            self._missing[step.name] = len(before)
            for name in before:
                self._behind.setdefault(str(name), []).append(step.name)
            last[step.stream] = step.name
        self._number = {step.name: number for number, step in enumerate(self._steps)}
        self._ready_us: dict[str, float] = {}  #: When all that a step waits for has ended, as far as that is known
        self._issued: set[str] = set()
        engines_there = dict.fromkeys((UP, DOWN, KERNELS, HOST, *self._engine.values()))
        self._free_us = dict.fromkeys(engines_there, 0.0)
        self._queues: dict[str, list[tuple[float, int, str]]] = {name: [] for name in engines_there}
        self._found: dict[str, tuple[float, float]] = {}

    def done(self) -> Timeline:
        now = 0.0
        for step in self._steps:
            self._issued.add(step.name)
            self._ready_us[step.name] = max(now, self._ready_us.get(step.name, 0.0))
            if not self._missing[step.name]:
                self._queue(step.name)
            if step.name in self._blocking:
                while step.name not in self._found:
                    self._begin_next()
                now = max(now, self._found[step.name][1])
        while len(self._found) < len(self._steps):
            self._begin_next()
        begins, ends = zip(*self._found.values(), strict=True) if self._found else ((0.0,), (0.0,))
        busy = dict.fromkeys(self._free_us, 0.0)
        for name, engine in self._engine.items():
            busy[engine] += self._us[name]
        return Timeline(span_us=max(ends) - min(begins), busy_us=busy, steps=self._found)

    def _queue(self, name: str) -> None:
        number = self._number[name]
        heapq.heappush(
            self._queues[self._engine[name]], (self._ready_us[name], -number if self._late else number, name)
        )

    def _begin_next(self) -> None:
        """Begin the step that can begin first, of all that were issued."""
        _, engine = min(
            (max(self._free_us[engine], queue[0][0]), engine) for engine, queue in self._queues.items() if queue
        )
        ready_us, _, name = heapq.heappop(self._queues[engine])
        begin = max(self._free_us[engine], ready_us)
        end = begin + self._us[name]
        self._free_us[engine] = end
        self._found[name] = begin, end
        for other in self._behind.get(name, ()):
            self._missing[other] -= 1
            self._ready_us[other] = max(end, self._ready_us.get(other, 0.0))
            if not self._missing[other] and other in self._issued:
                self._queue(other)
