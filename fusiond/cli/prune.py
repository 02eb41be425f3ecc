"""`fusiond prune`: deletes what is no longer needed, and reports the size of the rest.

No answer is lost. Without `--older-than` no trial either: bundles and builds are made again when they are asked for.
"""

import argparse
import contextlib
import dataclasses
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from fusiond.build.cache import LIMIT_BYTES, BuildCache
from fusiond.build.working import sweep
from fusiond.cli import options, output
from fusiond.model.english import counted
from fusiond.model.errors import RequestError
from fusiond.model.outcomes import JobState
from fusiond.store.database import Store
from fusiond.store.format import now
from fusiond.store.retention import remove_old

HOURS = 24.0
_AGES = {"h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hours", type=float, default=HOURS, metavar="H", help="keep what is younger (default: %(default)g)"
    )
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        help="also remove jobs that ended before (30d; h, d and w are known), but for what an answer, its history or "
        "an undone job needs",
    )
    parser.add_argument(
        "--cache", default="2G", metavar="SIZE", help="the build cache may have this much (default: 2G)"
    )
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    limit = size(arguments.cache)
    if not 0 <= arguments.hours < 1e6:
        raise RequestError(f"is {arguments.hours}; hours are wanted, from 0", where="--hours")
    older_secs = None if arguments.older_than is None else age_secs(arguments.older_than)
    database = options.database(arguments)
    freed = {"bundles": 0, "work": 0, "orphans": 0}
    sizes: dict[str, int] = {}
    removed = None
    if database.is_file():
        with closing(Store.open(database, create=False)) as store:
            if older_secs is not None:
                removed = remove_old(store, now(ago_secs=older_secs))
                freed["store"] = removed.bytes
            freed |= prune(store, 3600 * arguments.hours)
            sizes = _sizes(store)
    cache = BuildCache(limit_bytes=min(limit, LIMIT_BYTES) if limit else 0)
    freed["cache"] = cache.sweep() + sweep()
    sizes["cache"] = _bytes_of(cache.folder)
    if arguments.json:
        counts = None if removed is None else dataclasses.asdict(removed)
        options.say_json({"freed_bytes": freed, "bytes": sizes, "removed": counts})
        return 0
    if removed is not None:
        output.say(
            f"removed  {counted(removed.jobs, 'job')} with {counted(removed.trials, 'trial')}, "
            f"{counted(removed.samples, 'sample')} of others, {counted(removed.programs, 'program')}"
        )
    for name in sorted({**freed, **sizes}):
        kept = f", {sizes[name] / (1 << 20):10.1f} MiB stay" if name in sizes else ""
        output.say(f"{name:<9} {freed.get(name, 0) / (1 << 20):10.1f} MiB freed{kept}")
    return 0


def age_secs(text: str) -> float:
    """`36h`, `30d`, `8w` in seconds."""
    match = re.fullmatch(r"(\d{1,6})\s*([hdw])", text.strip(), re.IGNORECASE)
    if match is None:
        raise RequestError(f"is {text[:40]!r}; write 36h, 30d or 8w", where="--older-than")
    return int(match[1]) * _AGES[match[2].lower()]


def _sizes(store: Store) -> dict[str, int]:
    """What stays, in bytes: the store with its log, and the parts of its artifacts."""
    whole = _bytes_of(store.artifacts)
    bundles, work = (_bytes_of(store.artifacts / name) for name in ("bundles", "work"))
    files = [Path(f"{store.path}{beside}") for beside in ("", "-wal")]
    return {
        "store": sum(file.stat().st_size for file in files if file.exists()),
        "bundles": bundles,
        "work": work,
        "artifacts": whole - bundles - work,
    }


def _bytes_of(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # it went meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total


def prune(store: Store, older_than_secs: float) -> dict[str, int]:
    """Bytes freed of bundles that were not used lately, of what ended jobs left, and of files that no row names."""
    running = {row.id for row in store.jobs([JobState.RUNNING], limit=1_000_000) if not row.lost}
    before = time.time() - older_than_secs
    bundles = work = 0
    if not running:  # a job's bundles may be older than the job's last look at them
        for folder in _folders(store.artifacts / "bundles"):
            if folder.stat().st_mtime < before:
                bundles += _removed(folder)
    for folder in _folders(store.artifacts / "work"):
        if folder.name not in running and folder.stat().st_mtime < before:
            work += _removed(folder)
    sizes = {path: path.stat().st_size for path in store.artifacts.glob("*/*") if path.is_file()}
    orphans = sum(sizes.get(path, 0) for path in store.collect_orphans(older_than_secs=max(older_than_secs, 60.0)))
    return {"bundles": bundles, "work": work, "orphans": orphans}


def size(text: str) -> int:
    """`500M`, `2G`, `0` as bytes."""
    match = re.fullmatch(r"(\d{1,12})\s*([KMG]?)i?B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise RequestError(f"is {text[:40]!r}; write 500M or 2G", where="--cache")
    return int(match[1]) * _UNITS[match[2].upper()]


def _folders(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.glob("*")) if path.is_dir())


def _removed(folder: Path) -> int:
    """Remove a folder; the bytes that were its own (a binary in a bundle is a link to the build cache's)."""
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    shutil.rmtree(folder, ignore_errors=True)
    return sum(each.st_size for each in files if each.st_nlink == 1)
