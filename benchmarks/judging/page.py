"""docs/results-judging.md out of the JSON file that is kept: nothing on it is typed by hand."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.pages import DOCS, table
from benchmarks.runs import Run, newest

PAGE = DOCS / "results-judging.md"
Row = dict[str, Any]

HEAD = """\
# The referee: false alarms

Written by `python -m benchmarks.judging --page` from the JSON file in benchmarks/results; do not edit it. Every kernel
here is right as far as anybody knows: those of hfuse's catalogue, each rewritten mechanically, and kernels of other
people's repositories beside another version of the same function by the same people, or rewritten mechanically. Sizes
are small. `fusiond judge REFERENCE SECOND --device cpu` runs for each, as a process of its own; what it does not call
right stands below, with what it says. How the kernels that cheat are caught is tests/judging.
"""


def render(found: Iterable[Run]) -> str:
    return "\n".join([HEAD, *(part for run in newest(found, "static") for part in _run(run))])


def _run(run: Run) -> list[str]:
    rows: list[Row] = run["rows"]
    machine = run["machine"]
    where = f"nvcc {run['nvcc']}, {machine['cores']} cores, {machine['processor']}"
    parts = [
        f"`{run['command']}`, {run['date'][:10]}, {where}.\n",
        _counted(rows),
        _times(rows),
    ]
    if run["origin"].get("repositories"):
        places = [[each["name"], each["commit"][:10], str(each["pairs"])] for each in run["origin"]["repositories"]]
        parts.append("## Where the foreign kernels are from\n\n" + table(("repository", "commit", "pairs"), places))
    alarms = [each for each in rows if each["right"] is False and not each["mistake"]]
    parts += [_wrong("False alarms", alarms), _wrong("Refused", [each for each in rows if each["right"] is None])]
    return [*parts, _mistakes([each for each in rows if each["mistake"]])]


def _counted(rows: Sequence[Row]) -> str:
    listed = []
    for origin, form in sorted({(each["origin"], each["form"]) for each in rows}):
        mine = [each["right"] for each in rows if (each["origin"], each["form"]) == (origin, form)]
        found = Counter(mine)
        listed.append([origin, form, *map(str, (len(mine), found[True], found[False], found[None]))])
    ends = Counter(each["right"] for each in rows)
    listed.append(["all", "", *map(str, (len(rows), ends[True], ends[False], ends[None]))])
    return table(("kernels", "second form", "pairs", "right", "wrong", "refused"), listed)


def _times(rows: Sequence[Row]) -> str:
    listed = []
    for key, name in (("secs", "the first time"), ("again_secs", "again")):
        found = sorted(each[key] for each in rows if each.get(key) is not None)
        if found:
            tenth = found[min(len(found) - 1, 9 * len(found) // 10)]
            listed.append([name, *(f"{each:.1f}" for each in (statistics.median(found), tenth, found[-1]))])
    return "Seconds for a verdict, by the clock, with the start of the process:\n\n" + table(
        ("", "median", "nine of ten within", "longest"), listed
    )


def _wrong(title: str, rows: Sequence[Row]) -> str:
    if not rows:
        return f"## {title}\n\nNone.\n"
    listed = [[each["kernel"], each["form"], str(each["problem"]).replace("|", "\\|")] for each in rows]
    return f"## {title}\n\n" + table(("kernel", "second form", "what the referee says"), listed)


def _mistakes(rows: Sequence[Row]) -> str:
    """Kernels that turned out to be wrong."""
    if not rows:
        return ""
    said = "What the referee found in kernels that pass their authors' own tests; somebody has looked at each.\n\n"
    listed = [[each["kernel"], each["mistake"], str(each["problem"] or "right").replace("|", "\\|")] for each in rows]
    return "## Mistakes of their authors\n\n" + said + table(("kernel", "mistake", "what the referee says"), listed)
