"""The answer to `fusiond best`: read in about a millisecond, with nothing but the standard library.

What can be served, of all current records: not those of a version that its strategy calls wrong; of another version
than today's only those whose Program is stored, and these are `stale`. What the plugins say of that is in the store
(`said.py`): a lookup loads none.

What a name stands for (pairs are unordered) is a content: a family of workloads that differ in their sizes alone.

1. Where files of the folder say that they are of that name, the content is theirs; else the catalogue's, for the
   strategies that take such documents; else the only one that the store knows. A record whose source files are equal,
   by their digests, to those files is of their content; where that does not settle it, only the plugins can
   (`Unsettled`).
2. Several contents: none is served, all are named (`ambiguous`). None that is meant: NothingKnown, which says where
   another one was found.

What is answered, of all records of that content and cache:

3. Where a device was asked for, those of that device; of them the ones measured on a GPU, and only where there are none
   the ones emulated on the processor.
4. The sizes are those of the record found last, but for those that were given. Without given sizes that record is the
   answer.
5. A record with exactly these sizes, one found with today's driver, fusiond and strategy before a `stale` one, the last
   found first.
6. Otherwise the `nearest`: the one whose sizes are fewest doublings away.

Every departure from what was asked for is a line in `notes`; what is another one today is in `changed`.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3

from fusiond import names
from fusiond.errors import NothingKnown, UnknownName
from fusiond.store import sources
from fusiond.store.format import artifact_path, lookup_name
from fusiond.store.reading import reading
from fusiond.store.recheck import queue_recheck

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` alone would cost more than the lookup
    from collections.abc import Collection, Iterator, Mapping
    from typing import Any

__all__ = [
    "Says",
    "Unsettled",
    "best",
    "best_of",
    "contents",
    "devices",
    "distance",
    "program",
    "queue_recheck",
    "suggestions",
]

_FAMILY = "COALESCE(NULLIF(w.content_family_key, ''), w.family_key)"
_TABLES = "FROM workloads w CROSS JOIN records r USING (workload_key) LEFT JOIN envs e USING (env_key)"
_LAST_FIRST = "ORDER BY r.found_at DESC, r.id DESC"


class Says:
    """What the plugins say: today's version of each strategy, its wrong versions, the kinds of documents that it takes,
    and the catalogue, (kind, name) -> path. `fusiond` are the versions that wrote it down."""

    __slots__ = ("catalogue", "fusiond", "kinds", "versions", "wrong")

    def __init__(
        self,
        *,
        versions: Mapping[str, int],
        wrong: Mapping[str, Collection[int]],
        kinds: Mapping[str, Collection[str]],
        catalogue: Mapping[tuple[str, str], str],
        fusiond: Collection[str],
    ) -> None:
        self.versions, self.wrong, self.kinds = versions, wrong, kinds
        self.catalogue, self.fusiond = catalogue, fusiond


class Unsettled(Exception):
    """What a name stands for cannot be said without the plugins."""


def best(
    path: str | os.PathLike[str],
    *,
    name: str,
    device: str | None = None,
    sizes: Mapping[str, int] | None = None,
    driver: str | None,
    version: str,
    cache: str = "warm",
    folder: str | None = None,
    says: Says | None = None,
    built: Collection[str] | None = None,
    strict: bool = False,
) -> dict[str, Any] | None:
    """The object of `best --json` for a name, with `sizes_asked`, `checks`, `figures`, `changed` and `notes`; None when
    nothing is known of that name on that device.

    `device` is a name (`cpu`, `cuda:0`; `cuda` for any of them), a model, a device_key, or None for any device.
    `driver` (None: unknown) and `version` are the driver and the fusiond of today. `folder` is where files go before
    the catalogue; None: no files are looked at. `built` are the families that the plugins say the name stands for;
    without them `strict` raises Unsettled where only they can say it.

    RequestError for a size that the workload does not have, StoreError for a file that cannot be read, NothingKnown
    where only other content of that name has an answer.
    """
    with reading(path) as connection:
        if connection is None:
            return None
        lookup = _Lookup(connection, os.fspath(path), says or _said(connection), cache, driver, version)
        if strict and lookup.is_outdated(name):
            raise Unsettled
        families, confirmed = lookup.meant(name, folder, built, strict=strict)
        if not families:
            return None
        if len(families) > 1:
            return lookup.ambiguous(name, families)
        return lookup.serve(families.pop(), name, device, sizes or {}, of_name=lookup_name(name), confirmed=confirmed)


def best_of(
    path: str | os.PathLike[str],
    *,
    family: str,
    sizes: Mapping[str, int],
    name: str,
    device: str | None = None,
    driver: str | None,
    version: str,
    cache: str = "warm",
    says: Says | None = None,
) -> dict[str, Any] | None:
    """The same for a content: `family` is its `content_family_key`, `name` what messages call it."""
    with reading(path) as connection:
        if connection is None:
            return None
        lookup = _Lookup(connection, os.fspath(path), says or _said(connection), cache, driver, version)
        return lookup.serve(family, name, device, sizes, confirmed=True)


def contents(path: str | os.PathLike[str], name: str, *, version: str) -> list[dict[str, Any]]:
    """What a name stands for in this file, as `answers` of an ambiguous document has it, the last found first."""
    with reading(path) as connection:
        if connection is None:
            return []
        lookup = _Lookup(connection, os.fspath(path), _said(connection), "warm", None, version)
        return lookup.contents(name)


def suggestions(path: str | os.PathLike[str]) -> list[str]:
    """The names that have an answer; StoreError for a file that cannot be read."""
    with reading(path) as connection:
        if connection is None:
            return []
        rows = connection.execute(
            "SELECT DISTINCT w.name FROM records r CROSS JOIN workloads w USING (workload_key) "
            "WHERE r.replaced_by IS NULL"
        )
        return sorted(row["name"] for row in rows)


def devices(path: str | os.PathLike[str]) -> list[str]:
    """What a device may be called: the names and models of those that have an answer, and their keys."""
    with reading(path) as connection:
        if connection is None:
            return []
        rows = connection.execute(
            "SELECT DISTINCT r.device_name AS name, d.model, r.device_key AS key "
            "FROM records r LEFT JOIN devices d USING (device_key)"
        )
        return sorted({each for row in rows for each in (row["name"], row["model"], row["key"]) if each})


def program(path: str | os.PathLike[str], program_key: str) -> dict[str, Any] | None:
    """A stored plan as it was written; None when there is none of that key."""
    with reading(path) as connection:
        if connection is None:
            return None
        row = connection.execute("SELECT plan FROM programs WHERE program_key = ?", [program_key]).fetchone()
        plan: dict[str, Any] | None = json.loads(row["plan"]) if row else None
        return plan


def arch(path: str | os.PathLike[str], device_key: str) -> str | None:
    """The architecture of a device; None when it is not in the store."""
    with reading(path) as connection:
        if connection is None:
            return None
        row = connection.execute("SELECT arch FROM devices WHERE device_key = ?", [device_key]).fetchone()
        return str(row["arch"]) if row else None


def distance(sizes: Mapping[str, int], asked: Mapping[str, int]) -> float:
    """How many doublings two sets of sizes are apart, root of the sum of squares; sizes below 1 count as 1."""
    squares = 0.0
    for name, size in asked.items():
        squares += (math.log2(max(1, sizes.get(name, 1))) - math.log2(max(1, size))) ** 2
    return round(math.sqrt(squares), 9)  # what is equally far compares equal


def _said(connection: sqlite3.Connection) -> Says:
    rows = connection.execute("SELECT strategy, version, wrong_versions, names, fusiond FROM strategies").fetchall()
    catalogue = connection.execute("SELECT kind, name, path FROM catalogue") if rows else ()
    return Says(
        versions={row["strategy"]: row["version"] for row in rows},
        wrong={row["strategy"]: json.loads(row["wrong_versions"]) for row in rows},
        kinds={row["strategy"]: tuple(json.loads(row["names"])) for row in rows},
        catalogue={(row["kind"], row["name"]): row["path"] for row in catalogue},
        fusiond={row["fusiond"] for row in rows},
    )


class _Lookup:
    """One question to one open file."""

    def __init__(
        self, connection: sqlite3.Connection, path: str, says: Says, cache: str, driver: str | None, version: str
    ) -> None:
        self.connection = connection
        self.path = path
        self.says = says
        self.today = {"driver": driver, "fusiond": version}
        self.scope: dict[str, object] = {"cache": cache}
        self.version = self._version_today()
        self.servable = self._servable()
        self.columns = (
            "SELECT r.*, w.strategy, w.strategy_version, w.name, w.sizes, w.content_key, "
            f"{_FAMILY} AS family, {self.version} AS version_today, e.env"
        )

    # --- what can be served ---

    def _version_today(self) -> str:
        """A strategy's version of today: what its plugin says, else the newest that was ever asked here."""
        newest = "(SELECT MAX(n.strategy_version) FROM workloads n WHERE n.strategy = w.strategy)"
        if not self.says.versions:
            return newest
        cases = []
        for index, (strategy, version) in enumerate(self.says.versions.items()):
            self.scope |= {f"strategy{index}": strategy}
            cases.append(f"WHEN :strategy{index} THEN {int(version)}")
        return f"CASE w.strategy {' '.join(cases)} ELSE {newest} END"

    def _servable(self) -> str:
        conditions = ["r.replaced_by IS NULL"]
        for index, strategy in enumerate(self.says.versions):
            wrong = ", ".join(str(int(each)) for each in self.says.wrong[strategy])
            if wrong:
                conditions.append(f"NOT (w.strategy = :strategy{index} AND w.strategy_version IN ({wrong}))")
        served = "CASE WHEN r.verdict IN ('fuse', 'tuned') THEN r.program_key ELSE r.baseline_program_key END"
        conditions.append(
            f"(w.strategy_version = {self.version} OR EXISTS (SELECT 1 FROM programs p WHERE p.program_key = {served}))"
        )
        return " AND ".join(conditions)

    def is_outdated(self, name: str) -> bool:
        """Whether what the plugins say was written down by another fusiond, or not at all, and it matters here."""
        if self.says.fusiond == {self.today["fusiond"]}:
            return False
        query = "SELECT 1 FROM records WHERE lookup_name = ? AND replaced_by IS NULL LIMIT 1"
        return self.connection.execute(query, [lookup_name(name)]).fetchone() is not None

    # --- what a name stands for ---

    def meant(
        self, name: str, folder: str | None, built: Collection[str] | None, *, strict: bool
    ) -> tuple[set[str], bool]:
        """The families that a name stands for, and whether files of today say so. NothingKnown, Unsettled: see
        `best`."""
        rows = self.connection.execute(
            f"SELECT DISTINCT {_FAMILY} AS family, w.strategy, r.source_hashes, w.content_key IS NULL AS unread "
            "FROM records r CROSS JOIN workloads w USING (workload_key) "
            f"WHERE r.lookup_name = :name AND {self.servable}",
            {**self.scope, "name": lookup_name(name)},
        ).fetchall()
        if strict and any(row["unread"] for row in rows):
            raise Unsettled
        known = {row["family"] for row in rows}
        members = lookup_name(name).split(",")
        found = [names.files_of(names.claims(folder, each)) for each in dict.fromkeys(members)] if folder else []
        claimed = [files for files in found if files]
        if claimed and rows:
            documents = {row["strategy"]: claimed for row in rows}
        else:
            documents = {row["strategy"]: self._catalogued(row["strategy"], members) for row in rows}
        spoken = [row for row in rows if documents[row["strategy"]]]
        matched = {row["family"] for row in spoken if _is_of(row, documents[row["strategy"]])}
        if len(matched) != 1 and spoken:
            if strict and built is None:
                raise Unsettled
            matched = (known & set(built or ())) or matched
        if matched or not spoken:
            return matched or known, bool(matched)
        free = known - {row["family"] for row in spoken}
        if not free:
            raise self._other_content(name, known, [file for files in claimed for file in files])
        return free, False

    def _catalogued(self, strategy: str, members: list[str]) -> list[list[str]]:
        """The documents of the catalogue that a strategy takes, of those members that it has."""
        kinds = self.says.kinds.get(strategy, ())
        wholes = dict.fromkeys(names.whole(each) for each in members)
        paths = [
            [self.says.catalogue[kind, each] for kind in kinds if (kind, each) in self.says.catalogue]
            for each in wholes
        ]
        return [each for each in paths if each]

    def _other_content(self, name: str, known: set[str], claimed: list[str]) -> NothingKnown:
        first, *others = self.contents(name, known)
        where = f"{first['path'] or first['strategy']}, {first['found_at']}"
        more = f" and {len(others)} more" if others else ""
        has = "has" if len(claimed) == 1 else "have"
        said = f"as {' and '.join(claimed)} {has} it" if claimed else "as the catalogue has it"
        return NothingKnown(
            f"nothing is known about {name} {said}; an answer for other content of that name exists ({where}{more})"
        )

    def ambiguous(self, name: str, families: set[str]) -> dict[str, Any]:
        """The document of a question that has several answers."""
        return {"match": "ambiguous", "name": name, "answers": self.contents(name, families)}

    def contents(self, name: str, families: set[str] | None = None) -> list[dict[str, Any]]:
        """What tells the contents of a name apart, the last found first; None: all that it stands for."""
        rows: dict[str, sqlite3.Row] = {}
        scope = {**self.scope, "name": lookup_name(name)}
        query = f"{self.columns} {_TABLES} WHERE r.lookup_name = :name AND {self.servable} {_LAST_FIRST}"
        for row in self.connection.execute(query, scope):
            if families is None or row["family"] in families:
                rows.setdefault(row["family"], row)
        hashes = {family: json.loads(row["source_hashes"] or "{}") for family, row in rows.items()}
        common = set.intersection(*(set(each.items()) for each in hashes.values())) if hashes else set()
        return [
            {
                "path": _told_by(hashes[family], common),
                "content_key": row["content_key"] or None,
                "strategy": row["strategy"],
                "found_at": row["found_at"],
                "verdict": row["verdict"],
                "sizes": json.loads(row["sizes"]),
            }
            for family, row in rows.items()
        ]

    # --- choosing ---

    def serve(
        self,
        family: str,
        name: str,
        device: str | None,
        sizes: Mapping[str, int],
        *,
        of_name: str | None = None,
        confirmed: bool,
    ) -> dict[str, Any] | None:
        """The document for a content; `confirmed`: it was compared with what the user has today."""
        self.scope |= {"family": family}
        where = f"WHERE (w.content_family_key = :family OR w.family_key = :family) AND {self.servable}"
        where += f" AND r.cache = :cache AND r.evidence = :evidence {self._on_device(device)}"
        if of_name is not None:
            self.scope |= {"name": of_name}
            where += " AND w.lookup_name = :name"  # of records it would be an index, and the wrong one
        last = self._last_found(where)
        if last is None:
            return None
        asked = _sizes_asked(last, sizes, name)
        found = self._closest(where, asked) if sizes else last
        answer = self._answer(found, asked, confirmed=confirmed)
        others = 0 if sizes else self._other_sizes(where, found)
        if others:
            answer["notes"].append(f"the answer found last; {others} other sizes are known: --size picks one")
        return answer

    def _on_device(self, device: str | None) -> str:
        """A condition on records, its parameters added to the scope. A name means the hardware that has it now."""
        if device is None or device in ("auto", "all"):
            return ""
        self.scope["device"] = device
        for query in (
            "SELECT device_key FROM boards WHERE name = :device OR name GLOB :device || ':*'",
            "SELECT device_key FROM devices WHERE model = :device OR device_key = :device",
        ):
            keys = {row["device_key"] for row in self.connection.execute(query, {"device": device})}
            if keys:
                self.scope |= {f"device{index}": key for index, key in enumerate(sorted(keys))}
                marks = ", ".join(f":device{index}" for index in range(len(keys)))
                return f"AND r.device_key IN ({marks})"
        return "AND r.device_name = :device"

    def _last_found(self, where: str) -> sqlite3.Row | None:
        """The record found last, of the best evidence there is; the scope keeps to that evidence from here on."""
        for evidence in ("measured", "emulated"):
            self.scope["evidence"] = evidence
            row: sqlite3.Row | None = self.connection.execute(
                f"{self.columns} {_TABLES} {where} {_LAST_FIRST} LIMIT 1", self.scope
            ).fetchone()
            if row is not None:
                return row
        return None

    def _closest(self, where: str, asked: dict[str, int]) -> sqlite3.Row:
        """The record of the family that is right for these sizes, or nearest to them."""
        scope = {**self.scope, "sizes": json.dumps(asked, sort_keys=True, separators=(",", ":"))}
        exact = f"{self.columns} {_TABLES} {where} AND w.sizes = :sizes {_LAST_FIRST}"
        found: list[sqlite3.Row] = self.connection.execute(exact, scope).fetchall()
        if not found:
            known = [text for (text,) in self.connection.execute(f"SELECT DISTINCT w.sizes {_TABLES} {where}", scope)]
            away = {text: distance(json.loads(text), asked) for text in known}
            nearest = min(away.values())
            for text in known:
                if away[text] == nearest:
                    found += self.connection.execute(exact, {**scope, "sizes": text})
            found.sort(key=lambda row: (row["found_at"], row["id"]), reverse=True)
        return min(found, key=lambda row: bool(self._changes(row)))

    def _other_sizes(self, where: str, found: sqlite3.Row) -> int:
        """How many other sizes of the same content have an answer on that device."""
        row = self.connection.execute(
            f"SELECT count(DISTINCT w.sizes) AS known {_TABLES} {where} AND r.device_key = :found",
            {**self.scope, "found": found["device_key"]},
        ).fetchone()
        return int(row["known"]) - 1

    def _changes(self, row: sqlite3.Row) -> list[str]:
        """What was another one when this record was found; what is unknown then or now is no change."""
        then = json.loads(row["env"] or "{}")
        changed = [name for name, value in self.today.items() if value and then.get(name) and then[name] != value]
        return changed + ["strategy"] * (row["strategy_version"] != row["version_today"])

    # --- answering ---

    def _answer(self, row: sqlite3.Row, asked: dict[str, int], *, confirmed: bool) -> dict[str, Any]:
        sizes = json.loads(row["sizes"])
        changed = self._changes(row)
        notes = list(self._notes(row, sizes, asked, changed))
        if not confirmed:
            lines, surely = sources.changes(json.loads(row["source_hashes"] or "{}"), row["found_at"])
            notes += lines
            changed += ["source"] * surely
        return {
            "workload": {"strategy": row["strategy"], "name": row["name"], "key": row["workload_key"], "sizes": sizes},
            "content_key": row["content_key"] or None,
            "device": {"name": row["device_name"], "key": row["device_key"]},
            "verdict": row["verdict"],
            "config": _json(row["config"]),
            "program_key": row["program_key"],
            "time_us": row["time_us"],
            "baseline": row["baseline"],
            "baseline_us": row["baseline_us"],
            "unfused": {
                "name": row["baseline"],
                "config": _json(row["baseline_config"]),
                "time_us": row["baseline_us"],
                "program_key": row["baseline_program_key"],
            },
            "speedup": row["speedup"],
            "ci95": [row["ci_low"], row["ci_high"]] if row["ci_low"] is not None else None,
            "verified": bool(row["verified"]),
            "evidence": row["evidence"],
            "cache": row["cache"],
            "match": "nearest" if sizes != asked else "stale" if changed else "exact",
            "changed": changed,
            "trials": row["trials"],
            "processes": row["processes"] or 0,
            "ended": row["ended"] or "",
            "replaced": row["replaced"],
            "source": artifact_path(os.path.abspath(self.path), row["source"]),
            "found_at": row["found_at"],
            "sizes_asked": asked,
            "checks": json.loads(row["checks"]),
            "figures": json.loads(row["figures"] or "{}"),
            "notes": notes,
        }

    def _notes(
        self, row: sqlite3.Row, sizes: dict[str, int], asked: dict[str, int], changed: list[str]
    ) -> Iterator[str]:
        if sizes != asked:
            differing = [name for name in asked if sizes.get(name) != asked[name]]
            measured = ", ".join(f"{name}={sizes.get(name)}" for name in differing)
            wanted = ", ".join(f"{name}={asked[name]}" for name in differing)
            yield f"measured at {measured}; nothing is known at {wanted}"
        then = json.loads(row["env"] or "{}")
        for name in changed:
            if name == "strategy":
                yield (
                    f"found by version {row['strategy_version']} of {row['strategy']}; today it is version "
                    f"{row['version_today']}"
                )
            else:
                yield f"found with {name} {then[name]}; today it is {self.today[name]}"


def _sizes_asked(last: sqlite3.Row, given: Mapping[str, int], name: str) -> dict[str, int]:
    sizes: dict[str, int] = json.loads(last["sizes"])
    for size in given:
        if size not in sizes:
            raise UnknownName("size", size, sizes, where=name)
    return {**sizes, **given}


def _is_of(row: sqlite3.Row, documents: list[list[str]]) -> bool:
    return sources.are(json.loads(row["source_hashes"] or "{}"), documents)


def _told_by(hashes: Mapping[str, str], common: set[tuple[str, str]]) -> str | None:
    """The file that tells a content from the others of its name: a document before a source that it names."""
    own = [file for file, digest in sorted(hashes.items()) if (file, digest) not in common] or sorted(hashes)
    own.sort(key=lambda file: not file.endswith((".yaml", ".yml", ".hlo", ".txt")))
    return own[0] if own else None


def _json(text: str | None) -> Any:
    return None if text is None else json.loads(text)
