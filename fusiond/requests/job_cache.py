"""Remembers beside the store what a job file stood for when it was last parsed, so that `best` and `submit` of the
same job load no plugin and no YAML. Standard library only.

    STORE.asked/KEY     one job file, with the sizes that were given: its questions, and what they were made of

An entry holds as long as all of it is as it was: the text of the job and every file that was read, by content, however
old they look (large data by size, inode and times); every path that was looked for, whether it was there or not, so
that a header that comes to hide another one counts; fusiond, Python, the installed packages and the plugins' own files.
Anything else, a damaged entry included, is a miss, and costs what it cost the first time.
"""

from __future__ import annotations

import json
import os
import sys
import time

from fusiond import __version__
from fusiond.model.errors import FusiondError, NothingKnown
from fusiond.store import lookup, sources, tables
from fusiond.store.hashing import hashed
from fusiond.store.reading import reading

TYPE_CHECKING = False
if TYPE_CHECKING:  # `fusiond best` pays for everything that is imported here
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

MOST = 4000  #: Entries; those written first go
_SETTLED_NS = 2_000_000_000  #: A file that changed so shortly before it was read may change again without looking newer


class RememberedWorkload:
    """A workload that a job asks about, its content by its keys, with the device and search that the job names."""

    __slots__ = ("cache", "content", "device", "family", "key", "name", "path", "search", "sizes")

    def __init__(
        self,
        *,
        key: str,
        content: str,
        family: str,
        name: str,
        sizes: Mapping[str, int],
        device: str,
        search: str,
        cache: str,
        path: str,
    ) -> None:
        self.key, self.content, self.family, self.name, self.sizes = key, content, family, name, sizes
        self.device, self.search, self.cache, self.path = device, search, cache, path


class Remembered:
    """The questions of a job file, and what the plugins say of versions."""

    __slots__ = ("questions", "says")

    def __init__(self, questions: tuple[RememberedWorkload, ...], says: lookup.Says) -> None:
        self.questions, self.says = questions, says


# --- answers ---


def answer(
    database: os.PathLike[str] | str, asked: RememberedWorkload, device: str, cache: str, says: lookup.Says
) -> dict[str, Any] | NothingKnown | None:
    """The document of `best --json` from this store; None where it knows nothing, NothingKnown where what it knows is
    damaged."""
    from fusiond.model.system import driver

    try:
        return lookup.best_of(
            database,
            family=asked.family,
            sizes=asked.sizes,
            name=asked.name,
            device=device,
            driver=driver.version(),
            version=__version__,
            cache=cache,
            says=says,
        )
    except NothingKnown as problem:
        return problem


def unknown(database: os.PathLike[str] | str, asked: RememberedWorkload, device: str) -> NothingKnown:
    """Why there is no answer, and what there is instead."""
    try:
        known = lookup.contents(database, asked.name, version=__version__)
    except FusiondError:
        known = []
    hint = "`fusiond run` finds out"
    if known and all(each["content_key"] != asked.content for each in known):
        where = f"{known[0]['path'] or known[0]['strategy']}, {known[0]['found_at']}"
        hint = f"an answer for other content of that name exists ({where})"
    on = "" if device in ("auto", "all") else f" on {device}"
    return NothingKnown(f"nothing is known about {asked.name} as {asked.path} asks it{on}; {hint}")


def same_jobs(
    database: os.PathLike[str] | str,
    known: Remembered,
    *,
    device: str | None,
    trials: int | None,
    seed: int | None,
    priority: int,
) -> tuple[str, ...]:
    """The ids of the jobs that tune all of this already, at that priority or above; none where one of them does not.
    What is given overrules the job file."""
    found = []
    given = {name: value for name, value in (("trials", trials), ("seed", seed)) if value is not None}
    with reading(database) as reader:
        if reader is None:
            return ()
        for each in known.questions:
            search = json.dumps({**json.loads(each.search), **given}, sort_keys=True, separators=(",", ":"))
            rows = tables.rows(
                reader.connection,
                "FROM jobs j WHERE kind = 'tune' AND workload_key = ? AND device = ? AND search = ? "
                "AND state IN ('queued', 'running', 'waiting') AND cancel_requested = 0 AND priority >= ?",
                [each.key, device or each.device, search, priority],
                j="jobs",
            )
            found += [str(row["id"]) for (row,) in rows if isinstance(row, dict)][:1]
    return tuple(found) if len(found) == len(known.questions) else ()


# --- entries ---


def recall(
    database: os.PathLike[str] | str, path: os.PathLike[str] | str, text: str | None, sizes: Mapping[str, int] | None
) -> Remembered | None:
    """What was remembered of a job file asked at these sizes, if all that it was made of is unchanged."""
    try:
        with open(_file(database, path, sizes), "rb") as stream:
            seal, _, data = stream.read().partition(b"\n")
        if hashed(data).hex().encode() != seal:
            return None
        entry = json.loads(data)
        given = None if text is None else text.encode(errors="surrogatepass")
        if entry["fusiond"] != __version__ or not _holds(entry, os.path.abspath(path), given):
            return None
        says = lookup.Says(
            versions=entry["versions"], wrong=entry["wrong"], kinds={}, catalogue={}, fusiond={__version__}
        )
        return Remembered(tuple(RememberedWorkload(**each) for each in entry["questions"]), says)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _holds(entry: Mapping[str, Any], path: str, text: bytes | None) -> bool:
    if not sources.has(sources.read(path) if text is None else text, entry["text"]):
        return False
    if any(sources.text_key(sources.read(file)) != digest for file, digest in entry["files"].items()):
        return False
    if any(_status(file) != status for file, status in entry["large"].items()):
        return False
    if any(_found(asked) != found for asked, found in entry["looked"].items()):
        return False
    return bool(Environment(entry["folders"], entry["packages"]).digest == entry["environment"])


def remember(
    database: os.PathLike[str] | str,
    path: os.PathLike[str] | str,
    text: str,
    questions: Iterable[RememberedWorkload],
    sizes: Mapping[str, int] | None,
    *,
    files: Mapping[str, str],
    looked: Mapping[str, str],
    says: lookup.Says,
    here: Environment,
) -> None:
    """Keep it for the next process, where a file can be written beside the store. `files`: path -> digest of the bytes
    that were read; `looked`: path -> the file that was found there, or nothing."""
    target = _file(database, path, sizes)
    mine = f"{target}.{os.getpid()}.{time.monotonic_ns()}"
    try:
        large = {file: _status(file) for file in files if os.path.getsize(file) > sources.COMPARED_BYTES}
        if any(time.time_ns() - max(status[2:]) < _SETTLED_NS for status in large.values()):
            return
        if any(sources.text_key(sources.read(file)) != digest for file, digest in files.items()):
            return  # it has changed since it was parsed
        entry = {
            "fusiond": __version__,
            "text": sources.text_key(text.encode(errors="surrogatepass")),
            "files": {file: digest for file, digest in files.items() if file not in large},
            "large": large,
            "looked": dict(looked),
            "environment": here.digest,
            "folders": here.folders,
            "packages": here.packages,
            "versions": dict(says.versions),
            "wrong": {name: sorted(each) for name, each in says.wrong.items()},
            "questions": [{name: getattr(each, name) for name in RememberedWorkload.__slots__} for each in questions],
        }
        data = json.dumps(entry).encode()
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        with open(os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as stream:
            stream.write(hashed(data).hex().encode() + b"\n" + data)
        os.replace(mine, target)
        _bound(os.path.dirname(target))
    except OSError:  # a read-only folder, a full disk: it is parsed anew the next time
        return


def _file(database: os.PathLike[str] | str, path: os.PathLike[str] | str, sizes: Mapping[str, int] | None) -> str:
    key = sources.text_key(json.dumps([os.path.abspath(path), dict(sizes or {})], sort_keys=True).encode())
    return os.path.join(f"{os.path.splitext(os.path.abspath(database))[0]}.asked", key)


def _status(file: str) -> list[int]:
    """Of data that takes long to read: its size, which file it is, and when it or its entry changed."""
    found = os.stat(file)
    return [found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns]


def _found(asked: str) -> str:
    """The file at a path that a job names; empty where there is none."""
    return os.path.realpath(asked) if os.path.isfile(asked) else ""


def _bound(folder: str) -> None:
    with os.scandir(folder) as entries:
        found = [(entry.stat().st_mtime_ns, entry.path) for entry in entries]
    for _, path in sorted(found)[: max(0, len(found) - MOST)]:
        os.unlink(path)


# --- what parses ---


class Environment:
    """The files that decide how jobs are parsed, and a digest of how they are: those of Python packages, and the
    folders that packages are installed in."""

    __slots__ = ("digest", "folders", "packages")

    def __init__(self, folders: Iterable[str], packages: Iterable[str]) -> None:
        self.folders, self.packages = sorted(folders), sorted(packages)
        said = [sys.version, sys.prefix, os.environ.get("PYTHONPATH", "")]
        for each in self.folders:  # what comes or goes changes its folder
            said.append(f"{each} {os.stat(each).st_mtime_ns if os.path.isdir(each) else None}")
        for each in self.packages:
            said += map(str, _files(each))
        self.digest = hashed("\n".join(said).encode(errors="surrogatepass")).hex()


def _files(path: str) -> Iterator[tuple[str, int, int, int]]:
    """(path, bytes, times of change) of a file, or of each below a folder."""
    if not os.path.isdir(path):
        if os.path.exists(path):
            status = os.stat(path)
            yield path, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        return
    with os.scandir(path) as entries:
        for each in sorted(entries, key=lambda entry: entry.name):
            if each.is_dir():
                if each.name != "__pycache__":
                    yield from _files(each.path)
            elif each.is_file():
                status = each.stat()
                yield each.path, status.st_size, status.st_mtime_ns, status.st_ctime_ns
