"""The line budget: packages and totals against numbers that are planted; `make lint` holds this tree to its own."""

from pathlib import Path

from tools import line_budget


def test_lines_of_packages_and_totals(tmp_path: Path) -> None:
    for name, text in {
        "fusiond/store/a.py": "one\n\n# three\n",
        "fusiond/store/deep/b.py": "one\n",
        "fusiond/store/c.cpp": "one\ntwo\n",
        "fusiond/alone.py": "one\n",
        "fusiond/__pycache__/a.pyc": "one\n",
        "plugins/p/p.py": "one\ntwo\n",
        "tests/test_a.py": "one\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert line_budget.packages(tmp_path) == {"fusiond/store": 4, "plugins/p": 2}
    assert line_budget.totals(tmp_path) == {"product": 7, "native": 2, "tests": 1, "benchmarks": 0, "tools": 0}


def test_what_is_above_its_number_or_has_none() -> None:
    found = list(line_budget.excesses({"a": 10, "b": 11, "c": 1}, {"a": 10, "b": 10, "d": 5}))
    assert [each.split()[0] for each in found] == ["b", "c", "d"]
    assert "11 lines, 1 more than its budget of 10" in found[0]


def test_decisions_and_rooms_are_bounded() -> None:
    page = (line_budget.ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    assert page.count("\n### ") <= 60
    assert page.count("\n") <= 500
    rooms = [each for each in (line_budget.ROOT / "fusiond").iterdir() if each.is_dir() and each.name != "__pycache__"]
    assert len(rooms) <= 14, sorted(each.name for each in rooms)
