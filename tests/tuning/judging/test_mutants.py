"""Without a defence, the cheat that it is there for is right: so each of them is needed, and is what catches it."""

from pathlib import Path

import pytest

from fusiond.requests.registry import Registry
from tests.tuning.judging.rulings import weakened
from tests.tuning.judging.table import CHEATED

CAUGHT_BY = {
    "axpy-nothing": (
        "poison",
        "stale runs",
        "bounds",
    ),  # what nvcc makes of it is run again, from poisoned outputs, too
    "axpy-once-ptx": ("second run", "state", "bounds", "odd"),
    "axpy-whole_blocks": ("odd",),
    "axpy-given_size": ("odd",),
    "axpy-last_one": ("odd",),
    "softmax-even_part": ("odd",),
    "squash-half": ("precision",),
    "squash-linear": ("precision",),
    "axpy-scribbles_later": ("inputs", "bounds"),
    "matmul-as_half": ("precision",),
    "matmul-as_bfloat16": ("precision",),
    "matmul-as_tf32": ("precision",),
    "matmul-sum_as_half": ("precision",),
    "axpy-writes_behind": ("guards", "bounds"),
    "axpy-writes_before": ("guards", "bounds"),
    "axpy-reads_behind": ("bounds",),
    "axpy-reads_before": ("bounds",),
    "axpy-reads_vector_behind": ("bounds",),
    "bins-not_atomic": ("races", "bounds"),
    "axpy-recognises": ("fresh seeds",),
    "axpy-kept": ("stale runs",),
    "axpy-kept_by_block": ("stale runs",),
    "prefix-memo_in_scratch": ("stale runs",),
    "axpy-memo_by_value-ptx": ("state",),
    "axpy-by_address": ("places", "bounds"),
    "axpy-recognises_by_hash": ("fresh seeds",),
}
"""Title -> the defences that catch it. With any one of them it is wrong; without all of them it is right."""
BY_TITLE = {each.title: each for each in CHEATED}


@pytest.mark.needs_nvcc
@pytest.mark.sampled(3)
@pytest.mark.parametrize("title", CAUGHT_BY)
def test_without_its_defence_a_cheat_is_right(
    title: str, real: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = weakened(monkeypatch, real, BY_TITLE[title], tmp_path, CAUGHT_BY[title])
    assert found.problem is None
