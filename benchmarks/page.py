"""docs/results-fusiond.md from benchmarks/results/cpu: what fusiond itself costs, and how often it is right."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KEPT = HERE / "results" / "cpu"
PAGE = HERE.parent / "docs" / "results-fusiond.md"
Run = Mapping[str, Any]

WIDTH = 120


def render(kept: Mapping[str, Run]) -> str:
    """The page; a benchmark that has not been run yet has its line, too."""
    parts = ["# What fusiond itself costs\n", HEAD]
    for name, title, words in SECTIONS:
        parts.append(f"## {title}\n")
        run = kept.get(name)
        if run is None:
            parts.append(f"Not measured yet: `python -m benchmarks {name}`.\n")
            continue
        parts += [*words(run["result"]), _origin(run)]
    return "\n".join(parts)


def read(folder: Path = KEPT) -> dict[str, Run]:
    """What `python -m benchmarks` has kept: name -> run."""
    found = {}
    for name, _, _ in SECTIONS:
        path = folder / f"{name}.json"
        if path.is_file():
            found[name] = json.loads(path.read_text())
    return found


def _origin(run: Run) -> str:
    machine = run["machine"]
    load = machine.get("load_at_start")
    busy = "" if load is None else f", load {load} when it began"
    where = f"{machine['cores']} cores of {machine['processor']}{busy}, Python {machine['python']}"
    return f"`{run['command']}`, {run['date'][:10]}, {where}.\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(map(str, each))} |\n" for each in lines)


def _said(*words: str) -> str:
    """A paragraph."""
    return textwrap.fill(" ".join(words), WIDTH, break_on_hyphens=False, break_long_words=False) + "\n"


HEAD = _said(
    "Written by `python -m benchmarks --page` from `benchmarks/results/cpu/`. `python -m",
    "benchmarks` measures everything again, one after the other, and writes this page; it needs no GPU, and an idle",
    "machine. Read the ratios, not the times: the machines are shared. What was measured once and is settled (how",
    "often a verdict is right on simulated noise, the pipeline, look-ups over HTTP, and more) is in",
    "[results-settled.md](results-settled.md).",
)


# --- the sections ---------------------------------------------------------------------------------------


def _control(result: Run) -> Iterable[str]:
    counts = ", ".join(f"{count} `{name}`" for name, count in sorted(result["verdicts"].items()))
    yield _said(
        "Unfused programs of the catalogue against copies of themselves, measured as finalists are, on the",
        f"`{result['device']}` device ({result['evidence']}): {counts}. `fuse` would be a mistake; `undecided` is",
        "none.",
    )
    rows = [
        (each["name"], each["verdict"], each.get("speedup", ""), " to ".join(map(str, each.get("ci95", ()))))
        for each in result["controls"]
    ]
    yield _table(("program", "verdict", "ratio", "95 % interval"), rows)


def _best(result: Run) -> Iterable[str]:
    yield _said(
        f"Processor time of whole processes from a cold shell, {result['rounds']} rounds, interleaved. Beside a",
        f"bare Python, `fusiond best` by name takes {result['ratio_name_to_bare']} times as much (goal: 1.5), of a",
        f"job whose files are remembered {result['ratio_job_to_bare']} times (goal: 4), and to hand in a job that",
        f"waits already {result['ratio_submit_to_bare']} times.",
    )
    names = {
        "bare": "a bare Python: `python -c pass`",
        "name": "`fusiond best --workload NAME`",
        "name_json": "`python -m fusiond best --workload NAME --json`",
        "job": "`fusiond best JOB.yaml`",
        "submit": "`fusiond submit JOB.yaml`, the second time",
    }
    rows = [
        (words, f"{result[f'{name}_ms']['least']:.0f} ms", f"{result[f'{name}_ms']['median']:.0f} ms")
        for name, words in names.items()
    ]
    yield _table(("", "least", "median"), rows)


def _store(result: Run) -> Iterable[str]:
    ratio = result["ratios"]["start_lookup_to_bare"]
    yield _said(
        f"{result['records']:,} records in a file of {result['file_bytes'] / 2**20:.0f} MiB. Starting Python with",
        f"what `fusiond best` imports takes {ratio} times as long as with `sqlite3` and `json` alone.",
    )
    rows = [(f"look-up: {name}", f"{each['median']:.0f} us") for name, each in result["lookup_us"].items()]
    rows.append(("an acknowledged trial, its fsync included", f"{result['acknowledged_trial_us']['median']:.0f} us"))
    yield _table(("", "median"), rows)


def _watching(result: Run) -> Iterable[str]:
    yield _said(
        "What `fusiond capture` costs a launch of three parameters: processor time of a program on the driver without",
        f"a GPU that the tests have, {result['launches']:,} launches of each. A launch that is noted takes",
        f"{result['more_us']['noted']:.2f} us more (goal: under {result['limit_us']:.0f} us), and",
        f"{result['trace_bytes']} bytes; one behind the last that was asked for",
        f"{result['more_us']['noted enough']:.2f} us.",
    )


SECTIONS: Sequence[tuple[str, str, Callable[[Run], Iterable[str]]]] = (
    ("control", "Native against native", _control),
    ("best", "`fusiond best`", _best),
    ("store", "The store", _store),
    ("watching", "Capturing launches on a GPU", _watching),
)
