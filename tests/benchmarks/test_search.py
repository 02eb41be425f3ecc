"""The benchmark of the search: what it says of a small space, against brute force."""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.search import community, constants, cost, drive, page, samplers
from benchmarks.search.__main__ import main
from benchmarks.search.drive import Recorded, curve
from fusiond.model import Config
from fusiond.search import sampler, values
from fusiond.search.study import Study
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


def test_a_table_without_json(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(small), "--trials", "30", "--seeds", "1", "--sampler", "gp"]) == 0
    said = capsys.readouterr().out
    assert "| gp (1) | 1.000 |" in said
    assert "| random (exactly) | 1.000 | 1.000 | 1.000 | 100% | 100% |" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sampler", "gpp"], "--sampler: unknown sampler 'gpp'; did you mean 'gp'?"),
        (["--trials", "0"], "--trials: is 0; it must be at least 1"),
    ],
)
def test_a_wrong_request_is_one_line(
    small: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(small), *words]) == 2
    assert capsys.readouterr().err == f"{said}\n"
    assert main([str(small.parent / "gone")]) == 2
    assert capsys.readouterr().err == f"{small.parent / 'gone'}: cannot be read: No such file or directory\n"
    assert main([]) == 2


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


def test_donors_are_spaces_of_the_same_parameters(small: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl.gz"
    other.write_bytes(small.read_bytes())
    spaces = [Recorded(t4.read(small)), Recorded(t4.read(other))]
    tried = samplers.named(samplers.DONORS, spaces)(spaces[0], 0, 6, 1)
    assert curve(spaces[0], tried, 6).trials_to_near == 1
    assert samplers.named(samplers.DONORS, spaces[:1])(spaces[0], 0, 6, 1) == ()


def test_the_best_so_far_at_each_second(small: Path) -> None:
    """Each config takes half a second; what failed takes as long, and brings nothing."""
    recorded = Recorded(t4.read(small))
    order = [Config.of({"x": x, "y": "abc"[y]}) for x, y in ((3, 2), (3, 1), (1, 1), (2, 0), (1, 0))]
    seconds = np.array([0.0, 0.4, 0.6, 1.0, 1.2, 1.6, 2.1, 2.6, 9.0])
    found = community._best_ms(recorded, order, seconds, 10.0)
    assert found.tolist() == [10, 10, 10, 7, 7, 5, 3, 2, 2]


def test_the_community_s_score(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the optimum at once 1, of random choice about 0; of what never comes to anything far below."""
    pytest.importorskip("autotuning_methodology", reason="needs the community's score: pip install 'fusiond[peers]'")
    lines: list[Any] = [{"replay": 1, "name": "line", "parameters": {"x": list(range(400))}, "warmups": 0}]
    lines += [[[x], [1.0 + x], 0.5] for x in range(400)]
    path = small.parent / "line.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    recorded = Recorded(t4.read(path))
    order = list(recorded.rows)
    searches = [samplers.named("random", ())(recorded, seed, 100, 1) for seed in range(200)]
    assert community.score(recorded, [order[:100]]) > 0.9
    assert community.score(recorded, searches) == pytest.approx(0.0, abs=0.1)
    assert community.score(recorded, [order[:-100:-1]]) < -1
    assert main([str(path), "--sampler", "random", "--trials", "50", "--seeds", "2", "--score", "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)
    assert (said["pack"], said["sampler"], said["runs"], said["trials"]) == ("line", "random", 2, 50)


def test_every_ask_of_a_case_is_timed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(iter(cost.CASES.values()))
    small = cost.Case(name="small", space=case.space, trials=14, goal="none")
    monkeypatch.setattr(cost, "CASES", {"small": small})
    assert main(["--cost", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["trials"] == 14
    assert 0 < found["median_ms"] <= found["most_ms"]
    assert main(["--cost"]) == 0
    assert "| small |" in capsys.readouterr().out


def test_constants_are_chosen_in_the_other_spaces(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """START=6 is a gain in two of three spaces and a loss in the first, so only the first is searched with it, where
    the searches are those that were made before."""
    packs = [small, *(small.with_name(f"{name}.jsonl.gz") for name in ("second", "third"))]
    for each in packs[1:]:
        each.write_bytes(small.read_bytes())
    near = {"": (50, 50, 50), "sampler.START=6": (None, 20, 20), "sampler.START=16": (60, 60, 60)}
    spaces: list[Recorded] = []
    searched: list[tuple[str, int, int]] = []

    def search(setting: str, space: Recorded, seed: int) -> int | None:
        if space not in spaces:
            spaces.append(space)
        searched.append((setting, spaces.index(space), seed))
        return near[setting][spaces.index(space)]

    monkeypatch.setattr(constants, "TRIED", "sampler.START=6,16")
    monkeypatch.setattr(constants, "_searched", search)
    for _ in range(2):
        found = constants.main(small.with_name("found"), 2, packs)
        assert found[1] == ["sampler.START=6", "66.7%", "+30.0 ± 120.0"]
        assert found[3] == ["chosen in the other spaces", "66.7%", "+50.0 ± 100.0"]
        assert capsys.readouterr().out == "small: sampler.START=6\nsecond: as kept\nthird: as kept\n"
    assert sorted(searched) == sorted(itertools.product(near, range(3), range(2)))


def test_a_search_has_the_constants_that_are_named(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, seen = (sampler.START, values.CLIPPED), []
    monkeypatch.setattr(samplers, "own", lambda *given: seen.append((sampler.START, values.CLIPPED)) or ())
    recorded = Recorded(t4.read(small))
    assert constants._searched("sampler.START=6,values.CLIPPED=0.5", recorded, 0) is None
    assert seen == [(6, 0.5)]
    assert kept == (sampler.START, values.CLIPPED)


def test_the_page_is_what_is_kept() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.render(page.kept())
