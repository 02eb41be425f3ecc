"""`fusiond best --export`: the files with which a program calls an answer, written by the strategy that found it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from fusiond.errors import NothingKnown, RequestError
from fusiond.program import to_text
from fusiond.store.database import Store


def export(
    database: Path, document: Mapping[str, Any], folder: Path, *, unfused: bool = False, arch: str | None = None
) -> list[Path]:
    """Write the program of an answer of `best` into `folder`: its plan and its sources."""
    key = document["unfused"]["program_key"] if unfused or document["program_key"] is None else document["program_key"]
    with closing(Store.open(database, create=False)) as store:
        program = store.program(key or "")
    if program is None:
        raise NothingKnown("the program of this answer is not in the store")
    files = {f"{each.name}.cu": each.text.encode() for each in program.sources}
    return _written(folder, {**files, "plan.json": to_text(program).encode()})


def _written(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """All of the files; none, where one would take the place of something else."""
    paths = {folder / name: data for name, data in files.items()}
    for path, data in paths.items():
        if path.exists() and not (path.is_file() and path.read_bytes() == data):
            raise RequestError(f"{path} exists already, and is something else; name an empty folder", where="--export")
    for path, data in paths.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except OSError as problem:
            raise RequestError(f"cannot be written: {problem.strerror}", where=str(path)) from None
    return list(paths)
