"""Counts what a bundle's launches would do on a GPU: `python -m fusiond.devices.cpu.count BUNDLE [--json]`."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusiond.build.exporting.bundle import read_bundle
from fusiond.devices.counting.cached import counted
from fusiond.devices.counting.kernels import CountError
from fusiond.devices.counting.model import GPUS, H100, gpu_named
from fusiond.devices.counting.run import BUDGET
from fusiond.model.errors import FusiondError, MachineFault, RequestError
from fusiond.model.program import problems
from fusiond.model.system import faults

_COLUMNS = ("global_read_bytes", "global_write_bytes", "read_sectors", "write_sectors", "minimal_bytes", "dram_bytes")


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 counted, 1 some launch was not, 2 the request was wrong."""
    parser = argparse.ArgumentParser(prog="python -m fusiond.devices.cpu.count")
    parser.add_argument("bundle", type=Path, help="a folder with a plan.json; its binaries are not needed")
    parser.add_argument("--json", action="store_true", help="one row a launch, as JSON")
    parser.add_argument("--seed", type=int, default=0, help="of the fills; default: 0")
    parser.add_argument("--gpu", default=H100.name, help=f"one of {', '.join(GPUS)}; default: {H100.name}")
    parser.add_argument("--whole", action="store_true", help="run all blocks, however many there are")
    parser.add_argument("--label", help="what `program` says in each row; default: the program's name")
    given = parser.parse_args(argv)
    try:
        plan, binaries = read_bundle(given.bundle)
        wrong = problems(plan)
        if wrong:
            raise RequestError(f"plan.json is not a Program that can run: {wrong[0]}", where=str(given.bundle))
        label = plan.name if given.label is None else given.label
        gpu = gpu_named(given.gpu)
        rows = counted(plan, gpu, label=label, seed=given.seed, host=binaries, budget=None if given.whole else BUDGET)
    except CountError as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    except FusiondError as problem:
        sys.stderr.write(f"{problem}\n")
        return faults.TEMPORARY if isinstance(problem, MachineFault) else problem.exit_status
    if given.json:
        sys.stdout.write(json.dumps({"counted": rows}, indent=1) + "\n")
    else:
        sys.stdout.write("".join(f"{_line(each)}\n" for each in rows))
    return 1 if any(each["failed"] for each in rows) else 0


def _line(row: Mapping[str, Any]) -> str:
    begin = f"{row['launch']} ({row['kernel']})"
    if row["failed"]:
        return f"{begin}: {row['failed']}"
    figures = (f"{name.replace('_', ' ')} {row[name]:,}" for name in _COLUMNS)
    said = f"{begin}: {', '.join(figures)}, at least {row['bound_us']:,.2f} us ({row['binding']})"
    if row["sampled"] == 1.0 and row["error"] == 0.0:
        return said
    off = "an unknown error" if row["error"] is None else f"up to {row['error']:.1%} off"
    return f"{said}, {row['sampled']:.1%} of the blocks run: {off}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
