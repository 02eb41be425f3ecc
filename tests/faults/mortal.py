"""The fake device, whose child processes are killed at one step of their lives, so and so many times in a row.

MORTAL_STEP names the step, MORTAL_DEATHS how many children die there, MORTAL_COUNT is a file that counts them.
"""

import os
import signal
from collections.abc import Mapping
from pathlib import Path

from fusiond.devices.base import Array, Executor
from fusiond.model.program import Program
from fusiond.strategy.hookspecs import hookimpl
from tests.fakes import FakeExecutor, FakeLoaded, FakeProvider

STEPS = ("starting", "ready", "loading", "checking", "reading", "sampling", "ending")


def die(step: str) -> None:
    if step != os.environ.get("MORTAL_STEP"):
        return
    count = Path(os.environ["MORTAL_COUNT"])
    died = len(count.read_bytes()) if count.exists() else 0
    if died < int(os.environ["MORTAL_DEATHS"]):
        with open(count, "ab") as file:
            file.write(b".")
        os.kill(os.getpid(), signal.SIGKILL)


class MortalProvider(FakeProvider):
    def executor(self, name: str) -> Executor:
        die("starting")
        return MortalExecutor()


class MortalExecutor(FakeExecutor):
    def load(self, program: Program, binaries: Mapping[str, Path]) -> FakeLoaded:
        die("loading")
        found = super().load(program, binaries)
        return MortalLoaded(found.program, {name: path.read_text() for name, path in binaries.items()})

    def close(self) -> None:
        die("ending")


class MortalLoaded(FakeLoaded):
    def write(self, buffer: str, data: Array) -> None:
        die("ready")  # the first thing that is done for a request, before anything of the program runs
        super().write(buffer, data)

    def run(self, *, seed: int, checked: bool) -> None:
        die("checking")
        super().run(seed=seed, checked=checked)

    def read(self, buffer: str) -> Array:
        die("reading")
        return super().read(buffer)

    def sample_us(self, repeats: int, *, cold: bool = False) -> float:
        die("sampling")
        return super().sample_us(repeats, cold=cold)

    def close(self) -> None:
        die("ending")


class MortalPlugin:
    """Give it to `Registry.add`, beside the toy strategy."""

    @hookimpl
    def register_devices(self, register: object) -> None:
        register(MortalProvider())  # type: ignore[operator]
