"""What is kept of the traffic at the sizes of models: all functions, the page, and the goals that were reached."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import runs
from benchmarks.pages import DOCS

traffic = pytest.importorskip("benchmarks.stitching.traffic", reason="needs jax")


@pytest.fixture
def kept() -> Any:
    return json.loads((runs.RESULTS / "static" / "stitching-traffic-h100.json").read_text(encoding="utf-8"))


def test_the_page_is_what_is_kept(kept: Any) -> None:
    assert list(kept["functions"]) == list(traffic.FUNCTIONS)
    assert (DOCS / "results-stitching-sizes.md").read_text(encoding="utf-8") == traffic.page(kept)


def test_norms_softmax_and_adam_move_next_to_the_least(kept: Any) -> None:
    for name in ("softmax", "layer norm", "layer norm, backward", "RMS norm, bf16", "RMS norm, bf16, backward", "Adam"):
        found = kept["functions"][name]
        assert found["plans"]["packed"]["dram_bytes"] <= 1.05 * found["least_bytes"], name


def test_rows_in_registers_are_never_worse(kept: Any) -> None:
    for name, found in kept["functions"].items():
        first, shared = (found["plans"][label]["dram_bytes"] for label in traffic.PLANS)
        assert first <= 1.05 * shared, name
