"""Each system call that touches a file of fusiond's, or starts a process, fails for a while: the job ends by itself as
if nothing had happened, and nothing is left behind."""

import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import CAN_SAY, KINDS, Disturbed, Found

SAMPLE = 1
LASTS = (1, 3, 12)  #: How many calls in a row fail


def calls(machine: Disturbed, kinds: int, *, in_process: bool = True, under: str = "") -> int:
    """How many calls of these kinds an undisturbed job makes."""
    machine.clear()
    machine.count(kinds, under=under)
    assert machine.fusiond("run", machine.job(), "--json", in_process=in_process).status == 0
    return machine.calls


def disturbed(
    machine: Disturbed,
    undisturbed: Found,
    number: int,
    kinds: int,
    *,
    first: int,
    count: int,
    in_process: bool = True,
    under: str = "",
) -> bool:
    """Run a job while calls fail, and compare what it leaves; whether any failed (threads take turns as they like, so
    the last calls come or do not)."""
    machine.clear()
    machine.fail(number, kinds, first=first, count=count, under=under)
    where = f"{errno.errorcode[number]} at call {first}, {count} times"
    said = machine.fusiond("run", machine.job(), "--json", in_process=in_process)
    failed = machine.failed
    assert "Traceback" not in said.err, f"{where}: {said.err}"
    assert "this is a bug" not in said.err, f"{where}: {said.err}"
    jobs = machine.jobs()
    assert [problem for _, problem in jobs if problem] == [], f"{where}: {said.err}"
    if said.status != 0:
        # Before the job is acknowledged, and after it is done, one line is all that can be done.
        assert jobs in ([], [("queued", "")], [("done", "")]), f"{where}: {jobs} {said.err}"
        machine.calm()
        if jobs != [("done", "")]:
            again = machine.fusiond("run", machine.job(), "--json", in_process=in_process)
            assert again.status == 0, f"{where}: {again.err}"
    found = machine.found()
    assert found.trials == undisturbed.trials, where
    assert found.answer == undisturbed.answer, where
    assert found.files == undisturbed.files, f"{where}: {said.err}"
    return failed > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", CAN_SAY, ids=lambda number: errno.errorcode[number])
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.campaign)], ids=["sample", "whole"])
@pytest.mark.timeout(3600)
@pytest.mark.sampled(2)
def test_a_call_that_fails_for_a_while_costs_time_only(
    machine: Disturbed, undisturbed: Found, number: int, whole: bool
) -> None:
    kinds = sum(KINDS[each] for each in CAN_SAY[number])
    in_process = number != errno.EAGAIN
    total = calls(machine, kinds, in_process=in_process)
    assert total > (10 if number == errno.EAGAIN else 50)
    drawn = random.Random(number)
    sample = SAMPLE if in_process else 1  # children take their time to start
    chosen = range(1, total + 1) if whole else sorted(drawn.sample(range(1, total * 9 // 10), sample))
    hit = 0
    for first in chosen:
        count = LASTS[first % len(LASTS)]
        hit += disturbed(machine, undisturbed, number, kinds, first=first, count=count, in_process=in_process)
    assert hit >= 0.8 * len(chosen)


@pytest.fixture(scope="module")
def building(shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disturbed]:
    """A machine whose programs are built by g++."""
    made = Disturbed(tmp_path_factory.mktemp("building"), shim, "tests.faults.built:BuiltPlugin")
    yield made
    made.close()


@pytest.fixture(scope="module")
def built(building: Disturbed) -> Found:
    building.clear()
    said = building.fusiond("run", building.job(), "--json")
    assert said.status == 0, said.err
    return building.found()


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=lambda number: errno.errorcode[number])
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.campaign)], ids=["sample", "whole"])
@pytest.mark.timeout(3600)
@pytest.mark.sampled(8)
def test_a_build_cache_whose_disk_fails_for_a_while_costs_time_only(
    building: Disturbed, built: Found, number: int, whole: bool
) -> None:
    """Every call that touches the cache or a compiler's working folder, and no other."""
    kinds = sum(KINDS[each] for each in CAN_SAY[number])
    total = calls(building, kinds, under="cache")
    assert total > 50
    drawn = random.Random(number)
    chosen = range(1, total + 1) if whole else sorted(drawn.sample(range(1, total * 9 // 10), SAMPLE))
    hit = 0
    for first in chosen:
        count = LASTS[first % len(LASTS)]
        hit += disturbed(building, built, number, kinds, first=first, count=count, under="cache")
    assert hit >= 0.8 * len(chosen)
