"""An image pipeline: kernels that read images and make one image each.

    Pipeline      = name, width, height, inputs (PipelineImage ...), outputs (names),
                    kernels (ImageKernel ...) in topological order
    PipelineImage = name, dtype, channels (1 to 4: interleaved, channel fastest), single, area
    ImageKernel   = name, pattern, mask (w, h), borders, bodies, dtype, channels, area, steps, reduction
    Border        = clamp | mirror | reflect | repeat | constant(value)
    Area          = width, height: trees over those of the pipeline (None: just these)
    SamplingStep  = which pixel of another image belongs to a pixel: (x times / by + origin, and y alike)

A kernel's image has the kernel's name and area. A `global` kernel that sums, or takes the least or the greatest, makes
a `single` value per channel, which every pixel of its readers sees.

- point: reads every image at its own pixel only. local: reads a window of `mask` pixels round it, both sides odd.
- global: reads like a point kernel, and reduces the values of all pixels by `reduction` (sum, min, max) in its dtype;
  by `histogram`: adds 1 to the element (body, row) of its image for each pixel, where there is such an element.
- scan: sums that run along the rows (reduction `x`) or the columns (`y`) of its image, each with its own pixel in it.
- hysteresis: 1 where a pixel hangs together, through its eight neighbours, with one whose value is 2 or more over
  pixels whose value is 1 or more; else 0.
- What is read has the kernel's area, or there is a step for it. Images are also read at any coordinates (expr.Fetch);
  these have to lie in memory.
- A kernel has one body for all channels (accesses with channel None are at the channel that is computed), or one for
  each channel. The value of a body is converted to the kernel's dtype as C does it (expr.py says how).
- A border (borders.py) says what stands outside an image, for one reader of it, in its own coordinates.

`topological` orders kernels by their names wherever their dependences leave a choice, so that nothing depends on the
order in a file.
"""

from __future__ import annotations

import heapq
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import NamedTuple, TypeVar, cast

from fusiond.model.language.extents import least, most
from fusiond.model.program import Fill
from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.expr import Expr, Fetch, Operations, PixelAccess

PATTERNS = ("point", "local", "global", "scan", "hysteresis")
BOUNDARIES = ("global", "scan", "hysteresis")  #: Patterns that are never fused: they cut a pipeline in two
WIDEST_IMAGE = 65_536
TITLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")  #: A pipeline's name
ACCURACIES = ("strict", "relaxed")
REDUCTIONS = ("sum", "min", "max")
HISTOGRAM = "histogram"
AXES = ("x", "y")


@dataclass(frozen=True, slots=True, kw_only=True)
class Border:
    mode: str
    value: int | float = 0  #: Of `constant`: what the image's dtype holds


Found = TypeVar("Found")
CLAMP = Border(mode="clamp")
FILLS = {
    "uint8": Fill(kind="integers", low=0, high=255),
    "int16": Fill(kind="integers", low=-32768, high=32767),
    "uint16": Fill(kind="integers", low=0, high=65535),
    "int32": Fill(kind="integers", low=0, high=255),
    "float16": Fill(kind="uniform", low=0, high=1),
    "float32": Fill(kind="uniform", low=0, high=1),
}
"""What an input image holds when its file does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """How many pixels an image has across and down: int32 trees of numbers, the pipeline's width and height, and
    + - * / % min max."""

    width: Expr
    height: Expr

    def at(self, width: int, height: int) -> tuple[int, int]:
        """In a pipeline of this width and height, which may be Extents. ValueError for a tree of other nodes."""
        return _counted(self.width, width, height), _counted(self.height, width, height)


_COUNTED = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv, "%": operator.mod}


def _counted(expr: Expr, width: int, height: int) -> int:
    def of(each: Expr) -> int:
        return _counted(each, width, height)

    match expr:
        case tree.Const(int(value)):
            return value
        case PixelAccess(image=tree.WIDTH):
            return width
        case PixelAccess(image=tree.HEIGHT):
            return height
        case tree.BinaryOperation(op, left, right) if op in "+-*" or (op in "/%" and int(of(right)) > 0):
            return cast("int", _COUNTED[op](of(left), of(right)))
        case tree.FunctionCall("min", arguments):
            return least(*map(of, arguments))
        case tree.FunctionCall("max", arguments):
            return most(*map(of, arguments))
    raise ValueError("a size is made of whole numbers, width, height, + - * / % min and max")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingStep:
    """The pixel of an image that belongs to pixel i of a kernel, along each axis: i * times / by + origin."""

    times: tuple[int, int] = (1, 1)
    by: tuple[int, int] = (1, 1)
    origin: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineImage:
    name: str
    dtype: str
    channels: int = 1
    single: bool = False  #: One value per channel, instead of one per pixel
    fill: Fill = field(default_factory=Fill)  #: What an input holds
    area: Area | None = None

    def sides(self, width: int, height: int) -> tuple[int, int]:
        """Its width and height in a pipeline of this width and height."""
        if self.single:
            return 1, 1
        return (width, height) if self.area is None else self.area.at(width, height)

    def elements(self, width: int, height: int) -> int:
        across, down = self.sides(width, height)
        return self.channels * (across * down)


class Halo(NamedTuple):
    """Pixels round a rectangle, each side at least 0."""

    left: int = 0
    right: int = 0
    up: int = 0
    down: int = 0

    def __bool__(self) -> bool:
        return any(tuple(self))

    def __add__(self, other: Halo) -> Halo:  # type: ignore[override]
        return Halo(*map(operator.add, self, other))

    def union(self, other: Halo) -> Halo:
        return Halo(*map(max, self, other))

    @staticmethod
    def around(halos: Iterable[Halo]) -> Halo:
        return reduce(Halo.union, halos, Halo())


@dataclass(frozen=True, kw_only=True)
class ImageKernel:
    name: str
    pattern: str
    mask: tuple[int, int] = (1, 1)  #: Width and height of the window, both odd; (1, 1) unless `local`
    bodies: tuple[Expr, ...]  #: One for all channels, or one for each
    dtype: str
    channels: int = 1
    borders: Mapping[str, Border] = field(default_factory=dict)
    """Image -> what stands outside it; of every image that is read at another pixel than the own."""
    area: Area | None = None  #: The pixels that are computed; of a global kernel those that are reduced
    steps: Mapping[str, SamplingStep] = field(default_factory=dict)
    """Of every image that is read at pixels other than the own by number, or that has another area."""
    reduction: str | None = None
    bins: Area | None = None  #: Of a histogram: the area of its image

    @cached_property
    def accesses(self) -> tuple[PixelAccess, ...]:
        """The distinct pixels that are read at fixed offsets, over all bodies."""
        found = dict.fromkeys(each for body in self.bodies for each in tree.accesses(body))
        return tuple(each for each in found if each.image not in tree.POSITIONS.values())

    @cached_property
    def fetched(self) -> tuple[str, ...]:
        """The images that are read at coordinates which are computed, in the order of their names."""
        nodes = (node for body in self.bodies for node in tree.walk(body))
        return tuple(sorted({node.image for node in nodes if isinstance(node, Fetch)}))

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The images that are read, in the order of their names."""
        return tuple(sorted({*(each.image for each in self.accesses), *self.fetched}))

    @cached_property
    def aligned(self) -> tuple[str, ...]:
        """The images that are read round the own pixel, in the order of their names."""
        return tuple(sorted({each.image for each in self.accesses} - set(self.steps)))

    @property
    def boundary(self) -> bool:
        """Whether it is never fused."""
        return self.pattern in BOUNDARIES

    @property
    def single(self) -> bool:
        """Whether it makes one value per channel."""
        return self.reduction in REDUCTIONS

    @cached_property
    def _windows(self) -> Mapping[str, Halo]:
        found: dict[str, Halo] = {}
        for each in self.accesses:
            found[each.image] = found.get(each.image, Halo()).union(Halo(-each.dx, each.dx, -each.dy, each.dy))
        return found

    def window(self, image: str) -> Halo:
        """How far an image is read from the own pixel."""
        return self._windows.get(image, Halo())

    def windowed(self, image: str) -> bool:
        """Whether an image is read at another pixel than the own."""
        return bool(self.window(image))

    def border(self, image: str) -> Border:
        return self.borders.get(image, CLAMP)

    def body(self, channel: int) -> Expr:
        """The tree that computes a channel, with every access at a channel by number."""
        body = self.bodies[channel if len(self.bodies) > 1 else 0]
        return tree.map_accesses(body, lambda each: replace(each, channel=channel) if each.channel is None else each)

    @cached_property
    def operations(self) -> Operations:
        """What one pixel costs, as written: a body for all channels is counted once (an operation on a whole pixel)."""
        total = Operations()
        for body in self.bodies:
            total += tree.operations(body)
        return total

    @property
    def image(self) -> PipelineImage:
        """The image that it makes."""
        area = self.area if self.bins is None else self.bins
        return PipelineImage(name=self.name, dtype=self.dtype, channels=self.channels, single=self.single, area=area)


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Kernels in topological order (`topological`); nothing is checked here (see `problems`)."""

    name: str
    width: int
    height: int
    inputs: tuple[PipelineImage, ...]
    outputs: tuple[str, ...]
    kernels: tuple[ImageKernel, ...]
    pitched: frozenset[str] = frozenset()  #: Inputs and outputs whose rows need not follow each other
    accuracy: str = "strict"
    """Of ACCURACIES: each float operation is rounded as written, or products and sums may be contracted and put in
    another order."""

    @cached_property
    def known(self) -> dict[tuple[object, ...], object]:
        """What the analysis has found out about single kernels and edges, by question (`once`)."""
        return {}

    def once(self, question: tuple[object, ...], answer: Callable[[], Found]) -> Found:
        """An answer that is asked for again for every block that a kernel or an edge is in."""
        if question not in self.known:
            self.known[question] = answer()
        return cast("Found", self.known[question])

    def sides(self, image: str) -> tuple[int, int]:
        """Width and height of an image."""
        return self.images[image].sides(self.width, self.height)

    def domain(self, kernel: ImageKernel) -> tuple[int, int]:
        """Width and height of the pixels that a kernel computes, or reduces."""
        return (self.width, self.height) if kernel.area is None else kernel.area.at(self.width, self.height)

    @cached_property
    def _kernels(self) -> dict[str, ImageKernel]:
        return {each.name: each for each in self.kernels}

    @cached_property
    def images(self) -> Mapping[str, PipelineImage]:
        """All images by name: the inputs, then what the kernels make."""
        return {each.name: each for each in (*self.inputs, *(kernel.image for kernel in self.kernels))}

    @cached_property
    def position(self) -> Mapping[str, int]:
        """Kernel -> its place in the topological order."""
        return {each.name: index for index, each in enumerate(self.kernels)}

    @cached_property
    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """Image -> the kernels that read it, in topological order."""
        found: dict[str, list[str]] = {name: [] for name in self.images}
        for kernel in self.kernels:
            for image in kernel.reads:
                found[image].append(kernel.name)
        return {name: tuple(each) for name, each in found.items()}

    @cached_property
    def producers(self) -> Mapping[str, tuple[str, ...]]:
        """Kernel -> the kernels whose images it reads, in topological order."""
        return {each.name: self.ordered(name for name in each.reads if name in self._kernels) for each in self.kernels}

    @cached_property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """(producer, consumer), ordered by the consumer and then by the producer in topological order."""
        return tuple((producer, each.name) for each in self.kernels for producer in self.producers[each.name])

    def ordered(self, kernels: Iterable[str]) -> tuple[str, ...]:
        """Kernels by name, each once, in topological order."""
        return tuple(sorted(set(kernels), key=self.position.__getitem__))

    def kernel(self, name: str) -> ImageKernel:
        """The kernel of that name; KeyError when it does not exist."""
        return self._kernels[name]

    def is_kernel(self, name: str) -> bool:
        return name in self._kernels


def part(pipeline: Pipeline, kernels: Iterable[str], outputs: Iterable[str]) -> Pipeline:
    """Some kernels as a pipeline of their own: what they read from outside is its input."""
    inside = pipeline.ordered(kernels)
    members = tuple(pipeline.kernel(name) for name in inside)
    read = sorted({image for each in members for image in each.reads} - set(inside))
    given = {each.name: each for each in pipeline.inputs}
    made = {name: replace(pipeline.images[name], fill=FILLS[pipeline.images[name].dtype]) for name in read}
    return Pipeline(
        name=f"{pipeline.name}:{'+'.join(inside)}",
        width=pipeline.width,
        height=pipeline.height,
        inputs=tuple(given.get(name, made[name]) for name in read),
        outputs=pipeline.ordered(outputs),
        kernels=members,
        pitched=pipeline.pitched & {*read, *inside},
        accuracy=pipeline.accuracy,
    )


def rows(pipeline: Pipeline) -> frozenset[str]:
    """The images that callers hand in and take out, row by row."""
    given = {each.name for each in pipeline.inputs if not each.single}
    made = {each.name for each in pipeline.kernels if each.name in pipeline.outputs and each.pattern != "global"}
    return frozenset(given | made)


def topological(reads: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Names after everything that they read; of several that could come next, the least name comes first.

    Names that are read but are not keys are ignored. ValueError names a cycle, as `a -> b -> a`."""
    waiting = {name: {each for each in found if each in reads} for name, found in reads.items()}
    followers: dict[str, list[str]] = {name: [] for name in reads}
    for name, found in waiting.items():
        for each in found:
            followers[each].append(name)
    ready = [name for name, found in waiting.items() if not found]
    heapq.heapify(ready)
    missing = {name: len(found) for name, found in waiting.items()}
    order = []
    while ready:
        name = heapq.heappop(ready)
        order.append(name)
        for follower in followers[name]:
            missing[follower] -= 1
            if not missing[follower]:
                heapq.heappush(ready, follower)
    if len(order) < len(reads):
        raise ValueError(_cycle(waiting, {name for name in reads if missing[name]}))
    return tuple(order)


def _cycle(waiting: Mapping[str, set[str]], left: set[str]) -> str:
    """Some cycle among the names that are left, each of which waits for another of them."""
    name = min(left)
    path: list[str] = []
    while name not in path:
        path.append(name)
        name = min(waiting[name] & left)
    return " -> ".join(reversed([*path[path.index(name) :], name]))


def problems(pipeline: Pipeline) -> tuple[tuple[str, str], ...]:
    """(kernel or output, what is wrong) for every broken rule, in topological order; empty when the pipeline is sound.

    For pipelines from a file and from Python alike; `reading` adds the line."""
    found: list[tuple[str, str]] = []
    seen = {each.name for each in pipeline.inputs}
    if len(seen) < len(pipeline.inputs):
        found.append((pipeline.name, "two inputs have one name"))
    for kernel in pipeline.kernels:
        if kernel.name in seen:
            found.append((kernel.name, "there are two writers of this image: an input, or a kernel, has its name"))
        found += [(kernel.name, each) for each in _kernel_problems(kernel, pipeline, seen)]
        seen.add(kernel.name)
    used = {name for kernel in pipeline.kernels for name in kernel.reads} | set(pipeline.outputs)
    found += [(name, "is not a kernel, so it cannot be an output") for name in pipeline.outputs
              if not pipeline.is_kernel(name)]  # fmt: skip
    found += [(each.name, "no kernel reads this image, and it is not an output") for each in pipeline.kernels
              if each.name not in used]  # fmt: skip
    found += [(each.name, "no kernel reads this input") for each in pipeline.inputs if each.name not in used]
    if not pipeline.kernels or not pipeline.outputs:
        found.append((pipeline.name, "has no kernels" if not pipeline.kernels else "has no outputs"))
    return tuple(found)


def _kernel_problems(kernel: ImageKernel, pipeline: Pipeline, before: set[str]) -> list[str]:
    found = [*_pattern_problems(kernel), *_body_problems(kernel)]
    found += [f"reads {image!r}, which is not made before it" for image in kernel.reads if image not in before]
    if not kernel.reads:
        found.append("reads no image")
    found += _image_problems(kernel, pipeline)
    area = pipeline.domain(kernel)
    if min(area) < 1 or max(area) > WIDEST_IMAGE:
        found.append(f"{area[0]} x {area[1]} pixels; a side has 1 to {WIDEST_IMAGE}")
    width, height = kernel.mask
    outside = (each for each in kernel.accesses if abs(each.dx) > width // 2 or abs(each.dy) > height // 2)
    if each := next(outside, None):
        inside = "its own pixel" if kernel.mask == (1, 1) else f"a mask of {width} x {height}"
        found.append(f"{each.image}[{each.dx}, {each.dy}] lies outside {inside}")
    return found


def _pattern_problems(kernel: ImageKernel) -> Iterator[str]:
    width, height = kernel.mask
    if width % 2 == 0 or height % 2 == 0 or min(kernel.mask) < 1:
        yield f"a mask of {width} x {height} has no centre; both sides must be odd"
    if kernel.pattern != "local" and kernel.mask != (1, 1):
        yield f"a {kernel.pattern} kernel has no mask"
    if (kernel.pattern in ("global", "scan")) != (kernel.reduction is not None):
        yield "a global kernel has a reduction, a scan an axis, and no other kernel has either"
    if kernel.boundary and kernel.steps:
        yield f"a {kernel.pattern} kernel reads images of one size, without a step; put a point kernel before it"


def _body_problems(kernel: ImageKernel) -> Iterator[str]:
    if kernel.pattern == "hysteresis" and kernel.channels != 1:
        yield "hysteresis is of one channel"
    if kernel.reduction == HISTOGRAM and (kernel.channels, kernel.dtype, len(kernel.bodies)) != (1, "int32", 2):
        yield "a histogram counts in one channel of int32, by a bin and a row"
    if kernel.reduction != HISTOGRAM and len(kernel.bodies) not in (1, kernel.channels):
        yield f"{len(kernel.bodies)} bodies for {kernel.channels} channel(s)"


def _image_problems(kernel: ImageKernel, pipeline: Pipeline) -> Iterator[str]:
    images = {name: pipeline.images[name] for name in kernel.reads if name in pipeline.images}
    for name, image in images.items():
        if image.single and (name in kernel.fetched or name in kernel.steps):
            yield f"{name!r} is a single value: it has no coordinates and no step"
    for name in kernel.aligned:
        if name in images and not images[name].single and images[name].area != kernel.area:
            yield f"{name!r} has another size; say by which step it is read"
