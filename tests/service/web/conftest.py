"""Pages over a store with one answer, over the socket and over TCP."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from fusiond.model.events import Events
from fusiond.requests import jobs
from fusiond.service.daemon.config import DaemonConfig
from fusiond.store.database import Store
from tests import fake_daemon as daemon
from tests.service.daemon.conftest import running

JOB = "strategy: toy\npair: [hist, '<b>maxpool']\nsizes: {a.n: 500}\nsearch: {trials: 3}\n"


def has_run(store: Store, text: str = JOB) -> str:
    """A job that has run; its id."""
    row = daemon.submit(store, jobs.read("/job.yaml", text)[0])
    store.claim("nobody")
    daemon.MakeBelieve(store, 0.0).run(row, daemon.DEVICE, Events(), lambda: False)
    return row.id


@pytest.fixture
def run_job() -> Callable[[Store], str]:
    return has_run


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Store]]:
    """(the URL that was printed, a job, the store) of a daemon that serves pages over TCP."""
    urls: list[str] = []
    with Store.open(tmp_path_factory.mktemp("web") / "fusiond.sqlite") as store:
        job = has_run(store)
        config = DaemonConfig(poll_secs=0.05, web=("127.0.0.1", 0))
        with running(store, config=config, announce=urls.append):
            yield urls[0], job, store


@pytest.fixture
def page(served: tuple[str, str, Store]) -> Callable[..., httpx.Response]:
    """GET a path as a browser that has the token."""
    url, _, _ = served
    token = url.partition("token=")[2]

    def get(path: str, method: str = "GET", **options: Any) -> httpx.Response:
        with httpx.Client(base_url=url.partition("/?")[0], cookies={"fusiond_token": token}) as client:
            return client.request(method, path, **options)

    return get
