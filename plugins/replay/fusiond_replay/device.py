"""The device `replay`: it runs nothing, and takes the times that were recorded, in their order.

What failed there fails here in the same way: it does not build, is refused, crashes, times out, or gives a wrong
result. Records are kept under a device of its own, whose evidence is `replayed`: they are served to nobody who does not
name it.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

import fusiond
from fusiond.devices.base import Array, Binary, Clockless, DataPlane, ExecutionError, Executor
from fusiond.devices.data import HostData
from fusiond.model.errors import UnknownName
from fusiond.model.gpu.limits import MOST_SHARED_BYTES
from fusiond.model.inputs.fills import fill
from fusiond.model.keys import content_key
from fusiond.model.nouns import REPLAYED, DeviceInfo, DeviceLimits, frozen
from fusiond.model.outcomes import BuildFailed, Outcome
from fusiond.model.program import Fill, Program, Source
from fusiond.strategy import Facts
from fusiond_replay import script

_ANSWER = Fill(kind="integers", low=0, high=1000)
_OUTCOMES = {
    "runtime": (Outcome.CRASHED, "it failed while it ran, where it was recorded"),
    "timeout": (Outcome.TIMED_OUT, "it took too long where it was recorded"),
    "constraints": (Outcome.LAUNCH_REFUSED, "it broke a constraint where it was recorded"),
}


class ReplayProvider:
    """`fusiond.devices.base.DeviceProvider` for what was recorded elsewhere."""

    kind = "replay"
    shares_cores = False  #: Nothing is timed

    def devices(self) -> tuple[DeviceInfo, ...]:
        limits = DeviceLimits(
            multiprocessors=1,
            shared_bytes_per_sm=MOST_SHARED_BYTES + 1024,
            shared_bytes_per_block=MOST_SHARED_BYTES,
            threads_per_sm=2048,
            blocks_per_sm=32,
        )
        info = DeviceInfo(
            name="replay",
            model="recorded spaces",
            arch="replay",
            memory_bytes=1 << 30,
            evidence=REPLAYED,
            env=frozen({"fusiond": fusiond.__version__}),
            limits=limits,
        )
        return (info,)

    def missing(self) -> tuple[str, ...]:
        return ()

    def normalise(self, program: Program) -> Program:
        return program

    def build(self, source: Source, arch: str) -> Binary | BuildFailed:
        try:
            found = script.read(source.text)
        except ValueError as problem:
            return BuildFailed(reason=f"{source.name}: {problem}")
        if found.failure == "compile":
            return BuildFailed(reason=f"{source.name}: it did not compile where it was recorded")
        folder = Path(os.environ.get("FUSIOND_CACHE") or tempfile.gettempdir()) / "replay"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{content_key(source.text)}.replay"
        if not path.exists():
            whole = path.with_suffix(f".{threading.get_ident()}-{os.getpid()}")  # others read the cache meanwhile
            try:
                whole.write_text(source.text, encoding="utf-8")
                whole.replace(path)
            finally:
                whole.unlink(missing_ok=True)
        return Binary(source=source.name, path=path)

    def ptx(self, source: Source, arch: str) -> str | None:
        return None

    def sanitize(self, bundle: Path, device: str) -> tuple[str, ...]:
        raise LookupError("what was recorded cannot be run again")

    def facts(self, arch: str) -> Facts:
        return _no_facts

    def executor(self, name: str) -> Executor:
        if name != "replay":
            raise UnknownName("device", name, ["replay"])
        return ReplayExecutor()


class ReplayExecutor(Clockless):
    """`fusiond.devices.base.Executor`."""

    def __init__(self) -> None:
        self.data: DataPlane = HostData()

    def load(self, program: Program, binaries: Mapping[str, Path]) -> ReplayProgram:
        found = [script.read(path.read_text(encoding="utf-8")) for path in binaries.values()]
        if len(found) != 1:
            raise ExecutionError(Outcome.LAUNCH_REFUSED, "one recorded config is run at a time")
        if found[0].failure == "constraints":
            raise ExecutionError(*_OUTCOMES["constraints"])
        return ReplayProgram(program, found[0])


class ReplayProgram:
    """`fusiond.devices.base.Loaded`: its outputs depend on nothing but buffer and seed, its times are those recorded,
    warm-ups first; behind the last one the others come again."""

    def __init__(self, program: Program, found: script.ReplayScript) -> None:
        self.program = program
        self.clock = "device"
        self.gate_failures = 0
        self._failure = found.failure
        steady = found.samples_us[found.warmups :] or found.samples_us
        self._samples = itertools.chain(found.samples_us, itertools.cycle(steady))
        self._data: dict[str, Array] = {}

    def write(self, buffer: str, data: Array) -> None:
        self._data[buffer] = data.copy()

    def read(self, buffer: str) -> Array:
        return self._data[buffer].copy()

    def snapshot(self, *, outputs: bool = False) -> None:
        pass

    def restore(self) -> None:
        pass

    def run(self, *, seed: int, checked: bool) -> None:
        if self._failure in _OUTCOMES:
            raise ExecutionError(*_OUTCOMES[self._failure])
        for buffer in self.program.buffers:
            if buffer.role.compared:
                self._data[buffer.name] = fill(dataclasses.replace(buffer, fill=_ANSWER), seed)
                if self._failure == "correctness":
                    self._data[buffer.name][-1] += 1

    def sample_us(self, repeats: int, *, cold: bool = False) -> float:
        return next(self._samples)

    def broken_guards(self) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        pass


def _no_facts(source: Source) -> None:
    """Nothing is known of registers."""
