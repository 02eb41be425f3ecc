"""Whose fault it is."""

from __future__ import annotations

import errno
import signal

import pytest

from fusiond import faults


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO])
def test_what_the_machine_lacks_is_its_fault(number: int) -> None:
    found = faults.of_system(OSError(number, "said"), "writing a file")
    assert found is not None
    assert str(found).startswith("writing a file: ")


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.EISDIR])
def test_a_missing_or_a_closed_file_may_be_anybodys(number: int) -> None:
    assert faults.of_system(OSError(number, "said"), "writing a file") is None


def test_a_process_is_killed_from_outside_or_dies_of_its_own_doing() -> None:
    killed = faults.of_end(-signal.SIGKILL, "g++")
    assert killed is not None
    assert "SIGKILL" in str(killed)
    assert faults.of_end(-signal.SIGSEGV, "g++") is None
    assert faults.of_end(1, "g++") is None
    assert faults.of_end(0, "g++") is None
