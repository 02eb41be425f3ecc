"""The records that may answer a question, each compared with its digest, none of them hidden. Standard library only.

What is found by an index is looked for by a second one: a bit that hides a row from the one does not hide it from the
other. Answers to a name are chosen by what two indexes hold of them (`HEADS`) and agree about, so that only the one
that is chosen has to be read and compared with its digest; where they do not agree, or that one is damaged, all of them
are (`thorough`). The small tables (devices, boards, environments, what the plugins said) are read whole, held against
the sums that the store keeps of them, and kept until these sums change.
"""

from __future__ import annotations

from fusiond.model.errors import StoreError
from fusiond.store import last_commit, tables
from fusiond.store.format import decoded
from fusiond.store.tables import Damage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import Any

    from fusiond.store.reading import Reader

_KEPT = 10_000  #: Records that an open file remembers the questions for: some 20 MB
_CHECK = "`fusiond store check` says how to go on"


_HEADS_OF_NAME = tuple(
    f"SELECT {', '.join(f'r.{each}' for each in tables.HEADS['records'])}, "
    f"{', '.join(f'w.{each}' for each in tables.HEADS['workloads'])} "
    f"FROM records r INDEXED BY idx_records_heads{again} LEFT JOIN workloads w INDEXED BY idx_workloads_heads{again} "
    "ON w.lookup_name = r.lookup_name AND w.workload_key = r.workload_key "
    "WHERE r.lookup_name = ? AND r.replaced_by IS NULL"
    for again in ("", "_again")
)

_OF_WORKLOAD = len(tables.HEADS["records"])
_ENV_KEY = tables.HEADS["records"].index("env_key")


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


class StoredAnswer:
    """A record with its workload and environment. `row` and `workload` are rows as they were written, or their
    heads; what an answer is chosen by are attributes, since a name may have a hundred heads, of which one is served."""

    __slots__ = (
        "_row", "_sizes", "_values", "_workload", "cache", "content_key", "device_key", "device_name", "env",
        "evidence", "families", "family", "order", "sizes_text", "strategy", "strategy_version", "verdict",
        "version_today",
    )  # fmt: skip

    def __init__(self, values: tuple[Any, ...], env: Mapping[str, Any]) -> None:
        """`values` are the columns of HEADS, a record's and then its workload's."""
        (
            self.order, _, self.device_key, self.device_name, _, self.cache, self.evidence, self.verdict, _, _, _,
            _, self.strategy, self.strategy_version, _, self.content_key, family, other_family, self.sizes_text,
        ) = values  # fmt: skip
        self.env = env
        self.families = family, other_family
        self.family: str = family or other_family
        self.version_today = 0
        self._values = values
        self._row: dict[str, Any] | None = None
        self._workload: dict[str, Any] | None = None
        self._sizes: dict[str, int] | None = None

    @classmethod
    def whole(cls, row: dict[str, Any], workload: dict[str, Any], env: Mapping[str, Any]) -> StoredAnswer:
        """Of rows with all of their columns."""
        values = (*map(row.__getitem__, tables.HEADS["records"]), *map(workload.__getitem__, tables.HEADS["workloads"]))
        made = cls(values, env)
        made._row, made._workload = row, workload
        return made

    @property
    def row(self) -> dict[str, Any]:
        if self._row is None:
            self._row = dict(zip(tables.HEADS["records"], self._values, strict=False))
        return self._row

    @property
    def workload(self) -> dict[str, Any]:
        if self._workload is None:
            heads = tables.HEADS["workloads"]
            self._workload = dict(zip(heads, self._values[-len(heads) :], strict=True))
        return self._workload

    @property
    def sizes(self) -> dict[str, int]:
        if self._sizes is None:
            self._sizes = decoded(self.sizes_text)
        return self._sizes

    @property
    def hashes(self) -> dict[str, str]:
        """File -> digest of the sources."""
        found: dict[str, str] = decoded(self.row["source_hashes"], {})
        return found


class Contents:
    """One open file. StoreError for damage that touches every answer; of single records, see `damaged`.

    Without `thorough` Damage is raised for what has to be looked at thoroughly."""

    def __init__(self, reader: Reader, *, thorough: bool = True) -> None:
        self.reader = reader
        self.thorough = thorough
        self.path = reader.path
        self.damaged: list[Damage] = []  #: Rows that were left out
        self._sums = self._sums_now()

    def _sums_now(self) -> dict[str, tuple[int, int]]:
        """The number of rows and the sum of digests of each table; read again when anybody has written since."""
        sums: dict[str, tuple[int, int]] | None = self.reader.facts.get("sums")
        if sums is None:
            rows = tables.fetched(self.reader.connection, "SELECT name, rows, total FROM sums")
            sums = self.reader.facts["sums"] = {name: (count, total) for name, count, total in rows}
        return sums

    # --- small tables ---

    def whole(self, table: str) -> list[dict[str, Any]]:
        """A small table, all of it. StoreError where it is not what was written."""
        kept = self.reader.kept.get(table)
        if kept is not None and kept[0] == self._sums.get(table):
            found: list[dict[str, Any]] = kept[1]
            return found
        rows, total = [], 0
        for (row,) in tables.rows(self.reader.connection, f"FROM {table} t NOT INDEXED", t=table):
            if isinstance(row, Damage):
                raise StoreError(row.sentence(self.path))
            if row is not None:
                rows.append(row)
                total = tables.mixed(total, None, tables.digest(table, *row.values()))
        if self._sums.get(table) != (len(rows), total):
            raise StoreError(f"{self.path}: rows of {table} have vanished; {_CHECK}")
        self.reader.kept[table] = self._sums[table], rows
        return rows

    def said(self) -> Says:
        strategies = self.whole("strategies")
        catalogue = self.whole("catalogue") if strategies else []
        return Says(
            versions={row["strategy"]: row["version"] for row in strategies},
            wrong={row["strategy"]: decoded(row["wrong_versions"]) for row in strategies},
            kinds={row["strategy"]: tuple(decoded(row["names"])) for row in strategies},
            catalogue={(row["kind"], row["name"]): row["path"] for row in catalogue},
            fusiond={row["fusiond"] for row in strategies},
        )

    def device_keys(self, device: str) -> set[str]:
        """The kinds of hardware that a name, a model or a key means now; empty where none is known by it."""
        named = {
            row["device_key"]
            for row in self.whole("boards")
            if row["name"] == device or row["name"].startswith(f"{device}:")
        }
        return named or {
            row["device_key"] for row in self.whole("devices") if device in (row["model"], row["device_key"])
        }

    # --- records ---

    def of_name(self, lookup_name: str) -> list[StoredAnswer]:
        """Today's answers for a name; their heads only, unless this is thorough."""
        of = "WHERE lookup_name = ? AND replaced_by IS NULL"
        return self._found(
            "FROM records r INDEXED BY idx_records_heads LEFT JOIN workloads w USING (workload_key) "
            "WHERE r.lookup_name = ? AND r.replaced_by IS NULL",
            f"SELECT id FROM records INDEXED BY idx_records_heads_again {of}",
            [lookup_name],
            heads=not self.thorough,
        )

    def whole_one(self, head: StoredAnswer) -> StoredAnswer:
        """A candidate with all columns, compared with their digests. Damage where they are not what was written."""
        if self.thorough:
            return head
        key = "record", head.row["id"]
        kept = self.reader.kept.get(key)
        state = self._state()
        if kept is None or kept[0] != state:
            for row, workload in tables.rows(
                self.reader.connection,
                "FROM records r LEFT JOIN workloads w USING (workload_key) WHERE r.id = ?",
                [head.row["id"]],
                r="records",
                w="workloads",
            ):
                if not (isinstance(row, dict) and isinstance(workload, dict)):
                    continue
                if head.row.items() <= row.items() and head.workload.items() <= workload.items():
                    kept = state, StoredAnswer.whole(row, workload, head.env)
                    break
            else:
                raise Damage("records", str(head.row["id"]))
            self._keep(key, kept, 1)
        found: StoredAnswer = kept[1]
        found.version_today = head.version_today
        return found

    def of_family(self, family: str) -> list[StoredAnswer]:
        """Today's answers for a content."""
        rows, ids = [], []
        for column, first, second in (
            ("content_family_key", "idx_workloads_content_family_key", "idx_workloads_of_content"),
            ("family_key", "idx_workloads_family_key_sizes", "idx_workloads_of_family"),
        ):
            rows.append(
                f"SELECT r.id FROM workloads w INDEXED BY {first} CROSS JOIN records r INDEXED BY idx_records_current "
                f"ON r.workload_key = w.workload_key WHERE w.{column} = :family AND r.replaced_by IS NULL"
            )
            ids.append(
                f"SELECT r.id FROM workloads w INDEXED BY {second} CROSS JOIN records r "
                f"INDEXED BY idx_records_workload_key_device_key_cache ON r.workload_key = w.workload_key "
                f"WHERE w.{column} = :family AND r.replaced_by IS NULL"
            )
        return self._found(
            f"FROM records r LEFT JOIN workloads w USING (workload_key) WHERE r.id IN ({' UNION '.join(rows)})",
            " UNION ".join(ids),
            {"family": family},
        )

    def _found(
        self, tail: str, again: str, parameters: list[object] | dict[str, object], *, heads: bool = False
    ) -> list[StoredAnswer]:
        """What was read before is as good as long as no record, workload or environment has changed: trials come and go
        meanwhile."""
        key = "heads" if heads else tail, *(parameters.values() if isinstance(parameters, dict) else parameters)
        state = self._state()
        before = self.reader.kept.get(key)
        if before is None or before[0] != state:
            read = (self._heads(str(*parameters)), []) if heads else self._read(tail, again, parameters)
            before = state, *read
        self._keep(key, before, 1 + len(before[1]))
        self.damaged += before[2]
        found: list[StoredAnswer] = before[1]
        return found

    def _state(self) -> list[tuple[int, int] | None]:
        return [self._sums.get(table) for table in ("records", "workloads", "envs")]

    def _keep(self, key: object, value: object, records: int) -> None:
        """Remember the answer to a question, of so many records; the one that nobody asked for longest goes."""
        asked = self.reader.asked
        self.reader.kept[key] = value
        self.reader.held += records - asked.pop(key, 0)
        asked[key] = records
        while self.reader.held > _KEPT and len(asked) > 1:
            oldest = next(iter(asked))
            self.reader.held -= asked.pop(oldest)
            del self.reader.kept[oldest]

    def _heads(self, lookup_name: str) -> list[StoredAnswer]:
        """What both indexes say of a name. Damage where they differ, or a record's key or its workload is missing."""
        first, again = (tables.fetched(self.reader.connection, sql, [lookup_name]) for sql in _HEADS_OF_NAME)
        if len(first) != len(again) or set(first) != set(again):
            raise Damage("records", lookup_name)
        found = []
        for values in first:
            if values[_OF_WORKLOAD] is None or values[0] is None:
                raise Damage("workloads", str(values[1]))
            found.append(StoredAnswer(values, self._environment(values[_ENV_KEY])))
        return found

    def _read(
        self, tail: str, again: str, parameters: list[object] | dict[str, object]
    ) -> tuple[list[StoredAnswer], list[Damage]]:
        connection = self.reader.connection
        found = list(tables.rows(connection, tail, parameters, r="records", w="workloads"))
        ids = {row[0] for row in tables.fetched(connection, again, parameters)}
        seen = {row["id"] for row, _ in found if isinstance(row, dict)}
        if len(found) != len(ids) or not seen <= ids:
            raise StoreError(f"{self.path}: a damaged index hides records; {_CHECK}")
        candidates, damaged = [], []
        for row, workload in found:
            if isinstance(row, dict):
                workload = tables.wanted("workloads", workload, workload_key=row["workload_key"])
            if isinstance(row, dict) and isinstance(workload, dict):
                candidates.append(StoredAnswer.whole(row, workload, self._environment(row["env_key"])))
            else:
                damage = next((each for each in (row, workload) if isinstance(each, Damage)), None)
                damaged.append(damage or Damage("records", "whose workload is gone"))
        return candidates, damaged

    def _environment(self, env_key: str | None) -> Mapping[str, Any]:
        envs = self.reader.kept.get("decoded envs")
        if envs is None or envs[0] != self._sums.get("envs"):
            known = {row["env_key"]: decoded(row["env"], {}) for row in self.whole("envs")}
            envs = self.reader.kept["decoded envs"] = self._sums.get("envs"), known
        found: Mapping[str, Any] = envs[1].get(env_key, {})
        return found

    def newest_version(self, strategy: str) -> int:
        """Of the workloads of a strategy that no plugin speaks of."""
        kept = self.reader.kept.get(("newest", strategy))
        if kept is None or kept[0] != self._sums.get("workloads"):
            kept = self._sums.get("workloads"), self._newest_version(strategy)
            self.reader.kept["newest", strategy] = kept
        version: int = kept[1]
        return version

    def _newest_version(self, strategy: str) -> int:
        for (row,) in tables.rows(
            self.reader.connection,
            "FROM workloads w WHERE strategy = ? ORDER BY strategy_version DESC LIMIT 1",
            [strategy],
            w="workloads",
        ):
            if isinstance(row, Damage):
                raise StoreError(row.sentence(self.path))
            if row is not None:
                return int(row["strategy_version"])
        return 0

    def has_program(self, program_key: str | None) -> bool:
        if not program_key:
            return False
        found = tables.same(
            self.reader.connection,
            "SELECT program_key FROM programs INDEXED BY sqlite_autoindex_programs_1 WHERE program_key = ?",
            "SELECT program_key FROM programs INDEXED BY idx_programs_again WHERE program_key = ?",
            [program_key],
        )
        if found is None:
            raise StoreError(f"{self.path}: a damaged index hides programs; {_CHECK}")
        return bool(found)

    # --- what is wrong ---

    def notes(self) -> Iterable[str]:
        """What whoever gets an answer, or none, has to know of the state of the file."""
        if self.damaged:
            one = len(self.damaged) == 1
            yield f"{len(self.damaged)} damaged record{' is' if one else 's are'} left out; {_CHECK}"
        number, own = self._sums["commits"]
        lost = last_commit.missing(self.reader.known, (number, own))
        if lost:
            yield f"the last {lost} acknowledged changes of the store are missing; {_CHECK}"
        elif self._is_bereft():
            yield f"acknowledged changes of the store were lost; {_CHECK}"

    def _is_bereft(self) -> bool:
        """Whether a loss was written down."""
        facts = self.reader.facts
        if "losses" not in facts:
            facts["losses"] = bool(tables.fetched(self.reader.connection, "SELECT 1 FROM losses LIMIT 1"))
        return bool(facts["losses"])
