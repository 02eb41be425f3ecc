"""The referee asked about a candidate: as it is, and with one of its defences left out.

The defences that compare what a candidate writes work in the child process that runs it. A `Weakened` runner does what
the child does in this process, on data that one defence is missing from.
"""

import json
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import pytest

from fusiond.devices import protocol
from fusiond.devices.base import Array, DataPlane, DeviceProvider, Loaded
from fusiond.devices.cpu import memory
from fusiond.devices.worker import ExecutorWorker
from fusiond.model.nouns import DeviceInfo
from fusiond.model.program import Buffer
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.tuning import judge, measuring
from fusiond.tuning.judge import Ruling
from tests.tuning.judging import table
from tests.tuning.judging.table import Cheat

TIMEOUT_SECS = 30.0
OWN = ("launches", "state", "bounds", "races", "odd", "counted")


def asked(
    registry: Registry, cheat: Cheat, folder: Path, *, without: Collection[str] = (), precision: str = "reference"
) -> Ruling:
    """What the referee says of a candidate on the processor."""
    candidate = table.written(cheat, folder)
    found = judge.implementations(registry, str(table.reference(cheat.kernel)), str(candidate))
    keys = dict(found) | {"device": "cpu", "precision": precision}
    (job,) = jobs.read(folder / "judge.yaml", json.dumps(keys))
    return judge.judge(registry, job, without=without, timeout_secs=TIMEOUT_SECS)


def weakened(
    monkeypatch: pytest.MonkeyPatch, registry: Registry, cheat: Cheat, folder: Path, missing: Collection[str]
) -> Ruling:
    """What it would say without these defences."""
    precision = "any" if "precision" in missing else "reference"
    if "fresh seeds" in missing:
        monkeypatch.setattr(measuring, "fresh_seeds", lambda: (0, 1))
    if "places" in missing:
        monkeypatch.setattr(memory, "_PLACES", 1)
    if "stale runs" in missing:
        monkeypatch.setattr(ExecutorWorker, "_check_stale", lambda *given: None)
    weak = frozenset(missing)
    monkeypatch.setattr(judge, "Supervisor", lambda provider, device: Weakened(provider, device, weak))
    without = [each for each in OWN if each in missing]
    return asked(registry, cheat, folder, without=[*without, "counted"], precision=precision)


class Weakened:
    """`fusiond.devices.supervisor.Runner` in this process."""

    def __init__(self, provider: DeviceProvider, device: DeviceInfo, missing: Collection[str]) -> None:
        self.device = device
        self._missing = missing
        self._executor = _WeakExecutor(provider.executor(device.name), missing)
        self._worker = ExecutorWorker(self._executor)  # type: ignore[arg-type]

    def ready(self) -> None:
        """It is."""

    def call(self, request: protocol.Request, timeout_secs: float) -> protocol.Reply:
        if "second run" in self._missing and isinstance(request, protocol.CheckRequest):
            request = _once(request)
        return self._worker.answer(request)

    def fresh(self) -> None:
        """Whatever a candidate left stays."""

    def close(self) -> None:
        self._worker.close()


def _once(request: protocol.CheckRequest) -> protocol.CheckRequest:
    return protocol.CheckRequest(
        bundle=request.bundle, references=request.references[:1], suspicious=False, truths=request.truths
    )


class _WeakExecutor:
    """An Executor with another data plane."""

    def __init__(self, inner: object, missing: Collection[str]) -> None:
        self._inner = inner
        self.data = _WeakData(inner.data, missing)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


class _WeakData:
    """A DataPlane. Without poison an output lies where the last program's output of that name lay."""

    def __init__(self, inner: DataPlane, missing: Collection[str]) -> None:
        self._inner, self._missing = inner, missing
        self._left: dict[str, Array] = {}

    def fill(self, loaded: Loaded, buffer: Buffer, seed: int, *, kind: int | None = None) -> None:
        written = not buffer.role.compared or "poison" not in self._missing
        left = self._left.get(f"{buffer.name} {buffer.elements} {seed}")
        if written or left is None or buffer.role.value == "inout":
            self._inner.fill(loaded, buffer, seed, kind=kind)
        else:
            loaded.write(buffer.name, np.array(left))
        self._last = seed

    def keep(self, loaded: Loaded, buffer: Buffer, reference: str) -> Array:
        found = self._inner.keep(loaded, buffer, reference)
        self._left[f"{buffer.name} {buffer.elements} {self._last}"] = np.array(found)
        return found

    def intact(self, loaded: Loaded, buffer: Buffer, seed: int) -> bool:
        return "inputs" in self._missing or self._inner.intact(loaded, buffer, seed)

    def broken_guards(self, loaded: Loaded) -> tuple[str, ...]:
        return () if "guards" in self._missing else self._inner.broken_guards(loaded)

    def __getattr__(self, name: str) -> Callable[..., object]:
        found: Callable[..., object] = getattr(self._inner, name)
        return found
