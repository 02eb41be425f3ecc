"""Places the stages of a block: in registers, or in shared-memory tiles that are filled in rounds.

A block of threads computes a rectangle of `width` x `height` pixels of every output. An image that is read round these
pixels is needed on the rectangle and a halo, and the halos of a chain add up: an image's halo is the largest sum of
offsets on any way from it to an output, for each side by itself.

    round 1:  for each position of tile a, tile b: compute and store     barrier
    round 2:  for each position of tile c (reads a and b)                barrier
    finally:  for each own pixel: compute and store the outputs

A stage that the outputs need by a step only (every second pixel of it, say) has neither halo nor tile: it is computed
where it is read.

A stage gets a tile when a stage of the block reads it at another pixel than the own (`mixed`: when it is a local stage
too, while point stages are computed again for each such pixel), or when it is a local stage that several loops need
(else it would be computed several times). Everything else is computed in registers, where it is needed. Tiles of one
round that cover the same positions are filled by one loop and share what they compute.

At the border, the positions of a tile outside the image stay empty: the index exchange leads readers elsewhere. Only
for readers that `repeat`, which it would lead to the far side of the image, `periodic` stages are filled everywhere:
at a position outside, with what they give at the pixel that it means. Where a stage before it does not repeat, that
takes tiles of the far side: `wrapped` stages are filled in passes before, one for each image of a plane that is tiled
with images, with the block moved by its width and height.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from fusiond.model.language.dtypes import DTYPES
from fusiond_mincut.analysis.blocks import KernelBlock
from fusiond_mincut.analysis.halos import halos
from fusiond_mincut.frontend.graph import Halo, Pipeline, PipelineImage


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTile:
    """The image of one stage, held for the pixels of a block of threads and a halo."""

    image: PipelineImage
    halo: Halo
    width: int
    height: int
    offset_bytes: int  #: In the shared memory of the block
    periodic: bool
    wrapped: bool = False

    @property
    def repeats(self) -> bool:
        """Whether positions outside the image hold what it would be there if it were repeated."""
        return self.periodic or self.wrapped

    @property
    def name(self) -> str:
        return self.image.name

    @property
    def size_bytes(self) -> int:
        return self.width * self.height * self.image.channels * DTYPES[self.image.dtype].bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TileLoop:
    """Tiles that cover the same positions, filled together."""

    tiles: tuple[SharedTile, ...]

    @property
    def halo(self) -> Halo:
        return self.tiles[0].halo

    @property
    def periodic(self) -> bool:
        return self.tiles[0].periodic


@dataclass(frozen=True, slots=True, kw_only=True)
class TileLayout:
    """How a block's stages are computed by one block of threads."""

    halos: dict[str, Halo]  #: Of every image that is made or read, by name
    rounds: tuple[tuple[TileLoop, ...], ...]  #: A barrier stands behind each round; empty when there are no tiles
    shared_bytes: int  #: Of all tiles, as a C++ struct of them counts
    passes: tuple[tuple[TileLoop, ...], ...] = ()
    """The rounds of a pass for the tiles that are wrapped: they and all that they are computed from."""

    @property
    def tiles(self) -> dict[str, SharedTile]:
        return {tile.name: tile for loops in self.rounds for loop in loops for tile in loop.tiles}

    @property
    def reach(self) -> Halo:
        """The sum of the radii: how far from its own rectangle a block of threads reads anything."""
        return Halo.around(self.halos.values())


LOCAL = ("tile", "recompute", "mixed")
"""What happens to the stages that others read round their pixel: all are in tiles; all are computed again; the local
ones are in tiles, the point ones are computed again."""


def layout(pipeline: Pipeline, block: KernelBlock, width: int, height: int, local: str) -> TileLayout:
    """The stages of a block of point and local kernels for a rectangle of `width` x `height` pixels, in a way of LOCAL.

    ValueError for another way."""
    if local not in LOCAL:
        raise ValueError(f"local is {local!r}, not {', '.join(LOCAL[:-1])} or {LOCAL[-1]}")
    needed = halos(pipeline, block)
    if local == "recompute":
        return TileLayout(halos=needed, rounds=(), shared_bytes=0)
    names = _tiled(pipeline, block, needed, local)
    repeating = periodic(pipeline, block) if local == "tile" else set()
    around = wrapped(pipeline, block, names, repeating) if local == "tile" else set()
    places = _places(pipeline, block, needed, names, repeating)
    tiles, shared_bytes = _allocated(pipeline, places, around, width, height)
    rounds = _rounds(tiles, places)
    return TileLayout(
        halos=needed,
        rounds=rounds,
        shared_bytes=shared_bytes,
        passes=_restricted(rounds, _ancestors(pipeline, block, around)),
    )


def _allocated(
    pipeline: Pipeline, places: Mapping[str, _TilePlace], around: Collection[str], width: int, height: int
) -> tuple[list[SharedTile], int]:
    """The tiles one behind the other in shared memory, aligned as C++ does it, and the size of all."""
    tiles = []
    end = 0
    for name in sorted(places, key=pipeline.position.__getitem__):
        image, halo = pipeline.images[name], places[name].halo
        tile = SharedTile(
            image=image,
            halo=halo,
            width=width + halo.left + halo.right,
            height=height + halo.up + halo.down,
            offset_bytes=_aligned(end, DTYPES[image.dtype].bytes),
            periodic=places[name].periodic,
            wrapped=name in around,
        )
        tiles.append(tile)
        end = tile.offset_bytes + tile.size_bytes
    return tiles, _aligned(end, max((DTYPES[each.image.dtype].bytes for each in tiles), default=1))


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _rounds(tiles: Iterable[SharedTile], places: Mapping[str, _TilePlace]) -> tuple[tuple[TileLoop, ...], ...]:
    """The loops that fill the tiles, by level: tiles of one place share a loop."""
    together: dict[_TilePlace, list[SharedTile]] = {place: [] for place in sorted(set(places.values()), reverse=True)}
    for each in tiles:
        together[places[each.name]].append(each)
    return tuple(
        tuple(TileLoop(tiles=tuple(found)) for place, found in together.items() if place.level == level)
        for level in sorted({place.level for place in together})
    )


def _restricted(rounds: Iterable[Iterable[TileLoop]], names: Collection[str]) -> tuple[tuple[TileLoop, ...], ...]:
    """The rounds with these tiles only; loops and rounds without one are left out."""
    kept = ((tuple(each for each in loop.tiles if each.name in names) for loop in loops) for loops in rounds)
    found = (tuple(TileLoop(tiles=each) for each in loops if each) for loops in kept)
    return tuple(each for each in found if each)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class _TilePlace:
    """The loop that fills a tile."""

    level: int  #: Its round, from 1
    halo: Halo
    periodic: bool


def periodic(pipeline: Pipeline, block: KernelBlock) -> set[str]:
    """The stages whose tiles are filled outside the image as if it were repeated there, because a reader wants that.

    It takes that the stage reads its own pixel of other stages, or repeats them too: their tiles are then read at the
    position outside. (What the block reads from memory is read at the pixel that the position means.)"""
    inside = set(block.kernels)
    able: set[str] = set()
    for name in block.kernels:
        kernel = pipeline.kernel(name)
        if all(
            image in able and (not kernel.windowed(image) or kernel.border(image).mode == "repeat")
            for image in kernel.aligned
            if image in inside
        ):
            able.add(name)
    wanted: set[str] = set()
    for name in reversed(block.kernels):
        kernel = pipeline.kernel(name)
        for image in kernel.aligned:
            repeated = kernel.windowed(image) and kernel.border(image).mode == "repeat"
            if image in able and (repeated or name in wanted):
                wanted.add(image)
    return wanted


def wrapped(pipeline: Pipeline, block: KernelBlock, names: set[str], repeating: set[str]) -> set[str]:
    """The tiles that a reader repeats although a stage before them does not, so that they are filled in passes. A stage
    that is computed from another such tile, repeated, would take passes within passes: it is left out."""
    inside = set(block.kernels)

    def repeated(name: str) -> set[str]:
        kernel = pipeline.kernel(name)
        return {
            image
            for image in kernel.aligned
            if image in inside - repeating and kernel.windowed(image) and kernel.border(image).mode == "repeat"
        }

    wanted = {image for name in block.kernels for image in repeated(name)} & names
    return {each for each in wanted if not any(repeated(name) for name in _ancestors(pipeline, block, {each}))}


def _ancestors(pipeline: Pipeline, block: KernelBlock, names: set[str]) -> set[str]:
    """Stages, and all stages of the block that they are computed from."""
    found = set(names)
    for name in reversed(block.kernels):
        if name in found:
            found |= set(pipeline.kernel(name).aligned) & set(block.kernels)
    return found


def tiles_behind(pipeline: Pipeline, block: KernelBlock, layout: TileLayout, name: str) -> set[str]:
    """The tiles that a stage without one is computed from. (What is read by a step is computed from no tile.)"""
    found: set[str] = set()
    for image in pipeline.kernel(name).aligned:
        if image in layout.tiles:
            found.add(image)
        elif image in block.kernels:
            found |= tiles_behind(pipeline, block, layout, image)
    return found


def _tiled(pipeline: Pipeline, block: KernelBlock, needed: dict[str, Halo], local: str) -> set[str]:
    kernels = {name: pipeline.kernel(name) for name in block.kernels}
    names: set[str] = set()
    round_it: set[str] = set()  #: Stages that are computed at other pixels than that of a loop
    near = [name for name in block.kernels if name in needed]
    for name in reversed(near):
        if name in round_it and (local == "tile" or kernels[name].pattern == "local"):
            names.add(name)
        for image in kernels[name].aligned:
            if image in kernels and (kernels[name].windowed(image) or name in round_it - names):
                round_it.add(image)
    while True:
        loops = _loops_of(pipeline, block, _places(pipeline, block, needed, names, set()), names)
        more = {
            name for name in near if name not in names and kernels[name].pattern == "local" and len(loops[name]) > 1
        }
        if not more:
            return names
        # From the last stage back, one at a time: a tile behind may be all that a stage before was needed for.
        names.add(max(more, key=pipeline.position.__getitem__))


def _loops_of(
    pipeline: Pipeline, block: KernelBlock, places: dict[str, _TilePlace], names: set[str]
) -> dict[str, set[_TilePlace | None]]:
    """Stage -> the loops in which it is computed; None is the last one, which stores the outputs."""
    found: dict[str, set[_TilePlace | None]] = {name: set() for name in block.kernels}
    for name in reversed(block.kernels):
        if name in names:
            found[name] = {places[name]}
        elif name in block.outputs:
            found[name].add(None)
        for image in pipeline.kernel(name).aligned:
            if image in found and image not in names:
                found[image] |= found[name]
    return found


def _places(
    pipeline: Pipeline, block: KernelBlock, needed: dict[str, Halo], names: set[str], repeating: set[str]
) -> dict[str, _TilePlace]:
    """Tile -> its loop: in a round behind every tile that it reads, unless both can be filled by one loop and it reads
    nothing but its own pixel there."""
    places: dict[str, _TilePlace] = {}
    behind: dict[str, dict[str, bool]] = {}
    """Stage -> the tiles that computing it reads -> whether at other pixels too."""
    for name in block.kernels:
        kernel = pipeline.kernel(name)
        reads: dict[str, bool] = {}
        for image in kernel.aligned:
            if image not in behind:
                continue
            found = {image: False} if image in names else behind[image]
            for tile, far in found.items():
                reads[tile] = reads.get(tile, False) or far or kernel.windowed(image)
        behind[name] = reads
        if name not in names:
            continue
        level = 1
        for tile, far in reads.items():
            place = places[tile]
            together = not far and (place.halo, place.periodic) == (needed[name], name in repeating)
            level = max(level, place.level + (0 if together else 1))
        places[name] = _TilePlace(level=level, halo=needed[name], periodic=name in repeating)
    return places
