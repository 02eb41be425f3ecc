"""What becomes of an answer when its question is asked again: on the fake device, whose best config is known."""

import dataclasses
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fusiond.devices import protocol
from fusiond.model import events as say
from fusiond.model.events import Event, Events
from fusiond.model.nouns import Analysis, Config, Rejection
from fusiond.model.outcomes import JobState, MeasureFailed, Outcome, Purpose, Record, Verdict
from fusiond.model.program import Program
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow
from fusiond.tuning import finals, tuner
from fusiond.tuning.measuring import Measurer
from tests.fakes import InProcess, ToyStrategy

FULL = "strategy: toy\n"
ONE = "strategy: toy\nsearch: {trials: 1}\n"
"""Tries (0, 0) alone, which takes 25.25 us: slower than the unfused 19 us, and than (3, 5) with 10 us."""


def tuned(
    store: Store, registry: Registry, text: str = FULL, *, kind: str = "tune", search: Any = None, **options: Any
) -> tuple[JobRow, Record, list[Event]]:
    """Run a job; its row, the answer of today, and what was said."""
    (job,) = jobs.read("toy.yaml", text)
    job = dataclasses.replace(job, search=dataclasses.replace(job.search, **(search or {})))
    row = tuner.submit(store, registry, job, kind=kind)
    seen: list[Event] = []
    options.setdefault("runner", InProcess)
    store.claim("test", job=row.id)
    tuner.Tuner(store, registry, Events(seen.append), **options).run(row.id, lambda: False)
    return row, answer(store, registry, row), seen


def answer(store: Store, registry: Registry, row: JobRow) -> Record:
    (info,) = registry.providers["fake"].devices()
    return store.incumbents(row.workload_key, info.key)[0]


def history(store: Store, record: Record) -> list[tuple[Verdict, str | None]]:
    found = store.history(record.workload_key, record.device_key)
    return [(each.verdict, each.replaced) for each in reversed(found)]


def phases(seen: list[Event], phase: str) -> list[str]:
    return [each.detail for each in seen if isinstance(each, say.PhaseStarted) and each.phase == phase]


def costs(store: Store, record: Record) -> str:
    program = store.program(record.program_key or "")
    assert program is not None
    return program.sources[0].text.split()[1]


def _text(bundle: str) -> str:
    return Path(bundle, "sources", "toy.cu").read_text()


class Noisy(InProcess):
    """So many of the finals' samples are too noisy, at random."""

    share = 1.0
    random = random.Random(0)

    def call(self, request: Any, timeout_secs: float) -> Any:
        final = isinstance(request, protocol.SampleRequest) and request.plan.purpose is Purpose.FINAL
        if final and self.random.random() < self.share:
            return MeasureFailed(outcome=Outcome.TOO_NOISY, reason="the pairs scatter by 49 % (at most 35 %)")
        return super().call(request, timeout_secs)


def failing(cost: str, outcome: Outcome, reason: str, *, final: bool = False, times: int = 10**6) -> type[InProcess]:
    """The first so many checks of the program of that cost fail, or its samples in the finals."""

    class Fails(InProcess):
        left: ClassVar[int] = times

        def call(self, request: Any, timeout_secs: float) -> Any:
            asked = isinstance(request, protocol.SampleRequest) if final else isinstance(request, protocol.CheckRequest)
            if final and asked and request.plan.purpose is not Purpose.FINAL:
                asked = False
            if asked and Fails.left and f"cost_us {cost}\n" in _text(request.candidate if final else request.bundle):
                Fails.left -= 1
                return MeasureFailed(outcome=outcome, reason=reason)
            return super().call(request, timeout_secs)

    return Fails


def noisy(share: float, seed: int = 0) -> type[Noisy]:
    return type("Noisy", (Noisy,), {"share": share, "random": random.Random(seed)})


# --- one Program for each config ---


class Forgetful(ToyStrategy):
    """Emits another text each time that it is asked, as a planner does whose probes have been answered meanwhile."""

    asked: ClassVar[dict[Config, int]] = {}

    def emit(self, analysis: Analysis, config: Config, known: Mapping[str, Any]) -> Program | Rejection:
        made = super().emit(analysis, config, known)
        assert isinstance(made, Program)
        Forgetful.asked[config] = Forgetful.asked.get(config, 0) + 1
        text = made.sources[0].text + f"time {Forgetful.asked[config]}\n"
        return Program(
            name=made.name, buffers=made.buffers,
            sources=tuple(type(each)(name=each.name, text=text, entries=each.entries) for each in made.sources),
            steps=made.steps, sizes=made.sizes,
        )  # fmt: skip


@pytest.mark.slow
def test_the_answer_is_the_program_that_was_measured(store: Store, fakes: Registry) -> None:
    """Stopped and gone on with, verified, asked for again: every config is emitted once in its job, and what the
    answer names is what the trial measured."""
    fakes.strategies["toy"] = Forgetful()
    Forgetful.asked.clear()
    (job,) = jobs.read("toy.yaml", FULL)
    row = tuner.submit(store, fakes, job)
    Forgetful.asked.clear()  # whether anything can be tried was asked before
    state = JobState.QUEUED
    while state is JobState.QUEUED:
        count = 0

        def stop() -> bool:
            nonlocal count
            count += 1
            return count > 20

        store.claim("test", job=row.id)
        state = tuner.Tuner(store, fakes, Events(), runner=InProcess).run(row.id, stop)
    record = answer(store, fakes, row)
    assert set(Forgetful.asked.values()) == {1}
    assert len(Forgetful.asked) == 64
    (trial,) = [each for each in store.trials(row.id) if each.config == record.config]
    assert trial.program_key == record.program_key
    program = store.program(record.program_key or "")
    assert program is not None
    assert program.key == record.program_key
    assert record.source is not None
    assert Path(record.source).read_text() == program.sources[0].text
    _, again, _ = tuned(store, fakes, FULL, kind="verify")
    assert again.program_key == record.program_key
    assert set(Forgetful.asked.values()) == {1}


@pytest.mark.slow
def test_a_program_is_in_the_store_before_it_is_built(
    store: Store, fakes: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    for name in ("bundle", "bundle_now"):
        whole = getattr(Measurer, name)

        def watched(measurer: Measurer, program: Program, whole: Any = whole) -> Any:
            assert store.program(program.key) is not None or program.at({"n": 64}).key in built, program.name
            built.append(program.key)
            return whole(measurer, program)

        monkeypatch.setattr(Measurer, name, watched)
    tuned(store, fakes)
    assert len(set(built)) > 30  # and the programs at odd sizes, which follow from them


# --- the incumbent ---


@pytest.mark.slow
def test_a_short_search_does_not_replace_a_good_answer(store: Store, fakes: Registry) -> None:
    """In November 2026 two runs with --trials 1 made a `fuse 2.04x` a `keep`."""
    _, first, _ = tuned(store, fakes)
    assert (first.verdict, costs(store, first), first.replaced) == (Verdict.FUSE, "10.0", None)
    for _ in range(2):
        _, after, _ = tuned(store, fakes, ONE)
        assert (after.verdict, after.program_key, after.config) == (Verdict.FUSE, first.program_key, first.config)
        assert (after.processes, after.trials) == (5, 1)
    assert history(store, after) == [
        (Verdict.FUSE, None),
        (Verdict.FUSE, "measured again"),
        (Verdict.FUSE, "measured again"),
    ]


@pytest.mark.slow
def test_a_better_one_that_was_measured_beside_it_replaces_an_answer(store: Store, fakes: Registry) -> None:
    _, kept, _ = tuned(store, fakes, ONE)
    assert kept.verdict is Verdict.KEEP
    assert (kept.baseline, kept.baseline_config) == ("sequential", Config.of({"block": 256}))
    few = "strategy: toy\nsearch: {trials: 9, seed: 1}\n"
    row, some, _ = tuned(store, fakes, few)
    best = min(each.time_us for each in store.trials(row.id) if each.time_us)
    assert best > 10.1, "the seed has found the best one; choose another"
    assert (some.verdict, some.replaced) == (Verdict.FUSE, "a candidate was found that is faster than sequential")
    _, after, _ = tuned(store, fakes)
    assert (costs(store, after), after.replaced) == ("10.0", "a faster one was measured beside it")


@pytest.mark.slow
def test_an_answer_that_is_as_good_keeps_its_place(store: Store, fakes: Registry) -> None:
    """Within the noise of a device there is always one that looks better today."""

    class Rough(InProcess):
        """Each program is off by up to 15 % in a process, none on the whole, and no two of them alike: nobody can tell
        10 us from 10.25."""

        seen: ClassVar[dict[str, int]] = {}

        def call(self, request: Any, timeout_secs: float) -> Any:
            reply = super().call(request, timeout_secs)
            if isinstance(request, protocol.SampleRequest) and request.plan.purpose is Purpose.FINAL:
                text = _text(request.candidate)
                count = self.seen[text] = self.seen.get(text, 0) + 1
                factor = (0.85, 1.18, 0.9, 1.11, 1.0)[(count + int(4 * float(text.split()[1]))) % 5]
                reply = dataclasses.replace(reply, span_us=tuple(each * factor for each in reply.span_us))
            return reply

    _, first, _ = tuned(store, fakes, runner=Rough)
    for _ in range(4):
        _, after, _ = tuned(store, fakes, runner=Rough)
        assert after.program_key == first.program_key


@pytest.mark.slow
@pytest.mark.parametrize("outcome", [Outcome.WRONG_RESULT, Outcome.BUILD_FAILED, Outcome.CRASHED])
def test_an_answer_that_fails_is_replaced_and_it_is_said_why(store: Store, fakes: Registry, outcome: Outcome) -> None:
    tuned(store, fakes)
    _, after, _ = tuned(store, fakes, ONE, runner=failing("10.0", outcome, "seed 0: y differs"))
    assert after.verdict is Verdict.KEEP
    assert after.replaced == f"it failed: {outcome.value}: seed 0: y differs"


def test_a_keep_whose_unfused_way_fails_is_replaced(store: Store, fakes: Registry) -> None:
    """What the answer tells people to use is wrong today, and nothing else can be told either."""
    _, kept, _ = tuned(store, fakes, ONE)
    assert kept.verdict is Verdict.KEEP

    class Fails(noisy(1.0)):  # type: ignore[misc]
        def call(self, request: Any, timeout_secs: float) -> Any:
            if isinstance(request, protocol.CheckRequest) and "cost_us 19.0\n" in _text(request.bundle):
                return MeasureFailed(outcome=Outcome.WRONG_RESULT, reason="seed 0: y differs")
            return super().call(request, timeout_secs)

    _, after, _ = tuned(store, fakes, ONE, runner=Fails)
    assert after.verdict is Verdict.UNDECIDED
    assert after.replaced == "it failed: wrong_result: seed 0: y differs"


@pytest.mark.slow
def test_a_candidate_that_could_not_be_judged_leaves_it_undecided(store: Store, fakes: Registry) -> None:
    """The one that is set aside for noise is 2.6 % faster than the unfused way, and all others are slower."""
    runner = failing("10.0", Outcome.TOO_NOISY, "it scatters", final=True)
    _, record, _ = tuned(store, fakes, "strategy: toy\nunfused: 10.8\n", runner=runner)
    assert record.verdict is Verdict.UNDECIDED
    assert "a candidate could not be judged: too noisy or lost in 5 processes" in record.ended


@pytest.mark.slow
def test_an_answer_whose_process_was_lost_stands(store: Store, fakes: Registry) -> None:
    _, first, _ = tuned(store, fakes)
    _, after, seen = tuned(store, fakes, ONE, runner=failing("10.0", Outcome.WORKER_DIED, "killed"))
    assert after == first
    assert phases(seen, "answer") == ["the answer of today stands: it could not be measured this time: killed"]
    assert store.jobs()[0].finding == "the answer of today stands: it could not be measured this time: killed"


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(8))
def test_drop_outs_at_random_cost_time_and_no_verdict(store: Store, fakes: Registry, seed: int) -> None:
    """A third of all samples is too noisy: whoever loses one, all of them get another process."""
    row, record, _ = tuned(store, fakes, runner=noisy(0.33, seed))
    lost = store.lost_finals(row.id)
    if len(lost) < finals.MOST_LOST:
        assert (record.verdict, record.processes) == (Verdict.FUSE, 5)
        if not any(each.rule == "struck_out" for each in store.rejections(row.id)):
            assert costs(store, record) == "10.0"
    else:
        assert record.verdict is Verdict.UNDECIDED
    measured = store.finals(row.id)
    assert not {process for each in measured.values() for process in each} & set(lost)


def losing(*script: str) -> type[InProcess]:
    """In the finals the program of each of these costs in turn is too noisy, twice: that loses one process."""
    to_come = [cost for cost in script for _ in range(2)]

    class Losing(InProcess):
        def call(self, request: Any, timeout_secs: float) -> Any:
            final = isinstance(request, protocol.SampleRequest) and request.plan.purpose is Purpose.FINAL
            if final and to_come and f"cost_us {to_come[0]}\n" in _text(request.candidate):
                del to_come[0]
                return MeasureFailed(outcome=Outcome.TOO_NOISY, reason="it scatters")
            return super().call(request, timeout_secs)

    return Losing


BEST, SECOND, RIVAL = "10.0", "10.25", "22.0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "struck", "answer"),
    [
        ([BEST] * 4, 0, BEST),  # bad luck
        ([BEST] * 10, 1, SECOND),
        ([BEST] * 4 + [RIVAL] + [BEST] * 5, 1, SECOND),  # hardly any other's
        ([BEST] * 5 + [SECOND] * 5, 2, "11.0"),  # what is struck out excuses nobody, and uses nothing up
        ([BEST, RIVAL] * 5, 0, None),  # a noisy machine: nobody's fault
    ],
)
def test_a_finalist_goes_when_the_lost_processes_are_mostly_its_own(
    store: Store, fakes: Registry, script: list[str], struck: int, answer: str | None
) -> None:
    row, record, _ = tuned(store, fakes, runner=losing(*script))
    gone = [each.detail for each in store.rejections(row.id) if each.rule == finals.STRUCK_OUT]
    assert [each.partition(",")[0] for each in gone] == ["too noisy or lost in 5 processes"] * struck
    if answer is None:
        assert (record.verdict, len(store.lost_finals(row.id))) == (Verdict.UNDECIDED, finals.MOST_LOST)
    else:
        assert (record.verdict, costs(store, record)) == (Verdict.FUSE, answer)


@pytest.mark.slow
@pytest.mark.parametrize(("times", "answer"), [(finals.LAST_CHECKS - 1, BEST), (finals.LAST_CHECKS, SECOND)])
def test_the_last_check_is_tried_again_where_it_was_lost(
    store: Store, fakes: Registry, times: int, answer: str
) -> None:
    class Dies(InProcess):
        final: ClassVar[bool] = False
        left: ClassVar[int] = times

        def call(self, request: Any, timeout_secs: float) -> Any:
            if isinstance(request, protocol.SampleRequest):
                Dies.final = request.plan.purpose is Purpose.FINAL
            elif isinstance(request, protocol.CheckRequest) and Dies.final and Dies.left:
                if f"cost_us {BEST}\n" not in _text(request.bundle):
                    return super().call(request, timeout_secs)  # what is known to be good still is
                Dies.left -= 1
                return MeasureFailed(outcome=Outcome.WORKER_DIED, reason="killed")
            return super().call(request, timeout_secs)

    _, record, _ = tuned(store, fakes, runner=Dies)
    assert (record.verdict, costs(store, record)) == (Verdict.FUSE, answer)


@pytest.mark.slow
def test_every_process_measures_everybody_in_an_order_that_is_drawn(store: Store, fakes: Registry) -> None:
    orders: list[list[str]] = []

    class Watched(InProcess):
        def fresh(self) -> None:
            orders.append([])

        def call(self, request: Any, timeout_secs: float) -> Any:
            if isinstance(request, protocol.SampleRequest) and request.plan.purpose is Purpose.FINAL:
                orders[-1].append(_text(request.candidate))
            return super().call(request, timeout_secs)

    tuned(store, fakes)
    tuned(store, fakes, "strategy: toy\nsearch: {seed: 5}\n", runner=Watched)
    measured = [each for each in orders if each]
    assert len(measured) == 5
    assert len({tuple(sorted(each)) for each in measured}) == 1
    assert len(measured[0]) >= 4  # three of the search (one is the answer of today), and an unfused way
    assert len({tuple(each) for each in measured}) > 1


# --- versions ---


class Second(ToyStrategy):
    version = 2


@pytest.mark.slow
def test_an_answer_of_an_earlier_version_is_the_incumbent(store: Store, fakes: Registry) -> None:
    _, first, _ = tuned(store, fakes)
    fakes.strategies["toy"] = Second()
    _, after, _ = tuned(store, fakes, ONE)
    assert after.strategy_version == 2
    assert after.workload_key != first.workload_key
    assert after.content_key == first.content_key
    assert (after.program_key, after.verdict, after.replaced) == (first.program_key, Verdict.FUSE, "measured again")
    assert store.record(first.workload_key, first.device_key) is None  # history


# --- ending early ---


def test_a_search_that_is_ended_goes_on_to_its_finals(store: Store, fakes: Registry) -> None:
    (job,) = jobs.read("toy.yaml", FULL)
    row = tuner.submit(store, fakes, job)
    store.claim("test", job=row.id)

    def note(event: Event) -> None:
        if isinstance(event, say.TrialFinished) and event.done == 9:
            store.finish_early(row.id)

    assert tuner.Tuner(store, fakes, Events(note), runner=InProcess).run(row.id, lambda: False) is JobState.DONE
    record = answer(store, fakes, row)
    assert 9 <= record.trials < 20
    assert record.processes == 5
    assert record.ended == f"the search ended after {record.trials} of 64 trials, as asked"


@pytest.mark.slow
def test_finals_that_have_begun_keep_their_baseline_when_a_job_is_to_finish(store: Store, fakes: Registry) -> None:
    """The tuned unfused way of the first session, and not the one as given."""
    (job,) = jobs.read("toy.yaml", FULL)
    row = tuner.submit(store, fakes, job)
    store.claim("test", job=row.id)
    first = tuner.Tuner(store, fakes, Events(), runner=InProcess)
    assert first.run(row.id, lambda: bool(store.finals(row.id))) is JobState.QUEUED
    store.finish_early(row.id)
    store.claim("test", job=row.id)
    assert tuner.Tuner(store, fakes, Events(), runner=InProcess).run(row.id, lambda: False) is JobState.DONE
    record = answer(store, fakes, row)
    assert record.baseline_config == Config.of({"block": 256})
    assert record.speedup == pytest.approx(1.9, rel=0.01)
    assert {len(each) for each in store.finals(row.id).values()} == {5}


@pytest.mark.slow
def test_run_goes_on_with_its_own_interrupted_job_whatever_the_budget(store: Store, fakes: Registry) -> None:
    (job,) = jobs.read("toy.yaml", "strategy: toy\nsearch: {trials: 60}\n")
    row = tuner.submit(store, fakes, job)
    store.claim("test", job=row.id)
    count = 0

    def stop() -> bool:
        nonlocal count
        count += 1
        return count > 30

    assert tuner.Tuner(store, fakes, Events(), runner=InProcess).run(row.id, stop) is JobState.QUEUED
    done = len(store.trials(row.id))
    assert 5 < done < 60
    (less,) = jobs.read("toy.yaml", "strategy: toy\nsearch: {trials: 12}\n")
    again = tuner.submit(store, fakes, less, resume=True)
    assert (again.id, again.budget) == (row.id, 12)
    (other,) = jobs.read("toy.yaml", "strategy: toy\nunfused: 7.0\n")
    assert tuner.submit(store, fakes, other, resume=True).id != row.id
    store.claim("test", job=row.id)
    assert tuner.Tuner(store, fakes, Events(), runner=InProcess).run(row.id, lambda: False) is JobState.DONE
    # What was asked for and not measured when it was stopped is tried first.
    assert done <= answer(store, fakes, row).trials < 45


@pytest.mark.slow
def test_an_unfused_way_that_times_out_once_stays_in_the_finals(store: Store, fakes: Registry) -> None:
    """Without it a candidate might win that should not."""
    late = failing("22.0", Outcome.TIMED_OUT, "no answer within 10.0 s", final=True, times=1)
    row, _, _ = tuned(store, fakes, runner=late)
    assert late.left == 0  # type: ignore[attr-defined]
    assert not [each for each in store.rejections(row.id) if each.rule == "struck_out"]
