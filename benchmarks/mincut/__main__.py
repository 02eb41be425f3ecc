"""The min-cut paper's six applications on the device at hand: `python -m benchmarks.mincut`.

    python -m benchmarks.mincut                            on this machine's GPU, at the paper's sizes
    python -m benchmarks.mincut --only sobel unsharp       only these
    python -m benchmarks.mincut --device cpu --quick       try it out; its times are emulated, and no results
    python -m benchmarks.mincut --counted                  what the kernels ask of a GPU, counted; needs nvcc, no GPU
    python -m benchmarks.mincut --page                     docs/results-mincut.md from the JSON files that are kept

Everything is written as JSON, one file for each run, after each application.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from benchmarks import commands, runs
from benchmarks.commands import say
from benchmarks.mincut import counted, measure, page, paper
from benchmarks.runs import RESULTS, Run
from fusiond.build.cache import default_folder
from fusiond.model.inputs import documents
from fusiond.store.database import Store
from fusiond_mincut.frontend import parser
from fusiond_mincut.frontend.graph import Pipeline
from fusiond_mincut.plugin import PIPELINES

TRIALS, BLOCKS = 48, 16
QUICK_TRIALS, QUICK_BLOCKS, QUICK_SIZES = 4, 0, "sizes: {width: 96, height: 64}\n"

SAID = ("device", "only", "quick", "trials", "blocks", "search-secs")  #: The options that are kept with a run


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 done, 2 the request was wrong."""
    parser = _parser()
    given = parser.parse_args(argv)

    def do() -> None:
        commands.check_only(given, paper.APPLICATIONS, "application")
        names = given.only or list(paper.APPLICATIONS)
        if given.page:
            commands.page(page.PAGE, page.render(kept()), kept())
        elif given.counted:
            run = runs.new("mincut", paper.CITATION, "python -m benchmarks.mincut --counted", "counted", {})
            found = counted.run({name: pipeline(name) for name in names}, say)
            runs.write((given.out or RESULTS / "cpu") / "mincut-counted.json", run | {"counted": found})
        else:
            _measure(names, given, commands.said(parser, given, SAID))

    return commands.status(do)


def _parser() -> argparse.ArgumentParser:
    parser = commands.parser("mincut", __doc__, quick="small images, few trials")
    commands.only(parser, paper.APPLICATIONS)
    parser.add_argument("--counted", action="store_true", help="count what the kernels ask of a GPU, and nothing else")
    parser.add_argument("--trials", type=int, help=f"of each job; default: {TRIALS}, with --quick {QUICK_TRIALS}")
    parser.add_argument("--blocks", type=int, help=f"measured by themselves; default: {BLOCKS}, with --quick none")
    parser.add_argument("--search-secs", type=float, default=1800, help="of each job, before its finals")
    parser.add_argument("--store", type=Path, metavar="FILE", help="the tuner's store for this benchmark")
    return parser


def pipeline(name: str) -> Pipeline:
    """An application at the paper's size."""
    path = PIPELINES / f"{name}.yaml"
    return parser.read(documents.parse(path.read_text(encoding="utf-8"), str(path)))


def kept(folder: Path = RESULTS) -> Iterator[Run]:
    """Every run of this benchmark that is kept under a folder."""
    return runs.kept("mincut", folder)


def _measure(names: Sequence[str], given: argparse.Namespace, command: str) -> None:
    place = commands.place("mincut", given, without="--counted", small="small images and ")
    run = runs.new("mincut", paper.CITATION, command, place.device.evidence, place.described())
    run["applications"] = []
    run, where = commands.begun(place.folder, given, run)
    store = given.store or (place.folder if place.emulated else default_folder() / "benchmarks") / "mincut.sqlite"
    with closing(Store.open(store)) as opened:
        opened.recover()
        bench = measure.Bench(
            registry=place.registry,
            store=opened,
            provider=place.provider,
            device=place.device,
            trials=given.trials or (QUICK_TRIALS if given.quick else TRIALS),
            blocks=given.blocks if given.blocks is not None else QUICK_BLOCKS if given.quick else BLOCKS,
            search_secs=given.search_secs,
            sizes=QUICK_SIZES if given.quick else "",
            say=say,
        )
        for name in names:
            say(name)
            commands.put(run["applications"], measure.application(bench, name), "application")
            runs.write(where, run)
    say(f"wrote {where}" + (" (emulated)" if place.emulated else ""))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
