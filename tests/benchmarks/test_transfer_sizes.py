"""Whole or in chunks by size on an emulated link: the sweep that the benchmark publishes."""

from __future__ import annotations

import os
from typing import Any

import pytest

from benchmarks.transfer import page, sizes
from fusiond.devices.cpu.link import VARIABLE, Link
from fusiond.errors import RequestError
from fusiond.store.trials import TrialLine

LINK = Link(bytes_per_us=1000.0, latency_us=50.0)


def _line(**config: Any) -> TrialLine:
    return TrialLine(id=1, sequence=1, role="search", origin="seed", outcome="measured", config=config, ratio=None,
                     time_us=1.0, reason="")  # fmt: skip


def test_the_kinds_of_ways() -> None:
    assert sizes._kind(_line(when="late", issue="overlapped")) == "separate"
    assert sizes._kind(_line(grouping="separate", issue="overlapped")) == "separate"
    assert sizes._kind(_line(grouping="interval_stabbing")) == "fused, whole"
    assert sizes._kind(_line(grouping="min_residency", chunks=1)) == "fused, whole"
    assert sizes._kind(_line(grouping="min_residency", chunks=2)) == "in chunks"


def test_all_vectors_together_have_the_size() -> None:
    for size in sizes.SIZES:
        graph = sizes.graph(size).build()
        crossing = [*graph.inputs, *graph.outputs]
        assert sum(int(graph.vector(name).size_bytes) for name in crossing) == size


def test_a_link_that_is_set_already_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "5GB/s,1us")
    with pytest.raises(RequestError, match="the sweep sets it itself"):
        next(sizes.table(lambda line: None, LINK))


@pytest.mark.campaign
def test_small_data_are_fused(gxx_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight messages of 50 us against two: at 4 KB bytes do not count, whatever the processor does beside it."""
    monkeypatch.setenv(VARIABLE, str(LINK))
    (row,) = sizes.table(lambda line: None, LINK, sizes=(4096,), trials=8)
    assert os.environ[VARIABLE] == str(LINK)
    assert row["winner"]["kind"] == "fused, whole"
    assert row["ways"]["separate"]["time_us"] > 1.5 * row["ways"]["fused, whole"]["time_us"]
    text = page._sizes({"date": "2026-11-26T", "command": "x", "sizes": [row]})
    assert "emulated" in text
    assert "| 4 KB | fused, whole |" in text
