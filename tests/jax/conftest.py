"""Answers without measuring: what stitching begins with for a region, as if it had been found the best."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusiond.model.program import Program
from fusiond.requests import jobs, planning
from fusiond.requests.isolation import registry
from fusiond.service.frameworks import region_answers
from fusiond.service.frameworks.region_answers import Found, Question
from tests.frameworks.answered import answer


def emitted(question: Question) -> Found:
    """The first seed's program for a question, unmeasured."""
    plugins = registry.load()
    (job,) = jobs.read(question.path, question.job())
    prepared = planning.prepare(plugins, job)
    provider, info = planning.choose_device(plugins, "cpu")
    analysis = prepared.strategy.analyse(prepared.workload, planning.target_of(provider, info))
    space = prepared.strategy.space(analysis, {})
    for _, config in prepared.strategy.seeds(analysis, space, {}):
        program = prepared.strategy.emit(analysis, config, {})
        if isinstance(program, Program):
            return Found(state="fuse", evidence="emulated", speedup=1.5, device="cpu", program=program)
    return Found(state="refused", reason="no seed can be emitted")


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Question]]:
    """Makes every question one with an answer; the questions."""

    def make(find: Callable[[Question], Found] = emitted) -> list[Question]:
        return answer(monkeypatch, find)

    return make


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture(autouse=True)
def nothing_is_handed_in(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """No daemon of this machine is asked."""
    handed: list[Any] = []
    monkeypatch.setattr(region_answers.Asker, "_submit", lambda self, question: handed.append(question))
    return handed
