"""Transposes through tiles: against XLA, proved as plans, and by the sectors that they read."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fusiond.devices.counting import child_process
from fusiond.model.program import Program
from fusiond_stitching.analysis import planner, tiles, verify
from fusiond_stitching.analysis import policy as policies
from fusiond_stitching.analysis.plan import Split, StitchingPlan
from fusiond_stitching.codegen import emit
from fusiond_stitching.frontend import importer
from fusiond_stitching.frontend.graph import HloInstruction

from . import oracle
from .broken import changed, homeless, last
from .checking import Batch
from .policies import LIMITS, POLICIES

RULES = {**POLICIES, "none": policies.unfused(), "xla": policies.xla_rules()}
_NUMBERS = np.random.default_rng(5)


def floats(*dims: int, dtype: Any = np.float32) -> np.ndarray:
    return np.asarray(_NUMBERS.normal(size=dims), dtype)


def whole(*dims: int, dtype: Any = np.int8) -> np.ndarray:
    return _NUMBERS.integers(-9, 9, dims).astype(dtype)


BF16 = jnp.bfloat16
CASES: dict[str, tuple[Any, tuple[np.ndarray, ...]]] = {
    "whole tiles": (lambda x: x.T * 0.5, (floats(64, 96),)),
    "parts of tiles": (lambda x: x.T * 0.5, (floats(50, 37),)),
    "a result as it is": (lambda x: x.T, (floats(70, 40),)),
    "bf16": (lambda x: jnp.tanh(x.T), (floats(50, 66, dtype=BF16),)),
    "bytes": (lambda x: x.T + 1, (whole(50, 66),)),
    "truth": (lambda x, y: jnp.where(x.T, y, 0), (whole(50, 66) > 2, floats(66, 50))),
    "images to channels": (lambda x, b: jnp.transpose(x, (0, 2, 3, 1)) + b, (floats(2, 40, 7, 9), floats(40))),
    "channels to images": (lambda x, b: jnp.transpose(x + b, (0, 3, 1, 2)), (floats(2, 7, 9, 40), floats(40))),
    "heads": (lambda x: jnp.swapaxes(x, 1, 2) * 2, (floats(2, 20, 3, 24),)),
    "heads, the last first": (lambda x: jnp.transpose(x, (0, 2, 3, 1)) * 2, (floats(2, 40, 3, 24),)),
    "reversed dims": (lambda x: jnp.transpose(x, (2, 1, 0)) - 1, (floats(33, 3, 40),)),
    "both ways": (lambda x: x + x.T, (floats(45, 45),)),
    "two of them": (lambda x, y, z: x.T * y.T.astype(x.dtype) + z, (floats(40, 50), whole(40, 50), floats(50, 40))),
    "of what is computed": (lambda x, y: jnp.exp((x * y + 1).T), (floats(40, 50), floats(40, 50))),
    "of a row for all": (lambda x, y: (x * y[:, None] + 1).T, (floats(40, 50), floats(40))),
    "a part of it": (lambda x: x[3:40, 2:50].T * 2, (floats(64, 70),)),
    "turned round": (lambda x: x[::-1].T * 2, (floats(40, 50),)),
    "then reshaped": (lambda x: (x.T * 2).reshape(5, 10, 40), (floats(40, 50),)),
    "before a reshape": (lambda x: x.reshape(40, 50).T * 2, (floats(4, 10, 50),)),
    "two results": (lambda x, y: (x.T + y, x.T * y), (floats(40, 50), floats(50, 40))),
    "a padded piece beside": (lambda x, y: x.T + jnp.pad(y, ((1, 0), (0, 0))), (floats(40, 50), floats(49, 40))),
    "two ways": (lambda x, y: jnp.transpose(x, (0, 2, 1)) + jnp.transpose(y, (2, 0, 1)), (floats(20, 30, 40),
                                                                                            floats(40, 30, 20))),
}  # fmt: skip
WITHOUT = {"heads"}  #: Cases whose last dimension stays the last


@functools.cache
def batch(name: str) -> Batch:
    return Batch.one("tiles", name, *CASES[name])


def programs(plan: StitchingPlan) -> list[Any]:
    return [program for kernel in plan.kernels for program in kernel.programs]


@pytest.mark.parametrize(
    "rules", ["blocks", *(pytest.param(each, marks=pytest.mark.slow) for each in ("none", "grid"))]
)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(24)
def test_a_transpose_goes_through_tiles(name: str, rules: str, runner: Any) -> None:
    found = batch(name)
    plan = planner.plan(found.module, RULES[rules], LIMITS).plan
    assert verify.problems(found.module, plan) == ()
    assert any(each.tile for each in programs(plan)) == (name not in WITHOUT)
    found.check(runner, plan)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [32, 64, 512, 1024])
def test_any_number_of_warps_does_a_tile(threads: int, runner: Any) -> None:
    found = batch("images to channels")
    plan = planner.plan(found.module, dataclasses.replace(RULES["blocks"], threads=threads), LIMITS).plan
    assert [each.tile is None for each in programs(plan)] == [False]
    found.check(runner, plan)


@pytest.mark.parametrize(
    ("dims", "order", "merged"),
    [
        ((5, 6), (1, 0), ((5, 6), 0)), ((7, 56, 56, 64), (0, 2, 3, 1), ((7, 3136, 64), 1)),
        ((7, 64, 56, 56), (0, 3, 1, 2), ((7, 64, 3136), 1)), ((2, 3, 4), (2, 1, 0), ((2, 3, 4), 0)),
        ((2, 3, 4), (1, 0, 2), ((2, 3, 4), 2)), ((2, 3, 4), (2, 0, 1), ((2, 12), 0)),
    ],
)  # fmt: skip
def test_dimensions_that_stay_together_are_one(dims: Any, order: Any, merged: Any) -> None:
    transpose = HloInstruction(name="t", opcode="transpose", dtype="f32", dims=dims, attributes={"dimensions": order})
    assert tiles.merged(transpose) == merged


def wide(*dims: int) -> Any:
    return jax.ShapeDtypeStruct(dims, np.float32)


@pytest.mark.parametrize(
    "function",
    [lambda x: x.T[:, :8] * 2, lambda x: (x.T * 2).sum(0), lambda x: jnp.transpose(x[:8], (1, 0)) * 2],
    ids=["few columns", "a sum", "few rows"],
)
def test_what_is_no_tile_goes_on_as_before(function: Any) -> None:
    module = importer.read(oracle.lowered(function, wide(64, 80)), "m.hlo")
    plan = planner.plan(module, RULES["blocks"], LIMITS).plan
    assert verify.problems(module, plan) == ()
    assert not any(each.tile for each in programs(plan))


@pytest.mark.needs_nvcc
@pytest.mark.parametrize(
    ("function", "shape", "dtype"),
    [
        (lambda x: x.T * 0.5, (128, 256), np.float32),
        (lambda x: jnp.transpose(x, (0, 2, 3, 1)), (2, 64, 16, 16), np.float32),
        (lambda x: jnp.transpose(x, (0, 3, 1, 2)), (2, 16, 16, 64), BF16),
    ],
    ids=["a matrix", "images to channels", "channels to images, bf16"],
)
def test_each_sector_is_read_once_and_written_once(function: Any, shape: Any, dtype: Any) -> None:
    module = importer.read(oracle.lowered(function, jax.ShapeDtypeStruct(shape, dtype)), "m.hlo")
    program = emit.program(module, planner.plan(module, RULES["blocks"], LIMITS).plan)
    assert isinstance(program, Program)
    (row,) = child_process.counted({"turned": program}, model="h100", whole=True, timeout_secs=100.0)
    sectors = math.prod(shape) * np.dtype(dtype).itemsize // 32
    assert (row["read_sectors"], row["write_sectors"]) == (sectors, sectors)


# --- plans and code broken on purpose -------------------------------------------------------------------


BROKEN: dict[str, Callable[[Any, Any, Any], dict[str, Any]]] = {
    "3 blocks write 4 chunks": lambda kernel, program, stage: {"program_blocks": 3, "kernel_grid": 3},
    "two blocks write": lambda kernel, program, stage: {"program_blocks": 8, "kernel_grid": 8},
    "larger than 32 x 32": lambda kernel, program, stage: {
        "stage_chunk": dataclasses.replace(stage.chunk, splits=(Split(64), stage.chunk.splits[1]))
    },
    "bytes of shared memory": lambda kernel, program, stage: {"program_shared_bytes": program.shared_bytes - 16},
    "another home": lambda kernel, program, stage: {"stage_results": homeless(stage)},
    "other dims than its tiles": lambda kernel, program, stage: {
        "program_tile": dataclasses.replace(program.tile, dims=(37, 49))
    },
    "48 threads": lambda kernel, program, stage: {"kernel_threads": 48},
}


@pytest.mark.parametrize("problem", BROKEN)
def test_a_broken_plan_is_told(problem: str) -> None:
    module = batch("parts of tiles").module
    plan = planner.plan(module, RULES["blocks"], LIMITS).plan
    found = verify.problems(module, changed(plan, **BROKEN[problem](*last(plan))))
    assert any(problem in each for each in found), found
