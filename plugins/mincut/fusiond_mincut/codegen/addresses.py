"""Addresses of pixels: in global memory, in tiles, and in images of another size."""

from fusiond.model.codegen.code import Code, cpp
from fusiond.model.codegen.operators import PRECEDENCE, Term, atom, binary, cast
from fusiond_mincut.codegen.tiles import SharedTile
from fusiond_mincut.frontend.graph import PipelineImage, SamplingStep

X, Y, X0, Y0, TX, TY, COLUMN, ROW = map(atom, ("x", "y", "x0", "y0", "tx", "ty", "i", "j"))


def inside(i: Term, n: Term | int) -> Term:
    """Whether position `i` is a pixel of a line of `n`: negative positions are huge as unsigned."""
    return binary("<", cast("unsigned", i), atom(f"{n}u") if isinstance(n, int) else cast("unsigned", n))


def plus(value: Term, offset: int) -> Term:
    return binary("+" if offset > 0 else "-", value, atom(str(abs(offset)))) if offset else value


def stepped(own: Term, step: SamplingStep, axis: int) -> Term:
    """The coordinate of another image that belongs to a pixel."""
    times, by, origin = step.times[axis], step.by[axis], step.origin[axis]
    found = binary("*", own, atom(str(times))) if times > 1 else own
    return plus(binary("/", found, atom(str(by))) if by > 1 else found, origin)


def element(image: PipelineImage, x: Term, y: Term, channel: int, width: str) -> Code:
    """The element of an image in global memory: channels are interleaved."""
    index = Term(cpp("{} * {} + {}", y.within(PRECEDENCE["*"]), width, x.within(PRECEDENCE["+"])), PRECEDENCE["+"])
    if image.channels > 1:
        index = binary("+", binary("*", index, atom(str(image.channels))), atom(str(channel)))
    return cpp("{}_image[{}]", image.name, index.code)


def cell(tile: SharedTile, ty: Term, tx: Term, channel: int) -> Code:
    last = f"[{channel}]" if tile.image.channels > 1 else ""
    return cpp("tiles.{}_tile[{}][{}]{}", tile.name, ty.code, tx.code, last)
