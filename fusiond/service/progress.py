"""Progress: one event of a job, as the socket streams it and the command line shows it.

Event --of_event--> Progress <--of_row-- JobRow
Progress --as_json--> one line of NDJSON --from_json--> Progress
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusiond.model.errors import DaemonError
from fusiond.model.events import (
    BaselineMeasured,
    DeviceTurnedSick,
    Event,
    JobEnded,
    JobStarted,
    PhaseStarted,
    RecordChanged,
    TrialFinished,
)
from fusiond.model.outcomes import JobState

if TYPE_CHECKING:
    from fusiond.store.jobs import JobRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`event` says which fields are set; all others are None.

    job       state, workload, device, done, budget, best, problem: how the job stands; parent, where it is a part
    phase     phase, detail; number and of (a part, a process of the finals), then_secs (what comes after a search)
    baseline  detail (its name), time_us
    trial     outcome, detail (the config), ratio, reason, done, budget, best
    record    detail (the verdict)
    ended     state, problem, wall_secs, device_share; nothing comes after it"""

    job: str
    event: str
    state: str | None = None
    workload: str | None = None
    device: str | None = None
    parent: str | None = None
    phase: str | None = None
    detail: str | None = None
    number: int | None = None
    of: int | None = None
    then_secs: float | None = None
    outcome: str | None = None
    reason: str | None = None
    ratio: float | None = None
    time_us: float | None = None
    done: int | None = None
    budget: int | None = None
    best: float | None = None
    problem: str | None = None
    wall_secs: float | None = None
    device_share: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Only the fields that are set."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


FIELDS = frozenset(field.name for field in dataclasses.fields(Progress))


def from_json(document: Any) -> Progress:
    """A streamed line back; fields that a newer daemon added are left out. DaemonError for anything else."""
    if not isinstance(document, dict) or not {"job", "event"} <= document.keys():
        raise DaemonError("the daemon streamed something that is not progress")
    return Progress(**{name: value for name, value in document.items() if name in FIELDS})


def of_event(event: Event) -> Progress:
    """What a running job published. Samples stay in the store: the stream is for eyes."""
    match event:
        case JobStarted():
            said = _fields(event, "workload", "device", "budget", "parent")
            return Progress(job=event.job, event="job", state=JobState.RUNNING.value, done=event.known, **said)
        case PhaseStarted():
            said = _fields(event, "phase", "number", "of", "then_secs")
            return Progress(job=event.job, event="phase", detail=event.detail or None, **said)
        case BaselineMeasured():
            return Progress(job=event.job, event="baseline", detail=event.name, time_us=event.time_us)
        case TrialFinished():
            trial = event.trial
            said = _fields(event, "done", "budget", "best") | _fields(trial, "ratio", "time_us")
            said |= {"outcome": trial.outcome.value, "detail": str(trial.config), "reason": trial.reason or None}
            return Progress(job=event.job, event="trial", **said)
        case RecordChanged():
            return Progress(job=event.job, event="record", detail=event.record.verdict.value)
        case DeviceTurnedSick():
            return Progress(job=event.job, event="phase", phase="device is sick", detail=event.reason)
        case JobEnded():
            # A job that was asked to stop goes back to the queue: it has not ended.
            kind = "ended" if JobState(event.state).ended else "job"
            said = _fields(event, "problem", "wall_secs", "device_share")
            return Progress(job=event.job, event=kind, state=str(event.state), **said)


def _fields(of: object, *names: str) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names}


def of_row(row: JobRow) -> Progress:
    """How a job stands in the store."""
    return Progress(
        job=row.id,
        event="job",
        state=str(row.state),
        workload=row.workload_name,
        device=row.device,
        done=row.trials,
        budget=row.budget,
        best=row.best_ratio,
        problem=row.problem or (not row.state.ended and row.waiting_for) or None,
    )


def end_of_row(row: JobRow) -> Progress:
    """The last line about a job that has ended."""
    said = _fields(row, "problem", "device_share")
    return Progress(job=row.id, event="ended", state=str(row.state), wall_secs=row.wall_secs or None, **said)
