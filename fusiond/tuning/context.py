"""What every phase of a job needs: the job, its strategy, its device, the store, and how to say what happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fusiond import events as say
from fusiond.devices.base import DeviceProvider
from fusiond.errors import Interrupted
from fusiond.events import Events
from fusiond.measuring import Measurer, References
from fusiond.model import (
    Analysis,
    Config,
    DeviceInfo,
    MeasureFailed,
    Measurement,
    Record,
    Rejection,
    Trial,
)
from fusiond.planning import Prepared, emitted, reference, sound
from fusiond.program import Program
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow
from fusiond.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd:
    """The same workload at awkward sizes, with the outputs that are right there."""

    sizes: Mapping[str, int]
    analysis: Analysis
    references: References | MeasureFailed
    """A failure when the unfused program itself does not work at these sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfused:
    """A measured unfused way. `ratio` is its speed-up over the unfused program as given."""

    name: str
    program: Program
    config: Config
    time_us: float
    ratio: float


@dataclass(frozen=True, kw_only=True)
class Context:
    """One job on one device."""

    store: Store
    events: Events
    row: JobRow
    prepared: Prepared
    provider: DeviceProvider
    device: DeviceInfo
    measurer: Measurer
    stop: Callable[[], bool]
    analysis: Analysis
    known: dict[str, Record | float] = field(default_factory=dict)
    """Grows while parts and probes are answered; read-only after that."""

    @property
    def strategy(self) -> Strategy:
        return self.prepared.strategy

    def pause_point(self) -> None:
        """Between two measurements: the only place where a job stops. Raises Interrupted."""
        if self.stop():
            raise Interrupted("stopped")

    def phase(self, phase: str, detail: str = "") -> None:
        self.pause_point()
        self.events.publish(say.PhaseStarted(job=self.row.id, phase=phase, detail=detail))

    def normal(self, program: Program) -> Program:
        """The program as this device sees it; PluginError when it is no sound plan."""
        return self.provider.normalise(sound(self.strategy.name, program))

    def emit(self, analysis: Analysis, config: Config) -> Program | Rejection:
        found = emitted(self.strategy, analysis, config, self.known)
        return found if isinstance(found, Rejection) else self.provider.normalise(found)

    def reference_program(self, analysis: Analysis) -> Program:
        """The first baseline as given: right by definition."""
        return self.normal(reference(self.strategy, analysis))

    def save_trial(self, trial: Trial, program: Program | None, against: Program | None) -> None:
        """Write a trial down; what is announced after this is on disk."""
        if program is not None:
            self.store.save_program(program)
        self.store.add_trial(
            self.row.id,
            trial,
            device_key=self.device.key,
            gpu_uuid=self.device.uuid,
            env_key=self.device.env_key,
            against=None if against is None else against.key,
        )


def outcome_of(result: Measurement | MeasureFailed) -> dict[str, object]:
    """The fields of a Trial that a result decides."""
    if isinstance(result, MeasureFailed):
        return {"outcome": result.outcome, "reason": result.reason}
    return {"ratio": result.ratio, "time_us": result.time_us, "measurement": result}
