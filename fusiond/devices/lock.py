"""One fusiond at a time measures on a device, whoever started it: on a GPU on the whole machine, on the processor for
each user.

The lock is a name (`fusiond.devices.presence`) that any user can take. None can keep it from others for ever: a holder
that gives no sign of life for SILENT_SECS (it is stopped, hangs, or is not a fusiond at all), or another user's that
has not let go within LONGEST_SECS, is passed over with a warning. What it computes meanwhile is seen and judged as that
of any other process (`when_busy`). A process that was waited for leaves the device to those who waited before it takes
it again."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator

from fusiond.devices.presence import Asking, NameHolder, Presence
from fusiond.errors import DeviceError, Interrupted, MachineFault
from fusiond.keys import text_key
from fusiond.model import DeviceInfo
from fusiond.system import faults

log = logging.getLogger(__name__)

POLL_SECS = 0.2
ANSWER_SECS = 2.0
"""A holder that lives says since when within this time."""
SILENT_SECS = 60.0
LONGEST_SECS = 24 * 3600.0
YIELD_SECS = 0.5
_LONGEST_UUID = 64

_waited_for: dict[str, float] = {}
"""Name -> when this process let go of it while others waited."""
_kept_too_long: dict[str, NameHolder] = {}
"""Name -> the holder that did not let go within LONGEST_SECS: nobody here waits for that one again."""


def lock_name(device: DeviceInfo) -> str:
    """The same for every user of this machine, for a GPU. `FUSIOND_LOCKS` names another set of locks."""
    which = device.uuid if 0 < len(device.uuid) <= _LONGEST_UUID else text_key(device.uuid)[:16]
    parts = ["fusiond", which if device.uuid else device.name.replace(":", "-")]
    if device.evidence != "measured":
        parts.insert(1, str(os.geteuid()))
    if os.environ.get("FUSIOND_LOCKS"):
        parts.append(text_key(os.environ["FUSIOND_LOCKS"])[:16])
    return "-".join(parts)


@contextlib.contextmanager
def device_lock(device: DeviceInfo, *, stop: Callable[[], bool], waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold a device. `waiting` is told who has it, once for each holder, as `waiting for pid 4711 of anna since 12:03
    UTC`. Interrupted when `stop` says so meanwhile, MachineFault where the system lacks what a lock takes."""
    name = lock_name(device)
    until = _waited_for.pop(name, 0.0) + YIELD_SECS
    while time.monotonic() < until and not stop():
        time.sleep(POLL_SECS)
    presence = _hold(name)
    if presence is None:
        presence = _Queue(device, name, stop, waiting).wait()
    try:
        yield
    finally:
        if presence is not None and presence.close():
            _waited_for[name] = time.monotonic()


def held_by(device: DeviceInfo) -> NameHolder | None:
    """Who has the lock of a device now."""
    asking = Asking.of(lock_name(device))
    if asking is None:
        return None
    with contextlib.closing(asking):
        return asking.holder if asking.wait(ANSWER_SECS) else None


class _Queue:
    """One that waits for a device."""

    def __init__(self, device: DeviceInfo, name: str, stop: Callable[[], bool], waiting: Callable[[str], None]) -> None:
        self._device = device
        self._name = name
        self._stop = stop
        self._waiting = waiting
        self._told = ""
        self._holder: NameHolder | None = None
        self._begun_at = self._heard_at = time.monotonic()

    def wait(self) -> Presence | None:
        """The lock, or None when its holder is passed over."""
        while True:
            asking = Asking.of(self._name)
            if asking is not None:  # else it has let go, or too many wait for one that does not answer
                with contextlib.closing(asking):
                    self._listen(asking)
            presence = _hold(self._name)
            if presence is not None:
                return presence
            if self._passed_over():
                return None
            if self._stop():
                raise self._stopped()
            time.sleep(POLL_SECS / 10)

    def _listen(self, asking: Asking) -> None:
        """Until the holder lets go, or is passed over."""
        self._holder = asking.holder
        while asking.wait(POLL_SECS):
            self._holder = asking.holder
            if asking.greeted:
                self._heard_at = max(self._heard_at, asking.heard_at)
            stopped = self._stop()
            if asking.greeted or stopped or time.monotonic() - self._heard_at >= ANSWER_SECS:
                self._tell(asking.holder)
            if stopped:
                raise self._stopped()
            if self._too_long() is not None:
                return

    def _passed_over(self) -> bool:
        why = self._too_long()
        if why is not None:
            who = self._holder or "another process"
            log.warning("%s: going on without its lock: %s has it, and %s", self._device.name, who, why)
        return why is not None

    def _too_long(self) -> str | None:
        """Why the holder need not be waited for any more."""
        now = time.monotonic()
        if now - self._heard_at >= SILENT_SECS:
            return f"gave no sign of life for {SILENT_SECS:g} s"
        others = self._holder is not None and self._holder.uid != os.geteuid()
        if others and self._holder == _kept_too_long.get(self._name):
            return f"did not let go within {LONGEST_SECS / 3600:g} h before"
        if others and self._holder is not None and now - self._begun_at >= LONGEST_SECS:
            _kept_too_long[self._name] = self._holder
            return f"did not let go within {LONGEST_SECS / 3600:g} h"
        return None

    def _tell(self, holder: NameHolder) -> None:
        text = f"waiting for {holder}"
        if text != self._told:
            self._told = text
            self._waiting(text)

    def _stopped(self) -> Interrupted:
        return Interrupted(f"stopped while waiting for {self._device.name}")


def _hold(name: str) -> Presence | None:
    try:
        return Presence.hold(name)
    except OSError as problem:
        doing = f"taking the lock {name}"
        raise faults.of_system(problem, doing) or DeviceError(f"{doing}: {faults.lacks(problem)}") from None
    except (RuntimeError, MemoryError) as problem:
        fault = faults.of(problem)
        if fault is None:
            raise
        raise MachineFault(f"taking the lock {name}: {fault}") from None
