"""Events of the core; logging, rich and the daemon's stream subscribe to them.

Presentation lives elsewhere: a subscriber that raises is dropped with a logged line, never a lost job.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import Record, Trial

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted:
    """A job began, or went on: `known` trials of it were already recorded."""

    job: str
    workload: str
    device: str
    budget: int
    known: int
    parent: str | None = None  #: The job of which it is a part


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStarted:
    """What the job does now: baselines, probes, search, final; `detail` is one line for people."""

    job: str
    phase: str
    detail: str = ""
    number: int | None = None  #: Which of several, from 1: a part, a process of the finals
    of: int | None = None  #: How many there are
    then_secs: float | None = None  #: Of a search: how long what comes after it takes, about


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineMeasured:
    job: str
    name: str
    time_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished:
    """A trial is on disk. `done` counts the trials of this job so far, `best` is the best ratio so far."""

    job: str
    trial: Trial
    done: int
    budget: int
    best: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordChanged:
    job: str
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTurnedSick:
    """A device failed on what is known to be good; jobs for it wait until somebody looks."""

    job: str
    device: DeviceInfo
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded:
    """`wall_secs` and `device_share`: how long the job ran over all its sessions, and the part of that in which its
    device measured."""

    job: str
    state: str
    problem: str | None = None
    wall_secs: float | None = None
    device_share: float | None = None


Event: TypeAlias = (
    JobStarted | PhaseStarted | BaselineMeasured | TrialFinished | RecordChanged | DeviceTurnedSick | JobEnded
)
Subscriber: TypeAlias = Callable[[Event], None]


class Events:
    """A list of subscribers, called in order in the publisher's thread, for one event at a time: no subscriber has to
    know of threads."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = list(subscribers)
        self._lock = threading.RLock()

    def subscribe(self, subscriber: Subscriber) -> None:
        with self._lock:
            self._subscribers = [*self._subscribers, subscriber]

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Take a subscriber out, once no event of another thread is on its way to it; no error when it is already
        gone."""
        with self._lock:
            self._subscribers = [each for each in self._subscribers if each != subscriber]

    def publish(self, event: Event) -> None:
        with self._lock:
            for subscriber in self._subscribers:
                try:
                    subscriber(event)
                except Exception:
                    log.exception("a subscriber failed on %s and is dropped", type(event).__name__)
                    self.unsubscribe(subscriber)
