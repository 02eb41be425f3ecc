"""Scatters by their updates: against XLA on the processor, checked as plans, and by what would be read and written."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from fusiond_stitching.analysis import planner, traffic, verify
from fusiond_stitching.analysis import policy as policies
from fusiond_stitching.analysis.plan import BoxChunk, StitchedKernel, StitchingPlan
from fusiond_stitching.frontend import importer, printer, scatter_updates

from .broken import changed, homeless, last
from .checking import Batch
from .policies import LIMITS, POLICIES

RULES = {**POLICIES, "none": policies.unfused(), "xla": policies.xla_rules()}
RANDOM = np.random.default_rng(11)
TOKENS = np.array([[3, 0, 3, 9], [10, 3, 0, 1]], np.int32)
EDGES = RANDOM.integers(0, 12, (2, 40)).astype(np.int32)
WILD = np.array([5, -1, 40, 5, 0, 11, 12, -30], np.int32)

ROWS = np.array([[6, 0, 6], [1, 1, 1], [9, 2, 3], [0, 5, -1]], np.int32)
BF16 = ml_dtypes.bfloat16


def whole(*dims: int) -> np.ndarray:
    return np.arange(math.prod(dims), dtype=np.int32).reshape(dims)


def normal(*dims: int, dtype: Any = np.float32) -> np.ndarray:
    return RANDOM.normal(size=dims).astype(dtype)


def embedding(table: Any, tokens: Any, given: Any) -> Any:
    """The gradient of a look-up, scaled as a clipped gradient is."""
    grown = jax.vjp(lambda table: table[tokens], table)[1](given)[0]
    return table - grown * 0.5, (grown * grown).sum()


def messages(nodes: Any, edges: Any, weights: Any) -> Any:
    """A layer of a graph network: what comes from neighbours, weighted by a softmax over each node's edges."""
    source, target = edges
    count = nodes.shape[0]
    most = jax.ops.segment_max(weights, target, count)
    shares = jnp.exp(weights - most[target])
    shares = shares / jax.ops.segment_sum(shares, target, count)[target]
    return jax.ops.segment_sum(nodes[source] * shares[:, None], target, count)


def experts(x: Any, at: Any, gates: Any) -> Any:
    """Rows sent to the slots of experts, and brought back."""
    slots = jnp.zeros((12, x.shape[1]), x.dtype).at[at].add(x, mode="drop")
    return slots, slots.at[at].get(mode="clip") * gates[:, None]


def kept(x: Any, at: Any, given: Any) -> Any:
    return x.at[at].set(given, mode="drop", unique_indices=True), x.sum(0)


def windows(x: Any, at: Any, given: Any) -> Any:
    """Windows of three rows that are laid anywhere, and dropped where they do not fit."""
    numbers = lax.ScatterDimensionNumbers((1, 2), (), (0,))
    return lax.scatter_add(x, at[:, None], given, numbers, mode="drop")


def several(x: Any, at: Any, u: Any) -> Any:
    """One scatter into another's result, and a value that is read beside it."""
    first = x.at[at].add(u)
    second = first.at[at].max(u * 2.0)
    return second, first - x


def powers(kind: Any) -> Callable[..., Any]:
    def both(x: Any, at: Any, u: Any) -> Any:
        return x.at[at].add(u), x.at[at].min(u), x.at[at].max(u), x.at[at].multiply(u)

    return both


def batched(x: Any, at: Any, u: Any) -> Any:
    return jax.vmap(lambda x, at, u: x.at[at].add(u))(x, at, u)


def flags(x: Any, at: Any) -> Any:
    return x.at[at].set(True, unique_indices=True, mode="drop")


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "embedding": (embedding, (normal(11, 20), TOKENS, normal(2, 4, 20))),
    "embedding bf16": (embedding, (normal(11, 20, dtype=BF16), TOKENS, normal(2, 4, 20, dtype=BF16))),
    "messages": (messages, (normal(12, 9), EDGES, normal(40))),
    "experts": (experts, (normal(8, 10), WILD, normal(8))),
    "kept": (kept, (normal(6, 9), np.array([4, 9, 0, -7], np.int32), normal(4, 9))),
    "windows": (windows, (normal(9, 5), np.array([0, 7, 6, 2, -1, 2], np.int32), normal(6, 3, 5))),
    "several": (several, (normal(12, 5), WILD, normal(8, 5))),
    "floats": (powers(np.float32), (normal(12, 3), WILD, normal(8, 3))),
    "halves": (powers(np.float16), (normal(12, 3, dtype=np.float16), WILD, normal(8, 3, dtype=np.float16))),
    "integers": (powers(np.int32), (whole(12, 3), WILD, whole(8, 3) - 7)),
    "unsigned": (powers(np.uint32), (np.arange(12, dtype=np.uint32), WILD, np.arange(8, dtype=np.uint32))),
    "words": (powers(np.int16), (np.arange(12, dtype=np.int16), WILD, np.arange(-4, 4, dtype=np.int16))),
    "batched": (batched, (normal(4, 7, 3), ROWS, normal(4, 3, 3))),
    "flags": (flags, (np.zeros(50, bool), np.array([3, 49, 60, 7], np.int32))),
}  # fmt: skip
WIDE: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "doubles": (powers(np.float64), (normal(12, dtype=np.float64), WILD, normal(8, dtype=np.float64))),
    "long": (powers(np.int64), (np.arange(12) * 2**40, WILD.astype(np.int64), np.arange(8) - 2**41)),
}


def batch(name: str) -> Batch:
    wide = name in WIDE
    function, inputs = WIDE[name] if wide else CASES[name]
    group = "wide" if wide else "scatter"
    found = Batch.one(group, name, function, inputs)
    return dataclasses.replace(found, module=scatter_updates.rewritten(found.module))


@pytest.mark.slow
@pytest.mark.sampled(10)  # each name by a rule or two
@pytest.mark.parametrize("rules", ["none", "xla", "stages", "blocks"])
@pytest.mark.parametrize("name", [*CASES, *WIDE])
def test_every_update_goes_where_xla_puts_it(name: str, rules: str, runner: Any) -> None:
    found = batch(name)
    assert found.module.in_place
    assert all(each.name in found.module.in_place for each in found.module.instructions if each.opcode == "scatter")
    plan = planner.plan(found.module, RULES[rules], LIMITS).plan
    assert verify.problems(found.module, plan) == ()
    found.check(runner, plan)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["embedding", "messages", "experts", "windows", "batched", "kept"])
def test_a_column_of_cache_lines_at_a_time(name: str, runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "TILE_BYTES", 8)
    found = batch(name)
    plan = planner.plan(found.module, dataclasses.replace(RULES["blocks"], update_tiles=True, threads=32), LIMITS).plan
    tiles = [program for kernel in plan.kernels for program in kernel.programs if program.updates]
    assert any(isinstance(program.stages[0].chunk, BoxChunk) for program in tiles)
    assert verify.problems(found.module, plan) == ()
    found.check(runner, plan)


def kernels(plan: StitchingPlan) -> list[StitchedKernel]:
    return list(plan.kernels)


@pytest.mark.parametrize(("rules", "launches"), [("blocks", 2), ("stages", 2), ("none", 4)])
def test_what_only_the_updates_need_is_computed_with_them(rules: str, launches: int) -> None:
    """Neighbours' values are gathered, weighted and added up by one kernel, where anything is fused."""

    def summed(nodes: Any, source: Any, target: Any, weights: Any) -> Any:
        return jax.ops.segment_sum(nodes[source] * weights[:, None], target, nodes.shape[0])

    nodes, weights = jnp.zeros((100_000, 128)), jnp.zeros(1_000_000)
    edges = jnp.zeros(1_000_000, jnp.int32)
    text = jax.jit(summed).lower(nodes, edges, edges, weights).as_text(dialect="hlo")
    module = scatter_updates.rewritten(importer.read(text, "summed"))
    plan = planner.plan(module, RULES[rules], LIMITS).plan
    assert verify.problems(module, plan) == ()
    found = [each for each in kernels(plan) if next(each.programs).updates]
    assert len(found) == 1
    if rules != "none":
        assert len(kernels(plan)) == launches
        assert traffic.moved(module, plan) < 1.2 * (1_000_000 * (4 * 3 + 8 * 128) + 2 * 51_200_000)


def scatter_text(computation: str, *, unique: bool = False, dtype: str = "f32", rows: int = 128256) -> str:
    said = ", unique_indices=true" if unique else ""
    return (
        "HloModule m\n\n"
        f"add {{\n  a = {dtype}[] parameter(0)\n  b = {dtype}[] parameter(1)\n  ROOT c = {dtype}[] add(a, b)\n}}\n\n"
        f"last {{\n  a = {dtype}[] parameter(0)\n  ROOT b = {dtype}[] parameter(1)\n}}\n\n"
        f"ENTRY main {{\n  t = {dtype}[{rows},4096] parameter(0)\n  at = s32[8192,1] parameter(1)\n"
        f"  u = {dtype}[8192,4096] parameter(2)\n"
        f"  ROOT y = {dtype}[{rows},4096] scatter(t, at, u), update_window_dims={{1}}, inserted_window_dims={{0}}, "
        f"scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply={computation}{said}\n}}\n"
    )


@pytest.mark.parametrize(
    ("computation", "unique", "dtype", "in_place"),
    [
        ("add", False, "f32", True),
        ("add", False, "s8", False),  # no atomic operation is so narrow
        ("add", True, "s8", True),
        ("last", False, "f32", False),  # the last update has to win
        ("last", True, "pred", True),
    ],
)
def test_which_scatters_go_by_their_updates(computation: str, unique: bool, dtype: str, in_place: bool) -> None:
    module = importer.read(scatter_text(computation, unique=unique, dtype=dtype, rows=64), "m")
    assert importer.digest(importer.read(printer.written(module), "m")) == importer.digest(module)
    assert bool(scatter_updates.rewritten(module).in_place) == in_place
    assert scatter_updates.rewritten(module, all_of_them=False) is module  # 64 x 4096 x 8192 looks, and no more
    large = importer.read(scatter_text(computation, unique=unique, dtype=dtype), "m")
    assert not large.foreign
    found = scatter_updates.rewritten(large, all_of_them=False)
    assert found["y"].attributes.get("sorted", False) == (not in_place)
    assert "y" in found.in_place


# --- plans broken on purpose ----------------------------------------------------------------------------


def ordered(plan: StitchingPlan, *order: int) -> StitchingPlan:
    return dataclasses.replace(plan, steps=tuple(plan.steps[at] for at in order))


BROKEN: dict[str, Callable[[StitchingPlan], StitchingPlan]] = {
    "before it is computed": lambda plan: ordered(plan, 1, 0),
    "is never computed": lambda plan: ordered(plan, 1),
    "a second time": lambda plan: ordered(plan, 0, 1, 1),
    "has a launch of its own": lambda plan: changed(plan, program_updates=False),
    "y: ": lambda plan: changed(plan, program_blocks=last(plan)[1].blocks - 1, kernel_grid=last(plan)[0].grid - 1),
    "another home": lambda plan: changed(plan, stage_results=homeless(last(plan)[2])),
    "not over the updates": lambda plan: changed(plan, stage_dims=(64, 4096)),
    "z reads y~base": lambda plan: plan,
}


@pytest.mark.parametrize("problem", BROKEN)
def test_a_broken_plan_is_told(problem: str) -> None:
    module = scatter_updates.rewritten(importer.read(scatter_text("add", rows=64), "m"))
    plan = BROKEN[problem](planner.plan(module, RULES["blocks"], LIMITS).plan)
    if problem.startswith("z"):
        reader = dataclasses.replace(module["y"], name="z", opcode="negate", operands=("y~base",), attributes={})
        module = dataclasses.replace(module, instructions=(*module.instructions, reader))
    found = verify.problems(module, plan)
    assert any(problem in each for each in found), found
