"""The functions of the corpus at small sizes: against XLA on the processor."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from benchmarks.corpus import dims, functions
from fusiond.build import gxx
from fusiond.model.nouns import Rejection
from fusiond_stitching.analysis import forms, planner, policy, verify
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.codegen import emit, tolerances
from fusiond_stitching.frontend import fills, importer
from fusiond_stitching.frontend.graph import HloModule

from . import handmade, oracle
from .cases import cases, rand
from .checking import Batch
from .policies import LIMITS, MORE, POLICIES
from .test_catalogue_results import module as catalogue

NEEDED = "the function is of a library: pip install flax optax equinox"


def inputs(module: HloModule) -> tuple[np.ndarray, ...]:
    """Positive floats (optimizers take roots of what they hold), and whole numbers that are indices where they are
    read so."""
    random = np.random.default_rng(3)
    found = []
    for name in module.parameters:
        each = module[name]
        kind = np.dtype(ml_dtypes.bfloat16 if each.dtype == "bf16" else emit.TYPES[each.dtype].program)
        if emit.TYPES[each.dtype].kind == "float":
            found.append(random.uniform(0.1, 1.0, each.dims).astype(kind))
        else:
            fill = fills.default(module, name)
            found.append(random.integers(int(fill.low), int(fill.high), each.dims, endpoint=True).astype(kind))
    return tuple(found)


@pytest.mark.slow
@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", functions.FUNCTIONS)
def test_what_it_computes(name: str, runner: Any) -> None:
    try:
        text = functions.text(name, dims.SMALL)
    except ModuleNotFoundError as problem:
        pytest.skip(f"{problem}: {NEEDED}")
    asked = importer.read(text, name)
    module = forms.forms(asked, LIMITS.multiprocessors)(forms.SPLIT)
    plan = planner.plan(module, POLICIES["grid"], LIMITS).plan
    assert verify.problems(module, plan) == ()
    if asked.foreign:
        pytest.skip(f"planned and proved; a library's results are filled, so there is nothing to compare: {name}")
    given = inputs(asked)
    names = tuple(f"{name}[{place}]" for place in range(len(asked.outputs)))
    batch = Batch(text, module, given, names, tuple(oracle.run(text, given)))
    program = batch.program(plan)
    near = set(tolerances.near_ties(asked))
    got = runner.run(program, batch.given())
    differences = batch.differences(program, got)
    kept = [each for each in differences if f"out_{each.split('[')[1].split(']')[0]}" not in near]
    if not kept:
        return
    # Where large values cancel, XLA's own rounding is what there is to be measured by.
    exact = oracle.run(text.replace("f32[", "f64["), [each.astype(np.float64) if each.dtype == np.float32 else each
                                                      for each in given])  # fmt: skip
    for said in kept:
        place = int(said.split("[")[1].split("]")[0])
        truth = exact[place].reshape(-1)
        ours, theirs = (abs(each.reshape(-1) - truth).max() for each in (got[f"out_{place}"], batch.wanted[place]))
        assert ours <= 2 * theirs, said


# --- modules that jax makes, over all operations, against XLA on the processor --------------------------


GROUPS = sorted({each.group for each in cases().values()})


slow = pytest.mark.slow


@slow
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.sampled(8)
def test_one_kernel_per_instruction(group, runner):
    batch = Batch.of(group)
    batch.check(runner, handmade.unfused(batch.module))


@slow
@pytest.mark.parametrize("group", ["indexing", "movement", "reductions"])
def test_everything_inlined_into_the_outputs(group, runner):
    batch = Batch.of(group)
    batch.check(runner, handmade.inlined(batch.module))


STITCHED = [
    ("indexing", "tiny"),
    pytest.param("reductions", "grid", marks=slow),
    *(pytest.param(group, policy, marks=slow) for group, policy in zip(GROUPS, ["tiny", "grid"] * 4, strict=False)),
    *(pytest.param(group, "paper", marks=slow) for group in ("movement", "reductions", "wide")),
    *(pytest.param(group, "blocks", marks=slow) for group in ("half", "indexing", "dots")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("group", "policy"), STITCHED)
@pytest.mark.sampled(12)
def test_stitched(group, policy, runner):
    batch = Batch.of(group)
    planned = planner.plan(batch.module, POLICIES[policy], LIMITS)
    assert planned.problems == ()
    for seed in (0, 1):
        batch.check(runner, planned.plan, seed=seed)


def speech():
    return catalogue("speech_fwd")


@pytest.mark.slow
@pytest.mark.parametrize(("made", "policy"), [(lambda: Batch.alone("slices"), "tiny"), (speech, "grid")])
def test_a_grid_smaller_than_its_phases(made, policy, runner):
    """The blocks of a cooperative launch take several turns; the shared arena is used again in each."""
    batch = made()
    small = dataclasses.replace(LIMITS, multiprocessors=1, blocks_per_sm=2)
    plan = planner.plan(batch.module, POLICIES[policy], small).plan
    turns = [phase.blocks > kernel.grid for kernel in plan.kernels for phase in kernel.phases if kernel.cooperative]
    assert any(turns)
    for seed in (0, 1):
        batch.check(runner, plan, seed=seed)


def test_more_elements_than_an_int_counts():
    text = """\
HloModule large
ENTRY main {
  x = f32[65536]{0} parameter(0)
  a = f32[65536,65536]{1,0} broadcast(x), dimensions={0}
  b = f32[65536,65536]{1,0} broadcast(x), dimensions={1}
  ROOT c = f32[65536,65536]{1,0} add(a, b)
}
"""
    module = importer.read(text, "large.hlo")
    program = emit.program(module, handmade.unfused(module, threads=256))
    assert isinstance(gxx.build(program.sources[0]), Path)
    source = program.sources[0].text
    assert "const long long block = blockIdx.x;" in source
    assert "int i" not in source.replace("long long", "")


# --- whole functions as people write them ---------------------------------------------------------------


RNG = np.random.default_rng(11)
PACKED = FusionPolicy(**MORE, packing=True, lift=True, shared_limit=48 << 10)
GRID = FusionPolicy(**MORE, packing=True, lift=True, barriers=True, stitch_dots=True, grain=256, threads=64)


def floats(*dims, scale=1.0):
    return (RNG.normal(size=dims) * scale).astype(np.float32)


def whole(most, *dims):
    return RNG.integers(0, most, dims).astype(np.int32)


def norm(x, gain, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gain + bias


def attention(x, wq, wk, wv, wo, heads=4):
    batch, time, width = x.shape

    def parted(y):
        return y.reshape(batch, time, heads, width // heads).transpose(0, 2, 1, 3)

    scores = jnp.einsum("bhqd,bhkd->bhqk", parted(x @ wq), parted(x @ wk)) / np.sqrt(width // heads)
    scores = jnp.where(jnp.tril(jnp.ones((time, time), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), parted(x @ wv))
    return mixed.transpose(0, 2, 1, 3).reshape(batch, time, width) @ wo


def block(x, wq, wk, wv, wo, g1, b1, g2, b2, w1, c1, w2, c2):
    x = x + attention(norm(x, g1, b1), wq, wk, wv, wo)
    return x + jax.nn.gelu(norm(x, g2, b2) @ w1 + c1) @ w2 + c2


def group_norm(x):
    y = x.reshape(2, 6, 6, 4, 3)
    scaled = (y - y.mean((1, 2, 4), keepdims=True)) / jnp.sqrt(y.var((1, 2, 4), keepdims=True) + 1e-5)
    return scaled.reshape(x.shape)


def adam(weights, means, squares, slopes):
    def one(p, m, v, g):
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v

    return [one(*each) for each in zip(weights, means, squares, slopes, strict=True)]


def gru(x, h, w, u):
    keep, reset = jax.nn.sigmoid(x @ w[0] + h @ u[0]), jax.nn.sigmoid(x @ w[1] + h @ u[1])
    return (1 - keep) * jnp.tanh(x @ w[2] + (reset * h) @ u[2]) + keep * h


def quantised(x):
    scale = jnp.abs(x).max(1, keepdims=True) / 127
    return jnp.clip(jnp.round(x / scale), -128, 127).astype(jnp.int8).astype(jnp.float32) * scale


def rows_of(table, indices, wanted):
    return jax.grad(lambda t: ((t[indices] - wanted) ** 2).mean())(table)


WIDTH = 32
WEIGHTS = (
    *(floats(WIDTH, WIDTH, scale=0.2) for _ in range(4)),
    *(floats(WIDTH) for _ in range(4)),
    floats(WIDTH, 64, scale=0.2), floats(64), floats(64, WIDTH, scale=0.2), floats(WIDTH),
)  # fmt: skip
LAYERS = ((33, 7), (7,), (7, 5), (5,))
FUNCTIONS = {
    "block": (block, (floats(2, 17, WIDTH), *WEIGHTS)),
    "gradient": (jax.grad(lambda *p: (block(*p) ** 2).mean(), argnums=tuple(range(13))),
                 (floats(2, 17, WIDTH), *WEIGHTS)),
    "group_norm": (group_norm, (floats(2, 6, 6, 12),)),
    "embedding": (rows_of, (floats(50, 8), whole(50, 4, 7), floats(4, 7, 8))),
    "cross_entropy": (lambda x, y: -(jax.nn.one_hot(y, 10) * jax.nn.log_softmax(x)).sum(-1).mean(),
                      (floats(31, 10), whole(10, 31))),
    "argmax": (lambda x: jnp.take_along_axis(x, jnp.argmax(x, 1)[:, None], 1), (floats(9, 13),)),
    "adam": (adam, tuple([np.abs(floats(*each)) for each in LAYERS] for _ in range(4))),
    "gru": (gru, (floats(5, 8), floats(5, 6), floats(3, 8, 6), floats(3, 6, 6))),
    "quantised": (quantised, (floats(12, 33),)),
    "cache": (lambda c, x, i: jax.nn.softmax(jax.lax.dynamic_update_slice(c, x * 2, (0, i, 0)).sum(-1)),
              (floats(2, 10, 4), floats(2, 1, 4), np.int32(7))),
    "padded": (lambda x: jnp.pad(x, 2, mode="edge") + jnp.pad(x, 2, mode="reflect"), (floats(6, 7),)),
    "log_sum": (jax.grad(lambda x: jax.scipy.special.logsumexp(x, axis=(0, 2)).sum()), (floats(5, 7, 9),)),
}  # fmt: skip


@functools.cache
def network(name: str) -> Batch:
    function, arguments = FUNCTIONS[name]
    text = oracle.lowered(function, *arguments)
    inputs = tuple(map(np.asarray, jax.tree.leaves(arguments)))
    wanted = tuple(oracle.run(text, inputs))
    names = tuple(f"{name}[{at}]" for at in range(len(wanted)))
    return Batch(text, importer.read(text, name), inputs, names, wanted)


LARGE = ("block", "gradient")


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.slow) if each in LARGE else each for each in FUNCTIONS]
)
def test_it_is_planned_soundly_and_in_no_more_kernels_than_xlas_rules_need(name):
    module = network(name).module
    assert not module.foreign
    unfused = planner.plan(module, policy.unfused(), LIMITS)
    rules = planner.plan(module, policy.xla_rules(), LIMITS)
    packed = planner.plan(module, PACKED, LIMITS)
    grid = planner.plan(module, GRID, LIMITS)
    for each in (unfused, rules, packed, grid):
        assert each.problems == ()
        assert verify.problems(module, each.plan) == ()
    assert len(packed.plan.kernels) <= len(rules.plan.kernels) <= len(unfused.plan.kernels)
    assert len(grid.plan.kernels) <= len(rules.plan.kernels)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [PACKED, GRID], ids=["packed", "grid"])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.sampled(12)
def test_it_computes_what_xla_computes(name, policy, runner):
    here = network(name)
    here.check(runner, planner.plan(here.module, policy, LIMITS).plan)


# --- JAX's loops and stencils ---------------------------------------------------------------------------


# --- stencils -------------------------------------------------------------------------------------------


def stencil(x, times):
    for _ in range(times):
        x = x + 0.1 * (jnp.roll(x, 1, 0) + jnp.roll(x, -1, 0) + jnp.roll(x, 1, 1) + jnp.roll(x, -1, 1) - 4 * x)
    return x


def test_a_stencil_applied_often_does_not_make_endless_code():
    """Each round reads the one before at nine places: written into one kernel, eight rounds are 9^8 of them."""
    text = oracle.lowered(lambda x: stencil(x, 8), rand(16, 16))
    module = importer.read(text, "stencil")
    for rules in (policy.xla_rules(), policy.FusionPolicy(**MORE, packing=True)):
        planned = planner.plan(module, rules, LIMITS)
        assert verify.problems(module, planned.plan) == ()
        made = emit.program(module, planned.plan)
        assert not isinstance(made, Rejection)
        assert sum(len(each.text) for each in made.sources) < 200_000


# --- loops that are written out -------------------------------------------------------------------------

LOOP = """HloModule loop

body {{ s = (s32[], {kind}[7]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  v = {kind}[7] get-tuple-element(s), index=1
  step = s32[] constant({step})
  j = s32[] add(i, step)
  w = {kind}[7] {work}
  ROOT t = (s32[], {kind}[7]) tuple(j, w)
}}

test {{ s = (s32[], {kind}[7]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant({limit})
  ROOT c = pred[] compare(i, n), direction={direction}
}}

ENTRY main {{
  x = {kind}[7] parameter(0)
  first = s32[] {first}
  start = (s32[], {kind}[7]) tuple(first, x)
  run = (s32[], {kind}[7]) while(start), condition=test, body=body
  ROOT last = {kind}[7] get-tuple-element(run), index=1
}}
"""
SHORT = {"kind": "u32", "step": 1, "limit": 5, "direction": "LT", "work": "multiply(v, v)", "first": "constant(2)"}


def test_random_bits_are_written_out_where_jax_has_a_loop_for_them(runner):
    """As it lowers them for a processor; for a GPU it writes them out itself."""
    function = lambda x, key: jnp.where(jax.random.bernoulli(key, 0.7, x.shape), x, 0)  # noqa: E731
    inputs = (rand(5, 7), np.array([1, 2], np.uint32))
    text = oracle.lowered(function, *inputs)
    assert " while(" in text
    module = importer.read(text, "dropout")
    assert not module.foreign
    planned = planner.plan(module, policy.FusionPolicy(**MORE, packing=True), LIMITS)
    assert len(planned.plan.kernels) == 1
    Batch(text, module, inputs, ("kept",), tuple(oracle.run(text, inputs))).check(runner, planned.plan)


@pytest.mark.parametrize(("first", "rounds"), [(2, 3), (4, 1), (5, 0), (9, 0), (-4, 9)])
def test_a_short_loop_over_whole_numbers_is_written_out(first, rounds, runner):
    text = LOOP.format(**{**SHORT, "first": f"constant({first})"})
    module = importer.read(text, "loop.hlo")
    assert not module.foreign
    assert not module.frames
    assert sum(each.opcode == "multiply" for each in module.instructions) == rounds
    inputs = (np.arange(3, 10, dtype=np.uint32),)
    batch = Batch(text, module, inputs, ("last",), tuple(oracle.run(text, inputs)))
    batch.check(runner, planner.plan(module, policy.FusionPolicy(**MORE, packing=True), LIMITS).plan)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"kind": "f32"}, {"limit": 99}, {"step": 2}, {"direction": "LE"}, {"direction": "NE"},
        {"step": -3, "limit": -9, "direction": "GT", "first": "constant(200)"},
        {"work": "dynamic-slice(v, i), dynamic_slice_sizes={7}"},
    ],
    ids=str,
)  # fmt: skip
def test_any_other_loop_of_so_many_trips_is_one_launch(change, runner):
    text = LOOP.format(**{**SHORT, **change})
    module = importer.read(text, "loop.hlo")
    assert (module.foreign, module.frames, len(module.scans)) == ({}, (), 1)
    inputs = (np.arange(3, 10).astype(np.float32 if "kind" in change else np.uint32),)
    batch = Batch(text, module, inputs, ("last",), tuple(oracle.run(text, inputs)))
    batch.check(runner, planner.plan(module, policy.FusionPolicy(**MORE, packing=True), LIMITS).plan)


@pytest.mark.parametrize(
    "change",
    [
        {"first": "add(nothing, nothing)"},
        {"limit": 1_000_000, "kind": "f32"},
        {"first": "constant(9)", "kind": "f32"},
        {"step": 0, "kind": "f32"},
    ],
    ids=str,
)
def test_a_loop_of_unknown_length_is_a_boundary(change):
    """As is one that is too long to be followed, or not run at all."""
    text = LOOP.format(**{**SHORT, **change}).replace("  first = ", "  nothing = s32[] parameter(1)\n  first = ")
    module = importer.read(text, "loop.hlo")
    assert {module[each].opcode for each in module.foreign} == {"while"}
    assert {each.name for each in module.frames} == {"body", "test"}
