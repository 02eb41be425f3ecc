"""The functions of a fused kernel: the interior, where no index is outside, the border, and the stages that both call.

In the interior, an access is a load at a constant distance. At the border, the index is exchanged first, by the mode
that the *reader* gives the image; then the pixel that it means is taken

- from the image in global memory, when the block reads it;
- from the stage's tile, when the pixel lies in it (a periodic stage's tile holds what lies outside, too);
- from the stage evaluated *there*, with the stage's own borders for its own reads: a function `NAME_at(x, y)`, or for a
  point stage that is computed from tiles, `NAME_from(x, y)`.

So a fused stage sees at every position what the unfused one would have read back from memory. `evaluation` writes the
statements.
"""

from dataclasses import dataclass, field
from functools import cached_property

from fusiond.model.codegen.code import Code, call, cpp
from fusiond.model.codegen.literals import literal
from fusiond.model.codegen.operators import Term, atom, binary, cast, prefix
from fusiond.model.codegen.statements import Statements, function, wrapped
from fusiond_mincut.analysis.blocks import KernelBlock
from fusiond_mincut.codegen.addresses import TX, TY, X0, Y0, X, Y, cell, element, inside, plus, stepped
from fusiond_mincut.codegen.evaluation import PixelEvaluation, tile_holds
from fusiond_mincut.codegen.stages import CHANNELS, STORED, TYPES
from fusiond_mincut.codegen.tiles import SharedTile, TileLayout, TileLoop, tiles_behind
from fusiond_mincut.codegen.windows import Window, extracted
from fusiond_mincut.frontend.graph import Area, Halo, ImageKernel, Pipeline, PipelineImage

_INLINE = 4  #: Stages that `NAME_at` evaluates in place


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRectangle:
    """A block of threads: `x` by `y` of them, each with `rows` pixels one below the other."""

    x: int
    y: int
    rows: int

    @property
    def threads(self) -> int:
        return self.x * self.y

    @property
    def width(self) -> int:
        return self.x

    @property
    def height(self) -> int:
        return self.y * self.rows


@dataclass
class StageFunctions:
    """Writes the functions of one block, and collects what they call: `NAME_at`, `NAME_near`, index maps."""

    pipeline: Pipeline
    block: KernelBlock
    layout: TileLayout
    shape: ThreadRectangle
    frame: bool = False
    """The border's way is one for rectangles of the frame of strips: 32 threads a row, whatever the rectangle's width,
    one pixel each; stored are pixels before `x_end`, `y_end` and outside the interior."""
    modes: set[str] = field(default_factory=set)  #: The border modes whose index map is called
    at: dict[str, str] = field(default_factory=dict)  #: NAME_at -> its text, callees first
    near: dict[str, str] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)  #: NAME_from -> its text
    constants: dict[str, str] = field(default_factory=dict)  #: Factors of large windows -> their text

    @cached_property
    def stages(self) -> dict[str, tuple[ImageKernel, dict[str, Window]]]:
        """Kernel -> as its stage is written, with the large windows that are computed before it is called."""
        taken = set(self.pipeline.images)
        found = {}
        for name in self.block.kernels:
            found[name] = extracted(self.pipeline.kernel(name), taken)
            taken |= set(found[name][1])
        return found

    # --- signatures ---

    @property
    def inputs(self) -> tuple[PipelineImage, ...]:
        return tuple(self.pipeline.images[name] for name in self.block.inputs)

    @property
    def outputs(self) -> tuple[PipelineImage, ...]:
        return tuple(self.pipeline.images[name] for name in self.block.outputs)

    def factors(self, window: Window) -> str:
        """The name of a window's factors in constant memory, which its text is kept for."""
        name = f"{window.name}_factors"
        if not window.plain and name not in self.constants:
            stored = STORED[window.dtype]
            given = wrapped([literal(each, window.dtype) for each in window.factors])
            self.constants[name] = f"__constant__ {stored} {name}[{len(window.factors)}] = {{\n    {given}}};\n"
        return name

    @cached_property
    def area(self) -> Area | None:
        """Of the images that the block stores: `width` and `height` of its text."""
        return self.pipeline.images[self.block.outputs[0]].area

    @cached_property
    def other_areas(self) -> tuple[str, ...]:
        """One image of every other size: it is a parameter under that image's name."""
        images = (self.pipeline.images[name] for name in (*self.block.inputs, *self.block.kernels))
        first: dict[Area | None, str] = {}
        for each in images:
            if not each.single and each.area != self.area:
                first.setdefault(each.area, each.name)
        return tuple(first.values())

    def sides(self, image: str) -> tuple[str, str]:
        """The parameters that hold an image's width and height."""
        area = self.pipeline.images[image].area
        name = next((each for each in self.other_areas if self.pipeline.images[each].area == area), None)
        return ("width", "height") if name is None else (f"{name}_width", f"{name}_height")

    def whole(self, image: str, channel: int) -> list[str]:
        """What a stage is given that reads an image at computed coordinates."""
        return [f"{image}_image{f' + {channel}' if channel else ''}", *self.sides(image), self.row(image)]

    def row(self, image: str) -> str:
        """The elements from a row of an image to the next."""
        if image in self.pitched:
            return f"{image}_pitch"
        channels = self.pipeline.images[image].channels
        return self.sides(image)[0] + (f" * {channels}" if channels > 1 else "")

    @cached_property
    def pitched(self) -> tuple[str, ...]:
        """The images of the block that have a pitch, which is a parameter."""
        return tuple(name for name in (*self.block.inputs, *self.block.outputs) if name in self.pipeline.pitched)

    def steps_inside(self) -> list[str]:
        """What has to hold for a block of threads at (x0, y0) so that all that it reads by steps lies in the images."""
        found = []
        for name in self.block.kernels:
            kernel, halo = self.pipeline.kernel(name), self.layout.halos.get(name)
            for image, step in kernel.steps.items() if halo is not None else ():
                assert halo is not None
                left, right, up, down = kernel.window(image)
                width, height = self.sides(image)
                for axis, before, behind, last, low, high, side in (
                    (0, halo.left, halo.right, self.shape.width - 1, left, right, width),
                    (1, halo.up, halo.down, self.shape.height - 1, up, down, height),
                ):
                    start = (X0, Y0)[axis]
                    found.append(f"{stepped(plus(start, -before), step, axis).code} >= {low}")
                    end = plus(stepped(plus(start, last + behind), step, axis), high)
                    found.append(f"{end.code} < {side}")
        return list(dict.fromkeys(found))

    def element(self, image: PipelineImage, x: Term, y: Term, channel: int) -> Code:
        """The element of an image in global memory: channels are interleaved."""
        if image.name not in self.pitched:
            return element(image, x, y, channel, self.sides(image.name)[0])
        column = binary("*", x, atom(str(image.channels))) if image.channels > 1 else x
        index = binary("+", binary("*", y, atom(self.row(image.name))), column)
        return cpp("{}_image[{}]", image.name, (plus(index, channel) if channel else index).code)

    def _sizes(self) -> list[str]:
        others = [side for name in self.other_areas for side in self.sides(name)]
        return ["width", "height", *others, *map(self.row, self.pitched)]

    def parameters(self, *more: str, outputs: bool) -> list[str]:
        """All that a function is given, with `more` behind the sizes."""
        found = [f"const {STORED[each.dtype]}* __restrict__ {each.name}_image" for each in self.inputs]
        if outputs:
            found += [f"{STORED[each.dtype]}* __restrict__ {each.name}_image" for each in self.outputs]
        return [*found, *(f"int {each}" for each in self._sizes()), *more]

    def arguments(self, *more: str, outputs: bool) -> list[str]:
        images = (*self.inputs, *self.outputs) if outputs else self.inputs
        return [*(f"{each.name}_image" for each in images), *self._sizes(), *more]

    @property
    def _thread(self) -> str:
        """The number of a thread of the block. (Strips have 32 threads a row, whatever the rectangle.)"""
        return f"threadIdx.y * {32 if self.frame else self.shape.x} + threadIdx.x"

    def kernel(self, name: str) -> ImageKernel | None:
        """The stage of that name; None for what the block reads."""
        return self.pipeline.kernel(name) if name in self.block.kernels else None

    # --- the two ways ---

    def path(self, name: str, *, border: bool) -> str:
        """One way through the block: fill the tiles round by round, then store the outputs."""
        body = Statements()
        if border and self.layout.passes:
            self._call_passes(body)
        for number, loops in enumerate(self.layout.rounds, 1):
            for loop in loops:
                self._fill(body, loop, number, border=border)
            body.line("__syncthreads();")
        self._finish(body, border=border)
        tiles = ["Tiles& tiles"] if self.layout.rounds else []
        ends = ["int x_end", "int y_end"] if self.frame else []
        parameters = self.parameters("int x0", "int y0", *ends, *tiles, outputs=True)
        return function(f"__device__ __forceinline__ void {name}", parameters, body, below=True)

    def passes(self) -> str:
        """The function that fills the tiles that are wrapped for a block moved by whole images."""
        body = Statements()
        numbers = {loops: number for number, loops in enumerate(self.layout.rounds, 1)}
        for loops in self.layout.passes:
            first = loops[0].tiles[0].name
            number = next(n for every, n in numbers.items() if any(first in {t.name for t in e.tiles} for e in every))
            for loop in loops:
                self._fill(body, loop, number, border=True)
            body.line("__syncthreads();")
        parameters = self.parameters("int x0", "int y0", "Tiles& tiles", outputs=False)
        return function("__device__ __noinline__ void far_side", parameters, body, below=True)

    def _call_passes(self, body: Statements) -> None:
        """One pass for every image of a plane of images that the tiles of the block reach, but its own."""
        reach = Halo.around(loop.halo for loops in self.layout.passes for loop in loops)
        body.comment("What repeats is computed on the far side of the image, with the block moved there.")
        body.line(f"const int left = x0 < {reach.left} ? ({reach.left} - x0 + width - 1) / width : 0;")
        body.line(f"const int above = y0 < {reach.up} ? ({reach.up} - y0 + height - 1) / height : 0;")
        rows = body.block(f"for (int v = above; v >= -((y0 + {self.shape.height + reach.down - 1}) / height); --v)")
        columns = rows.block(f"for (int u = left; u >= -((x0 + {self.shape.width + reach.right - 1}) / width); --u)")
        given = self.arguments("x0 + u * width", "y0 + v * height", "tiles", outputs=False)
        columns.line(f"if (u != 0 || v != 0) {call('far_side', *given)};")

    def _fill(self, body: Statements, loop: TileLoop, number: int, *, border: bool) -> None:
        tile, halo = loop.tiles[0], loop.halo
        names = " and ".join(each.name for each in loop.tiles)
        body.line(f"// {names}, on {tile.width} x {tile.height} pixels")
        inner = body.block(f"for (int i = {self._thread}; i < {tile.width * tile.height}; i += {self.shape.threads})")
        inner.line(f"const int tx = i % {tile.width}, ty = i / {tile.width};")
        x, y = (binary("+", plus(X0, -halo.left), TX).code, binary("+", plus(Y0, -halo.up), TY).code)
        if border and loop.periodic:
            self.modes.add("repeat")
            x, y = call("repeat_index", x, "width"), call("repeat_index", y, "height")
        inner.line(cpp("const int x = {}, y = {};", x, y))
        if border and not loop.periodic:
            outside = prefix("!", binary("&&", inside(X, atom("width")), inside(Y, atom("height"))))
            inner.line(cpp("if ({}) continue;", outside.code))
        scope = PixelEvaluation(self, inner, border=border, level=number, halo=halo)
        for each in loop.tiles:
            for channel in range(each.image.channels):
                value = scope.value(each.name, 0, 0, channel)
                inner.line(cpp("{} = {};", cell(each, TY, TX, channel), value))

    def _finish(self, body: Statements, *, border: bool) -> None:
        if self.frame:
            body.line(f"const int thread = {self._thread}, tx = thread % {self.shape.x}, x = x0 + tx;")
        else:
            body.line("const int tx = threadIdx.x, x = x0 + tx;")
        if self.shape.rows > 1:
            body = body.block(f"#pragma unroll\nfor (int row = 0; row < {self.shape.rows}; ++row)")
            body.line(f"const int ty = threadIdx.y * {self.shape.rows} + row, y = y0 + ty;")
        else:
            ty = f"thread / {self.shape.x}" if self.frame else "threadIdx.y"
            body.line(f"const int ty = {ty}, y = y0 + ty;")
        if self.frame:
            reach = self.layout.reach
            across, down = (
                f"x >= {reach.left} && x < width - {reach.right}",
                f"y >= {reach.up} && y < height - {reach.down}",
            )
            body.line(f"if (x >= x_end || y >= y_end || {across} && {down}) return;")
        elif border:  # no barrier follows
            body.line(f"if (x >= width || y >= height) {'continue' if self.shape.rows > 1 else 'return'};")
        scope = PixelEvaluation(self, body, border=border, level=len(self.layout.rounds) + 1, halo=Halo())
        for image in self.outputs:
            for channel in range(image.channels):
                value = scope.own(image.name, channel)
                value = cast("int", Term(value)).code if image.dtype == "int32" else value
                body.line(cpp("{} = {};", self.element(image, X, Y, channel), value))

    # --- functions for pixels anywhere ---

    def call_at(self, name: str, channel: int, x: Term, y: Term) -> Code:
        """A stage at any pixel of the image, computed from what the block reads."""
        kernel = self.pipeline.kernel(name)
        called = f"{name}_at{CHANNELS[channel] if kernel.channels > 1 else ''}"
        if called not in self.at:
            body = Statements()
            value = PixelEvaluation(self, body, border=True, level=0, halo=Halo()).value(name, 0, 0, channel)
            body.line(cpp("return {};", value))
            inline = "__forceinline__" if evaluations(self.pipeline, self.block)[name] <= _INLINE else "__noinline__"
            head = f"static __device__ {inline} {TYPES[kernel.dtype]} {called}"
            self.at[called] = function(head, self.parameters("int x", "int y", outputs=False), body, below=True)
        return call(called, *self.arguments(x.code, y.code, outputs=False))

    def call_near(self, tile: SharedTile, channel: int, x: Term, y: Term) -> Code:
        """A stage at any pixel of the image: from its tile where that holds it."""
        called = f"{tile.name}_near{CHANNELS[channel] if tile.image.channels > 1 else ''}"
        if called not in self.near:
            otherwise = self.call_at(tile.name, channel, X, Y)
            tx, ty = (plus(binary("-", X, X0), tile.halo.left), plus(binary("-", Y, Y0), tile.halo.up))
            held = binary("&&", inside(TX, tile.width), inside(TY, tile.height))
            body = Statements()
            body.line(cpp("const int tx = {}, ty = {};", tx.code, ty.code))
            body.line(cpp("if ({})\n    return {};", held.code, cell(tile, TY, TX, channel)))
            body.line(cpp("return {};", otherwise))
            self.near[called] = self._of_tiles(called, tile.image.dtype, body)
        return self._call_of_tiles(called, x, y)

    def call_from(self, name: str, channel: int, x: Term, y: Term, reader: ImageKernel, mode: str) -> Code:
        """A stage that is computed from tiles, at the pixel that an access of `reader` has been led to."""
        kernel = self.pipeline.kernel(name)
        behind = tiles_behind(self.pipeline, self.block, self.layout, name)
        tiles = self.layout.tiles
        held = all(tile_holds(tiles[each], reader.window(name), mode, self.shape) for each in behind)
        called = f"{name}_{'from' if held else 'fromnear'}{CHANNELS[channel] if kernel.channels > 1 else ''}"
        if called not in self.made:
            body = Statements()
            if held:
                body.line("const int tx = x - x0, ty = y - y0;")
            level = len(self.layout.rounds) + 1
            scope = PixelEvaluation(self, body, border=True, level=level, halo=Halo(), anywhere=not held)
            body.line(cpp("return {};", scope.value(name, 0, 0, channel)))
            self.made[called] = self._of_tiles(called, kernel.dtype, body)
        return self._call_of_tiles(called, x, y)

    def _of_tiles(self, name: str, dtype: str, body: Statements) -> str:
        parameters = self.parameters("int x0", "int y0", "const Tiles& tiles", "int x", "int y", outputs=False)
        return function(f"__device__ __forceinline__ {TYPES[dtype]} {name}", parameters, body, below=True)

    def _call_of_tiles(self, name: str, x: Term, y: Term) -> Code:
        return call(name, *self.arguments("x0", "y0", "tiles", x.code, y.code, outputs=False))


def evaluations(pipeline: Pipeline, block: KernelBlock) -> dict[str, int]:
    """How many stages `NAME_at` evaluates, itself included: those at its own pixel once each, and for every read round
    it what that stage takes again."""
    found: dict[str, int] = {}
    together: dict[str, frozenset[str]] = {}  #: Stage -> the stages that are computed at its pixel with it
    for name in block.kernels:
        kernel = pipeline.kernel(name)
        own = {each.image for each in kernel.accesses
               if each.image in found and each.dx == each.dy == 0 and each.image not in kernel.steps}  # fmt: skip
        together[name] = frozenset({name}).union(*(together[each] for each in own))
        found[name] = len(together[name]) + sum(
            found[each.image]
            for stage in together[name]
            for each in pipeline.kernel(stage).accesses
            if each.image in found and (each.dx or each.dy or each.image in pipeline.kernel(stage).steps)
        )
    return found
