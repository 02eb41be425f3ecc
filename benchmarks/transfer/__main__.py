"""The transfer fusion paper's tables 4 to 6: `python -m benchmarks.transfer`.

python -m benchmarks.transfer                          on this machine's GPU: tables 5 and 6, 4K to 4M elements
python -m benchmarks.transfer --only fig2 horner       only these graphs
python -m benchmarks.transfer --device cpu --quick     try it out; its times are emulated, and no results
python -m benchmarks.transfer --planning               table 4, and planning for up to 100,000 kernels; no device
python -m benchmarks.transfer --page                   docs/results-transfer.md from the JSON files that are kept
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
from benchmarks.transfer import measure, page, paper, planning
from fusiond import driver
from fusiond.build import nvcc
from fusiond.errors import FusiondError, RequestError
from fusiond.planning import choose_device
from fusiond.registry import Registry

RESULTS = Path(__file__).parent.parent / "results"
QUICK_LENGTHS = (4096,)
Run = dict[str, Any]


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 done, 2 the request was wrong."""
    given = _parser().parse_args(argv)
    try:
        unknown = sorted(set(given.only) - set(measure.GRAPHS))
        if unknown:
            raise RequestError(f"unknown graph {unknown[0]!r}; there are {', '.join(measure.GRAPHS)}")
        if given.page:
            page.PAGE.write_text(page.render(kept()))
            _say(f"wrote docs/{page.PAGE.name}")
        elif given.planning:
            run = _new("python -m benchmarks.transfer --planning", "planning", {})
            run |= {"table_4": planning.table_4(_say), "growth": planning.growth(_say), "cg_step": planning.cg_step()}
            _write(run, given.out or RESULTS / "cpu", "transfer.json")
        else:
            _measure(given)
    except FusiondError as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.transfer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto", help="cuda:0, cpu; default: this machine's GPU")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(measure.GRAPHS)}")
    parser.add_argument("--quick", action="store_true", help="vectors of 4K elements only: to see that it works")
    parser.add_argument("--planning", action="store_true", help="table 4 and growth, and nothing else")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where JSON goes; default: benchmarks/results")
    parser.add_argument("--page", action="store_true", help="write docs/results-transfer.md, and nothing else")
    return parser


def kept(folder: Path = RESULTS) -> Iterator[Run]:
    """Every run of this benchmark that is kept under a folder."""
    for each in sorted(folder.rglob("transfer*.json")):
        run = json.loads(each.read_text())
        if isinstance(run, dict) and run.get("benchmark") == "transfer":
            yield run


def _measure(given: argparse.Namespace) -> None:
    registry = Registry.load()
    provider, device = choose_device(registry, given.device)
    emulated = device.evidence != "measured"
    if emulated and given.device == "auto":
        raise RequestError(
            "no GPU is here. What is known without one: --planning. To try the benchmark out with emulated times, "
            "which are no results: --device cpu --quick"
        )
    folder = given.out or (
        Path(tempfile.gettempdir()) / "fusiond-transfer-emulated" if emulated else RESULTS / _slug(device.model)
    )
    if emulated and folder.resolve().is_relative_to(RESULTS.resolve()):
        raise RequestError("emulated times are no results: name a folder outside benchmarks/results", where="--out")
    words = ["python -m benchmarks.transfer"]
    words += [f"--device {given.device}"] if given.device != "auto" else []
    words += ["--quick"] if given.quick else []
    words += [f"--only {' '.join(given.only)}"] if given.only else []
    described = {"name": device.name, "model": device.model, "arch": device.arch, "env": dict(device.env)}
    run = _new(" ".join(words), device.evidence, described)
    stamp = re.sub(r"[^0-9T]", "", run["date"].partition("+")[0])
    bench = measure.Bench(
        provider=provider, device=device, lengths=QUICK_LENGTHS if given.quick else paper.LENGTHS, say=_say
    )
    for key, names, counted in (("table_5", measure.GRAPHS, False), ("table_6", measure.COUNTED, True)):
        wanted = [name for name in names if not given.only or name in given.only]
        run[key] = measure.table(bench, wanted, counted=counted)
        _write(run, folder, f"transfer-{stamp}.json")


def _new(command: str, evidence: str, device: Run) -> Run:
    return {
        "benchmark": "transfer",
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
    _say(f"wrote {folder / name}")


def _slug(model: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-") or "device"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
