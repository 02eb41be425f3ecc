"""What is left to do for a trial is done while the next one is measured: at most one is ever not on disk, nobody hears
of it before it is, and the study is told and asked in the order in which it always was."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fusiond.devices import protocol
from fusiond.model import events as say
from fusiond.model.errors import StoreError
from fusiond.model.events import Event
from fusiond.model.outcomes import JobState, Purpose, Trial
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.testing.fakes import FakeProvider, InProcess
from fusiond.tuning.measuring import Measurer
from fusiond.tuning.recording import TrialRecorder
from tests.conftest import run_job

TRIALS = 24
JOB = f"strategy: toy\nside: 30\nsearch: {{trials: {TRIALS}}}\n"


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[TrialRecorder]:
    provider = FakeProvider()
    (device,) = provider.devices()
    measurer = Measurer(provider, InProcess(provider, device), tmp_path / "b", tmp_path / "w")
    yield TrialRecorder(measurer)
    measurer.close()


def run(store: Store, registry: Registry, *subscribers: Any, runner: Any = InProcess, **options: Any) -> Any:
    (job,) = jobs.read("toy.yaml", JOB)
    row, state = run_job(store, registry, job, *subscribers, runner=runner, **options)
    return row.id, state


def test_only_a_trial_of_the_same_program_is_waited_for(recorder: TrialRecorder) -> None:
    gate, done = threading.Event(), threading.Event()

    def first() -> None:
        gate.wait(5)
        done.set()

    recorder.hand_over("a", first)
    recorder.wait_for("b")
    assert not done.is_set()
    gate.set()
    recorder.wait_for("a")
    assert done.is_set()


def test_what_fails_is_raised_once_and_hides_no_other_failure(
    recorder: TrialRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise StoreError("the disk is full")

    with pytest.raises(StoreError, match="disk is full"), recorder:
        recorder.hand_over(None, fail)
    recorder.wait()
    with pytest.raises(KeyError), recorder:
        raise KeyError(recorder.hand_over(None, fail))
    assert "could not be written down" in caplog.text


def test_a_trial_is_on_disk_before_anybody_hears_of_it(store: Store, fakes: Registry) -> None:
    heard: list[int] = []

    def note(event: Event) -> None:
        if isinstance(event, say.TrialFinished):
            found = {each.sequence for each in store.trials(event.job)}
            assert event.trial.sequence in found
            heard.append(len(found))

    _, state = run(store, fakes, note)
    assert state is JobState.DONE
    assert heard == list(range(1, TRIALS + 1))


def test_the_next_one_is_measured_meanwhile(store: Store, fakes: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first commit ends only when another measurement has begun; done one after the other, that would never be."""
    second = threading.Event()
    sampled: list[str] = []
    waited: list[bool] = []
    real = Store.add_trial

    class Runner(InProcess):
        def call(self, request: protocol.Request, timeout_secs: float) -> protocol.Reply:
            if sampled:
                second.set()
            if isinstance(request, protocol.SampleRequest) and request.plan.purpose is Purpose.SEARCH:
                sampled.append(request.candidate)
            return super().call(request, timeout_secs)

    def add_trial(self: Store, job: str, trial: Trial, **fields: Any) -> None:
        if trial.role == "candidate" and not waited:
            waited.append(second.wait(10))
        real(self, job, trial, **fields)

    monkeypatch.setattr(Store, "add_trial", add_trial)
    _, state = run(store, fakes, runner=Runner)
    assert state is JobState.DONE
    assert waited == [True]


def test_a_full_disk_ends_the_job_with_all_that_was_written(
    store: Store, fakes: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Store.add_trial

    def add_trial(self: Store, job: str, trial: Trial, **fields: Any) -> None:
        if trial.role == "candidate" and len(self.trials(job)) == 5:
            raise StoreError("the disk is full")
        real(self, job, trial, **fields)

    monkeypatch.setattr(Store, "add_trial", add_trial)
    name, state = run(store, fakes)
    row = store.job(name)
    assert row is not None
    assert (state, row.problem, row.trials) == (JobState.FAILED, "the disk is full", 5)


@pytest.mark.slow
def test_the_order_of_asks_is_that_of_one_thread(
    tmp_path: Path, fakes: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the threads do, trial for trial the study chooses what it chose when everything was done in turn."""
    found = []
    for label in ("beside", "in turn"):
        if label == "in turn":
            beside = Measurer.meanwhile

            def meanwhile(self: Measurer, work: Any, beside: Any = beside) -> Any:
                future = beside(self, work)
                future.exception()
                return future

            monkeypatch.setattr(Measurer, "meanwhile", meanwhile)
        with Store.open(tmp_path / f"{label}.sqlite") as store:
            name, _ = run(store, fakes, build_jobs=2)
            found.append([(each.sequence, str(each.config)) for each in store.trials(name)])
    assert found[0] == found[1]
    assert len(found[0]) == TRIALS


def test_how_long_it_took_and_for_how_much_of_that_the_device_measured(store: Store, fakes: Registry) -> None:
    ended: list[say.JobEnded] = []
    name, _ = run(store, fakes, lambda event: ended.append(event) if isinstance(event, say.JobEnded) else None)
    row = store.job(name)
    assert row is not None
    assert 0 < row.device_secs < row.wall_secs
    assert (ended[0].wall_secs, ended[0].device_share) == (row.wall_secs, row.device_secs / row.wall_secs)
    store.add_time(name, wall_secs=row.wall_secs, device_secs=0.0)  # another session, in which it measured nothing
    again = store.job(name)
    assert again is not None
    assert again.device_share == pytest.approx(row.device_secs / row.wall_secs / 2)
