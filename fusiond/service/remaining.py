"""How far a job is, over its parts and finals, and how long it may still take, from its own events.

Progress --tell--> Standings --of--> Standing

A job tunes its parts one after the other, then itself; each is a search and then the processes of its finals. What is
left is reckoned from what the same took so far in this session: an estimate, and none where nothing was timed yet.
"""

import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fusiond.service.progress import Progress


def duration(secs: float) -> str:
    """`40 s`, `12 min`, `3.2 h`, `30 d`: about how long."""
    if secs >= 172800:
        return f"{secs / 86400:.0f} d"
    if secs >= 5400:
        return f"{secs / 3600:.1f} h"
    return f"{secs / 60:.0f} min" if secs >= 90 else f"{secs:.0f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A job at one moment. Trials, finals and the best so far are those of the part that runs, where one does."""

    job: str
    workload: str = ""
    device: str = ""
    phase: str = ""  #: What it does: baseline, search, final, ..
    detail: str = ""  #: The same for people, in a line
    part: int | None = None  #: The part that is tuned, from 1; None: the job's own search, or before it
    parts: int | None = None
    part_name: str = ""
    done: int = 0
    budget: int | None = None
    best: float | None = None
    final: int | None = None  #: The process of the finals that runs, from 1
    finals: int | None = None
    left_secs: float | None = None  #: Of all that is to come, about

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def said(self) -> str:
        """`part 5 of 11 (sx,gx), final 2 of 5`."""
        parts = [f"part {self.part} of {self.parts} ({self.part_name})"] if self.part is not None else []
        if self.final is not None:
            parts.append(f"final {self.final} of {self.finals}")
        elif self.phase:
            parts.append(self.phase)
        return ", ".join(parts)


@dataclass(slots=True)
class _Search:
    """One search and its finals: a part's, or the job's own."""

    begun: float
    done: int = 0
    budget: int | None = None
    best: float | None = None
    searched_from: tuple[float, int] | None = None  #: When the search began in this session, and with how many trials
    then_secs: float | None = None  #: What comes after the search, as the tuner reckons it
    final: int | None = None
    finals: int | None = None
    final_begun: float = 0.0
    first_final: tuple[float, int] | None = None

    def tell(self, progress: Progress, now: float) -> None:
        for name in ("done", "budget", "best", "then_secs"):
            if (value := getattr(progress, name)) is not None:
                setattr(self, name, value)
        if progress.phase == "search" and self.searched_from is None:
            self.searched_from = now, self.done
        if progress.phase == "final" and progress.number is not None:
            self.final, self.finals, self.final_begun = progress.number, progress.of, now
            self.first_final = self.first_final or (now, progress.number)

    def trial_secs(self, now: float) -> float | None:
        if self.searched_from is None or self.done <= self.searched_from[1]:
            return None
        return (now - self.searched_from[0]) / (self.done - self.searched_from[1])

    def left(self, now: float) -> float | None:
        if self.final is not None and self.finals is not None:
            began, first = self.first_final or (now, self.final)
            known = self.final - first
            process_secs = (self.final_begun - began) / known if known else (self.then_secs or 0.0) / self.finals
            if not process_secs:
                return None
            return max(0.0, process_secs * (self.finals - self.final + 1) - (now - self.final_begun))
        each = self.trial_secs(now)
        if each is None or self.budget is None or self.then_secs is None:
            return None
        return each * max(0, self.budget - self.done) + self.then_secs


class _Job:
    """What is known of one job."""

    def __init__(self, job: str, now: float) -> None:
        self.own = _Search(now)
        self.part: _Search | None = None
        self.part_secs: list[float] = []
        self.trial_secs: float | None = None  #: Of a trial of the part that ended last
        self._shown = Standing(job=job)

    def tell(self, progress: Progress, now: float) -> None:
        own, shown = progress.job == self._shown.job, self._shown
        if own and self.part is not None:  # what a job says of itself comes after its parts
            self.part_secs.append(now - self.part.begun)
            self.trial_secs = self.part.trial_secs(now) or self.trial_secs
            self.part, shown = None, replace(shown, part=None, part_name="")
        if own and progress.phase == "part":
            self.part, name = _Search(now), progress.detail or ""
            self._shown = replace(shown, phase="", part=progress.number, parts=progress.of, part_name=name)
            return
        if own and progress.event == "job":
            workload, device = progress.workload or shown.workload, progress.device or shown.device
            shown = replace(shown, workload=workload, device=device)
        (self.part or self.own).tell(progress, now)
        if progress.event == "phase":
            phase = shown.phase if progress.phase in ("searched", "pruned") else progress.phase or ""
            shown = replace(shown, phase=phase, detail=progress.detail or "")
        self._shown = shown

    def standing(self, now: float) -> Standing:
        current = self.part or self.own
        names = ("done", "budget", "best", "final", "finals")
        return replace(self._shown, left_secs=self._left(now), **{name: getattr(current, name) for name in names})

    def _left(self, now: float) -> float | None:
        if self.part is None:
            return self.own.left(now)
        rest = self.part.left(now)
        number, parts = self._shown.part, self._shown.parts
        if rest is None or number is None or parts is None:
            return None
        whole = [*self.part_secs, now - self.part.begun + rest]
        each = self.part.trial_secs(now) or self.trial_secs
        if each is None:
            return None
        after = each * ((self.own.budget or 0) - self.own.done) + (self.part.then_secs or 0.0)
        return rest + (parts - number) * sum(whole) / len(whole) + after


class Standings:
    """Of all jobs that are told; any thread may call."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._jobs: dict[str, _Job] = {}
        self._parents: dict[str, str] = {}
        self._lock = threading.Lock()

    def tell(self, progress: Progress) -> None:
        """One event of a job, or of a part of one."""
        with self._lock:
            if progress.parent is not None:
                self._parents[progress.job] = progress.parent
            whole = self._whole(progress.job)
            ended = progress.event == "ended" or (progress.event == "job" and progress.state in ("queued", "waiting"))
            if ended:
                self._parents.pop(progress.job, None)
                if whole == progress.job:
                    self._jobs.pop(progress.job, None)
                return
            now = self._clock()
            job = self._jobs.setdefault(whole, _Job(whole, now))
            job.tell(progress, now)

    def of(self, job: str | None) -> Standing | None:
        """How a job stands; None for one that does not run."""
        with self._lock:
            found = self._jobs.get(job or "")
            return found.standing(self._clock()) if found is not None else None

    def shown(self, job: str | None) -> dict[str, Any] | None:
        """The same for a document."""
        found = self.of(job)
        return found.as_json() if found is not None else None

    def whole(self, job: str) -> str:
        """The job whose part this one is, or itself."""
        with self._lock:
            return self._whole(job)

    def _whole(self, job: str) -> str:
        while job in self._parents:
            job = self._parents[job]
        return job
