"""A copy of the store and a pruning that the disk fails: one line, and the store is what it was."""

import errno
import shutil
from pathlib import Path

import pytest

from tests.faults.conftest import KINDS, Disturbed

WRITING = KINDS["open"] | KINDS["write"] | KINDS["sync"] | KINDS["rename"]


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=lambda number: errno.errorcode[number])
@pytest.mark.parametrize("command", [("store", "backup"), ("prune",)], ids=" ".join)
def test_a_disk_that_fails_is_one_line_and_costs_nothing(
    machine: Disturbed, number: int, command: tuple[str, ...]
) -> None:
    machine.clear()
    assert machine.fusiond("run", machine.job(), "--json").status == 0
    before = machine.found()
    copy = machine.folder / "copy" / "store.sqlite"
    copy.parent.mkdir()
    words: tuple[str | Path, ...] = (*command, copy) if command[-1] == "backup" else command
    machine.count(WRITING)
    assert machine.fusiond(*words).status == 0
    calls = machine.calls
    assert calls
    refused = 0
    for first in sorted({1, 2, 3, calls // 2, calls}):
        shutil.rmtree(copy.parent)
        copy.parent.mkdir()
        machine.fail(number, WRITING, first=first, count=1000)
        said = machine.fusiond(*words)
        machine.calm()
        where = f"{errno.errorcode[number]} from call {first}: {said.err}"
        assert said.status in (0, 1), where
        if said.status:
            refused += 1
            assert len(said.err.splitlines()) == 1, where
            assert [each.name for each in copy.parent.iterdir()] == [], where
        assert machine.fusiond("store", "check").status == 0, where
        after = machine.found()
        assert (after.trials, after.answer) == (before.trials, before.answer), where
    assert refused
