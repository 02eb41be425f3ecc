"""Runs Programs on the cpu device in this process: checked (poisoned, in adversarial orders, guard zones looked at)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusiond.build import gxx
from fusiond.build.cache import BuildCache
from fusiond.devices.cpu.executor import CpuExecutor
from fusiond.devices.run import run_checked
from fusiond.model.program import Program, problems

Arrays = dict[str, NDArray[Any]]


class Runner:
    """`cache` keeps what g++ built, for a whole run of the tests."""

    def __init__(self, cache: Path) -> None:
        self._cache = BuildCache(cache)
        self._executor = CpuExecutor()

    def run(self, program: Program, inputs: Mapping[str, NDArray[Any]], *, seed: int = 0) -> Arrays:
        """The outputs, by buffer. ExecutionError for a fault, AssertionError for an unsound plan or a failed build."""
        assert problems(program) == ()
        binaries = {}
        for source in program.sources:
            built = gxx.build(source, cache=self._cache)
            assert isinstance(built, Path), f"{built.reason}\n{source.text}"
            binaries[source.name] = built
        loaded = self._executor.load(program, binaries)
        try:
            flat = {name: np.ascontiguousarray(array).reshape(-1) for name, array in inputs.items()}
            return dict(run_checked(loaded, self._executor.data, flat, seed))
        finally:
            loaded.close()
