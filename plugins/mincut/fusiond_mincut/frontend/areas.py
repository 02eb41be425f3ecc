"""The sizes of images that are not the pipeline's: checked, and derived from steps.

size: [width / 2, height / 2]            numbers, width, height, + - * / % min max
step: 2                                  ceil(width / 2), of what is read; step 1/2: 2 * width
"""

import math
from collections.abc import Mapping

from fusiond.model.inputs.documents import Node
from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.expr import Const, Expr, TypeProblem
from fusiond_mincut.frontend.graph import WIDEST_IMAGE, Area, PipelineImage, SamplingStep

LONGEST_STEP = 64
_OWN = (tree.position("width"), tree.position("height"))
WHOLE = Area(width=_OWN[0], height=_OWN[1])  #: The pipeline's own, written out


def of(width: Expr, height: Expr) -> Area | None:
    """The area of these sides; None where they are the pipeline's own."""
    return None if (width, height) == _OWN else Area(width=width, height=height)


def checked(side: Expr, width: int, height: int) -> Expr:
    """A side's tree. TypeProblem for what is not a size at the pipeline's width and height."""
    try:
        found = Area(width=side, height=Const(1, "int32")).at(width, height)[0]
    except ValueError as problem:
        raise TypeProblem(str(problem)) from None
    if not 1 <= found <= WIDEST_IMAGE:
        raise TypeProblem(f"comes to {found}; a side has 1 to {WIDEST_IMAGE} pixels")
    return side


def derived(read: Mapping[str, PipelineImage], steps: Mapping[str, SamplingStep]) -> Area | None:
    """The area of a kernel that reads these images: of each the part that its step leaves. TypeProblem where they
    differ."""
    found = {name: _stepped(read[name].area, steps[name]) for name in read}
    areas = list(dict.fromkeys(found.values()))
    if len(areas) > 1:
        names = " and ".join(sorted(found)[:2])
        raise TypeProblem(f"reads images of several sizes ({names}); say its own: size: [width, height]")
    return areas[0] if areas else None


def _stepped(area: Area | None, step: SamplingStep) -> Area | None:
    whole = area or WHOLE
    sides = (whole.width, whole.height)
    return of(*(_part(side, times, by) for side, times, by in zip(sides, step.times, step.by, strict=True)))


def _part(side: Expr, times: int, by: int) -> Expr:
    """ceil(side * by / times)."""
    larger = tree.binary("*", Const(by, "int32"), side) if by > 1 else side
    if times == 1:
        return larger
    if isinstance(larger, Const) and isinstance(larger.value, int):
        return Const(-(-larger.value // times), "int32")
    return tree.binary("/", tree.binary("+", larger, Const(times - 1, "int32")), Const(times, "int32"))


def step(node: Node) -> SamplingStep:
    """2, 1/2, [2, 1], {step: 2, origin: [16, 8]}. RequestError."""
    origin = (0, 0)
    if isinstance(node.value, dict):
        keys = node.mapping(known=("step", "origin"), required=())
        if "origin" in keys:
            sides = keys["origin"].sequence()
            if len(sides) != 2:
                raise keys["origin"].fail("holds a column and a row, such as [16, 8]")
            limit = WIDEST_IMAGE
            origin = (sides[0].integer(least=-limit, most=limit), sides[1].integer(least=-limit, most=limit))
        if "step" not in keys:
            return SamplingStep(origin=origin)
        node = keys["step"]
    both = node.sequence() if isinstance(node.value, list | tuple) else [node, node]
    if len(both) != 2:
        raise node.fail("is a step across and one down, such as [2, 1]")
    (across, by_across), (down, by_down) = (_ratio(each) for each in both)
    return SamplingStep(times=(across, down), by=(by_across, by_down), origin=origin)


def _ratio(node: Node) -> tuple[int, int]:
    if isinstance(node.value, int):
        return node.integer(least=1, most=LONGEST_STEP), 1
    times, slash, by = node.text().partition("/")
    try:
        found = int(times), int(by) if slash else 1
    except ValueError:
        found = 0, 0
    if not all(1 <= each <= LONGEST_STEP for each in found):
        raise node.fail(f"{node.text()[:40]!r} is not a step; expected 2, 1/2 or 3/2, of numbers up to {LONGEST_STEP}")
    shared = math.gcd(*found)
    return found[0] // shared, found[1] // shared
