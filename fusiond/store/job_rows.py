"""A job as the queue sees it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from fusiond.model.nouns import Search
from fusiond.model.outcomes import JobState
from fusiond.store.connection import Row
from fusiond.store.encoding import search_from
from fusiond.store.process_identity import is_alive


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job as the queue sees it. Times of day are UTC in ISO 8601."""

    number: int  #: The order of arrival
    id: str
    kind: str  #: `tune`, or `verify`: measure the recorded winner again
    strategy: str
    workload_name: str
    workload_key: str
    device: str  #: As asked for: `auto`, `cpu`, `cuda:0`
    device_key: str | None  #: Of the device that it runs on, once that is known
    state: JobState
    priority: int
    parent: str | None
    problem: str | None  #: One line on why it failed
    search: Search
    space_hash: str | None
    created_at: str
    started_at: str | None
    ended_at: str | None
    trials: int  #: Candidates that have an outcome
    budget: int  #: Candidates that it may try
    best_ratio: float | None  #: Of the candidates measured so far; search samples, no verdict
    cancel_requested: bool
    finish_requested: bool = False  #: Its search is to end, and its finals to begin
    finding: str = ""  #: What it found, where the answer of before stands
    owner: str = ""  #: The process that runs it (`fusiond.store.process_identity`); empty when none does
    waiting_for: str = ""  #: What the machine lacked when it was run last; of a job that waits
    retry_at: str | None = None  #: When a job that waits is tried again
    retries: int = 0  #: How often it waited since it last got on
    wall_secs: float = 0.0
    """How long it ran, waiting for the device not included; of sessions that were killed nothing is known."""
    device_secs: float = 0.0  #: For how much of that its device was busy

    @property
    def device_share(self) -> float | None:
        """The part of its time in which the device measured; None before that is known."""
        return self.device_secs / self.wall_secs if self.wall_secs else None

    @property
    def lost(self) -> bool:
        """It runs, as far as the store knows, but the process that ran it is gone."""
        return self.state is JobState.RUNNING and not is_alive(self.owner)

    def as_it_is(self, problem: str) -> JobRow:
        """A job whose process is gone runs no more, for that reason: the next daemon, or `run`, takes it up."""
        return dataclasses.replace(self, state=JobState.QUEUED, problem=problem) if self.lost else self


_AS_COLUMNS = (
    "number", "id", "kind", "workload_key", "device", "device_key", "priority", "problem", "space_hash", "created_at",
    "started_at", "ended_at", "retry_at",
)  # fmt: skip
"""Fields of a JobRow that columns hold as they are."""


def job_row(job: Row, workload: Row, tally: Row) -> JobRow:
    """From the three rows that make it. ValueError, TypeError: see `encoding.decoding`."""
    search = search_from(job["search"])
    return JobRow(
        **{name: job[name] for name in _AS_COLUMNS},
        strategy=workload["strategy"],
        workload_name=workload["name"],
        state=JobState(job["state"]),
        parent=job["parent_id"],
        search=search,
        trials=tally["candidates"],
        budget=search.trials,
        best_ratio=tally["best_ratio"],
        cancel_requested=bool(job["cancel_requested"]),
        finish_requested=bool(job["finish_requested"]),
        finding=job["finding"] or "",
        owner=job["owner"] or "",
        waiting_for=job["waiting_for"] or "",
        retries=job["retries"] or 0,
        wall_secs=job["wall_secs"] or 0.0,
        device_secs=job["device_secs"] or 0.0,
    )
