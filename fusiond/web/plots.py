"""Pictures as SVG, in the colours of the style sheet; each says in words what it shows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from fusiond.counting import roofline as rooflines
from fusiond.counting.model import gpu_named

WIDTH, HEIGHT = 720, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 28


def search(trials: Sequence[tuple[int, float | None]], *, budget: int, noun: str) -> Markup:
    """How a search went: (number, unfused / fused) of each trial, None where it came to nothing, and the best so far.
    `noun` is what the ratio is of (`measured`, `emulated`, `counted`)."""
    values = [ratio for _, ratio in trials if ratio is not None]
    if not values:
        return figure(WIDTH, 40, "no trial has a value yet", Markup(""), "")
    low, high = _range([*values, 1.0])
    last = max(budget, 1 + max(number for number, _ in trials))

    def x(number: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * number / max(1, last - 1)

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
    points = " ".join(f"M{x(number):.1f} {y(ratio):.1f}h0" for number, ratio in trials if ratio is not None)
    nothing = " ".join(f"M{x(number):.1f} {HEIGHT - _BOTTOM}v-5" for number, ratio in trials if ratio is None)
    inside = Markup("").join((
        _grid(low, high, y),
        Markup('<path class="one" d="M{} {:.1f}H{}"/>').format(_LEFT, y(1.0), WIDTH - _RIGHT),
        Markup('<path class="points" d="{}"/>').format(points),
        Markup('<path class="nothing" d="{}"/>').format(nothing),
        Markup('<path class="best" d="{}"/>').format(_line(steps)),
        Markup('<text x="{}" y="{}" text-anchor="end">trial {}</text>').format(WIDTH - _RIGHT, HEIGHT - 8, last),
    ))  # fmt: skip
    said = f"{len(trials)} trials, {len(values)} with a value; the best is {best:.3f} times the unfused way ({noun})"
    return figure(WIDTH, HEIGHT, said, inside, "search")


def interval(value: float, low: float, high: float, least_gain: float = 1.0) -> Markup:
    """A speed-up with its 95 % interval, beside 1 (no gain)."""
    width, height = 420, 56
    begin, end = _range([value, low, high, 1.0, least_gain])

    def x(at: float) -> float:
        return 16 + (width - 32) * (at - begin) / (end - begin)

    inside = Markup("").join((
        Markup('<path class="axis" d="M16 36H{}"/>').format(width - 16),
        Markup('<path class="one" d="M{0:.1f} 12V44"/><text x="{0:.1f}" y="54">1</text>').format(x(1)),
        Markup('<path class="interval" d="M{:.1f} 36H{:.1f}"/>').format(x(low), x(high)),
        Markup('<circle class="value" cx="{:.1f}" cy="36" r="5"/>').format(x(value)),
        Markup('<text x="{:.1f}" y="20" text-anchor="middle">{:.3f}</text>').format(x(value), value),
    ))  # fmt: skip
    return figure(width, height, f"{value:.3f} times, 95 % interval {low:.3f} to {high:.3f}", inside, "gain")


def bars(rows: Iterable[tuple[str, float, str]], *, unit: str) -> Markup:
    """Labelled bars: (label, value, class)."""
    found = list(rows)
    most = max((value for _, value, _ in found), default=0.0)
    if most <= 0:
        return Markup("")
    height = 28 * len(found) + 8
    parts = []
    for place, (label, value, kind) in enumerate(found):
        top = 8 + 28 * place
        parts.append(
            Markup(
                '<text x="150" y="{0}" text-anchor="end">{1}</text><rect class="{2}" x="160" y="{3}" width="{4:.1f}" '
                'height="18"/><text x="{5:.1f}" y="{0}">{6}</text>'
            ).format(top + 13, label, kind, top, 440 * value / most, 168 + 440 * value / most, f"{value:,.2f} {unit}")
        )
    said = ", ".join(f"{label} {value:,.2f} {unit}" for label, value, _ in found)
    return figure(WIDTH, height, said, Markup("").join(parts), "bars")


def roofline(rows: Sequence[Mapping[str, Any]]) -> Markup | None:
    """The instruction roofline of counted rows (see `fusiond.counting.roofline`): each launch as a point, unfused and
    fused; None where no launch was counted."""
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

    parts = [
        Markup('<path class="roof" d="{}"/>').format(
            _line([(x(10**left), y(10**left * dram)), (x(knee), y(slots)), (x(10**right), y(slots))])
        ),
        Markup('<text x="{:.1f}" y="{:.1f}">DRAM {:.0f} GB/s</text>').format(_LEFT + 6, _TOP + 10, gpu.dram_gbs),
        Markup('<text x="{}" y="{:.1f}" text-anchor="end">issue slots</text>').format(WIDTH - _RIGHT, y(slots) - 5),
        Markup('<text x="{}" y="{}" text-anchor="end">instructions of warps per DRAM sector</text>').format(
            WIDTH - _RIGHT, HEIGHT - 8
        ),
    ]
    below = 0.0
    for row, at, up in sorted(points, key=lambda each: -each[2]):
        share = "" if row["occupancy"] is None else f", occupancy {100 * row['occupancy']:.0f} %"
        said = f"{row['program']} {row['launch']}: bound by {row['binding']}{share}"
        parts.append(
            Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="5"><title>{}</title></circle>').format(
                "unfused" if row["program"] == "native" else "fused", x(at), y(up), said
            )
        )
        below = max(below + 13, y(up) + 12)  # labels do not lie on each other
        side, anchor = (x(at) + 8, "start") if x(at) < WIDTH / 2 else (x(at) - 8, "end")
        label = Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>')
        parts.append(label.format(side, below, anchor, f"{row['program']} {row['launch']}: {row['binding']}{share}"))
    words = "; ".join(f"{row['program']} {row['launch']} is bound by {row['binding']}" for row, _, _ in points)
    return figure(WIDTH, HEIGHT, f"on {gpu.name}, counted: {words}", Markup("").join(parts), "roofline")


def _range(values: Sequence[float]) -> tuple[float, float]:
    """What an axis shows: all values, with room."""
    low, high = min(values), max(values)
    room = max(0.02 * abs(high), 0.08 * (high - low))
    return low - room, high + room


def _grid(low: float, high: float, y: object) -> Markup:
    """Lines at round numbers, with their values."""
    assert callable(y)
    step = 10 ** math.floor(math.log10((high - low) / 2))
    step *= next(each for each in (1, 2, 5, 10) if (high - low) / (each * step) <= 5)
    first = math.ceil(low / step)
    found = []
    for number in range(first, math.floor(high / step) + 1):
        at = y(number * step)
        found.append(
            Markup(
                '<path class="grid" d="M{} {:.1f}H{}"/><text x="{}" y="{:.1f}" text-anchor="end">{:.6g}</text>'
            ).format(_LEFT, at, WIDTH - _RIGHT, _LEFT - 6, at + 4, number * step)
        )
    return Markup("").join(found)


def _line(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def figure(width: int, height: int, said: str, inside: Markup, kind: str, *, fixed: bool = False) -> Markup:
    """An SVG of so many pixels, whatever room there is where it is `fixed`; `said` is what it shows, in words."""
    size = Markup(' width="{}" height="{}"').format(width, height) if fixed else Markup("")
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
