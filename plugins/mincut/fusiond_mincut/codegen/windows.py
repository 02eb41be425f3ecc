"""Large windows as loops over factors in constant memory, in place of one operand for each pixel.

    big: sum of 31 x 31 factors times pixels   -->   float big_sum = -0.0f;
                                                     for (j < 31) { float row = -0.0f; for (i < 31) row += ...; }
                                                     big_stage(big_sum)

A stage whose body is unrolled over some hundred pixels holds them all in registers and spills. The loops add in the
order of the tree, row by row and from left to right, so they are the same bit for bit (-0.0 plus a float is that float,
and a product with 1 is the factor). A tree that adds in another order stays as it is; int32 may be added in any order.

`staged` has such a window read a copy of its image, a point stage: it gets a tile in shared memory as any other stage
does that is read round a pixel, and so do its borders.
"""

import dataclasses
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from fusiond.model.language.dtypes import DTYPES
from fusiond_mincut.analysis.blocks import KernelBlock
from fusiond_mincut.codegen.separation import Number, Source, Taps, free_name, gathered, linear
from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.expr import BinaryOperation, Expr, FunctionCall, PixelAccess
from fusiond_mincut.frontend.graph import ImageKernel, Pipeline

LEAST = 100  #: Pixels of a window that is a loop
MOST_STAGED_BYTES = 40 << 10  #: Of one tile of an input


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A sum, or the least or the greatest, over a rectangle of pixels."""

    name: str  #: Of the value, in the text
    kind: str  #: sum, min or max
    dtype: str
    image: str
    channel: int | None
    left: int  #: Offset of the first column; of the first row: `up`
    up: int
    width: int
    height: int
    factors: tuple[Number, ...]  #: Row by row; 0 for pixels that take no part

    @property
    def plain(self) -> bool:
        """Whether every factor is 1."""
        return all(each == 1 for each in self.factors)


def extracted(kernel: ImageKernel, taken: Iterable[str]) -> tuple[ImageKernel, dict[str, Window]]:
    """The kernel with its large windows read as values by name, and these windows. `taken`: names that they may not
    have."""
    if len(kernel.accesses) < LEAST:
        return kernel, {}
    finder = _Finder(kernel=kernel.name, steps=kernel.steps, taken=set(taken), found={})
    bodies = tuple(finder.body(each) for each in kernel.bodies)
    return (dataclasses.replace(kernel, bodies=bodies) if finder.found else kernel), {
        each.name: each for each in finder.found.values()
    }


@dataclass(slots=True)
class _Finder:
    kernel: str
    steps: Collection[str]  #: Images at other pixels: the loops read round the own
    taken: set[str]
    found: dict[Expr, Window]

    def body(self, expr: Expr) -> Expr:
        window = self.found.get(expr) or self._sum(expr) or self._extreme(expr)
        if window is None:
            return tree.rebuilt(expr, self.body) if len(tree.accesses(expr)) >= LEAST else expr
        self.found[expr] = window
        return PixelAccess(window.name, 0, 0, None, window.dtype)

    def _sum(self, expr: Expr) -> Window | None:
        if not isinstance(expr, BinaryOperation) or expr.op not in ("+", "-") or expr.dtype not in ("int32", "float32"):
            return None
        taps: dict[Source, Taps] = {}
        if not linear(expr, 1, taps) or len(taps) != 1:
            return None
        source, window = next(iter(taps.items()))
        if expr.dtype == "float32" and not _row_by_row(expr):
            return None
        return self._window("sum", expr.dtype, source, window)

    def _extreme(self, expr: Expr) -> Window | None:
        if not isinstance(expr, FunctionCall) or expr.function not in tree.EXTREMES:
            return None
        pixels: dict[Source, set[tuple[int, int]]] = {}
        if expr.dtype not in ("int32", "float32") or not gathered(expr, expr.function, pixels) or len(pixels) != 1:
            return None
        source, window = next(iter(pixels.items()))
        return self._window(expr.function, expr.dtype, source, dict.fromkeys(window, 1))

    def _window(self, kind: str, dtype: str, source: Source, taps: Taps) -> Window | None:
        if len(taps) < LEAST or source[0] in self.steps:
            return None
        left, up = min(dx for dx, _ in taps), min(dy for _, dy in taps)
        width, height = max(dx for dx, _ in taps) - left + 1, max(dy for _, dy in taps) - up + 1
        factors = tuple(taps.get((left + i, up + j), 0) for j in range(height) for i in range(width))
        return Window(
            name=free_name(f"{self.kernel}_{kind}", self.taken), kind=kind, dtype=dtype, image=source[0],
            channel=source[1], left=left, up=up, width=width, height=height, factors=factors,
        )  # fmt: skip


def _row_by_row(expr: Expr) -> bool:
    """Whether a sum of floats is one of rows, each of which is one of pixels from left to right."""
    places: list[list[tuple[int, int]]] = []
    for op, each in _terms(expr):
        row = [_place(term) for _, term in _terms(each)]
        if None in row or (op == "-" and len(row) > 1):
            return False
        places.append([at for at in row if at is not None])
    # The first row is not apart from the whole: its pixels stand as rows of one.
    first = next((n for n, row in enumerate(places) if len(row) > 1 or row[0][1] != places[0][0][1]), len(places))
    rows = [[at for row in places[:first] for at in row], *places[first:]]
    ordered = all(row == sorted(row) and len({dy for _, dy in row}) == 1 for row in rows)
    down = [row[0][1] for row in rows]
    return ordered and down == sorted(set(down))


def _terms(expr: Expr) -> list[tuple[str, Expr]]:
    """The operands of a chain of + and -, from left to right."""
    found = []
    while isinstance(expr, BinaryOperation) and expr.op in ("+", "-"):
        found.append((expr.op, expr.right))
        expr = expr.left
    return [("+", expr), *reversed(found)]


def _place(term: Expr) -> tuple[int, int] | None:
    """Where the pixel of a term lies; None for what is not a pixel times a factor."""
    if isinstance(term, BinaryOperation) and term.op != "*":
        return None
    pixels = tree.accesses(term)
    return (pixels[0].dx, pixels[0].dy) if len(pixels) == 1 else None


def staged(pipeline: Pipeline, block: KernelBlock, width: int, height: int) -> tuple[Pipeline, KernelBlock]:
    """The pipeline and the block with copies of the inputs that large windows read, for rectangles of `width` x
    `height` pixels; where such a tile is too large, without."""
    if all(len(pipeline.kernel(name).accesses) < LEAST for name in block.kernels):
        return pipeline, block
    kernels: list[ImageKernel] = []
    members: list[str] = []
    taken = set(pipeline.images)
    copies: dict[str, ImageKernel] = {}
    for kernel in pipeline.kernels:
        if kernel.name in block.kernels:
            _, windows = extracted(kernel, ())
            for name in sorted({each.image for each in windows.values()} & set(block.inputs)):
                image = pipeline.images[name]
                left, right, up, down = kernel.window(name)
                pixels = (width + left + right) * (height + up + down)
                large = pixels * image.channels * DTYPES[image.dtype].bytes > MOST_STAGED_BYTES
                if image.single or name in kernel.fetched or large:
                    continue
                if name not in copies:
                    own, body = free_name(f"{name}_staged", taken), PixelAccess(name, 0, 0, None, image.dtype)
                    copies[name] = ImageKernel(
                        name=own,
                        pattern="point",
                        bodies=(body,),
                        dtype=image.dtype,
                        channels=image.channels,
                        area=image.area,
                    )
                    kernels.append(copies[name])
                    members.append(own)
                kernel = _reading(kernel, name, copies[name].name)
            members.append(kernel.name)
        kernels.append(kernel)
    if not copies:
        return pipeline, block
    return dataclasses.replace(pipeline, kernels=tuple(kernels)), dataclasses.replace(block, kernels=tuple(members))


def _reading(kernel: ImageKernel, old: str, new: str) -> ImageKernel:
    """The kernel with another image read in place of one."""

    def renamed(each: PixelAccess) -> Expr:
        return dataclasses.replace(each, image=new) if each.image == old else each

    bodies = tuple(tree.map_accesses(each, renamed) for each in kernel.bodies)
    borders = {(new if name == old else name): border for name, border in kernel.borders.items()}
    return dataclasses.replace(kernel, bodies=bodies, borders=borders)
