"""The answer to `fusiond best`: read in about a millisecond, with nothing but the standard library.

What can be served, of all current records: not those of a version that its strategy calls wrong; of another version
than today's only those whose Program is stored, and these are `stale`. What the plugins say of that is in the store
(`plugin_listing.py`): a lookup loads none.

What a name stands for (pairs are unordered) is a content: a family of workloads that differ in their sizes alone.

1. Where files of the folder say that they are of that name, the content is theirs; else the catalogue's, for the
   strategies that take such documents; else the only one that the store knows. A record whose source files are equal,
   by their digests, to those files is of their content; where that does not settle it, only the plugins can
   (`Unsettled`).
2. Several contents: none is served, all are named (`ambiguous`). None that is meant: NothingKnown, which says where
   another one was found.

What is answered, of all records of that content and cache:

3. Where a device was asked for, those of that device; of them the ones measured on a GPU, and only where there are none
   the ones emulated on the processor; those that are counted for a GPU only where that device was asked for.
4. The sizes are those of the record found last, but for those that were given. Without given sizes that record is the
   answer.
5. A record with exactly these sizes, one found with today's driver, fusiond and strategy before a `stale` one, the last
   found first.
6. Otherwise the `nearest`: the one whose sizes are fewest doublings away.

Every departure from what was asked for is a line in `notes`; what is another one today is in `changed`.
"""

from __future__ import annotations

import json
import os

from fusiond.model.errors import NothingKnown, UnknownName
from fusiond.store import named_files, sources, tables
from fusiond.store.candidates import Contents, Says, StoredAnswer
from fusiond.store.document import answer, compared
from fusiond.store.format import lookup_name
from fusiond.store.reading import reading
from fusiond.store.recheck import queue_recheck
from fusiond.store.tables import Damage

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` alone would cost more than the lookup
    from collections.abc import Collection, Mapping
    from typing import Any

    from fusiond.store.reading import Reader

__all__ = [
    "Says",
    "Unsettled",
    "best",
    "best_of",
    "compared",
    "contents",
    "device_keys",
    "devices",
    "distance",
    "failed",
    "of_name",
    "program",
    "queue_recheck",
    "said",
    "suggestions",
]


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
    later: bool = False,
) -> dict[str, Any] | None:
    """The object of `best --json` for a name, with `sizes_asked`, `checks`, `figures`, `changed` and `notes`; None when
    nothing is known of that name on that device.

    `device` is a name (`cpu`, `cuda:0`; `cuda` for any of them), a model, a device_key, or None for any device.
    `driver` (None: unknown) and `version` are the driver and the fusiond of today. `folder` is where files go before
    the catalogue; None: no files are looked at. `built` are the families that the plugins say the name stands for;
    without them `strict` raises Unsettled where only they can say it. `later`: the sources of the record are left for
    `compared`, and only the store is read.

    RequestError for a size that the workload does not have, StoreError for a file that cannot be read or is damaged
    where every answer may be, NothingKnown where only other content of that name has an answer, and where the record
    that would be the answer is damaged."""
    with reading(path) as reader:
        if reader is None:
            return None

        def ask(*, thorough: bool) -> dict[str, Any] | None:
            lookup = _Lookup(reader, says, cache, driver, version, thorough=thorough)
            lookup.look_for(name=lookup_name(name))
            if strict and lookup.is_outdated():
                raise Unsettled
            families, confirmed = lookup.meant(name, folder, built, strict=strict)
            if not families:
                lookup.complain(name)
                return None
            if len(families) > 1:
                return lookup.ambiguous(name, families)
            return lookup.serve(families.pop(), name, device, sizes or {}, confirmed=confirmed)

        try:
            document = ask(thorough=False)
        except Damage:
            document = ask(thorough=True)
    return document if document is None or later else compared(document)


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
    with reading(path) as reader:
        if reader is None:
            return None
        lookup = _Lookup(reader, says, cache, driver, version)
        lookup.look_for(family=family)
        return lookup.serve(family, name, device, sizes, confirmed=True)


def of_name(
    path: str | os.PathLike[str], name: str, *, device: str, version: str, cache: str = "warm"
) -> list[dict[str, Any]]:
    """All that can be served of a name on a device, of whatever content and sizes, the last found first: documents as
    `best` has them. StoreError for a file that cannot be read."""
    with reading(path) as reader:
        if reader is None:
            return []
        lookup = _Lookup(reader, None, cache, None, version)
        lookup.look_for(name=lookup_name(name))
        found = lookup._on_device([each for each in lookup.found if each.cache == cache], device)
        return [
            answer(each, lookup.contents_of_file.path, each.sizes, changed=[], today={}, confirmed=True)
            for each in found
        ]


def failed(path: str | os.PathLike[str], name: str, sizes: Mapping[str, int], *, device: str) -> str:
    """Why the last job that tuned a workload failed, in one line; empty where it did not."""
    with reading(path) as reader:
        rows = (
            ()
            if reader is None
            else tables.rows(
                reader.connection,
                "FROM jobs j JOIN workloads w USING (workload_key) "
                "WHERE w.lookup_name = ? AND w.sizes = ? AND j.device = ? ORDER BY j.number DESC LIMIT 1",
                [lookup_name(name), json.dumps(dict(sizes), sort_keys=True, separators=(",", ":")), device],
                j="jobs",
            )
        )
        for (row,) in rows:
            if isinstance(row, dict) and row["state"] == "failed":
                return str(row["problem"] or "it failed")
    return ""


def contents(path: str | os.PathLike[str], name: str, *, version: str) -> list[dict[str, Any]]:
    """What a name stands for in this file, as `answers` of an ambiguous document has it, the last found first."""
    with reading(path) as reader:
        if reader is None:
            return []
        lookup = _Lookup(reader, None, "warm", None, version)
        lookup.look_for(name=lookup_name(name))
        return lookup.contents()


def said(path: str | os.PathLike[str]) -> Says | None:
    """What the plugins said when they were last loaded for this file."""
    with reading(path) as reader:
        return None if reader is None else Contents(reader).said()


def suggestions(path: str | os.PathLike[str], name: str, limit: int = 8) -> list[str]:
    """The names that have an answer and are most like this one; StoreError for a file that cannot be read."""
    from fusiond.store import names as known_names

    with reading(path) as reader:
        return known_names.near(reader.connection, name, limit) if reader else []


def devices(path: str | os.PathLike[str]) -> list[str]:
    """What a device may be called: the names, models and keys of those that are known."""
    with reading(path) as reader:
        if reader is None:
            return []
        contents = Contents(reader)
        found = {row["name"] for row in contents.whole("boards")}
        for row in contents.whole("devices"):
            found |= {row["model"], row["device_key"]}
        return sorted(each for each in found if each)


def device_keys(path: str | os.PathLike[str], device: str | None) -> set[str]:
    """The kinds of hardware of this store's machine that a request means; None, `auto` and `all`: all of them."""
    with reading(path) as reader:
        if reader is None:
            return set()
        contents = Contents(reader)
        if device is None or device in ("auto", "all"):
            return {row["device_key"] for row in contents.whole("boards")}
        return contents.device_keys(device)


def program(path: str | os.PathLike[str], program_key: str) -> dict[str, Any] | None:
    """A stored plan as it was written; None when there is none of that key. StoreError for a damaged one."""
    from fusiond.store.plans import unpacked  # with zlib, which an answer needs not

    with reading(path) as reader:
        return None if reader is None else unpacked(reader.connection, reader.path, program_key)


def arch(path: str | os.PathLike[str], device_key: str) -> str | None:
    """The architecture of a device; None when it is not in the store."""
    with reading(path) as reader:
        if reader is None:
            return None
        found = [row for row in Contents(reader).whole("devices") if row["device_key"] == device_key]
        return str(found[0]["arch"]) if found else None


def distance(sizes: Mapping[str, int], asked: Mapping[str, int]) -> float:
    """How many doublings two sets of sizes are apart, root of the sum of squares; sizes below 1 count as 1."""
    import math

    squares = 0.0
    for name, size in asked.items():
        squares += (math.log2(max(1, sizes.get(name, 1))) - math.log2(max(1, size))) ** 2
    return round(math.sqrt(squares), 9)  # what is equally far compares equal


class _Lookup:
    """One question to one open file."""

    def __init__(
        self, reader: Reader, says: Says | None, cache: str, driver: str | None, version: str, *, thorough: bool = True
    ) -> None:
        self.contents_of_file = Contents(reader, thorough=thorough)
        self.says = says or self.contents_of_file.said()
        self.today = {"driver": driver, "fusiond": version}
        self.cache = cache
        self.found: list[StoredAnswer] = []  #: Records that can be served
        self.known = False  #: Whether there are any, servable or not
        self._newest: dict[str, int] = {}

    def look_for(self, *, name: str | None = None, family: str | None = None) -> None:
        """Read the records of a name or a family; what can be served of them is `found`, the last found first."""
        contents = self.contents_of_file
        found = contents.of_name(name) if name is not None else contents.of_family(family or "")
        self.known = bool(found or contents.damaged)
        self.found = sorted(filter(self._is_servable, found), key=lambda each: each.order, reverse=True)

    # --- what can be served ---

    def _version_today(self, strategy: str) -> int:
        """A strategy's version of today: what its plugin says, else the newest that was ever asked here."""
        if strategy in self.says.versions:
            return int(self.says.versions[strategy])
        if strategy not in self._newest:
            self._newest[strategy] = self.contents_of_file.newest_version(strategy)
        return self._newest[strategy]

    def _is_servable(self, each: StoredAnswer) -> bool:
        if each.strategy_version in self.says.wrong.get(each.strategy, ()):
            return False
        each.version_today = self._version_today(each.strategy)
        if each.strategy_version == each.version_today:
            return True
        row = each.row
        served = row["program_key"] if row["verdict"] in ("fuse", "tuned", "promising") else row["baseline_program_key"]
        return self.contents_of_file.has_program(served)

    def is_outdated(self) -> bool:
        """Whether what the plugins say was written down by another fusiond, or not at all, and it matters here."""
        return self.says.fusiond != {self.today["fusiond"]} and self.known

    def complain(self, name: str) -> None:
        """NothingKnown where the file is damaged, so that nobody takes it for an answer that there never was one."""
        why = list(self.contents_of_file.notes())
        if why:
            raise NothingKnown(f"nothing can be served about {name}: {'; '.join(why)}")

    # --- what a name stands for ---

    def meant(
        self, name: str, folder: str | None, built: Collection[str] | None, *, strict: bool
    ) -> tuple[set[str], bool]:
        """The families that a name stands for, and whether files of today say so. NothingKnown, Unsettled: see
        `best`."""
        if strict and any(each.content_key is None for each in self.found):
            raise Unsettled
        known = {each.family for each in self.found}
        claimed = _claimed(lookup_name(name).split(","), folder)
        spoken, matched = self._matched(name, claimed)
        if len(matched) != 1 and spoken:
            if strict and built is None:
                raise Unsettled
            matched = (known & set(built or ())) or matched
        if matched or not spoken:
            return matched or known, bool(matched)
        free = known - {each.family for each in spoken}
        if not free:
            raise self._other_content(name, known, [file for files in claimed for file in files])
        return free, False

    def _matched(self, name: str, claimed: list[list[str]]) -> tuple[list[StoredAnswer], set[str]]:
        """(what was found of which today's files or catalogue speak, the families that are as these have it)"""
        documents = self._documents(lookup_name(name).split(","), claimed)
        spoken = [self.contents_of_file.whole_one(each) for each in self.found if documents[each.strategy]]
        return spoken, {each.family for each in spoken if sources.are(each.hashes, documents[each.strategy])}

    def _documents(self, members: list[str], claimed: list[list[str]]) -> dict[str, list[list[str]]]:
        """Strategy -> the documents of today that the members stand for: what files claim goes before the catalogue."""
        strategies = {each.strategy for each in self.found}
        if claimed:
            return dict.fromkeys(strategies, claimed)
        return {each: self._catalogued(each, members) for each in strategies}

    def _catalogued(self, strategy: str, members: list[str]) -> list[list[str]]:
        """The documents of the catalogue that a strategy takes, of those members that it has."""
        kinds = self.says.kinds.get(strategy, ())
        wholes = dict.fromkeys(named_files.whole(each) for each in members)
        paths = [
            [self.says.catalogue[kind, each] for kind in kinds if (kind, each) in self.says.catalogue]
            for each in wholes
        ]
        return [each for each in paths if each]

    def _other_content(self, name: str, known: set[str], claimed: list[str]) -> NothingKnown:
        first, *others = self.contents(known)
        where = f"{first['path'] or first['strategy']}, {first['found_at']}"
        more = f" and {len(others)} more" if others else ""
        has = "has" if len(claimed) == 1 else "have"
        said = f"as {' and '.join(claimed)} {has} it" if claimed else "as the catalogue has it"
        return NothingKnown(
            f"nothing is known about {name} {said}; an answer for other content of that name exists ({where}{more})"
        )

    def ambiguous(self, name: str, families: set[str]) -> dict[str, Any]:
        """The document of a question that has several answers."""
        return {"match": "ambiguous", "name": name, "answers": self.contents(families)}

    def contents(self, families: set[str] | None = None) -> list[dict[str, Any]]:
        """What tells the contents of a name apart, the last found first; None: all that it stands for."""
        last: dict[str, StoredAnswer] = {}
        for each in self.found:
            if (families is None or each.family in families) and each.family not in last:
                last[each.family] = self.contents_of_file.whole_one(each)
        hashes = {family: each.hashes for family, each in last.items()}
        common = set.intersection(*(set(each.items()) for each in hashes.values())) if hashes else set()
        return [
            {
                "path": _told_by(hashes[family], common),
                "content_key": each.content_key or None,
                "strategy": each.strategy,
                "found_at": each.row["found_at"],
                "verdict": each.verdict,
                "sizes": each.sizes,
            }
            for family, each in last.items()
        ]

    # --- choosing ---

    def serve(
        self, family: str, name: str, device: str | None, sizes: Mapping[str, int], *, confirmed: bool
    ) -> dict[str, Any] | None:
        """The document for a content; `confirmed`: it was compared with what the user has today."""
        known = [each for each in self.found if each.cache == self.cache and family in each.families]
        known = self._on_device(known, device)
        for evidence in ("measured", "emulated", *(("counted", "replayed") if _names_counted(device) else ())):
            of_evidence = [each for each in known if each.evidence == evidence]
            if of_evidence:
                break
        else:
            self.complain(name)
            return None
        last = of_evidence[0]
        asked = _sizes_asked(last, sizes, name)
        found = self._closest(of_evidence, asked) if sizes else last
        found = self.contents_of_file.whole_one(found)
        document = answer(
            found,
            self.contents_of_file.path,
            asked,
            changed=self._changes(found),
            today=self.today,
            confirmed=confirmed,
        )
        on_device = (each for each in of_evidence if each.device_key == found.device_key)
        others = 0 if sizes else len({each.sizes_text for each in on_device}) - 1
        if others:
            document["notes"].append(f"the answer found last; {others} other sizes are known: --size picks one")
        document["notes"] += self.contents_of_file.notes()
        return document

    def _on_device(self, known: list[StoredAnswer], device: str | None) -> list[StoredAnswer]:
        """Those of a device. A name means the hardware that has it now."""
        if device is None or device in ("auto", "all"):
            return known
        keys = self.contents_of_file.device_keys(device)
        if keys:
            return [each for each in known if each.device_key in keys]
        return [each for each in known if each.device_name == device]

    def _closest(self, known: list[StoredAnswer], asked: dict[str, int]) -> StoredAnswer:
        """The record of the family that is right for these sizes, or nearest to them; the first of equally good
        ones."""
        text = json.dumps(asked, sort_keys=True, separators=(",", ":"))  # as they are written
        found = [each for each in known if each.sizes_text == text]
        if not found:
            away = {each.sizes_text: distance(each.sizes, asked) for each in known}
            nearest = min(away.values())
            found = [each for each in known if away[each.sizes_text] == nearest]
        return min(found, key=lambda each: bool(self._changes(each)))

    def _changes(self, each: StoredAnswer) -> list[str]:
        """What was another one when this record was found; what is unknown then or now is not a change."""
        then = each.env
        changed = [name for name, value in self.today.items() if value and then.get(name) and then[name] != value]
        return changed + ["strategy"] * (each.strategy_version != each.version_today)


def _names_counted(device: str | None) -> bool:
    """Whether answers that nobody has measured are asked for."""
    return device is not None and device not in ("auto", "all")


def _sizes_asked(last: StoredAnswer, given: Mapping[str, int], name: str) -> dict[str, int]:
    for size in given:
        if size not in last.sizes:
            raise UnknownName("size", size, last.sizes, where=name)
    return {**last.sizes, **given}


def _claimed(members: list[str], folder: str | None) -> list[list[str]]:
    """The files of a folder that say they are one of the members, for each that any says so of."""
    found = (
        [named_files.files_of(named_files.claims(folder, each)) for each in dict.fromkeys(members)] if folder else []
    )
    return [files for files in found if files]


def _told_by(hashes: Mapping[str, str], common: set[tuple[str, str]]) -> str | None:
    """The file that tells a content from the others of its name: a document before a source that it names."""
    own = [file for file, digest in sorted(hashes.items()) if (file, digest) not in common] or sorted(hashes)
    own.sort(key=lambda file: not file.endswith((".yaml", ".yml", ".hlo", ".txt")))
    return own[0] if own else None
