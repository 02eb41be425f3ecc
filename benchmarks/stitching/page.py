"""docs/results-stitching.md out of the JSON files that are kept: nothing on it is typed by hand."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from benchmarks.pages import DOCS, table
from benchmarks.rivals import rival_rows
from benchmarks.runs import Run, newest
from benchmarks.stitching import paper, static
from benchmarks.stitching.modules import PLANS

PAGE = DOCS / "results-stitching.md"

HEAD = f"""\
# Stitching: results

Written by `python -m benchmarks.stitching --page` from the JSON files in benchmarks/results; do not edit it. The
paper's numbers are those of {paper.CITATION}. The modules are the eight of the catalogue, at small sizes; on a GPU
those of configs/jobs/gpu are measured, too, which are large.
"""
UNMEASURED = f"""\
## Measured on a GPU

**Not yet measured on a GPU.** On a machine with one, `python -m benchmarks.stitching` makes the measurements and
`python -m benchmarks.stitching --page` puts them here. They will be compared with the paper's: its fusable portion
became {paper.FUSION_SPEEDUP_MEAN} times as fast in the geometric mean ({paper.FUSION_SPEEDUP["W2V"]} to
{paper.FUSION_SPEEDUP["Speech"]}), whole networks {paper.END_TO_END_MEAN} times.

**Against XLA today: not yet measured on a GPU.** Where jax sees the GPU, the same command times XLA's own executable of
the same module in turn with the fastest plan. Only its kernels are counted so far, below.
"""
TITLES = {
    "unfused": "one per instruction", "xla_rules": "XLA's rules of 2018", "paper": "the paper's fusion",
    "packed": "packed", "barriers": "with grid barriers",
}  # fmt: skip


def render(runs: Iterable[Run]) -> str:
    """The page. Emulated runs are left out: they are not results."""
    runs = list(runs)
    parts = [
        HEAD,
        *([_measured(run) for run in newest(runs, "measured")] or [UNMEASURED]),
        *(part for run in newest(runs, "static") for part in _static(run)),
    ]
    return "\n\n".join(_filled(each) for each in "\n".join(parts).split("\n\n"))


def _filled(paragraph: str) -> str:
    """Its words in lines of equal length, whatever figures stand in it; tables and headings as they are."""
    if paragraph.lstrip().startswith(("|", "#", "-", "```")) or "\n|" in paragraph:
        return paragraph
    end = "\n" if paragraph.endswith("\n") else ""
    return textwrap.fill(" ".join(paragraph.split()), 120, break_on_hyphens=False, break_long_words=False) + end


def _static(run: Run) -> list[str]:
    return [_kernels(run), _bytes(run), _shared(run), _growth(run)]


# --- static ---------------------------------------------------------------------------------------------


def _kernels(run: Run) -> str:
    rows = run["modules"]
    lines = [
        [each["module"], str(each["library_calls"]), *(str(each["plans"][plan]["kernels"]) for plan in PLANS),
         *(str(each["xla"][key]) for key in ("opaque", "opaque_no_triton", "unfused")), str(each["bound"])]
        for each in rows
    ]  # fmt: skip
    ratios = [f"{static.geometric_mean(static.ratios(rows, plan)):.2f}" for plan in PLANS]
    others = [f"{static.geometric_mean(static.ratios(rows, plan, 'xla_rules')):.2f}" for plan in PLANS]
    bound = static.geometric_mean(each["bound"] / each["xla"]["opaque"] for each in rows)
    lines.append(["geometric mean over XLA today (opaque)", "", *ratios, "1.00", "", "", f"{bound:.2f}"])
    lines.append(["geometric mean over XLA's rules of 2018", "", *others, "", "", "", ""])
    more = sum(each["plans"]["packed"]["kernels"] > each["xla"]["opaque"] for each in rows)
    versions = ", ".join(f"{name} {version}" for name, version in run["xla"]["versions"].items())
    head = ("module", "library calls", *(TITLES[plan] for plan in PLANS),
            "XLA today, dots opaque", "the same without Triton", "XLA unfused", "bound")  # fmt: skip
    return f"""\
## Kernels: {run["device"]["arch"]}

{run["date"][:10]}, `{run["command"]}`, evidence: static. Launches other than library calls; every
dot is left to the library. The columns of XLA are what its GPU compiler launches for the same modules
({run["xla"]["target"]}; {versions}).

*XLA's rules of 2018* are re-implemented in outline. *Packed*: groups that do not depend on each other side by side in
one launch. *With grid barriers*: those that do, too, in a cooperative launch. *Bound*: the longest alternation of other
work and dots, as XLA has the module; a transpose beside a dot is part of the library call here (a matter of
strides), so that nmt_attn is one below it. On {more} of {len(rows)} modules the packed plan has more kernels than XLA
today. The paper:
{paper.KERNEL_RATIO_MEAN} of its XLA's in the geometric mean ({paper.KERNEL_RATIO["W2V"]} for W2V,
{paper.KERNEL_RATIO["Speech"]} for Speech). All plans passed the
check of plans (exact cover, order, shared memory, barriers, index sets).

{table(head, lines)}"""


def _bytes(run: Run) -> str:
    rows = run["modules"]
    lines = [
        [each["module"], f"{each['ideal_bytes']:,}",
         *(f"{each['plans'][plan]['bytes'] / each['ideal_bytes']:.2f}" for plan in PLANS)]
        for each in rows
    ]  # fmt: skip
    means = [
        f"{static.geometric_mean(each['plans'][plan]['bytes'] / each['ideal_bytes'] for each in rows):.2f}"
        for plan in PLANS
    ]
    lines.append(["geometric mean", "", *means])
    return f"""\
## Bytes moved

Bytes that the counted kernels read and write in global memory (each buffer once per kernel that touches it), over the
ideal: every input read once, every output and every operand of a library call written once.

{table(("module", "ideal, bytes", *(TITLES[plan] for plan in PLANS)), lines)}"""


def _shared(run: Run) -> str:
    lines = []
    for each in run["modules"]:
        ours, mine = each["plans"]["paper"], each["plans"]["packed"]
        theirs = paper.SHARED[paper.BESIDE[each["module"]]]
        lines.append([
            each["module"], f"{ours['shared_average']:,}", f"{ours['shared_most']:,}", f"{mine['shared_average']:,}",
            f"{mine['shared_most']:,}", paper.BESIDE[each["module"]], f"{theirs[0]:,}", f"{theirs[1]:,}",
        ])  # fmt: skip
    head = ("module", "the paper's fusion: average", "most", "packed: average", "most", "table 3", "average", "most")
    return f"""\
## Shared memory

Bytes per kernel. The paper's workloads are different and larger; its table 3 is shown for the order of magnitude only.

{table(head, lines)}"""


def _growth(run: Run) -> str:
    machine = run["machine"]
    lines = [
        [f"{each['lines']:,}", f"{each['instructions']:,}", f"{each['library_calls']:,}", f"{each['read_secs']:.2f}",
         f"{each['analysis_secs']:.2f}",
         *(f"{each['plans'][plan]['planning_secs']:.2f}" for plan in PLANS),
         f"{each['plans']['packed']['verify_secs']:.2f}", f"{each['plans']['packed']['kernels']:,}"]
        for each in run["growth"]
    ]  # fmt: skip
    last = run["growth"][-1]
    crossing = ", ".join(f"{TITLES[plan]} {run['crossing']['plans'][plan]['planning_secs']:.2f}" for plan in PLANS)
    powers = ", ".join(f"{TITLES[plan]} {static.exponent(run['growth'], plan):.2f}" for plan in PLANS)
    met = "met" if last["analysis_secs"] + last["read_secs"] < static.GOAL_SECS else "NOT met"
    return f"""\
## Planning times

Seconds of processor time, Python {machine["python"]} on {machine["processor"]}, on cores that other work was sharing.
Generated modules: attention, recurrent cells and dense layers with their updates, in turn. *Instructions*: those left
after duplicate and dead ones are gone. *Analysis*: all that `fusiond plan` shows, which is these five plans and a look
at their code. The goal of {static.GOAL_SECS:.0f} s for reading and analysing the largest is {met}. Between the last two
rows the time grows with this power of the number of instructions: {powers}. (Up to a number of instructions, packed
plans are made several times over, to move less; beyond it once.) A chain of {run["crossing"]["instructions"]:,}
instructions that go over the rows and the columns of a tensor in turn, of which no block has room for much: {crossing}.

{
        table(
            (
                "lines",
                "instructions",
                "library calls",
                "reading the text",
                "analysis",
                *(TITLES[plan] for plan in PLANS),
                "verifying packed",
                "kernels, packed",
            ),
            lines,
        )
    }"""


# --- measured -------------------------------------------------------------------------------------------


def _measured(run: Run) -> str:
    lines, speedups, problems, over_today = [], [], [], []
    for each in run["measured"]:
        theirs, over_theirs = each.get("xla", {}), each.get("over_xla", {})
        if "problem" in theirs:
            problems.append(f"- {each['module']}, XLA today: {theirs['problem']}")
        over_today += [over_theirs["fusion_speedup"]] if over_theirs else []
        plans = each["plans"]
        if "problem" in each:
            problems.append(f"- {each['module']}: {each['problem']}")
        problems += [f"- {each['module']}, {plan}: {one['problem']}" for plan, one in plans.items() if "problem" in one]
        times = [_time(plans.get(plan, {}), "fusable_us") for plan in PLANS]
        over = each.get("over_unfused", {})
        if over:
            speedups.append(over["fusion_speedup"])
        lines.append([
            each["module"], *times, each.get("best", ""),
            *(f"{over[key]:.3f}" if over else "" for key in
              ("fusable_ratio", "fusion_speedup", "end_to_end", "predicted_end_to_end")),
            *(f"{each['over_xla_rules'][key]:.3f}" if "over_xla_rules" in each else "" for key in
              ("fusion_speedup", "end_to_end")),
            _time(theirs, "fusable_us"), str(theirs.get("kernels", "")), _time(theirs, "call_us"),
            "{:.3f} ({:.3f} to {:.3f})".format(over_theirs["fusion_speedup"], *over_theirs["interval"])
            if over_theirs else "",
            f"{over_theirs['end_to_end']:.3f}" if over_theirs else "", rival_rows.cell(each.get("rivals")),
        ])  # fmt: skip
    mean = f"{static.geometric_mean(speedups):.2f}" if speedups else "not known"
    head = ("module", *(f"{TITLES[plan]}, us" for plan in PLANS), "fastest stitched", "fusable ratio",
            "fusion speed-up", "end to end", "predicted", "fusion speed-up over XLA's rules", "end to end",
            "XLA today, us", "its kernels", "its call, us", "against XLA today", "end to end",
            "over the best rival")  # fmt: skip
    today = _today(run, over_today)
    told = "\n".join(["Not there:", "", *problems, ""]) if problems else ""
    return f"""\
## Measured: {run["device"]["model"]}

{run["date"][:10]}, nvcc {run["nvcc"]}, driver {run["driver"]}, `{run["command"]}`, evidence: {run["evidence"]}. Times
of the fusable portion, library calls left out; those are plain kernels, the same in every plan, and part of the
end-to-end columns.
Speed-ups are of the fastest stitched plan over one kernel per instruction unless the column says
otherwise. The fusable portion's geometric mean is {mean}; the paper's, over its XLA: {paper.FUSION_SPEEDUP_MEAN}.

{today}

{table(head, lines)}{told}{_absent(run)}"""


def _absent(run: Run) -> str:
    """The rivals without a figure."""
    return rival_rows.told_absent((each["module"], each.get("rivals")) for each in run["measured"])


def _today(run: Run, speedups: Sequence[float]) -> str:
    """What the columns of XLA's own executable mean, or why they are empty."""
    device = run.get("xla_executable", {"problem": "not asked for"})
    if "problem" in device:
        return f"XLA today was not timed in this run: {device['problem']}."
    versions = ", ".join(f"{name} {version}" for name, version in device["versions"].items())
    mean = f"{static.geometric_mean(speedups):.2f}" if speedups else "not known"
    slower = sum(each < 1 for each in speedups)
    return f"""\
*XLA today* ({versions}, on {device["device"]}): the sum over its executable's own kernels and copies as the profiler of
jax times them, without the gaps between them, which our times contain. *Its call*: wall clock over many calls that do
not wait for one another, library kernels and launches in it. *Against XLA today*: its fusable portion over that of the
fastest stitched plan, in turn in the same run (smallest to largest of the rounds); *end to end* puts XLA's library
kernels beside both. The geometric mean is {mean}; slower than XLA on {slower} of {len(speedups)} modules."""


def _time(plan: Run, key: str) -> str:
    return f"{plan[key]:.1f}" if key in plan else ""
