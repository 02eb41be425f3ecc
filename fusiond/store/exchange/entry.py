"""One answer as it travels: a line of JSON that says all of itself. Standard library only.

    {"fusiond_answer": 1, "key": K, "signature": S, "body": {...}, "programs": {DIGEST: plan, ...}}

`body` is the answer with its question, device and environment, and the ed25519 public key of who signed it
(`signer`). K is the SHA-256 of the body's canonical text, so an entry never changes: another content has another key.
S signs that text. The plans of the fused and of the unfused program stand beside the body, which holds their SHA-256
digests: an entry is the same one with or without them.

A line comes from a stranger. Its length, depth, numbers and texts are bounded, unknown fields are refused, and no path
is in it: neither of sources nor of data, and no binary.
"""

from __future__ import annotations

import json
import math
import re

from fusiond.model.keys import content_key
from fusiond.store.format import lookup_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

VERSION = 1
LINE_BYTES = 8_000_000
BODY_BYTES = 256_000
MOST_DEPTH = 40
MOST_NAMES = 300  #: Sizes, knobs, figures
TEXT = 2000  #: Characters of a name or of a line for people
SIGNED = b"fusiond answer 1\0"
"""Stands before the text that is signed: a signature of fusiond's is good for nothing else."""
VERDICTS = ("fuse", "keep", "undecided", "tuned", "promising", "unpromising")
EVIDENCE = ("measured", "emulated", "counted", "replayed")

_KEY = re.compile(r"[0-9a-f]{32}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SIGNATURE = re.compile(r"[0-9a-f]{128}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?\+00:00")
_WORD = re.compile(r"[A-Za-z0-9_.:+-]{1,100}")
_LIMITS = (
    "multiprocessors", "shared_bytes_per_sm", "shared_bytes_per_block", "threads_per_sm", "blocks_per_sm",
)  # fmt: skip
"""What a device says of itself at least."""


class Refused(ValueError):
    """A line that is not an entry, or one that is not taken; the text says why, in a line."""


def canonical(value: object) -> str:
    """The one text of JSON values. ValueError for what JSON has no number for."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(value: object) -> str:
    """SHA-256 of the canonical text, 64 hexadecimal digits."""
    from hashlib import sha256  # 3 ms that a look-up goes without

    return sha256(canonical(value).encode()).hexdigest()


class ExchangeEntry:
    """A line whose form was checked; `signing.verify` says whether its signature is right."""

    __slots__ = ("body", "key", "programs", "signature")

    def __init__(self, body: dict[str, Any], key: str, signature: str, programs: dict[str, dict[str, Any]]) -> None:
        self.body, self.key, self.signature, self.programs = body, key, signature, programs

    @property
    def signer(self) -> str:
        signer: str = self.body["signer"]
        return signer

    @property
    def lookup_name(self) -> str:
        return lookup_name(self.body["workload"]["name"])

    def head(self) -> dict[str, Any]:
        """The envelope without programs."""
        return {"fusiond_answer": VERSION, "key": self.key, "signature": self.signature, "body": self.body}

    def line(self) -> str:
        """All of it, without a line end."""
        return canonical({**self.head(), "programs": self.programs})


def parse(text: str | bytes) -> ExchangeEntry:
    """The entry of a line. Refused, with what is wrong where."""
    if len(text) > LINE_BYTES:
        raise Refused(f"longer than {LINE_BYTES // 1_000_000} MB")
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError:
            raise Refused("not UTF-8") from None
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise Refused("nested too deeply") from None
    except ValueError as problem:
        why = str(problem)
        raise Refused(why if why.startswith("the number") else "not JSON, or cut short") from None
    return of_document(found)


def of_document(found: object) -> ExchangeEntry:
    """The entry of JSON values. Refused, with what is wrong where."""
    if not isinstance(found, dict) or "fusiond_answer" not in found:
        raise Refused("not an answer of fusiond")
    if found["fusiond_answer"] != VERSION:
        raise Refused(f"form {str(found['fusiond_answer'])[:20]!r}; this fusiond reads form {VERSION}")
    _check_values(found, 0)
    _fields(found, {
        "fusiond_answer": lambda value, where: None,
        "key": _matching(_DIGEST, "64 hexadecimal digits"),
        "signature": _matching(_SIGNATURE, "128 hexadecimal digits"),
        "body": _body,
        "programs": _programs,
    }, "", optional=("programs",))  # fmt: skip
    body = found["body"]
    try:
        text = canonical(body)
        if len(text) > BODY_BYTES:
            raise Refused(f"body: longer than {BODY_BYTES // 1000} kB")
        right = digest(body) == found["key"]
        programs = found.get("programs", {})
        wrong = [each for each, plan in programs.items() if digest(plan) != each]
    except (RecursionError, UnicodeEncodeError, OverflowError, ValueError) as problem:
        if isinstance(problem, Refused):
            raise
        raise Refused(f"holds what JSON cannot say: {problem}") from None
    if not right:
        raise Refused("key: is not the digest of its body")
    if wrong:
        raise Refused(f"programs: {wrong[0][:12]} is not the digest of its plan")
    named = {each["digest"] for each in (body["program"], body["unfused"]) if each is not None}
    strangers = set(programs) - named
    if strangers:
        raise Refused(f"programs: {min(strangers)[:12]} is none of the answer's")
    return ExchangeEntry(body, found["key"], found["signature"], programs)


# --- what stands where ----------------------------------------------------------------------------------


def _no_constant(word: str) -> float:
    raise ValueError(f"the number {word}")


def _check_values(value: object, depth: int) -> None:
    """Bounds that hold everywhere: depth, whole numbers of 64 bits, finite ones, texts that are Unicode."""
    if depth > MOST_DEPTH:
        raise Refused("nested too deeply")
    if isinstance(value, dict):
        for name, each in value.items():
            _check_values(name, depth + 1)
            _check_values(each, depth + 1)
    elif isinstance(value, list):
        for each in value:
            _check_values(each, depth + 1)
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Refused("a text is not Unicode") from None
        if "\0" in value:
            raise Refused("a text holds a NUL")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise Refused("a number is not finite")
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 63:
        raise Refused("a number is longer than 64 bits")


def _fields(
    value: object, checks: Mapping[str, Callable[[Any, str], None]], where: str, optional: tuple[str, ...] = ()
) -> None:
    """An object with exactly these fields."""
    at = f"{where}: " if where else ""
    if not isinstance(value, dict):
        raise Refused(f"{at}expected an object")
    for name in value:
        if name not in checks:
            raise Refused(f"{at}unknown field {name[:40]!r}")
    for name, check in checks.items():
        if name in value:
            check(value[name], f"{where}.{name}" if where else name)
        elif name not in optional:
            raise Refused(f"{at}the field {name!r} is missing")


def _matching(pattern: re.Pattern[str], said: str) -> Callable[[Any, str], None]:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise Refused(f"{where}: expected {said}")

    return check


def _text(value: Any, where: str) -> None:
    if not isinstance(value, str) or len(value) > TEXT:
        raise Refused(f"{where}: expected a text of at most {TEXT} characters")


def _name(value: Any, where: str) -> None:
    _text(value, where)
    if not value.strip() or not value.isprintable():
        raise Refused(f"{where}: expected a name")


def _one_of(*words: str) -> Callable[[Any, str], None]:
    def check(value: Any, where: str) -> None:
        if value not in words:
            raise Refused(f"{where}: expected one of {', '.join(words)}")

    return check


def _whole(least: int, most: int) -> Callable[[Any, str], None]:
    def check(value: Any, where: str) -> None:
        if type(value) is not int or not least <= value <= most:
            raise Refused(f"{where}: expected a whole number from {least} to {most}")

    return check


def _number(value: Any, where: str, *, positive: bool = False) -> None:
    if type(value) not in (int, float) or (positive and value <= 0):
        raise Refused(f"{where}: expected a {'positive ' if positive else ''}number")


def _time_us(value: Any, where: str) -> None:
    _number(value, where)
    if not 0 <= value < 1e15:
        raise Refused(f"{where}: expected microseconds")


def _maybe(check: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
    return lambda value, where: None if value is None else check(value, where)


def _flag(value: Any, where: str) -> None:
    if type(value) is not bool:
        raise Refused(f"{where}: expected true or false")


def _mapping(check: Callable[[Any, str], None], most: int = MOST_NAMES) -> Callable[[Any, str], None]:
    def checked(value: Any, where: str) -> None:
        if not isinstance(value, dict) or len(value) > most:
            raise Refused(f"{where}: expected an object of at most {most} fields")
        for name, each in value.items():
            _name(name, where)
            check(each, f"{where}.{name[:40]}")

    return checked


def _list(check: Callable[[Any, str], None], most: int) -> Callable[[Any, str], None]:
    def checked(value: Any, where: str) -> None:
        if not isinstance(value, list) or len(value) > most:
            raise Refused(f"{where}: expected a list of at most {most}")
        for each in value:
            check(each, where)

    return checked


def _scalar(value: Any, where: str) -> None:
    if not (value is None or isinstance(value, bool | int | float)):
        _text(value, where)


def _interval(value: Any, where: str) -> None:
    if not isinstance(value, list) or len(value) != 2:
        raise Refused(f"{where}: expected two numbers")
    for each in value:
        _number(each, where, positive=True)
    if value[0] > value[1]:
        raise Refused(f"{where}: expected the smaller number first")


def _counted_row(value: Any, where: str) -> None:
    if not isinstance(value, dict) or len(value) > MOST_NAMES:
        raise Refused(f"{where}: expected objects")


def _device(value: Any, where: str) -> None:
    _fields(value, {
        "key": _matching(_KEY, "32 hexadecimal digits"), "name": _name, "model": _name, "arch": _name,
        "memory_bytes": _whole(0, 1 << 50), "mig": _text, "evidence": _one_of(*EVIDENCE), "limits": _limits,
    }, where)  # fmt: skip
    key = content_key([
        value["model"], value["arch"], value["limits"]["multiprocessors"], value["memory_bytes"] >> 30, value["mig"],
        value["evidence"],
    ])  # fmt: skip
    if key != value["key"]:
        raise Refused(f"{where}.key: is not the key of such a device")


def _limits(value: Any, where: str) -> None:
    _mapping(_maybe(_whole(0, 1 << 50)))(value, where)
    for name in _LIMITS:
        if value.get(name) is None:
            raise Refused(f"{where}: the field {name!r} is missing")


def _program(value: Any, where: str) -> None:
    _fields(value, {
        "key": _matching(_KEY, "32 hexadecimal digits"), "digest": _matching(_DIGEST, "64 hexadecimal digits"),
    }, where)  # fmt: skip


def _workload(value: Any, where: str) -> None:
    key = _matching(_KEY, "32 hexadecimal digits")
    _fields(value, {
        "key": key, "family_key": key, "content_key": key, "content_family_key": key, "name": _name,
        "sizes": _mapping(_whole(1, 1 << 62)),
    }, where)  # fmt: skip


def _programs(value: Any, where: str) -> None:
    if not isinstance(value, dict) or len(value) > 2:
        raise Refused(f"{where}: expected the plans of at most two programs")
    for name, plan in value.items():
        _matching(_DIGEST, "64 hexadecimal digits")(name, where)
        if not isinstance(plan, dict):
            raise Refused(f"{where}.{name[:12]}: expected a plan")
        buffers = plan.get("buffers")
        for each in buffers if isinstance(buffers, list) else ():
            fill = each.get("fill") if isinstance(each, dict) else None
            if isinstance(fill, dict) and fill.get("file") is not None:
                raise Refused(f"{where}.{name[:12]}: names a file")


_BODY: Mapping[str, Callable[[Any, str], None]] = {
    "signer": _matching(_DIGEST, "a public key of 64 hexadecimal digits"),
    "strategy": _matching(_WORD, "a strategy's name"),
    "strategy_version": _whole(0, 1 << 31),
    "fusiond": _matching(_WORD, "a version"),
    "workload": _workload,
    "device": _device,
    "environment": _mapping(_text),
    "cache": _one_of("warm", "cold"),
    "evidence": _one_of(*EVIDENCE),
    "verdict": _one_of(*VERDICTS),
    "config": _maybe(_mapping(_scalar)),
    "program": _maybe(_program),
    "time_us": _maybe(_time_us),
    "baseline": _name,
    "baseline_us": _time_us,
    "baseline_config": _maybe(_mapping(_scalar)),
    "unfused": _maybe(_program),
    "speedup": _maybe(lambda value, where: _number(value, where, positive=True)),
    "ci95": _maybe(_interval),
    "verified": _flag,
    "checks": _list(_text, 100),
    "figures": _mapping(_number),
    "counted": _list(_counted_row, 2000),
    "trials": _whole(0, 1 << 31),
    "processes": _whole(0, 1 << 20),
    "ended": _text,
    "found_at": _matching(_TIME, "a time in UTC, as 2026-11-24T12:00:00+00:00"),
}


def _body(value: Any, where: str) -> None:
    _fields(value, _BODY, where)
    if value["evidence"] != value["device"]["evidence"]:
        raise Refused(f"{where}.evidence: is not that of its device")
    wins = value["verdict"] in ("fuse", "tuned", "promising")
    if wins and (value["config"] is None or value["speedup"] is None or value["ci95"] is None):
        raise Refused(f"{where}.verdict: {value['verdict']!r} without a config, a speed-up and its interval")
    if value["evidence"] != "counted" and value["verdict"] in ("promising", "unpromising"):
        raise Refused(f"{where}.verdict: {value['verdict']!r} is for what is counted")
    if value["evidence"] == "counted" and value["verdict"] in ("fuse", "keep", "tuned"):
        raise Refused(f"{where}.verdict: {value['verdict']!r} is for what ran")
