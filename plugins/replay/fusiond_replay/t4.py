"""Recorded spaces in the field's own formats: T4 (the results of Kernel Tuner, KTT, BAT) and Kernel Tuner's caches.

T4 is an object with `results`, each with `configuration`, `times` (`runtimes` in ms, `compilation`), `invalidity` and
`measurements` (name, value, unit). A cache is an object with `tune_params` and `cache`: the values joined by commas,
and for each the parameters, `time` (a number, or how it failed) and `times`, all in ms.
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from fusiond.model.errors import RequestError
from fusiond.model.nouns import Value
from fusiond.strategy.space import Parameter
from fusiond_replay import pack
from fusiond_replay.pack import FAILURES, UNITS, WARMUPS, Pack, Row

_UNITS = {**UNITS, "": 1e3, "milliseconds": 1e3, "miliseconds": 1e3, "seconds": 1e6, "microseconds": 1.0, "ns": 1e-3}
_CACHED = {"InvalidConfig": "constraints", "CompilationFailedConfig": "compile", "RuntimeFailedConfig": "runtime"}
"""Kernel Tuner's words in `time`."""


def read(path: Path) -> Pack:
    """A pack, a T4 file or a cache, gzip'd or plain: whichever it is. RequestError says what is wrong where."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    except OSError as problem:
        raise RequestError(f"cannot be read: {problem.strerror}", where=str(path)) from None
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError):
        raise RequestError("is damaged: neither gzip'd nor plain JSON", where=str(path)) from None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return pack.read(path)  # lines of JSON
    if isinstance(found, dict) and isinstance(found.get("results"), list):
        return _t4(found, path)
    if isinstance(found, dict) and isinstance(found.get("cache"), dict):
        return _cache(found, path)
    return pack.read(path)


def _t4(found: Mapping[str, Any], path: Path) -> Pack:
    metadata = found["metadata"] if isinstance(found.get("metadata"), dict) else {}
    configs, became = [], []
    for number, each in enumerate(found["results"]):
        where = f"{path}: results[{number}]"
        if not isinstance(each, dict) or not isinstance(each.get("configuration"), dict):
            raise RequestError("expected an object with 'configuration'", where=where)
        configs.append(each["configuration"])
        times = each["times"] if isinstance(each.get("times"), dict) else {}
        compiling = times.get("compilation", times.get("compilation_time", 0)) or 0
        secs = compiling / 1e3 if _is_number(compiling) else 0.0
        failure = each.get("invalidity", "correct")
        if failure != "correct":
            if failure not in FAILURES:
                raise RequestError(f"invalidity is {failure!r}; it can be correct, {', '.join(FAILURES)}", where=where)
            became.append({"failure": failure, "secs": secs})
            continue
        runtimes = times.get("runtimes")
        samples = [each * 1e3 for each in (runtimes if isinstance(runtimes, list) else ()) if _is_number(each)]
        warmups = WARMUPS if len(samples) > WARMUPS else 0
        became.append({"samples_us": samples[warmups:] or _measured(each, where), "secs": secs})
    return _pack(configs, became, path, device=_device(metadata), kernel=str(metadata.get("kernel") or ""))


def _measured(result: Mapping[str, Any], where: str) -> list[float]:
    """The one number that stands for all samples."""
    measurements = [each for each in result.get("measurements") or () if isinstance(each, dict)]
    for each in measurements:
        if each.get("name") == "time" and _is_number(each.get("value")):
            unit = each.get("unit", "")
            if unit not in _UNITS:
                raise RequestError(f"the unit of time is {unit!r}; it can be {', '.join(UNITS)}", where=where)
            return [each["value"] * _UNITS[unit]]
    raise RequestError("has neither runtimes nor a measurement called 'time'", where=where)


def _cache(found: Mapping[str, Any], path: Path) -> Pack:
    configs, became = [], []
    names = found.get("tune_params_keys") or list(found.get("tune_params") or ())
    for key, each in found["cache"].items():
        where = f"{path}: cache[{key!r}]"
        if not isinstance(each, dict) or not all(name in each for name in names):
            raise RequestError(f"expected an object with the parameters {', '.join(names)}", where=where)
        configs.append({name: each[name] for name in names})
        spent = [each.get(name) for name in ("compile_time", "verification_time", "benchmark_time")]
        secs = sum(float(one) for one in spent if _is_number(one)) / 1e3
        time = each.get("time")
        if _is_number(time):
            samples = [float(one) * 1e3 for one in each.get("times") or () if _is_number(one)]
            warmups = WARMUPS if len(samples) > WARMUPS else 0
            became.append({"samples_us": samples[warmups:] or [time * 1e3], "secs": secs})
        else:
            became.append({"failure": _CACHED.get(str(time), "runtime"), "secs": secs})
    given = found["tune_params"] if isinstance(found.get("tune_params"), dict) else {}
    device, kernel = (str(found.get(key) or "") for key in ("device_name", "kernel_name"))
    return _pack(configs, became, path, device=device, kernel=kernel, given=given)


def _pack(
    configs: Sequence[Mapping[str, Any]],
    became: Sequence[Mapping[str, Any]],
    path: Path,
    *,
    device: str,
    kernel: str,
    given: Mapping[str, Sequence[Value]] | None = None,
) -> Pack:
    if not configs:
        raise RequestError("holds no results", where=str(path))
    names = list(dict.fromkeys(name for each in configs for name in each))
    parameters = []
    for name in names:
        values = _values((each[name] for each in configs if name in each), (given or {}).get(name, ()))
        if not all(each is None or isinstance(each, bool | int | float | str) for each in values):
            raise RequestError(f"{name}: values must be numbers, texts, booleans or null", where=str(path))
        parameters.append(Parameter(name=name, values=values))
    positions = [{(type(each), each): k for k, each in enumerate(one.values)} for one in parameters]
    rows: dict[tuple[int, ...], Row] = {}
    for config, result in zip(configs, became, strict=True):
        levels = tuple(
            known[type(config[name]), config[name]] if name in config else -1
            for name, known in zip(names, positions, strict=True)
        )
        if result.get("samples_us") and min(result["samples_us"]) <= 0:
            raise RequestError(f"{dict(config)}: times must be positive", where=str(path))
        fields = {**result, "samples_us": tuple(result.get("samples_us", ()))}
        rows.setdefault(levels, Row(levels=levels, **fields))  # of a config that is there twice, the first
    if not any(each.samples_us for each in rows.values()):
        raise RequestError("no config of it was measured", where=str(path))
    name = path.name.removesuffix(".gz").removesuffix(".json")
    return Pack(
        name=name, device=device, kernel=kernel, parameters=tuple(parameters), rows=tuple(rows.values()), warmups=0
    )


def _values(found: Iterable[Any], given: Sequence[Any]) -> tuple[Any, ...]:
    """In the order given; what is not given there, numbers ascending, else as they come."""
    there = {(type(each), each if each.__hash__ else str(each)): each for each in found}
    known = [each for each in given if (type(each), each) in there]
    rest = [each for key, each in there.items() if key not in {(type(one), one) for one in known}]
    if all(_is_number(each) for each in rest):
        rest.sort()
    return (*known, *rest)


def _device(metadata: Mapping[str, Any]) -> str:
    environment = metadata.get("environment")
    device = metadata.get("device") or (environment.get("device_name") if isinstance(environment, dict) else "")
    return device if isinstance(device, str) else ""


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
