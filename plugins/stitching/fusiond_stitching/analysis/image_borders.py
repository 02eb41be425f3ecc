"""Images as a module shows them: cut, shifted, with a border put round them; and which border of an image that is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusiond_stitching.analysis.image_values import NoPipeline


@dataclass(slots=True)
class View:
    """An image as something shows it: shifted, cut, with a border."""

    image: str
    maps: dict[str, np.ndarray[Any, Any]]
    """Role of a dimension -> for each index along it, the index of the image that is seen there (-1: outside of it)."""
    roles: list[str | None]
    """Of the value's dimensions; None of one with one element."""
    outside: float = 0.0


def border(
    view: View, size: tuple[int, int], indices: Mapping[str, Any], edge: float, kind: str | None
) -> tuple[str | dict[str, float], dict[str, int]]:
    """The border by which an image of that height and width is what the view shows at these indices (of each place and
    tap; `edge` lies beyond the view), and how far from its own pixel the first tap is."""
    sizes = dict(zip("hw", size, strict=True))
    seen = {role: looked(view.maps[role], each) for role, each in indices.items()}
    inside = {role: (each >= 0) & (each < len(view.maps[role])) for role, each in indices.items()}
    beyond = any(not each.all() for each in inside.values())
    padded = any((each == -1).any() for each in seen.values())
    if padded and beyond and edge != view.outside and any((view.maps[each] < 0).any() for each in view.maps):
        raise NoPipeline
    value = view.outside if any((each < 0).any() for each in view.maps.values()) else edge
    for mode in ("constant", "clamp", "mirror", "reflect", "repeat"):
        starts = {}
        for role, each in seen.items():
            step = int(indices[role][1, 0] - indices[role][0, 0]) if len(each) > 1 else 1
            start = start_of(each, indices[role], step, sizes[role], mode)
            if start is None:
                break
            starts[role] = start
        if len(starts) == len(seen):
            if mode != "constant":
                return mode, starts
            if not padded:
                return "clamp", starts
            if kind in ("maximum", "minimum"):  # its neutral number is no pixel: the edge changes nothing
                if abs(value) != math.inf:
                    raise NoPipeline
                return "clamp", starts
            return {"constant": value}, starts
    raise NoPipeline


def looked(view: Any, indices: Any) -> Any:
    """What a view shows at indices; -1 outside of it."""
    inside = (indices >= 0) & (indices < len(view))
    return np.where(inside, view[np.clip(indices, 0, len(view) - 1)], -1)


def start_of(seen: Any, indices: Any, step: int, size: int, mode: str) -> int | None:
    """The offset d by which the pixel of place i and tap t is what the image has at i * step + d + t, by a mode of its
    border; None where there is none."""
    places = np.arange(len(seen))[:, None] * step
    taps = indices[:1] - indices[0, 0]
    inner = np.argwhere(seen >= 0)
    for row, column in inner[:: max(1, len(inner) // 8)]:
        start = int(seen[row, column] - places[row, 0] - taps[0, column])
        at = places + taps + start
        if mode == "constant":
            expected = np.where((at >= 0) & (at < size), at, -1)
        elif mode == "clamp":
            expected = np.clip(at, 0, size - 1)
        elif mode == "mirror":
            period = max(1, 2 * size - 2)
            expected = size - 1 - np.abs(at % period - (size - 1))
        elif mode == "reflect":
            folded = at % (2 * size)
            expected = np.minimum(folded, 2 * size - 1 - folded)
        else:
            expected = at % size
        if np.array_equal(expected, seen):
            return start
    return None
