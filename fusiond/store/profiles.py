"""Explanations of answers: what programs ask of a GPU, and pictures.

Profiles are counted on the processor, or read off the GPU's own counters. They are kept with the program, so that every
trial of it has them, and two kinds of evidence never mix: each has a row of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from fusiond.model import drawing
from fusiond.model.drawing import Drawing
from fusiond.model.keys import canonical
from fusiond.model.nouns import COUNTED, MEASURED
from fusiond.store.connection import Connected
from fusiond.store.format import decoded, now

log = logging.getLogger(__name__)

Rows: TypeAlias = Sequence[Mapping[str, Any]]
_AT_ONCE = 500


class Profiles(Connected):
    def save_profile(self, program_key: str, gpu: str, evidence: str, rows: Rows) -> None:
        """Write down what a program asks of a GPU, an object for each launch; a later profile takes the place of an
        earlier one. `gpu` is a name of the table of GPUs where the rows are counted, the device's key where they are
        measured."""
        if evidence not in (COUNTED, MEASURED):
            raise ValueError(f"a profile is {COUNTED} or {MEASURED}, not {evidence!r}")
        values = [program_key, gpu, evidence]
        with self._transaction() as database:
            database.execute("DELETE FROM profiles WHERE program_key = ? AND gpu = ? AND evidence = ?", values)
            database.execute(
                "INSERT INTO profiles (program_key, gpu, evidence, rows, at) VALUES (?, ?, ?, ?, ?)",
                [*values, canonical([dict(each) for each in rows]), now()],
            )

    def profiles(self, program_keys: Collection[str], gpu: str, evidence: str) -> dict[str, list[dict[str, Any]]]:
        """Rows of those programs that have a profile for this GPU; a damaged one is left out."""
        found: dict[str, list[dict[str, Any]]] = {}
        keys = sorted(program_keys)
        for begin in range(0, len(keys), _AT_ONCE):
            some = keys[begin : begin + _AT_ONCE]
            marks = ", ".join("?" * len(some))
            where = f"FROM profiles p WHERE program_key IN ({marks}) AND gpu = ? AND evidence = ?"
            for (row,) in self._sealed(where, [*some, gpu, evidence], skip=True, p="profiles"):
                found[row["program_key"]] = decoded(row["rows"])
        return found

    def save_drawings(self, workload_key: str, device_key: str, cache: str, drawings: Sequence[Drawing]) -> None:
        """Write down what there is to see of an answer, in place of what there was."""
        values = [workload_key, device_key, cache]
        with self._transaction() as database:
            database.execute("DELETE FROM drawings WHERE workload_key = ? AND device_key = ? AND cache = ?", values)
            database.execute(
                "INSERT INTO drawings (workload_key, device_key, cache, drawings) VALUES (?, ?, ?, ?)",
                [*values, canonical(drawing.as_json(drawings))],
            )

    def drawings(self, workload_key: str, device_key: str, cache: str) -> tuple[Drawing, ...]:
        """What there is to see of an answer; nothing where it is damaged, or of a later version."""
        where = "FROM drawings d WHERE workload_key = ? AND device_key = ? AND cache = ?"
        for (row,) in self._sealed(where, [workload_key, device_key, cache], skip=True, d="drawings"):
            try:
                return drawing.from_json(decoded(row["drawings"]))
            except ValueError as problem:
                log.warning("%s: the pictures of %s are left out: %s", self.path, workload_key, problem)
        return ()
