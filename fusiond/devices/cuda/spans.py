"""Times the counted span of a Program on the device's own clock: two events, behind a gate.

    gate | begin, body, body, ..., end                          runs back to back, where nothing is to be restored
    gate | restore, begin, body, end, restore, begin, body, end     each run by itself, from the state it begins with

What a pair of events costs by itself is taken off (`event_us`); a body's events round what is not counted have such a
cost, too. When the gate gave up waiting, the host's time is in the span: it is thrown away and taken again, with twice
the patience.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from fusiond.devices.base import ExecutionError
from fusiond.devices.cuda.failures import named
from fusiond.devices.cuda.gate import Gate
from fusiond.model.outcomes import Outcome, median

COMMANDS_BEHIND_A_GATE = 256
"""A quarter of what a launch queue holds; a fuller one would block the host that is to open the gate."""
MOST_COMMANDS = 900
"""Longer plans cannot be enqueued as a whole while a gate is closed: they are timed on the wall clock."""
_ATTEMPTS = 5
_EMPTY_SPANS = 21
WAKING_US = 100_000
"""For so long the device is kept busy before anything is timed: one that rested takes its time until its clock even
begins to rise, and equal readings of the clock of rest would pass for a steady one."""

EventPair: TypeAlias = tuple[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a span is made of; each enqueues on the streams of its Program."""

    commands: int  #: That `body` enqueues
    before: Callable[[], None]  #: What stands in front of the counted part; None of it is behind the gate
    body: Callable[[list[EventPair]], None]
    """The counted part, with fork and join; takes events round what is not counted of it."""
    after: Callable[[], None]
    restore: Callable[[], None]  #: Brings a run's buffers back, and has done so when it returns
    restore_on: Callable[[Any], None] | None
    """The same on a stream. None where the host has to do it, or something stands before or after the body."""
    restored: int  #: Commands that `restore_on` enqueues; with none, runs can be back to back
    wait: Callable[[], None]


class Spans:
    """Of one executor."""

    def __init__(self, cuda: Any, gate: Gate, flush: Callable[[Any], None]) -> None:
        """`flush` enqueues on a stream what leaves nothing of a Program in the cache."""
        self._cuda, self._gate, self.flush = cuda, gate, flush
        self._stream = cuda.Stream()
        self._gate.hold(self._stream, WAKING_US)
        self._stream.synchronize()
        self.event_us = 0.0  #: What two events on an idle stream are apart with nothing between them
        self.measure_events()

    def measure_events(self) -> None:
        """Find `event_us` for the clock of now: at that of a device that rests, events take their time, too."""
        self.event_us = median(tuple(self.empty_us() for _ in range(_EMPTY_SPANS)))

    def empty_us(self) -> float:
        """Microseconds from an event to the next one."""
        return self._once(self._stream, lambda: None, 0, 1)

    def between_us(self, stream: Any, enqueue: Callable[[], None], commands: int) -> float:
        """Microseconds that what is enqueued takes, without the events' own; run it once before. ExecutionError when
        the gate always gives up."""
        for attempt in range(_ATTEMPTS):
            span = self._once(stream, enqueue, commands, 1 << attempt)
            if not self._gate.gave_up:
                return span - self.event_us
        raise _too_busy(commands)

    def _once(self, stream: Any, enqueue: Callable[[], None], commands: int, patience: int) -> float:
        begin, end = self._cuda.Event(), self._cuda.Event()
        self._gate.close(stream, commands=commands + 2, patience=patience)
        try:
            begin.record(stream)
            enqueue()
            end.record(stream)
        finally:
            self._gate.open()
        return self._between(begin, end)

    def sample_us(self, parts: Parts, lead: Any, runs: int, *, cold: bool) -> tuple[float, int]:
        """Microseconds of one run, in the mean of `runs`; and how often the gate gave up. The buffers are those of a
        beginning. ExecutionError `too_noisy` when the gate always gives up."""
        alone = cold or parts.restored > 0
        if runs == 1 or parts.restore_on is None:
            per_gate = 1
        else:
            per_gate = max(1, COMMANDS_BEHIND_A_GATE // (parts.commands + (parts.restored + 3 if alone else 0)))
        total, left, failures = 0.0, runs, 0
        while left > 0:
            if left < runs:
                parts.restore()
            several = min(per_gate, left)
            span, failed = self._without_failures(parts, lead, several, cold=cold)
            total += span
            failures += failed
            left -= several
        return total / runs, failures

    def _without_failures(self, parts: Parts, lead: Any, runs: int, *, cold: bool) -> tuple[float, int]:
        for attempt in range(_ATTEMPTS):
            if attempt:
                parts.restore()
            span = self._gated_us(parts, lead, runs, cold=cold, patience=1 << attempt)
            if not self._gate.gave_up:
                return span, attempt
        raise _too_busy(runs * parts.commands)

    def _gated_us(self, parts: Parts, lead: Any, runs: int, *, cold: bool, patience: int) -> float:
        """The time of `runs` runs together."""
        with named("timing"):
            parts.before()
            parts.wait()
            spans: list[EventPair] = []
            uncounted: list[EventPair] = []
            alone = cold or parts.restored > 0
            commands = runs * (parts.commands + parts.restored + 3)
            self._gate.close(lead, commands=commands, patience=patience)
            try:
                for run in range(runs):
                    if run and parts.restore_on is not None:
                        parts.restore_on(lead)
                    if cold:
                        self.flush(lead)
                    if run == 0 or alone:
                        spans.append((self._cuda.Event(), self._cuda.Event()))
                        spans[-1][0].record(lead)
                    parts.body(uncounted)
                    if run == runs - 1 or alone:
                        spans[-1][1].record(lead)
            finally:
                self._gate.open()
            total = sum(self._between(begin, end) for begin, end in spans)
            total -= sum(self._between(begin, end) for begin, end in uncounted)
            parts.after()
            parts.wait()
        return total - self.event_us * (len(spans) + len(uncounted))

    @staticmethod
    def _between(begin: Any, end: Any) -> float:
        end.synchronize()
        return float(end.time_since(begin)) * 1000


def _too_busy(commands: int) -> ExecutionError:
    return ExecutionError(
        Outcome.TOO_NOISY, f"the gate gave up {_ATTEMPTS} times: this host is too busy to enqueue {commands} commands"
    )
