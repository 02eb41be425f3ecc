"""Plots as SVG in the colours of the style sheet, each with a description in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from fusiond.devices.counting import roofline as rooflines
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
    ticks = (
        Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(x(at), HEIGHT - _BOTTOM + 15, at)
        for at in _ticks(last)
    )
    parts = [
        _grid(low, high, y),
        Markup('<path class="one" d="M{} {:.1f}H{}"/>').format(_LEFT, y(1.0), WIDTH - _RIGHT),
        Markup('<path class="axis" d="M{} {}H{}"/>').format(_LEFT, HEIGHT - _BOTTOM, WIDTH - _RIGHT),
        Markup('<path class="nothing" d="{}"/>').format(nothing),
    ]
    if len(known) <= MOST_CIRCLES:
        about = said or {}
        dot = Markup('<circle class="point" cx="{:.1f}" cy="{:.1f}" r="3"><title>{}</title></circle>')
        parts += [
            dot.format(x(number), y(ratio), f"trial {number}: {ratio:.3f}x {about.get(number, '')}".strip())
            for number, ratio in known
        ]
    else:
        points = " ".join(f"M{x(number):.1f} {y(ratio):.1f}h0" for number, ratio in known)
        parts.append(Markup('<path class="points" d="{}"/>').format(points))
    parts += [
        Markup('<path class="best" d="{}"/>').format(_line(steps)),
        *ticks,
        Markup('<text x="{}" y="{}" text-anchor="end">trial</text>').format(WIDTH - _RIGHT, HEIGHT - 3),
        Markup('<text x="{}" y="10">unfused / fused</text>').format(4),
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

    parts = [Markup('<path class="axis" d="M16 {}H{}"/>').format(floor, width - 16)]
    for at in _round(begin, end):
        mark = Markup(
            '<path class="axis" d="M{0:.1f} {1}v4"/><text x="{0:.1f}" y="{2}" text-anchor="middle">{3:.6g}</text>'
        )
        parts.append(mark.format(x(at), floor, floor + 18, at))
    parts += [
        Markup(
            '<path class="one" d="M{0:.1f} 8V{1}"/><text x="{2:.1f}" y="{3}" text-anchor="{4}">no gain</text>'
        ).format(x(1), floor, x(1) + 5 * (-1 if value >= 1 else 1), 16, "end" if value >= 1 else "start"),
        Markup('<path class="interval" d="M{:.1f} 40H{:.1f}"/>').format(x(low), max(x(high), x(low) + 1)),
        Markup('<path class="axis" d="M{0:.1f} 34v12M{1:.1f} 34v12"/>').format(x(low), x(high)),
        Markup('<circle class="value" cx="{:.1f}" cy="40" r="5"/>').format(x(value)),
        Markup('<text class="strong" x="{:.1f}" y="28" text-anchor="middle">{:.3f}x</text>').format(x(value), value),
        Markup('<text x="{}" y="{}" text-anchor="end">95 % interval {:.3f} to {:.3f}</text>').format(
            width - 16, height - 2, low, high
        ),
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
        parts.append(
            Markup(
                '<text x="0" y="{0}">{1}</text><text class="strong" x="{2}" y="{0}" text-anchor="end">{3}</text>'
                '<rect class="{4}" x="0" y="{5}" width="{6:.1f}" height="14" rx="2"/>'
            ).format(top + 11, label, width, f"{value:,.2f} {unit}", kind, top + 18, width * value / most)
        )
    said = ", ".join(f"{label} {value:,.2f} {unit}" for label, value, _ in found)
    return figure(width, row * len(found), said, Markup("").join(parts), "bars")


def roofline(rows: Sequence[Mapping[str, Any]]) -> Markup | None:
    """The instruction roofline of counted rows (see `fusiond.devices.counting.roofline`): each launch as a point,
    unfused and fused; None where no launch was counted."""
    points = rooflines.of_rows(rows)
    if not points:
        return None
    gpu = gpu_named(points[0][0]["model"])
    slots, dram = rooflines.issue_slots_per_ns(gpu), rooflines.sectors_per_ns(gpu)
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
    parts = [Markup('<path class="axis" d="M{} {}H{}"/>').format(_LEFT, base, WIDTH - _RIGHT)]
    for power in range(math.ceil(left), math.floor(right) + 1):
        parts.append(
            Markup(
                '<path class="grid" d="M{0:.1f} {1}V{2}"/><text x="{0:.1f}" y="{3}" text-anchor="middle">{4:g}</text>'
            ).format(x(10**power), _TOP, base, base + 15, 10**power)
        )
    for power in range(math.ceil(bottom), math.floor(top) + 1):
        parts.append(
            Markup(
                '<path class="grid" d="M{0} {1:.1f}H{2}"/><text x="{3}" y="{4:.1f}" text-anchor="end">{5:g}</text>'
            ).format(_LEFT, y(10**power), WIDTH - _RIGHT, _LEFT - 6, y(10**power) + 4, 10**power)
        )
    slope = x(10**left), y(10**left * dram)
    parts += [
        Markup('<path class="roof" d="{}"/>').format(_line([slope, (x(knee), y(slots)), (x(10**right), y(slots))])),
        Markup('<text x="{:.1f}" y="{:.1f}">DRAM {:.0f} GB/s</text>').format(_LEFT + 6, _TOP + 12, gpu.dram_gbs),
        Markup('<text x="{}" y="{:.1f}" text-anchor="end">issue slots</text>').format(WIDTH - _RIGHT, y(slots) - 5),
        Markup('<text x="{}" y="{}" text-anchor="end">instructions of warps per DRAM sector</text>').format(
            WIDTH - _RIGHT, HEIGHT - 3
        ),
        Markup('<text x="4" y="10">instructions of warps per ns</text>'),
    ]
    below = 0.0
    for row, at, up in sorted(points, key=lambda each: -each[2]):
        share = "" if row["occupancy"] is None else f", occupancy {100 * row['occupancy']:.0f} %"
        whose = "unfused" if row["program"] == "native" else "fused"
        said = f"{whose} {row['launch']}: bound by {row['binding']}{share}"
        below = max(below + 14, y(up) + 14)  # labels do not lie on each other
        right_of = x(at) < 0.62 * WIDTH
        side, anchor = (x(at) + 16, "start") if right_of else (x(at) - 16, "end")
        parts.append(
            Markup('<path class="leader" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>').format(
                x(at), y(up), side - 2 if right_of else side + 2, below - 4
            )
        )
        parts.append(
            Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="5"><title>{}</title></circle>').format(
                whose, x(at), y(up), said
            )
        )
        label = Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>')
        parts.append(label.format(side, below, anchor, f"{whose} {row['launch']}: {row['binding']}{share}"))
    words = "; ".join(f"{row['program']} {row['launch']} is bound by {row['binding']}" for row, _, _ in points)
    return figure(WIDTH, HEIGHT, f"on {gpu.name}, counted: {words}", Markup("").join(parts), "roofline")


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


def _grid(low: float, high: float, y: Callable[[float], float]) -> Markup:
    """Lines at round numbers, with their values."""
    line = Markup('<path class="grid" d="M{} {:.1f}H{}"/><text x="{}" y="{:.1f}" text-anchor="end">{:.6g}</text>')
    return Markup("").join(
        line.format(_LEFT, y(at), WIDTH - _RIGHT, _LEFT - 6, y(at) + 4, at) for at in _round(low, high)
    )


def _line(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def figure(width: int, height: int, said: str, inside: Markup, kind: str, *, fixed: bool = False) -> Markup:
    """An SVG of so many pixels, whatever room there is where it is `fixed`; `said` is what it shows, in words."""
    size = Markup(' width="{}" height="{}"').format(width, height) if fixed else Markup("")
    kind = f"{kind} fixed" if fixed else kind
    return Markup(
        '<svg class="plot {}" xmlns="http://www.w3.org/2000/svg"{} viewBox="0 0 {} {}" role="img" aria-label="{}">'
        "<title>{}</title>{}</svg>"
    ).format(
        kind,
        size,
        width,
        height,
        escape(said),
        escape(said),
        inside or Markup('<text x="8" y="24">{}</text>').format(said),
    )


def alone(picture: Markup) -> Markup:
    """A picture as a file of its own: with the style sheet in it."""
    style = Markup("<style>{}</style>").format(Markup(stylesheet()))
    head, end, rest = picture.partition("</title>")
    return Markup(head) + Markup(end) + style + Markup(rest)


def stylesheet() -> str:
    """The one that pictures need."""
    return (Path(__file__).parent / "static" / "plots.css").read_text(encoding="utf-8")
