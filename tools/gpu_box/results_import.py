"""Brings home what a GPU box found: `python -m tools.gpu_box.results_import results.tar.gz [--box gpu-box]`.

    benchmarks/results/DEVICE/*.json     a file for each benchmark of the archive, raw samples thinned to what a page
                                         needs, under 3 MB in all; a later archive of the same lease replaces them
    docs/                                every page that is made of them, and the blocks of README.md and others

With --box (default: gpu-box, where it is), the programs that ncu counted there are counted here and put beside it,
which takes minutes; --no-count leaves that out.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import runs
from benchmarks.commands import say
from benchmarks.headlines import page
from fusiond.model.errors import RequestError

ROOT = Path(__file__).parents[2]
STRATEGIES = ("hfuse", "mincut", "stitching", "transfer")
SAMPLES = 16  #: That are kept of a batch
MOST_BYTES = 3_000_000
PAGES = ("hfuse", "mincut", "stitching", "transfer", "models")

Document = dict[str, Any]


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 done, 1 a page could not be made, 2 the archive is none."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_box.results_import", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("archive", type=Path, metavar="results.tar.gz")
    parser.add_argument("--box", type=Path, default=Path("gpu-box"), help="the folder that was carried there")
    parser.add_argument("--no-count", action="store_true", help="count nothing here")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    try:
        kept = bring(given.archive, given.root, None if given.no_count else given.box)
    except tarfile.TarError:
        sys.stderr.write(f"{given.archive}: is not an archive that `run_all.py` wrote\n")
        return 2
    except (RequestError, OSError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    for path in kept:
        say(f"wrote {path.relative_to(given.root)} ({path.stat().st_size / 1000:.0f} kB)")
    failed = [name for name in PAGES if not _page(name)] if given.root == ROOT else []
    for path in page.write(given.root / "benchmarks" / "results", given.root):
        say(f"wrote {path}")
    for name in failed:
        sys.stderr.write(f"python -m benchmarks.{name} --page failed\n")
    return int(bool(failed))


def _page(name: str) -> bool:
    done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", "--page"], cwd=ROOT, check=False)
    return done.returncode == 0


def bring(archive: Path, root: Path, box: Path | None) -> list[Path]:
    """The files that were written, in the device's folder. RequestError for what is no such archive, or was not
    measured on a GPU."""
    with tempfile.TemporaryDirectory(prefix="fusiond-home-") as unpacked:
        with tarfile.open(archive) as packed:
            packed.extractall(unpacked, filter="data")
        inside = [each for each in Path(unpacked).iterdir() if (each / "run_all.json").is_file()]
        if len(inside) != 1:
            raise RequestError("holds no results of run_all.py", where=str(archive))
        found = Path(unpacked) / inside[0].name
        bundles = box / "bundles" / "headlines" if box is not None else None
        counters = found / "counters.json"
        if bundles is not None and bundles.is_dir() and counters.is_file():
            command = ["--bundles", str(bundles), "--count", str(counters), "--headlines", str(found / "headlines")]
            subprocess.run([sys.executable, "-m", "benchmarks.counters", *command], cwd=ROOT, check=False)
        report = json.loads((found / "run_all.json").read_text(encoding="utf-8"))
        documents = list(collected(found, report))
        models = {str(each["device"]["model"]) for _, each in documents if each["evidence"] == "measured"}
        if len(models) != 1:
            raise RequestError(f"not measured on one GPU, but on {sorted(models) or 'none'}", where=str(archive))
        folder = root / "benchmarks" / "results" / runs.slug(models.pop())
        kept = []
        for name, document in documents:
            if document["evidence"] == "measured":
                kept.append(folder / name)
                runs.write(kept[-1], document)
    size = sum(path.stat().st_size for path in kept)
    if size > MOST_BYTES:
        raise RequestError(f"{size} bytes of results, more than {MOST_BYTES}", where=str(folder))
    return kept


def collected(found: Path, report: Document) -> Iterator[tuple[str, Document]]:
    """(file name, document) of everything that is kept; those of one lease are named by its first command's date."""
    first = report["runs"][0]
    stamp = "".join(each for each in first["date"].partition("+")[0] if each.isdigit() or each == "T")
    every: dict[str, Document] = {path.stem: _read(path) for path in sorted((found / "headlines").glob("*.json"))}
    base: Document = {}
    if every:
        base = {key: next(iter(every.values()))[key] for key in (
            "evidence", "date", "device", "driver", "nvcc", "fusiond", "machine", "paper"
        )}  # fmt: skip
        about = {"benchmark": "headlines", "command": first["command"], "lease": lease(report)}
        yield (
            f"headlines-{stamp}.json",
            {**base, **about, "headlines": {n: headline(each) for n, each in every.items()}},
        )
    kinds: Mapping[str, tuple[str, Callable[[Document], Document]]] = {
        "null": ("null", lambda each: {"controls": each["controls"], "verdicts": each["verdicts"]}),
        "calibrate": ("calibration", lambda each: {"figures": each["figures"]}),
        "check-alive": ("alive", lambda each: {"results": [_outcome(one) for one in each["results"]]}),
    }
    for file, (benchmark, body) in kinds.items():
        path = found / f"{file}.json"
        if path.is_file() and base:
            unit = next((each for each in report["units"] if each.get("result") == path.name), {})
            command = unit.get("command") or f"{first['command']} ({file})"
            yield f"{benchmark}-{stamp}.json", {**base, "benchmark": benchmark, "command": command, **body(_read(path))}
    for name in ("steps", "counters"):
        if (found / f"{name}.json").is_file():
            yield f"{name}-{stamp}.json", _read(found / f"{name}.json")
    for path in sorted(found.glob("agreement-*.json")):
        run = _read(path)
        yield path.name, run | {"rows": [row | {"samples": thinned(row["samples"])} for row in run["rows"]]}
    for name in STRATEGIES:
        for path in sorted((found / name).glob("*.json")):
            yield path.name, thinned(_read(path))


def _read(path: Path) -> Document:
    found: Document = json.loads(path.read_text(encoding="utf-8"))
    return found


def lease(report: Document) -> Document:
    """The machine, and how each unit ended; not what they printed."""
    first = report["runs"][0]
    units = {each["name"]: f"{each['state']} {each.get('reason', '')}".strip() for each in report["units"]}
    return {"machine": first["machine"], "commands": [each["command"] for each in report["runs"]],
            "secs": [each.get("secs") for each in report["runs"]], "commit": first["manifest"].get("commit"),
            "units": units}  # fmt: skip


def headline(document: Document) -> Document:
    """Without what the file has in common with the others; of the finals' samples the first of each batch."""
    kept = ("strategy", "what", "sizes", "screened", "finalists", "untried", "conclusion", "rivals", "problem")
    found = {key: document[key] for key in kept if key in document}
    final = {name for side in document["finalists"].values() for name in side}
    found["configs"] = {name: each["config"] for name, each in document["entries"].items() if name in final}
    return found | {"finals": thinned(document["finals"]), "rivals": thinned(document["rivals"])}


def _outcome(result: Document) -> Document:
    return {key: result[key] for key in ("name", "candidate", "outcome", "reason", "time_us", "ratio") if key in result}


def thinned(value: Any) -> Any:
    """Lists of numbers cut to their first SAMPLES, numbers to six digits."""
    if isinstance(value, dict):
        return {key: thinned(each) for key, each in value.items()}
    if isinstance(value, list):
        numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in value)
        return [thinned(each) for each in (value[:SAMPLES] if numbers else value)]
    if isinstance(value, float) and math.isfinite(value) and value:
        return round(value, 5 - math.floor(math.log10(abs(value))))
    return value


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
