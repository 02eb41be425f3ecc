"""The clock is moved in the middle of a job: nothing but the times that are shown depends on it."""

import datetime
import errno
import json
import sys

import pytest

from fusiond.model.outcomes import JobState
from tests.faults.conftest import KINDS, Disturbed, Found
from tests.faults.test_daemon import ended, serving, until

DAY_SECS = 86400
YEAR_SECS = 365 * DAY_SECS
MOVES = [
    (-YEAR_SECS, 0),
    pytest.param((YEAR_SECS, 0), marks=pytest.mark.campaign),
    pytest.param((-DAY_SECS, DAY_SECS), marks=pytest.mark.campaign),
    pytest.param((DAY_SECS, -DAY_SECS), marks=pytest.mark.campaign),
    pytest.param((-1, 1), marks=pytest.mark.campaign),
]


@pytest.mark.slow
@pytest.mark.parametrize("secs", MOVES)
@pytest.mark.parametrize("waits", [False, True], ids=["", "waits"])
def test_a_clock_that_is_moved_twice_changes_nothing(
    machine: Disturbed, undisturbed: Found, secs: tuple[int, int], waits: bool
) -> None:
    """After a third and after two thirds of what an undisturbed job reads of the clock; `waits`: the disk is full for
    a while, so that the job waits for a time that it takes from the clock."""
    machine.clear()
    assert machine.fusiond("run", machine.job(), "--json").status == 0
    readings = machine.readings
    assert readings > 10
    machine.clear()
    machine.move_clock((readings // 3, secs[0]), (readings * 2 // 3, secs[1]))
    if waits:
        machine.fail(errno.ENOSPC, KINDS["open"], first=20, count=12, under="fusiond.artifacts")
    said = machine.fusiond("run", machine.job(), "--json")
    assert said.status == 0, said.err
    assert machine.readings >= readings * 2 // 3
    assert machine.failed == (12 if waits else 0)
    found = machine.found()
    assert found == undisturbed


@pytest.mark.campaign
def test_what_was_recorded_last_is_last_however_the_clock_was_moved(machine: Disturbed) -> None:
    """A year back while the first job of a daemon waits; forward to the truth before its second, and back once more."""
    machine.clear()
    ids: list[str] = []

    def submit(n: int) -> None:
        ids.extend(client.submit(machine.job("toy", f"sizes: {{n: {n}}}\n")))

    def waits() -> bool:
        return client.show(ids[0]).state is JobState.WAITING

    def answered() -> int:
        row = ended(client, ids[-1], log, daemon)
        assert (row.state.value, row.problem) == ("done", None), log.read_text()
        answer = json.loads(machine.fusiond("best", "--workload", "toy", "--json").out)
        return int(answer["workload"]["sizes"]["n"])

    with serving(machine) as (daemon, client, log):
        machine.fail(errno.ENOSPC, KINDS["open"], first=1, count=sys.maxsize, under="fusiond.artifacts")
        submit(64)
        until(waits, log, daemon)
        machine.move_clock((1, -YEAR_SECS))
        machine.calm()
        assert answered() == 64
        machine.move_clock()
        submit(128)
        assert answered() == 128
        machine.move_clock((1, -YEAR_SECS))
        submit(256)
        assert answered() == 256
        assert [each.id for each in client.jobs()] == ids[::-1]
        assert "Traceback" not in log.read_text()
    listed = json.loads(machine.fusiond("jobs", "--json").out)
    assert [each["id"] for each in listed] == ids[::-1]
    years = [datetime.datetime.fromisoformat(each["created_at"]).year for each in listed[::-1]]
    assert years[0] == years[1] > years[2]
