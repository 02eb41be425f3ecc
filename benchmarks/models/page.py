"""docs/results-models.md, of the runs that are kept."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.models.counted import moved
from benchmarks.models.models import STEPS
from benchmarks.pages import DOCS, table
from benchmarks.runs import Run
from fusiond.cli.counts import size

PAGE = DOCS / "results-models.md"
FAR = 1.1  #: Times its least that a region moves, from which on it is named
HEAD = """# Training steps of whole models

`python -m benchmarks.models`: GPT-2-small's step (12 layers, width 768, 12 heads, 8 sequences of 1024 tokens, 50257
logits, tied embedding, no dropout; loss, gradients, their norm clipped, AdamW over the tree) and the loss and gradients
of a layer of llama-7B (width 4096, 32 heads, hidden 11008, one sequence of 2048), written plainly in JAX and PyTorch;
scores of attention are in memory. Parameters, statistics and AdamW's state are float32, activations as the first column
says. The step is cut by what `fusiond.jax.fuse` and `torch.compile(..., backend="fusiond")` call; equal regions are
planned once, and no array is made.

## Launches and bytes, counted

For an H100 that is not here ([counting.md](counting.md)). *Regions*: those that are asked for (in brackets: different
ones), with the kernels of the first seed, before any search; *least*: all their inputs read once, all their outputs
written once. *Rest*: what XLA compiles around these kernels: it launches what is too little to fuse, and lays arrays as
a region wants them. *XLA*: what it makes of the step alone. XLA's bytes are by operands, the least that its kernels can
move, and a region's are those of DRAM behind a cache: XLA is shown at its best. What library calls move is left out on
both sides.
"""
TORCH = """PyTorch's graphs are those of Inductor's passes for a processor: torch makes no gradients of a GPU's tensors
without one. *Calls*: operators that stay torch's and compute something; *little*: regions that do too little to be
asked for. What Inductor would launch is not counted without a GPU.
"""
UNMEASURED = "Not yet measured on a GPU: `python -m benchmarks.models --device cuda:0 --tune 20`.\n"


def render(kept: Iterable[Run]) -> str:
    """The page; what is not there is said."""
    runs = list(kept)
    counted = [line for run in runs if run["evidence"] == "counted" and run["steps"] for line in _counted(run)]
    measured = [line for run in runs if run["evidence"] == "measured" and run.get("vouched") for line in _measured(run)]
    return "\n".join([HEAD, *(counted or ["Not counted yet.\n"]), "## Milliseconds\n", *(measured or [UNMEASURED])])


def _counted(run: Run) -> Iterator[str]:
    steps = run["steps"]
    head: tuple[str, ...] = ("regions", "calls", "launches: regions + rest", "XLA", "DRAM of regions", "x least")
    yield table(
        ("JAX", *head, "bytes with rest", "XLA"), [_jax(name, each) for name, each in steps.items() if "xla" in each]
    )
    head = ("regions", "calls", "little", "launches of regions", "Inductor", "DRAM of regions", "x least")
    yield TORCH
    yield table(("PyTorch", *head), [_torch(name, each) for name, each in steps.items() if "xla" not in each])
    refused = [f"{count} of {name} ({why})" for name, each in steps.items() for why, count in each["refused"].items()]
    reckoned = [f"{each['uncounted']} of {name}" for name, each in steps.items() if each["uncounted"]]
    lacking = [name for name in STEPS if name not in steps]
    ahead = [f"{name} ({_moved(each) / each['xla']['operand_bytes']:.2f})" for name, each in steps.items()
             if "xla" in each and _moved(each) > each["xla"]["operand_bytes"]]  # fmt: skip
    lists = {
        "XLA may move fewer bytes (ours over its)": ahead,
        "Regions that are refused": refused,
        "Steps that are not counted yet": lacking,
        "Regions too large to be counted, whose bytes the planner reckons": reckoned,
    }
    for what, named in lists.items():
        yield textwrap.fill(f"{what}: {'; '.join(named) or 'none'}.", 120) + "\n"
    yield f"Regions that move more than {FAR:g} times their least:\n"
    far = [
        (name, each["name"], str(times), str(each["kernels"]), size(each["least_bytes"]),
         f"{moved(each) / each['least_bytes']:.2f}")
        for name, step in steps.items()
        for times, each in ((times, run["regions"][digest]) for digest, times in step["digests"].items())
        if not each["refused"] and moved(each) > FAR * each["least_bytes"]
    ]  # fmt: skip
    yield table(("step", "region", "times", "launches", "least", "x least"), far)
    cut, planned = (max(each[secs] for each in steps.values()) for secs in ("cut_secs", "plan_secs"))
    yield textwrap.fill(
        f"Tracing and cutting a step took at most {cut:.0f} s by the clock of a busy shared box, planning and emitting "
        f"its regions {planned:.0f} s of a processor.", 120,
    ) + "\n"  # fmt: skip
    yield f"`{run['command']}`, {run['date'][:10]}, nvcc {run['nvcc']}.\n"


def _moved(step: dict[str, Any]) -> int:
    return int(step["dram_bytes"] + step["rest"]["operand_bytes"])


def _jax(name: str, step: dict[str, Any]) -> tuple[str, ...]:
    rest, xla = step["rest"], step["xla"]
    launches = f"{step['launches']} + {rest['kernels']} = **{step['launches'] + rest['kernels']}**"
    return (
        name.removesuffix("/jax"), f"{step['regions']} ({step['different']})", str(rest["calls"]), launches,
        f"**{xla['kernels']}**", size(step["dram_bytes"]), f"{step['dram_bytes'] / step['least_bytes']:.2f}",
        f"**{size(_moved(step))}**", f"**{size(xla['operand_bytes'])}**",
    )  # fmt: skip


def _torch(name: str, step: dict[str, Any]) -> tuple[str, ...]:
    return (
        name.removesuffix("/torch"), f"{step['regions']} ({step['different']})", str(step["calls"]), str(step["small"]),
        f"**{step['launches']}**", "not counted", size(step["dram_bytes"]),
        f"{step['dram_bytes'] / step['least_bytes']:.2f}",
    )  # fmt: skip


def _measured(run: Run) -> Iterator[str]:
    rows: list[tuple[str, ...]] = []
    for each in run["steps"]:
        states = ", ".join(f"{count} {state}" for state, count in each["regions"].items() if state != "library")
        if each["failed"]:
            rows.append((each["name"], states, each["failed"], "", ""))
            continue
        base = next(iter(each["ms"]))
        for other, (median, low, high) in each["gain"].items():
            ms = (f"{name} {each['ms'][name]:.2f} ms" for name in (base, other))
            rows.append((each["name"], states, *ms, f"**{median:.3f}** ({low:.3f} to {high:.3f})"))
    yield f"### {run['device']['model']}\n"
    yield table(("step", "regions", "", "", "times as fast (95 %)"), rows)
    yield f"`{run['command']}`, {run['date'][:10]}, driver {run['driver']}; medians, in turns; outputs were compared.\n"
