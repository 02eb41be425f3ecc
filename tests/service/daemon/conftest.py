"""What the daemon's tests share: a store in a folder, a job file, and a service in this process."""

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from fusiond.model.errors import DaemonError
from fusiond.service.client.client import Client
from fusiond.service.daemon.config import DaemonConfig
from fusiond.service.daemon.limits import HttpLimits
from fusiond.service.daemon.service import DaemonWork, Service
from fusiond.service.daemon.upstream_sync import Between
from fusiond.store.database import Store
from tests import fake_daemon as daemon

JOB = "strategy: toy\npair: [hist, maxpool]\nsizes: {hist.n: 500}\nsearch: {trials: 4}\n"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "fusiond.sqlite"


@pytest.fixture
def store(database: Path) -> Iterator[Store]:
    with Store.open(database) as opened:
        yield opened


@pytest.fixture
def job_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a job file; `end` is what becomes of it (see tests/fake_daemon.py)."""

    def write(name: str = "job.yaml", *, trials: int = 4, end: str = "done", text: str | None = None) -> Path:
        path = tmp_path / name
        path.write_text(JOB.replace("trials: 4", f"trials: {trials}") + f"end: {end}\n" if text is None else text)
        return path

    return write


@contextmanager
def running(
    store: Store,
    *,
    trial_secs: float = 0.01,
    config: DaemonConfig | None = None,
    limits: HttpLimits | None = None,
    announce: Callable[[str], None] | None = None,
    between: Between | None = None,
    work: DaemonWork | None = None,
) -> Iterator[tuple[Service, Client]]:
    """A service in a thread of this process (without signals), and a client of it."""
    work = work or daemon.work(store, trial_secs)
    service = Service(store, config or DaemonConfig(poll_secs=0.05), work, limits, between=between)
    service.announce = announce or service.announce
    ended: list[int] = []
    thread = threading.Thread(target=lambda: ended.append(service.run()), name="service")
    thread.start()
    with Client(db=store.path) as client:
        try:
            _wait_until_it_answers(client)
            yield service, client
        finally:
            service.stopping.set()
            thread.join(20)
    assert ended == [0]


def _wait_until_it_answers(client: Client) -> None:
    for _ in range(200):
        try:
            client.health()
        except DaemonError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError("the service does not answer")


@pytest.fixture(scope="session")
def service_of() -> Callable[..., AbstractContextManager[tuple[Service, Client]]]:
    """`with service_of(store) as (service, client)`."""
    return running


@pytest.fixture
def serving(store: Store) -> Callable[..., AbstractContextManager[tuple[Service, Client]]]:
    """`with serving() as (service, client)`, on the test's own store."""
    return functools.partial(running, store)
