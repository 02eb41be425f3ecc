"""Asks a strategy which operations of a module it would leave to a library."""

import functools
import logging

from fusiond.model.errors import FusiondError
from fusiond.strategy import ReadsModules

log = logging.getLogger("fusiond.service.frameworks")

STRATEGY = "stitching"  #: That computes regions


@functools.cache
def _strategy() -> ReadsModules | str:
    from fusiond.requests.registry import Registry  # a program without loops loads no plugin

    try:
        found = Registry.load(only=(STRATEGY,)).strategy(STRATEGY)
    except FusiondError as problem:
        return str(problem)
    return found if isinstance(found, ReadsModules) else f"{STRATEGY} reads no modules"


@functools.lru_cache(maxsize=1024)
def boundaries(text: str) -> tuple[str, ...]:
    """Why parts of a module (HLO text) cannot be computed by a region's kernels, a line each; empty where all of it
    can. Whatever else is wrong is a line, too."""
    strategy = _strategy()
    if isinstance(strategy, str):
        return (strategy,)
    try:
        return strategy.boundaries(text)
    except FusiondError as problem:
        return (str(problem),)
    except Exception as problem:  # a fault of the strategy's: the loop stays the library's, and the rest is fused
        log.warning("%s could not read a module", STRATEGY, exc_info=True)
        return (f"{type(problem).__name__} while it was read",)
