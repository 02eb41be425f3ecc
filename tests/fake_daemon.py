"""A daemon that makes its measurements up: real lock, socket, HTTP, signals and store, no device and no strategy.

A job's `request` says what becomes of it: `{end: crash}` raises, `{end: exit}` calls sys.exit, `{end: fail}` fails
with a FusiondError, anything else takes its trials one after the other, stops when it is asked to, and leaves a record.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

from fusiond.model.errors import DeviceError, NothingKnown, RequestError
from fusiond.model.events import Events, JobEnded, JobStarted, PhaseStarted, RecordChanged, TrialFinished
from fusiond.model.nouns import Config, DeviceInfo, DeviceLimits, Job, Workload
from fusiond.model.outcomes import JobState, Measurement, Outcome, Purpose, Record, Trial, Verdict
from fusiond.requests import jobs
from fusiond.service.daemon.app import JobQuestion, Submission
from fusiond.service.daemon.config import DaemonConfig as DaemonConfig
from fusiond.service.daemon.service import DaemonWork
from fusiond.store import lookup
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow

DEVICE = DeviceInfo(
    name="cpu",
    model="make-believe",
    arch="cpu",
    memory_bytes=1 << 30,
    uuid="make-believe-0",
    evidence="emulated",
    limits=DeviceLimits(
        multiprocessors=1, shared_bytes_per_sm=0, shared_bytes_per_block=0, threads_per_sm=1, blocks_per_sm=1
    ),
)


def workload_of(job: Job) -> Workload:
    """A workload for any job whose `pair` is two names."""
    members = job.request.get("pair")
    if not isinstance(members, list) or len(members) != 2:
        raise RequestError("is not a pair of names", where=job.where("pair"))
    names = tuple(sorted(map(str, members)))
    return Workload(
        strategy=job.strategy,
        strategy_version=1,
        name=",".join(names),
        members=names,
        sizes=job.sizes,
        content={"end": str(job.request.get("end"))},
        payload=None,
    )


def submit(store: Store, job: Job, *, priority: int = 0) -> JobRow:
    """What `fusiond.tuning.tuner.submit` does, without a strategy."""
    return store.submit(job, workload_of(job), priority=priority)


class MakeBelieve:
    """Runs claimed jobs."""

    def __init__(self, store: Store, trial_secs: float) -> None:
        self.store = store
        self.trial_secs = trial_secs

    def run(self, row: JobRow, device: DeviceInfo, events: Events, stop: Callable[[], bool]) -> JobState:
        """As `Tuner.run`: how the job ended, QUEUED when it was asked to stop."""
        job = self.store.load_job(row.id)
        match job.request.get("end"):
            case "crash":
                raise RuntimeError("the strategy\nfell over")
            case "exit":
                sys.exit(3)
            case "fail":
                raise DeviceError("the device is not to be trusted")
        self.store.save_device(device)
        self.store.set_device(row.id, device.key)
        known = len(self.store.trials(row.id))
        budget = job.search.trials
        events.publish(
            JobStarted(job=row.id, workload=row.workload_name, device=device.name, budget=budget, known=known)
        )
        events.publish(PhaseStarted(job=row.id, phase="search", detail="make-believe"))
        for sequence in range(known, budget):
            if self.store.cancel_requested(row.id):
                return self._end(row, events, JobState.CANCELLED)
            if stop():
                self.store.requeue(row.id)
                events.publish(JobEnded(job=row.id, state=JobState.QUEUED.value))
                return JobState.QUEUED
            time.sleep(self.trial_secs)
            trial = _trial(sequence)
            self.store.add_trial(
                row.id, trial, device_key=device.key, gpu_uuid=device.uuid, env_key=device.env_key, against=None
            )
            events.publish(
                TrialFinished(job=row.id, trial=trial, done=sequence + 1, budget=budget, best=1.0 + sequence / 100)
            )
        record = _record(row, job, device)
        self.store.save_record(record, job=row.id, source_hashes={})
        events.publish(RecordChanged(job=row.id, record=record))
        return self._end(row, events, JobState.DONE)

    def _end(self, row: JobRow, events: Events, state: JobState) -> JobState:
        self.store.finish(row.id, state)
        events.publish(JobEnded(job=row.id, state=state.value))
        return state


def _trial(sequence: int) -> Trial:
    time_us = 100.0 / (1.0 + sequence / 100)
    measurement = Measurement(span_us=(time_us,), baseline_us=(100.0,), clock="emulated", purpose=Purpose.SEARCH)
    return Trial(
        sequence=sequence,
        config=Config.of({"block": sequence}),
        origin="grid",
        outcome=Outcome.MEASURED,
        ratio=measurement.ratio,
        time_us=time_us,
        measurement=measurement,
    )


def _record(row: JobRow, job: Job, device: DeviceInfo) -> Record:
    return Record(
        strategy=row.strategy,
        workload_name=row.workload_name,
        workload_key=row.workload_key,
        sizes=job.sizes,
        device_name=device.name,
        device_key=device.key,
        env_key=device.env_key,
        verdict=Verdict.FUSE,
        config=Config.of({"block": job.search.trials - 1}),
        program_key=None,
        time_us=81.3,
        baseline="streams_ab",
        baseline_us=100.0,
        speedup=1.23,
        ci95=(1.21, 1.25),
        verified=True,
        evidence=device.evidence,
        trials=job.search.trials,
        found_at="2026-01-31T12:00:00+00:00",
    )


def _best(store: Store, workload: Workload, cache: str) -> dict[str, Any] | NothingKnown:
    found = lookup.best_of(
        store.path,
        family=workload.content_family_key,
        sizes=workload.sizes,
        name=workload.name,
        driver=None,
        version="0",
        cache=cache,
    )
    return found or NothingKnown(f"nothing is known about {workload.name}")


def work(store: Store, trial_secs: float) -> DaemonWork:
    """What a Service needs, made up."""

    def submit_file(submission: Submission) -> tuple[JobRow, ...]:
        found = jobs.read(
            submission.path, submission.text, device=submission.device, trials=submission.trials, seed=submission.seed
        )
        return tuple(submit(store, job, priority=submission.priority) for job in found)

    def best(question: JobQuestion) -> tuple[dict[str, Any] | NothingKnown, ...]:
        found = jobs.read(question.path, question.text)
        return tuple(_best(store, workload_of(job), question.cache or job.search.cache) for job in found)

    return DaemonWork(
        run_job=MakeBelieve(store, trial_secs).run,
        submit=submit_file,
        again=lambda id: submit(store, store.load_job(id)),
        best=best,
        devices=lambda: (DEVICE,),
        plugins=lambda: [{"name": "make-believe", "problem": None}],
    )
