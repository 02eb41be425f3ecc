"""Answers without a store and without measuring, for the questions of programs."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusiond.model.program import Program
from fusiond.requests import jobs, planning
from fusiond.requests.isolation import registry
from fusiond.service.frameworks import region_answers
from fusiond.service.frameworks.region_answers import Found


def emitted(question: Any) -> Found:
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
            return Found(state="fuse", evidence="emulated", speedup=1.5, program=program)
    return Found(state="refused", reason="no seed can be emitted")


def measured(question: Any) -> Found:
    """The same, as if a GPU had measured it."""
    assert question.device == "cuda:0"
    found = emitted(dataclasses.replace(question, device="cpu"))
    assert found.program is not None, found.reason
    return dataclasses.replace(found, evidence="measured", arch="sm_90")


def answer(monkeypatch: pytest.MonkeyPatch, find: Callable[[Any], Found]) -> list[Any]:
    """From now on `find` answers every question; the questions, as they come."""
    asked: list[Any] = []

    def look(self: region_answers.Asker, question: Any) -> Found:
        asked.append(question)
        return find(question)

    monkeypatch.setattr(region_answers.Asker, "look", look)
    return asked


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Makes every question one with an answer; the questions."""

    def make(find: Callable[[Any], Found] = emitted) -> list[Any]:
        return answer(monkeypatch, find)

    return make


@pytest.fixture
def on_gpu(answered: Callable[..., list[Any]]) -> list[Any]:
    """Every question has an answer that a GPU has measured; the questions."""
    return answered(measured)


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"
