"""What a page shows, read from the store: nothing here knows of HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fusiond.errors import NothingKnown, StoreError
from fusiond.model import COUNTED, JobState, Record
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow
from fusiond.store.trials import TrialLine
from fusiond.web import drawings, plots
from fusiond.words import shortened

MOST_JOBS, MOST_ANSWERS = 50, 50
SOURCE_LETTERS = 400_000
"""Of a source that is shown; more would keep a browser busy."""
_PART_STEPS = 40
"""Parts of a job that are shown."""
_WHAT = {
    "measured": "measured on this GPU",
    "emulated": "emulated on the processor",
    "counted": "counted for a GPU that is not here",
}
_COUNTED = {
    "program": "program", "launch": "launch", "kernel": "kernel", "DRAM, bytes": "dram_bytes",
    "least, bytes": "minimal_bytes", "instructions": "instructions", "shared, wavefronts": "shared_wavefronts",
    "occupancy": "occupancy", "limited by": "limited_by", "at least, us": "bound_us", "bound by": "binding",
    "error": "error",
}  # fmt: skip
"""Heads of the table of what is counted -> keys of its rows."""
Look = Callable[[], Sequence[Mapping[str, Any]]]
"""The workers: `device`, `job`, `waiting`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A trial as a row of the page's table."""

    number: int
    origin: str
    outcome: str
    time_us: str
    ratio: str
    config: tuple[str, ...]
    reason: str


def overview(store: Store, workers: Sequence[Mapping[str, Any]], states: Sequence[str] = ()) -> dict[str, Any]:
    """Devices, queue, the latest answers."""
    wanted = [JobState(each) for each in states]
    return {
        "workers": workers,
        "counts": {state: count for state, count in store.jobs_by_state().items() if count},
        "states": [state.value for state in JobState],
        "chosen": list(states),
        "jobs": store.jobs(wanted or None, MOST_JOBS),
        "answers": store.answers(limit=MOST_ANSWERS),
        "left": left,
    }


def job(store: Store, id: str) -> dict[str, Any]:
    """One job: how its search went, every trial, what it found. RequestError for one that is not there."""
    row = store.named_job(id)
    lines = store.trial_lines(row.id)
    candidates = [each for each in lines if each.role == "candidate"]
    evidence = _evidence(store, row)
    record = _answer_of(store, row)
    knobs = list(dict.fromkeys(name for each in candidates for name in each.config))
    varying = [name for name in knobs if len({str(each.config.get(name)) for each in candidates}) > 1]
    best = max(
        (each for each in candidates if each.ratio is not None), key=lambda each: each.ratio or 0.0, default=None
    )
    outcomes: dict[str, int] = {}
    for each in candidates:
        outcomes[each.outcome] = outcomes.get(each.outcome, 0) + 1
    return {
        "row": row,
        "evidence": evidence,
        "what": _WHAT[evidence],
        "plot": plots.search(
            [(each.sequence, each.ratio) for each in candidates], budget=row.budget, noun=_WHAT[evidence]
        ),
        "outcomes": sorted(outcomes.items(), key=lambda each: -each[1]),
        "knobs": varying,
        "fixed": {name: candidates[0].config.get(name) for name in knobs if name not in varying} if candidates else {},
        "lines": [_line(each, varying) for each in candidates],
        "best": best,
        "unfused": [each for each in lines if each.role != "candidate"],
        "rejections": store.rejections(row.id, skip=True),
        "parts": [each for each in store.jobs(None, MOST_JOBS) if each.parent == row.id][:_PART_STEPS],
        "answer": record,
        "path": None if record is None else answer_path(record),
        "left": left(row),
        "drawings": _drawings(store, row.workload_key, row.device_key, row.search.cache),
        "shortened": shortened,
    }


def answer(store: Store, workload_key: str, device_key: str, cache: str) -> dict[str, Any]:
    """One answer: what it gains, how it is configured, its source, and the answers before it. NothingKnown."""
    history = store.history(workload_key, device_key, cache)
    if not history:
        raise NothingKnown("there is no such answer")
    record = history[0]
    counted = record.evidence == COUNTED
    noun = "lower bound" if counted else record.evidence
    times = [("unfused: " + record.baseline, record.baseline_us, "unfused")]
    if record.time_us is not None:
        times.append(("fused", record.time_us, "fused"))
    return {
        "record": record,
        "what": _WHAT[record.evidence],
        "noun": noun,
        "gain": plots.interval(record.speedup, *record.ci95)
        if record.speedup and record.ci95 and not counted
        else None,
        "times": plots.bars(times, unit="us"),
        "counted": [_paid(each) for each in record.counted],
        "roofline": plots.roofline(record.counted) if record.counted else None,
        "drawings": _drawings(store, workload_key, device_key, cache),
        "sources": _sources(store, record),
        "history": history,
        "text": json.dumps(dict(record.config) if record.config else {}, indent=1),
    }


def _paid(row: Mapping[str, Any]) -> dict[str, str]:
    """A counted launch as a row of the page's table, by its heads."""
    if row["failed"]:
        return {**dict.fromkeys(_COUNTED, ""), "program": row["program"], "launch": f"{row['launch']}: {row['failed']}"}
    values = {key: row.get(key) for key in _COUNTED.values()}
    values["bound_us"] = f"{row['bound_us']:.3f}"
    values["occupancy"] = "" if row["occupancy"] is None else f"{100 * row['occupancy']:.0f} %"
    values["error"] = "unknown" if row["error"] is None else f"{100 * row['error']:.0f} %"
    return {
        head: f"{values[key]:,}" if isinstance(values[key], int) else str(values[key] or "")
        for head, key in _COUNTED.items()
    }


def _drawings(store: Store, workload_key: str, device_key: str | None, cache: str) -> list[tuple[str, Markup]]:
    """(title, picture) of an answer, as its strategy drew it."""
    if device_key is None:
        return []
    return [(each.title, drawings.svg(each)) for each in store.drawings(workload_key, device_key, cache)]


def answer_path(record: Record) -> str:
    """Where its page is."""
    return f"/answers/{record.workload_key}/{record.device_key}/{record.cache}"


def left(row: JobRow) -> str | None:
    """The time that a job's search is likely to take yet: by what its trials took so far, finals not included."""
    if row.state is not JobState.RUNNING or not row.trials or not row.wall_secs or row.trials >= row.budget:
        return None
    secs = row.wall_secs / row.trials * (row.budget - row.trials)
    return f"about {secs / 60:.0f} min" if secs >= 90 else f"about {secs:.0f} s"


def _line(trial: TrialLine, knobs: Sequence[str]) -> Line:
    return Line(
        number=trial.sequence,
        origin=trial.origin,
        outcome=trial.outcome,
        time_us="" if trial.time_us is None else f"{trial.time_us:.2f}",
        ratio="" if trial.ratio is None else f"{trial.ratio:.3f}",
        config=tuple("" if name not in trial.config else str(trial.config[name]) for name in knobs),
        reason=shortened(trial.reason, 160),
    )


def _evidence(store: Store, row: JobRow) -> str:
    found = (each.info.evidence for each in store.devices() if each.info.key == row.device_key)
    return next(found, "measured")


def _answer_of(store: Store, row: JobRow) -> Record | None:
    """The answer of today to a job's question."""
    return store.record(row.workload_key, row.device_key, row.search.cache) if row.device_key else None


def _sources(store: Store, record: Record) -> list[tuple[str, str]]:
    """(whose, text) of the fused program and of the unfused one; what cannot be read is left out."""
    found = []
    for whose, key in (("fused", record.program_key), ("unfused", record.baseline_program_key)):
        try:
            program = store.program(key) if key else None
        except StoreError:
            program = None
        for source in program.sources if program is not None else ():
            found.append((f"{whose}: {source.name}", source.text[:SOURCE_LETTERS]))
    return found


def style() -> Markup:
    """The style sheet, for a page that stands alone."""
    return Markup((Path(__file__).parent / "static" / "style.css").read_text(encoding="utf-8"))
