"""Only one fusiond measures on a device at a time: on a GPU across the machine, on the processor per user.

The lock is a name (`fusiond.devices.machine_lock`) that any user can take. docs/operating.md says who is let in between
two measurements (a visit), and who is passed over. A process that was waited for leaves the device to those who waited
before it takes it again.
"""

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fusiond.devices.machine_lock import Asking, NameHolder, Presence
from fusiond.model.errors import DeviceError, Interrupted, MachineFault
from fusiond.model.keys import text_key
from fusiond.model.nouns import DeviceInfo
from fusiond.model.system import faults

log = logging.getLogger(__name__)

POLL_SECS = 0.2
ANSWER_SECS = 2.0  #: A holder that lives says since when within this time
SILENT_SECS = 60.0
LONGEST_SECS = 24 * 3600.0
YIELD_SECS = 0.5
VISIT_SECS = 60.0  #: The longest visit that is waited for
_LONGEST_UUID = 64

_waited_for: dict[str, float] = {}  #: Name -> when this process let go of it while others waited
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


class DeviceHold:
    """A device in the hands of this process."""

    def __init__(self, presence: Presence | None) -> None:
        """None: it goes on without the lock, and nobody can be let in."""
        self._presence = presence
        self._next_at = -math.inf

    def let_in(self, leave: Callable[[], None], stop: Callable[[], bool]) -> None:
        """Between two measurements: let in whoever has asked first for a visit, if anybody, until it is gone. `leave`
        takes what this process has on the device out of its way. Until the next visit the device is left to this
        process for as long as that one took: half of the time at least, however many come."""
        begun = time.monotonic()
        if self._presence is not None and begun >= self._next_at and self._presence.let_in(leave, stop, VISIT_SECS):
            self._next_at = 2 * time.monotonic() - begun


@contextlib.contextmanager
def device_lock(
    device: DeviceInfo, *, stop: Callable[[], bool], waiting: Callable[[str], None], visit: bool = False
) -> Iterator[DeviceHold]:
    """Hold a device. `waiting` is told who has it, once for each holder, as `waiting for pid 4711 of anna since 12:03
    UTC`. Interrupted when `stop` says so meanwhile, MachineFault where the system lacks what a lock takes.

    `visit`: for less than VISIT_SECS, and also between two measurements of a holder; where nothing is timed, at once.
    """
    if visit and device.evidence != "measured":
        yield DeviceHold(None)
        return
    name = lock_name(device)
    until = _waited_for.pop(name, 0.0) + YIELD_SECS
    while time.monotonic() < until and not stop():
        time.sleep(POLL_SECS)
    held: Presence | Asking | None = _hold(name)
    if held is None:
        held = _Queue(device, name, stop, waiting, visit).wait()
    try:
        yield DeviceHold(held if isinstance(held, Presence) else None)
    finally:
        if held is not None and held.close():
            _waited_for[name] = time.monotonic()


def held_by(device: DeviceInfo) -> NameHolder | None:
    """Who has the lock of a device now."""
    asking = Asking.of(lock_name(device))
    if asking is None:
        return None
    with contextlib.closing(asking):
        return asking.holder if asking.wait(ANSWER_SECS) else None


@dataclass(slots=True)
class _Queue:
    """One that waits for a device."""

    _device: DeviceInfo
    _name: str
    _stop: Callable[[], bool]
    _waiting: Callable[[str], None]
    _visit: bool
    _told: str = ""
    _holder: NameHolder | None = None
    _begun_at: float = field(default_factory=time.monotonic)
    _heard_at: float = field(default_factory=time.monotonic)

    def wait(self) -> Presence | Asking | None:
        """The lock, the connection of a visit, or None when the holder is passed over."""
        while True:
            asking = Asking.of(self._name)
            if asking is not None:  # else it has let go, or too many wait for one that does not answer
                with contextlib.ExitStack() as waits:
                    waits.callback(asking.close)
                    self._listen(asking)
                    if asking.let_in:
                        waits.pop_all()
                        return asking
            presence = _hold(self._name)
            if presence is not None:
                return presence
            if (why := self._too_long()) is not None:
                who = self._holder or "another process"
                log.warning("%s: going on without its lock: %s has it, and %s", self._device.name, who, why)
                return None
            if self._stop():
                raise self._stopped()
            time.sleep(POLL_SECS / 10)

    def _listen(self, asking: Asking) -> None:
        """Until the holder lets go, lets a visitor in, or is passed over."""
        self._holder = asking.holder
        if self._visit:
            asking.visit()
        while asking.wait(POLL_SECS):
            self._holder = asking.holder
            if asking.let_in:
                return
            if asking.greeted:
                self._heard_at = max(self._heard_at, asking.heard_at)
            stopped = self._stop()
            text = f"waiting for {self._holder}"
            known = asking.greeted or stopped or time.monotonic() - self._heard_at >= ANSWER_SECS
            if known and text != self._told:
                self._told = text
                self._waiting(text)
            if stopped:
                raise self._stopped()
            if self._too_long() is not None:
                return

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
