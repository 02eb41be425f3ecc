"""A device to measure Programs on, and one with a store to run jobs on as a user's would be."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusiond.devices.base import DeviceProvider
from fusiond.devices.lock import device_lock
from fusiond.devices.supervisor import Supervisor
from fusiond.devices.timing import Sampling
from fusiond.model.events import Event, Events, PhaseStarted
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import JobState, MeasureFailed, Measurement, Purpose, Record
from fusiond.model.program import Program
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow
from fusiond.store.process_identity import this_process
from fusiond.tuning import tuner
from fusiond.tuning.measuring import Measurer, References


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    provider: DeviceProvider
    device: DeviceInfo
    say: Callable[[str], None] = field(default=lambda line: None, repr=False)

    @property
    def emulated(self) -> bool:
        return self.device.evidence != "measured"

    @contextmanager
    def measurer(self) -> Iterator[Measurer]:
        """The device for oneself, with folders that go away."""
        with (
            tempfile.TemporaryDirectory(prefix="fusiond-bench-") as folder,
            device_lock(self.device, stop=lambda: False, waiting=self.say),
        ):
            runner = Supervisor(self.provider, self.device)
            measurer = Measurer(self.provider, runner, Path(folder) / "bundles", Path(folder) / "work")
            try:
                yield measurer
            finally:
                measurer.close()
                runner.close()


def problem(failed: MeasureFailed) -> str:
    return f"{failed.outcome.value}: {failed.reason}"


def beside(
    measurer: Measurer, program: Program, base: Program, references: References, *, pairs: int
) -> Measurement | str:
    """A program that is right, sampled in pairs with `base`, unless it is that itself; or what went wrong."""
    worst = measurer.check(program, references)
    if isinstance(worst, MeasureFailed):
        return problem(worst)
    plan = Sampling(purpose=Purpose.BASELINE, pairs=pairs)
    measured = measurer.sample(program, None if program is base else base, plan, references)
    return problem(measured) if isinstance(measured, MeasureFailed) else measured


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedBench(Bench):
    """With a store of its own, so that a run that was stopped goes on."""

    registry: Registry
    store: Store

    def tune(self, submitted: JobRow) -> JobRow:
        """Runs a job that is in the store to its end, whatever that is."""
        claimed = self.store.claim(this_process(), job=submitted.id)
        if claimed is None:
            raise SystemExit(f"job {submitted.id} is run by another process; name another --store")
        try:
            tuner.Tuner(self.store, self.registry, Events(self._note)).run(submitted.id, lambda: False)
        except BaseException:
            self.store.requeue(submitted.id)
            raise
        done = self.store.job(submitted.id)
        assert done is not None
        return done

    def done(self) -> Iterator[JobRow]:
        """Every job of the store that has come to its end."""
        yield from self.store.jobs([JobState.DONE], limit=1_000_000)

    def _note(self, event: Event) -> None:
        if isinstance(event, PhaseStarted):
            self.say(f"  {event.phase}: {event.detail}")


def answer(record: Record) -> dict[str, Any]:
    """What `best` would say."""
    return {
        "verdict": record.verdict.value,
        "speedup": record.speedup,
        "ci95": None if record.ci95 is None else list(record.ci95),
        "config": None if record.config is None else dict(record.config),
        "time_us": record.time_us,
        "baseline": record.baseline,
        "baseline_us": record.baseline_us,
        "evidence": record.evidence,
        "verified": record.verified,
        "found_at": record.found_at,
    }
