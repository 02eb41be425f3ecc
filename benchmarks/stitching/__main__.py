"""FusionStitching's figures 7 and 8 and table 3: `python -m benchmarks.stitching`.

python -m benchmarks.stitching                          on this machine's GPU: whole and fusable times of eight modules
python -m benchmarks.stitching --only lr_step nmt_fig3  only these modules
python -m benchmarks.stitching --device cpu --quick     try it out; its times are emulated, and no results
python -m benchmarks.stitching --device cpu --quick --xla cpu      the same with XLA's executable for the processor
python -m benchmarks.stitching --arch sm_90             kernels, bytes and planning times; no device
python -m benchmarks.stitching --page                   docs/results-stitching.md from the JSON files that are kept
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fusiond
from benchmarks.stitching import measure, modules, page, paper, static, xla
from fusiond import driver
from fusiond.build import nvcc
from fusiond.errors import FusiondError, RequestError
from fusiond.planning import choose_device, target_for_arch
from fusiond.registry import Registry

RESULTS = Path(__file__).parent.parent / "results"
Run = dict[str, Any]


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 done, 2 the request was wrong."""
    given = _parser().parse_args(argv)
    try:
        unknown = sorted(set(given.only) - set(modules.names()))
        if unknown:
            raise RequestError(f"unknown module {unknown[0]!r}; there are {', '.join(modules.names())}")
        if given.page:
            page.PAGE.write_text(page.render(kept()), encoding="utf-8")
            _say(f"wrote docs/{page.PAGE.name}")
        elif given.arch:
            _static(given)
        else:
            _measure(given)
    except (FusiondError, ValueError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stitching",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="auto", help="cuda:0, cpu; default: this machine's GPU")
    parser.add_argument("--arch", metavar="sm_90", help="what is known for this architecture without a device")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(modules.names())}")
    parser.add_argument(
        "--xla", default="auto", choices=("auto", "cuda", "cpu", "off"),
        help="where XLA's own executable is timed beside ours; default: on this GPU, if jax sees one",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="few samples: to see that it works")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where JSON goes; default: benchmarks/results")
    parser.add_argument("--page", action="store_true", help="write docs/results-stitching.md, and nothing else")
    return parser


def kept(folder: Path = RESULTS) -> Iterator[Run]:
    """Every run of this benchmark that is kept under a folder."""
    for each in sorted(folder.rglob("stitching*.json")):
        run = json.loads(each.read_text(encoding="utf-8"))
        if isinstance(run, dict) and run.get("benchmark") == "stitching":
            yield run


def _static(given: argparse.Namespace) -> None:
    limits = target_for_arch(given.arch).limits
    run = _new(f"python -m benchmarks.stitching --arch {given.arch}", "static", {"arch": given.arch})
    run["multiprocessors"] = limits.multiprocessors
    run["xla"] = {key: modules.xla()[key] for key in ("target", "versions")}
    run["modules"] = static.counts(limits, _say)
    run["growth"] = static.growth(limits, _say)
    run["crossing"] = static.crossing(limits, _say)
    _write(run, given.out or RESULTS / "static" / given.arch, "stitching.json")


def _measure(given: argparse.Namespace) -> None:
    registry = Registry.load()
    provider, device = choose_device(registry, given.device)
    emulated = device.evidence != "measured"
    if emulated and given.device == "auto":
        raise RequestError(
            "no GPU is here. What is known without one: --arch sm_90. To try the benchmark out with emulated times, "
            "which are no results: --device cpu --quick"
        )
    slug = re.sub(r"[^a-z0-9]+", "-", device.model.lower()).strip("-")
    usual = Path(tempfile.gettempdir()) / "fusiond-stitching-emulated" if emulated else RESULTS / slug
    folder = given.out or usual
    if emulated and folder.resolve().is_relative_to(RESULTS.resolve()):
        raise RequestError("emulated times are no results: name a folder outside benchmarks/results", where="--out")
    words = ["python -m benchmarks.stitching", *([f"--device {given.device}"] if given.device != "auto" else [])]
    words += [f"--only {' '.join(given.only)}"] if given.only else []
    words += [f"--xla {given.xla}"] if given.xla != "auto" else []
    words += ["--quick"] if given.quick else []
    theirs = _xla(given.xla, emulated=emulated)
    described = {"name": device.name, "model": device.model, "arch": device.arch, "env": dict(device.env)}
    run = _new(" ".join(words), device.evidence, described)
    stamp = re.sub(r"[^0-9T]", "", run["date"].partition("+")[0])
    run["xla_executable"] = theirs.described if isinstance(theirs, xla.Backend) else {"problem": theirs}
    bench = measure.Bench(
        provider=provider,
        device=device,
        pairs=3 if given.quick else 25,
        quick=given.quick,
        xla=theirs if isinstance(theirs, xla.Backend) else None,
        say=_say,
    )
    run["measured"] = measure.table(bench, [each for each in modules.names() if not given.only or each in given.only])
    _write(run, folder, f"stitching-{stamp}.json")


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
        _say(f"XLA is not timed: {problem}")
        return str(problem)


def _new(command: str, evidence: str, device: Run) -> Run:
    return {
        "benchmark": "stitching",
        "evidence": evidence,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "device": device,
        "driver": driver.version(),
        "nvcc": nvcc.version(),
        "fusiond": fusiond.__version__,
        "machine": {
            "processor": platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "load_at_start": round(os.getloadavg()[0], 1),
        },
        "paper": paper.CITATION,
    }


def _write(run: Run, folder: Path, name: str) -> None:
    """The whole file or none of it."""
    folder.mkdir(parents=True, exist_ok=True)
    work = folder / f"{name}.new"
    work.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
    work.replace(folder / name)
    _say(f"wrote {folder / name}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
