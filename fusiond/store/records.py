"""Records: the answer for a workload on a device, and those that it replaced; their lists, and how to remove one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fusiond.model.errors import StoreError
from fusiond.model.keys import canonical
from fusiond.model.nouns import COUNTED
from fusiond.model.outcomes import Record, Verdict
from fusiond.store import names, tables
from fusiond.store.connection import Row
from fusiond.store.encoding import config_from, config_text, decoding, mapping_from, printable
from fusiond.store.format import ARTIFACT, artifact_path, decoded, lookup_name
from fusiond.store.jobs import absolute
from fusiond.store.programs import Programs
from fusiond.store.tables import Damage, called

if TYPE_CHECKING:  # it takes a while to load, and only what writes needs it
    from sqlite_utils import Database

_RECORDS = "FROM records r JOIN workloads w USING (workload_key)"
_SAME_QUESTION = """(
    SELECT other.workload_key FROM workloads this JOIN workloads other ON other.workload_key = this.workload_key
    OR (other.content_key = this.content_key AND other.name = this.name
        AND other.strategy_version < this.strategy_version)
    WHERE this.workload_key = ?
)"""
_AT_ONCE = 500  #: Keys in one query; SQLite takes 999 parameters in its oldest builds
_AS_COLUMNS = (
    "workload_key", "device_key", "device_name", "env_key", "cache", "evidence", "program_key", "time_us", "baseline",
    "baseline_us", "baseline_program_key", "speedup", "trials", "replaced", "found_at",
)  # fmt: skip
"""Fields of a Record that columns hold as they are."""

_OF_DEVICE = (
    "(r.device_name = :device OR r.device_key = :device "
    "OR r.device_key IN (SELECT device_key FROM devices WHERE model = :device))"
)


class Records(Programs):
    def save_record(self, record: Record, *, job: str | None, source_hashes: Mapping[str, str]) -> None:
        """Make this the answer; the one before, and those of earlier versions of the strategy to the same question,
        become history. `source_hashes`: file -> text_key of its content.

        Whether an answer may replace another one is for the caller to say.

        StoreError when the workload was never submitted, or has another strategy, name or sizes than the record says.
        """
        with self._transaction() as database:
            self._check_workload(record)
            where = f"workload_key IN {_SAME_QUESTION} AND device_key = ? AND cache = ? AND replaced_by IS NULL"
            key = [record.workload_key, record.device_key, record.cache]
            database.execute("PRAGMA defer_foreign_keys = ON")
            old = [row["id"] for row in database.query(f"SELECT id FROM records WHERE {where}", key)]
            damaged = [id for id in old if not self._is_intact(database, id)]
            for id in damaged:  # it cannot go into the history as it is
                self._tell(f"{self.path}: a damaged record of {record.workload_name!r} makes way for a new one")
                database.execute("DELETE FROM records WHERE id = ?", [id])
            database.execute(f"UPDATE records SET replaced_by = id WHERE {where}", key)  # makes room for the new one
            new = database.table("records").insert(self._columns(record, job, source_hashes)).last_pk
            for id in old:
                column = "replaced_by" if id in damaged else "id"
                database.execute(f"UPDATE records SET replaced_by = ? WHERE {column} = ?", [new, id])
            names.add(database, record.workload_name)

    @staticmethod
    def _is_intact(database: Database, id: int) -> bool:
        ((row,),) = tables.rows(database.conn, "FROM records r WHERE id = ?", [id], r="records")
        return not isinstance(row, Damage)

    def record(self, workload_key: str, device_key: str, cache: str = "warm") -> Record | None:
        """The answer of today."""
        return self.known(device_key, [workload_key], cache).get(workload_key)

    def known(self, device_key: str, workload_keys: Iterable[str], cache: str = "warm") -> dict[str, Record]:
        """The answers of today for many workloads; those without one are left out."""
        keys = list(dict.fromkeys(workload_keys))
        found = {}
        for start in range(0, len(keys), _AT_ONCE):
            chunk = keys[start : start + _AT_ONCE]
            marks = ", ".join("?" * len(chunk))
            rows = self._records(
                f"{_RECORDS} WHERE r.workload_key IN ({marks}) AND r.device_key = ? AND r.cache = ? "
                "AND r.replaced_by IS NULL",
                [*chunk, device_key, cache],
            )
            found.update({each.workload_key: each for each in rows})
        return found

    def incumbents(self, workload_key: str, device_key: str, cache: str = "warm") -> list[Record]:
        """The answers of today to a workload's question: its own first, then those that earlier versions of the
        strategy found for the same content, the newest first.

        What has another name is another workload, whatever its content: a block of a pipeline that is the whole of it
        has an answer of its own, in the terms of its own space."""
        return self._records(
            f"{_RECORDS} WHERE w.workload_key IN {_SAME_QUESTION} AND r.device_key = ? AND r.cache = ? "
            "AND r.replaced_by IS NULL ORDER BY w.strategy_version DESC, r.id DESC",
            [workload_key, device_key, cache],
        )

    def counted(self, workload_key: str) -> list[Record]:
        """The answers of today that are counted for GPUs that are not here, whatever their caches."""
        return self._records(
            f"{_RECORDS} WHERE w.workload_key = ? AND r.evidence = ? AND r.replaced_by IS NULL ORDER BY r.id",
            [workload_key, COUNTED],
        )

    def history(self, workload_key: str, device_key: str, cache: str = "warm") -> list[Record]:
        """All answers that there ever were, the newest first."""
        key = [workload_key, device_key, cache]
        where = "WHERE workload_key = ? AND device_key = ? AND cache = ?"
        with self._moment():
            ids = self._same(
                f"SELECT id FROM records INDEXED BY idx_records_workload_key_device_key_cache {where}",
                f"SELECT id FROM records INDEXED BY idx_records_history {where}",
                key,
            )
            where = "WHERE r.workload_key = ? AND r.device_key = ? AND r.cache = ? ORDER BY r.id DESC"
            return self._records(f"FROM records r LEFT JOIN workloads w USING (workload_key) {where}", key, len(ids))

    # --- lists ---

    def answers(
        self,
        *,
        limit: int,
        strategy: str | None = None,
        verdicts: Iterable[Verdict] = (),
        device: str | None = None,
        since: str | None = None,
    ) -> list[Record]:
        """Answers of today, the last found first. `device`: a name, a model or a key; `since`: UTC, ISO 8601."""
        wanted = [each.value for each in verdicts]
        where = ["r.replaced_by IS NULL"]
        where += [f"r.verdict IN ({', '.join(f':verdict{at}' for at in range(len(wanted)))})"] if wanted else []
        where += [_OF_DEVICE] if device is not None else []
        where += ["r.found_at >= :since"] if since is not None else []
        joined = ""
        if strategy is not None:
            joined = "JOIN workloads w ON w.workload_key = r.workload_key"
            where.append("w.strategy = :strategy")
        given = {"limit": limit, "strategy": strategy, "device": device, "since": since}
        given |= {f"verdict{at}": value for at, value in enumerate(wanted)}
        tail = f"{joined} WHERE {' AND '.join(where)} ORDER BY r.id DESC LIMIT :limit"
        with self._moment():
            ids = self._same(
                f"SELECT r.id FROM records r INDEXED BY idx_records_heads {tail}",
                f"SELECT r.id FROM records r INDEXED BY idx_records_heads_again {tail}",
                given,
            )
            return self._numbered(ids)

    def answers_after(self, number: int, limit: int) -> list[tuple[int, Record | None]]:
        """Answers of today with higher numbers, each with its number, in the order in which they were found; None in
        place of a damaged one, which is said so in the log."""
        rows = self._rows(
            "SELECT id FROM records WHERE id > ? AND replaced_by IS NULL ORDER BY id LIMIT ?", [number, limit]
        )
        return [(row["id"], next(iter(self._numbered([row["id"]])), None)) for row in rows]

    def keys_of(self, workload_key: str) -> tuple[str, str] | None:
        """The keys of a workload's family and of its content without sizes; None when it is not here."""
        for (row,) in self._sealed("FROM workloads w WHERE workload_key = ?", [workload_key], w="workloads"):
            return row["family_key"], row["content_family_key"] or ""
        return None

    def environment(self, env_key: str) -> Mapping[str, str]:
        """An environment by its key; empty when it is not here."""
        for (row,) in self._sealed("FROM envs e WHERE env_key = ?", [env_key], e="envs"):
            return mapping_from(row["env"])
        return {}

    def history_of_name(self, name: str) -> list[Record]:
        """All answers that a name ever had, whatever its content, sizes and devices, the newest first."""
        of = "FROM workloads w JOIN records r USING (workload_key) WHERE w.lookup_name = ? ORDER BY r.id DESC"
        with self._moment():
            rows = self._rows(f"SELECT r.id AS id {of}", [lookup_name(name)])
            return self._numbered([row["id"] for row in rows])

    def forget(self, name: str, device: str | None = None) -> int:
        """Give up the answers of a name, those of before too, on a device or on all. How many there were; what was
        measured for them stays, so that the same job finds an answer without measuring again what it knows."""
        where = "lookup_name = :name" + (f" AND {_OF_DEVICE.replace('r.', '')}" if device is not None else "")
        given = {"name": lookup_name(name), "device": device}
        with self._transaction() as database:
            database.execute("PRAGMA defer_foreign_keys = ON")
            names = (
                {
                    row["name"]
                    for row in database.query(
                        f"SELECT DISTINCT w.name FROM records r JOIN workloads w USING (workload_key) WHERE r.{where}",
                        given,
                    )
                }
                if device is None
                else set()
            )
            count = database.execute(f"SELECT count(*) FROM records WHERE {where}", given).fetchone()[0]
            database.execute(f"DELETE FROM records WHERE {where}", given)
            for each in names:  # it is suggested to nobody any more
                database.execute("DELETE FROM names WHERE name = ?", [each])
        return int(count)

    def _numbered(self, ids: list[int]) -> list[Record]:
        """Records by their numbers, in that order; damaged ones are left out, and said so in the log."""
        found: list[Record] = []
        for start in range(0, len(ids), 500):
            chunk = ids[start : start + 500]
            marks = ", ".join("?" * len(chunk))
            tail = (
                f"FROM records r LEFT JOIN workloads w USING (workload_key) WHERE r.id IN ({marks}) ORDER BY r.id DESC"
            )
            found += self._records(tail, chunk, len(chunk))
        return found

    def _records(self, tail: str, parameters: Sequence[object], expected: int | None = None) -> list[Record]:
        """A damaged record is none: it is left out, and said so in the log."""
        found = []
        rows = self._sealed(tail, parameters, skip=True, expected=expected, r="records", w="workloads")
        for row, workload in rows:
            if workload is None or workload["workload_key"] != row["workload_key"]:
                self._tell(Damage("workloads", repr(row["workload_key"])).sentence(self.path))
                continue
            with decoding(self.path, "records", called("records", row)):
                found.append(self._record(row, workload))
        return found

    def _check_workload(self, record: Record) -> None:
        rows = self._database.query(
            "SELECT strategy, name, sizes FROM workloads WHERE workload_key = ?", [record.workload_key]
        )
        stored = next(iter(rows), None)
        if stored is None:
            raise StoreError(f"{self.path}: a record of {record.workload_name!r}, which was never submitted")
        said = {"strategy": record.strategy, "name": record.workload_name, "sizes": canonical(record.sizes)}
        if said != stored:
            wrong = ", ".join(name for name in said if said[name] != stored[name])
            raise StoreError(f"{self.path}: a record of {record.workload_name!r} that has another {wrong} than it")

    def _columns(self, record: Record, job: str | None, source_hashes: Mapping[str, str]) -> dict[str, object]:
        low, high = record.ci95 or (None, None)
        return {
            **{name: getattr(record, name) for name in _AS_COLUMNS},
            "lookup_name": lookup_name(record.workload_name),
            "verdict": record.verdict.value,
            "config": config_text(record.config) if record.config is not None else None,
            "baseline_config": config_text(record.baseline_config) if record.baseline_config is not None else None,
            "ci_low": low,
            "ci_high": high,
            "verified": int(record.verified),
            "processes": record.processes,
            "ended": record.ended,
            "checks": canonical([printable(each) for each in record.checks]),
            "figures": canonical(dict(record.figures)),
            "counted": canonical([dict(each) for each in record.counted]) if record.counted else None,
            "source": self._stored(record.source),
            "source_hashes": canonical(absolute(source_hashes)),
            "job_id": job,
        }

    def _stored(self, source: str | None) -> str | None:
        """A path inside the artifacts is stored without their folder."""
        if source is None or not Path(source).is_relative_to(self.artifacts):
            return source
        return ARTIFACT + Path(source).relative_to(self.artifacts).as_posix()

    def _record(self, row: Row, workload: Row) -> Record:
        return Record(
            **{name: row[name] for name in _AS_COLUMNS},
            strategy=workload["strategy"],
            workload_name=workload["name"],
            sizes=mapping_from(workload["sizes"]),
            verdict=Verdict(row["verdict"]),
            config=config_from(row["config"]) if row["config"] is not None else None,
            baseline_config=config_from(row["baseline_config"]) if row["baseline_config"] is not None else None,
            ci95=(row["ci_low"], row["ci_high"]) if row["ci_low"] is not None else None,
            verified=bool(row["verified"]),
            processes=row["processes"] or 0,
            ended=row["ended"] or "",
            checks=tuple(decoded(row["checks"])),
            figures=mapping_from(row["figures"] or "{}"),
            counted=tuple(decoded(row["counted"], ())),
            strategy_version=workload["strategy_version"],
            content_key=workload["content_key"] or "",
            source=artifact_path(str(self.path), row["source"]),
        )
