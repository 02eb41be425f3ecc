"""Samples of programs that are not trusted.

    before each sample   inputs of the other seed, outputs poisoned (before each further run in it: poisoned again)
    after each sample    what it wrote is compared with the reference of that seed, inputs and guard zones are looked at

A program that returns what an earlier run has left, remembers what it was given, or works in some runs only, is wrong
in the very runs that are timed.
"""

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from fusiond.devices.base import DataPlane, ExecutionError, Loaded
from fusiond.devices.timing import Take
from fusiond.model.outcomes import Outcome
from fusiond.model.program import Role

Judge = Callable[[Loaded, int], None]
"""(what ran on the data of a seed, the seed): raises ExecutionError where its outputs are wrong."""


def guarded(data: DataPlane, seeds: Sequence[int], judge: Judge) -> Take:
    """How samples are taken that are judged."""
    next_seeds: Mapping[int, Iterator[int]] = defaultdict(lambda: itertools.cycle(seeds))

    def take(loaded: Loaded, repeats: int, cold: bool) -> float:
        seed = next(next_seeds[id(loaded)])
        for buffer in loaded.program.buffers:
            data.fill(loaded, buffer, seed)
        loaded.snapshot(outputs=True)
        span_us = loaded.sample_us(repeats, cold=cold)
        judge(loaded, seed)
        return span_us

    return take


def untouched(data: DataPlane, loaded: Loaded, seed: int) -> None:
    """ExecutionError where a run has written beside its buffers, or into an input."""
    broken = data.broken_guards(loaded)
    if broken:
        raise ExecutionError(Outcome.CRASHED, f"out of bounds: {'; '.join(broken)}")
    for buffer in loaded.program.buffers:
        if buffer.role is Role.INPUT and not data.intact(loaded, buffer, seed):
            raise ExecutionError(Outcome.WRONG_RESULT, f"{buffer.name} is an input, and was written to")


def worst_error(data: DataPlane, loaded: Loaded, path: str, *, seed: int, when: str = "") -> float:
    """The worst error of the outputs, compared with those of an .npz. ExecutionError where one is wrong; `when` says in
    the reason in which kind of run."""
    compared = {each.name: each for each in loaded.program.buffers if each.role.compared}
    worst = 0.0
    with np.load(path) as reference:
        outputs = [name for name in reference.files if ":" not in name]
        for name, buffer in compared.items():
            if name not in outputs:
                raise ExecutionError(Outcome.WRONG_RESULT, f"the reference has no output {name!r}")
            found = data.compare(loaded, buffer, path, functools.partial(reference.__getitem__, name))
            if not found.equal:
                raise ExecutionError(Outcome.WRONG_RESULT, f"seed {seed}: {found.detail}{when}")
            worst = max(worst, found.worst)
        missing = set(outputs) - set(compared)
        if missing:
            raise ExecutionError(Outcome.WRONG_RESULT, f"no output {min(missing)!r} is written")
    return worst
