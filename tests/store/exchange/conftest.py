"""A box that has tuned the toy on the fake device, and its answer as it travels."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fusiond.model.events import Events
from fusiond.model.outcomes import JobState
from fusiond.requests import content_lookup, jobs
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.store.exchange.database import Exchange
from fusiond.store.exchange.entry import ExchangeEntry
from fusiond.store.exchange.find import exchange_of
from fusiond.store.exchange.records import publish, with_programs
from fusiond.store.exchange.signing import Signer
from fusiond.store.jobs import JobRow
from fusiond.tuning import tuner
from tests.fakes import FakePlugin, InProcess

TOY = "strategy: toy\nsearch: {trials: 6}\n"


@dataclass(frozen=True)
class Box:
    """A store with its exchange and its key."""

    store: Store
    registry: Registry

    @property
    def exchange(self) -> Exchange:
        Exchange.beside(self.store.path).close()  # made where it is missing
        found = exchange_of(self.store.path)
        assert found is not None
        return found

    @property
    def signer(self) -> Signer:
        return Signer.of(self.store.path)

    def tune(self, text: str = TOY) -> JobRow:
        (job,) = jobs.read("/toy.yaml", text)
        return self.run(tuner.submit(self.store, self.registry, job))

    def run(self, row: JobRow) -> JobRow:
        self.store.claim("test", job=row.id)
        tuner.Tuner(self.store, self.registry, Events(), runner=InProcess).run(row.id, lambda: False)
        return self.store.named_job(row.id)

    def publish(self) -> list[ExchangeEntry]:
        publish(self.store, self.exchange, self.signer)
        found = [with_programs(self.exchange, key) for key in self.exchange.keys(own=True)]
        return [each for each in found if each is not None]

    def ask(self, text: str = TOY, **options: Any) -> Any:
        """What `best JOB.yaml` answers."""
        content_lookup.index(self.store, self.registry)
        wanted = content_lookup.ready(self.registry, jobs.read("/toy.yaml", text), options.pop("sizes", None))
        (found,) = content_lookup.best_of_jobs(self.store.path, self.registry, wanted, **options)
        return found


@pytest.fixture
def box(tmp_path: Path, fakes: Registry, request: pytest.FixtureRequest) -> Callable[[str], Box]:
    """A box by its name; a new one, or that of before."""
    made: dict[str, Box] = {}

    def of(name: str) -> Box:
        if name not in made:
            folder = tmp_path / name
            folder.mkdir()
            made[name] = Box(Store.open(folder / "fusiond.sqlite"), fakes)
            request.addfinalizer(made[name].store.close)
        return made[name]

    return of


@pytest.fixture
def first(box: Callable[[str], Box]) -> Box:
    """One that has an answer."""
    found = box("first")
    assert found.tune().state is JobState.DONE
    return found


@pytest.fixture(scope="session")
def entry(tmp_path_factory: pytest.TempPathFactory) -> ExchangeEntry:
    """What another such box says, which nobody here knows otherwise."""
    registry = Registry()
    registry.add(FakePlugin(), "fakes")
    folder = tmp_path_factory.mktemp("elsewhere")
    with pytest.MonkeyPatch.context() as patch, Store.open(folder / "fusiond.sqlite") as store:
        patch.setenv("FUSIOND_CACHE", str(folder))
        patch.setenv("FUSIOND_LOCKS", str(folder))
        elsewhere = Box(store, registry)
        assert elsewhere.tune().state is JobState.DONE
        (found,) = elsewhere.publish()
    return found
