"""The whole flow on the fake device, whose best config is known: a job in, a record out."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusiond.devices import protocol
from fusiond.model import events as say
from fusiond.model.errors import DeviceSick, MachineFault, PluginError, RequestError
from fusiond.model.events import Event, Events
from fusiond.model.nouns import Analysis, Config, Job
from fusiond.model.outcomes import JobState, MeasureFailed, Outcome, Purpose, Record, Verdict
from fusiond.model.program import Program, Source
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow
from fusiond.strategy.hookspecs import hookimpl
from fusiond.tuning import tuner
from fusiond.tuning.baselines import ranked
from fusiond.tuning.context import UnfusedBaseline
from tests.fakes import FakeLoaded, InProcess, ToyStrategy


def submit(store: Store, registry: Registry, text: str, **options: Any) -> JobRow:
    (job,) = jobs.read("toy.yaml", text)
    return tuner.submit(store, registry, job, **options)


def run(store: Store, registry: Registry, row: JobRow, **options: Any) -> tuple[JobState, list[Event]]:
    seen: list[Event] = []
    options.setdefault("runner", InProcess)
    stop = options.pop("stop", lambda: False)
    store.claim("test", job=row.id)
    return tuner.Tuner(store, registry, Events(seen.append), **options).run(row.id, stop), seen


def recorded(store: Store, row: JobRow, registry: Registry) -> Record:
    (info,) = registry.providers["fake"].devices()
    record = store.record(row.workload_key, info.key)
    assert record is not None
    return record


@pytest.mark.slow
def test_the_best_config_is_found_and_beats_the_tuned_baseline(store: Store, fakes: Registry) -> None:
    row = submit(store, fakes, "strategy: toy\nsearch: {trials: 64}\n")
    state, seen = run(store, fakes, row)
    record = recorded(store, row, fakes)
    assert state is JobState.DONE
    assert record.config is not None
    assert dict(record.config) == {"x": 3, "y": 5}
    assert record.verdict is Verdict.FUSE
    assert record.baseline == "sequential"
    # 20 us as given, 19 us tuned: the verdict is against the tuned one.
    assert record.speedup == pytest.approx(1.9, rel=0.01)
    assert record.ci95 is not None
    assert record.ci95[0] < record.speedup < record.ci95[1]
    assert record.verified
    assert len(record.checks) == 2  # the job's sizes, and odd ones
    assert record.trials == 64
    kinds = [type(each) for each in seen]
    assert kinds[0] is say.JobStarted
    assert kinds[-1] is say.JobEnded
    assert kinds.count(say.TrialFinished) == 64
    (searched,) = [each.detail for each in seen if isinstance(each, say.PhaseStarted) and each.phase == "searched"]
    assert re.fullmatch(r"64 candidates in \d+\.\d s; the device was busy for \d+%", searched)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("wrong", Outcome.WRONG_RESULT), ("late", Outcome.WRONG_RESULT), ("crash", Outcome.CRASHED),
        ("outside", Outcome.CRASHED), ("refuse", Outcome.LAUNCH_REFUSED), ("nobuild", Outcome.BUILD_FAILED),
        ("rejected", Outcome.REFUSED), ("leaks", Outcome.REFUSED),
    ],
)  # fmt: skip
def test_a_bad_candidate_is_an_outcome_and_the_job_goes_on(
    store: Store, fakes: Registry, fault: str, outcome: Outcome
) -> None:
    """The fault sits on the best config, so the answer must be the second best."""
    row = submit(store, fakes, f'strategy: toy\nfaults: {{"3,5": {fault}}}\n')
    state, _ = run(store, fakes, row)
    trials = {(each.config["x"], each.config["y"]): each for each in store.trials(row.id)}
    bad = trials[3, 5]
    assert state is JobState.DONE
    assert bad.outcome is outcome
    assert bad.reason
    assert "\n" not in bad.reason
    assert bad.ratio is None
    record = recorded(store, row, fakes)
    assert record.config is not None
    assert dict(record.config) in ({"x": 3, "y": 4}, {"x": 3, "y": 6})


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "outcome"), [("hang", Outcome.TIMED_OUT), ("die", Outcome.WORKER_DIED), ("abort", Outcome.CRASHED)]
)
def test_a_deadly_candidate_kills_only_the_child(store: Store, fakes: Registry, fault: str, outcome: Outcome) -> None:
    row = submit(store, fakes, f'strategy: toy\nside: 2\nfaults: {{"1,1": {fault}}}\n')
    state, _ = run(store, fakes, row, runner=tuner.Supervisor, least_patience_secs=2.0)
    outcomes = {(each.config["x"], each.config["y"]): each.outcome for each in store.trials(row.id)}
    assert state is JobState.DONE
    assert outcomes.pop((1, 1)) is outcome
    assert set(outcomes.values()) == {Outcome.MEASURED}
    record = recorded(store, row, fakes)
    assert record.config is not None
    assert dict(record.config) == {"x": 1, "y": 0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "config", "says"),
    [
        ("", {"x": 3, "y": 5}, "the device's own checker finds nothing"),
        ("absent", {"x": 3, "y": 5}, "not looked at by the device's own checker: no sanitizer is installed"),
        ("racy", None, "the device's own checker finds nothing"),
    ],
)
def test_the_winner_is_sanitized_if_the_job_asks(
    store: Store, fakes: Registry, caplog: pytest.LogCaptureFixture, fault: str, config: Any, says: str
) -> None:
    """A winner in which something is found is struck out, and the next one takes its place."""
    text = f'strategy: toy\nfaults: {{"3,5": "{fault}"}}\nsearch: {{sanitize: true}}\n'
    row = submit(store, fakes, text)
    run(store, fakes, row)
    record = recorded(store, row, fakes)
    assert record.checks[-1] == says
    assert record.config is not None
    if config is not None:
        assert dict(record.config) == config
    else:
        assert dict(record.config) in ({"x": 3, "y": 4}, {"x": 3, "y": 6})
        struck = [each.detail for each in store.rejections(row.id) if each.rule == "struck_out"]
        assert struck == ["the last check: crashed: the device's own checker: racy"]
        (said,) = [each.message for each in caplog.records if "struck out" in each.message]
        assert said.startswith("x=3 y=5 is struck out of the finals")  # as people know it: a config, no key


def sick_after(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file that makes every program of the fake device crash while it is there."""
    ill = tmp_path / "ill"
    monkeypatch.setenv("FUSIOND_FAKE_SICK", str(ill))
    return ill


@pytest.mark.slow
def test_a_device_that_fails_on_what_is_known_to_be_good_is_sick(
    store: Store, fakes: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The candidate during which it fell sick is not to blame; the job waits and ends like any other."""
    ill = sick_after(monkeypatch, tmp_path)
    row = submit(store, fakes, 'strategy: toy\nside: 3\nfaults: {"1,1": sicken}\n')
    with pytest.raises(DeviceSick, match="a program known to be good failed 3 times, lastly: crashed: uncorrectable"):
        run(store, fakes, row, runner=tuner.Supervisor, least_patience_secs=2.0)
    (info,) = fakes.providers["fake"].devices()
    waiting = store.job(row.id)
    assert waiting is not None
    assert waiting.state is JobState.QUEUED
    assert "uncorrectable ECC error" in (store.sick(info.key, info.uuid) or "")
    known = {(each.config["x"], each.config["y"]) for each in store.trials(row.id)}
    assert (1, 1) not in known
    with pytest.raises(DeviceSick):  # it stays so until somebody says otherwise
        run(store, fakes, row)
    ill.unlink()
    store.set_sick(info.key, info.uuid, None)
    monkeypatch.setattr(FakeLoaded, "_misbehave", lambda self, fault, seed: None)
    state, _ = run(store, fakes, row)
    assert state is JobState.DONE
    assert len(store.trials(row.id)) == 9


@pytest.mark.parametrize("known", [True, False])
def test_an_unfused_program_that_fails_is_the_device_s_fault_if_it_worked_before(
    store: Store, fakes: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, known: bool
) -> None:
    ill = sick_after(monkeypatch, tmp_path)
    if known:
        run(store, fakes, submit(store, fakes, "strategy: toy\nside: 2\nlabel: first\n"))
    ill.touch()
    row = submit(store, fakes, "strategy: toy\nside: 3\nlabel: second\n")
    if known:
        with pytest.raises(DeviceSick):
            run(store, fakes, row)
        return
    state, _ = run(store, fakes, row)
    assert state is JobState.FAILED
    (info,) = fakes.providers["fake"].devices()
    assert store.sick(info.key, info.uuid) is None


@pytest.mark.slow
def test_a_stopped_job_goes_on_where_it_was(store: Store, fakes: Registry) -> None:
    """Stopped after every 5 trials, in the search and in the finals: the same trials as without, none of them twice."""
    text = "strategy: toy\nside: 16\nsearch: {trials: 40, seed: 7}\n"
    whole_row = submit(store, fakes, text + "label: whole\n")
    run(store, fakes, whole_row)
    row = submit(store, fakes, text + "label: stopped\n")
    sessions = 0
    state = JobState.QUEUED
    measured: list[str] = []
    while state is JobState.QUEUED:
        sessions += 1
        count = 0

        def stop() -> bool:
            nonlocal count
            count += 1
            return count > 14

        state, seen = run(store, fakes, row, stop=stop)
        measured += [each.trial.config.key for each in seen if isinstance(each, say.TrialFinished)]
    assert sessions > 4
    assert state is JobState.DONE
    assert len(measured) == len(set(measured)) == 40
    assert recorded(store, row, fakes).config == recorded(store, whole_row, fakes).config
    for key, finals in store.finals(row.id).items():
        assert len(finals) == 5, key


def test_a_cancelled_job_ends_as_cancelled(store: Store, fakes: Registry) -> None:
    row = submit(store, fakes, "strategy: toy\n")
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        if calls == 20:
            store.cancel(row.id)
        return False

    state, _ = run(store, fakes, row, stop=stop)
    ended = store.job(row.id)
    assert state is JobState.CANCELLED
    assert ended is not None
    assert ended.state is JobState.CANCELLED
    assert 0 < ended.trials < 64


@pytest.mark.slow
def test_equal_programs_are_measured_once(store: Store, fakes: Registry) -> None:
    """A second job over the same programs is answered from the store (the final check excepted)."""
    first = submit(store, fakes, "strategy: toy\nlabel: one\n")
    run(store, fakes, first)
    second = submit(store, fakes, "strategy: toy\nlabel: two\n")

    class Counting(InProcess):
        calls = 0

        def call(self, request: Any, timeout_secs: float) -> Any:
            Counting.calls += 1
            return super().call(request, timeout_secs)

    run(store, fakes, second, runner=Counting)
    # references 2 x 2, baselines 3 x 2, finals 3 x 5, the winner's check 2: no search trial at all
    assert Counting.calls < 40
    assert len(store.trials(second.id)) == 64
    assert recorded(store, second, fakes).config == recorded(store, first, fakes).config


def test_verify_measures_the_recorded_winner_again(store: Store, fakes: Registry) -> None:
    text = "strategy: toy\nside: 6\n"
    first = submit(store, fakes, text)
    run(store, fakes, first)
    before = recorded(store, first, fakes)
    row = submit(store, fakes, text, kind="verify")
    state, _ = run(store, fakes, row)
    after = recorded(store, first, fakes)
    assert state is JobState.DONE
    assert after.config == before.config
    assert after.speedup == pytest.approx(before.speedup, rel=0.02)
    assert len(store.history(first.workload_key, after.device_key)) == 2


@pytest.mark.slow
def test_the_time_limit_ends_the_search_and_not_the_job(store: Store, fakes: Registry) -> None:
    row = submit(store, fakes, "strategy: toy\nside: 40\nsearch: {trials: 1600, timeout: 1s}\n")
    state, _ = run(store, fakes, row)
    assert state is JobState.DONE
    assert len(store.trials(row.id)) < 1600
    assert recorded(store, row, fakes).verified


def test_unfused_ways_are_ranked_and_each_program_stands_once() -> None:
    def way(name: str, program: str, ratio: float) -> UnfusedBaseline:
        plan = Program(name=name, buffers=(), sources=(Source(name=program, text="", entries=()),), steps=())
        return UnfusedBaseline(name=name, program=plan, config=Config(()), time_us=1.0, ratio=ratio)

    found = [way("sequential", "x", 1.0), way("graph", "y", 1.3), way("streams", "z", 1.2), way("graph too", "y", 1.1)]
    assert [each.name for each in ranked(found, lambda each: each.key)] == ["graph", "streams", "sequential"]
    equal = [way("streams", "x", 1.2), way("graph", "x", 1.2)]
    assert [each.name for each in ranked(equal, lambda each: each.key)] == ["streams"]


# --- the finals ---


class FailsInFinals(InProcess):
    """Every final of the program at (3, 5) fails this way, in the processes that `when` names (counted from 0)."""

    outcome = Outcome.CRASHED
    when: tuple[int, ...] = ()
    count = 0

    def call(self, request: Any, timeout_secs: float) -> Any:
        if isinstance(request, protocol.SampleRequest) and request.plan.purpose is Purpose.FINAL:
            text = Path(request.candidate, "sources", "toy.cu").read_text()
            if "cost_us 10.0" in text:
                type(self).count += 1
                if self.count - 1 in self.when:
                    return MeasureFailed(outcome=self.outcome, reason="illegal address")
        return super().call(request, timeout_secs)


def failing(outcome: Outcome, *when: int) -> type[FailsInFinals]:
    return type("Failing", (FailsInFinals,), {"outcome": outcome, "when": when, "count": 0})


@pytest.mark.slow
def test_a_finalist_that_crashes_in_any_process_is_struck_out(store: Store, fakes: Registry) -> None:
    row = submit(store, fakes, "strategy: toy\n")
    run(store, fakes, row, runner=failing(Outcome.CRASHED, 3))
    record = recorded(store, row, fakes)
    assert record.config is not None
    assert dict(record.config) in ({"x": 3, "y": 4}, {"x": 3, "y": 6})
    (struck,) = [each for each in store.rejections(row.id) if each.rule == "struck_out"]
    assert "process 3: crashed: illegal address" in struck.detail


@pytest.mark.slow
def test_a_noisy_process_is_replaced_by_another(
    store: Store, fakes: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """Once more in the same process, and if that is no better, all of them in another; one line says so."""
    row = submit(store, fakes, "strategy: toy\n")
    run(store, fakes, row, runner=failing(Outcome.TOO_NOISY, 0, 3, 4))
    record = recorded(store, row, fakes)
    assert record.config is not None
    assert dict(record.config) == {"x": 3, "y": 5}
    assert record.program_key is not None
    assert sorted(store.finals(row.id)[record.program_key]) == [0, 1, 3, 4, 5]
    assert store.lost_finals(row.id) == {2: (record.program_key, Outcome.TOO_NOISY, "illegal address")}
    said = [each.message for each in caplog.records if each.levelname == "WARNING"]
    losses = "processes lost by it: 1, by others: 0"
    assert said == [f"final of x=3 y=5, process 2: too_noisy: illegal address ({losses})"]
    assert len({tuple(sorted(each)) for each in store.finals(row.id).values()}) == 1


def test_a_config_for_which_the_plugin_fails_is_rejected_and_the_others_are_tried(
    store: Store, fakes: Registry
) -> None:
    class Fails(ToyStrategy):
        def emit(self, analysis: Any, config: Any, answers: Any) -> Any:
            if dict(config) == {"x": 3, "y": 5}:
                raise PluginError("the plugin failed in emit (toy.py:7): IndexError: list index out of range")
            return super().emit(analysis, config, answers)

    fakes.strategies["toy"] = Fails()
    row = submit(store, fakes, "strategy: toy\n")
    run(store, fakes, row)
    (trial,) = [each for each in store.trials(row.id) if each.outcome is Outcome.REFUSED]
    assert dict(trial.config) == {"x": 3, "y": 5}
    assert trial.reason == "plugin_failed: the plugin failed in emit (toy.py:7): IndexError: list index out of range"
    assert store.named_job(row.id).state is JobState.DONE


def test_a_job_goes_on_after_a_final_process_that_failed(store: Store, fakes: Registry) -> None:
    row = submit(store, fakes, "strategy: toy\nside: 6\n")
    runner = failing(Outcome.TOO_NOISY, 1, 2)
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return sum(map(len, store.finals(row.id).values())) >= 7

    assert run(store, fakes, row, runner=runner, stop=stop)[0] is JobState.QUEUED
    assert run(store, fakes, row, runner=runner)[0] is JobState.DONE
    assert recorded(store, row, fakes).verdict is Verdict.FUSE


@pytest.mark.parametrize("fault", ["crash", "nobuild", "wrong"])
def test_no_evidence_is_undecided_and_says_why(store: Store, fakes: Registry, fault: str) -> None:
    """What does not build is not a reason to keep anything apart."""
    row = submit(store, fakes, f'strategy: toy\nside: 1\nfaults: {{"0,0": {fault}}}\n')
    run(store, fakes, row)
    record = recorded(store, row, fakes)
    assert record.verdict is Verdict.UNDECIDED
    assert record.config is None
    assert record.baseline == "sequential"
    assert record.baseline_config == Config.of({"block": 256})
    assert record.ended.startswith("the one candidate could not be measured: ")


def test_a_job_of_which_nothing_can_be_tried_is_refused_before_it_is_stored(store: Store, fakes: Registry) -> None:
    text = 'strategy: toy\nside: 2\nfaults: {"0,0": rejected, "0,1": rejected, "1,0": rejected, "1,1": rejected}\n'
    with pytest.raises(RequestError, match="no candidate can be tried: 0,0 is not allowed") as refused:
        submit(store, fakes, text)
    assert refused.value.exit_status == 2
    assert store.jobs() == []
    submit(store, fakes, text.replace(', "1,1": rejected', ""))  # one of them can be


@pytest.mark.slow
def test_a_job_that_finds_itself_on_another_device_begins_anew(
    store: Store, fakes: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of two devices do not compare."""
    row = submit(store, fakes, "strategy: toy\n")
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls > 30

    assert run(store, fakes, row, stop=stop)[0] is JobState.QUEUED
    monkeypatch.setenv("FUSIOND_FAKE_MODEL", "Fake 2")
    state, seen = run(store, fakes, row)
    assert state is JobState.FAILED
    assert isinstance(seen[-1], say.JobEnded)
    assert "another one" in (seen[-1].problem or "")
    (anew,) = store.jobs([JobState.QUEUED])
    assert anew.workload_key == row.workload_key
    assert run(store, fakes, anew)[0] is JobState.DONE
    assert len(store.trials(anew.id)) == 64
    assert recorded(store, anew, fakes).verdict is Verdict.FUSE


class Whole(ToyStrategy):
    """A toy that builds on another one."""

    name = "whole"

    def parts(self, analysis: Analysis) -> tuple[Job, ...]:
        return jobs.read("part.yaml", "strategy: toy\nside: 30\nsearch: {trials: 8}\n")


def test_a_part_is_of_the_device_and_of_the_environment_of_its_whole(
    store: Store, fakes: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an interrupted part was measured under an older driver never becomes a record of today."""

    class Plugin:
        @hookimpl
        def register_strategies(self, register: Callable[[ToyStrategy], None]) -> None:
            register(Whole())

    fakes.add(Plugin(), "whole")
    row = submit(store, fakes, "strategy: whole\nside: 3\n")
    heard: list[Event] = []
    events = Events(heard.append)
    made = tuner.Tuner(store, fakes, events, runner=InProcess)
    store.claim("test", job=row.id)
    assert made.run(row.id, lambda: any(isinstance(each, say.TrialFinished) for each in heard)) is JobState.QUEUED
    (part,) = (each for each in store.jobs() if each.parent == row.id)
    assert (row.device, part.device, part.state) == ("auto", "fake", JobState.QUEUED)
    assert part.trials
    monkeypatch.setattr("fusiond.__version__", "another")
    store.claim("test", job=row.id)
    assert made.run(row.id, lambda: False) is JobState.DONE
    new, old = (each for each in store.jobs() if each.parent == row.id)
    assert (old.id, old.state, new.state) == (part.id, JobState.FAILED, JobState.DONE)
    assert old.problem is not None
    assert "has changed since it began" in old.problem
    assert store.environments(new.id) == store.environments(row.id)
    assert [each.job for each in heard if isinstance(each, say.JobEnded)] == [row.id, new.id, row.id]
    assert len(store.environments(new.id)) == 1


def test_a_job_that_cannot_be_begun_anew_is_not_ended(
    store: Store, fakes: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end and the new one are one transaction: a fault in between leaves the job, which waits."""
    row = submit(store, fakes, "strategy: toy\nside: 30\n")
    heard: list[Event] = []
    made = tuner.Tuner(store, fakes, Events(heard.append), runner=InProcess)
    store.claim("test", job=row.id)
    assert made.run(row.id, lambda: any(isinstance(each, say.TrialFinished) for each in heard)) is JobState.QUEUED
    monkeypatch.setattr("fusiond.__version__", "another")

    def full(self: Store, *arguments: object, **options: object) -> str:
        raise MachineFault("no space left on the disk")

    store.claim("test", job=row.id)
    with monkeypatch.context() as patched:
        patched.setattr(Store, "_queue", full)
        assert made.run(row.id, lambda: False) is JobState.WAITING
    assert [each.id for each in store.jobs()] == [row.id]
    store.claim("test", job=row.id)
    assert made.run(row.id, lambda: False) is JobState.FAILED
    new, old = store.jobs()
    assert (old.id, old.state, new.state, new.trials) == (row.id, JobState.FAILED, JobState.QUEUED, 0)
