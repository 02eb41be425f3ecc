"""Scatters by their updates: against XLA on the processor, checked as plans, and by what would be read and written."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from fusiond.model.errors import RequestError
from fusiond.model.nouns import Analysis, Workload
from fusiond.requests.planning import prepare
from fusiond.strategy import Target
from fusiond_stitching.analysis import forms, planner, traffic, verify
from fusiond_stitching.analysis import policy as policies
from fusiond_stitching.analysis.plan import BoxChunk, StitchedKernel, StitchingPlan
from fusiond_stitching.frontend import importer, printer, scatter_updates, sorted_scatters
from fusiond_stitching.strategy import Stitching

from .broken import changed, homeless, last
from .checking import Batch
from .jobs import H100, job, registry
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


# --- scatters whose updates are sorted first ------------------------------------------------------------


DRAW = np.random.default_rng(23)
AT = DRAW.integers(-2, 42, 700).astype(np.int32)


def last_one(x: Any, at: Any, u: Any) -> Any:
    return x.at[at].set(u)


MORE = {
    "last": (last_one, (normal(12, 5), WILD, normal(8, 5))),
    "long runs": (lambda x, at, u: x.at[at].add(u, mode="drop"), (normal(40, 3), AT, normal(700, 3))),
    "numbers": (lambda x, at, u: x.at[at].add(u), (normal(40), AT, normal(700))),
    "two indices": (lambda x, at, u: x.at[at[0], 1, at[1]].multiply(u),
                    (normal(9, 3, 8), DRAW.integers(0, 8, (2, 30)).astype(np.int32), normal(30))),
    "narrow indices": (lambda x, at, u: x.at[at].add(u), (normal(90, 2), DRAW.integers(-128, 128, 90).astype(np.int8),
                                                          normal(90, 2))),
}  # fmt: skip
INTEGERS = ("integers", "words", "unsigned", "long")  #: Their sums are the same in any order
ALL = {**{name: case for name, case in CASES.items() if name not in ("kept", "flags", "windows")}, **WIDE, **MORE}


def sorted_batch(name: str) -> Batch:
    function, inputs = ALL[name]
    group = "wide" if name in WIDE else "scatter"
    found = Batch.one(group, name, function, inputs)
    return dataclasses.replace(found, module=scatter_updates.rewritten(found.module, deterministic=True))


@pytest.mark.parametrize("how", ["pairs", "digits"])
@pytest.mark.parametrize("rules", ["blocks", *(pytest.param(each, marks=pytest.mark.slow) for each in ("none", "xla"))])
@pytest.mark.parametrize("name", ALL)
@pytest.mark.sampled(26)
def test_sorted_updates_give_what_xla_gives(
    name: str, rules: str, how: str, runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_scatters, "FEW", 4096 if how == "pairs" else 0)
    found = sorted_batch(name)
    scatters = [each for each in found.module.instructions if each.opcode == "scatter"]
    assert all(each.name in found.module.in_place for each in scatters)
    assert any(each.attributes.get("sorted", False) for each in scatters) == (name not in INTEGERS)
    plan = planner.plan(found.module, RULES[rules], LIMITS).plan
    assert verify.problems(found.module, plan) == ()
    found.check(runner, plan)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [32, 256])
@pytest.mark.parametrize("name", ["numbers", "long runs"])
def test_the_bits_are_those_of_one_after_the_other(name: str, threads: int, runner: Any) -> None:
    found = sorted_batch(name)
    x, at, u = found.inputs
    wanted = np.array(x)
    at = np.where(at < 0, at + 40, at)  # as jax reads a negative index
    inside = (at >= 0) & (at < 40)
    np.add.at(wanted, at[inside], u[inside])
    plan = planner.plan(found.module, dataclasses.replace(RULES["blocks"], threads=threads), LIMITS).plan
    (got,) = runner.run(found.program(plan), found.given()).values()
    assert got.reshape(wanted.shape).tobytes() == wanted.tobytes()


@pytest.mark.slow
@pytest.mark.sampled(16)
@pytest.mark.parametrize("seed", range(40))
def test_random_scatters(seed: int, runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against NumPy, update by update: operands, batches and windows of any number of dimensions."""
    choose = np.random.default_rng(seed)
    monkeypatch.setattr(sorted_scatters, "FEW", 0 if seed % 2 else 4096)
    named, plain = int(choose.integers(1, 3)), int(choose.integers(0, 3))
    dims = tuple(int(each) for each in choose.integers(1, 7, named + plain))
    count = tuple(int(each) for each in choose.integers(1, 12, int(choose.integers(1, 3))))
    at = choose.integers(-1, 8, (*count, named)).astype(np.int32)
    u = choose.normal(size=(*count, *dims[named:])).astype(np.float32)
    x = choose.normal(size=dims).astype(np.float32)
    numbers = jax.lax.ScatterDimensionNumbers(
        tuple(range(len(count), len(count) + plain)), tuple(range(named)), tuple(range(named))
    )
    function = lambda x, at, u: jax.lax.scatter_add(x, at, u, numbers, mode="drop")  # noqa: E731
    found = Batch.one("scatter", str(seed), function, (x, at, u))
    found = dataclasses.replace(found, module=scatter_updates.rewritten(found.module, deterministic=True))
    wanted = np.array(x)
    for one, value in zip(at.reshape(-1, named), u.reshape(-1, *dims[named:]), strict=True):
        if all(0 <= each < dim for each, dim in zip(one, dims, strict=False)):
            wanted[tuple(one)] += value
    plan = planner.plan(found.module, RULES[("blocks", "xla", "stages")[seed % 3]], LIMITS).plan
    assert verify.problems(found.module, plan) == ()
    (got,) = runner.run(found.program(plan), found.given()).values()
    assert got.reshape(dims).tobytes() == wanted.tobytes()


def test_a_million_updates_are_linear_work() -> None:
    def summed(nodes: Any, source: Any, target: Any) -> Any:
        return jax.ops.segment_sum(nodes[source], target, nodes.shape[0])

    nodes, edges = jax.ShapeDtypeStruct((100_000, 128), np.float32), jax.ShapeDtypeStruct((1_000_000,), np.int32)
    module = importer.read(jax.jit(summed).lower(nodes, edges, edges).as_text(dialect="hlo"), "summed")
    shaped = forms.forms(module, 132, deterministic=True)()
    plan = planner.plan(shaped, RULES["blocks"], LIMITS).plan
    assert verify.problems(shaped, plan) == ()
    assert traffic.moved(shaped, plan) < 2.5 * traffic.moved(
        forms.forms(module, 132)(), planner.plan(forms.forms(module, 132)(), RULES["blocks"], LIMITS).plan
    )
    most = max(math.prod(each.dims) for each in shaped.instructions)
    assert most <= 512 * 1_000_000


# --- asked for ------------------------------------------------------------------------------------------


def workload(folder: Path, text: str, said: str) -> Workload[Any]:
    (folder / "m.hlo").write_text(text)
    return prepare(registry(), job(f"module: ./m.hlo\n{said}", str(folder / "job.yaml"))).workload


def analysed(folder: Path, text: str, said: str) -> Analysis[Any, Any]:
    return Stitching().analyse(
        workload(folder, text, said), Target(arch="sm_90", limits=H100, facts=lambda source: None)
    )


def test_a_job_asks_for_it(tmp_path: Path) -> None:
    text = scatter_text("add", rows=64)
    plain, asked = (analysed(tmp_path, text, said) for said in ("", "deterministic: true"))
    assert plain.workload.key != asked.workload.key
    for each, wanted in ((plain, False), (asked, True)):
        for module in (each.payload.module(), each.payload.plain()):
            assert module["y"].attributes.get("sorted", False) == wanted
    assert workload(tmp_path, text, "deterministic: false").key == plain.workload.key


def test_overlapping_windows_are_refused_in_a_line(tmp_path: Path) -> None:
    text = scatter_text("add").replace("inserted_window_dims={0}", "inserted_window_dims={}")
    text = text.replace("update_window_dims={1}", "update_window_dims={1,2}")
    text = text.replace("u = f32[8192,4096]", "u = f32[8192,2,4096]")
    workload(tmp_path, text, "")
    with pytest.raises(RequestError, match=r"windows of scatter 'y' overlap"):
        workload(tmp_path, text, "deterministic: true")


# --- broken on purpose ----------------------------------------------------------------------------------
