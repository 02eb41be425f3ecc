"""What the plugins registered when they were last loaded, so that a look-up loads none of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from fusiond import __version__
from fusiond.model.errors import StoreError
from fusiond.model.keys import canonical
from fusiond.model.nouns import Workload
from fusiond.store.connection import Connected
from fusiond.store.encoding import mapping_from

if TYPE_CHECKING:  # with YAML, which a list of answers does without
    from fusiond.strategy import CatalogueEntry, Strategy

UNREADABLE = ""
"""In place of a content key: the job that tuned this workload does not parse any more, so nobody tries again."""


class Said(Connected):
    def save_strategies(self, strategies: Iterable[Strategy], catalogue: Iterable[CatalogueEntry]) -> None:
        """Keep what the plugins of today say, in place of what they said before; nothing is written where it is the
        same."""
        said = [
            {
                "strategy": each.name,
                "version": each.version,
                "wrong_versions": canonical(sorted(each.wrong_versions)),
                "names": canonical(dict(each.names)),
                "fusiond": __version__,
            }
            for each in sorted(strategies, key=lambda each: each.name)
        ]
        entries = [
            {"kind": each.kind, "name": each.name, "path": os.path.abspath(each.path)}
            for each in sorted(catalogue, key=lambda each: (each.kind, each.name))
        ]
        before = (
            self._rows("SELECT strategy, version, wrong_versions, names, fusiond FROM strategies ORDER BY strategy"),
            self._rows("SELECT kind, name, path FROM catalogue ORDER BY kind, name"),
        )
        if before == (said, entries):
            return
        with self._transaction() as database:
            for table, rows in (("strategies", said), ("catalogue", entries)):
                database.execute(f"DELETE FROM {table}")
                database.table(table).insert_all(rows)

    def without_content(self) -> list[tuple[str, str | None]]:
        """The workloads that an earlier version wrote, without the keys of their content: workload_key, and the id of
        the job that asked for it last (None where it came without one)."""
        rows = self._rows(
            "SELECT w.workload_key, (SELECT j.id FROM jobs j WHERE j.workload_key = w.workload_key "
            "ORDER BY j.number DESC LIMIT 1) AS job FROM workloads w WHERE w.content_key IS NULL ORDER BY w.rowid"
        )
        return [(row["workload_key"], row["job"]) for row in rows]

    def family(self, workload_key: str) -> tuple[str, Mapping[str, int]]:
        """By what a lookup finds a stored workload: the key of its content without sizes, and its sizes."""
        for (row,) in self._sealed("FROM workloads w WHERE workload_key = ?", [workload_key], w="workloads"):
            return row["content_family_key"] or row["family_key"], mapping_from(row["sizes"])
        raise StoreError(
            f"{self.path}: there is no workload {workload_key}; `fusiond store check` says whether it was lost"
        )

    def save_content(self, workload_key: str, workload: Workload | None) -> None:
        """The keys of a stored workload's content, as it is parsed today; None: it does not parse any more."""
        keys = [UNREADABLE, UNREADABLE] if workload is None else [workload.content_key, workload.content_family_key]
        with self._transaction() as database:
            database.execute(
                "UPDATE workloads SET content_key = ?, content_family_key = ? WHERE workload_key = ?",
                [*keys, workload_key],
            )
