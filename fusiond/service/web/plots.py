"""Plots as SVG in the colours of the style sheet, each with a description in words."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fusiond.devices.counting.bounds import SECTOR_BYTES
from fusiond.devices.counting.model import gpu_named

WIDTH, HEIGHT = 760, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 18, 34


MOST_CIRCLES = 500
"""Trials that are circles, each saying which it is; more are one path, which a browser draws at once."""


def search(
    trials: Sequence[tuple[int, float | None]], *, budget: int, noun: str, said: Mapping[int, str] | None = None
) -> Markup:
    """How a search went: (number, unfused / fused) of each trial, None where it came to nothing, and the best so far.
    `noun` is what the ratio is of (`measured`, `emulated`, `counted`), `said` what a trial is."""
    values = [ratio for _, ratio in trials if ratio is not None]
    if not values:
        return figure(WIDTH, 40, "no trial has a value yet", Markup(""), "")
    low, high = _range([*values, 1.0])
    last = max(budget, 1 + max(number for number, _ in trials))

    def x(number: float) -> float:
        return _LEFT + 6 + (WIDTH - _LEFT - _RIGHT - 12) * number / max(1, last - 1)

    def y(value: float) -> float:
        return _TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - (value - low) / (high - low))

    best = 0.0
    steps: list[tuple[float, float]] = []
    for number, ratio in trials:
        if ratio is not None and ratio > best:
            steps.append((x(number), y(ratio)) if not steps else (x(number), y(best)))
            best = ratio
            steps.append((x(number), y(best)))
    steps.append((x(max(number for number, _ in trials)), y(best)))
    nothing = " ".join(f"M{x(number):.1f} {HEIGHT - _BOTTOM}v-6" for number, ratio in trials if ratio is None)
    known = [(number, ratio) for number, ratio in trials if ratio is not None]
    parts = [
        *(_across(y(at), f"{at:.6g}") for at in _round(low, high)),
        _path("one", f"M{_LEFT} {y(1.0):.1f}H{WIDTH - _RIGHT}"),
        _path("axis", f"M{_LEFT} {HEIGHT - _BOTTOM}H{WIDTH - _RIGHT}"),
        _path("nothing", nothing),
    ]
    if len(known) <= MOST_CIRCLES:
        about = said or {}
        parts += [
            _dot("point", x(number), y(ratio), 3, f"trial {number}: {ratio:.3f}x {about.get(number, '')}".strip())
            for number, ratio in known
        ]
    else:
        parts.append(_path("points", " ".join(f"M{x(number):.1f} {y(ratio):.1f}h0" for number, ratio in known)))
    parts += [
        _path("best", _line(steps)),
        *(_text(x(at), HEIGHT - _BOTTOM + 15, at, "middle") for at in _ticks(last)),
        _text(WIDTH - _RIGHT, HEIGHT - 3, "trial", "end"),
        _text(4, 10, "unfused / fused"),
    ]
    words = f"{len(trials)} trials, {len(values)} with a value; the best is {best:.3f} times the unfused way ({noun})"
    return figure(WIDTH, HEIGHT, words, Markup("").join(parts), "search")


def _ticks(count: int) -> list[int]:
    """Round numbers of trials for the axis below."""
    step = next(step for power in range(9) for each in (1, 2, 5) if count / (step := each * 10**power) <= 10)
    return list(range(0, count, step))


def shares(rows: Sequence[tuple[str, int, int]]) -> Markup:
    """What came of all trials, as one bar and its legend: (name, how many, colour)."""
    total = sum(count for _, count, _ in rows)
    if not total:
        return Markup("")
    width = 340
    at, across, down, parts = 0.0, 0.0, 36.0, []
    for name, count, colour in rows:
        wide = width * count / total
        parts.append(
            Markup('<rect class="o{}" x="{:.1f}" y="4" width="{:.1f}" height="12"><title>{}</title></rect>').format(
                colour % 8, at, max(1.0, wide - 1), f"{count} {name}"
            )
        )
        at += wide
        label = f"{count} {name}"
        if across + 24 + 6.6 * len(label) > width:
            across, down = 0.0, down + 18
        parts.append(
            Markup('<rect class="o{}" x="{:.1f}" y="{:.1f}" width="9" height="9" rx="2"/><text x="{:.1f}" y="{:.1f}">'
                   "{}</text>").format(colour % 8, across, down - 8, across + 14, down, label)
        )  # fmt: skip
        across += 30 + 6.6 * len(label)
    said = ", ".join(f"{count} {name}" for name, count, _ in rows)
    return figure(width, int(down + 8), f"outcomes: {said}", Markup("").join(parts), "shares")


def interval(value: float, low: float, high: float, least_gain: float = 1.0) -> Markup:
    """A speed-up with its 95 % interval, beside 1 (no gain)."""
    width, height, floor = 460, 96, 62
    begin, end = _range([value, low, high, 1.0, least_gain])

    def x(at: float) -> float:
        return 24 + (width - 48) * (at - begin) / (end - begin)

    parts = [_path("axis", f"M16 {floor}H{width - 16}")]
    for at in _round(begin, end):
        parts += [_path("axis", f"M{x(at):.1f} {floor}v4"), _text(x(at), floor + 18, f"{at:.6g}", "middle")]
    parts += [
        _path("one", f"M{x(1):.1f} 8V{floor}"),
        _text(x(1) + 5 * (-1 if value >= 1 else 1), 16, "no gain", "end" if value >= 1 else "start"),
        _path("interval", f"M{x(low):.1f} 40H{max(x(high), x(low) + 1):.1f}"),
        _path("axis", f"M{x(low):.1f} 34v12M{x(high):.1f} 34v12"),
        _dot("value", x(value), 40, 5),
        _text(x(value), 28, f"{value:.3f}x", "middle", "strong"),
        _text(width - 16, height - 2, f"95 % interval {low:.3f} to {high:.3f}", "end"),
    ]
    words = f"{value:.3f} times, 95 % interval {low:.3f} to {high:.3f}"
    return figure(width, height, words, Markup("").join(parts), "gain")


def bars(rows: Iterable[tuple[str, float, str]], *, unit: str) -> Markup:
    """Labelled bars: (label, value, class)."""
    found = list(rows)
    most = max((value for _, value, _ in found), default=0.0)
    if most <= 0:
        return Markup("")
    width, row = 460, 42
    parts = []
    for place, (label, value, kind) in enumerate(found):
        top = 6 + row * place
        bar = Markup('<rect class="{}" x="0" y="{}" width="{:.1f}" height="14" rx="2"/>')
        parts += [
            _text(0, top + 11, label),
            _text(width, top + 11, f"{value:,.2f} {unit}", "end", "strong"),
            bar.format(kind, top + 18, width * value / most),
        ]
    said = ", ".join(f"{label} {value:,.2f} {unit}" for label, value, _ in found)
    return figure(width, row * len(found), said, Markup("").join(parts), "bars")


def roofline(rows: Sequence[Mapping[str, Any]]) -> Markup | None:
    """The instruction roofline of counted rows, with a point for each launch; None where none was counted. Across:
    instructions of warps per sector of DRAM traffic; up: instructions of warps per ns, at the most that the launch's
    lower bound in time allows (Ding and Williams, "An Instruction Roofline Model for GPUs", PMBS 2019, of which this is
    the DRAM level). A point on the slanted roof waits for DRAM, one on the flat roof for issue slots."""
    points = [(row, *_point(row)) for row in rows if row["failed"] is None and row["bound_us"]]
    points = [each for each in points if each[1] > 0]
    if not points:
        return None
    gpu = gpu_named(points[0][0]["model"])
    slots = gpu.multiprocessors * gpu.issue_warps * gpu.clock_mhz / 1e3  # issue slots a ns
    dram = gpu.dram_gbs / SECTOR_BYTES  # sectors a ns
    knee = slots / dram
    left, right = (math.log10(each) for each in (min(knee, *(at for _, at, _ in points)) / 4,
                                                 max(knee, *(at for _, at, _ in points)) * 4))  # fmt: skip
    top = math.log10(slots * 2)
    bottom = min(math.log10(10**left * dram), *(math.log10(up) for _, _, up in points)) - 0.2

    def x(at: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * (math.log10(at) - left) / (right - left)

    def y(up: float) -> float:
        return _TOP + (HEIGHT - _TOP - _BOTTOM) * (top - math.log10(up)) / (top - bottom)

    base = HEIGHT - _BOTTOM
    parts = [_path("axis", f"M{_LEFT} {base}H{WIDTH - _RIGHT}")]
    for at in (10.0**power for power in range(math.ceil(left), math.floor(right) + 1)):
        parts += [_path("grid", f"M{x(at):.1f} {_TOP}V{base}"), _text(x(at), base + 15, f"{at:g}", "middle")]
    parts += [_across(y(10.0**power), f"{10.0**power:g}") for power in range(math.ceil(bottom), math.floor(top) + 1)]
    slope = x(10**left), y(10**left * dram)
    parts += [
        _path("roof", _line([slope, (x(knee), y(slots)), (x(10**right), y(slots))])),
        _text(_LEFT + 6, _TOP + 12, f"DRAM {gpu.dram_gbs:.0f} GB/s"),
        _text(WIDTH - _RIGHT, y(slots) - 5, "issue slots", "end"),
        _text(WIDTH - _RIGHT, HEIGHT - 3, "instructions of warps per DRAM sector", "end"),
        _text(4, 10, "instructions of warps per ns"),
    ]
    below = 0.0
    for row, at, up in sorted(points, key=lambda each: -each[2]):
        whose = "unfused" if row["program"] == "native" else "fused"
        name = f"{row['program'].replace('native', whose)} {row['launch']}"
        share = "" if row["occupancy"] is None else f", occupancy {100 * row['occupancy']:.0f} %"
        below = max(below + 14, y(up) + 14)  # labels do not lie on each other
        right_of = x(at) < 0.62 * WIDTH
        side, anchor = (x(at) + 16, "start") if right_of else (x(at) - 16, "end")
        parts += [
            _path("leader", _line([(x(at), y(up)), (side - 2 if right_of else side + 2, below - 4)])),
            _dot(whose, x(at), y(up), 5, f"{name}: bound by {row['binding']}{share}"),
            _text(side, below, f"{name}: {row['binding']}{share}", anchor),
        ]
    words = "; ".join(f"{row['program']} {row['launch']} is bound by {row['binding']}" for row, _, _ in points)
    return figure(WIDTH, HEIGHT, f"on {gpu.name}, counted: {words}", Markup("").join(parts), "roofline")


def _point(row: Mapping[str, Any]) -> tuple[float, float]:
    """Instructions of warps (of PTX where nobody could disassemble) per sector of DRAM, and per ns."""
    found = row["warp_instructions"]
    instructions = sum(found.values()) if found is not None else row["ptx_instructions"] / 32
    sectors = row["dram_bytes"] / SECTOR_BYTES
    return (instructions / sectors if sectors else 0.0), instructions / row["bound_us"] / 1e3


def _range(values: Sequence[float]) -> tuple[float, float]:
    """What an axis shows: all values, with room."""
    low, high = min(values), max(values)
    room = max(0.02 * abs(high), 0.08 * (high - low))
    return low - room, high + room


def _round(low: float, high: float) -> list[float]:
    """At most five round numbers from low to high."""
    step = 10 ** math.floor(math.log10((high - low) / 2))
    step *= next(each for each in (1, 2, 5, 10) if (high - low) / (each * step) <= 5)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _across(height: float, value: str) -> Markup:
    """A line across the plot, with its value on the left."""
    line = _path("grid", f"M{_LEFT} {height:.1f}H{WIDTH - _RIGHT}")
    return line + _text(_LEFT - 6, height + 4, value, "end")


def _text(x: float, y: float, text: object, anchor: str = "start", kind: str = "") -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(kind, x, y, anchor, text)


def _path(kind: str, data: str) -> Markup:
    return Markup('<path class="{}" d="{}"/>').format(kind, data)


def _dot(kind: str, x: float, y: float, radius: int, title: str = "") -> Markup:
    dot = Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{}"><title>{}</title></circle>')
    return dot.format(kind, x, y, radius, title)


def _line(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def figure(width: int, height: int, said: str, inside: Markup, kind: str) -> Markup:
    """An SVG; `said` is what it shows, in words."""
    return Markup(
        '<svg class="plot {}" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" aria-label="{}">'
        "<title>{}</title>{}</svg>"
    ).format(kind, width, height, said, said, inside or Markup('<text x="8" y="24">{}</text>').format(said))


def alone(picture: Markup) -> Markup:
    """A picture as a file of its own: with the style sheet in it."""
    style = Markup("<style>{}</style>").format(Markup(stylesheet()))
    head, end, rest = picture.partition("</title>")
    return Markup(head) + Markup(end) + style + Markup(rest)


def stylesheet() -> str:
    """The one that pictures need."""
    return (Path(__file__).parent / "static" / "plots.css").read_text(encoding="utf-8")
