"""Nouns as JSON texts and columns, and back, without loss."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from fusiond.model.errors import StoreError
from fusiond.model.keys import canonical
from fusiond.model.nouns import Config, Job, Search, frozen
from fusiond.model.outcomes import DeviceState, Effort, Measurement, Purpose
from fusiond.store.format import decoded


@contextlib.contextmanager
def decoding(path: object, table: str, row: object) -> Iterator[None]:
    """What cannot be read back, although it is what was written, as StoreError."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        raise StoreError(
            f"{path}: the row {row} of {table} cannot be read ({type(problem).__name__}: {problem}); "
            "`fusiond store check` says how to go on"
        ) from problem


def printable(text: str) -> str:
    """A text that SQLite takes: what a compiler printed may hold bytes that are not Unicode."""
    return text.encode("utf-8", "backslashreplace").decode()


def mapping_from(text: str) -> Mapping[str, Any]:
    return frozen(decoded(text))


def config_text(config: Config) -> str:
    return canonical(dict(config))


def config_from(text: str) -> Config:
    return Config.of(decoded(text))


def search_from(text: str) -> Search:
    return _search(decoded(text))


def _search(values: dict[str, Any]) -> Search:
    values.pop("sampler", None)  # of 0.2, which had several
    return Search(**values)


def job_from(text: str) -> Job:
    """The Job of `canonical(job)`."""
    values = decoded(text)
    for name in ("request", "sizes", "lines", "files"):
        values[name] = frozen(values[name])
    return Job(**{**values, "search": _search(values["search"])})


_SAMPLES = ("span_us", "baseline_us", "wall_us")


def measurement_columns(measurement: Measurement) -> dict[str, object]:
    """`time_us` is there for those who look into the file; it follows from the samples."""
    return {
        "purpose": measurement.purpose.value,
        "clock": measurement.clock,
        "cache": measurement.cache,
        "time_us": measurement.time_us if measurement.span_us else None,
        **{name: canonical(getattr(measurement, name)) for name in _SAMPLES},
        "state_before": canonical(measurement.before),
        "state_after": canonical(measurement.after),
        "dropped": int(measurement.dropped),
        "effort": canonical(measurement.effort),
    }


def _state_from(text: str) -> DeviceState:
    values = decoded(text)
    values.pop("canary_us", None)  # of before the canary counted cycles
    return DeviceState(**values)


def _effort_from(text: str | None) -> Effort:
    if text is None:  # of a version that did not keep it
        return Effort()
    values = decoded(text)
    return Effort(**{**values, "thrown_away": tuple(values["thrown_away"])})


def measurement_from(row: Mapping[str, Any]) -> Measurement:
    return Measurement(
        **{name: tuple(decoded(row[name])) for name in _SAMPLES},
        clock=row["clock"],
        cache=row["cache"],
        purpose=Purpose(row["purpose"]),
        before=_state_from(row["state_before"]),
        after=_state_from(row["state_after"]),
        dropped=bool(row["dropped"]),
        effort=_effort_from(row["effort"]),
    )
