"""`fusiond prune`: give back the disk space of what is not needed any more. No answer and no trial is lost: bundles and
builds are made again when they are asked for."""

from __future__ import annotations

import argparse
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from fusiond.build.cache import LIMIT_BYTES, BuildCache
from fusiond.build.working import sweep
from fusiond.cli import options, output
from fusiond.errors import RequestError
from fusiond.model import JobState
from fusiond.store.database import Store

HOURS = 24.0
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hours", type=float, default=HOURS, metavar="H", help="keep what is younger (default: %(default)g)"
    )
    parser.add_argument(
        "--cache", default="2G", metavar="SIZE", help="the build cache may have this much (default: 2G)"
    )
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    limit = size(arguments.cache)
    if not 0 <= arguments.hours < 1e6:
        raise RequestError(f"is {arguments.hours}; hours are wanted, from 0", where="--hours")
    database = options.database(arguments)
    freed = {"bundles": 0, "work": 0, "orphans": 0}
    if database.is_file():
        with closing(Store.open(database, create=False)) as store:
            freed = prune(store, 3600 * arguments.hours)
    freed["cache"] = BuildCache(limit_bytes=min(limit, LIMIT_BYTES) if limit else 0).sweep()
    freed["cache"] += sweep()
    if arguments.json:
        options.say_json({"freed_bytes": freed})
    else:
        for name, count in freed.items():
            output.say(f"{name:<8} {count / (1 << 20):10.1f} MiB freed")
    return 0


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
