"""Programs whose questions have answers, without a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fusiond.service.frameworks import region_answers
from fusiond.service.frameworks.region_answers import Found


def answer(monkeypatch: pytest.MonkeyPatch, find: Callable[[Any], Found]) -> list[Any]:
    """From now on `find` answers every question; the questions, as they come."""
    asked: list[Any] = []

    def look(self: region_answers.Asker, question: Any) -> Found:
        asked.append(question)
        return find(question)

    monkeypatch.setattr(region_answers.Asker, "look", look)
    return asked
