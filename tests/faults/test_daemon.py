"""The daemon on a disturbed machine: its jobs end by themselves, its log stays short, and what it cannot write down it
keeps."""

from __future__ import annotations

import contextlib
import errno
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fusiond.client import Client
from fusiond.errors import FusiondError
from fusiond.store.jobs import JobRow
from tests.faults.conftest import KINDS, Disturbed, Found

PATIENCE_SECS = 60.0


def until(what: Callable[[], bool], log: Path) -> None:
    limit = time.monotonic() + PATIENCE_SECS
    while not what():
        assert time.monotonic() < limit, log.read_text()
        time.sleep(0.05)


@contextlib.contextmanager
def serving(
    machine: Disturbed, descriptors: int | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], Client, Path]]:
    log = machine.base / "serve.err"
    config = machine.base / "fusiond.yaml"
    config.write_text("poll_secs: 0.1\ndevices: [fake]\n")
    with open(log, "w") as err:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "fusiond", "serve", "--config", str(config)],
            env=machine.env,
            cwd=machine.base,
            stderr=err,
        )
    with Client(db=machine.folder / "fusiond.sqlite") as client:
        try:
            until(lambda: _answers(client), log)
            yield daemon, client, log
            daemon.terminate()
            assert daemon.wait(PATIENCE_SECS) == 0
        finally:
            daemon.kill()
            daemon.wait()


def _answers(client: Client) -> bool:
    try:
        return bool(client.health())
    except FusiondError:
        return False


def ended(client: Client, job: str, log: Path) -> JobRow:
    until(lambda: client.show(job).state.ended, log)
    return client.show(job)


FAULTS = ((errno.ENOSPC, "write"), (errno.EIO, "sync"), (errno.EMFILE, "open"), (errno.EAGAIN, "spawn"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("number", "kinds", "first", "count"),
    [
        (errno.ENOSPC, "write", 1, 60),
        *(
            pytest.param(number, kinds, first, count, marks=pytest.mark.campaign)
            for number, kinds in FAULTS
            for first in (1, 20, 60, 150, 400)
            for count in (1, 20, 60)
        ),
    ],
)  # fmt: skip
def test_a_job_of_the_daemon_ends_by_itself(
    machine: Disturbed, undisturbed: Found, number: int, kinds: str, first: int, count: int
) -> None:
    machine.clear()
    with serving(machine) as (_, client, log):
        (job,) = client.submit(machine.job())
        machine.fail(number, KINDS[kinds], first=first, count=count)
        row = ended(client, job, log)
        assert (row.state.value, row.problem) == ("done", None), log.read_text()
        text = log.read_text()
        assert "Traceback" not in text, text
    found = machine.found()
    assert (found.trials, found.answer) == (undisturbed.trials, undisturbed.answer)


@pytest.mark.slow
def test_a_daemon_without_descriptors_says_so_in_a_few_lines(machine: Disturbed, undisturbed: Found) -> None:
    """For some seconds not one file can be opened; then the job that came before goes on."""
    machine.clear()
    with serving(machine) as (daemon, client, log):
        before = len(log.read_text().splitlines())
        opened = len(list(Path(f"/proc/{daemon.pid}/fd").iterdir()))
        limits = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (opened, limits[1]))
        row = _submitted(client, machine, log, daemon.pid, limits)
        row = ended(client, row, log)
        assert (row.state.value, row.problem) == ("done", None)
        lines = log.read_text().splitlines()[before:]
        assert len(lines) < 60, lines
        assert not [line for line in lines if "Traceback" in line]
    found = machine.found()
    assert (found.trials, found.answer) == (undisturbed.trials, undisturbed.answer)


def _submitted(client: Client, machine: Disturbed, log: Path, pid: int, limits: tuple[int, int]) -> str:
    """A job that comes, through the store, while the daemon can open nothing for a while."""
    said = machine.fusiond("plan", machine.job(), "--json")
    assert json.loads(said.out)
    until(lambda: _stands_still(log), log)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    (job,) = client.submit(machine.job())
    return job


def _stands_still(log: Path) -> bool:
    """Nothing is logged for two seconds."""
    before = log.stat().st_size
    time.sleep(2.0)
    return log.stat().st_size == before
