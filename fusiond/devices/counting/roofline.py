"""Draws an instruction roofline of a GPU with one point per launch, as SVG.

Across: instructions of warps per sector of DRAM traffic; up: instructions of warps per second, at the most that the
launch's lower bound in time allows (Ding and Williams, "An Instruction Roofline Model for GPUs", PMBS 2019, of which
this is the DRAM level). A point on the slanted roof waits for DRAM, one on the flat roof for issue slots, one below
both for what is named beside it. matplotlib lives here.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusiond.devices.counting.model import Gpu
from fusiond.model.errors import RequestError

_MARKS = "osD^vP*X"
SECTOR_BYTES = 32


def draw(rows: Sequence[Mapping[str, Any]], gpu: Gpu, path: Path, title: str) -> None:
    """Write the picture of a plan's counted rows. RequestError where matplotlib is missing, no launch was counted, or
    the file cannot be written."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise RequestError("matplotlib is not installed: pip install 'fusiond[plot]'", where="--svg") from None
    points = of_rows(rows)
    if not points:
        raise RequestError("no launch was counted that there would be a picture of", where="--svg")
    issue = issue_slots_per_ns(gpu)
    across = [each[1] for each in points]
    knee = issue / sectors_per_ns(gpu)
    low, high = min(*across, knee) / 4, max(*across, knee) * 4
    with rc_context({"svg.hashsalt": "fusiond", "svg.fonttype": "none"}):  # the same file every time
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.add_subplot()
        axes.loglog([low, knee, high], [low * sectors_per_ns(gpu), issue, issue], color="black", linewidth=1)
        axes.annotate(
            f"DRAM {gpu.dram_gbs:.0f} GB/s", (low, low * sectors_per_ns(gpu)), rotation=30, va="bottom", fontsize=8
        )
        axes.annotate(f"issue slots {issue:.0f} Ginstr/s", (high, issue), ha="right", va="bottom", fontsize=8)
        programs = list(dict.fromkeys(row["program"] for row, _, _ in points))
        for number, program in enumerate(programs):
            own = [each for each in points if each[0]["program"] == program]
            axes.scatter(
                [each[1] for each in own], [each[2] for each in own], label=program, alpha=0.8,
                marker=_MARKS[number % len(_MARKS)],
            )  # fmt: skip
            for row, x, y in own:
                text = f"{row['launch']}: {row['binding']}"
                axes.annotate(text, (x, y), xytext=(4, -9), textcoords="offset points", fontsize=7)
        axes.set_xlabel("instructions of warps per DRAM sector")
        axes.set_ylabel("Ginstr/s at the lower bound in time")
        axes.set_title(f"{title}: counted for {gpu.name}, nothing is measured", fontsize=10)
        axes.legend(loc="lower right", fontsize=8)
        try:
            figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        except OSError as problem:
            raise RequestError(f"cannot write {path}: {problem.strerror}", where="--svg") from None


def of_rows(rows: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], float, float]]:
    """(row, across, up) of each launch that has a place in the picture."""
    points = [(row, *point(row)) for row in rows if row["failed"] is None and row["bound_us"]]
    return [each for each in points if each[1] > 0]


def issue_slots_per_ns(gpu: Gpu) -> float:
    """1e9 instructions of warps a second, at the most."""
    return gpu.multiprocessors * gpu.issue_warps * gpu.clock_mhz / 1e3


def sectors_per_ns(gpu: Gpu) -> float:
    """1e9 sectors a second, between DRAM and the L2."""
    return gpu.dram_gbs / SECTOR_BYTES


def point(row: Mapping[str, Any]) -> tuple[float, float]:
    """Intensity, 1e9 instructions a second; of PTX where nobody could disassemble."""
    if row["warp_instructions"] is not None:
        instructions = sum(row["warp_instructions"].values())
    else:
        instructions = row["ptx_instructions"] / 32
    sectors = row["dram_bytes"] / SECTOR_BYTES
    return (instructions / sectors if sectors else 0.0), instructions / row["bound_us"] / 1e3
