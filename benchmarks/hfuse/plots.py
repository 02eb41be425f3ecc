"""The figures, as PNG and SVG, the paper's numbers beside ours. Emulated times are never drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.hfuse import paper
from benchmarks.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MISSING = "no plots: matplotlib is not installed (pip install '.[bench]')"
MARKERS = (
    ("hfuse", "HFUSE", "o", "tab:blue"),
    ("naive", "even split", "^", "tab:orange"),
    ("vertical", "vertical", "s", "tab:green"),
)
PAPER = (("1080 Ti", "0.55", 0), ("V100", "0.25", 1))


def draw(run: Run, folder: Path) -> list[Path]:
    """Every figure that the run has numbers for. ImportError where matplotlib is missing; ValueError for emulated."""
    if run["evidence"] == "emulated":
        raise ValueError("emulated times are not drawn: they say nothing about a GPU")
    import matplotlib  # optional

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "fusiond"
    figures: tuple[tuple[str, Callable[[Run], Figure | None]], ...] = (
        (("occupancy", static),) if run["evidence"] == "static"
        else (("figure7", figure7), ("figure8", figure8), ("figure9", figure9))
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, make in figures:
        figure = make(run)
        if figure is None:
            continue
        for suffix in ("png", "svg"):
            path = folder / f"{name}.{suffix}"
            figure.savefig(path, dpi=120)
            written.append(path)
    return written


def _grid(count: int, size: tuple[float, float], title: str) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure  # not pyplot: no global state

    across = min(4, count)
    down = -(-count // across)
    figure = Figure(figsize=(size[0] * across, size[1] * down), layout="constrained")
    figure.suptitle(title)
    axes = [figure.add_subplot(down, across, number + 1) for number in range(count)]
    return figure, axes


def title(run: Run, what: str) -> str:
    model = run["device"].get("model") or run["device"]["arch"]
    return f"{what}\n{model}, {run['evidence']}, {run['date'][:10]}; grey: {paper.CITATION}"


def figure7(run: Run) -> Figure | None:
    """Speed-up over two streams against the ratio of execution times; a subplot for each pair."""
    swept = [each for each in run["pairs"] if any(point["ratio"] for point in each.get("points", ()))]
    if not swept:
        return None
    figure, axes = _grid(len(swept), (3.6, 2.8), title(run, "Speed-up over two streams (figure 7)"))
    for each, on in zip(swept, axes, strict=True):
        points = [point for point in each["points"] if point["ratio"] and point.get("answer")]
        for key, label, marker, colour in MARKERS:
            known = [(point["ratio"], _percent(point[key])) for point in points if _percent(point.get(key)) is not None]
            if known:
                gains = [gain for _, gain in known if gain is not None]
                on.plot([ratio for ratio, _ in known], gains, marker, color=colour, label=label, linestyle="none")
                on.axhline(sum(gains) / len(gains), color=colour, linewidth=0.8)
        row = paper.FIGURE_9[each["pair"]]
        for name, colour, gpu in PAPER:
            best = max(row.free.speedup_pct[gpu], row.capped.speedup_pct[gpu])
            on.plot([1.0], [best], "*", color=colour, markersize=10, label=f"paper, {name}")
        on.axhline(0, color="black", linewidth=0.5)
        on.set_xscale("log")
        on.set_title(_starred(each), fontsize=9)
        on.set_xlabel(f"time of {each['pair'].replace('+', ' / ')}", fontsize=7)
        on.set_ylabel("speed-up, %", fontsize=7)
    axes[0].legend(fontsize=6)
    return figure


def _starred(each: dict[str, Any]) -> str:
    varied = each["swept"].partition(".")[0]
    return str(each["pair"].replace(varied, f"{varied}*"))


def _percent(entry: dict[str, Any] | None) -> float | None:
    if not entry or entry.get("over_streams") is None:
        return None
    return 100 * (float(entry["over_streams"]) - 1)


def figure8(run: Run) -> Figure | None:
    """The kernels by themselves: issue slots, memory stalls, achieved occupancy."""
    ours: dict[str, dict[str, Any]] = {}
    for each in run["pairs"]:
        for name, found in ((each.get("representative") or {}).get("native") or {}).items():
            if found["issue_slot_pct"] is not None:
                ours.setdefault(name, found)
    if not ours:
        return None
    names = [name for name in paper.FIGURE_8 if name in ours]
    fields = ("issue_slot_pct", "memory_stall_pct", "occupancy_pct")
    figure, axes = _grid(len(fields), (5, 3.2), title(run, "Single kernels (figure 8)"))
    for key, on in zip(fields, axes, strict=True):
        series = [("here", "tab:blue", [ours[name][key] or 0.0 for name in names])]
        for name, colour, gpu in PAPER:
            series.append((name, colour, [getattr(paper.FIGURE_8[each], key)[gpu] for each in names]))
        _bars(on, names, series, key.replace("_pct", ", %").replace("_", " "))
    axes[0].legend(fontsize=7)
    return figure


def figure9(run: Run) -> Figure | None:
    """The fused kernels, with and without the register cap: speed-up, issue slots, memory stalls, occupancy."""
    rows = [each for each in run["pairs"] if each.get("representative")]
    if not rows:
        return None
    fields = ("speedup_pct", "issue_slot_pct", "memory_stall_pct", "occupancy_pct")
    sides = (("hfuse_free", "free", "no cap"), ("hfuse_capped", "capped", "capped"))
    figure, axes = _grid(8, (6, 3.6), title(run, "Fused kernels (figure 9)"))
    names = [each["pair"] for each in rows]
    for number, on in enumerate(axes):
        key, (ours, theirs, said) = fields[number % 4], sides[number // 4]
        values = [_figure9_value(each, ours, key) for each in rows]
        series = [("here", "tab:blue", values)]
        for name, colour, gpu in PAPER:
            series.append((name, colour, [getattr(getattr(paper.FIGURE_9[each], theirs), key)[gpu] for each in names]))
        _bars(on, names, series, f"{key.replace('_pct', ', %').replace('_', ' ')} ({said})")
    axes[0].legend(fontsize=7)
    return figure


def _figure9_value(each: dict[str, Any], category: str, key: str) -> float:
    if key != "speedup_pct":
        return float(each["representative"][category][key] or 0.0)
    at = next(point for point in each["points"] if point["value"] == each["representative"]["value"])
    return _percent(at.get(category)) or 0.0


def static(run: Run) -> Figure | None:
    """Theoretical occupancy of the fused kernels; grey: what the paper achieved on a V100."""
    rows = [each for each in run["pairs"] if each.get("paper_even_split")]
    if not rows:
        return None
    names = [each["pair"] for each in rows]
    figure, axes = _grid(1, (13, 5), title(run, "Theoretical occupancy of the fused kernels"))
    series: list[tuple[str, str, list[float]]] = []
    for key, label, colour in (
        ("paper_even_split", "even split", "tab:orange"),
        ("paper_r0", "even split under r0", "tab:blue"),
        ("vertical", "vertical", "tab:green"),
    ):
        series.append((label, colour, [100 * (each.get(key) or {"occupancy": 0.0})["occupancy"] for each in rows]))
    for label, side, colour in (("V100, no bound (achieved)", "free", "0.7"), ("V100, r0 (achieved)", "capped", "0.4")):
        series.append((label, colour, [getattr(paper.FIGURE_9[each], side).occupancy_pct[1] for each in names]))
    _bars(axes[0], names, series, "occupancy, %")
    axes[0].set_ylim(0, 120)
    axes[0].legend(fontsize=8, ncols=5, loc="upper center")
    return figure


def _bars(on: Axes, names: Sequence[str], series: Sequence[tuple[str, str, list[float]]], label: str) -> None:
    width = 0.8 / len(series)
    for number, (name, colour, values) in enumerate(series):
        on.bar([place + number * width for place in range(len(names))], values, width, color=colour, label=name)
    on.set_xticks([place + 0.4 - width / 2 for place in range(len(names))], names, rotation=60, ha="right", fontsize=7)
    on.set_title(label, fontsize=9)
    on.axhline(0, color="black", linewidth=0.5)
