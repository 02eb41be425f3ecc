"""FusionStitching's figures 7 and 8 and table 3: `python -m benchmarks.stitching`.

python -m benchmarks.stitching                          on this machine's GPU: whole and fusable times of all modules
python -m benchmarks.stitching --only lr_step nmt_fig3  only these modules
python -m benchmarks.stitching --device cpu --quick     try it out; its times are emulated, and no results
python -m benchmarks.stitching --device cpu --quick --xla cpu      the same with XLA's executable for the processor
python -m benchmarks.stitching --arch sm_90             kernels, bytes and planning times; no device
python -m benchmarks.stitching --page                   docs/results-stitching.md from the JSON files that are kept
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import commands, runs
from benchmarks.commands import say
from benchmarks.runs import RESULTS, Run
from benchmarks.stitching import measure, modules, page, paper, static, xla
from fusiond.model.errors import RequestError
from fusiond.requests.planning import target_for_arch


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 done, 2 the request was wrong."""
    parser = _parser()
    given = parser.parse_args(argv)
    known = (*modules.names(), *modules.large())

    def do() -> None:
        commands.check_only(given, known, "module")
        if given.page:
            commands.page(page.PAGE, page.render(kept()), kept())
        elif given.arch:
            _static(given)
        else:
            _measure(given, commands.said(parser, given, ("device", "only", "xla", "quick")))

    return commands.status(do)


def _parser() -> argparse.ArgumentParser:
    parser = commands.parser("stitching", __doc__, quick="few samples")
    parser.add_argument("--arch", metavar="sm_90", help="what is known for this architecture without a device")
    commands.only(parser, (*modules.names(), *modules.large()))
    parser.add_argument(
        "--xla", default="auto", choices=("auto", "cuda", "cpu", "off"),
        help="where XLA's own executable is timed beside ours; default: on this GPU, if jax sees one",
    )  # fmt: skip
    return parser


def kept(folder: Path = RESULTS) -> Iterator[Run]:
    """Every run of this benchmark that is kept under a folder."""
    return runs.kept("stitching", folder)


def _static(given: argparse.Namespace) -> None:
    limits = target_for_arch(given.arch).limits
    command = f"python -m benchmarks.stitching --arch {given.arch}"
    run = runs.new("stitching", paper.CITATION, command, "static", {"arch": given.arch})
    run["multiprocessors"] = limits.multiprocessors
    run["xla"] = {key: modules.xla()[key] for key in ("target", "versions")}
    run["modules"] = static.counts(limits, say)
    run["growth"] = static.growth(limits, say)
    run["crossing"] = static.crossing(limits, say)
    _write(given.out or RESULTS / "static" / given.arch, run)


def _measure(given: argparse.Namespace, command: str) -> None:
    place = commands.place("stitching", given, without="--arch sm_90")
    theirs = _xla(given.xla, emulated=place.emulated)
    run = runs.new("stitching", paper.CITATION, command, place.device.evidence, place.described())
    run["xla_executable"] = theirs.described if isinstance(theirs, xla.Backend) else {"problem": theirs}
    bench = measure.Bench(
        provider=place.provider,
        device=place.device,
        pairs=3 if given.quick else 25,
        quick=given.quick,
        xla=theirs if isinstance(theirs, xla.Backend) else None,
        say=say,
    )
    run["measured"] = []
    run, where = commands.begun(place.folder, given, run)
    everything = modules.names() if place.emulated else (*modules.names(), *modules.large())
    for row in measure.table(bench, given.only or everything, list(run["measured"])):
        commands.put(run["measured"], row, "module")
        runs.write(where, run)
    say(f"wrote {where}")


def _xla(request: str, *, emulated: bool) -> xla.Backend | str:
    """XLA's device, or why there is none. Times of a processor and of a GPU are never put side by side."""
    if request == "off" or (request == "auto" and emulated):
        return "not asked for" if request == "off" else "on the emulated device only with --xla cpu"
    if emulated != (request == "cpu"):
        raise RequestError(
            "XLA is timed where the plans are: cuda beside a GPU, cpu beside the cpu device", where="--xla"
        )
    try:
        return xla.opened("cpu" if emulated else "cuda")
    except xla.Unavailable as problem:
        if request != "auto":
            raise RequestError(str(problem), where="--xla") from None
        say(f"XLA is not timed: {problem}")
        return str(problem)


def _write(folder: Path, run: Run) -> None:
    where = runs.path(folder, run)
    runs.write(where, run)
    say(f"wrote {where}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
