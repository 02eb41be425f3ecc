"""Owns the child process of one device: starts it, speaks to it, kills it when it hangs, replaces it when it dies."""

import contextlib
import logging
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Protocol

from fusiond.devices import protocol
from fusiond.devices.base import DeviceProvider
from fusiond.devices.lock import device_lock
from fusiond.model.errors import DeviceError, MachineFault
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import MeasureFailed, Outcome
from fusiond.model.system import children, faults
from fusiond.model.system.memory import out_of_memory_kills
from fusiond.model.system.tail import Tail, last_line

log = logging.getLogger(__name__)

START_SECS = 60.0
"""How long a child may take until it is ready; and after so long no other one is started in its place."""
STARTS = 8  #: Children that are started in a row before the machine is given a rest
MOST_PAUSE_SECS = 5.0
STRIKES = 2  #: Children that a request may lose where the system has killed for want of memory meanwhile
STRIKES_WITHOUT_EVIDENCE = 4
"""The same where it has not: somebody else may have killed them, and hits the same request twice now and then."""
_LOOK_SECS = 1.0
_STOPPED_SECS = 1.0
"""A look at the pipe that takes so much longer than it should: this process was stopped meanwhile (Ctrl-Z, a paused
container, a suspended machine), and that is not a time that the child had."""


class Runner(Protocol):
    """What the tuner needs of a device; the supervisor is the one for real devices."""

    device: DeviceInfo

    def call(self, request: protocol.Request, timeout_secs: float) -> protocol.Reply: ...

    def fresh(self) -> None:
        """Make sure that the next call is the first of a new process."""

    def close(self) -> None: ...


class Supervisor:
    """`call` never raises for what a Program does. It raises DeviceError when a child says why it cannot work, and
    MachineFault when none comes up, or none is left alone, for reasons that are not a Program's."""

    def __init__(self, provider: DeviceProvider, device: DeviceInfo) -> None:
        self.device = device
        self.replaced = 0  #: How many children were replaced because of a fault while they ran something
        kind = type(provider)
        self._command = [
            sys.executable, "-m", "fusiond.devices.worker", f"{kind.__module__}:{kind.__qualname__}", device.name,
        ]  # fmt: skip
        self._child: subprocess.Popen[bytes] | None = None
        self._said = Tail()
        self._buffer = b""

    def call(self, request: protocol.Request, timeout_secs: float) -> protocol.Reply:
        """Ask the child and wait. A lost child (killed from outside) is replaced and asked again, alone: only what
        loses one child after another is condemned, soon where the system ran out of memory meanwhile."""
        killed_before = out_of_memory_kills()
        lost = 0
        while True:
            reply = self._ask(request, timeout_secs)
            if not (isinstance(reply, MeasureFailed) and reply.outcome is Outcome.WORKER_DIED):
                return reply
            lost += 1
            used_up = killed_before is None or out_of_memory_kills() != killed_before
            if lost >= (STRIKES if used_up else STRIKES_WITHOUT_EVIDENCE):
                return reply
            log.warning("%s: %s; trying once more on a fresh one", self.device.name, reply.reason)

    def ready(self) -> None:
        """Start the child before there is anything to ask. Not beside `call`."""
        self._running()

    def fresh(self) -> None:
        self._stop()

    close = fresh

    def _ask(self, request: protocol.Request, timeout_secs: float) -> protocol.Reply:
        child = self._running()
        assert child.stdin is not None
        try:
            child.stdin.write(protocol.encode_request(request).encode() + b"\n")
            child.stdin.flush()
        except OSError:
            return self._dead(child)
        line = self._line(child, timeout_secs)
        if line is None:
            self._replace()
            return MeasureFailed(outcome=Outcome.TIMED_OUT, reason=f"no answer within {timeout_secs:.1f} s")
        if not line:
            return self._dead(child)
        try:
            reply = protocol.decode_reply(line)
        except (ValueError, KeyError, TypeError, AttributeError):  # a Program that wrote where the child answers
            self._replace()
            return MeasureFailed(outcome=Outcome.CRASHED, reason="the worker's answer makes no sense")
        if isinstance(reply, MeasureFailed) and reply.outcome in (Outcome.CRASHED, Outcome.LAUNCH_REFUSED):
            self._replace()  # a device's context is not to be trusted after any error
        return reply

    def _running(self) -> subprocess.Popen[bytes]:
        """The child, ready for a request. One that dies or hangs before it is ready is replaced by another: no Program
        is involved yet."""
        if self._child is not None and self._child.poll() is None:
            return self._child
        begun = time.monotonic()
        for attempt in range(STARTS):
            self._stop()
            try:
                return self._started()
            except MachineFault as fault:
                last = fault
            if attempt + 1 == STARTS or time.monotonic() - begun > START_SECS:
                break
            log.warning("%s: %s; starting another one", self.device.name, last)
            time.sleep(min(0.1 * 2**attempt, MOST_PAUSE_SECS))
        self._stop()
        raise MachineFault(f"{self.device.name}: no worker came up in {attempt + 1} attempts, the last one: {last}")

    def _started(self) -> subprocess.Popen[bytes]:
        # Spawned, never forked: a forked CUDA context is broken, and the parent has threads.
        # In a group of its own: Ctrl-C is the parent's to handle, at any moment of the child's life.
        try:
            child = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
            )
            self._child = child
            self._buffer = b""
            children.GUARD.add(child.pid)
            self._said = Tail(child.stderr)
            line = self._line(child, START_SECS)
        except (OSError, RuntimeError, MemoryError) as problem:
            fault = faults.of(problem)
            if fault is None:
                raise
            raise MachineFault(f"the worker cannot be started: {fault}") from None
        if line == protocol.READY:
            return child
        if line is None:
            raise MachineFault(f"the worker is not ready after {START_SECS:.0f} s")
        try:
            status = child.wait(5)
        except subprocess.TimeoutExpired:
            status = -signal.SIGKILL
        said = line or self._last_error()
        if status < 0:  # also by its own doing: nothing ran in it yet that could be to blame
            raise MachineFault(f"the worker died of {faults.signal_name(-status)} while it started")
        if status == faults.TEMPORARY or not said or faults.first_said([said]):
            raise MachineFault(f"the worker does not start: {said or f'it ended with status {status}'}")
        raise DeviceError(f"{self.device.name}: the worker does not start: {said}")

    def _line(self, child: subprocess.Popen[bytes], timeout_secs: float) -> str | None:
        """One line of the child's; None after the time is up, empty at end of file. Time for which this process was
        stopped does not count."""
        assert child.stdout is not None
        looked_at = time.monotonic()
        deadline = looked_at + timeout_secs
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                ready = selector.select(max(0.0, min(_LOOK_SECS, deadline - looked_at)))
                passed_secs = time.monotonic() - looked_at
                looked_at += passed_secs
                if passed_secs > _LOOK_SECS + _STOPPED_SECS:
                    deadline += passed_secs
                if not ready:
                    if looked_at >= deadline:
                        return None
                    continue
                chunk = child.stdout.read1(1 << 16)  # type: ignore[attr-defined]
                if not chunk:
                    return ""
                self._buffer += chunk
                if looked_at >= deadline and b"\n" not in chunk:  # it writes without end
                    return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode(errors="replace")

    def _dead(self, child: subprocess.Popen[bytes]) -> MeasureFailed:
        """What became of a child that closed its pipe."""
        try:
            status = child.wait(5)
        except subprocess.TimeoutExpired:
            status = 0
        last = self._last_error()
        self._replace()
        if status < 0 and -status in faults.FAULTS:
            name = faults.signal_name(-status)
            return MeasureFailed(outcome=Outcome.CRASHED, reason=f"the worker died of {name}{last and ': ' + last}")
        if status > 0:
            return MeasureFailed(outcome=Outcome.CRASHED, reason=f"the worker ended with status {status}: {last}")
        how = faults.signal_name(-status) if status < 0 else "no reason given"
        return MeasureFailed(outcome=Outcome.WORKER_DIED, reason=f"the worker was lost ({how})")

    def _last_error(self) -> str:
        """The last line that the child, or a kernel in it, wrote to standard error."""
        # What Python itself prints as it dies of a signal says nothing about the program.
        text = re.split(r"^(?:Fatal Python error|Current thread|Extension modules):?", self._said.text(), flags=re.M)[0]
        return last_line(text)

    def _replace(self) -> None:
        self.replaced += 1
        self._stop()

    def _stop(self) -> None:
        """End the child. One that does not go (stuck in the driver) is not waited for without limit."""
        child, self._child = self._child, None
        if child is None:
            return
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        children.kill(child)
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            log.error("%s: worker %d cannot be killed; left behind", self.device.name, child.pid)
        else:
            children.GUARD.remove(child.pid)


class Visiting:
    """A `Runner` whose child processes are visits (`fusiond.devices.lock`): one begins with the first request, and ends
    with `fresh`. What is built or counted in between keeps nobody from the device. `waiting` is told who has it, and
    in the end `no more`."""

    def __init__(self, runner: Runner, waiting: Callable[[str], None]) -> None:
        self.device = runner.device
        self._runner = runner
        self._waiting = waiting
        self._visit: contextlib.ExitStack | None = None

    def call(self, request: protocol.Request, timeout_secs: float) -> protocol.Reply:
        if self._visit is None:
            told: list[str] = []

            def tell(who: str) -> None:
                told.append(who)
                self._waiting(who)

            with contextlib.ExitStack() as visit:
                visit.enter_context(device_lock(self.device, stop=lambda: False, waiting=tell, visit=True))
                self._visit = visit.pop_all()
            if told:
                self._waiting("no more")
        return self._runner.call(request, timeout_secs)

    def fresh(self) -> None:
        self._runner.fresh()
        visit, self._visit = self._visit, None
        if visit is not None:
            visit.close()

    close = fresh
