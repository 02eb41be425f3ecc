"""Reads a recorded space (a *pack*): gzip'd JSON lines, or plain ones.

The first line is the header, an object: `replay` (1, the version of the format), `name`, `device`, `parameters` (name:
list of values), and what is good to know: `kernel`, `problem`, `unit` (of the samples: us, ms or s), `warmups`,
`source`, `licence`. Every further line is one config:

    [[0, 3, null], [73.7, 73.6, 73.5], 3.4]     positions of the values (null: does not apply), samples, seconds
    [[0, 3, 1], "compile", 1.2]                 the same, and how it failed

The samples are in the order in which they were taken; the first three are warm-ups where the header does not say
`warmups`. The seconds are what compiling, checking and measuring took there. Words for failures are those of T4:
compile, runtime, timeout, correctness, constraints.
"""

import gzip
import json
import statistics
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from fusiond.model.errors import RequestError
from fusiond.model.nouns import Value
from fusiond.strategy.recorded_space import VERSION
from fusiond.strategy.recorded_space import PackRow as Row
from fusiond.strategy.space import Parameter, Space

WARMUPS = 3
UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}  #: Unit -> microseconds
__all__ = ["FAILURES", "UNITS", "VERSION", "WARMUPS", "Pack", "Row", "read"]
FAILURES = ("compile", "runtime", "timeout", "correctness", "constraints")

Document: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """A recorded space."""

    name: str
    device: str  #: What the driver called it; empty where that is not known
    parameters: tuple[Parameter, ...]
    rows: tuple[Row, ...]
    warmups: int = WARMUPS
    kernel: str = ""
    problem: tuple[int, ...] = ()
    notice: str = ""  #: Source and licence

    @property
    def space(self) -> Space:
        """The recorded configs, and no others."""
        return Space(parameters=self.parameters, listed=tuple(each.levels for each in self.rows))

    def time_us(self, row: Row, most: int | None = None) -> float | None:
        """The median of the samples behind the warm-ups, of the first `most` where that is given; None where it
        failed."""
        kept = self.samples_us(row, most)
        return statistics.median(kept) if kept else None

    def samples_us(self, row: Row, most: int | None = None) -> tuple[float, ...]:
        """The samples behind the warm-ups, the first `most` where that is given."""
        return row.samples_us[min(self.warmups, max(0, len(row.samples_us) - 1)) :][:most]

    def values(self, row: Row) -> dict[str, Value]:
        """The config of a row."""
        pairs = zip(self.parameters, row.levels, strict=True)
        return {each.name: each.values[level] for each, level in pairs if level >= 0}


def read(path: Path) -> Pack:
    """RequestError with file, line and what is wrong for anything that is not a pack."""
    lines = _lines(path)
    try:
        number, first = next(lines)
    except StopIteration:
        raise RequestError("is empty; a recorded space begins with its header", where=str(path)) from None
    header = _header(first, f"{path}:{number}")
    parameters = _parameters(header["parameters"], f"{path}:{number}")
    unit_us = UNITS[header.get("unit", "ms")]
    rows, seen = [], set()
    for number, line in lines:
        row = _row(line, parameters, unit_us, f"{path}:{number}")
        if row.levels in seen:
            raise RequestError("the same config stands in an earlier line", where=f"{path}:{number}")
        seen.add(row.levels)
        rows.append(row)
    if not any(each.samples_us for each in rows):
        raise RequestError("no config of it was measured", where=str(path))
    return Pack(
        name=str(header.get("name") or path.name.removesuffix(".gz").removesuffix(".jsonl")),
        device=str(header.get("device") or ""),
        parameters=parameters,
        rows=tuple(rows),
        warmups=int(header.get("warmups", WARMUPS)),
        kernel=str(header.get("kernel") or ""),
        problem=tuple(int(each) for each in header.get("problem") or ()),
        notice="; ".join(str(header[key]) for key in ("source", "licence") if header.get(key)),
    )


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    except OSError as problem:
        raise RequestError(f"cannot be read: {problem.strerror}", where=str(path)) from None
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError):
        raise RequestError("is damaged: neither gzip'd nor plain JSON lines", where=str(path)) from None
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError:
                raise RequestError("is not JSON; a pack has one value a line", where=f"{path}:{number}") from None


def _header(found: Any, where: str) -> Document:
    if not isinstance(found, dict) or "replay" not in found:
        raise RequestError("expected the header of a recorded space: an object with the key 'replay'", where=where)
    if found["replay"] != VERSION:
        raise RequestError(f"is of version {found['replay']!r}; this fusiond reads version {VERSION}", where=where)
    if found.get("unit", "ms") not in UNITS:
        raise RequestError(f"unit is {found['unit']!r}; it can be {', '.join(UNITS)}", where=where)
    warmups = found.get("warmups", WARMUPS)
    if type(warmups) is not int or warmups < 0:
        raise RequestError(f"warmups is {warmups!r}; it must be a whole number from 0", where=where)
    problem = found.get("problem") or []
    if not isinstance(problem, list) or not all(type(each) is int for each in problem):
        raise RequestError("problem must be a list of whole numbers", where=where)
    return found


def _parameters(found: Any, where: str) -> tuple[Parameter, ...]:
    if not isinstance(found, dict) or not found:
        raise RequestError("'parameters' must be an object: name, list of values", where=where)
    for name, values in found.items():
        kinds = isinstance(values, list) and all(
            each is None or isinstance(each, bool | int | float | str) for each in values
        )
        if not kinds or not values:
            raise RequestError(f"parameters.{name}: expected a list of numbers, texts, booleans or null", where=where)
    return tuple(Parameter(name=name, values=tuple(values)) for name, values in found.items())


def _row(found: Any, parameters: tuple[Parameter, ...], unit_us: float, where: str) -> Row:
    if not isinstance(found, list) or not 2 <= len(found) <= 3 or not isinstance(found[0], list):
        raise RequestError("expected [positions, samples or failure, seconds]", where=where)
    positions, outcome = found[0], found[1]
    secs = found[2] if len(found) == 3 and found[2] is not None else 0.0
    levels = _levels(positions, parameters, where)
    if not _positive(secs, least=0):
        raise RequestError(f"seconds are {secs!r}; expected a number from 0", where=where)
    if isinstance(outcome, str):
        if outcome not in FAILURES:
            raise RequestError(f"failed by {outcome!r}; it can be {', '.join(FAILURES)}", where=where)
        return Row(levels=levels, failure=outcome, secs=float(secs))
    if not isinstance(outcome, list) or not outcome or not all(_positive(each) for each in outcome):
        raise RequestError("expected samples: a list of positive numbers", where=where)
    return Row(levels=levels, samples_us=tuple(float(each) * unit_us for each in outcome), secs=float(secs))


def _levels(positions: list[Any], parameters: tuple[Parameter, ...], where: str) -> tuple[int, ...]:
    """For each parameter the position of its value; -1 where it does not apply."""
    if len(positions) != len(parameters):
        raise RequestError(f"has {len(positions)} positions; there are {len(parameters)} parameters", where=where)
    for each, parameter in zip(positions, parameters, strict=True):
        if each is not None and (type(each) is not int or not 0 <= each < len(parameter.values)):
            most = len(parameter.values) - 1
            raise RequestError(f"position {each!r} of {parameter.name}: expected 0 to {most}, or null", where=where)
    return tuple(-1 if each is None else each for each in positions)


def _positive(value: Any, least: float | None = None) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool) and value == value and value < float("inf")
    return number and (value > 0 if least is None else value >= least)
