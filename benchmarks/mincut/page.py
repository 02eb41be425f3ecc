"""docs/results-mincut.md out of the JSON files that are kept: nothing on it is typed by hand."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.mincut import counted, paper
from benchmarks.pages import DOCS, table
from benchmarks.rivals import rival_rows
from benchmarks.runs import Run, newest

COUNTS = ("ptx_instructions", "instructions", "global_accesses", "shared_wavefronts", "dram_bytes", "spill_bytes")
METHODS = ("basic", "algorithm1", "exact", "general")
PAGE = DOCS / "results-mincut.md"

HEAD = f"""\
# Image pipelines: results

Written by `python -m benchmarks.mincut --page` from the JSON files in benchmarks/results; do not edit it. The paper's
numbers are those of {paper.CITATION} (tables I and II): GTX 745, GTX 680 and K20c.
"""


def render(runs: Iterable[Run]) -> str:
    """The page. Emulated runs are left out: they are not results."""
    runs = list(runs)
    return "\n".join([
        HEAD,
        *([_measured(run) for run in newest(runs, "measured")] or [_unmeasured()]),
        *(_counted(run) for run in newest(runs, "counted")),
    ])  # fmt: skip


def _paper(name: str) -> list[str]:
    optimized, basic = paper.OPTIMIZED_OVER_BASELINE[name], paper.BASIC_OVER_BASELINE[name]
    return [" / ".join(f"{each:.2f}" for each in basic), " / ".join(f"{each:.2f}" for each in optimized)]


def _unmeasured() -> str:
    rows = [
        [name, *_paper(name), *(f"{each:.2f}" for each in paper.GEOMETRIC_MEAN[name])] for name in paper.APPLICATIONS
    ]
    head = ("application", "paper: basic", "paper: Algorithm 1", "mean: Algorithm 1", "mean: basic")
    return f"""\
## Measured on a GPU

**Not yet measured on a GPU.** On a machine with one, `python -m benchmarks.mincut` makes the measurements and
`python -m benchmarks.mincut --page` puts them here. These are the paper's speed-ups over its unfused kernels, which
they will stand beside:

{table(head, rows)}"""


def _measured(run: Run) -> str:
    rows = []
    for each in run["applications"]:
        found, given = each.get("answer"), each.get("methods")
        if not found or not given:
            rows.append(
                [each["application"], each.get("problem") or "no answer", *[""] * 10, *_paper(each["application"])]
            )
            continue
        gain = "" if found["speedup"] is None else f"{found['speedup']:.3f}"
        interval = "" if found["ci95"] is None else f"{found['ci95'][0]:.3f} to {found['ci95'][1]:.3f}"
        sums = {every["partition"]: every["blocks_us"] for every in each.get("sums", ())}
        chosen = sums.get((given.get("algorithm1") or {}).get("partition"))
        gap = f"{100 * (chosen / min(sums.values()) - 1):.1f}" if chosen else ""
        rows.append([
            each["application"], found["verdict"], gain, interval, found["baseline"],
            rival_rows.cell(each.get("rivals")),
            *(_number((given.get(name) or {}).get("over_given")) for name in METHODS),
            _number((given.get("algorithm1") or {}).get("best_over_given")), gap, *_paper(each["application"]),
        ])  # fmt: skip
    head = ("application", "verdict", "tuned, over the fastest unfused way", "95 % interval", "that way",
            "over the best rival", "basic", "Algorithm 1", "exact by the model", "all that can be fused",
            "Algorithm 1, best shapes", "gap of Algorithm 1 to the best sum of measured blocks, %",
            "paper: basic", "paper: Algorithm 1")  # fmt: skip
    return f"""\
## Measured: {run["device"]["model"]}

{_origin(run)} The verdict is the tuner's, over the fastest unfused way. The columns behind it are search samples at
default shapes, over the unfused kernels one after the other at default shapes, which is what the paper compares with.
Rivals are array frameworks that run the same pipeline; the fastest of them is named, beside the answer.

{table(head, rows)}
{rival_rows.told_absent((each["application"], each.get("rivals")) for each in run["applications"])}"""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _counted(run: Run) -> str:
    rows = [
        [each["application"], each["way"] + (", the same bit for bit" if each.get("equal") else ""),
         str(each["launches"]), *("" if each[key] is None else f"{each[key]:.1f}" for key in COUNTS)]
        for each in run["counted"]
    ]  # fmt: skip
    head = ("application", "way", "launches", "PTX instructions", "SASS instructions", "global accesses",
            "shared wavefronts", "DRAM bytes", "spilled bytes")  # fmt: skip
    return f"""\
## What the kernels ask of a GPU

{_origin(run)} Counted on the processor for an H100, of one pixel of {counted.SIDE} x {counted.SIDE}, edges included
([counting.md](counting.md)). `rows` are strips (mincut-kernels.md). No times: what is fewer here need not be faster.

{table(head, rows)}"""


def _origin(run: Run) -> str:
    return f"{run['date'][:10]}, `{run['command']}`, {run['machine']['cores']} cores ({run['machine']['processor']})."
