"""The referee and kernels that cheat, in every way that is known: each is wrong, and `problem` says why. Honest second
forms of the same kernels are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusiond.registry import Registry
from tests.judging.asking import asked
from tests.judging.table import CHEATED, CHEATS, HONEST, Cheat

WAYS = (
    "left from the last run", "computed once", "tail", "odd size", "constant output", "input mutated",
    "precision lowered", "out of bounds", "race", "hang", "child kernel", "inputs recognised", "address",
    "never written",
)  # fmt: skip


@pytest.mark.needs_nvcc
@pytest.mark.parametrize("cheat", CHEATED, ids=lambda cheat: cheat.title)
def test_a_cheat_is_wrong(cheat: Cheat, real: Registry, tmp_path: Path) -> None:
    found = asked(real, cheat, tmp_path)
    assert not found.right
    assert found.speedup is None
    assert found.problem is not None
    assert "\n" not in found.problem
    for words in cheat.words:
        assert words in found.problem


@pytest.mark.needs_nvcc
@pytest.mark.parametrize("cheat", HONEST, ids=lambda cheat: cheat.title)
def test_an_honest_second_form_is_right(cheat: Cheat, real: Registry, tmp_path: Path) -> None:
    found = asked(real, cheat, tmp_path)
    assert found.problem is None
    assert found.right


def test_every_way_has_a_cheat_and_every_file_is_used() -> None:
    assert {each.way for each in CHEATED} == set(WAYS)
    used = {(each.kernel, each.source) for each in (*CHEATED, *HONEST)}
    assert used == {(path.parent.name, path.stem) for path in CHEATS.glob("*/*.cu")}
    titles = [each.title for each in CHEATED]
    assert len(set(titles)) == len(titles)
