"""docs/results-transfer.md out of the JSON files that are kept: nothing on it is typed by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.pages import DOCS, table
from benchmarks.rivals import rival_rows
from benchmarks.runs import Run, newest
from benchmarks.transfer import paper

PAGE = DOCS / "results-transfer.md"

HEAD = f"""\
# Transfer fusion: results

Written by `python -m benchmarks.transfer --page` from the JSON files in benchmarks/results; do not edit it. Tables and
the paper's numbers are those of {paper.CITATION}.
"""
UNMEASURED = """\
## Measured on a GPU

**Not yet measured on a GPU.** On a machine with one, `python -m benchmarks.transfer` makes the measurements and
`python -m benchmarks.transfer --page` puts them here. The paper's own (its table 5: microseconds with a message for
each vector, and fused, on a Quadro K2100M), which they will stand beside:
"""


def render(runs: Iterable[Run]) -> str:
    """The page. Emulated times are left out: they are not results."""
    runs = list(runs)
    measured = newest(runs, "measured")
    parts = [HEAD, *(_measured(run) for run in measured)]
    if not measured:
        parts.append(UNMEASURED + "\n" + _papers(paper.TABLE_5))
    parts += [_planning(run) for run in newest(runs, "planning")]
    return "\n".join(parts)


# --- planning -------------------------------------------------------------------------------------------


def _planning(run: Run) -> str:
    machine = run["machine"]
    rows = []
    for each, row in zip(run["table_4"], paper.TABLE_4, strict=True):
        saved, many = each["saved"], each["saved_with_many_attempts"]
        theirs = f"{row.greedy[0]} / {row.tight[0]}" + (
            f" (400: {row.greedy[1]})" if row.greedy[1] != row.greedy[0] else ""
        )
        beside = "" if many is None else f"{_n(saved['greedy'])} / {_n(saved['tight'])} (400: {_n(many)})"
        rows.append([
            each["row"], str(each["graphs"]), _n(each["transfers"]), f"**{_n(saved['exact'])}**", beside, theirs,
            f"{each['exact_ms']:.2f}", "" if each["heuristic_ms"] is None else f"{each['heuristic_ms']:.2f}",
            f"{row.time_ms}",
        ])  # fmt: skip
    head = ("graph", "graphs", "transfers", "saved, exact", "saved, the heuristic here (greedy / tight)",
            "saved, the paper (greedy / tight)", "exact, ms", "heuristic, ms", "the paper, ms")  # fmt: skip
    growth = [
        [f"{each['kernels']:,}", f"{each['transfers']:,}", f"{each['saved']:,}", f"{each['fewest_secs']:.4f}",
         f"{each['fewest_tight_secs']:.4f}", _per_kernel(each)]
        for each in run["growth"]
    ]  # fmt: skip
    missed = sum(each["heuristic_missed"] for each in run["table_4"])
    graphs = sum(each["graphs"] for each in run["table_4"])
    return f"""\
## Planning: table 4

{run["date"][:10]}, `{run["command"]}`, Python {machine["python"]} on {machine["processor"]}; times are of one core that
other work was sharing (the paper's: a 2.3 GHz Core i5). Startups saved against a message for each vector. Where the
text does not determine the graph (random ones, and trees with kernels on either side), ours are medians over as many
seeds as the column "graphs" says, and need not be the paper's. Exact is proven for every graph; the heuristic
(4 attempts) missed it on {missed} of {graphs} graphs.

{table(head, rows)}
What differs: the paper's Cholesky has 4 inputs where ours has the 10 blocks of a triangle; its conjugate gradient is a
straight line where ours is a loop, whose two vectors cross in opposite directions (`cg_step` is the straight line:
{run["cg_step"]["transfers"]} transfers, {run["cg_step"]["exact"]} saved).

### Growth

Random graphs of in-degree 2 and out-degree 1 to 2, half on the device: seconds from the graph to slots, messages and
layout. {_rate(run["growth"])}

{table(("kernels", "transfers", "saved", "fewest, s", "fewest and tightest, s", "us a kernel"), growth)}"""


def _rate(growth: Sequence[dict[str, Any]]) -> str:
    """How the time of a kernel grows, beside n log n: from the smallest graph, and from the one with the cheapest
    kernels (the smallest ones pay for what every call costs)."""
    cheapest = min(growth[:-1], key=lambda each: float(each["fewest_secs"] / each["kernels"]))
    told = [_grown(growth[0], growth[-1])]
    if cheapest is not growth[0]:
        told.append(_grown(cheapest, growth[-1]))
    return "\n".join(told)


def _grown(first: dict[str, Any], last: dict[str, Any]) -> str:
    ours = (last["fewest_secs"] / last["kernels"]) / (first["fewest_secs"] / first["kernels"])
    allowed = math.log(last["kernels"]) / math.log(first["kernels"])
    span = f"{first['kernels']:,} to {last['kernels']:,} kernels"
    return f"From {span} the time for one grows {ours:.1f} times; n log n would be {allowed:.1f} times."


def _per_kernel(each: dict[str, Any]) -> str:
    return f"{1e6 * each['fewest_secs'] / each['kernels']:.1f}"


# --- measured -------------------------------------------------------------------------------------------


def _measured(run: Run) -> str:
    parts = [
        f"## Measured: {run['device']['model']}\n",
        f"{run['date'][:10]}, driver {run['driver']}, `{run['command']}`.\n",
    ]
    for title, key in (("Table 5: allocated before", "table_5"), ("Table 6: allocations counted", "table_6")):
        if run.get(key):
            parts.append(f"### {title}\n\n{_ways(run[key])}")
    if run.get("overlap"):
        parts.append(_overlap(run["overlap"]))
    return "\n".join(parts)


def _overlap(rows: Sequence[dict[str, Any]]) -> str:
    """What chunks gain over whole messages, for each number of them the better way to issue them."""
    lines = []
    for row in rows:
        size_mb = f"{4 * row['elements'] / 2**20:g}"
        if "problem" in row:
            lines.append([size_mb, *[""] * 3, "", row["problem"].partition(":")[0], "", ""])
        best: dict[int, dict[str, Any]] = {}
        for way in row.get("ways", ()):
            if way["chunks"] > 1 and (way.get("ratio") or 0) > (best.get(way["chunks"], {}).get("ratio") or 0):
                best[way["chunks"]] = way
        parts = [f"{row[name] / 1000:.2f}" for name in ("up_us", "kernel_us", "down_us")] if "ways" in row else []
        lines += [
            [size_mb, *parts, str(count), f"{way['ratio']:.2f}", f"{way['share_of_ideal']:.2f}", way["streams"]]
            for count, way in sorted(best.items())
        ]
    head = ("MB", "up, ms", "kernel, ms", "down, ms", "chunks", "whole / chunks", "share of the ideal", "streams")
    return f"""\
### Chunks

A vector goes up, through a kernel that takes about as long as a copy, and down; pinned, overlapped. The parts were
measured by themselves; the ideal is the slowest of them and one chunk of the others.

{table(head, lines)}"""


def _ways(rows: Sequence[dict[str, Any]]) -> str:
    """Microseconds of the separate way, and the speed-up of the others over it in per cent."""
    names = list(dict.fromkeys(each["way"] for row in rows for each in row["ways"] if each["way"] != "separate"))
    lines = []
    for row in rows:
        ways = {each["way"]: each for each in row["ways"]}
        lines.append([
            row["graph"], f"{row['elements']:,}", row["memory"], _time(ways["separate"]),
            *(_gain(ways.get(name)) for name in names), rival_rows.cell(row.get("rivals")),
        ])  # fmt: skip
    return table(
        ("graph", "elements", "memory", "separate, us", *(f"{name}, %" for name in names), "over the best rival"), lines
    )


def _time(way: dict[str, Any]) -> str:
    return f"{way['time_us']:.1f}" if "time_us" in way else way.get("problem", "")


def _gain(way: dict[str, Any] | None) -> str:
    if way is None:
        return ""
    if "problem" in way:
        return str(way["problem"]).partition(":")[0]
    return f"{100 * (way['ratio'] - 1):+.1f}"


def _papers(columns_of: dict[str, Any]) -> str:
    rows = []
    for name, columns in columns_of.items():
        for length, (apart, fused) in zip(paper.LENGTHS, columns, strict=True):
            rows.append([name, f"{length:,}", str(apart), str(fused), f"{100 * (apart / fused - 1):+.1f}"])
    return table(("graph", "elements", "separate, us", "fused, us", "speed-up, %"), rows)


# --- words ----------------------------------------------------------------------------------------------


def _n(value: float) -> str:
    return f"{value:g}"
