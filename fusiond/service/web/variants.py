"""The variants of a job as a table: which are right, how fast each is, and why each wrong one is wrong."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusiond.devices.counting.model import GPUS
from fusiond.model.nouns import COUNTED
from fusiond.model.outcomes import Measurement, Outcome, Trial
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow
from fusiond.strategy.space import chooser
from fusiond.tuning import verdict
from fusiond.tuning.finals import STRUCK_OUT

_WRONG = frozenset({Outcome.WRONG_RESULT, Outcome.CRASHED, Outcome.TIMED_OUT})
"""Outcomes that say something of the kernel, and not of the shape that was tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRow:
    """One variant at its best config."""

    name: str
    verdict: str  #: `right`, `wrong`, `right at some shapes`, or `not tried` where none of its configs came to a result
    ratio: float | None = None  #: The reference's time over its own, in the search
    time: str = ""
    interval: str = ""  #: Of the speed-up in the finals, where it took part
    registers: str = ""
    bound: str = ""
    binding: str = ""
    trials: int = 0
    why: str = ""  #: The first reason for which it is wrong
    answer: bool = False


def table(store: Store, row: JobRow) -> list[VariantRow]:
    """A row for each variant, the fastest right one first; empty for a job of something else."""
    trials = store.trials(row.id)
    name = chooser(each.config for each in trials)
    if name is None or len({each.config.get(name) for each in trials}) < 2:
        return []
    struck = {each.nodes[0]: each.detail for each in store.rejections(row.id, skip=True) if each.rule == STRUCK_OUT}
    finals = store.finals(row.id, skip=True)
    profiles = _profiles(store, trials)
    groups: dict[str, list[Trial]] = {}
    for each in trials:
        groups.setdefault(str(each.config.get(name)), []).append(each)
    found = [_row(variant, own, struck, finals, profiles) for variant, own in groups.items()]
    found.sort(key=lambda each: (each.verdict == "wrong", -(each.ratio or 0.0)))
    record = store.record(row.workload_key, row.device_key, row.search.cache) if row.device_key else None
    if record is None:
        return found
    winner = str(record.config.get(name)) if record.config is not None else record.baseline
    return [dataclasses.replace(each, answer=each.name == winner) for each in found]


def _row(
    name: str,
    trials: Sequence[Trial],
    struck: Mapping[str, str],
    finals: Mapping[str, Mapping[int, Measurement]],
    profiles: Mapping[str, Sequence[Mapping[str, Any]]],
) -> VariantRow:
    refuted = [each for each in trials if each.program_key in struck]
    right = [each for each in trials if each.ratio is not None and each not in refuted]
    wrong = [each for each in trials if each.outcome in _WRONG]
    reasons = [struck[each.program_key or ""] for each in refuted] + [each.reason for each in wrong]
    if not right:
        why = next(filter(None, (*reasons, *(each.reason for each in trials))), "")
        return VariantRow(name=name, verdict="wrong" if reasons else "not tried", trials=len(trials), why=why)
    best = max(right, key=lambda each: each.ratio or 0.0)
    key = best.program_key or ""
    return VariantRow(
        name=name,
        verdict="right at some shapes" if reasons else "right",
        ratio=best.ratio,
        time="" if best.time_us is None else f"{best.time_us:,.2f}",
        interval=_interval(finals.get(key, {}).values()),
        trials=len(trials),
        why=next(iter(reasons), ""),
        **_paid([each for each in profiles.get(key, ()) if not each["failed"]]),
    )


def _interval(processes: Iterable[Measurement]) -> str:
    logs = [verdict.process_ratio(each) for each in processes if each.baseline_us]
    spread = verdict.estimate(logs, 1) if len(logs) > 1 else None
    return "" if spread is None else f"{spread.low:.3f} to {spread.high:.3f}"


def _paid(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is known of the launches of a program, counted."""
    if not rows:
        return {}
    first, registers = rows[0], [each["registers"] for each in rows if each["registers"] is not None]
    bound = first.get("program_bound_us")
    return {
        "registers": str(max(registers)) if registers else "",
        "bound": f"{bound:.3f}" if bound else "",
        "binding": f"{first['binding']} ({first['model']}, counted)",
    }


def _profiles(store: Store, trials: Sequence[Trial]) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Program key -> what was counted of it, on whichever GPU."""
    keys = {each.program_key for each in trials if each.program_key is not None}
    found: dict[str, Sequence[Mapping[str, Any]]] = {}
    for gpu in GPUS:
        found |= {key: rows for key, rows in store.profiles(keys, gpu, COUNTED).items() if key not in found}
    return found
