"""What the applications ask of a GPU, counted on the processor (docs/counting.md): unfused, fused in tiles, fused in
strips, and a kernel written by hand where there is one (benchmarks/mincut/by_hand).

Counts are of one pixel of the image, edges and frames included. Nothing here is a measured time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fusiond.devices.counting.run import Counted, count
from fusiond.model.nouns import Rejection
from fusiond.model.program import Launch, Program, Source
from fusiond_mincut.analysis import blocks
from fusiond_mincut.codegen import block_configs, emit
from fusiond_mincut.frontend.graph import Pipeline

BY_HAND = Path(__file__).parent / "by_hand"
SIDE = 1024  #: Of the square images that are counted: large enough for edges to be few, small enough for a minute
TILES = ("32x8*1 tile", "32x8*4 tile")
STRIPS = ("32x4*16 rows2", "32x4*16 rows4", "32x4*32 rows2")
GRID = {"columns": 120, "rows": 64}  #: Pixels of a block of threads of the kernels by hand


def run(pipelines: dict[str, Pipeline], say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for each application and way. The kernel by hand is compared with the fused one, bit for bit."""
    rows = []
    for name, given in pipelines.items():
        sized = dataclasses.replace(given, width=SIDE, height=SIDE)
        outputs: dict[str, Any] = {}
        for way, program in _ways(name, sized):
            counted = count(program)
            row = {"application": name, "way": way, "launches": len(program.steps), **per_pixel(counted, SIDE * SIDE)}
            rows.append(row)
            for output in sized.outputs:
                found = counted.outputs.get(output)
                if way == "by hand" and found is not None and row["whole"]:
                    row["equal"] = bool(np.array_equal(np.asarray(found), np.asarray(outputs[output]), equal_nan=True))
                elif found is not None:
                    outputs[output] = found
            say(f"{name}, {way}: {row['ptx_instructions']} instructions, {row['dram_bytes']} bytes a pixel")
    return rows


def _ways(name: str, given: Pipeline) -> Iterator[tuple[str, Program]]:
    whole = [[each.name for each in given.kernels]]
    for label in (TILES[0], STRIPS[0]):
        yield f"unfused, {label}", made(given, blocks.unfused(given), label)
    fused = blocks.partition(given, whole)
    for label in (*TILES, *STRIPS):
        refused = emit.refused(given, fused.blocks[0], block_configs.read(label))
        if refused is None:
            yield f"fused, {label}", made(given, fused, label)
    path = BY_HAND / f"{name}.cu"
    if path.exists():
        program = made(given, fused, STRIPS[0])
        (step,) = program.steps
        assert isinstance(step, Launch)
        source = Source(name=name, text=path.read_text(encoding="utf-8"), entries=(name,), flags=("-fmad=false",),
                        include_dirs=(str(BY_HAND.resolve()),))  # fmt: skip
        grid = (-(-given.width // GRID["columns"]), -(-given.height // GRID["rows"]), 1)
        mine = dataclasses.replace(step, source=name, entry=name, grid=grid, block=(32, 4, 1), shared_bytes=0)
        yield "by hand", dataclasses.replace(program, sources=(source,), steps=(mine,))


def made(given: Pipeline, part: blocks.Partition, label: str) -> Program:
    """The program of a partition in one way (`shapes.read`), where blocks can be computed in it."""
    ways = {str(each): block_configs.fitted(given, each, block_configs.read(label)) for each in part.blocks}
    found = emit.program(given, part, ways)
    assert not isinstance(found, Rejection), found
    return found


def per_pixel(counted: Counted, pixels: int) -> dict[str, Any]:
    """Counts of all launches together, of one pixel; None where a launch was not counted."""
    rows = counted.rows

    def total(name: str) -> float | None:
        values = [getattr(each, name) for each in rows]
        return None if None in values else round(sum(values) / pixels, 2)

    loads = [(each.instruction_classes or {}).get("global") for each in rows]
    return {
        "ptx_instructions": total("ptx_instructions"),
        "instructions": total("instructions"),
        "global_accesses": None if None in loads else round(sum(each for each in loads if each) / pixels, 2),
        "shared_wavefronts": total("shared_wavefronts"),
        "dram_bytes": total("dram_bytes"),
        "spill_bytes": total("spill_bytes"),
        "whole": all(each.sampled == 1.0 for each in rows),
        "failed": next((each.failed for each in rows if each.failed), None),
    }
