"""The daemon on a disturbed machine: its jobs end by themselves, and its log stays short."""

import contextlib
import errno
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fusiond.model.errors import FusiondError
from fusiond.service.client.client import Client
from fusiond.store.jobs import JobRow
from tests.faults.conftest import KINDS, Disturbed, Found

PATIENCE_SECS = 300.0
FAULTS = ((errno.ENOSPC, "write"), (errno.EIO, "sync"), (errno.EMFILE, "open"), (errno.EAGAIN, "spawn"))
CAMPAIGN = [
    pytest.param(number, kinds, first, count, marks=pytest.mark.campaign)
    for number, kinds in FAULTS
    for first in (1, 20, 60, 150)
    for count in (1, 20, 60)
]


def until(what: Callable[[], bool], log: Path, daemon: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + PATIENCE_SECS
    while not what():
        assert daemon.poll() is None, log.read_text()
        assert time.monotonic() < limit, log.read_text()
        time.sleep(0.05)


@contextlib.contextmanager
def serving(machine: Disturbed) -> Iterator[tuple[subprocess.Popen[bytes], Client, Path]]:
    log = machine.base / "serve.err"
    config = machine.base / "fusiond.yaml"
    config.write_text("poll_secs: 0.1\n")
    with open(log, "w") as err:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "fusiond", "serve", "--config", str(config)],
            env=machine.env, cwd=machine.base, stderr=err,
        )  # fmt: skip
    with Client(db=machine.folder / "fusiond.sqlite") as client:
        try:
            until(lambda: _answers(client), log, daemon)
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


def ended(client: Client, job: str, log: Path, daemon: subprocess.Popen[bytes]) -> JobRow:
    until(lambda: client.show(job).state.ended, log, daemon)
    return client.show(job)


@pytest.mark.slow
@pytest.mark.timeout(3 * PATIENCE_SECS)
@pytest.mark.parametrize(("number", "kinds", "first", "count"), [(errno.ENOSPC, "write", 1, 20), *CAMPAIGN])
def test_a_job_of_the_daemon_ends_by_itself(
    machine: Disturbed, undisturbed: Found, number: int, kinds: str, first: int, count: int
) -> None:
    machine.clear()
    with serving(machine) as (daemon, client, log):
        (job,) = client.submit(machine.job())
        machine.fail(number, KINDS[kinds], first=first, count=count)
        row = ended(client, job, log, daemon)
        assert (row.state.value, row.problem) == ("done", None), log.read_text()
        text = log.read_text()
        assert "Traceback" not in text, text
    found = machine.found()
    assert (found.trials, found.answer) == (undisturbed.trials, undisturbed.answer)


@pytest.mark.campaign
def test_a_daemon_without_descriptors_says_so_in_a_few_lines(machine: Disturbed, undisturbed: Found) -> None:
    """From the first trial on not one file can be opened, until the job has waited twice; then it goes on."""
    machine.clear()
    with serving(machine) as (daemon, client, log):
        before = len(log.read_text().splitlines())
        (job,) = client.submit(machine.job())
        until(lambda: client.show(job).trials > 0, log, daemon)
        limits = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        until(lambda: client.show(job).retries > 1, log, daemon)
        assert client.show(job).waiting_for
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, limits)
        row = ended(client, job, log, daemon)
        assert (row.state.value, row.problem) == ("done", None), log.read_text()
        lines = log.read_text().splitlines()[before:]
        assert len(lines) < 40, lines
        assert not [line for line in lines if "Traceback" in line]
    found = machine.found()
    assert (found.trials, found.answer) == (undisturbed.trials, undisturbed.answer)
