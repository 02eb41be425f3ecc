"""Lists of answers: today's, former ones of a name, and how to remove one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fusiond.model.outcomes import Record, Verdict
from fusiond.store.encoding import mapping_from
from fusiond.store.format import lookup_name
from fusiond.store.records import Records

_OF_DEVICE = (
    "(r.device_name = :device OR r.device_key = :device "
    "OR r.device_key IN (SELECT device_key FROM devices WHERE model = :device))"
)


class Answers(Records):
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
            names = {row["name"] for row in database.query(
                f"SELECT DISTINCT w.name FROM records r JOIN workloads w USING (workload_key) WHERE r.{where}", given
            )} if device is None else set()  # fmt: skip
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
