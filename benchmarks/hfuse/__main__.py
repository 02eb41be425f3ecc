"""The horizontal fusion paper's figures 7 to 9 on the device at hand: `python -m benchmarks.hfuse`.

    python -m benchmarks.hfuse                            on this machine's GPU: sweeps and counters
    python -m benchmarks.hfuse --pairs hist+maxpool       only these
    python -m benchmarks.hfuse --arch sm_90               what is known without a GPU: registers, spills, occupancy
    python -m benchmarks.hfuse --counted h100             and what a GPU that is not here would pay
    python -m benchmarks.hfuse --device cpu --quick       try it out; its times are emulated, and no results
    python -m benchmarks.hfuse --page                     docs/results-hfuse.md from the JSON files that are kept

A measured run takes hours (--quick: a fraction); one that is stopped goes on from its store. Everything is written as
JSON, one file for each run, after each pair.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from benchmarks import commands, runs
from benchmarks.commands import Place, say
from benchmarks.hfuse import counted, measure, page, pairs, paper, static
from benchmarks.hfuse.pairs import Pair
from benchmarks.runs import RESULTS, Run
from fusiond.build import nvcc
from fusiond.build.cache import default_folder
from fusiond.devices.counting.model import GPUS, gpu_named
from fusiond.model.errors import RequestError
from fusiond.requests.registry import Registry
from fusiond.store.database import Store

TRIALS, QUICK_TRIALS = 64, 12
SPACE = "batchnorm+hist"  #: The paper's motivating example
QUICK_TEXTS = 4


SAID = ("arch", "counted", "device", "pairs", "quick", "factors", "trials", "search-secs", "space")
"""The options that are kept with a run."""


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 done, 2 the request was wrong."""
    parser = _parser()
    given = parser.parse_args(argv)

    def do() -> None:
        wanted = pairs.chosen(given.pairs)
        if given.page:
            commands.page(page.PAGE, page.render(kept()), kept())
        elif given.counted:
            _counted(wanted, given, commands.said(parser, given, SAID))
        elif given.arch:
            _static(wanted, given, commands.said(parser, given, SAID))
        else:
            _measure(wanted, given, commands.said(parser, given, SAID))

    return commands.status(do)


def _parser() -> argparse.ArgumentParser:
    parser = commands.parser("hfuse", __doc__, quick="few points, few trials")
    parser.add_argument("--arch", metavar="sm_90", help="static facts for this architecture; runs nothing")
    parser.add_argument("--counted", metavar="GPU", choices=tuple(GPUS), help=f"count for it: {', '.join(GPUS)}")
    parser.add_argument("--pairs", nargs="+", default=[], metavar="A+B", help="default: all 16")
    parser.add_argument("--factors", nargs="+", type=float, metavar="X", help="points of a sweep, round its middle: 1")
    parser.add_argument("--search-secs", type=float, default=1800, help="of each job, before its finals")
    parser.add_argument("--trials", type=int, help=f"of each job; default: {TRIALS}, with --quick {QUICK_TRIALS}")
    parser.add_argument("--space", nargs="*", metavar="A+B", help=f"with --arch: whose space; default: {SPACE}")
    parser.add_argument("--store", type=Path, metavar="FILE", help="the tuner's store for this benchmark")
    return parser


def kept(folder: Path = RESULTS) -> Iterator[Run]:
    """Every run of this benchmark that is kept under a folder."""
    return runs.kept("hfuse", folder)


def new(command: str, evidence: str, device: dict[str, object]) -> Run:
    """A run without pairs yet."""
    return runs.new("hfuse", paper.CITATION, command, evidence, device) | {"pairs": []}


def _static(wanted: Sequence[Pair], given: argparse.Namespace, command: str) -> None:
    if (missing := nvcc.missing()) is not None:
        raise RequestError(missing)
    registry = Registry.load()
    run = new(command, "static", {"arch": given.arch})
    where = runs.path(given.out or RESULTS / "static" / given.arch, run)
    run["generation"], run["spaces"] = [], []
    begun = time.perf_counter()
    for pair in wanted:
        run["pairs"].append(static.columns(registry, pair, given.arch))
        run["generation"].append(static.generation(registry, pair, given.arch))
        runs.write(where, run)
        say(f"{pair.name}: {run['generation'][-1]['median_ms']} ms a candidate")
    run["secs"] = round(time.perf_counter() - begun, 1)
    for pair in pairs.chosen([SPACE] if given.space is None else given.space) if given.space != [] else ():
        most = QUICK_TEXTS if given.quick else None
        run["spaces"].append(static.whole_space(registry, pair, given.arch, most_texts=most, say=say))
    runs.write(where, run)
    say(f"wrote {where}")


def _counted(wanted: Sequence[Pair], given: argparse.Namespace, command: str) -> None:
    if (missing := nvcc.missing()) is not None:
        raise RequestError(missing)
    gpu = gpu_named(given.counted)
    registry = Registry.load()
    folder = given.out or RESULTS / "counted" / gpu.name
    run, where = commands.begun(folder, given, new(command, "counted", {"model": gpu.name, "arch": gpu.arch}))
    begun = time.perf_counter() - run.get("secs", 0.0)
    for pair in wanted:
        commands.put(run["pairs"], counted.columns(registry, pair, gpu), "pair")
        run["secs"] = round(time.perf_counter() - begun, 1)
        runs.write(where, run)
        say(f"{pair.name}: {run['secs']} s")
    say(f"wrote {where}")


def _measure(wanted: Sequence[Pair], given: argparse.Namespace, command: str) -> None:
    place = commands.place("hfuse", given, without="--arch sm_90", small="tiny sizes and ")
    run, where = commands.begun(place.folder, given, new(command, place.device.evidence, _described(place)))
    if place.emulated:
        say("emulated: tiny sizes on the processor. Nothing that comes of this is a result")
    store = given.store or (place.folder if place.emulated else default_folder() / "benchmarks") / "hfuse.sqlite"
    with closing(Store.open(store)) as opened:
        opened.recover()
        bench = measure.Bench(
            registry=place.registry,
            store=opened,
            provider=place.provider,
            device=place.device,
            factors=given.factors or (pairs.QUICK_FACTORS if given.quick else pairs.FACTORS),
            search_secs=given.search_secs,
            trials=given.trials or (QUICK_TRIALS if given.quick else TRIALS),
            say=say,
        )
        for pair in wanted:
            commands.put(run["pairs"], measure.sweep(bench, pair), "pair")
            runs.write(where, run)
    say(f"wrote {where}" + (" (emulated)" if place.emulated else ""))


def _described(place: Place) -> dict[str, object]:
    device = place.device
    return place.described() | {
        "memory_bytes": device.memory_bytes,
        "mig": device.mig,
        "multiprocessors": device.limits.multiprocessors,
    }


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
