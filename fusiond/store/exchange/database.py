"""The exchange file beside the store: entries, trusted keys, tokens, claims. Standard library only.

    entries     each answer once, by its key; `rank` columns say which of several is served
    bodies      the envelopes, word for word
    programs    plans by the digest of their text
    signers     public keys that are trusted here
    tokens      who may read and write over HTTP, by the digest of their token
    claims      who tunes which question now, until when
    marks       up to which answer of the store each upstream has been told

`find` is what a box upstream does thousands of times a second. Any thread may call any method; transactions are
short. What was acknowledged is on disk.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import zlib

from fusiond.model.errors import StoreError, StoreUnavailable
from fusiond.store.exchange.entry import ExchangeEntry, canonical
from fusiond.store.file_permissions import make_folder, make_private
from fusiond.store.format import disk_full, exchange_file, now, persist
from fusiond.store.location import refuse_network

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

VERSION = 1
_APPLICATION = 0x66757865  #: `fuxe`, in the header
MOST_BYTES = 16 << 30  #: The file grows no further: what strangers send cannot fill a disk
_PAGE = 4096
_BUSY_SECS = 10.0
_AT_ONCE = 400

_TABLES = """
CREATE TABLE entries (
    key TEXT PRIMARY KEY, signer TEXT NOT NULL, own INTEGER NOT NULL, lookup_name TEXT NOT NULL, family TEXT NOT NULL,
    sizes TEXT NOT NULL, content_key TEXT NOT NULL, workload_key TEXT NOT NULL, device_key TEXT NOT NULL,
    cache TEXT NOT NULL, evidence TEXT NOT NULL, strategy TEXT NOT NULL, strategy_version INTEGER NOT NULL,
    decided INTEGER NOT NULL, verified INTEGER NOT NULL, processes INTEGER NOT NULL, found_at TEXT NOT NULL,
    imported_at TEXT NOT NULL, refuted TEXT
) WITHOUT ROWID;
CREATE INDEX entries_of_question ON entries (family, device_key, cache);
CREATE INDEX entries_of_name ON entries (lookup_name);
CREATE INDEX entries_of_workload ON entries (workload_key, device_key, cache);
CREATE TABLE bodies (number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, envelope BLOB NOT NULL);
CREATE TABLE programs (digest TEXT PRIMARY KEY, plan BLOB NOT NULL);
CREATE TABLE signers (public TEXT PRIMARY KEY, name TEXT NOT NULL, trusted_at TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE tokens (
    name TEXT PRIMARY KEY, rights TEXT NOT NULL, digest TEXT NOT NULL UNIQUE, made_at TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE claims (
    question TEXT PRIMARY KEY, holder TEXT NOT NULL, expires REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE marks (target TEXT PRIMARY KEY, record INTEGER NOT NULL) WITHOUT ROWID;
"""

_RANK = (
    "EXISTS (SELECT 1 FROM signers s WHERE s.public = e.signer) DESC, e.strategy_version DESC, e.decided DESC, "
    "e.verified DESC, e.processes DESC, e.found_at DESC, e.key"
)
"""Which of several entries to one question is served: a trusted signer's first, then the newest version of the
strategy, what is decided before what is too close to call, what was compared with the unfused outputs, more processes,
the latest. The key settles the rest, so that every box decides alike."""
_SERVED = (
    "e.refuted IS NULL AND NOT EXISTS (SELECT 1 FROM entries l INDEXED BY entries_of_question "
    "WHERE l.family = e.family AND l.device_key = e.device_key AND l.cache = e.cache AND l.sizes = e.sizes "
    "AND l.signer = e.signer AND (l.found_at > e.found_at OR (l.found_at = e.found_at AND l.key > e.key)))"
)
"""Of what one signer said to a question, the last word."""


class Exchange:
    """The open file. Every method may raise StoreError, StoreUnavailable where trying again may help."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the file, which is made when it is missing."""
        self.path = os.path.abspath(path)
        self._lock = threading.Lock()
        self._local = threading.local()
        self._all: list[sqlite3.Connection] = []
        where = os.path.dirname(self.path)
        try:
            make_folder(where)
        except OSError as problem:
            raise StoreError(f"{where}: the folder cannot be made: {problem.strerror}") from None
        from pathlib import Path

        refuse_network(Path(self.path))
        make_private(self.path)
        with self._translated():
            self._writer = self._connect("rw")
            self._prepare()

    @classmethod
    def beside(cls, store: Path | str) -> Exchange:
        """That of a store."""
        return cls(exchange_file(os.fspath(store)))

    def close(self) -> None:
        with self._lock:
            for each in (*self._all, self._writer):
                each.close()
            self._all.clear()

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self, mode: str) -> sqlite3.Connection:
        where = self.path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        connection = sqlite3.connect(
            f"file://{where}?mode={mode}", uri=True, timeout=_BUSY_SECS, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA trusted_schema = OFF")
        return connection

    def _prepare(self) -> None:
        writer = self._writer
        found = tuple(writer.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
        if found == (0, 0):
            if writer.execute("SELECT 1 FROM sqlite_master").fetchone():
                raise StoreError(f"{self.path}: this is a SQLite file, but not one of fusiond's; move it away")
            persist(lambda: writer.execute("PRAGMA journal_mode = WAL"))
            with self._writing() as connection:
                if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                    for each in _TABLES.split(";"):
                        connection.execute(each)
                    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                    connection.execute(f"PRAGMA user_version = {VERSION}")
        elif found[0] != _APPLICATION:
            raise StoreError(f"{self.path}: this is a SQLite file, but not an exchange of fusiond's; move it away")
        elif found[1] > VERSION:
            raise StoreError(f"{self.path}: written by a newer fusiond (form {found[1]}); upgrade fusiond")
        writer.execute("PRAGMA synchronous = FULL")
        writer.execute(f"PRAGMA max_page_count = {MOST_BYTES // _PAGE}")

    @property
    def _reader(self) -> sqlite3.Connection:
        """This thread's own connection, kept open."""
        found: sqlite3.Connection | None = getattr(self._local, "reader", None)
        if found is None:
            found = self._connect("ro")
            found.execute("PRAGMA cache_size = -16000")
            self._local.reader = found
            with self._lock:
                self._all.append(found)
        return found

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as problem:
            raise _explained(self.path, problem) from problem

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, on disk at the end."""
        with self._lock, self._translated():
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise

    def _rows(self, sql: str, parameters: Sequence[object] | Mapping[str, object] = ()) -> list[tuple[Any, ...]]:
        with self._translated():
            return self._reader.execute(sql, parameters).fetchall()

    # --- entries ---

    def put(self, entries: Iterable[ExchangeEntry], *, own: bool = False) -> tuple[int, int]:
        """Keep entries whose signatures were verified: how many were new, and how many were known. One that is known
        stays as it is; programs that it lacked are added."""
        new = known = 0
        with self._writing() as connection:
            for each in entries:
                body, workload = each.body, each.body["workload"]
                row = (
                    each.key, each.signer, int(own), each.lookup_name, workload["content_family_key"],
                    canonical(workload["sizes"]), workload["content_key"], workload["key"], body["device"]["key"],
                    body["cache"], body["evidence"], body["strategy"], body["strategy_version"],
                    int(body["verdict"] != "undecided"), int(body["verified"]), body["processes"],
                    body["found_at"], now(), None,
                )  # fmt: skip
                marks = ", ".join("?" * len(row))
                came = connection.execute(f"INSERT OR IGNORE INTO entries VALUES ({marks})", row).rowcount
                if came:
                    envelope = packed(canonical(each.head()))
                    values = [each.key, envelope]
                    connection.execute("INSERT OR IGNORE INTO bodies (key, envelope) VALUES (?, ?)", values)
                new, known = new + came, known + 1 - came
                for name, plan in each.programs.items():
                    if not connection.execute("SELECT 1 FROM programs WHERE digest = ?", [name]).fetchone():
                        connection.execute("INSERT INTO programs VALUES (?, ?)", [name, packed(canonical(plan))])
        return new, known

    def find(
        self, *, family: str, devices: Sequence[str], cache: str, sizes: str | None = None, own: bool = True
    ) -> list[dict[str, Any]]:
        """The entries to a question, the one that is served first: `key`, `signer`, `trusted`, `sizes`, `device_key`,
        `strategy`, `strategy_version`. `sizes`: the canonical text of all of them, None for any. Without `own`, those
        that this box has not said itself."""
        marks = ", ".join("?" * len(devices))
        where = [f"e.family = ? AND e.device_key IN ({marks}) AND e.cache = ?", _SERVED]
        given: list[object] = [family, *devices, cache]
        if sizes is not None:
            where.append("e.sizes = ?")
            given.append(sizes)
        return self._found(where, given, own)

    def of_name(self, lookup_name: str, *, cache: str) -> list[dict[str, Any]]:
        """The same for a name, of any content and device; without this box's own."""
        return self._found(["e.lookup_name = ? AND e.cache = ?", _SERVED], [lookup_name, cache], False)

    def of_workload(self, workload_key: str, device_key: str, cache: str) -> list[dict[str, Any]]:
        """Those of trusted signers to a workload, without this box's own."""
        where = ["e.workload_key = ? AND e.device_key = ? AND e.cache = ?", _SERVED]
        found = self._found(where, [workload_key, device_key, cache], False)
        return [each for each in found if each["trusted"]]

    def _found(self, where: list[str], given: list[object], own: bool) -> list[dict[str, Any]]:
        if not own:
            where = [*where, "e.own = 0"]
        names = ("key", "signer", "sizes", "device_key", "family", "evidence", "strategy", "strategy_version")
        rows = self._rows(
            f"SELECT {', '.join(f'e.{name}' for name in names)}, "
            "EXISTS (SELECT 1 FROM signers s WHERE s.public = e.signer) "
            f"FROM entries e WHERE {' AND '.join(where)} ORDER BY {_RANK} LIMIT {_AT_ONCE}",
            given,
        )
        return [{**dict(zip(names, row[:-1], strict=True)), "trusted": bool(row[-1])} for row in rows]

    def listed(self, *, own: bool | None = None) -> list[dict[str, Any]]:
        """Every entry, the last that came first: `key`, `signer`, `own`, `refuted`, `imported_at`."""
        names = ("key", "signer", "own", "refuted", "imported_at")
        where = "" if own is None else f"WHERE e.own = {int(own)}"
        rows = self._rows(f"SELECT {', '.join(names)} FROM entries e {where} ORDER BY imported_at DESC, key")
        return [dict(zip(names, row, strict=True)) for row in rows]

    def keys(self, *, own: bool | None = None) -> list[str]:
        """Of all entries, in an order that is the same everywhere."""
        where = "" if own is None else f"WHERE own = {int(own)}"
        return [key for (key,) in self._rows(f"SELECT key FROM entries {where} ORDER BY found_at, key")]

    def own_after(self, number: int, limit: int) -> list[tuple[int, str]]:
        """This box's own entries that came after one, each with its number, in the order in which they came."""
        return self._rows(
            "SELECT b.number, b.key FROM bodies b JOIN entries e USING (key) WHERE b.number > ? AND e.own = 1 "
            "ORDER BY b.number LIMIT ?",
            [number, limit],
        )

    def envelope(self, key: str) -> str | None:
        """The canonical text of an entry without programs; None when there is none of that key."""
        rows = self._rows("SELECT envelope FROM bodies WHERE key = ?", [key])
        return unpacked(rows[0][0], self.path) if rows else None

    def program(self, digest: str) -> str | None:
        """The canonical text of a plan; None when it is not here."""
        rows = self._rows("SELECT plan FROM programs WHERE digest = ?", [digest])
        return unpacked(rows[0][0], self.path) if rows else None

    def refute(self, key: str, reason: str) -> None:
        """Serve an entry no more: this box has found that it is not right here."""
        with self._writing() as connection:
            connection.execute("UPDATE entries SET refuted = ? WHERE key = ?", [reason[:500], key])

    def forget(self, lookup_name: str, devices: Sequence[str] | None = None) -> int:
        """Give up what is here about a name, on these devices or on all; how many entries there were."""
        where = "lookup_name = ?" + (
            f" AND device_key IN ({', '.join('?' * len(devices))})" if devices is not None else ""
        )
        given = [lookup_name, *(devices or ())]
        with self._writing() as connection:
            keys = [key for (key,) in connection.execute(f"SELECT key FROM entries WHERE {where}", given).fetchall()]
            for key in keys:
                connection.execute("DELETE FROM entries WHERE key = ?", [key])
                connection.execute("DELETE FROM bodies WHERE key = ?", [key])
        return len(keys)

    def own_signers(self) -> set[str]:
        """The public keys that this box has signed with."""
        return {target[4:] for (target,) in self._rows("SELECT target FROM marks WHERE target LIKE 'own %'")}

    def count(self) -> dict[str, int]:
        """How many entries there are: `own` and `imported`."""
        rows = dict(self._rows("SELECT own, count(*) FROM entries GROUP BY own"))
        return {"own": rows.get(1, 0), "imported": rows.get(0, 0)}

    def behind(self, target: str) -> int:
        """How many of this box's own answers a target was not told yet."""
        sql = "SELECT count(*) FROM bodies JOIN entries USING (key) WHERE own AND number > ?"
        return int(self._rows(sql, [self.mark(target)])[0][0])

    def claimed(self, at: float) -> int:
        """How many claims hold at a Unix time."""
        return int(self._rows("SELECT count(*) FROM claims WHERE expires > ?", [at])[0][0])

    # --- keys ---

    def trust(self, public: str, name: str) -> None:
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO signers VALUES (?, ?, ?)", [public, name, now()])

    def distrust(self, public: str) -> bool:
        with self._writing() as connection:
            return bool(connection.execute("DELETE FROM signers WHERE public = ?", [public]).rowcount)

    def signers(self) -> dict[str, str]:
        """Public key -> name, of those that are trusted."""
        return dict(self._rows("SELECT public, name FROM signers ORDER BY trusted_at, public"))

    # --- tokens ---

    def add_token(self, name: str, rights: str, digest: str) -> None:
        """StoreError for a name that has one."""
        with self._writing() as connection:
            if connection.execute("SELECT 1 FROM tokens WHERE name = ?", [name]).fetchone():
                raise StoreError(f"there is a token for {name} already; `fusiond tokens remove {name}` first")
            connection.execute("INSERT INTO tokens VALUES (?, ?, ?, ?)", [name, rights, digest, now()])

    def remove_token(self, name: str) -> bool:
        with self._writing() as connection:
            return bool(connection.execute("DELETE FROM tokens WHERE name = ?", [name]).rowcount)

    def tokens(self) -> list[dict[str, str]]:
        rows = self._rows("SELECT name, rights, made_at FROM tokens ORDER BY name")
        return [dict(zip(("name", "rights", "made_at"), row, strict=True)) for row in rows]

    def rights(self, digest: str) -> tuple[str, str] | None:
        """Name and rights of a token by its digest."""
        rows = self._rows("SELECT name, rights FROM tokens WHERE digest = ?", [digest])
        return (rows[0][0], rows[0][1]) if rows else None

    # --- claims ---

    def claim(self, question: str, holder: str, secs: float, at: float) -> tuple[bool, str, float]:
        """Ask to tune a question alone until `secs` after the Unix time `at`: whether that was granted, who holds it
        now, and until when. Who holds it already holds it for longer; a claim that has expired is nobody's."""
        with self._writing() as connection:
            row = connection.execute("SELECT holder, expires FROM claims WHERE question = ?", [question]).fetchone()
            if row is not None and row[0] != holder and row[1] > at:
                return False, row[0], row[1]
            connection.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?)", [question, holder, at + secs])
            connection.execute("DELETE FROM claims WHERE expires <= ?", [at])
        return True, holder, at + secs

    def release(self, question: str, holder: str) -> None:
        with self._writing() as connection:
            connection.execute("DELETE FROM claims WHERE question = ? AND holder = ?", [question, holder])

    # --- marks ---

    def mark(self, target: str) -> int:
        """The number of the last answer of the store that a target was told."""
        rows = self._rows("SELECT record FROM marks WHERE target = ?", [target])
        return int(rows[0][0]) if rows else 0

    def has_upstreams(self) -> bool:
        """Whether a daemon of this store has ever had anybody to ask."""
        return bool(self._rows("SELECT 1 FROM marks WHERE target NOT LIKE 'own %' LIMIT 1"))

    def set_mark(self, target: str, record: int) -> None:
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", [target, record])


def packed(text: str) -> bytes:
    return zlib.compress(text.encode(), 6)


def unpacked(data: bytes, path: str) -> str:
    try:
        return zlib.decompress(data).decode()
    except (zlib.error, UnicodeDecodeError):
        raise StoreError(
            f"{path}: an entry is damaged; move it away: import and the upstreams fill a new one"
        ) from None


def _explained(path: str, problem: sqlite3.Error) -> StoreError:
    code = (getattr(problem, "sqlite_errorcode", None) or 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        size = os.path.getsize(path) if os.path.exists(path) else 0
        if size >= MOST_BYTES - (1 << 20):
            return StoreError(f"{path}: has reached {MOST_BYTES >> 30} GB, which is all that it may hold")
        return disk_full(path)
    if code == sqlite3.SQLITE_BUSY:
        return StoreUnavailable(f"{path}: another process has kept it locked for {_BUSY_SECS:g} s; try again later")
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return StoreError(f"{path}: damaged ({problem}); move it away: import and the upstreams fill a new one")
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM):
        return StoreUnavailable(f"{path}: the system failed to read or write it ({problem})")
    return StoreError(f"{path}: {problem}")
