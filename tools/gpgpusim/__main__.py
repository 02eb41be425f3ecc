"""Compares, keeps the figures, and writes them into docs/counting.md: `python -m tools.gpgpusim [--page]`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import table
from fusiond.counting import library
from tools.gpgpusim.compare import cases, compare
from tools.gpgpusim.simulator import CONFIGURATION, NotSimulated, Simulator

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "benchmarks" / "results" / "static" / "gpgpusim.json"
PAGE = ROOT / "docs" / "counting.md"
BEGIN, END = "<!-- python -m tools.gpgpusim writes this table -->\n", "<!-- end of the table -->\n"
COLUMNS = {
    "warp_instructions": "PTX instructions of warps",
    "thread_instructions": "of threads",
    "read_sectors": "sectors read",
    "write_sectors": "written",
    "atomic_sectors": "atomic",
    "bank_conflicts": "bank conflicts",
    "dram_reads": "sectors read from DRAM",
}


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 done, 2 there is no simulator."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpgpusim", description=__doc__)
    parser.add_argument("--page", action="store_true", help="compare nothing, write the table from what is kept")
    if not parser.parse_args(argv).page:
        with tempfile.TemporaryDirectory() as work:
            try:
                simulator = Simulator(Path(work))
            except NotSimulated as problem:
                sys.stderr.write(f"{problem}\n")
                return 2
            loaded = library.load()
            rows = [dataclasses.asdict(compare(each, loaded, simulator)) for each in cases()]
        KEPT.write_text(json.dumps({"configuration": CONFIGURATION, "rows": rows}, indent=1) + "\n")
    PAGE.write_text(with_table(PAGE.read_text(), json.loads(KEPT.read_text())["rows"]))
    return 0


def with_table(page: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The page with these rows between its two marks."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + table(["kernel", *COLUMNS.values()], map(_row, rows)) + END + rest.partition(END)[2]


def _row(row: Mapping[str, Any]) -> list[str]:
    """A number where both agree, else ours, the simulator's, and by how much ours is more."""
    cells = [row["name"]]
    for key in COLUMNS:
        ours, theirs = row["counted"][key], row["simulated"][key]
        relative = f" ({100 * (ours / theirs - 1):+.1f} %)" if theirs else ""
        cells.append(str(ours) if ours == theirs else f"{ours} : {theirs}{relative}")
    return cells


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
