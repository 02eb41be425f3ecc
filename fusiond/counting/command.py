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
from fusiond.counting.model import GPUS, gpu_named
from fusiond.counting.run import BUDGET, Row, count
from fusiond.errors import FusiondError
from fusiond.program import SourceKind

_COLUMNS = ("global_read_bytes", "global_write_bytes", "read_sectors", "write_sectors", "minimal_bytes", "dram_bytes")


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 counted, 1 some launch was not, 2 the request was wrong."""
    parser = argparse.ArgumentParser(prog="python -m fusiond.devices.cpu.count")
    parser.add_argument("bundle", type=Path, help="a folder with a plan.json; its binaries are not needed")
    parser.add_argument("--json", action="store_true", help="one row a launch, as JSON")
    parser.add_argument("--seed", type=int, default=0, help="of the fills; default: 0")
    parser.add_argument("--gpu", default="h100", help=f"one of {', '.join(GPUS)}; default: h100")
    parser.add_argument("--whole", action="store_true", help="run all blocks, however many there are")
    given = parser.parse_args(argv)
    try:
        plan, binaries = read_bundle(given.bundle)
        hosts = {each.name for each in plan.sources if each.kind is SourceKind.HOST}
        built = {name: path for name, path in binaries.items() if name in hosts}
        gpu, budget = gpu_named(given.gpu), None if given.whole else BUDGET
        rows = count(plan, label=plan.name, gpu=gpu, seed=given.seed, host=built, budget=budget).rows
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
    said = f"{row.launch} ({row.kernel}): {', '.join(figures)}, at least {row.bound_us or 0.0:,.1f} us ({row.binding})"
    if row.sampled == 1.0:
        return said
    return f"{said}, {row.sampled or 0.0:.1%} of the blocks run: up to {row.error or 0.0:.1%} off"
