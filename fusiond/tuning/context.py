"""The context of a job's phases: job, strategy, device, store, and events."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fusiond.devices.base import DeviceProvider
from fusiond.devices.calibration import fitted
from fusiond.devices.timing import Sampling
from fusiond.model import events as say
from fusiond.model.errors import Interrupted
from fusiond.model.events import Events
from fusiond.model.nouns import Analysis, Config, DeviceInfo, Rejection, Search
from fusiond.model.outcomes import MeasureFailed, Measurement, Purpose, Record, Trial
from fusiond.model.program import Buffer, Fill, Program, Role
from fusiond.requests.planning import Prepared, emitted, first_baseline, sound
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow
from fusiond.strategy import Baseline, Strategy
from fusiond.tuning.measuring import Measurer


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A program that may take part in the finals. Unfused ways have a name, candidates none."""

    program: Program
    config: Config
    name: str = ""

    @property
    def key(self) -> str:
        return self.program.key

    def __str__(self) -> str:
        """As people know it: `threads.a=256 threads.b=128`, `streams at threads.a=512`."""
        config = str(self.config) or "the only config"
        return f"{self.name} at {config}" if self.name else config


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfusedBaseline(Entrant):
    """A measured unfused way."""

    time_us: float
    ratio: float  #: Its speed-up over the unfused program as given


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
    finish: Callable[[], bool] = lambda: False  #: Whether the search is to end and the finals are to begin
    analysis: Analysis
    calibrated: Mapping[str, float] = field(default_factory=dict)
    """What `fusiond calibrate` found on the device under its driver of today; empty where it never ran."""
    given: Mapping[str, Fill] = field(default_factory=dict)
    """Of a part: what its whole computes in the buffers of these names. They are its inputs in place of its own."""
    answers: dict[str, Record | float] = field(default_factory=dict)
    """Grows while parts and probes are answered; read-only after that."""
    _work: dict[str, str] = field(default_factory=dict)  #: Program key -> the key of what this device does for it

    @property
    def strategy(self) -> Strategy:
        return self.prepared.strategy

    @property
    def search(self) -> Search:
        return self.prepared.job.search

    def sampling(self, purpose: Purpose, incumbent: float | None = None) -> Sampling:
        """How this job samples."""
        sampling = Sampling(purpose=purpose, cold=self.search.cache == "cold", incumbent=incumbent)
        if purpose is Purpose.FINAL:
            sampling = dataclasses.replace(sampling, pairs=60, precision=0.0025)
        return fitted(sampling, self.calibrated)

    def pause_point(self) -> None:
        """Between two measurements: the only place where a job stops. Raises Interrupted."""
        if self.stop():
            raise Interrupted("stopped")

    def phase(self, phase: str, detail: str = "", number: int | None = None, of: int | None = None) -> None:
        self.pause_point()
        self.events.publish(say.PhaseStarted(job=self.row.id, phase=phase, detail=detail, number=number, of=of))

    def candidate(self, config: Config) -> Program | Rejection:
        """What a config is, emitted once: it is in the store before anything is built of it, and taken from there ever
        after, whatever has been answered meanwhile."""
        return self._emitted(config.key, lambda: emitted(self.strategy, self.analysis, config, self.answers))

    def unfused(self, baseline: Baseline, config: Config) -> Program:
        """The same of an unfused way."""
        name = f"{baseline.name}:{config.key}"
        found = self._emitted(name, lambda: sound(self.strategy.name, baseline.emit(config)))
        assert isinstance(found, Program)
        return found

    def _emitted(self, name: str, emit: Callable[[], Program | Rejection]) -> Program | Rejection:
        found = self.store.emitted(self.row.id, name)
        if found is None:
            found = emit()
            if isinstance(found, Program) and self.given:
                found = dataclasses.replace(found, buffers=tuple(map(self._filled, found.buffers)))
            self.store.save_emitted(self.row.id, name, found)
        return found

    def _filled(self, buffer: Buffer) -> Buffer:
        read = buffer.role is Role.INPUT and buffer.name in self.given
        return dataclasses.replace(buffer, fill=self.given[buffer.name]) if read else buffer

    @property
    def reference(self) -> Program:
        """The first baseline as given: right by definition. RequestError where there is none."""
        baseline = first_baseline(self.strategy, self.analysis)
        return self.unfused(baseline, next(baseline.space.points()))

    def work(self, program: Program) -> str:
        """The key of what this device does for a program: equal work is measured once."""
        found = self._work.get(program.key)
        if found is None:
            found = self._work[program.key] = self.provider.normalise(program).work_key
        return found

    def save_trial(self, trial: Trial, program: Program | None, against: Program | None) -> None:
        """Write a trial down; what is announced after this is on disk."""
        self.store.add_trial(
            self.row.id,
            trial,
            device_key=self.device.key,
            gpu_uuid=self.device.uuid,
            env_key=self.device.env_key,
            against=None if against is None else against.key,
            work=(None if program is None else self.work(program), None if against is None else self.work(against)),
        )


def outcome_of(result: Measurement | MeasureFailed) -> dict[str, Any]:
    """The fields of a Trial that a result decides."""
    if isinstance(result, MeasureFailed):
        return {"outcome": result.outcome, "reason": result.reason}
    return {"ratio": result.ratio, "time_us": result.time_us, "measurement": result}
