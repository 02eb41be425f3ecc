"""docs/results-fusiond.md is what its generator makes of the files that are kept."""

from __future__ import annotations

import json

from benchmarks import __main__, page


def test_the_page_is_the_one_of_the_kept_results() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.render(page.read())


def test_every_benchmark_has_its_section_and_every_section_its_benchmark() -> None:
    assert sorted(name for name, _, _ in page.SECTIONS) == sorted(__main__.NAMES)
    words = page.render({})
    assert all(f"Not measured yet: `python -m benchmarks {name}`." in words for name in __main__.NAMES)


def test_figures_come_from_the_file() -> None:
    run = json.loads((page.KEPT / "best.json").read_text())
    run["result"]["ratio_name_to_bare"] = 12.34
    assert "12.34 times" in page.render({"best": run})
