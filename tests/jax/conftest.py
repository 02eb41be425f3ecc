"""Answers without measuring, and no daemon."""

from typing import Any

import pytest

from fusiond.service.frameworks import region_answers
from tests.service.frameworks.answered import answered, db

__all__ = ["answered", "db"]


@pytest.fixture(autouse=True)
def nothing_is_handed_in(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """No daemon of this machine is asked."""
    handed: list[Any] = []
    monkeypatch.setattr(region_answers.Asker, "_submit", lambda self, question: handed.append(question))
    return handed
