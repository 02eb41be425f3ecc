"""Counts what a bundle's launches would do on a GPU: `python -m fusiond.devices.cpu.count BUNDLE [--json]`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from fusiond.bundle import read_bundle
from fusiond.counting.kernels import CountError
from fusiond.counting.run import Row, count
from fusiond.errors import FusiondError, RequestError
from fusiond.program import SourceKind, problems

_COLUMNS = ("global_read_bytes", "global_write_bytes", "read_sectors", "write_sectors", "minimal_bytes", "dram_bytes")


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 counted, 1 some launch was not, 2 the request was wrong."""
    parser = argparse.ArgumentParser(prog="python -m fusiond.devices.cpu.count")
    parser.add_argument("bundle", type=Path, help="a folder with a plan.json; its binaries are not needed")
    parser.add_argument("--json", action="store_true", help="one row a launch, as JSON")
    parser.add_argument("--seed", type=int, default=0, help="of the fills; default: 0")
    given = parser.parse_args(argv)
    try:
        plan, binaries = read_bundle(given.bundle)
        wrong = problems(plan)
        if wrong:
            raise RequestError(f"plan.json is no Program that can run: {wrong[0]}", where=str(given.bundle))
        hosts = {each.name for each in plan.sources if each.kind is SourceKind.HOST}
        built = {name: path for name, path in binaries.items() if name in hosts}
        rows = count(plan, label=plan.name, seed=given.seed, host=built).rows
    except CountError as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    except FusiondError as problem:
        sys.stderr.write(f"{problem}\n")
        return problem.exit_status
    if given.json:
        sys.stdout.write(json.dumps({"counted": [dataclasses.asdict(each) for each in rows]}, indent=1) + "\n")
    else:
        sys.stdout.write("".join(f"{_line(each)}\n" for each in rows))
    return 1 if any(each.failed for each in rows) else 0


def _line(row: Row) -> str:
    if row.failed:
        return f"{row.launch} ({row.kernel}): {row.failed}"
    figures = (f"{name.replace('_', ' ')} {getattr(row, name):,}" for name in _COLUMNS)
    return f"{row.launch} ({row.kernel}): {', '.join(figures)}"
