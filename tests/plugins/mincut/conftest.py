"""Fixtures of the tests of image pipelines."""

from pathlib import Path

import pytest

from .running import Runner


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory, scheduler_library: Path) -> Runner:
    """Runs Programs on the processor."""
    return Runner(tmp_path_factory.mktemp("kernels"), scheduler_library)
