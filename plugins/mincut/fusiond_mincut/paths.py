"""The two ways through a fused kernel: the interior, where no index is ever outside, and the border.

In the interior, an access is a load at a constant distance. At the border, the index is exchanged first, by the mode
that the *reader* gives the image; then the pixel that it means is taken

- from the image in global memory, when the block reads it;
- from the stage's tile, when the pixel lies in it (a periodic stage's tile holds what lies outside, too);
- from the stage evaluated *there*, with the stage's own borders for its own reads: a function `NAME_at(x, y)`, or for a
  point stage that is computed from tiles, `NAME_from(x, y)`.

So a fused stage sees at every position what the unfused one would have read back from memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fusiond_mincut import borders
from fusiond_mincut.blocks import Block
from fusiond_mincut.bodies import CHANNELS, STORED, TYPES, constant, offset_name, rows, stage_of, stages
from fusiond_mincut.expr import Access
from fusiond_mincut.graph import Border, Image, Kernel, Pipeline
from fusiond_mincut.tiles import Halo, Layout, Loop, Tile, tiles_behind


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
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
class Paths:
    """Writes the functions of one block, and collects what they call: `NAME_at`, `NAME_near`, index maps."""

    pipeline: Pipeline
    block: Block
    layout: Layout
    shape: Shape
    modes: set[str] = field(default_factory=set)
    """The border modes whose index map is called."""
    at: dict[str, str] = field(default_factory=dict)
    """NAME_at -> its text, callees first."""
    near: dict[str, str] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)
    """NAME_from -> its text."""

    # --- signatures ---

    @property
    def inputs(self) -> tuple[Image, ...]:
        return tuple(self.pipeline.images[name] for name in self.block.inputs)

    @property
    def outputs(self) -> tuple[Image, ...]:
        return tuple(self.pipeline.images[name] for name in self.block.outputs)

    def parameters(self, *more: str, outputs: bool) -> str:
        """All that a function is given, with `more` behind width and height, on lines of their own."""
        found = [f"const {STORED[each.dtype]}* __restrict__ {each.name}_image" for each in self.inputs]
        if outputs:
            found += [f"{STORED[each.dtype]}* __restrict__ {each.name}_image" for each in self.outputs]
        return "\n    " + rows([*found, "int width", "int height", *more], "    ", 4)

    def arguments(self, *, outputs: bool) -> str:
        images = (*self.inputs, *self.outputs) if outputs else self.inputs
        return ", ".join([*(f"{each.name}_image" for each in images), "width", "height"])

    def kernel(self, name: str) -> Kernel | None:
        """The stage of that name; None for what the block reads."""
        return self.pipeline.kernel(name) if name in self.block.kernels else None

    # --- the paths ---

    def path(self, name: str, *, border: bool) -> str:
        """One way through the block: fill the tiles round by round, then store the outputs."""
        tiles = ["Tiles& tiles"] if self.layout.rounds else []
        lines = [
            f"__device__ __forceinline__ void {name}({self.parameters('int x0', 'int y0', *tiles, outputs=True)})",
            "{",
        ]
        for number, loops in enumerate(self.layout.rounds, 1):
            for loop in loops:
                lines += _indented(self._fill(loop, number, border=border))
            lines += _indented(_barrier())
        lines += _indented(self._finish(border=border))
        return "\n".join([*lines, "}", ""])

    def _fill(self, loop: Loop, number: int, *, border: bool) -> list[str]:
        tile, halo = loop.tiles[0], loop.halo
        inner = Scope(self, border=border, level=number, halo=halo)
        for each in loop.tiles:
            for channel in range(each.image.channels):
                value = inner.value(each.name, 0, 0, channel)
                inner.lines.append(f"tiles.{_cell(each, 'ty', 'tx', channel)} = {value};")
        names = " and ".join(each.name for each in loop.tiles)
        head = [
            f"// {names}, on {tile.width} x {tile.height} pixels",
            f"for (int i = threadIdx.y * {self.shape.x} + threadIdx.x; i < {tile.width * tile.height};"
            f" i += {self.shape.threads}) {{",
            f"    const int tx = i % {tile.width}, ty = i / {tile.width};",
        ]
        x, y = f"{_plus('x0', -halo.left)} + tx", f"{_plus('y0', -halo.up)} + ty"
        if border and loop.periodic:
            self.modes.add("repeat")
            x, y = f"repeat_index({x}, width)", f"repeat_index({y}, height)"
        head.append(f"    const int x = {x}, y = {y};")
        if border and not loop.periodic:
            head.append(f"    if (!({_inside('x', 'width')} && {_inside('y', 'height')})) continue;")
        return [*head, *_indented(inner.lines), "}"]

    def _finish(self, *, border: bool) -> list[str]:
        inner = Scope(self, border=border, level=len(self.layout.rounds) + 1, halo=Halo())
        for image in self.outputs:
            for channel in range(image.channels):
                value = inner.own(image.name, channel)
                value = f"(int){value}" if image.dtype == "int32" else value
                inner.lines.append(f"{_element(image, 'x', 'y', channel)} = {value};")
        head = ["const int tx = threadIdx.x, x = x0 + tx;"]
        if self.shape.rows > 1:
            start = [f"#pragma unroll\nfor (int row = 0; row < {self.shape.rows}; ++row) {{"]
            inside = [f"const int ty = threadIdx.y * {self.shape.rows} + row, y = y0 + ty;"]
            if border:
                inside.append("if (x >= width || y >= height) continue;")
            return [*head, *start, *_indented([*inside, *inner.lines]), "}"]
        head.append("const int ty = threadIdx.y, y = y0 + ty;")
        if border:  # no barrier follows
            head.append("if (x >= width || y >= height) return;")
        return [*head, *inner.lines]

    # --- functions for pixels anywhere ---

    def call_at(self, name: str, channel: int, x: str, y: str) -> str:
        """A stage at any pixel of the image, computed from what the block reads."""
        kernel = self.pipeline.kernel(name)
        function = f"{name}_at{CHANNELS[channel] if kernel.channels > 1 else ''}"
        if function not in self.at:
            inner = Scope(self, border=True, level=0, halo=Halo())
            value = inner.value(name, 0, 0, channel)
            inline = "__forceinline__" if evaluations(self.pipeline, self.block)[name] <= _INLINE else "__noinline__"
            self.at[function] = "\n".join([
                f"static __device__ {inline} {TYPES[kernel.dtype]} {function}("
                f"{self.parameters('int x', 'int y', outputs=False)})",
                "{", *_indented(inner.lines), f"    return {value};", "}", "",
            ])  # fmt: skip
        return f"{function}({self.arguments(outputs=False)}, {x}, {y})"

    def call_near(self, tile: Tile, channel: int, x: str, y: str) -> str:
        """A stage at any pixel of the image: from its tile where that holds it."""
        function = f"{tile.name}_near{CHANNELS[channel] if tile.image.channels > 1 else ''}"
        if function not in self.near:
            otherwise = self.call_at(tile.name, channel, "x", "y")
            self.near[function] = "\n".join([
                f"__device__ __forceinline__ {TYPES[tile.image.dtype]} {function}("
                + self.parameters("int x0", "int y0", "const Tiles& tiles", "int x", "int y", outputs=False)
                + ")",
                "{",
                f"    const int tx = {_plus('x - x0', tile.halo.left)}, ty = {_plus('y - y0', tile.halo.up)};",
                f"    if ({_inside('tx', str(tile.width))} && {_inside('ty', str(tile.height))})",
                f"        return tiles.{_cell(tile, 'ty', 'tx', channel)};",
                f"    return {otherwise};", "}", "",
            ])  # fmt: skip
        return f"{function}({self.arguments(outputs=False)}, x0, y0, tiles, {x}, {y})"

    def call_from(self, name: str, channel: int, x: str, y: str, reader: Kernel, mode: str) -> str:
        """A stage that is computed from tiles, at the pixel that an access of `reader` has been led to."""
        kernel = self.pipeline.kernel(name)
        behind = tiles_behind(self.pipeline, self.block, self.layout, name)
        tiles = self.layout.tiles
        held = all(tile_holds(tiles[each], reader.window(name), mode, self.shape) for each in behind)
        function = f"{name}_{'from' if held else 'fromnear'}{CHANNELS[channel] if kernel.channels > 1 else ''}"
        if function not in self.made:
            inner = Scope(self, border=True, level=len(self.layout.rounds) + 1, halo=Halo(), anywhere=not held)
            if held:
                inner.lines.append("const int tx = x - x0, ty = y - y0;")
            value = inner.value(name, 0, 0, channel)
            self.made[function] = "\n".join([
                f"__device__ __forceinline__ {TYPES[kernel.dtype]} {function}("
                + self.parameters("int x0", "int y0", "const Tiles& tiles", "int x", "int y", outputs=False)
                + ")",
                "{", *_indented(inner.lines), f"    return {value};", "}", "",
            ])  # fmt: skip
        return f"{function}({self.arguments(outputs=False)}, x0, y0, tiles, {x}, {y})"


_INLINE = 4


def tile_holds(tile: Tile, window: tuple[int, int, int, int], mode: str, shape: Shape) -> bool:
    """Whether every exchanged index of a window (left, right, up, down) lies in the tile."""
    left, right, up, down = window
    across = borders.stays_near(mode, (left, right), (tile.halo.left, tile.halo.right), shape.width)
    return across and borders.stays_near(mode, (up, down), (tile.halo.up, tile.halo.down), shape.height)


def evaluations(pipeline: Pipeline, block: Block) -> dict[str, int]:
    """How many stages `NAME_at` evaluates, itself included: those at its own pixel once each, and for every read round
    it what that stage takes again."""
    found: dict[str, int] = {}
    together: dict[str, frozenset[str]] = {}
    """Stage -> the stages that are computed at its pixel with it."""
    for name in block.kernels:
        own = {each.image for each in pipeline.kernel(name).accesses if each.image in found and each.dx == each.dy == 0}
        together[name] = frozenset({name}).union(*(together[each] for each in own))
        found[name] = len(together[name]) + sum(
            found[each.image]
            for stage in together[name]
            for each in pipeline.kernel(stage).accesses
            if each.image in found and (each.dx or each.dy)
        )
    return found


@dataclass
class Scope:
    """Statements that compute stages at a pixel (x, y), or in the interior also at pixels round it, each once.

    Tiles of rounds before `level` can be read (0: none). tx, ty are the pixel's place in a rectangle with `halo`.
    """

    paths: Paths
    border: bool
    level: int
    halo: Halo
    anywhere: bool = False
    """The pixel may lie outside the tiles."""
    lines: list[str] = field(default_factory=list)
    values: dict[tuple[str, int, int, int], str] = field(default_factory=dict)
    indices: set[str] = field(default_factory=set)

    def own(self, name: str, channel: int) -> str:
        """A stage at the pixel itself: read back where there is a tile."""
        tile = self._tile(name)
        return self._read_tile(tile, 0, 0, channel) if tile else self.value(name, 0, 0, channel)

    def value(self, name: str, dx: int, dy: int, channel: int) -> str:
        """A stage computed at an offset from the pixel ((0, 0) at the border): the variable that holds it."""
        key = (name, dx, dy, channel)
        if key not in self.values:
            kernel = self.paths.pipeline.kernel(name)
            stage = stages(kernel)[channel if len(kernel.bodies) > 1 else 0]
            pixels = [self.pixel(kernel, each, dx, dy, channel) for each in stage.pixels]
            variable = offset_name(name, dx, dy, channel if kernel.channels > 1 else None)
            head = f"const {TYPES[kernel.dtype]} {variable} = {stage_of(kernel, channel)}("
            self.lines.append(f"{head}{rows(pixels, '    ', len(head))});")
            self.values[key] = variable
        return self.values[key]

    def pixel(self, reader: Kernel, access: Access, dx: int, dy: int, channel: int) -> str:
        """What `reader`, computed at an offset from the pixel, reads."""
        name = access.image
        channel = channel if access.channel is None else access.channel
        image = self.paths.pipeline.images[name]
        if image.single:
            return f"{name}_image[{channel}]"
        stage, tile = self.paths.kernel(name), self._tile(name)
        border = reader.border(name)
        unexchanged = access.dx == access.dy == 0 or (tile is not None and tile.periodic and border.mode == "repeat")
        if not self.border or unexchanged:
            dx, dy = dx + access.dx, dy + access.dy
            if tile and self.anywhere:
                return self.paths.call_near(tile, channel, "x", "y")
            if tile:
                return self._read_tile(tile, dx, dy, channel)
            if stage:
                return self.value(name, dx, dy, channel)
            return _element(image, _plus("x", dx), _plus("y", dy), channel)
        if tile:
            return self._exchanged(border, access, lambda x, y: self._tile_at(tile, reader, border, channel, x, y))
        if stage:
            return self._exchanged(border, access, lambda x, y: self._stage_at(reader, border, name, channel, x, y))
        return self._exchanged(border, access, lambda x, y: _element(image, x, y, channel))

    # --- tiles ---

    def _tile(self, name: str) -> Tile | None:
        """The tile of an image, where it can be read: what is filled in this round is computed at the own pixel."""
        for loops in self.paths.layout.rounds[: max(self.level - 1, 0)]:
            for loop in loops:
                for tile in loop.tiles:
                    if tile.name == name:
                        return tile
        return None

    def _read_tile(self, tile: Tile, dx: int, dy: int, channel: int) -> str:
        """At an offset from the own pixel, nothing exchanged."""
        tx = _plus("tx", tile.halo.left - self.halo.left + dx)
        ty = _plus("ty", tile.halo.up - self.halo.up + dy)
        return f"tiles.{_cell(tile, ty, tx, channel)}"

    def _tile_at(self, tile: Tile, reader: Kernel, border: Border, channel: int, x: str, y: str) -> str:
        """At a pixel of the image."""
        if tile_holds(tile, reader.window(tile.name), border.mode, self.paths.shape):
            tx = self._place("x", x, tile.halo.left, self.halo.left)
            ty = self._place("y", y, tile.halo.up, self.halo.up)
            return f"tiles.{_cell(tile, ty, tx, channel)}"
        return self.paths.call_near(tile, channel, x, y)

    def _stage_at(self, reader: Kernel, border: Border, name: str, channel: int, x: str, y: str) -> str:
        """A stage without a tile, at a pixel of the image."""
        if self.level and tiles_behind(self.paths.pipeline, self.paths.block, self.paths.layout, name):
            return self.paths.call_from(name, channel, x, y, reader, border.mode)
        return self.paths.call_at(name, channel, x, y)

    @staticmethod
    def _place(axis: str, pixel: str, before: int, here: int) -> str:
        """A pixel's index in a tile with `before` pixels before the rectangle."""
        return _plus(f"t{axis}", before - here) if pixel == axis else _plus(f"{pixel} - {axis}0", before)

    # --- the index exchange ---

    def _exchanged(self, border: Border, access: Access, read: Callable[[str, str], str]) -> str:
        """An access at the border: `read` at the pixel that it means, or the constant."""
        x = self._coordinate("x", "width", access.dx, "we", border.mode)
        y = self._coordinate("y", "height", access.dy, "ns", border.mode)
        if border.mode != "constant":
            return read(x, y)
        lies = " && ".join(
            self._condition(axis, size, offset, letters)
            for axis, size, offset, letters in (("x", "width", access.dx, "we"), ("y", "height", access.dy, "ns"))
            if offset
        )
        return f"{lies} ? {TYPES[access.dtype]}({read(x, y)}) : {constant(border.value, access.dtype)}"

    def _coordinate(self, axis: str, size: str, offset: int, letters: str, mode: str) -> str:
        if not offset or mode == "constant":
            return _plus(axis, offset)
        self.paths.modes.add(mode)
        return self._index(f"{mode}_{axis}", offset, letters, "int", f"{mode}_index({_plus(axis, offset)}, {size})")

    def _condition(self, axis: str, size: str, offset: int, letters: str) -> str:
        return self._index(f"inside_{axis}", offset, letters, "bool", _inside(_plus(axis, offset), size))

    def _index(self, prefix: str, offset: int, letters: str, kind: str, text: str) -> str:
        """A variable for one axis, made once: clamp_xw1 is what x - 1 becomes."""
        name = f"{prefix}{letters[offset > 0]}{abs(offset)}"
        if name not in self.indices:
            self.indices.add(name)
            self.lines.append(f"const {kind} {name} = {text};")
        return name


# --- text -----------------------------------------------------------------------------------------------


def _barrier() -> list[str]:
    return ["__syncthreads();"]


def _inside(i: str, n: str) -> str:
    return borders.inside(i, n)


def _plus(name: str, offset: int) -> str:
    return f"{name} {'+' if offset > 0 else '-'} {abs(offset)}" if offset else name


def _element(image: Image, x: str, y: str, channel: int) -> str:
    """The element of an image in global memory: channels are interleaved."""
    row = y if y.isidentifier() else f"({y})"
    if image.channels == 1:
        return f"{image.name}_image[{row} * width + {x}]"
    return f"{image.name}_image[({row} * width + {x}) * {image.channels} + {channel}]"


def _cell(tile: Tile, ty: str, tx: str, channel: int) -> str:
    last = f"[{channel}]" if tile.image.channels > 1 else ""
    return f"{tile.name}_tile[{ty}][{tx}]{last}"


def _indented(lines: list[str]) -> list[str]:
    return [part if part.startswith("#") else f"    {part}" for line in lines for part in line.split("\n")]
