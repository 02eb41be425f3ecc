"""Rivals that a benchmark measures by means of its own, as rows like those of the children.

stitching   XLA: its executable is profiled in turn with our fastest plan, since its library calls are to be told
            from its own kernels, which no pair of events can do
transfer    copies in batches and CUDA graphs: ways of the benchmark, in pairs with the separate messages
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.rivals.rival_rows import Row

XLA = {"name": "XLA", "what": "XLA's own executable, fusable portions by the profiler of jax"}
COPIES = {"batch": "cudaMemcpyBatchAsync", "graph": "CUDA graph"}
"""Way of the transfer benchmark -> the rival that it is."""


def stitching(row: Mapping[str, Any], *, why: str) -> list[Row]:
    """XLA beside a module's row. `why`: the reason where it was not asked."""
    theirs, over = row.get("xla", {}), row.get("over_xla", {})
    found: Row = dict(XLA)
    if over:
        rounds = theirs["rounds"]
        found |= {
            "ratio": over["fusion_speedup"],
            "time_us": theirs["fusable_us"],
            "ours_us": sorted(each["ours_us"] for each in rounds)[len(rounds) // 2],
            "clock": "profiler",
        }
    else:
        found["problem"] = theirs.get("problem") or ("XLA gives all of it to libraries" if theirs else why)
    return [found]


def transfer(rows: Sequence[Mapping[str, Any]], *, emulated: bool) -> list[Row]:
    """The rivals among a table's ways, beside the fastest of ours. All have ratios over the same separate messages."""
    ours = [each for each in rows if each["way"] not in COPIES and each["way"] != "separate" and each.get("ratio")]
    best = max(ours, key=lambda each: float(each["ratio"]), default=None)
    found: list[Row] = []
    for way, name in COPIES.items():
        row: Row = {"name": name, "what": f"the way {way!r}"}
        theirs = next((each for each in rows if each["way"] == way), None)
        if emulated:
            row["problem"] = "rivals are measured on a GPU"
        elif theirs is None:
            row["problem"] = "it holds no allocations, pageable copies or kernels of the host"
        elif not theirs.get("ratio"):
            row["problem"] = theirs.get("problem", "not measured")
        elif best is None:
            row["problem"] = "there is nothing of ours to stand beside"
        else:
            row |= {
                "ratio": round(best["ratio"] / theirs["ratio"], 4),
                "time_us": theirs["time_us"],
                "ours_us": best["time_us"],
                "clock": theirs["clock"],
            }
        found.append(row)
    return found
