"""The samplers of the table: fusiond's own, and those that stand beside them."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from benchmarks.search import drive
from benchmarks.search.drive import Recorded
from fusiond.errors import UnknownName
from fusiond.model import Config
from fusiond.search.study import Study

Search: TypeAlias = Callable[[Recorded, int, int, int], Sequence[Config]]
"""(space, seed, trials, asks that are out at once) -> the configs in the order in which they were tried."""


def own(sampler: str, recorded: Recorded, seed: int, trials: int, ahead: int) -> Sequence[Config]:
    """fusiond's study."""
    make = functools.partial(Study, seed=seed, sampler=sampler)
    return tuple(drive.study(recorded, make, trials=trials, ahead=ahead))


def at_random(recorded: Recorded, seed: int, trials: int, ahead: int) -> Sequence[Config]:
    """Without replacement."""
    configs = list(recorded.rows)
    return random.Random(seed).sample(configs, min(trials, len(configs)))


_SEARCHES: Mapping[str, Search] = {
    "gp": functools.partial(own, "gp"),
    "tpe": functools.partial(own, "tpe"),
    "random": at_random,
}
NAMES = tuple(_SEARCHES)


def named(name: str) -> Search:
    """UnknownName for a sampler that is not there."""
    if name not in _SEARCHES:
        raise UnknownName("sampler", name, NAMES, where="--sampler")
    return _SEARCHES[name]
