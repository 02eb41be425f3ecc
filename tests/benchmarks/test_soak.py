"""The soak: a moment of it in `make test`, two minutes in `make test-all`; an hour by request."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak import TOLERANCES, Sample, compared, soak


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("minutes", [0.04, pytest.param(2.0, marks=pytest.mark.campaign)])
def test_a_daemon_needs_no_more_at_the_end_than_at_the_beginning(tmp_path: Path, minutes: float) -> None:
    folder = tmp_path / "soak"
    folder.mkdir()
    found = soak(folder, minutes, seed=1)
    # In so short a time everything is still warming up: what must hold then is that every job is done, and right.
    wanted = [each for each in found["problems"] if minutes >= 2 or "what it was" not in each]
    assert wanted == [], found
    assert found["jobs"].keys() == {"done"}
    assert found["counts"]["children_killed"] > 0
    assert found["samples"]


def sample(**values: float) -> Sample:
    return Sample(at_secs=0.0, store_mb=1.0, **{name: values.get(name, 1) for name in TOLERANCES})  # type: ignore[arg-type]


def test_what_grows_is_seen() -> None:
    calm = [sample() for _ in range(8)]
    assert set(compared(calm).values()) == {1.0}
    leaking = [sample(descriptors=10 + number) for number in range(8)]
    assert compared(leaking)["descriptors"] > TOLERANCES["descriptors"]
    assert compared([sample(temporary_files=0)] * 6 + [sample(temporary_files=100)] * 2)["temporary_files"] == float(
        "inf"
    )
