"""The samplers of the table: fusiond's own, and those that stand beside them."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Mapping, Sequence

from benchmarks.search import drive, peers
from benchmarks.search.drive import Recorded
from benchmarks.search.peers import Search
from fusiond.model.errors import UnknownName
from fusiond.model.nouns import Config
from fusiond.model.outcomes import Trial
from fusiond.tuning.search.study import Study

DONATED, ELSEWHERE = 100, 1000  #: Trials of a search elsewhere, and what its seeds begin with


def own(recorded: Recorded, seed: int, trials: int, ahead: int) -> Sequence[Config]:
    """fusiond's study."""
    make = functools.partial(Study, seed=seed)
    return tuple(drive.study(recorded, make, trials=trials, ahead=ahead))


def with_donors(spaces: Sequence[Recorded], recorded: Recorded, seed: int, trials: int, ahead: int) -> Sequence[Config]:
    """fusiond's study, which knows what a search of each other space of the same parameters has found (100 trials, with
    another seed); nothing where there is no such space."""
    kin = [each for each in spaces if each is not recorded and each.pack.parameters == recorded.pack.parameters]
    donors = []
    for each in kin:
        found: list[Trial] = []
        make = functools.partial(Study, seed=ELSEWHERE + seed)
        for _ in drive.study(each, make, trials=DONATED, ahead=1, observe=found.append):
            pass
        donors.append([(trial.config, math.log(trial.ratio) if trial.ratio else None) for trial in found])
    if not donors:
        return ()
    return tuple(drive.study(recorded, functools.partial(Study, seed=seed, donors=donors), trials=trials, ahead=ahead))


def at_random(recorded: Recorded, seed: int, trials: int, ahead: int) -> Sequence[Config]:
    """Without replacement."""
    configs = list(recorded.rows)
    return random.Random(seed).sample(configs, min(trials, len(configs)))


_SEARCHES: Mapping[str, Search] = {"gp": own, "random": at_random, **peers.SEARCHES}
DONORS = "gp:donors"
NAMES = (*_SEARCHES, DONORS)


def named(name: str, spaces: Sequence[Recorded]) -> Search:
    """UnknownName for a sampler that is not there. `spaces`: all that are searched."""
    if name == DONORS:
        return functools.partial(with_donors, spaces)
    if name not in _SEARCHES:
        raise UnknownName("sampler", name, NAMES, where="--sampler")
    return _SEARCHES[name]
