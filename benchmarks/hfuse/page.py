"""docs/results-hfuse.md out of the JSON files that are kept: nothing on it is typed by hand."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.hfuse import paper, static
from benchmarks.hfuse.pairs import PAIRS
from benchmarks.pages import DOCS, table
from benchmarks.rivals import rival_rows
from benchmarks.runs import Run, newest

PAGE = DOCS / "results-hfuse.md"

HEAD = f"""\
# Horizontal fusion: results

Written by `python -m benchmarks.hfuse --page` from the JSON files in benchmarks/results; do not edit it. The pairs, the
categories and the paper's numbers are those of {paper.CITATION}, section IV (figures 7 to 9).
"""

UNMEASURED = """\
## Measured on a GPU

**Not yet measured on a GPU.** On a machine with one, `python -m benchmarks.hfuse` makes the measurements and
`python -m benchmarks.hfuse --page` puts them here. These are the paper's numbers (the speed-up of its
fused kernel over two streams in per cent, without and with the register bound r0), which they will stand beside:
"""


def render(runs: Iterable[Run]) -> str:
    """The page. Emulated runs are left out: they are not results."""
    runs = list(runs)
    measured = newest(runs, "measured")
    parts = [HEAD, *(_measured(run) for run in measured)]
    if not measured:
        parts.append(UNMEASURED + "\n" + table(PAPER_HEAD, [[each.name, *_paper(each.name)] for each in PAIRS]))
    parts += [_counted(run) for run in newest(runs, "counted")]
    parts += [_static(run) for run in newest(runs, "static")]
    return "\n".join(parts)


# --- measured -------------------------------------------------------------------------------------------

PAPER_HEAD = ("pair", *(f"{gpu}: {side}" for gpu in paper.GPUS for side in ("no bound", "r0")))


def _paper(name: str) -> list[str]:
    row = paper.FIGURE_9[name]
    return [_signed(side.speedup_pct[gpu]) for gpu in (0, 1) for side in (row.free, row.capped)]


def _measured(run: Run) -> str:
    rows = []
    for each in run["pairs"]:
        points = [point for point in each.get("points", ()) if point["ratio"] and point.get("answer")]
        if not points:
            rows.append([each["pair"], *[""] * 10, *_paper(each["pair"])])
            continue
        at = min(points, key=lambda point: max(point["ratio"], 1 / point["ratio"]))
        given = at["answer"]
        gain = "" if given["speedup"] is None else f"{given['speedup']:.3f}"
        interval = "" if given["ci95"] is None else f"{given['ci95'][0]:.3f} to {given['ci95'][1]:.3f}"
        rows.append([
            each["pair"], f"{at['ratio']:.2f}", given["verdict"], gain, interval, rival_rows.cell(each.get("rivals")),
            *(_over_streams(at.get(key)) for key in ("hfuse_free", "hfuse_capped", "naive", "naive_r0", "vertical")),
            *_paper(each["pair"]),
        ])  # fmt: skip
    head = ("pair", "ratio of times", "verdict", "speed-up over the fastest unfused way", "95 % interval",
            "over the best rival", "no cap", "capped", "even split", "even split, r0", "vertical",
            *(f"paper, {each}" for each in PAPER_HEAD[1:]))  # fmt: skip
    counted = [each for each in run["pairs"] if each.get("representative")]
    return f"""\
## Measured: {run["device"]["model"]}

{_origin(run)} At the point of each sweep where the two kernels take most equally long. The verdict is the tuner's, over
the fastest unfused way; the columns behind it are search samples, in per cent over two streams, which is what the
paper calls native. "No cap" and "capped" are the best of the paper's form; the verdict's candidate may be of another.
Rivals issue the unfused kernels in the ways that CUDA offers; the fastest of them is named, beside the answer.

{table(head, rows)}
{_absent(run)}{_counters(counted)}"""


def _absent(run: Run) -> str:
    """The rivals without a figure."""
    return rival_rows.told_absent((each["pair"], each.get("rivals")) for each in run["pairs"])


def _over_streams(entry: dict[str, Any] | None) -> str:
    if not entry or entry.get("over_streams") is None:
        return ""
    return _signed(100 * (entry["over_streams"] - 1))


def _counters(rows: Sequence[dict[str, Any]]) -> str:
    lines, reasons = [], []
    for each in rows:
        found, row = each["representative"], paper.FIGURE_9[each["pair"]]
        for key, side, said in (("hfuse_free", row.free, "no cap"), ("hfuse_capped", row.capped, "capped")):
            ours = found[key]
            if ours["reason"]:
                reasons.append(ours["reason"])
            lines.append([
                each["pair"], said, _one(ours["issue_slot_pct"]), _one(found["native_issue_slot_pct"]),
                _one(ours["memory_stall_pct"]), _one(ours["occupancy_pct"]),
                f"{side.issue_slot_pct[1]}", f"{row.native_issue_slot_pct[1]}", f"{side.memory_stall_pct[1]}",
                f"{side.occupancy_pct[1]}",
            ])  # fmt: skip
    if not lines:
        return ""
    if len(reasons) == len(lines):
        return f"Issue slots and stalls: not measured ({reasons[0]}).\n"
    head = ("pair", "", "issue slots, %", "native", "memory stalls, %", "occupancy, %", "V100: issue slots", "native",
            "memory stalls", "occupancy")  # fmt: skip
    return table(head, lines)


# --- counted ---

WAYS = {
    "native": "native", "paper_even_split": "even split", "paper_r0": "even split, r0", "vertical": "vertical",
    "block_multiprocessor": "block level",
}  # fmt: skip
"""As `counted.py` keeps them -> as the page heads them."""


def _counted(run: Run) -> str:
    rows = []
    for each in run["pairs"]:
        row = paper.FIGURE_9[each["pair"]]
        slots = (row.native_issue_slot_pct[1], row.free.issue_slot_pct[1], row.capped.issue_slot_pct[1])
        told = [_way(each["ways"].get(name)) for name in WAYS]
        rows.append([each["pair"], *told, " / ".join(f"{value:g}" for value in slots)])
    failed = {found["failed"] for each in run["pairs"] for found in each["ways"].values() if found["failed"]}
    notes = "".join(f"\nNot counted: {why}.\n" for why in sorted(failed))
    left_out = [each.name for each in PAIRS if each.name not in {row[0] for row in rows}]
    if left_out:
        notes += textwrap.fill(
            f"{len(left_out)} of the {len(PAIRS)} pairs are not counted yet: {', '.join(left_out)}. "
            f"`python -m benchmarks.hfuse --counted {run['device']['model']} --go-on --pairs ...` counts them; pairs "
            f"of hashes take about ten minutes each.",
            120,
            initial_indent="\n",
            break_on_hyphens=False,
        )
        notes += "\n"
    return f"""\
## Counted: {run["device"]["model"]} ({run["device"]["arch"]})

{_origin(run)}

Nothing is measured: each entry is the least time that the counted work takes on this GPU, the part of it that needs so
long, and how many of the issue slots of that time the instructions of all warps take. A kernel that leaves slots empty
waits, and what is fused with it can fill them; where native has none to give, fusing has nothing to gain. A share that
is missing is not known: sampled without a known error. The paper's column is what a V100's issue slots were used for:
native, fused without a bound, and with r0.

{table(("pair", *WAYS.values(), "V100: issue slots, %"), rows)}{notes}"""


def _way(found: dict[str, Any] | None) -> str:
    if found is None:
        return "none"
    if found["failed"]:
        return "not counted"
    sure = found["slots_pct"] is not None and found.get("error") is not None
    slots = f", {found['slots_pct']:.0f} %" if sure else ""
    return f"{found['bound_us']:.1f} us ({found['binding']}{slots})"


# --- static ---------------------------------------------------------------------------------------------


def _static(run: Run) -> str:
    natives: dict[str, dict[str, Any]] = {}
    rows = []
    for each in run["pairs"]:
        natives |= each.get("native", {})
        row = paper.FIGURE_9[each["pair"]]
        split = (each.get("paper_even_split") or {}).get("config") or {}
        threads = " + ".join(str(split[name]) for name in ("threads.a", "threads.b") if name in split)
        capped = each.get("paper_r0") or {}
        cap = (capped.get("config") or {}).get("cap", "")
        rows.append([
            each["pair"], threads, _facts(each, "paper_even_split"), str(cap), _facts(each, "paper_r0"),
            _facts(each, "vertical"), f"{row.free.occupancy_pct[1]} / {row.capped.occupancy_pct[1]}",
        ])  # fmt: skip
    alone = [
        [name, str(found["threads"]), _short(found), str(found["barriers"]), str(found["shared_bytes"]),
         found["limited_by"], f"{paper.FIGURE_8[name].occupancy_pct[1]}"]
        for name, found in sorted(natives.items())
    ]  # fmt: skip
    parts = [
        f"## Static: {run['device']['arch']}",
        f"{_origin(run)} Each entry is registers / bytes spilled / theoretical occupancy. The paper's is what "
        "a V100 achieved, which cannot be above what is possible there; it predicts nothing for another architecture.",
        "### The kernels by themselves",
        table(("kernel", "threads", "as given", "barriers", "shared bytes", "limited by", "V100, %"), alone).rstrip(),
        "### Fused",
        table(
            ("pair", "even split", "without a bound", "r0", "under r0", "vertical", "V100, no bound / r0, %"), rows
        ).rstrip(),
    ]
    if refused := [(each["pair"], each["refused"]) for each in run["pairs"] if each.get("refused")]:
        said = [f"- {pair}: {name}: {reason}" for pair, several in refused for name, reason in several.items()]
        parts.append("\n".join(["Not there:", "", *said]))
    parts += [_registers(run).rstrip(), _cost(run)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _cost(run: Run) -> str:
    """What finding it out cost."""
    written, spaces = run.get("generation") or [], run.get("spaces") or []
    if not written and not spaces:
        return ""
    lines = ["### What it costs", ""]
    if written:
        worst = max(each["worst_cpu_ms"] for each in written)
        medians = sorted(each["median_cpu_ms"] for each in written)
        lines.append(
            f"Writing one fused candidate, once its kernels are parsed: {medians[0]} to {medians[-1]} ms of processor "
            f"time (the medians of {len(written)} pairs), at worst {worst} ms."
        )
    for each in spaces:
        secs = each["secs"]
        lines += [
            "",
            f"All partitions of {each['pair']} in both orders, under every cap ({each['points']} points, "
            f"{each['refused_by_a_static_limit']} of them refused by a static limit, {each['repeated']} the same as "
            f"another): nvcc ran {each['nvcc_runs']} times, ptxas {each['ptxas_runs']} times, in {secs['wall']} s on "
            f"{each['threads']} cores ({secs['cpu']} s of processor time; {secs['writing']} s to write the texts, "
            f"{secs['nvcc_and_first_ptxas']} s nvcc with the first ptxas, {secs['ptxas_under_caps']} s ptxas under "
            f"the caps); {each['failed']} did not build. The machine's cores were shared with other work.",
        ]
    return "\n".join(lines)


def _registers(run: Run) -> str:
    """Whether seeds have more registers than the native kernels ask for, though no cap of theirs lets them."""
    pairs = [each for each in run["pairs"] if each.get("registers")]
    if not pairs:
        return ""
    told = []
    for cap, said in (("native", "under the cap `native`"), ("none", "without any cap (the paper's even split)")):
        seeds = sum(known["cap"] == cap for each in pairs for known in each["registers"].values())
        more = [
            f"{each['pair']} {name} {count:+d}" for each in pairs for name, count in static.over(each, (cap,)).items()
        ]
        told.append(f"of {seeds} seeds {said} {', '.join(more) if more else 'none'}")
    return (
        f"### Registers\n\nMore than the native kernel that has most, and {static.MARGIN} more: {'; '.join(told)}. A "
        "thread's registers are handed out eight at a time.\n"
    )


def _facts(each: dict[str, Any], name: str) -> str:
    found = each.get(name)
    return _short(found) if found else "none"


def _short(found: dict[str, Any]) -> str:
    return f"{found['registers']} / {found['spill_bytes']} / {100 * found['occupancy']:.1f} %"


# --- words ----------------------------------------------------------------------------------------------


def _origin(run: Run) -> str:
    driver = f", driver {run['driver']}" if run["evidence"] == "measured" else ""
    later = "".join(f"; on {each['date'][:10]} `{each['command']}`" for each in run.get("gone_on", ()))
    return f"{run['date'][:10]}, nvcc {run['nvcc']}{driver}, `{run['command']}`{later}, evidence: {run['evidence']}."


def _signed(value: float) -> str:
    return f"{value:+.1f}"


def _one(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
