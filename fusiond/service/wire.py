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


def job_entry(row: JobRow) -> dict[str, Any]:
    """A job in a list: the same, and what tells jobs apart."""
    return {
        **job_document(row),
        "kind": row.kind,
        "strategy": row.strategy,
        "workload": row.workload_name,
        "device": row.device,
        "budget": row.budget,
        "priority": row.priority,
        "parent": row.parent,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
        "waiting_for": (not row.state.ended and row.waiting_for) or None,
        "retry_at": row.retry_at if str(row.state) == "waiting" else None,
        **time_of(row),
    }


def answer_entry(record: Record) -> dict[str, Any]:
    """An answer in a list; a bound of a GPU that is not here stands under no name of something measured."""
    counted = record.evidence == "counted"
    return {
        "workload": record.workload_name,
        "strategy": record.strategy,
        "sizes": dict(record.sizes),
        "device": record.device_name,
        "device_key": record.device_key,
        "cache": record.cache,
        "evidence": record.evidence,
        "verdict": record.verdict.value,
        "speedup": None if counted else record.speedup,
        "bound_ratio": record.speedup if counted else None,
        "ci95": list(record.ci95) if record.ci95 and not counted else None,
        "baseline": record.baseline,
        "config": dict(record.config) if record.config else None,
        "program_key": record.program_key,
        "trials": record.trials,
        "found_at": record.found_at,
        "replaced": record.replaced,
    }
