"""A function of a framework's arrays as a Loaded: enqueued on a stream of ours behind the gate, between two events, as
our own Programs are; or, where it cannot be told a stream, on the wall clock until its results are there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.rivals.base import Array
from benchmarks.rivals.frameworks import Framework
from fusiond.devices.cuda.failures import named
from fusiond.devices.cuda.spans import EventPair, Parts, Spans
from fusiond.model.program import Program, Role

COMMANDS = 200
"""What a call is taken to enqueue: nobody says. The gate's patience grows with it, and one call stands behind a gate.
Calls of more than a launch queue holds let the gate give up; they are left to the wall clock (`child`)."""

Function = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""From the arrays of the inputs to those of the outputs, by the names of buffers; flat ones. It changes nothing."""


class Called:
    """`fusiond.devices.base.Loaded` for a function. `program` is whose buffers it takes and makes."""

    def __init__(self, cuda: Any, spans: Spans, program: Program, framework: Framework, function: Function) -> None:
        self.program = program
        self.clock = framework.clock
        self.gate_failures = 0
        self._framework, self._function, self._spans = framework, function, spans
        self._stream = cuda.Stream()
        self._given: dict[str, Any] = {}
        self._made: Mapping[str, Any] = {}

    def write(self, buffer: str, data: Array) -> None:
        if self.program.buffer(buffer).role in (Role.INPUT, Role.INOUT):  # what else there is it makes itself
            self._given[buffer] = self._framework.given(data)

    def read(self, buffer: str) -> Array:
        return self._framework.taken(self._made[buffer]).reshape(-1)

    def snapshot(self, *, outputs: bool = False) -> None:
        pass

    def restore(self) -> None:
        """Nothing to do: the function changes no input."""

    def run(self, *, seed: int, checked: bool) -> None:
        self._call()
        self._framework.wait(self._made.values())
        with named("running"):
            self._stream.synchronize()

    def sample_us(self, repeats: int, *, cold: bool = False) -> float:
        if self.clock != "wall":
            span, failed = self._spans.sample_us(self._parts(), self._stream, repeats, cold=cold)
            self.gate_failures += failed
            return span
        total = 0
        for _ in range(repeats if cold else 1):
            if cold:
                with named("flushing the cache"):
                    self._spans.flush(self._stream)
                    self._stream.synchronize()
            begun = time.perf_counter_ns()
            for _ in range(1 if cold else repeats):  # in a row, so that the device does not wait for the next call
                self._call()
            self._framework.wait(self._made.values())
            total += time.perf_counter_ns() - begun
        return total / repeats / 1000

    def broken_guards(self) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        self._given.clear()
        self._made = {}

    def _call(self) -> None:
        with self._framework.on(int(self._stream.handle)):
            self._made = self._function(self._given)

    def _parts(self) -> Parts:
        def body(uncounted: list[EventPair]) -> None:
            self._call()

        def nothing() -> None:
            pass

        return Parts(
            commands=COMMANDS,
            before=nothing,
            body=body,
            after=nothing,
            restore=nothing,
            restore_on=lambda stream: None,
            restored=0,
            wait=self._stream.synchronize,
        )
