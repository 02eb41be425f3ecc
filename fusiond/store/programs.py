"""Programs by their keys, what they ask of a GPU, pictures of answers, and the artifacts: files in a folder beside the
SQLite file, named by their content.

Profiles are counted on the processor, or read off the GPU's own counters. They are kept with the program, so that every
trial of it has them, and two kinds of evidence never mix: each has a row of its own.

A file is complete, and on disk, before the row that names it; what a crash leaves without a row is an orphan.
"""

import contextlib
import errno
import logging
import os
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from fusiond.model.keys import canonical, text_key
from fusiond.model.nouns import COUNTED, MEASURED, Rejection
from fusiond.model.program import Program, decode, to_text
from fusiond.model.system import faults
from fusiond.store.connection import Connected
from fusiond.store.document import is_intact
from fusiond.store.encoding import decoding, printable
from fusiond.store.file_permissions import FOLDER_MODE, make_folder, tighten
from fusiond.store.format import artifacts_folder, decoded, disk_full, now
from fusiond.store.last_commit import sync_folder
from fusiond.store.plans import pack, unpack

log = logging.getLogger(__name__)

Rows: TypeAlias = Sequence[Mapping[str, Any]]
_UNFINISHED = ".writing-"
_AT_ONCE = 500


class Programs(Connected):
    def save_program(self, program: Program) -> None:
        """Keep a plan, its sources included; one that is there already is left as it is."""
        with self._transaction() as database:
            database.table("programs").insert(
                {"program_key": program.key, "plan": pack(to_text(program)), "saved_at": now()}, ignore=True
            )

    def program(self, program_key: str) -> Program | None:
        """The plan of that key; StoreError when another version of fusiond wrote it in another form."""
        ways = ("INDEXED BY sqlite_autoindex_programs_1", "INDEXED BY idx_programs_again")
        for row in self._sealed_of("programs", ways, program_key=program_key):
            with decoding(self.path, "programs", program_key):
                return decode(unpack(row["plan"]))
        return None

    def save_emitted(self, job: str, name: str, found: Program | Rejection) -> None:
        """Write down what a config of a job came to; `name` is the config's key. What is there already stays."""
        program = found if isinstance(found, Program) else None
        refused = found if isinstance(found, Rejection) else None
        with self._transaction() as database:
            if program is not None:
                self.save_program(program)
            database.table("emitted").insert(
                {
                    "job_id": job,
                    "config_key": name,
                    "program_key": program.key if program else None,
                    "rule": refused.rule if refused else None,
                    "nodes": canonical(refused.nodes) if refused else None,
                    "detail": printable(refused.detail) if refused else None,
                },
                ignore=True,
            )

    def emitted(self, job: str, name: str) -> Program | Rejection | None:
        """What a config of a job came to when it was emitted; None when it was not yet."""
        ways = ("INDEXED BY sqlite_autoindex_emitted_1", "INDEXED BY idx_emitted_again")
        for row in self._sealed_of("emitted", ways, job_id=job, config_key=name):
            if row["program_key"] is not None:
                return self.program(row["program_key"])
            with decoding(self.path, "emitted", name):
                nodes = tuple(decoded(row["nodes"]))
            return Rejection(rule=row["rule"], nodes=nodes, detail=row["detail"])
        return None

    # --- what explains them ---

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

    # --- files ---

    @property
    def artifacts(self) -> Path:
        """The folder of the artifacts; it is made with the first of them."""
        return Path(artifacts_folder(str(self.path)))

    def save_artifact(self, data: bytes, suffix: str) -> Path:
        """Keep bytes as a file, and say where. Equal bytes with an equal suffix are one file.

        StoreError when the disk is full; then nothing is left behind."""
        digest = text_key(data)
        name = f"{digest[:2]}/{digest}{suffix}"
        path = self.artifacts / name
        try:
            if not (path.is_file() and path.stat().st_size == len(data) and is_intact(str(path))):
                _write(path, data)
        except OSError as problem:
            if problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise disk_full(str(path)) from problem
            raise faults.of_our_file(problem, str(path)) from problem
        with self._transaction() as database:
            database.table("artifacts").insert({"path": name, "bytes": len(data), "saved_at": now()}, ignore=True)
        return path

    def collect_orphans(self, *, older_than_secs: float = 3600.0) -> list[Path]:
        """Remove the files that no row names, and say which; young ones may belong to a writer that is not done yet."""
        known = {row["path"] for row in self._rows("SELECT path FROM artifacts")}
        removed = []
        for path in sorted(self.artifacts.glob("*/*")):
            if path.relative_to(self.artifacts).as_posix() in known:
                continue
            with contextlib.suppress(OSError):  # somebody else was faster, or it is not ours to remove
                if time.time() - path.stat().st_mtime >= older_than_secs:
                    path.unlink()
                    removed.append(path)
        return removed


def _write(path: Path, data: bytes) -> None:
    """All of the file or none of it, also when the power fails."""
    for folder in (path.parent.parent, path.parent):
        make_folder(folder)
        tighten(str(folder), FOLDER_MODE)
    descriptor, unfinished = tempfile.mkstemp(dir=path.parent, prefix=_UNFINISHED)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
    for folder in (path.parent, path.parent.parent):
        sync_folder(str(folder))
