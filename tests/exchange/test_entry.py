"""The form of an entry: what is changed, cut short or hostile is refused, in a line, and nothing else happens."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusiond.store.exchange import entry as entries
from fusiond.store.exchange import signing
from fusiond.store.exchange.entry import ExchangeEntry, Refused, parse
from fusiond.store.exchange.signing import Signer

RFC_8032_SECRET = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"
RFC_8032_PUBLIC = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"


def checked(text: str | bytes) -> ExchangeEntry:
    found = parse(text)
    signing.verify(found)
    return found


def test_the_key_is_that_of_the_standard() -> None:
    assert Signer(bytes.fromhex(RFC_8032_SECRET)).public == RFC_8032_PUBLIC


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list) and value:
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(each, (*path, name))
    else:
        yield path


def changed(document: Any, path: tuple[Any, ...]) -> Any:
    found = copy.deepcopy(document)
    place = found
    for name in path[:-1]:
        place = place[name]
    old = place[path[-1]]
    other = {bool: not old if isinstance(old, bool) else None, int: 3, float: 3.5, str: "x"}
    place[path[-1]] = other.get(type(old), "x") if other.get(type(old), "x") != old else f"{old}1"
    return found


def test_no_leaf_can_be_changed(entry: ExchangeEntry) -> None:
    """With the old key the digest is wrong, with a new key the signature is."""
    document = json.loads(entry.line())
    tried = 0
    for path in leaves(document["body"]):
        other = changed(document, ("body", *path))
        with pytest.raises(Refused):
            checked(json.dumps(other))
        other["key"] = entries.digest(other["body"])
        with pytest.raises(Refused):
            checked(json.dumps(other))
        tried += 1
    assert tried > 50
    for path in list(leaves(document["programs"]))[::7]:
        with pytest.raises(Refused):
            checked(json.dumps(changed(document, ("programs", *path))))


def test_a_key_of_another_signs_nothing(entry: ExchangeEntry) -> None:
    other = Signer(bytes(range(32)))
    stolen = other.sign(entry.body, entry.programs)
    checked(stolen.line())  # what it says of itself
    assert stolen.key != entry.key  # is another entry, with another signer
    document = json.loads(entry.line())
    document["signature"] = stolen.signature
    with pytest.raises(Refused, match="not that of its signer"):
        checked(json.dumps(document))
    document["body"]["signer"] = "00" * 32  # no point of the curve that anybody has the key of
    document["key"] = entries.digest(document["body"])
    with pytest.raises(Refused):
        checked(json.dumps(document))


def signed(entry: ExchangeEntry, **body: Any) -> str:
    """What a hostile box can sign: anything."""
    found = Signer(bytes(range(32))).sign({**entry.body, **body}, entry.programs)
    return json.dumps({**found.head(), "programs": found.programs})


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"strategy": "../etc"}, "strategy"),
        ({"verdict": "best"}, "verdict"),
        ({"config": None}, "without a config"),
        ({"config": {"x": [1]}}, "config"),
        ({"config": {"x": 1 << 63}}, "64 bits"),
        ({"config": {"x": "a\0b"}}, "NUL"),
        ({"config": {"x" * 3000: 1}}, "characters"),
        ({"config": {f"x{each}": 1 for each in range(1000)}}, "at most 300"),
        ({"speedup": -1.0}, "speedup"),
        ({"ci95": [2.0, 1.0]}, "smaller number first"),
        ({"processes": 1 << 40}, "processes"),
        ({"found_at": "tomorrow"}, "found_at"),
        ({"baseline": "a\x1b[31m"}, "baseline"),
        ({"baseline": "\u202egnp.exe"}, "baseline"),
        ({"ended": "x" * 5000}, "ended"),
        ({"checks": ["x"] * 1000}, "checks"),
        ({"evidence": "emulated"}, "not that of its device"),
        ({"verified": 1}, "verified"),
        ({"program": {"key": "a" * 32, "digest": "../../etc/passwd"}}, "digest"),
        ({"source": "/etc/passwd"}, "unknown field"),
        ({"counted": [{"a": {"b": {}}}] * 3000}, "counted"),
        ({"figures": {"x": "a" * 300_000}}, "figures"),
        ({"environment": {str(each): "x" * 1999 for each in range(290)}}, "longer than 256 kB"),
    ],
)
def test_what_no_box_of_ours_would_say_is_refused(entry: ExchangeEntry, body: dict[str, Any], says: str) -> None:
    with pytest.raises(Refused, match=says):
        checked(signed(entry, **body))


def test_a_device_has_the_key_of_what_it_says_of_itself(entry: ExchangeEntry) -> None:
    with pytest.raises(Refused, match="is not the key of such a device"):
        checked(signed(entry, device={**entry.body["device"], "model": "Fake 2"}))


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"null", b"[]", b'"x"', b"{}", b'{"fusiond_answer": 2}', b"\xff\xfe", b'{"fusiond_answer": 1}',
        b'{"fusiond_answer": 1, "key": NaN}', b'{"fusiond_answer": 1, "key": 1e999}',
        b'{"fusiond_answer":' + b"[" * 99999,
        b'{"fusiond_answer": 1, "key": ' + b"9" * 5000 + b"}", b'{"fusiond_answer": 1, "key": "\\ud800"}',
        b'{"fusiond_answer": 1, "x": ' + b"[" * 60 + b"]" * 60 + b"}", b"x" * (entries.LINE_BYTES + 1),
    ],
)  # fmt: skip
def test_what_is_no_entry_is_refused(text: bytes) -> None:
    with pytest.raises(Refused) as problem:
        parse(text)
    assert "\n" not in str(problem.value)


def test_a_program_may_not_name_a_file(entry: ExchangeEntry) -> None:
    plan = copy.deepcopy(next(iter(entry.programs.values())))
    plan["buffers"][0]["fill"]["file"] = "/etc/passwd"
    name = entries.digest(plan)
    program = {"key": "a" * 32, "digest": name}
    found = Signer(bytes(range(32))).sign({**entry.body, "program": program}, {name: plan})
    with pytest.raises(Refused, match="names a file"):
        checked(found.line())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
        max_leaves=12,
    ),
    st.sampled_from(("key", "signature", "body", "programs")),
)
def test_nothing_but_refused_is_raised(value: Any, name: str) -> None:
    document = {"fusiond_answer": 1, "key": "a" * 64, "signature": "a" * 128, "body": {}, name: value}
    with pytest.raises(Refused):
        entries.of_document(document)
    with pytest.raises(Refused):
        parse(json.dumps(document))
