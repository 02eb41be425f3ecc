"""Seeds that no candidate can know, and the same ones in each run of a test: a ruling would differ by chance otherwise,
such as where a constant happens to be within the tolerance of one sum in a thousand."""

import random
import secrets

import pytest


@pytest.fixture(autouse=True)
def drawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    of_test = random.Random(request.node.nodeid)
    monkeypatch.setattr(secrets, "randbits", of_test.getrandbits)
