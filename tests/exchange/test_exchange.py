"""The file of what travels: twice is once, conflicts are settled alike everywhere, several writers at once."""

from __future__ import annotations

import itertools
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fusiond.model.errors import StoreError
from fusiond.store.exchange import transfer
from fusiond.store.exchange.database import Exchange
from fusiond.store.exchange.entry import ExchangeEntry, canonical
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
        family=body["workload"]["content_family_key"],
        devices=[body["device"]["key"]],
        cache="warm",
        sizes=canonical(body["workload"]["sizes"]),
    )
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
    "strategy_version": 2,
    "verdict": "keep",
    "verified": True,
    "processes": 5,
    "found_at": "2026-01-01T00:00:00+00:00",
}


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
        for signer, processes, verdict, day in (
            (SIGNERS[0], 5, "keep", 1),
            (SIGNERS[1], 5, "undecided", 2),
            (SIGNERS[2], 7, "keep", 1 + seed),
        )
    ]
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
