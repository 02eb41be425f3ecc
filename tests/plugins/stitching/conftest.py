"""What the tests of stitching share."""

from __future__ import annotations

from pathlib import Path

import pytest

from .running import Runner


@pytest.fixture(scope="session")
def runner(scheduler_library: Path, shared_cache: Path) -> Runner:
    """Runs Programs on the processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUSIOND_CACHE", str(shared_cache))
        return Runner(shared_cache)
