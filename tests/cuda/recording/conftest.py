"""Answers without measuring, and no daemon: what is asked is answered by the first candidate that can be emitted."""

from collections.abc import Iterator

import pytest

from fusiond.cuda.recording import groups
from fusiond.service.frameworks import region_answers
from fusiond.service.frameworks.region_answers import Askable
from tests.service.frameworks.answered import answered, db, on_gpu

__all__ = ["answered", "db", "on_gpu"]


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Askable]]:
    """No group of an earlier test, and no daemon of this machine; what was handed in."""
    handed: list[Askable] = []

    def submit(self: region_answers.Asker, question: Askable) -> None:
        self._submitted[question.digest] = float("inf")
        handed.append(question)

    monkeypatch.setattr(region_answers.Asker, "_submit", submit)
    groups.forget()
    yield handed
    for each in list(region_answers._askers.values()):  # what still asks would be heard by the next test
        while (thread := each._thread) is not None and thread.is_alive():
            with each._lock:
                each._wanted.clear()
                each._tasks.clear()
                each._woken.set()
            thread.join(0.05)
    groups.forget()
