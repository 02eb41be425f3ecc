"""What the tests of stitching share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fusiond_stitching.frontend import short_sorts

from .running import Runner


@pytest.fixture(scope="session")
def runner(scheduler_library: Path, shared_cache: Path) -> Runner:
    """Runs Programs on the processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUSIOND_CACHE", str(shared_cache))
        return Runner(shared_cache)


@pytest.fixture(scope="module")
def sorts_are_boundaries() -> Iterator[None]:
    """A sort is what a library does, however short its rows: for tests of boundaries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(short_sorts, "LONGEST", 0)
        yield
