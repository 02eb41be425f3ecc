"""Statements that compute stages at a pixel, from memory, tiles or other stages, with borders applied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fusiond.model.codegen.code import Code, call, cpp, joined
from fusiond.model.codegen.code import name as named
from fusiond.model.codegen.operators import Term, atom, binary
from fusiond.model.codegen.statements import Statements, wrapped
from fusiond_mincut.codegen.addresses import COLUMN, ROW, TX, TY, X0, Y0, X, Y, cell, inside, plus, stepped
from fusiond_mincut.codegen.stages import TYPES, constant, image_of, offset_name, pixels, stage_of
from fusiond_mincut.codegen.tiles import SharedTile, tiles_behind
from fusiond_mincut.codegen.windows import Window
from fusiond_mincut.frontend import borders
from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.expr import INT32, PixelAccess
from fusiond_mincut.frontend.graph import Border, Halo, ImageKernel

if TYPE_CHECKING:
    from fusiond_mincut.codegen.lowering import StageFunctions, ThreadRectangle

NEUTRAL = {
    ("sum", "int32"): "0",
    ("sum", "float32"): "-0.0f",
    ("min", "int32"): f"{INT32[1]}",
    ("max", "int32"): f"-{INT32[1]} - 1",
    ("min", "float32"): "__int_as_float(0x7fc00000)",
    ("max", "float32"): "__int_as_float(0x7fc00000)",
}
"""What changes nothing: 0 would make a 0 of -0, and a NaN loses against every number."""


@dataclass
class PixelEvaluation:
    """Statements that compute stages at a pixel (x, y), or in the interior also at pixels round it, each once.

    Tiles of rounds before `level` can be read (0: none). tx, ty are the pixel's place in a rectangle with `halo`."""

    functions: StageFunctions
    body: Statements
    border: bool
    level: int
    halo: Halo
    anywhere: bool = False  #: The pixel may lie outside the tiles
    values: dict[tuple[str, int, int, int], Code] = field(default_factory=dict)
    indices: dict[str, Code] = field(default_factory=dict)
    places: dict[tuple[object, ...], Term] = field(default_factory=dict)
    """Coordinates in images of other pixels -> the variable that holds them."""

    def own(self, name: str, channel: int) -> Code:
        """A stage at the pixel itself: read back where there is a tile."""
        tile = self._tile(name)
        return self._read_tile(tile, 0, 0, channel) if tile else self.value(name, 0, 0, channel)

    def value(self, name: str, dx: int, dy: int, channel: int) -> Code:
        """A stage computed at an offset from the pixel ((0, 0) at the border): the variable that holds it."""
        key = (name, dx, dy, channel)
        if key not in self.values:
            kernel, large = self.functions.stages[name]
            taken = [
                self._window(large[each.image], name, dx, dy, channel)
                if each.image in large
                else self.pixel(self.functions.pipeline.kernel(name), each, dx, dy, channel)
                for each in pixels(kernel, channel)
            ]
            variable = offset_name(name, dx, dy, channel if kernel.channels > 1 else None)
            kind, called = TYPES[kernel.dtype], stage_of(kernel, channel)
            given = wrapped(taken, len(f"const {kind} {variable} = {called}("))
            self.values[key] = self.body.declare(kind, variable, call(called, given))
        return self.values[key]

    def pixel(self, reader: ImageKernel, access: PixelAccess, dx: int, dy: int, channel: int) -> Code:
        """What `reader`, computed at an offset from the pixel, reads."""
        name = access.image
        channel = channel if access.channel is None else access.channel
        whole = image_of(access)
        if whole is not None:
            return joined(", ", self.functions.whole(whole, channel))
        if name in tree.POSITIONS.values():
            return self._position(reader, access, dx, dy)
        image = self.functions.pipeline.images[name]
        if image.single:
            return cpp("{}_image[{}]", name, channel)
        if name in reader.steps:
            return self._stepped(reader, access, dx, dy, channel)
        stage, tile = self.functions.kernel(name), self._tile(name)
        border = reader.border(name)
        unexchanged = access.dx == access.dy == 0 or (tile is not None and tile.repeats and border.mode == "repeat")
        if not self.border or unexchanged:
            dx, dy = dx + access.dx, dy + access.dy
            if tile and self.anywhere:
                return self.functions.call_near(tile, channel, X, Y)
            if tile:
                return self._read_tile(tile, dx, dy, channel)
            if stage:
                return self.value(name, dx, dy, channel)
            return self.functions.element(image, plus(X, dx), plus(Y, dy), channel)
        if tile:
            return self._exchanged(border, access, lambda x, y: self._tile_at(tile, reader, border, channel, x, y))
        if stage:
            return self._exchanged(border, access, lambda x, y: self._stage_at(reader, border, name, channel, x, y))
        return self._exchanged(border, access, lambda x, y: self.functions.element(image, x, y, channel))

    def _position(self, reader: ImageKernel, access: PixelAccess, dx: int, dy: int) -> Code:
        """Where the pixel is that `reader` computes, or the size of its image."""
        if access.image in (tree.X, tree.Y):
            return (plus(X, dx + access.dx) if access.image == tree.X else plus(Y, dy + access.dy)).code
        return named(self.functions.sides(reader.name)[access.image == tree.HEIGHT])

    def _stepped(self, reader: ImageKernel, access: PixelAccess, dx: int, dy: int, channel: int) -> Code:
        """A pixel of an image that is read by a step: of a stage of the block it is computed there."""
        name, border = access.image, reader.border(access.image)
        image, step, sides = self.functions.pipeline.images[name], reader.steps[name], self.functions.sides(name)
        places = []
        for axis, (own, offset) in enumerate(((X, dx), (Y, dy))):
            place = self._place((name, step, axis, offset), name, axis, stepped(plus(own, offset), step, axis).code)
            places.append(plus(place, (access.dx, access.dy)[axis]))
        stage = self.functions.kernel(name)

        def at(x: Term, y: Term) -> Code:
            return (
                self.functions.call_at(name, channel, x, y) if stage else self.functions.element(image, x, y, channel)
            )

        if not self.border:  # `steps_inside` holds
            return at(*places)
        if border.mode == "constant":
            there = binary("&&", *(inside(place, atom(side)) for place, side in zip(places, sides, strict=True)))
            return _or_constant(there.code, at(*places), border, access.dtype)
        self.functions.modes.add(border.mode)
        mapped = []
        for axis, (place, side) in enumerate(zip(places, sides, strict=True)):
            index = call(f"{border.mode}_index", place.code, side)
            mapped.append(self._place((name, step, axis, place.code, border.mode), name, axis, index))
        return at(*mapped)

    def _place(self, key: tuple[object, ...], name: str, axis: int, value: Code) -> Term:
        """The variable with a coordinate of `name`."""
        if key not in self.places:
            variable = f"{name}_{'xy'[axis]}{len(self.places)}"
            self.places[key] = Term(self.body.declare("int", variable, value))
        return self.places[key]

    # --- large windows ---

    def _window(self, window: Window, name: str, dx: int, dy: int, channel: int) -> Code:
        """The value of a large window of a stage that is computed at an offset from the pixel, by loops."""
        channels = self.functions.pipeline.kernel(name).channels
        total = offset_name(window.name, dx, dy, channel if channels > 1 else None)
        kind, neutral = TYPES[window.dtype], NEUTRAL[window.kind, window.dtype]
        self.body.line(f"{kind} {total} = {neutral};")
        rows = self.body.block(f"for (int j = 0; j < {window.height}; ++j)")
        rows.line(f"{kind} row = {neutral};")
        place = f"{self.functions.factors(window)}[j * {window.width} + i]"
        columns = rows.block(f"for (int i = 0; i < {window.width}; ++i)")
        if not window.plain:
            columns.line(f"const {kind} factor = {place};")
            if 0 in window.factors:
                columns.line("if (factor == 0) continue;")
        pixel = call(kind, self._window_pixel(window, name, columns, dx, dy, channel))
        if window.kind == "sum":
            columns.line(cpp("row = row + {};", pixel if window.plain else cpp("factor * {}", pixel)))
            rows.line(f"{total} = {total} + row;")
        else:
            function = f"f{window.kind}f" if window.dtype == "float32" else window.kind
            columns.line(cpp("row = {}(row, {});", function, pixel))
            rows.line(f"{total} = {function}({total}, row);")
        return named(total)

    def _window_pixel(self, window: Window, name: str, body: Statements, dx: int, dy: int, channel: int) -> Code:
        reader, image = self.functions.pipeline.kernel(name), self.functions.pipeline.images[window.image]
        channel = channel if window.channel is None else window.channel
        stage, tile, border = self.functions.kernel(image.name), self._tile(image.name), reader.border(image.name)
        across, down = binary("+", plus(X, window.left + dx), COLUMN), binary("+", plus(Y, window.up + dy), ROW)
        if not self.border or (tile is not None and tile.repeats and border.mode == "repeat"):
            if tile is None:
                return self.functions.element(image, across, down, channel)
            tx = binary("+", plus(TX, tile.halo.left - self.halo.left + window.left + dx), COLUMN)
            ty = binary("+", plus(TY, tile.halo.up - self.halo.up + window.up + dy), ROW)
            return cell(tile, ty, tx, channel)
        wx, wy = Term(body.declare("int", "wx", across.code)), Term(body.declare("int", "wy", down.code))

        def at(x: Term, y: Term) -> Code:
            if tile:
                return self._tile_at(tile, reader, border, channel, x, y)
            if stage:
                return self._stage_at(reader, border, image.name, channel, x, y)
            return self.functions.element(image, x, y, channel)

        sides = self.functions.sides(image.name)
        if border.mode == "constant":
            there = binary("&&", inside(wx, atom(sides[0])), inside(wy, atom(sides[1])))
            return cpp("({})", _or_constant(there.code, at(wx, wy), border, image.dtype))
        self.functions.modes.add(border.mode)
        index = f"{border.mode}_index"
        mapped = (
            body.declare("int", name, call(index, place.code, side))
            for name, place, side in zip(("ix", "iy"), (wx, wy), sides, strict=True)
        )
        return at(*map(Term, mapped))

    # --- tiles ---

    def _tile(self, name: str) -> SharedTile | None:
        """The tile of an image, where it can be read: what is filled in this round is computed at the own pixel."""
        rounds = self.functions.layout.rounds[: max(self.level - 1, 0)]
        return next((tile for loops in rounds for loop in loops for tile in loop.tiles if tile.name == name), None)

    def _read_tile(self, tile: SharedTile, dx: int, dy: int, channel: int) -> Code:
        """At an offset from the own pixel, nothing exchanged."""
        tx = plus(TX, tile.halo.left - self.halo.left + dx)
        ty = plus(TY, tile.halo.up - self.halo.up + dy)
        return cell(tile, ty, tx, channel)

    def _tile_at(self, tile: SharedTile, reader: ImageKernel, border: Border, channel: int, x: Term, y: Term) -> Code:
        """At a pixel of the image."""
        if tile_holds(tile, reader.window(tile.name), border.mode, self.functions.shape):
            own, here = tile.halo, self.halo
            tx = plus(TX, own.left - here.left) if x == X else plus(binary("-", x, X0), own.left)
            ty = plus(TY, own.up - here.up) if y == Y else plus(binary("-", y, Y0), own.up)
            return cell(tile, ty, tx, channel)
        return self.functions.call_near(tile, channel, x, y)

    def _stage_at(self, reader: ImageKernel, border: Border, name: str, channel: int, x: Term, y: Term) -> Code:
        """A stage without a tile, at a pixel of the image."""
        if self.level and tiles_behind(self.functions.pipeline, self.functions.block, self.functions.layout, name):
            return self.functions.call_from(name, channel, x, y, reader, border.mode)
        return self.functions.call_at(name, channel, x, y)

    # --- the index exchange ---

    def _exchanged(self, border: Border, access: PixelAccess, read: Callable[[Term, Term], Code]) -> Code:
        """An access at the border: `read` at the pixel that it means, or the constant."""
        width, height = self.functions.sides(access.image)
        axes = ((X, width, access.dx, "we"), (Y, height, access.dy, "ns"))
        if border.mode != "constant":
            return read(*(self._coordinate(*each, border.mode) for each in axes))
        lies = [
            self._index(f"inside_{axis.code}", offset, letters, "bool", inside(plus(axis, offset), atom(size)).code)
            for axis, size, offset, letters in axes
            if offset
        ]
        there = read(plus(X, access.dx), plus(Y, access.dy))
        return _or_constant(joined(" && ", lies), there, border, access.dtype)

    def _coordinate(self, axis: Term, size: str, offset: int, letters: str, mode: str) -> Term:
        if not offset:
            return axis
        self.functions.modes.add(mode)
        index = call(f"{mode}_index", plus(axis, offset).code, size)
        return Term(self._index(f"{mode}_{axis.code}", offset, letters, "int", index))

    def _index(self, prefix: str, offset: int, letters: str, kind: str, value: Code) -> Code:
        """A variable for one axis, made once: clamp_xw1 is what x - 1 becomes."""
        name = f"{prefix}{letters[offset > 0]}{abs(offset)}"
        if name not in self.indices:
            self.indices[name] = self.body.declare(kind, name, value)
        return self.indices[name]


def _or_constant(inside: Code, value: Code, border: Border, dtype: str) -> Code:
    return cpp("{} ? {} : {}", inside, call(TYPES[dtype], value), constant(border.value, dtype))


def tile_holds(tile: SharedTile, window: tuple[int, int, int, int], mode: str, shape: ThreadRectangle) -> bool:
    """Whether every exchanged index of a window (left, right, up, down) lies in the tile."""
    left, right, up, down = window
    across = borders.stays_near(mode, (left, right), (tile.halo.left, tile.halo.right), shape.width)
    return across and borders.stays_near(mode, (up, down), (tile.halo.up, tile.halo.down), shape.height)
