"""The min-cut paper's six applications on the device at hand: `python -m benchmarks.mincut`.

    python -m benchmarks.mincut                            on this machine's GPU, at the paper's sizes
    python -m benchmarks.mincut --only sobel unsharp       only these
    python -m benchmarks.mincut --device cpu --quick       try it out; its times are emulated, and no results
    python -m benchmarks.mincut --planning                 what planning costs, up to 1,000 kernels; needs no device
    python -m benchmarks.mincut --peers                    the same pipelines in JAX and OpenCV, wherever those run
    python -m benchmarks.mincut --page                     docs/results-mincut.md from the JSON files that are kept

Everything is written as JSON, one file for each run, after each application.
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
from contextlib import closing
from pathlib import Path

import fusiond
from benchmarks.mincut import measure, page, paper, peers, planning
from benchmarks.mincut.page import Run
from fusiond import documents, driver
from fusiond.build import nvcc
from fusiond.build.cache import default_folder
from fusiond.errors import FusiondError, RequestError
from fusiond.planning import choose_device
from fusiond.registry import Registry
from fusiond.store.database import Store
from fusiond_mincut import reading
from fusiond_mincut.graph import Pipeline
from fusiond_mincut.plugin import PIPELINES

RESULTS = Path(__file__).parent.parent / "results"
TRIALS, BLOCKS = 48, 16
QUICK_TRIALS, QUICK_BLOCKS, QUICK_SIZES = 4, 0, "sizes: {width: 96, height: 64}\n"


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 done, 2 the request was wrong."""
    given = _parser().parse_args(argv)
    try:
        unknown = sorted(set(given.only) - set(paper.APPLICATIONS))
        if unknown:
            raise RequestError(f"unknown application {unknown[0]!r}; there are {', '.join(paper.APPLICATIONS)}")
        names = given.only or list(paper.APPLICATIONS)
        if given.page:
            page.PAGE.write_text(page.render(kept()))
            _say(f"wrote docs/{page.PAGE.name}")
        elif given.planning:
            run = _new("python -m benchmarks.mincut --planning", "planning", {})
            _write(run | {"planning": planning.run(_say)}, given.out or RESULTS / "cpu", "mincut-planning.json")
        elif given.peers:
            run = _new("python -m benchmarks.mincut --peers", "peers", {})
            found = peers.run({name: pipeline(name) for name in names}, _say)
            _write(run | {"peers": found}, given.out or RESULTS / "cpu", "mincut-peers.json")
        else:
            _measure(names, given)
    except (FusiondError, ValueError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mincut", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto", help="cuda:0, cpu; default: this machine's GPU")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(paper.APPLICATIONS)}")
    parser.add_argument("--quick", action="store_true", help="small images, few trials: to see that it works")
    parser.add_argument("--planning", action="store_true", help="measure planning, and nothing else")
    parser.add_argument("--peers", action="store_true", help="measure JAX and OpenCV, and nothing else")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where JSON goes; default: benchmarks/results")
    parser.add_argument("--store", type=Path, metavar="FILE", help="the tuner's store for this benchmark")
    parser.add_argument("--page", action="store_true", help="write docs/results-mincut.md, and nothing else")
    return parser


def pipeline(name: str) -> Pipeline:
    """An application at the paper's size."""
    path = PIPELINES / f"{name}.yaml"
    return reading.read(documents.parse(path.read_text(encoding="utf-8"), str(path)))


def kept(folder: Path = RESULTS) -> Iterator[Run]:
    """Every run of this benchmark that is kept under a folder."""
    for each in sorted(folder.rglob("mincut*.json")):
        run = json.loads(each.read_text())
        if isinstance(run, dict) and run.get("benchmark") == "mincut":
            yield run


def _new(command: str, evidence: str, device: Run) -> Run:
    return {
        "benchmark": "mincut",
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
    work.write_text(json.dumps(run, indent=1) + "\n")
    work.replace(folder / name)


def _measure(names: Sequence[str], given: argparse.Namespace) -> None:
    registry = Registry.load()
    provider, device = choose_device(registry, given.device)
    emulated = device.evidence != "measured"
    if emulated and given.device == "auto":
        raise RequestError(
            "no GPU is here. What is known without one: --planning and --peers. To try the benchmark out with small "
            "images and emulated times, which are no results: --device cpu --quick"
        )
    slug = re.sub(r"[^a-z0-9]+", "-", device.model.lower()).strip("-")
    usual = Path(tempfile.gettempdir()) / "fusiond-mincut-emulated" if emulated else RESULTS / slug
    folder = given.out or usual
    if emulated and folder.resolve().is_relative_to(RESULTS.resolve()):
        raise RequestError("emulated times are no results: name a folder outside benchmarks/results", where="--out")
    words = ["python -m benchmarks.mincut", *([f"--device {given.device}"] if given.device != "auto" else [])]
    words += [f"--only {' '.join(given.only)}"] if given.only else []
    words += ["--quick"] if given.quick else []
    described = {"name": device.name, "model": device.model, "arch": device.arch, "env": dict(device.env)}
    run = _new(" ".join(words), device.evidence, described) | {"applications": []}
    stamp = re.sub(r"[^0-9T]", "", run["date"].partition("+")[0])
    store = given.store or (folder / "mincut.sqlite" if emulated else default_folder() / "benchmarks" / "mincut.sqlite")
    with closing(Store.open(store)) as opened:
        opened.recover()
        bench = measure.Bench(
            registry=registry,
            store=opened,
            provider=provider,
            device=device,
            trials=QUICK_TRIALS if given.quick else TRIALS,
            blocks=QUICK_BLOCKS if given.quick else BLOCKS,
            sizes=QUICK_SIZES if given.quick else "",
            say=_say,
        )
        for name in names:
            _say(name)
            run["applications"].append(measure.application(bench, name))
            _write(run, folder, f"mincut-{stamp}.json")
    _say(f"wrote {folder / f'mincut-{stamp}.json'}" + (" (emulated)" if emulated else ""))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
