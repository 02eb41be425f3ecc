"""Programs whose questions have answers, without a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fusiond.frameworks import asking
from fusiond.frameworks.asking import Found


def answer(monkeypatch: pytest.MonkeyPatch, find: Callable[[Any], Found]) -> list[Any]:
    """From now on `find` answers every question; the questions, as they come."""
    asked: list[Any] = []

    def look(self: asking.Asker, question: Any) -> Found:
        asked.append(question)
        return find(question)

    monkeypatch.setattr(asking.Asker, "look", look)
    return asked
