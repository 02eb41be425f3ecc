"""The file of what travels: twice is once, conflicts are settled alike everywhere, several writers at once."""

import copy
import itertools
import json
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusiond.model.errors import StoreError
from fusiond.store.exchange import entry as entries
from fusiond.store.exchange import signing, transfer
from fusiond.store.exchange.database import Exchange
from fusiond.store.exchange.entry import ExchangeEntry, Refused, canonical, parse
from fusiond.store.exchange.signing import Signer, key_file

SIGNERS = [Signer(bytes([each] * 32)) for each in (1, 2, 3)]


def dump(exchange: Exchange) -> list[Any]:
    with closing(sqlite3.connect(exchange.path)) as connection:
        return [
            connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
            for table in ("entries", "bodies", "programs", "signers")
        ]


def answer(entry: ExchangeEntry, signer: Signer = SIGNERS[0], **body: Any) -> ExchangeEntry:
    return signer.sign({**entry.body, **body}, entry.programs)


def served(exchange: Exchange, entry: ExchangeEntry) -> list[str]:
    body = entry.body
    found = exchange.find(
        family=body["workload"]["content_family_key"], devices=[body["device"]["key"]], cache="warm",
        sizes=canonical(body["workload"]["sizes"]),
    )  # fmt: skip
    return [each["key"] for each in found]


@pytest.fixture
def exchange(tmp_path: Path) -> Exchange:
    return Exchange(tmp_path / "x.exchange.sqlite")


def test_importing_twice_changes_nothing(exchange: Exchange, entry: ExchangeEntry, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    lines = [answer(entry, found_at=f"2026-01-0{day}T00:00:00+00:00").line() for day in range(1, 6)]
    path.write_text("\n".join([*lines, lines[0], ""]))
    found = transfer.read(exchange, transfer.of_file(path))
    assert (found.new, found.known, found.refused) == (5, 1, 0)
    before = dump(exchange)
    found = transfer.read(exchange, transfer.of_file(path))
    assert (found.new, found.known, found.refused) == (0, 6, 0)
    assert dump(exchange) == before
    again = tmp_path / "again.jsonl"
    assert transfer.write(exchange, again, exchange.keys()) == 5
    assert sorted(again.read_text().splitlines()) == sorted(lines)  # word for word what came


def test_programs_come_later_to_an_entry_that_lacked_them(exchange: Exchange, entry: ExchangeEntry) -> None:
    assert exchange.put([ExchangeEntry(entry.body, entry.key, entry.signature, {})]) == (1, 0)
    name = entry.body["program"]["digest"]
    assert exchange.program(name) is None
    assert exchange.put([entry]) == (0, 1)
    assert exchange.program(name) == canonical(entry.programs[name])


RULES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"strategy_version": 3}, {"strategy_version": 2, "processes": 90, "found_at": "2027-01-01T00:00:00+00:00"}),
    ({"verdict": "keep"}, {"verdict": "undecided", "processes": 90}),
    ({"verified": True}, {"verified": False, "processes": 90}),
    ({"processes": 9}, {"processes": 5, "found_at": "2027-01-01T00:00:00+00:00"}),
    ({"found_at": "2026-02-01T00:00:00+00:00"}, {"found_at": "2026-01-01T00:00:00+00:00"}),
)
PLAIN = {
    "strategy_version": 2, "verdict": "keep", "verified": True, "processes": 5, "found_at": "2026-01-01T00:00:00+00:00",
}  # fmt: skip


@pytest.mark.parametrize(("better", "worse"), RULES)
def test_of_two_answers_the_better_kept_is_served_whichever_came_first(
    exchange: Exchange, entry: ExchangeEntry, tmp_path: Path, better: dict[str, Any], worse: dict[str, Any]
) -> None:
    both = answer(entry, SIGNERS[0], **{**PLAIN, **better}), answer(entry, SIGNERS[1], **{**PLAIN, **worse})
    for number, order in enumerate(itertools.permutations(both)):
        other = Exchange(tmp_path / f"{number}.exchange.sqlite")
        for each in order:
            other.put([each])
        assert served(other, entry) == [both[0].key, both[1].key]
        other.trust(SIGNERS[1].public, "anna")  # whom one trusts comes before everything else
        assert served(other, entry) == [both[1].key, both[0].key]
        other.distrust(SIGNERS[1].public)
        other.refute(both[0].key, "wrong result")
        assert served(other, entry) == [both[1].key]


def test_of_what_one_signer_says_the_last_word_counts(exchange: Exchange, entry: ExchangeEntry) -> None:
    old = answer(entry, processes=90, found_at="2026-01-01T00:00:00+00:00")
    new = answer(entry, processes=5, found_at="2026-01-02T00:00:00+00:00")
    exchange.put([new, old])
    assert served(exchange, entry) == [new.key]


@pytest.mark.parametrize("seed", range(3))
def test_every_order_of_arrival_serves_the_same(entry: ExchangeEntry, tmp_path: Path, seed: int) -> None:
    """Brute force: of all answers that differ in two values, in any order, from three signers."""
    answers = [
        answer(entry, signer, processes=processes, verdict=verdict, found_at=f"2026-01-0{day}T00:00:00+00:00")
        for signer, processes, verdict, day in ((SIGNERS[0], 5, "keep", 1), (SIGNERS[1], 5, "undecided", 2),
                                                (SIGNERS[2], 7, "keep", 1 + seed))
    ]  # fmt: skip
    said = set()
    for number, order in enumerate(itertools.permutations(answers)):
        exchange = Exchange(tmp_path / f"{number}.exchange.sqlite")
        exchange.put(order)
        said.add(tuple(served(exchange, entry)))
    assert len(said) == 1


IMPORT = """
import sys
from pathlib import Path
from fusiond.store.exchange import transfer
from fusiond.store.exchange.database import Exchange
found = transfer.read(Exchange(sys.argv[1]), transfer.of_file(Path(sys.argv[2])))
print(found.new, found.known, found.refused)
"""


def test_two_importers_at_once(entry: ExchangeEntry, tmp_path: Path) -> None:
    path, target = tmp_path / "answers.jsonl", tmp_path / "x.exchange.sqlite"
    count = 250
    path.write_text("\n".join(answer(entry, trials=each).line() for each in range(count)))
    words = [sys.executable, "-c", IMPORT, str(target), str(path)]
    started = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [list(map(int, each.communicate(timeout=60)[0].split())) for each in started]
    assert all(each.returncode == 0 for each in started)
    assert sum(each[0] for each in said) == count  # each was new to one of them
    assert all(each[0] + each[1] == count and each[2] == 0 for each in said)
    with Exchange(target) as exchange:
        assert len(exchange.keys()) == count


def test_bad_lines_disturb_no_good_ones(exchange: Exchange, entry: ExchangeEntry, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    good = [answer(entry, trials=each).line().encode() for each in range(3)]
    long = b'{"fusiond_answer": 1, "x": "' + b"y" * 9_000_000 + b'"}'
    path.write_bytes(b"\n".join([good[0], b"{", b"", long, good[1], good[1][:-200], b"\xff", good[2]]))
    found = transfer.read(exchange, transfer.of_file(path))
    assert (found.new, found.refused) == (3, 4)
    assert [each.partition(":")[0] for each in found.why] == ["line 2", "line 4", "line 6", "line 7"]
    assert found.untrusted == {SIGNERS[0].public}


def test_a_claim_is_held_by_one_and_expires(exchange: Exchange) -> None:
    assert exchange.claim("q", "a", 60, at=1000.0) == (True, "a", 1060.0)
    assert exchange.claim("q", "b", 60, at=1010.0) == (False, "a", 1060.0)
    assert exchange.claim("q", "a", 60, at=1050.0) == (True, "a", 1110.0)  # for longer
    assert exchange.claim("other", "b", 60, at=1050.0)[0]
    assert exchange.claim("q", "b", 60, at=1110.0) == (True, "b", 1170.0)
    exchange.release("q", "a")  # too late: it is no longer its own
    assert not exchange.claim("q", "a", 60, at=1120.0)[0]
    exchange.release("q", "b")
    assert exchange.claim("q", "a", 60, at=1120.0)[0]


def test_of_many_that_claim_at_once_one_gets_it(exchange: Exchange) -> None:
    granted: list[str] = []

    def ask(name: str) -> None:
        if exchange.claim("q", name, 60, 1.0)[0]:
            granted.append(name)

    threads = [threading.Thread(target=ask, args=[f"box{each}"]) for each in range(16)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(granted) == 1


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    store = tmp_path / "fusiond.sqlite"
    old = os.umask(0)
    try:
        signer = Signer.of(store)
        Exchange.beside(store).close()
    finally:
        os.umask(old)
    for path in (key_file(store), tmp_path / "fusiond.exchange.sqlite"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Signer.of(store).public == signer.public  # made once
    key_file(store).chmod(0o644)
    with pytest.raises(StoreError, match="others can read the signing key"):
        Signer.of(store)
    key_file(store).chmod(0o600)
    key_file(store).write_text("ab" * 31)
    with pytest.raises(StoreError, match="not a signing key, or a damaged one"):
        Signer.of(store)


# --- the form of an entry -------------------------------------------------------------------------------


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
        ({"strategy": "../etc"}, "strategy"), ({"verdict": "best"}, "verdict"),
        ({"config": None}, "without a config"), ({"config": {"x": [1]}}, "config"),
        ({"config": {"x": 1 << 63}}, "64 bits"), ({"config": {"x": "a\0b"}}, "NUL"),
        ({"config": {"x" * 3000: 1}}, "characters"),
        ({"config": {f"x{each}": 1 for each in range(1000)}}, "at most 300"), ({"speedup": -1.0}, "speedup"),
        ({"ci95": [2.0, 1.0]}, "smaller number first"), ({"processes": 1 << 40}, "processes"),
        ({"found_at": "tomorrow"}, "found_at"), ({"baseline": "a\x1b[31m"}, "baseline"),
        ({"baseline": "\u202egnp.exe"}, "baseline"), ({"ended": "x" * 5000}, "ended"),
        ({"checks": ["x"] * 1000}, "checks"), ({"evidence": "emulated"}, "not that of its device"),
        ({"verified": 1}, "verified"), ({"program": {"key": "a" * 32, "digest": "../../etc/passwd"}}, "digest"),
        ({"source": "/etc/passwd"}, "unknown field"), ({"counted": [{"a": {"b": {}}}] * 3000}, "counted"),
        ({"figures": {"x": "a" * 300_000}}, "figures"),
        ({"environment": {str(each): "x" * 1999 for each in range(290)}}, "longer than 256 kB"),
    ],
)  # fmt: skip
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
