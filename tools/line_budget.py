"""Lines of code by package, against the numbers of `[tool.line-budget]` in pyproject.toml: `python -m
tools.line_budget`.

A line is a line of a file under version control or not, blank ones and comments included (`wc -l`). Exit status 1, with
a line for each, where a package or a total has more than its number, or a package has none.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON, NATIVE = ("*.py",), ("*.cpp", "*.h", "*.cu", "*.cuh")
TOTALS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "product": (("fusiond", "plugins"), PYTHON),
    "native": (("fusiond", "plugins"), NATIVE),
    "tests": (("tests",), PYTHON),
    "benchmarks": (("benchmarks",), PYTHON),
    "tools": (("tools",), PYTHON),
}
"""Name -> folders and patterns."""
PACKAGES = ("fusiond/*/", "plugins/*/")


def lines(folder: Path, patterns: tuple[str, ...] = PYTHON) -> int:
    """How many lines the files of a folder have."""
    files = (file for pattern in patterns for file in folder.rglob(pattern))
    return sum(file.read_bytes().count(b"\n") for file in files)


def packages(root: Path) -> dict[str, int]:
    """The folders of the product -> their lines of Python."""
    found = sorted(each for pattern in PACKAGES for each in root.glob(pattern) if any(each.rglob("*.py")))
    return {str(each.relative_to(root)): lines(each) for each in found}


def totals(root: Path) -> dict[str, int]:
    return {name: sum(lines(root / each, patterns) for each in folders) for name, (folders, patterns) in TOTALS.items()}


def excesses(counts: Mapping[str, int], budget: Mapping[str, int]) -> Iterator[str]:
    """A line for each count that has no number or is above it, and for each number that counts nothing."""
    for name, count in counts.items():
        if name not in budget:
            yield f"{name} has no number in [tool.line-budget] of pyproject.toml"
        elif count > budget[name]:
            yield (
                f"{name} has {count:,} lines, {count - budget[name]:,} more than its budget of {budget[name]:,}:"
                " remove what can go, or raise the number in a commit of its own that says why"
            )
    yield from (f"{name} has a number, and there is no such folder" for name in budget if name not in counts)


def main() -> int:
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["line-budget"]
    counts = {**packages(ROOT), **totals(ROOT)}
    for name, count in counts.items():
        print(f"{count:8,} of {budget.get(name, 0):8,}  {name}")
    problems = list(excesses(counts, budget))
    for each in problems:
        print(each, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
