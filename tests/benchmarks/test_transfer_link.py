"""Chunks on a timed link: the share of the ideal, which the benchmark publishes."""

from __future__ import annotations

import pytest

from benchmarks.transfer import link, page


@pytest.mark.slow
def test_chunks_come_near_their_ideal(gxx_here: None) -> None:
    """Copies take what the link says; of the kernels only the share of each chunk matters."""
    rows = link.table(lambda line: None, lengths=(1 << 20,), counts=(4,))
    assert [each["late"] for each in rows] == [False, True]
    for row in rows:
        assert 0.9 < row["share_of_ideal"] <= 1.01
        assert row["chunked_us"] < row["whole_us"]
    run = {"date": "2026-11-25T", "command": "x", "link": rows}
    assert "| 1,048,576 | the last ready | 4 |" in page._link(run)


@pytest.mark.slow
def test_a_plan_that_waits_for_everything_is_seen(gxx_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = link._loaded
    monkeypatch.setattr(link, "_loaded", lambda plan, count, over: loaded(plan, 1, over))
    rows = link.table(lambda line: None, lengths=(1 << 20,), counts=(4,))
    assert all(row["share_of_ideal"] < 0.7 for row in rows)
