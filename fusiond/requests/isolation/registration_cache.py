"""Remembers across processes what the plugins of an environment registered.

To load all plugins takes a second, and most commands only want their names. The description is kept in the build cache
under a digest of all that it can depend on: the entry points and `fusiond.requests.job_cache.Environment`. A
description with a plugin that did not load is not kept: what was missing may be there the next time.
"""

import importlib.util
import logging
import os
import pickle
import sysconfig
from collections.abc import Collection, Iterable, Iterator
from importlib.metadata import EntryPoint

from fusiond.build import cache
from fusiond.model.errors import FusiondError
from fusiond.model.keys import text_key
from fusiond.requests.isolation.messages import Description
from fusiond.requests.job_cache import Environment

log = logging.getLogger(__name__)

SUFFIX = ".plugins"


def environment(points: Iterable[EntryPoint]) -> Environment:
    """What there is of the plugins behind these entry points, and of fusiond."""
    packages = {"fusiond", *(point.value.partition(":")[0].partition(".")[0] for point in points)}
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    folders |= {os.path.abspath(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each}
    folders |= {str(point.dist.locate_file("")) for point in points if point.dist}
    return Environment(folders, (path for each in packages for path in _places(each)))


def recall(points: Collection[EntryPoint], here: Environment | None = None) -> Description | None:
    """What these entry points registered in an earlier process; None when nothing is known of them as they are now."""
    try:
        path = cache.of_folder(cache.default_folder()).get(_key(points, here), SUFFIX)
        # As trustworthy as the libraries in the same folder, which are loaded and run.
        found = None if path is None else pickle.loads(path.read_bytes())
    except Exception:
        log.debug("what the plugins registered cannot be recalled", exc_info=True)
        return None
    return found if isinstance(found, Description) else None


def remember(points: Collection[EntryPoint], description: Description, here: Environment | None = None) -> None:
    """Keep it for the next process, where a cache can be written."""
    if any(state.problem for state in description.states):
        return
    try:
        folder, key = cache.of_folder(cache.default_folder()), _key(points, here)
        if not folder.path(key, SUFFIX).exists():
            folder.put(key, SUFFIX, pickle.dumps(description, pickle.HIGHEST_PROTOCOL))
    except (OSError, FusiondError):
        log.debug("what the plugins registered cannot be kept", exc_info=True)


def _key(points: Collection[EntryPoint], here: Environment | None) -> str:
    said = sorted(f"{point.name} {point.value} {point.dist and point.dist.version}" for point in points)
    return text_key("\n".join([*said, (here or environment(points)).digest]))


def _places(package: str) -> Iterator[str]:
    """The folders of a package, or the file of the module of that name."""
    spec = importlib.util.find_spec(package)
    if spec is not None:
        yield from spec.submodule_search_locations or filter(None, [spec.origin])
