"""The fake device with a load time per program, for trials that are bound by the device."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from fusiond.devices.base import Executor
from fusiond.model.program import Program
from fusiond.testing.fakes import FakeExecutor, FakeLoaded, FakeProvider


class SleepingExecutor(FakeExecutor):
    def load(self, program: Program, binaries: Mapping[str, Path]) -> FakeLoaded:
        time.sleep(float(os.environ.get("FUSIOND_FAKE_LOAD_SECS", "0.2")))
        return super().load(program, binaries)


class SleepingProvider(FakeProvider):
    """Each program takes FUSIOND_FAKE_LOAD_SECS (0.2) to load; a worker keeps the baseline loaded."""

    def executor(self, name: str) -> Executor:
        return SleepingExecutor()
