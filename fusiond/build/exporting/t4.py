"""T4, the results format of Kernel Tuner, KTT and BAT (schema 1.0.0 of its results), as trials of a recorded space.

The file is a stranger's: its size is bounded, and it is compared with the schema before anything is made of it. What
the schema leaves open is asked for here where it is needed: a configuration of plain values, a time that is positive.
"""

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusiond.model.errors import RequestError
from fusiond.model.nouns import Value
from fusiond.strategy.recorded_space import PackRow

MOST_BYTES = 500_000_000
INVALIDITY = ("timeout", "compile", "runtime", "correctness", "constraints", "correct")
_REQUIRED = ("configuration", "times", "invalidity", "correctness")
_TIMES = ("compilation_time", "framework", "search_algorithm", "validation")
_US = {"us": 1.0, "ms": 1e3, "s": 1e6, "ns": 1e-3, "": 1e3, "milliseconds": 1e3, "seconds": 1e6, "microseconds": 1.0}


def looks_like(begin: bytes) -> bool:
    """Whether a file that begins so is meant as one JSON document, or gzip'd: lines of answers begin otherwise."""
    if begin[:2] == b"\x1f\x8b":
        return True
    text = begin.lstrip()
    return text.startswith(b"{") and b'"fusiond_answer"' not in text


def read(path: Path) -> Mapping[str, Any]:
    """The document of a file, gzip'd or plain, compared with the schema. RequestError says what is wrong where."""
    try:
        with open(path, "rb") as stream:
            data = stream.read(MOST_BYTES + 1)
        if data[:2] == b"\x1f\x8b":
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise RequestError(f"is longer than {MOST_BYTES // 1_000_000} MB", where=str(path))
        found = json.loads(data)
    except OSError as problem:
        raise RequestError(f"cannot be read: {problem.strerror or 'damaged gzip'}", where=str(path)) from None
    except (EOFError, zlib.error):
        raise RequestError("is damaged, or cut short", where=str(path)) from None
    except (ValueError, RecursionError):
        raise RequestError("is neither T4 (one JSON document) nor lines of answers", where=str(path)) from None
    wrong = next(problems(found), None)
    if wrong is not None:
        raise RequestError(f"not T4: {wrong}", where=str(path))
    document: dict[str, Any] = found
    if not document.get("results"):
        raise RequestError("holds no results", where=str(path))
    return document


def problems(document: object) -> Iterator[str]:
    """Where a document is not what the schema of T4's results says."""
    if not isinstance(document, dict):
        yield "expected an object"
        return
    version = document.get("schema_version", "1.0.0")
    if not isinstance(version, str) or not re.match(r"[0-9]{1,}.[0-9]{1,}.[0-9]{1,}$", version):
        yield "schema_version: expected a version such as 1.0.0"
    elif version.partition(".")[0] != "1":
        yield f"schema_version: {version[:20]}; this fusiond reads 1"
    results = document.get("results", [])
    if not isinstance(results, list):
        yield "results: expected a list"
        return
    for number, each in enumerate(results):
        for problem in _of_result(each):
            yield f"results[{number}]{problem}"


def _of_result(found: object) -> Iterator[str]:
    if not isinstance(found, dict):
        yield ": expected an object"
        return
    for name in _REQUIRED:
        if name not in found:
            yield f": the field {name!r} is missing"
    for name, kind, said in (
        ("timestamp", str, "a text"), ("configuration", dict, "an object"), ("objectives", list, "a list"),
        ("times", dict, "an object"), ("measurements", list, "a list"),
    ):  # fmt: skip
        if name in found and not isinstance(found[name], kind):
            yield f".{name}: expected {said}"
    if "correctness" in found and not _is_number(found["correctness"]):
        yield ".correctness: expected a number"
    if "invalidity" in found and found["invalidity"] not in INVALIDITY:
        yield f".invalidity: expected one of {', '.join(INVALIDITY)}"
    if isinstance(times := found.get("times"), dict):
        yield from _of_times(times)
    if isinstance(measurements := found.get("measurements"), list):
        for number, each in enumerate(measurements):
            yield from (f".measurements[{number}]{problem}" for problem in _of_measurement(each))


def _of_times(times: Mapping[str, object]) -> Iterator[str]:
    for name in _TIMES:
        if name in times and not _is_number(times[name]):
            yield f".times.{name}: expected a number"
    if not isinstance(times.get("runtimes", []), list):
        yield ".times.runtimes: expected a list"


def _of_measurement(found: object) -> Iterator[str]:
    if not isinstance(found, dict):
        yield ": expected an object"
        return
    for name in ("name", "unit"):
        if not isinstance(found.get(name, ""), str):
            yield f".{name}: expected a text"
    value = found.get("value", "")
    if not (_is_number(value) or isinstance(value, str | list)):
        yield ".value: expected a number, a text or a list"


def about(document: Mapping[str, Any]) -> tuple[str, str]:
    """Device and kernel, as far as the file says them."""
    metadata = document["metadata"] if isinstance(document.get("metadata"), dict) else {}
    found = (metadata.get(name) for name in ("device", "kernel"))
    device, kernel = (each[:200] if isinstance(each, str) else "" for each in found)
    return device, kernel


def rows(document: Mapping[str, Any], where: str) -> tuple[dict[str, tuple[Value, ...]], tuple[PackRow, ...]]:
    """Parameters and rows of a recorded space; of a configuration that is there twice, the first. RequestError."""
    results: Sequence[Mapping[str, Any]] = document["results"]
    for number, each in enumerate(results):
        for name, value in each["configuration"].items():
            if not (value is None or isinstance(value, str) or type(value) is bool or _is_number(value)):
                raise RequestError(f"results[{number}].configuration.{name[:40]}: expected a plain value", where=where)
    values = _values([each["configuration"] for each in results])
    at = {name: {(type(value), value): level for level, value in enumerate(there)} for name, there in values.items()}
    found: dict[tuple[int, ...], PackRow] = {}
    for number, each in enumerate(results):
        config = each["configuration"]
        levels = tuple(at[name][type(config[name]), config[name]] if name in config else -1 for name in values)
        secs = each["times"].get("compilation_time", 0) / 1e3
        if each["invalidity"] != "correct":
            row = PackRow(levels=levels, failure=each["invalidity"], secs=secs)
        else:
            row = PackRow(levels=levels, samples_us=_samples(each, f"{where}: results[{number}]"), secs=secs)
        found.setdefault(levels, row)
    if not any(each.samples_us for each in found.values()):
        raise RequestError("no configuration of it was measured", where=where)
    return values, tuple(found.values())


def _values(configs: Sequence[Mapping[str, Value]]) -> dict[str, tuple[Value, ...]]:
    """The values of each parameter, as they come; numbers by size. 1, 1.0 and True are three values."""
    values: dict[str, dict[tuple[type, Value], Value]] = {}
    for config in configs:
        for name, value in config.items():
            values.setdefault(name, {}).setdefault((type(value), value), value)
    found = {}
    for name, there in values.items():
        numbers = all(_is_number(each) for each in there.values())
        found[name] = tuple(sorted(there.values(), key=float) if numbers else there.values())  # type: ignore[arg-type]
    return found


def _samples(result: Mapping[str, Any], where: str) -> tuple[float, ...]:
    """Microseconds: the runtimes, which T4 has in milliseconds, else the one number that stands for all of them."""
    runtimes = result["times"].get("runtimes") or []
    found = [each * 1e3 for each in runtimes if _is_number(each)]
    if len(found) != len(runtimes):
        raise RequestError("times.runtimes: expected numbers", where=where)
    if not found:
        times = [each for each in result.get("measurements") or () if each.get("name") == "time"]
        for each in times[:1]:
            unit = each.get("unit", "")
            if not _is_number(each.get("value")) or unit not in _US:
                raise RequestError(f"the time is {each.get('value')!r} {unit!r}; expected a number of ms", where=where)
            found = [each["value"] * _US[unit]]
    if not found:
        raise RequestError("has neither runtimes nor a measurement called 'time'", where=where)
    if min(found) <= 0:
        raise RequestError("times must be positive", where=where)
    return tuple(found)


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300  # type: ignore[arg-type]
