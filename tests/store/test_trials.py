"""What a study writes down is what a later process reads, in order, once."""

from typing import Any

import pytest

from fusiond.model.errors import StoreError
from fusiond.model.nouns import Config
from fusiond.model.outcomes import DeviceState, Effort, Outcome, Purpose
from fusiond.store.database import Store
from fusiond.store.encoding import measurement_from

PLACE = {"device_key": "device", "gpu_uuid": "GPU-0", "env_key": "env", "against": "baseline"}


def test_no_recorded_trial_is_repeated(store: Store, job: str, make: Any) -> None:
    store.add_trial(job, make.trial(0), **PLACE)
    for again in (make.trial(1, config=make.trial(0).config), make.trial(0, config=Config.of({"cap": 99}))):
        with pytest.raises(StoreError, match="recorded already"):
            store.add_trial(job, again, **PLACE)
    assert store.trials(job) == [make.trial(0)]
    assert store._database.conn.execute("SELECT COUNT(*) FROM measurements").fetchone() == (1,)


def test_a_trial_of_no_job_is_refused(store: Store, make: Any) -> None:
    with pytest.raises(StoreError, match="not stored"):
        store.add_trial("nobody", make.trial(), **PLACE)


def test_what_a_compiler_printed_is_kept_whatever_its_bytes(store: Store, job: str, make: Any) -> None:
    reason = b"error: \xff\x00 in kernel".decode("utf-8", "surrogateescape")
    failed = make.trial(outcome=Outcome.BUILD_FAILED, reason=reason, ratio=None, time_us=None, measurement=None)
    store.add_trial(job, failed, **PLACE)
    assert store.trials(job)[0].reason == "error: \\udcff\x00 in kernel"
    with pytest.raises(StoreError, match="not Unicode"):
        store.add_trial(job, make.trial(1, origin="\udcff"), **PLACE)


# --- answers from the store ---


def test_an_equal_program_is_answered_from_any_job_of_the_same_place(store: Store, job: str, make: Any) -> None:
    trial = make.trial(program_key="p")
    store.add_trial(job, trial, **PLACE)
    assert store.measured("p", "baseline", "device", "env") == trial
    assert store.measured("other", "baseline", "device", "env") is None
    assert store.measured("p", "other", "device", "env") is None
    assert store.measured("p", None, "device", "env") is None
    assert store.measured("p", "baseline", "other", "env") is None
    assert store.measured("p", "baseline", "device", "other") is None
    assert store.measured("p", "baseline", "device", "env", cache="cold") is None


def test_a_program_measured_alone_is_answered_without_a_baseline(store: Store, job: str, make: Any) -> None:
    alone = make.trial(
        program_key="p", ratio=None, measurement=make.measurement(baseline_us=(), purpose=Purpose.BASELINE)
    )
    store.add_trial(job, alone, **{**PLACE, "against": None})
    assert store.measured("p", None, "device", "env") == alone


def test_only_what_was_measured_for_a_search_is_an_answer(store: Store, job: str, make: Any) -> None:
    failed = make.trial(0, program_key="p", outcome=Outcome.CRASHED, measurement=None)
    probe = make.trial(1, program_key="p", measurement=make.measurement(purpose=Purpose.PROBE))
    final = make.trial(2, program_key="p", measurement=make.measurement(purpose=Purpose.FINAL))
    for trial in (failed, probe, final):
        store.add_trial(job, trial, **PLACE)
    store.add_finals(job, 0, {"p": make.measurement(purpose=Purpose.FINAL)})
    assert store.measured("p", "baseline", "device", "env") is None


def test_a_complete_measurement_goes_before_one_stopped_early(store: Store, job: str, make: Any) -> None:
    first = make.trial(0, program_key="p")
    later = make.trial(1, program_key="p")
    dropped = make.trial(2, program_key="p", measurement=make.measurement(dropped=True))
    store.add_trial(job, dropped, **PLACE)
    assert store.measured("p", "baseline", "device", "env") == dropped
    store.add_trial(job, first, **PLACE)
    store.add_trial(job, later, **PLACE)
    assert store.measured("p", "baseline", "device", "env") == later


# --- the rest of a study ---


def test_finals_are_grouped_by_program_in_the_order_of_processes(store: Store, job: str, make: Any) -> None:
    for process in (1, 0, 2):
        measured = make.measurement(1.0 + process, purpose=Purpose.FINAL)
        store.add_finals(job, process, {"p": measured, "q": measured})
    store.lose_final(job, 3, "q", Outcome.TOO_NOISY, "the pairs scatter by 40 %")
    assert store.lost_finals(job) == {3: ("q", Outcome.TOO_NOISY, "the pairs scatter by 40 %")}
    finals = store.finals(job)
    assert {key: {process: each.span_us for process, each in runs.items()} for key, runs in finals.items()} == {
        "p": {0: (1.0,), 1: (2.0,), 2: (3.0,)},
        "q": {0: (1.0,), 1: (2.0,), 2: (3.0,)},
    }
    with pytest.raises(StoreError, match="recorded already"):
        store.add_finals(job, 0, {"r": make.measurement(), "p": make.measurement()})
    assert "r" not in store.finals(job)


def test_samples_of_an_earlier_version_are_read(store: Store, make: Any) -> None:
    """The canary said microseconds, and what samples had taken was not kept."""
    store.add_probe("add", "device", 1, make.measurement(3.0, purpose=Purpose.PROBE))
    with store._transaction() as database:
        old = '{"canary_us":8.3,"clock_mhz":1980.0,"others":0,"power_w":null,"temperature_c":null,"throttle":""}'
        database.execute("UPDATE measurements SET effort = NULL, state_before = ?, state_after = ?", [old, old])
        row = next(database.query("SELECT * FROM measurements"))
    found = measurement_from(row)
    assert found.before == found.after == DeviceState(clock_mhz=1980.0)
    assert found.effort == Effort()
