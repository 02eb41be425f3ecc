"""One daemon a store, whatever becomes of the lock file."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fusiond.model.errors import DaemonError
from fusiond.service.daemon.lock import LockHolder, StoreLock, holder, kept_out, lock_path
from fusiond.store.database import Store
from fusiond.store.process_identity import this_process
from fusiond.store.serving import Served

HOLDS = """
import sys
from pathlib import Path
from fusiond.service.daemon.lock import StoreLock
from fusiond.store.database import Store
with Store.open(sys.argv[1]) as store:
    lock = StoreLock(store)
    lock.acquire()
    lock.announce(Path("/run/theirs"))
    print("held", flush=True)
    while (order := sys.stdin.readline().strip()) == "keep":
        lock.keep()
        print("kept", flush=True)
    if order == "release":
        lock.release()
"""


class Other:
    """A lock's holder in another process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid
        assert process.stdin is not None
        assert process.stdout is not None
        self._orders, self._answers = process.stdin, process.stdout
        assert self._answers.readline() == "held\n"

    def keep(self) -> str:
        """Let it look after its lock; empty when it gave up."""
        self._orders.write("keep\n")
        self._orders.flush()
        return self._answers.readline()


@contextmanager
def other_process(database: Path) -> Iterator[Other]:
    command = [sys.executable, "-c", HOLDS, str(database)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        yield Other(process)
        process.kill()


def test_a_second_one_is_told_who_holds_it(store: Store) -> None:
    first, second = StoreLock(store), StoreLock(store)
    first.acquire()
    first.announce(Path("/run/x"))
    with pytest.raises(
        DaemonError, match=rf"another daemon serves this store already \(pid {os.getpid()}, socket /run/x"
    ):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_the_holder_is_found_while_it_holds(store: Store) -> None:
    assert holder(store.path) is None
    lock = StoreLock(store)
    lock.acquire()
    assert holder(store.path) is None  # not announced yet
    lock.announce(Path("/run/x"))
    assert holder(store.path) == LockHolder(pid=os.getpid(), socket=Path("/run/x"))
    lock.release()
    assert holder(store.path) is None
    assert store.served() is None


def test_a_file_left_behind_by_a_killed_daemon_is_no_holder(database: Path) -> None:
    lock_path(database).write_text('{"pid": 1, "socket": "/run/x"}')
    assert holder(database) is None


@pytest.mark.parametrize("umask", [0, 0o022])
def test_only_its_user_reads_the_file(store: Store, umask: int) -> None:
    lock = StoreLock(store)
    before = os.umask(umask)
    try:
        lock.acquire()
    finally:
        os.umask(before)
    assert stat.S_IMODE(lock_path(store.path).stat().st_mode) == 0o600
    lock.release()


@pytest.mark.slow
def test_an_unlinked_lock_lets_nobody_in_and_is_put_back(store: Store) -> None:
    with other_process(store.path) as other:
        lock_path(store.path).unlink()
        second = StoreLock(store)
        with pytest.raises(DaemonError, match=rf"serves this store already \(pid {other.pid}, by another lock file\)"):
            second.acquire()
        assert holder(store.path) is None
        assert other.keep() == "kept\n"
        assert holder(store.path) == LockHolder(pid=other.pid, socket=Path("/run/theirs"))
        with pytest.raises(DaemonError, match=rf"\(pid {other.pid}, socket /run/theirs\)"):
            second.acquire()
        status = lock_path(store.path).stat()
        served = store.served()
        assert served is not None
        assert (served.device, served.inode) == (status.st_dev, status.st_ino)


def test_a_lock_that_cannot_be_put_back_now_is_put_back_later(store: Store) -> None:
    """Somebody holds the new file; the store says who serves."""
    lock = StoreLock(store)
    lock.acquire()
    lock.announce(Path("/run/mine"))
    lock_path(store.path).unlink()
    program = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print('', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(lock_path(store.path))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        before = store.served()
        lock.keep()
        assert store.served() == before
        process.kill()
    lock.keep()
    assert holder(store.path) == LockHolder(pid=os.getpid(), socket=Path("/run/mine"))
    lock.release()


def test_a_killed_one_leaves_nothing_that_keeps_others_out(store: Store) -> None:
    with other_process(store.path) as other:
        other.process.kill()
        other.process.wait()
        lock_path(store.path).unlink()
        lock = StoreLock(store)
        lock.acquire()
        assert (store.served() or pytest.fail("nobody serves")).owner == this_process()
        lock.release()


def test_who_lost_the_store_to_another_one_says_so(store: Store) -> None:
    """It cannot come to this by unlinking; by another copy of the store, it can."""
    lock = StoreLock(store)
    lock.acquire()
    store._database.execute("DELETE FROM serving")
    lock.keep()
    assert (store.served() or pytest.fail("nobody serves")).owner == this_process()
    theirs = parents()
    store._database.execute("DELETE FROM serving")
    assert store.serve(theirs) is None
    with pytest.raises(DaemonError, match=rf"another daemon serves this store already \(pid {os.getppid()},"):
        lock.keep()
    lock.release()
    assert store.served() == theirs


def parents() -> Served:
    """As if the process that started this one served."""
    boot = this_process().split(":")[1]
    started = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19]
    return Served(owner=f"{os.getppid()}:{boot}:{started}", device=1, inode=2)


def test_no_daemon_begins_while_it_is_kept_out(store: Store) -> None:
    with kept_out(store.path), pytest.raises(DaemonError, match="serves this store already"):
        StoreLock(store).acquire()
    mine = StoreLock(store)
    mine.acquire()
    with pytest.raises(DaemonError, match="stop it first"), kept_out(store.path):
        pass
    mine.release()
