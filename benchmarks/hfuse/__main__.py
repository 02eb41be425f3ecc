"""The horizontal fusion paper's figures 7 to 9 on the device at hand: `python -m benchmarks.hfuse`.

    python -m benchmarks.hfuse                            on this machine's GPU: sweeps, counters, plots
    python -m benchmarks.hfuse --pairs hist+maxpool       only these
    python -m benchmarks.hfuse --arch sm_90               what is known without a GPU
    python -m benchmarks.hfuse --device cpu --quick       try it out; its times are emulated, and no results
    python -m benchmarks.hfuse --page                     docs/results-hfuse.md from the JSON files that are kept

A measured run takes hours (--quick: a fraction); one that is stopped goes on from its store. Everything is written as
JSON, one file for each run, after each pair.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from benchmarks.hfuse import measure, page, pairs, plots, results, static
from benchmarks.hfuse.pairs import Pair
from fusiond.build import nvcc
from fusiond.build.cache import default_folder
from fusiond.errors import FusiondError, RequestError
from fusiond.model import DeviceInfo
from fusiond.planning import choose_device
from fusiond.registry import Registry
from fusiond.store.database import Store

TRIALS, QUICK_TRIALS = 64, 12
SPACE = "batchnorm+hist"
"""The paper's motivating example."""
QUICK_TEXTS = 4


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 done, 2 the request was wrong."""
    given = _parser().parse_args(argv)
    try:
        if given.page:
            page.PAGE.write_text(page.render(results.kept()))
            _say(f"wrote docs/{page.PAGE.name}")
            return 0
        wanted = pairs.chosen(given.pairs)
        registry = Registry.load()
        if given.arch:
            _static(registry, wanted, given, _command(given))
        else:
            _measure(registry, wanted, given, _command(given))
    except (FusiondError, ValueError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hfuse", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto", help="cuda:0, cpu; default: this machine's GPU")
    parser.add_argument("--arch", metavar="sm_90", help="static facts for this architecture; runs nothing")
    parser.add_argument("--pairs", nargs="+", default=[], metavar="A+B", help="default: all 16")
    parser.add_argument("--quick", action="store_true", help="few points, few trials: to see that it works")
    parser.add_argument("--trials", type=int, help=f"of each job; default: {TRIALS}, with --quick {QUICK_TRIALS}")
    parser.add_argument("--space", nargs="*", metavar="A+B", help=f"with --arch: whose space; default: {SPACE}")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where JSON and plots go; default: benchmarks/results")
    parser.add_argument("--store", type=Path, metavar="FILE", help="the tuner's store for this benchmark")
    parser.add_argument("--no-plots", action="store_true")
    parser.add_argument("--page", action="store_true", help="write docs/results-hfuse.md, and nothing else")
    return parser


def _command(given: argparse.Namespace) -> str:
    """The command as it is kept: without the folders of this machine."""
    words = ["python -m benchmarks.hfuse"]
    words += [f"--arch {given.arch}"] if given.arch else []
    words += [f"--device {given.device}"] if given.device != "auto" else []
    words += [f"--pairs {' '.join(given.pairs)}"] if given.pairs else []
    words += ["--quick"] if given.quick else []
    words += [f"--trials {given.trials}"] if given.trials else []
    words += [" ".join(["--space", *given.space])] if given.space is not None else []
    return " ".join(words)


def _static(registry: Registry, wanted: Sequence[Pair], given: argparse.Namespace, command: str) -> None:
    if (missing := nvcc.missing()) is not None:
        raise RequestError(missing)
    run = results.new(command, "static", {"arch": given.arch})
    where = results.path(given.out or results.RESULTS / "static" / given.arch, run)
    run["generation"], run["spaces"] = [], []
    begun = time.perf_counter()
    for pair in wanted:
        run["pairs"].append(static.columns(registry, pair, given.arch))
        run["generation"].append(static.generation(registry, pair, given.arch))
        results.write(where, run)
        _say(f"{pair.name}: {run['generation'][-1]['median_ms']} ms a candidate")
    run["secs"] = round(time.perf_counter() - begun, 1)
    for pair in pairs.chosen([SPACE] if given.space is None else given.space) if given.space != [] else ():
        most = QUICK_TEXTS if given.quick else None
        run["spaces"].append(static.whole_space(registry, pair, given.arch, most_texts=most, say=_say))
    results.write(where, run)
    _say(f"wrote {where}")
    _draw(run, where.parent, given)


def _measure(registry: Registry, wanted: Sequence[Pair], given: argparse.Namespace, command: str) -> None:
    provider, device = choose_device(registry, given.device)
    emulated = device.evidence != "measured"
    if emulated and given.device == "auto":
        raise RequestError(
            "no GPU is here. What is known without one: --arch sm_90. To try the benchmark out with tiny sizes and "
            "emulated times, which are no results: --device cpu --quick"
        )
    run = results.new(command, device.evidence, _described(device))
    folder = given.out or (
        Path(tempfile.gettempdir()) / "fusiond-hfuse-emulated"
        if emulated
        else results.RESULTS / results.slug(device.model)
    )
    if emulated and folder.resolve().is_relative_to(results.RESULTS.resolve()):
        raise RequestError("emulated times are no results: name a folder outside benchmarks/results", where="--out")
    if emulated:
        _say("emulated: tiny sizes on the processor. Nothing that comes of this is a result")
    where = results.path(folder, run)
    store = given.store or (folder / "hfuse.sqlite" if emulated else default_folder() / "benchmarks" / "hfuse.sqlite")
    with closing(Store.open(store)) as opened:
        opened.recover()
        bench = measure.Bench(
            registry=registry,
            store=opened,
            provider=provider,
            device=device,
            factors=pairs.QUICK_FACTORS if given.quick else pairs.FACTORS,
            trials=given.trials or (QUICK_TRIALS if given.quick else TRIALS),
            say=_say,
        )
        for pair in wanted:
            run["pairs"].append(measure.sweep(bench, pair))
            results.write(where, run)
    _say(f"wrote {where}" + (" (emulated)" if emulated else ""))
    _draw(run, where.parent, given)


def _described(device: DeviceInfo) -> dict[str, object]:
    return {
        "name": device.name,
        "model": device.model,
        "arch": device.arch,
        "memory_bytes": device.memory_bytes,
        "mig": device.mig,
        "multiprocessors": device.limits.multiprocessors,
        "env": dict(device.env),
    }


def _draw(run: results.Run, folder: Path, given: argparse.Namespace) -> None:
    if given.no_plots:
        return
    if run["evidence"] == "emulated":
        _say("no plots: emulated times are never drawn")
        return
    try:
        written = plots.draw(run, folder)
    except ImportError:
        _say(plots.MISSING)
        return
    for each in written:
        _say(f"wrote {each}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
