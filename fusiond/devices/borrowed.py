"""Devices that others hold for hours, used for some seconds at a time."""

import contextlib
from collections.abc import Callable

from fusiond.devices import protocol
from fusiond.devices.lock import device_lock
from fusiond.devices.supervisor import Runner


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
        self._leave()

    def close(self) -> None:
        self._runner.close()
        self._leave()

    def _leave(self) -> None:
        visit, self._visit = self._visit, None
        if visit is not None:
            visit.close()
