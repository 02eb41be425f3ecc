"""One daemon a store."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fusiond.daemon.lock import Holder, StoreLock, holder, lock_path
from fusiond.errors import DaemonError


def test_a_second_one_is_told_who_holds_it(database: Path) -> None:
    first, second = StoreLock(database), StoreLock(database)
    first.acquire()
    first.announce(Path("/run/x"))
    with pytest.raises(
        DaemonError, match=rf"another daemon serves this store already \(pid {os.getpid()}, socket /run/x"
    ):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_the_holder_is_found_while_it_holds(database: Path) -> None:
    assert holder(database) is None
    lock = StoreLock(database)
    lock.acquire()
    assert holder(database) is None  # not announced yet
    lock.announce(Path("/run/x"))
    assert holder(database) == Holder(pid=os.getpid(), socket=Path("/run/x"))
    lock.release()
    assert holder(database) is None


def test_a_file_left_behind_by_a_killed_daemon_is_no_holder(database: Path) -> None:
    lock_path(database).write_text('{"pid": 1, "socket": "/run/x"}')
    assert holder(database) is None


def test_only_its_user_reads_the_file(database: Path) -> None:
    lock = StoreLock(database)
    lock.acquire()
    assert stat.S_IMODE(lock_path(database).stat().st_mode) == 0o600
    lock.release()
