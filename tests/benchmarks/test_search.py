"""The benchmark of the search: what it says of a small space, against brute force."""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from benchmarks.search import drive
from benchmarks.search.__main__ import main
from benchmarks.search.drive import Recorded, curve
from fusiond.model.nouns import Config
from fusiond.tuning.search.study import Study
from fusiond_replay import t4


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Twelve configs, two of which fail; the first samples are warm-ups."""
    lines: list[Any] = [{"replay": 1, "name": "small", "parameters": {"x": [0, 1, 2, 3], "y": ["a", "b", "c"]}}]
    for x, y in itertools.product(range(4), range(3)):
        time = 1.0 + x + 3 * y
        lines.append([[x, y], "runtime" if (x, y) in ((0, 0), (3, 2)) else [99, 99, 99, time, time, time], 0.5])
    path = tmp_path / "small.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    return path


@pytest.mark.parametrize("sampler", ["gp", "tpe", "random", "optuna:tpe"])
def test_a_line_for_each_search(small: Path, sampler: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(small), "--trials", "8", "--seeds", "2", "--sampler", sampler, "--json", "--ahead", "2"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["pack"], each["seed"], each["sampler"]) for each in found] == [("small", k, sampler) for k in (0, 1)]
    assert all(each["share"] == {"25": None, "50": None, "100": None} for each in found)
    assert all(each["trials_to_95"] is None or 1 <= each["trials_to_95"] <= 8 for each in found)


def test_random_choice_exactly(small: Path) -> None:
    """The mean over every way to draw three of the twelve."""
    recorded = Recorded(t4.read(small))
    best = [
        max((recorded.best_us / recorded.true_us[each] for each in drawn if each in recorded.true_us), default=0.0)
        for drawn in itertools.combinations(recorded.rows, 3)
    ]
    expected, near = drive.at_random(recorded, 3)
    assert expected == pytest.approx(statistics.mean(best))
    assert near == pytest.approx(statistics.mean(share >= drive.NEAR for share in best))
    assert drive.at_random(recorded, 12) == pytest.approx((1.0, 1.0))


def test_the_answer_is_the_best_of_the_finalists(small: Path) -> None:
    recorded = Recorded(t4.read(small))
    order = [Config.of({"x": x, "y": "abc"[y]}) for x, y in ((3, 2), (3, 1), (1, 1), (2, 0), (1, 0))]
    found = curve(recorded, order, 7)
    assert found.shares == pytest.approx((0, 2 / 7, 2 / 5, 2 / 3, 1, 1, 1))
    assert found.trials_to_near == 5
    recorded.told_us[order[4]] = 10**9  # told wrong, and no finalist
    assert curve(recorded, order, 5).shares[-1] == pytest.approx(2 / 3)


def test_asks_ahead_are_out_at_once(small: Path) -> None:
    recorded = Recorded(t4.read(small))
    seen: list[int] = []

    class Watched(Study):
        def next(self) -> Any:
            ask = super().next()
            seen.append(len(self._out))
            return ask

    tried = list(drive.study(recorded, functools.partial(Watched, seed=0), trials=9, ahead=4))
    assert len(set(tried)) == 9
    assert max(seen) == 4
