"""The transfer fusion paper's tables 4 to 6: `python -m benchmarks.transfer`.

python -m benchmarks.transfer                          on this machine's GPU: tables 5 and 6, 4K to 4M elements, and
                                                       what chunks gain from 64 MB to 1 GB
python -m benchmarks.transfer --overlap                the last of these only
python -m benchmarks.transfer --only fig2 horner       only these graphs
python -m benchmarks.transfer --device cpu --quick     try it out; its times are emulated, and no results
python -m benchmarks.transfer --planning               table 4, and planning for up to 100,000 kernels; no device
python -m benchmarks.transfer --page                   docs/results-transfer.md from the JSON files that are kept
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import commands, runs
from benchmarks.commands import say
from benchmarks.runs import RESULTS, Run
from benchmarks.transfer import measure, overlap, page, paper, planning

QUICK_LENGTHS = (4096,)
QUICK_OVERLAP = (1 << 18,)


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 done, 2 the request was wrong."""
    parser = _parser()
    given = parser.parse_args(argv)

    def do() -> None:
        commands.check_only(given, measure.GRAPHS, "graph")
        if given.page:
            commands.page(page.PAGE, page.render(kept()), kept())
        elif given.planning:
            _plan(given)
        else:
            _measure(given, commands.said(parser, given, ("device", "only", "overlap", "quick")))

    return commands.status(do)


def _parser() -> argparse.ArgumentParser:
    parser = commands.parser("transfer", __doc__, quick="vectors of 4K elements only")
    parser.add_argument("--planning", action="store_true", help="table 4 and growth, and nothing else")
    parser.add_argument(
        "--overlap", nargs="*", type=int, metavar="ELEMENTS",
        help="what chunks gain on a device, and nothing else; default: 64 MB to 1 GB",
    )  # fmt: skip
    commands.only(parser, measure.GRAPHS)
    return parser


def kept(folder: Path = RESULTS) -> Iterator[Run]:
    """Every run of this benchmark that is kept under a folder."""
    return runs.kept("transfer", folder)


def _plan(given: argparse.Namespace) -> None:
    run = runs.new("transfer", paper.CITATION, "python -m benchmarks.transfer --planning", "planning", {})
    run |= {"table_4": planning.table_4(say), "growth": planning.growth(say), "cg_step": planning.cg_step()}
    _write(given.out or RESULTS / "cpu", run)


def _measure(given: argparse.Namespace, command: str) -> None:
    place = commands.place("transfer", given, without="--planning")
    run = runs.new("transfer", paper.CITATION, command, place.device.evidence, place.described())
    lengths = QUICK_LENGTHS if given.quick else paper.LENGTHS
    bench = measure.Bench(provider=place.provider, device=place.device, lengths=lengths, say=say)
    run |= {"table_5": [], "table_6": [], "overlap": []}
    run, where = commands.begun(place.folder, given, run)
    for key, names, counted in (("table_5", measure.GRAPHS, False), ("table_6", measure.COUNTED, True)):
        wanted = [name for name in names if given.overlap is None and (not given.only or name in given.only)]
        for row in measure.table(bench, wanted, counted=counted):
            commands.put(run[key], row, "graph", "elements", "memory")
            runs.write(where, run)
    chunked = given.overlap or (QUICK_OVERLAP if given.quick else overlap.LENGTHS)
    for row in overlap.table(bench, lengths=chunked) if not given.only else ():
        commands.put(run["overlap"], row, "elements")
        runs.write(where, run)
    say(f"wrote {where}")


def _write(folder: Path, run: Run) -> None:
    where = runs.path(folder, run)
    runs.write(where, run)
    say(f"wrote {where}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
