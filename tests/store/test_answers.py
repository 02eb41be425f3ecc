"""Lists of answers, what a name was answered before, and how an answer is given up."""

from typing import Any

import pytest

from fusiond.model.outcomes import Verdict
from fusiond.store import lookup
from fusiond.store.check import check
from fusiond.store.database import Store


@pytest.fixture
def known(store: Store, make: Any) -> list[Any]:
    """Four answers of today, the oldest first, and one that was replaced."""
    gpu, cpu = make.device(), make.device("cpu")
    make.known(store, make.workload(), gpu, found_at="2026-01-01T00:00:00.000+00:00")
    return [
        make.known(store, make.workload(), gpu, found_at="2026-02-01T00:00:00.000+00:00"),
        make.known(store, make.workload("b,a"), gpu, verdict=Verdict.KEEP, found_at="2026-03-01T00:00:00.000+00:00"),
        make.known(store, make.workload(), cpu, found_at="2026-04-01T00:00:00.000+00:00"),
        make.known(store, make.workload("c"), cpu, found_at="2026-05-01T00:00:00.000+00:00"),
    ]


def test_the_last_found_come_first_and_each_filter_leaves_out_others(store: Store, known: list[Any]) -> None:
    newest = known[::-1]
    assert store.answers(limit=9) == newest
    assert store.answers(limit=2) == newest[:2]
    assert store.answers(limit=9, verdicts=[Verdict.KEEP]) == [known[1]]
    assert store.answers(limit=9, verdicts=[Verdict.KEEP, Verdict.FUSE]) == newest
    assert store.answers(limit=9, since="2026-03-15") == newest[:2]
    for device in (known[0].device_key, known[0].device_name):
        assert store.answers(limit=9, device=device) == [known[1], known[0]]
    assert store.answers(limit=9, strategy=known[0].strategy) == newest
    assert store.answers(limit=9, strategy="another") == []
    assert store.answers(limit=9, device="nothing") == []


def test_what_is_forgotten_is_known_no_more(store: Store, known: list[Any]) -> None:
    name = known[0].workload_name
    assert store.forget(name, known[0].device_key) == 2
    assert store.history_of_name(name) == [known[2]]
    assert name in lookup.suggestions(store.path, name + "x")
    assert store.forget(name) == 1
    assert store.history_of_name(name) == []
    assert name not in lookup.suggestions(store.path, name + "x")
    assert store.forget(name) == 0
    assert store.answers(limit=9) == [known[3], known[1]]
    assert check(store.path) == []
