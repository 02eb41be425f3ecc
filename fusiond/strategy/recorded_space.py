"""Recorded spaces (packs): the results of a search in one file, for the replay device.

Gzip'd JSON lines. The first is the header: `replay` (1, the version of the format), `name`, `device`, `parameters`
(name: list of values), `unit`, `warmups`, and what is good to know. Every further line is one config: the positions of
its values (null: does not apply), its samples or how it failed, and the seconds that it took.
"""

import gzip
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusiond.model.nouns import Config, Value
from fusiond.model.outcomes import Outcome, Trial

VERSION = 1
_FAILURES = {
    Outcome.REFUSED: "constraints",
    Outcome.BUILD_FAILED: "compile",
    Outcome.LAUNCH_REFUSED: "runtime",
    Outcome.WRONG_RESULT: "correctness",
    Outcome.WRONG_UNFUSED: "correctness",
    Outcome.CRASHED: "runtime",
    Outcome.WORKER_DIED: "runtime",
    Outcome.TIMED_OUT: "timeout",
}
"""The words of T4. What was too noisy, or was not measured for its bound, is left out: nothing is known of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackRow:
    """What became of one config."""

    levels: tuple[int, ...]  #: The position of each value among its parameter's; -1 where the parameter does not apply
    samples_us: tuple[float, ...] = ()  #: Warm-ups first; empty where it failed
    failure: str = ""  #: The word of T4; empty where it was measured
    secs: float = 0.0


def of_trials(trials: Iterable[Trial]) -> tuple[dict[str, tuple[Value, ...]], tuple[PackRow, ...]]:
    """Parameters and rows of the candidates of a job: every value that was tried, numbers in their order."""
    known = [each for each in trials if each.measurement is not None or each.outcome in _FAILURES]
    parameters = {name: _values(known, name) for name in dict.fromkeys(name for each in known for name in each.config)}
    positions = {name: {_typed(each): k for k, each in enumerate(values)} for name, values in parameters.items()}

    def levels(config: Config) -> tuple[int, ...]:
        return tuple(where[_typed(config[name])] if name in config else -1 for name, where in positions.items())

    rows = [
        PackRow(levels=levels(each.config), failure=_FAILURES[each.outcome])
        if each.measurement is None
        else PackRow(levels=levels(each.config), samples_us=each.measurement.span_us)
        for each in known
    ]
    return parameters, tuple(rows)


def write(
    path: Path, name: str, parameters: Mapping[str, Sequence[Value]], rows: Iterable[PackRow], **said: Any
) -> None:
    """The whole file or none of it; the same bytes for the same content. OSError."""
    header = {"replay": VERSION, "name": name, "parameters": {each: list(v) for each, v in parameters.items()}, **said}
    lines = [json.dumps(header | {"unit": "us"})]
    for each in rows:
        levels = [None if level < 0 else level for level in each.levels]
        became = each.failure or [float(f"{sample:.6g}") for sample in each.samples_us]
        lines.append(json.dumps([levels, became, round(each.secs, 3)], separators=(",", ":")))
    work = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        work.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))
        work.replace(path)
    finally:
        work.unlink(missing_ok=True)


def _values(trials: Sequence[Trial], name: str) -> tuple[Value, ...]:
    found = list({_typed(each.config[name]): each.config[name] for each in trials if name in each.config}.values())
    if all(isinstance(each, int | float) and not isinstance(each, bool) for each in found):
        found.sort(key=lambda each: float(each))  # type: ignore[arg-type]
    return tuple(found)


def _typed(value: Value) -> tuple[type, Value]:
    return type(value), value
