"""An image pipeline: kernels that read images and make one image each.

    Pipeline = name, width, height, inputs (Image ...), outputs (names), kernels (Kernel ...) in topological order
    Image    = name, dtype, channels (1 to 4: interleaved, channel fastest), single
    Kernel   = name, pattern, mask (w, h), borders, bodies, dtype, channels, reduction
    Border   = clamp | mirror | reflect | repeat | constant(value)

A kernel's image has the kernel's name. All images have the pipeline's width and height, except that a `global` kernel
makes a `single` value per channel, which every pixel of its readers sees.

- point: reads every image at its own pixel only. local: reads a window of `mask` pixels round it, both sides odd.
- global: reads like a point kernel, and reduces the values of all pixels by `reduction` (sum, min, max) in its dtype.
- A kernel has one body for all channels (accesses with channel None are at the channel that is computed), or one for
  each channel. The value of a body is converted to the kernel's dtype as C does it (expr.py says how).
- A border says what stands outside an image, for one reader of it, in its own coordinates:
  clamp      aaaa|abcd|dddd     the nearest pixel            (SciPy: nearest)
  mirror     dcb |abcd| cba     the edge pixel once          (SciPy: mirror; OpenCV: BORDER_REFLECT_101)
  reflect    dcba|abcd|dcba     the edge pixel twice         (SciPy: reflect; OpenCV: BORDER_REFLECT)
  repeat     abcd|abcd|abcd     the image again              (SciPy: grid-wrap)
  constant   vvvv|abcd|vvvv     a value of the image's dtype (SciPy: constant)
  All of them hold however far outside a pixel is (a mask may be larger than the image).

`topological` orders kernels by their names wherever their dependences leave a choice, so that nothing depends on the
order in a file.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from fusiond.program import Fill
from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.expr import Access, Expr, Operations

PATTERNS = ("point", "local", "global")
BORDERS = ("clamp", "mirror", "reflect", "repeat", "constant")
WIDEST_IMAGE = 65_536
TITLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
"""A pipeline's name."""
ACCURACIES = ("strict", "relaxed")
REDUCTIONS = ("sum", "min", "max")


@dataclass(frozen=True, slots=True, kw_only=True)
class Border:
    mode: str
    value: int | float = 0
    """Of `constant`: what the image's dtype holds."""


CLAMP = Border(mode="clamp")
FILLS = {
    "uint8": Fill(kind="integers", low=0, high=255),
    "int16": Fill(kind="integers", low=-32768, high=32767),
    "uint16": Fill(kind="integers", low=0, high=65535),
    "int32": Fill(kind="integers", low=0, high=255),
    "float32": Fill(kind="uniform", low=0, high=1),
}
"""What an image holds that comes from outside, when nobody says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    name: str
    dtype: str
    channels: int = 1
    single: bool = False
    """One value per channel, instead of one per pixel."""
    fill: Fill = field(default_factory=Fill)
    """What an input holds."""

    def elements(self, width: int, height: int) -> int:
        return self.channels * (1 if self.single else width * height)


@dataclass(frozen=True, kw_only=True)
class Kernel:
    name: str
    pattern: str
    mask: tuple[int, int] = (1, 1)
    """Width and height of the window, both odd; (1, 1) unless `local`."""
    bodies: tuple[Expr, ...]
    """One for all channels, or one for each."""
    dtype: str
    channels: int = 1
    borders: Mapping[str, Border] = field(default_factory=dict)
    """Image -> what stands outside it; of every image that is read at another pixel than the own."""
    reduction: str | None = None

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """The distinct pixels that are read, over all bodies."""
        return tuple(dict.fromkeys(each for body in self.bodies for each in tree.accesses(body)))

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The images that are read, in the order of their names."""
        return tuple(sorted({each.image for each in self.accesses}))

    @cached_property
    def _windows(self) -> Mapping[str, tuple[int, int, int, int]]:
        found: dict[str, tuple[int, int, int, int]] = {}
        for each in self.accesses:
            left, right, up, down = found.get(each.image, (0, 0, 0, 0))
            found[each.image] = max(left, -each.dx), max(right, each.dx), max(up, -each.dy), max(down, each.dy)
        return found

    def window(self, image: str) -> tuple[int, int, int, int]:
        """How far an image is read from the own pixel: (left, right, up, down), each at least 0."""
        return self._windows.get(image, (0, 0, 0, 0))

    def windowed(self, image: str) -> bool:
        """Whether an image is read at another pixel than the own."""
        return any(self.window(image))

    def border(self, image: str) -> Border:
        return self.borders.get(image, CLAMP)

    def body(self, channel: int) -> Expr:
        """The tree that computes a channel, with every access at a channel by number."""
        body = self.bodies[channel if len(self.bodies) > 1 else 0]
        return tree.map_accesses(
            body,
            lambda each: Access(each.image, each.dx, each.dy, channel, each.dtype) if each.channel is None else each,
        )

    @cached_property
    def operations(self) -> Operations:
        """What one pixel costs, as written: a body for all channels is counted once (an operation on a whole pixel)."""
        total = Operations()
        for body in self.bodies:
            total += tree.operations(body)
        return total

    @property
    def image(self) -> Image:
        """The image that it makes."""
        return Image(name=self.name, dtype=self.dtype, channels=self.channels, single=self.pattern == "global")


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Kernels in topological order (`topological`); nothing is checked here (see `problems`)."""

    name: str
    width: int
    height: int
    inputs: tuple[Image, ...]
    outputs: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    accuracy: str = "strict"
    """Of ACCURACIES: each float operation is rounded as written, or products and sums may be contracted and put in
    another order."""

    @cached_property
    def known(self) -> dict[tuple[object, ...], object]:
        """What the analysis has found out about single kernels and edges, by question: it is asked again for every
        block that they are in."""
        return {}

    @cached_property
    def _kernels(self) -> dict[str, Kernel]:
        return {each.name: each for each in self.kernels}

    @cached_property
    def images(self) -> Mapping[str, Image]:
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
        return {
            each.name: tuple(sorted((name for name in each.reads if name in self._kernels), key=self.position.get))  # type: ignore[arg-type]
            for each in self.kernels
        }

    @cached_property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """(producer, consumer), ordered by the consumer and then by the producer in topological order."""
        return tuple((producer, each.name) for each in self.kernels for producer in self.producers[each.name])

    def kernel(self, name: str) -> Kernel:
        """The kernel of that name; KeyError when there is none."""
        return self._kernels[name]

    def is_kernel(self, name: str) -> bool:
        return name in self._kernels


def part(pipeline: Pipeline, kernels: Iterable[str], outputs: Iterable[str]) -> Pipeline:
    """Some kernels as a pipeline of their own: what they read from outside is its input."""
    inside = sorted(set(kernels), key=pipeline.position.__getitem__)
    members = tuple(pipeline.kernel(name) for name in inside)
    read = sorted({image for each in members for image in each.reads} - set(inside))
    given = {each.name: each for each in pipeline.inputs}
    made = {name: replace(pipeline.images[name], fill=FILLS[pipeline.images[name].dtype]) for name in read}
    return Pipeline(
        name=f"{pipeline.name}:{'+'.join(inside)}",
        width=pipeline.width,
        height=pipeline.height,
        inputs=tuple(given.get(name, made[name]) for name in read),
        outputs=tuple(sorted(set(outputs), key=pipeline.position.__getitem__)),
        kernels=members,
        accuracy=pipeline.accuracy,
    )


def topological(reads: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Names after everything that they read; of several that could come next, the least name comes first.

    Names that are read and no key are no matter. ValueError names a cycle, as `a -> b -> a`.
    """
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

    For pipelines from a file and from Python alike; `reading` adds the line.
    """
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
    found += [(name, "is no kernel, so it cannot be an output") for name in pipeline.outputs
              if not pipeline.is_kernel(name)]  # fmt: skip
    found += [(each.name, "nobody reads this image, and it is no output") for each in pipeline.kernels
              if each.name not in used]  # fmt: skip
    found += [(each.name, "nobody reads this input") for each in pipeline.inputs if each.name not in used]
    if not pipeline.kernels or not pipeline.outputs:
        found.append((pipeline.name, "has no kernels" if not pipeline.kernels else "has no outputs"))
    return tuple(found)


def _kernel_problems(kernel: Kernel, pipeline: Pipeline, before: set[str]) -> list[str]:
    found = []
    width, height = kernel.mask
    if width % 2 == 0 or height % 2 == 0 or min(kernel.mask) < 1:
        found.append(f"a mask of {width} x {height} has no centre; both sides must be odd")
    if kernel.pattern != "local" and kernel.mask != (1, 1):
        found.append(f"a {kernel.pattern} kernel has no mask")
    if (kernel.pattern == "global") != (kernel.reduction is not None):
        found.append("a global kernel has a reduction, and no other kernel has one")
    if len(kernel.bodies) not in (1, kernel.channels):
        found.append(f"{len(kernel.bodies)} bodies for {kernel.channels} channel(s)")
    for image in kernel.reads:
        if image not in before:
            found.append(f"reads {image!r}, which is not made before it")
    if not kernel.reads:
        found.append("reads no image")
    for each in kernel.accesses:
        if abs(each.dx) > width // 2 or abs(each.dy) > height // 2:
            inside = "its own pixel" if kernel.mask == (1, 1) else f"a mask of {width} x {height}"
            found.append(f"{each.image}[{each.dx}, {each.dy}] lies outside {inside}")
            break
    return found
