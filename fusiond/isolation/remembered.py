"""What the plugins of an environment registered, remembered from one process to the next.

To load all plugins takes a second, and most commands only want their names. The description is kept in the build cache
under a digest of all that it can depend on: the entry points, the files of the packages behind them and of fusiond
(names, sizes, times of change), the folders that packages are installed in, and Python's version. A description with a
plugin that did not load is not kept: what was missing may be there the next time.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import pickle
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

from fusiond.build import cache
from fusiond.errors import FusiondError
from fusiond.isolation.messages import Description

log = logging.getLogger(__name__)

SUFFIX = ".plugins"


def recall(points: Iterable[EntryPoint]) -> Description | None:
    """What these entry points registered in an earlier process; None when nothing is known of them as they are now."""
    try:
        path = cache.of_folder(cache.default_folder()).get(_digest(points), SUFFIX)
        # As trustworthy as the libraries in the same folder, which are loaded and run.
        found = None if path is None else pickle.loads(path.read_bytes())
    except Exception:
        log.debug("what the plugins registered cannot be recalled", exc_info=True)
        return None
    return found if isinstance(found, Description) else None


def remember(points: Iterable[EntryPoint], description: Description) -> None:
    """Keep it for the next process, where a cache can be written."""
    if any(state.problem for state in description.states):
        return
    try:
        folder, key = cache.of_folder(cache.default_folder()), _digest(points)
        if not folder.path(key, SUFFIX).exists():
            folder.put(key, SUFFIX, pickle.dumps(description, pickle.HIGHEST_PROTOCOL))
    except (OSError, FusiondError):
        log.debug("what the plugins registered cannot be kept", exc_info=True)


def _digest(points: Iterable[EntryPoint]) -> str:
    found = hashlib.blake2b(repr(sys.version_info).encode(), digest_size=16)
    packages = {"fusiond"}
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    installed |= set(os.environ.get("PYTHONPATH", "").split(os.pathsep))
    for point in sorted(points, key=lambda each: (each.name, each.value)):
        found.update(f"{point.name} {point.value} {point.dist and point.dist.version}\n".encode())
        packages.add(point.value.partition(":")[0].partition(".")[0])
        installed |= {str(point.dist.locate_file(""))} if point.dist else set()
    for each in sorted(installed):  # what comes or goes changes its folder
        if os.path.isdir(each):
            found.update(f"{os.path.abspath(each)} {os.stat(each).st_mtime_ns}\n".encode())
    for package in sorted(packages):
        for path, size, changed in _files(package):
            found.update(f"{path} {size} {changed}\n".encode())
    return found.hexdigest()


def _files(package: str) -> Iterator[tuple[str, int, int]]:
    """(path, bytes, time of change) of each file of a package, or of the module of that name."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return
    for folder in spec.submodule_search_locations or ():
        yield from _below(folder)
    if spec.origin is not None and spec.submodule_search_locations is None and Path(spec.origin).is_file():
        status = os.stat(spec.origin)
        yield spec.origin, status.st_size, status.st_mtime_ns


def _below(folder: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for each in sorted(entries, key=lambda entry: entry.name):
            if each.is_dir():
                if each.name != "__pycache__":
                    yield from _below(each.path)
            elif each.is_file():
                status = each.stat()
                yield each.path, status.st_size, status.st_mtime_ns
