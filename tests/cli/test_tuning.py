"""`run` in this process: what the signals do, what follows whom, and the two displays."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from fusiond.cli.job_texts import line
from fusiond.cli.render import ProgressLines
from fusiond.model.errors import Interrupted, StoreError, StoreUnavailable
from fusiond.model.events import TrialFinished
from fusiond.model.nouns import Analysis, Config, Rejection
from fusiond.model.outcomes import JobState
from fusiond.model.program import Program
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.service.client import in_process
from fusiond.service.progress import Progress, from_json
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow
from fusiond.store.process_identity import this_process
from fusiond.strategy import Answers
from fusiond.tuning import tuner
from tests.fakes import ToyStrategy

TOY = "strategy: toy\nside: 8\nsearch: {trials: 40}\n"


@pytest.fixture
def store(database: Path) -> Iterator[Store]:
    with Store.open(database) as opened:
        yield opened


@pytest.fixture
def row(store: Store, fakes: Registry) -> JobRow:
    return tuner.submit(store, fakes, jobs.read("/job.yaml", TOY)[0])


class Fake:
    """A tuner that is interrupted by a signal in the middle of its job."""

    def __init__(self, store: Store, registry: Registry, events: object, **options: object) -> None:
        self.store = store

    def run(self, job: str, stop: Callable[[], bool], *, finish: Callable[[], bool], prepared: object) -> JobState:
        os.kill(os.getpid(), signal.SIGINT)
        assert finish()
        assert not stop()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop()
        self.store.requeue(job)
        return JobState.QUEUED


class Stubborn(Fake):
    """A tuner that does not stop when it is asked to."""

    def run(self, job: str, stop: Callable[[], bool], *, finish: Callable[[], bool], prepared: object) -> JobState:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("not reached")


@pytest.mark.parametrize(("fake", "error"), [(Fake, Interrupted), (Stubborn, KeyboardInterrupt)])
def test_ctrl_c_puts_the_job_back(
    store: Store, fakes: Registry, row: JobRow, monkeypatch: pytest.MonkeyPatch, fake: type, error: type[BaseException]
) -> None:
    monkeypatch.setattr(in_process, "Tuner", fake)
    said: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(error) as caught:
        in_process.tune(store, fakes, row, ProgressLines(said.append), again="fusiond run job.yaml")
    if error is Interrupted:
        assert str(caught.value) == "stopped after 0 trials; `fusiond run job.yaml` goes on from there"
    assert said == [
        "ending the search: the finals of what is measured come next; Ctrl-C again to stop and keep it",
        "stopping after the running measurement; once more to stop at once",
    ]
    assert store._known(row.id).state is JobState.QUEUED
    assert signal.getsignal(signal.SIGINT) is before


def test_a_job_that_somebody_else_runs_is_followed(store: Store, fakes: Registry, row: JobRow) -> None:
    store.claim(this_process(), job=row.id)
    threading.Timer(0.2, lambda: store.finish(row.id, JobState.FAILED, "the device is sick")).start()
    said: list[str] = []
    with pytest.raises(in_process.JobFailed, match=f"job {row.id} failed: the device is sick"):
        in_process.tune(store, fakes, row, ProgressLines(said.append), again="")
    assert said[0] == f"job {row.id} is run by another process; following it"
    assert said[-1] == f"job {row.id} is failed: the device is sick"


@pytest.mark.slow
@pytest.mark.parametrize("written", [False, True])
def test_a_claim_that_the_store_does_not_answer_is_made_again(
    store: Store, fakes: Registry, row: JobRow, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    """Whether it was written down before the disk failed, or not."""
    claim, said = store.claim, []

    def failing(*arguments: Any, **named: Any) -> JobRow | None:
        monkeypatch.setattr(store, "claim", claim)
        if written:
            claim(*arguments, **named)
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(tuner, "FIRST_WAIT_SECS", 0.01)
    monkeypatch.setattr(store, "claim", failing)
    found = in_process.tune(store, fakes, row, ProgressLines(said.append), again="again", when_busy="share")
    assert found["verdict"] == "fuse"
    assert said[0] == "waiting: the disk is full; trying again in 0 s (Ctrl-C stops, and keeps what is measured)"


def test_what_fails_in_following_leaves_the_job_to_who_runs_it(
    store: Store, fakes: Registry, row: JobRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watch(client: object, job: str) -> NoReturn:
        raise StoreError("a row is damaged")

    store.claim(this_process(), job=row.id)
    monkeypatch.setattr("fusiond.service.client.client.Client.watch", watch)
    with pytest.raises(StoreError, match="a row is damaged"):
        in_process.tune(store, fakes, row, ProgressLines(lambda text: None), again="")
    assert store._known(row.id).state is JobState.RUNNING


@pytest.mark.slow
def test_the_document_of_a_run_names_the_job_and_its_time(store: Store, fakes: Registry, row: JobRow) -> None:
    found = in_process.tune(store, fakes, row, ProgressLines(lambda text: None), again="again", when_busy="share")
    assert found["job"]["id"] == row.id
    assert found["job"]["wall_secs"] > 0
    assert 0 < found["job"]["device_share"] < 1


def test_nothing_is_stored_when_nothing_can_be_tried_of_one_job_of_a_sweep(
    fusiond: Callable[..., Any], fakes: Registry, tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Choosy(ToyStrategy):
        def emit(self, analysis: Analysis, config: Config, answers: Answers) -> Program | Rejection:
            if analysis.workload.sizes["n"] == 2:
                return Rejection(rule="toy", nodes=("n",), detail="n is 2")
            return super().emit(analysis, config, answers)

    fakes.strategies["toy"] = Choosy()
    monkeypatch.setattr("fusiond.requests.isolation.registry.load", lambda **_: fakes)
    path = tmp_path / "job.yaml"
    path.write_text(TOY + "device: fake\nsweep: {n: [1, 2]}\n")
    said = fusiond("run", path)
    assert (said.status, "no candidate can be tried: n is 2" in said.err) == (2, True)
    assert not database.exists()


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress(job="j", event="job", state="running", workload="a,b", device="cpu", done=1, budget=9),
         "job j is running: a,b on cpu, 1 of 9 trials"),
        (Progress(job="j", event="phase", phase="search", detail="the whole space"), "search: the whole space"),
        (Progress(job="j", event="baseline", detail="graph", time_us=12.0), "unfused, graph: 12 us"),
        (Progress(job="j", event="trial", ratio=1.5, detail="x=1", done=2, budget=9, best=1.6),
         "trial 2/9: 1.500x  x=1, best 1.600x"),
        (Progress(job="j", event="trial", outcome="crashed", reason="illegal address", detail="x=1", done=2, budget=9),
         "trial 2/9: crashed: illegal address  x=1"),
        (Progress(job="j", event="record", detail="keep"), "the answer is now: keep"),
        (Progress(job="j", event="ended", state="failed", problem="no"), "job j is failed: no"),
        (Progress(job="j", event="ended", state="done", wall_secs=12.34, device_share=0.876),
         "job j is done (12.3 s; the device measured for 88% of it)"),
        (Progress(job="j", event="of a newer daemon"), ""),
    ],
)  # fmt: skip
def test_progress_in_words_and_over_the_wire(progress: Progress, text: str) -> None:
    assert line(progress) == text
    assert from_json(progress.as_json()) == progress


def test_events_of_a_trial_carry_no_samples() -> None:
    assert "measurement" not in Progress.__slots__
    assert TrialFinished.__dataclass_fields__.keys() >= {"trial", "done", "budget", "best"}
