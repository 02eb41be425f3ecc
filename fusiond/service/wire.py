"""The JSON forms of jobs and errors: the same on the command line and on the socket. Standard library only."""

from __future__ import annotations

from fusiond.model.errors import FusiondError, RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:  # `fusiond best` imports this file and must not pay for the store
    from typing import Any

    from fusiond.model.outcomes import Record
    from fusiond.store.jobs import JobRow


def error_document(problem: FusiondError) -> dict[str, str]:
    """`{"kind", "where", "problem"}`; `where` is a file, `file:line` or an option, empty when there is none."""
    if isinstance(problem, RequestError):
        return {"kind": type(problem).__name__, "where": problem.where, "problem": problem.problem}
    return {"kind": type(problem).__name__, "where": "", "problem": str(problem)}


def job_document(row: JobRow) -> dict[str, Any]:
    """What `show --json` prints: a contract."""
    return {"id": row.id, "state": str(row.state), "trials": row.trials, "best": row.best_ratio, "problem": row.problem}


def time_of(row: JobRow) -> dict[str, float | None]:
    """How long a job ran, and the part of that in which its device measured; null before that is known."""
    share = row.device_share
    return {
        "wall_secs": round(row.wall_secs, 3) if row.wall_secs else None,
        "device_share": None if share is None else round(share, 3),
    }


_OF_JOB = ("kind", "strategy", "device", "budget", "priority", "parent", "created_at", "started_at", "ended_at")
_OF_RECORD = (
    "strategy", "device_key", "cache", "evidence", "baseline", "program_key", "trials", "found_at", "replaced",
)  # fmt: skip


def job_entry(row: JobRow) -> dict[str, Any]:
    """A job in a list: the same, and what tells jobs apart."""
    return {
        **job_document(row),
        "workload": row.workload_name,
        **{name: getattr(row, name) for name in _OF_JOB},
        "waiting_for": (not row.state.ended and row.waiting_for) or None,
        "retry_at": row.retry_at if str(row.state) == "waiting" else None,
        **time_of(row),
    }


def answer_entry(record: Record) -> dict[str, Any]:
    """An answer in a list; a bound of a GPU that is not here stands under no name of something measured."""
    counted = record.evidence == "counted"
    return {
        "workload": record.workload_name,
        "sizes": dict(record.sizes),
        "device": record.device_name,
        **{name: getattr(record, name) for name in _OF_RECORD},
        "verdict": record.verdict.value,
        "speedup": None if counted else record.speedup,
        "bound_ratio": record.speedup if counted else None,
        "ci95": list(record.ci95) if record.ci95 and not counted else None,
        "config": dict(record.config) if record.config else None,
    }
