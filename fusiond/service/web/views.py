"""The data of each page, read from the store, independent of HTTP."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from fusiond.model.english import shortened
from fusiond.model.errors import NothingKnown, StoreError
from fusiond.model.nouns import COUNTED
from fusiond.model.outcomes import JobState, Outcome, Record, Verdict
from fusiond.service.remaining import Standing, duration
from fusiond.service.web import plots, variants
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow
from fusiond.store.trials import TrialLine
from fusiond.tuning.finals import STRUCK_OUT

MOST_JOBS, MOST_ANSWERS = 50, 50
SOURCE_LETTERS = 400_000  #: Of a source that is shown; more would keep a browser busy
_WHAT = {
    "measured": "measured on this GPU",
    "emulated": "emulated on the processor",
    "counted": "counted for a GPU that is not here",
    "replayed": "measured elsewhere, and replayed",
}
_COUNTED = {
    "program": "program", "launch": "launch", "kernel": "kernel", "DRAM, bytes": "dram_bytes",
    "least, bytes": "minimal_bytes", "instructions": "instructions", "shared, wavefronts": "shared_wavefronts",
    "occupancy": "occupancy", "limited by": "limited_by", "at least, us": "bound_us", "bound by": "binding",
    "error": "error",
}  # fmt: skip
"""Heads of the table of what is counted -> keys of its rows."""
_NUMBERS = frozenset(_COUNTED) - {"program", "launch", "kernel", "limited by", "bound by"}
_MEANING = {
    Verdict.FUSE: "Fuse: surely faster than every unfused way that is known.",
    Verdict.TUNED: "One kernel, of which another shape, or another variant, is surely faster.",
    Verdict.KEEP: "Keep them apart: fusing surely does not gain what the job asks for. Use the unfused way below.",
    Verdict.UNDECIDED: "Too close to call: the interval allows both. Until more is known, use the unfused way below.",
    Verdict.PROMISING: "Promising: the fused lower bound in time is below every unfused way's. Nothing was measured, "
    "and a ratio of two bounds proves nothing.",
    Verdict.UNPROMISING: "Not promising: no fused lower bound in time is below the unfused ones by the margin. "
    "Nothing was measured.",
}
Look = Callable[[], "Now"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatTile:
    """A figure at the top of a page."""

    name: str
    value: str
    note: str = ""
    done: int = 0
    of: int = 0  #: Of a tile with a bar: how far it is, and of what


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """What the daemon knows beside the store."""

    workers: Sequence[Mapping[str, Any]] = ()
    """`device`, `job`, `waiting`, `progress` (a Standing as a mapping, or None)."""
    upstreams: Sequence[Mapping[str, Any]] = ()


def overview(store: Store, now: Now, states: Sequence[str] = ()) -> dict[str, Any]:
    """Devices, queue, the latest answers. Parts fold under their jobs, unless states are asked for."""
    wanted = [JobState(each) for each in states]
    rows, parts = store.jobs(wanted or None, MOST_JOBS), dict[str, list[JobRow]]()
    if not states:
        rows, parts = _folded(store, rows)
    busy = [each for each in now.workers if each["job"] or each["waiting"]]
    return {
        "busy": [{**each, "said": _said(each.get("progress"))} for each in busy],
        "idle": [each["device"] for each in now.workers if each not in busy],
        "upstreams": now.upstreams,
        "counts": {state: count for state, count in store.jobs_by_state().items() if count},
        "chosen": list(states),
        "jobs": rows,
        "parts": parts,
        "notes": any(row.problem or left(row) or (row.waiting_for and not row.state.ended) for row in rows),
        "answers": store.answers(limit=MOST_ANSWERS),
        "left": left,
    }


def _folded(store: Store, rows: Sequence[JobRow]) -> tuple[list[JobRow], dict[str, list[JobRow]]]:
    """Jobs that are no parts, and the parts of each of them of which one is among the rows."""
    parts = {id: store.parts(id) for id in dict.fromkeys(row.parent for row in rows) if id}
    shown = {row.id: row for row in rows if not row.parent}
    return [*shown.values(), *(store.named_job(id) for id in parts if id not in shown)], parts


def _said(progress: Mapping[str, Any] | None) -> str:
    return "" if progress is None else Standing(**progress).said


Read = Callable[[JobRow], Sequence[TrialLine]]  #: The trials of a job, role by role


def job(
    store: Store, id: str, standing: Standing | None = None, *, after: int | None = None, read: Read | None = None
) -> dict[str, Any]:
    """One job: how its search went, every trial, what it found. `standing`: of one that the daemon runs; `after`: of
    the table of trials only those behind this one; `read`: who knows some of them already. RequestError for a job that
    is not there."""
    row = store.named_job(id)
    lines = store.trial_lines(row.id) if read is None else read(row)
    candidates = [each for each in lines if each.role == "candidate"]
    what = _WHAT[_evidence(store, row)]
    record = _answer_of(store, row)
    varying, fixed = _knobs(candidates)
    measured = (each for each in candidates if each.ratio is not None)
    best = max(measured, key=lambda each: each.ratio or 0.0, default=None)
    unfused = (each for each in lines if each.role != "candidate")
    said = {each.sequence: _words(each.config) for each in candidates} if len(lines) <= plots.MOST_CIRCLES else {}
    return {
        "row": row,
        "what": what,
        "said": standing.said if standing is not None else "",
        "tiles": _job_tiles(row, standing, best, what),
        "plot": plots.search(
            [(each.sequence, each.ratio) for each in candidates], budget=row.budget, noun=what, said=said
        ),
        "outcomes": plots.shares(_outcomes(candidates)),
        "knobs": varying,
        "fixed": fixed,
        "rows": _rows((each for each in candidates if after is None or each.sequence > after), varying, best),
        "best": best,
        "unfused": sorted(unfused, key=lambda each: (each.time_us is None, each.time_us or 0.0)),
        "variants": variants.table(store, row),
        "rejections": _ruled_out(store, row),
        "parts": store.parts(row.id),
        "answer": record,
        "path": None if record is None else answer_path(record),
        "shortened": shortened,
    }


def _knobs(candidates: Sequence[TrialLine]) -> tuple[list[str], dict[str, Any]]:
    """The parameters that differ between candidates, and the values of those that do not."""
    knobs = list(dict.fromkeys(name for each in candidates for name in each.config))
    varying = [name for name in knobs if len({str(each.config.get(name)) for each in candidates}) > 1]
    return varying, {name: candidates[0].config.get(name) for name in knobs if name not in varying}


def _job_tiles(row: JobRow, standing: Standing | None, best: TrialLine | None, what: str) -> list[StatTile]:
    found = [StatTile(name="Trials", value=f"{row.trials} of {row.budget}", done=row.trials, of=row.budget)]
    if standing is not None and standing.part is not None:
        part = f"{standing.part_name}: {standing.done} of {standing.budget} trials"
        found.append(
            StatTile(name="Part", value=f"{standing.part} of {standing.parts}", note=part, done=standing.done,
                 of=standing.budget or 0)
        )  # fmt: skip
    if standing is not None and standing.final is not None:
        found.append(StatTile(name="Finals", value=f"{standing.final} of {standing.finals}", note="fresh processes"))
    if best is not None:
        found.append(StatTile(name="Best of the search", value=f"{best.ratio:.3f}x", note=f"{what}; not the verdict"))
    if standing is not None and standing.left_secs is not None:
        found.append(
            StatTile(name="Time left", value=f"about {duration(standing.left_secs)}", note="parts and finals too")
        )
    elif (rest := left(row)) is not None:
        found.append(StatTile(name="Time left", value=rest, note="for the search"))
    if row.device_share is not None:
        share = f"the device measured for {row.device_share:.0%} of it"
        found.append(StatTile(name="Ran for", value=duration(row.wall_secs), note=share))
    found.append(StatTile(name="Created", value=row.created_at[11:16], note=f"{row.created_at[:10]}, UTC"))
    return found


def _outcomes(candidates: Sequence[TrialLine]) -> list[tuple[str, int, int]]:
    """(outcome, how many, its colour), what is measured first."""
    counts: dict[str, int] = {}
    for each in candidates:
        counts[each.outcome] = counts.get(each.outcome, 0) + 1
    colours = {outcome.value: number for number, outcome in enumerate(Outcome)}
    return [
        (name, counts[name], colours.get(name, 6)) for name in sorted(counts, key=lambda each: colours.get(each, 6))
    ]


def _ruled_out(store: Store, row: JobRow) -> list[tuple[str, str, str]]:
    """(rule, about what, why); a program of the finals is called by its config."""
    found = []
    for each in store.rejections(row.id, skip=True):
        about = ", ".join(each.nodes)
        if each.rule == STRUCK_OUT:
            about = str(store.config_of(each.nodes[0]) or each.nodes[0][:8])
        found.append((each.rule, about, each.detail))
    return found


def answer(store: Store, workload_key: str, device_key: str, cache: str) -> dict[str, Any]:
    """One answer: what it gains, how it is configured, its source, and the answers before it. NothingKnown."""
    history = store.history(workload_key, device_key, cache)
    if not history:
        raise NothingKnown("there is no such answer")
    record = history[0]
    counted = record.evidence == COUNTED
    noun = "lower bound" if counted else record.evidence
    return {
        "record": record,
        "meaning": _MEANING[record.verdict],
        "noun": noun,
        "tiles": _answer_tiles(record),
        "gain": gain(record),
        "times": times(record),
        "counted": [_paid(each) for each in record.counted],
        "numbers": _NUMBERS,
        "roofline": plots.roofline(record.counted) if record.counted else None,
        "sources": _sources(store, record),
        "history": history,
    }


def gain(record: Record) -> Markup | None:
    """The speed-up with its interval, where something was measured."""
    if not record.speedup or not record.ci95 or record.evidence == COUNTED:
        return None
    return plots.interval(record.speedup, *record.ci95)


def times(record: Record) -> Markup:
    """The unfused and the fused time, or lower bound, as bars."""
    rows = [("unfused: " + record.baseline, record.baseline_us, "unfused")]
    if record.time_us is not None:
        rows.append(("fused", record.time_us, "fused"))
    return plots.bars(rows, unit="us")


def _answer_tiles(record: Record) -> list[StatTile]:
    counted = record.evidence == COUNTED
    bound = "at least" if counted else ""
    found = []
    if record.speedup is not None:
        spread = f"{record.ci95[0]:.3f} to {record.ci95[1]:.3f}, 95 %" if record.ci95 and not counted else ""
        name = "Ratio of the bounds" if counted else "Gain"
        found.append(StatTile(name=name, value=f"{record.speedup:.3f}x", note=spread))
    if record.time_us is not None:
        found.append(StatTile(name="Fused", value=f"{record.time_us:,.2f} us", note=bound))
    found.append(
        StatTile(
            name="Unfused",
            value=f"{record.baseline_us:,.2f} us",
            note=f"{bound}; {record.baseline}" if bound else record.baseline,
        )
    )
    processes = f"finals in {record.processes} fresh processes" if record.processes and not counted else ""
    found.append(StatTile(name="Trials", value=str(record.trials), note=processes))
    found.append(StatTile(name="Evidence", value=record.evidence, note=_WHAT[record.evidence]))
    found += [StatTile(name=name.replace("_", " "), value=f"{value:,.4g}") for name, value in record.figures.items()]
    note = f"{record.found_at[11:16]} UTC"
    found.append(StatTile(name="Found", value=record.found_at[:10], note=note))
    return found


def _words(config: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items())


def _paid(row: Mapping[str, Any]) -> dict[str, str]:
    """A counted launch as a row of the page's table, by its heads."""
    if row["failed"]:
        return {**dict.fromkeys(_COUNTED, ""), "program": row["program"], "launch": f"{row['launch']}: {row['failed']}"}
    values = {key: row.get(key) for key in _COUNTED.values()}
    values["program"] = "unfused" if row["program"] == "native" else row["program"]
    values["bound_us"] = f"{row['bound_us']:.3f}"
    values["occupancy"] = "" if row["occupancy"] is None else f"{100 * row['occupancy']:.0f} %"
    values["error"] = "unknown" if row["error"] is None else f"{100 * row['error']:.0f} %"
    return {
        head: f"{values[key]:,}" if isinstance(values[key], int) else str(values[key] or "")
        for head, key in _COUNTED.items()
    }


def answer_path(record: Record) -> str:
    """Where its page is."""
    return f"/answers/{record.workload_key}/{record.device_key}/{record.cache}"


def left(row: JobRow) -> str | None:
    """The time that a job's search is likely to take yet: by what its trials took so far, finals not included. Of one
    that the daemon runs itself it knows more (`fusiond.service.remaining`)."""
    if row.state is not JobState.RUNNING or not row.trials or not row.wall_secs or row.trials >= row.budget:
        return None
    return f"about {duration(row.wall_secs / row.trials * (row.budget - row.trials))}"


def _rows(trials: Iterable[TrialLine], knobs: Sequence[str], best: TrialLine | None) -> Markup:
    """The table's rows. Written here and not by the template, which takes three times as long for thousands."""
    found = []
    for each in trials:
        cells = [each.config.get(name, "") for name in knobs]
        values = "".join([f"<td>{escape(value)}" for value in (*cells, each.origin, shortened(each.reason, 160))])
        top = " class=top" if best is not None and each.sequence == best.sequence else ""
        time_us = "" if each.time_us is None else f"{each.time_us:.2f}"
        ratio = "" if each.ratio is None else f"{each.ratio:.3f}"
        found.append(
            f"<tr data-number={each.sequence}{top}><td class=n>{each.sequence}<td>{escape(each.outcome)}"
            f"<td class=n>{time_us}<td class=n>{ratio}{values}\n"
        )
    return Markup("".join(found))


def _evidence(store: Store, row: JobRow) -> str:
    found = (each.info.evidence for each in store.devices() if each.info.key == row.device_key)
    return next(found, "measured")


def _answer_of(store: Store, row: JobRow) -> Record | None:
    """The answer of today to a job's question."""
    return store.record(row.workload_key, row.device_key, row.search.cache) if row.device_key else None


def _sources(store: Store, record: Record) -> list[tuple[str, list[tuple[str, str]]]]:
    """(whose, its texts by name) of the fused program and of the unfused one; what cannot be read is left out."""
    found = []
    fused = record.program_key if record.config is not None else None
    for whose, key in (("Fused", fused), (f"Unfused: {record.baseline}", record.baseline_program_key)):
        try:
            program = store.program(key) if key else None
        except StoreError:
            program = None
        texts = [(each.name, each.text[:SOURCE_LETTERS]) for each in (program.sources if program is not None else ())]
        if texts:
            found.append((whose, texts))
    return found


def style() -> Markup:
    """The style sheets, for a page that stands alone."""
    sheet = (Path(__file__).parent / "static" / "style.css").read_text(encoding="utf-8")
    return Markup(sheet + plots.stylesheet())
