"""Samples of programs that are not trusted.

    before each sample   inputs of the other seed, outputs poisoned (before each further run in it: poisoned again)
    after each sample    what it wrote is compared with the reference of that seed, inputs and guard zones are looked at

A program that returns what an earlier run has left, remembers what it was given, or works in some runs only, is wrong
in the very runs that are timed.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fusiond.devices.base import DataPlane, ExecutionError, Loaded
from fusiond.model.outcomes import Outcome
from fusiond.model.program import Program, Role

Judge = Callable[[Loaded, int], None]
"""(what ran on the data of a seed, the seed): raises ExecutionError where its outputs are wrong."""


class GuardedLoaded:
    """`fusiond.devices.base.Loaded`: another one, whose samples are judged."""

    def __init__(self, inner: Loaded, data: DataPlane, seeds: Sequence[int], judge: Judge) -> None:
        self._inner, self._data, self._judge = inner, data, judge
        self._seeds: Iterator[int] = itertools.cycle(seeds)
        self._seed = seeds[0]
        self.program: Program = inner.program
        self.write, self.read, self.snapshot = inner.write, inner.read, inner.snapshot
        self.run, self.broken_guards, self.close = inner.run, inner.broken_guards, inner.close

    @property
    def clock(self) -> str:
        return self._inner.clock

    @clock.setter
    def clock(self, clock: str) -> None:
        self._inner.clock = clock

    @property
    def gate_failures(self) -> int:
        return self._inner.gate_failures

    @gate_failures.setter
    def gate_failures(self, number: int) -> None:
        self._inner.gate_failures = number

    def restore(self) -> None:
        self._seed = next(self._seeds)
        for buffer in self.program.buffers:
            self._data.fill(self._inner, buffer, self._seed)
        self._inner.snapshot(outputs=True)

    def sample_us(self, repeats: int, *, cold: bool = False) -> float:
        span_us = self._inner.sample_us(repeats, cold=cold)
        self._judge(self._inner, self._seed)
        return span_us


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
