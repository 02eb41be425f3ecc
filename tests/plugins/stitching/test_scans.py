"""Loops in one launch: against XLA, which runs their trips one after the other."""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fusiond_stitching.analysis import planner, traffic, verify
from fusiond_stitching.analysis.plan import StitchingPlan
from fusiond_stitching.codegen import emit
from fusiond_stitching.frontend import importer, scans
from fusiond_stitching.frontend.graph import HloModule
from fusiond_stitching.frontend.scan_loop import Loop

from . import oracle
from .broken import changed, homeless, last
from .checking import Batch
from .policies import LIMITS
from .scan_cases import (
    CASES,
    RULES,
    SLOW,
    advantages,
    around,
    batch,
    behind,
    cell,
    drawn,
    gradient,
    overlaid,
    planned,
    prefix,
    rwkv,
    wide,
)
from .test_codegen_mutants import killed, with_text


@pytest.mark.parametrize("rules", ["xla", "blocks", *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(48)
def test_a_loop_is_one_launch(name: str, rules: str, runner: Any) -> None:
    found = batch(name)
    assert found.module.foreign == {}
    plan = planner.plan(found.module, RULES[rules], LIMITS).plan
    assert verify.problems(found.module, plan) == ()
    scans = sum(program.scan for kernel in plan.kernels for program in kernel.programs)
    assert (
        scans
        == len(found.module.scans)
        == {"twice": 2, "gradient": 2, "counted": 0, "substeps": 2, "summed by neighbours": 2}.get(name, 1)
    )
    found.check(runner, plan)


# --- what leaves a loop, and what joins it --------------------------------------------------------------


LONG = (512, 4096)


@pytest.mark.parametrize(
    ("function", "shapes", "tensors", "kernels"),
    [
        (advantages, [wide(*LONG)] * 3, 5, 1),  # three are read, two written
        (lambda x, y: prefix(x, y)[1], [wide(*LONG)] * 2, 1, 1),  # the sums are not laid down
        (lambda x, g, s: behind(x, g, s)[0], [wide(*LONG), wide(*LONG), wide(LONG[1])], 2.5, 1),
        # The loop lays down its state; the gradient's loop computes anew what depends on nothing else.
        (gradient, [wide(*LONG), wide(LONG[1])], 4, 2),
    ],
    ids=["advantages", "sums", "behind", "gradient"],
)
def test_no_more_is_moved_than_the_loop_needs(function: Any, shapes: Any, tensors: float, kernels: int) -> None:
    module, plan = planned(function, *shapes)
    assert len([each for each in plan.kernels if any(one.scan for one in each.programs)]) == kernels
    whole = 4 * LONG[0] * LONG[1]
    assert traffic.moved(module, plan) < (tensors + 0.1) * whole


def test_numbers_that_what_joins_reads_are_not_cut_into_pieces() -> None:
    def clamped(x: Any, low: Any, high: Any) -> Any:
        return lax.clamp(low, lax.scan(lambda h, x: (h * 0.5 + x, h * x), x[0], x)[1], high)

    text = oracle.lowered(clamped, wide(300, 2048), wide(), wide())
    module = importer.read(re.sub(r"clamp\(\S+, (\S+), \S+\)", r"clamp(low.1, \1, high.1)", text), "clamped.hlo")
    (results,) = module.scans.values()
    body = module[results[0]].attributes["loop"].body
    (clamp,) = (each for each in body.instructions if each.opcode == "clamp")
    assert [body[name].dims for name in clamp.operands] == [(), clamp.dims, ()]


def test_what_is_stored_anyway_does_not_join() -> None:
    """The sums are a result themselves, and their tangent goes into a reduction: joined, it would be stored, too."""

    def function(x: Any) -> Any:
        sums = lax.scan(lambda s, x: (s + x, s), jnp.zeros(x.shape[1:]), x)[1]
        return sums, jnp.tanh(sums).sum(0)

    module, _ = planned(function, wide(*LONG))
    assert [each.opcode for each in module.instructions if each.dims == LONG] == ["parameter", "scan", "tanh"]


@pytest.mark.parametrize(("channels", "dims"), [(4, ()), (64, ((512, 4, 8, 64),))])
def test_what_many_threads_would_compute_is_computed_before(channels: int, dims: tuple[Any, ...]) -> None:
    module, plan = planned(rwkv, *[wide(512, 4, 8, channels)] * 4, wide(8, channels))
    (loop,) = [module[names[0]].attributes["loop"] for names in module.scans.values()]
    assert tuple(loop.body[each].dims for each in loop.before) == dims
    assert len(plan.kernels) == 1 + len(dims)


def test_a_map_is_no_loop() -> None:
    module, plan = planned(lambda x: lax.scan(lambda s, x: (s, jnp.sin(x)), 0.0, x)[1].sum(0), wide(*LONG))
    assert (module.scans, module.foreign) == ({}, {})
    assert traffic.moved(module, plan) < 1.1 * 4 * LONG[0] * LONG[1]


# --- what stays a boundary ------------------------------------------------------------------------------


APART, LENGTH = "its state cannot be divided among threads", "how often it runs is not known beforehand"


@pytest.mark.parametrize(
    ("function", "shapes", "why"),
    [
        (cell, [wide(9, 4, 800), wide(800, 800)], "it would read 2500 KB of matrices in each trip (2048 at most)"),
        (cell, [wide(9, 2000, 160), wide(160, 160)], "it multiplies 2000 rows (1024 at most)"),
        (lambda x: lax.scan(lambda h, x: (h / h.sum() + x, None), x[0], x)[0], [wide(9, 6000)],
         "a row of its state needs 46 KB of shared memory (40 at most)"),
        (lambda x: lax.scan(lambda h, x: (jnp.sort(h + x), None), x[0], x)[0], [wide(9, 5000)], "sort"),
        (lambda x, at: lax.scan(lambda h, at: (h.at[at].add(1.0), None), x, at)[0],
         [wide(5000), jax.ShapeDtypeStruct((9, 7), np.int32)], APART),
        (lambda x: lax.while_loop(lambda s: s.sum() < 9, lambda s: s * 2, x), [wide(50)], LENGTH),
        (lambda x: lax.fori_loop(0, 70_000, lambda i, s: jnp.sin(s), x), [wide(50)], LENGTH),
        # The inner loop is known to the outer one's body, but its sums are no thread's own.
        (around, [wide(50)], "there is a loop in it"),
        # The rest is what was there before.
        (overlaid, [wide(6000, 50)], "a row of its state needs 46 KB of shared memory (40 at most)"),
    ],
    ids=["a large product", "many rows", "a wide sum", "a sort", "a scatter", "the data says", "too long", "nested",
         "twice"],
)  # fmt: skip
def test_what_is_no_thread_s_own_stays_a_boundary(function: Any, shapes: Any, why: str) -> None:
    module, _ = planned(function, *shapes)
    assert {module[each].opcode for each in module.foreign} == {"while"}
    assert all(why in each for each in module.foreign.values())
    assert module.scans == {}
    assert module.frames


def test_a_loop_inside_a_boundary_is_one_launch_of_its_body() -> None:
    module, _ = planned(around, wide(50))
    assert [len(each.scans) for each in module.frames if each.scans] == [1]


def test_a_value_that_is_read_in_many_ways_is_looked_at_once() -> None:
    """Of what a loop reads there are 2 ** 60 ways to the parameter."""

    def function(x: Any) -> Any:
        y = x
        for _ in range(60):
            y = jnp.sin(y) + jnp.cos(y)[::-1]
        return lax.scan(lambda h, each: (h * 0.5 + each, h), x[0], y)

    module, plan = planned(function, wide(9, 40))
    assert len(module.scans) == 1
    assert plan.kernels


# --- plans and code broken on purpose -------------------------------------------------------------------


def test_equal_loops_have_one_text() -> None:
    def layers(x: Any, y: Any) -> Any:
        for _ in range(3):
            x = lax.scan(lambda h, x: (h * 0.5 + x, h), y, x)[1]
            x = x / x.sum()
        return x

    module, plan = planned(layers, wide(9, 40), wide(40))
    program = emit.program(module, plan)
    entries = [step.entry for step in program.launches]  # type: ignore[union-attr]
    assert len(module.scans) == 3
    assert len(entries) - len(set(entries)) >= 2
    assert len({module[names[0]].attributes["loop"].key for names in module.scans.values()}) == 1


BROKEN: dict[str, Callable[[Any], StitchingPlan]] = {
    "a second time": lambda plan: dataclasses.replace(plan, steps=(*plan.steps, *plan.steps)),
    "are not written": lambda plan: changed(plan, program_blocks=1, kernel_grid=1),
    "not the results of a loop": lambda plan: changed(plan, stage_results=last(plan)[2].results[:1]),
    "another home": lambda plan: changed(plan, stage_results=homeless(last(plan)[2])),
    "not over the loop's axes": lambda plan: changed(plan, stage_dims=(9, 64)),
    "a launch of its own": lambda plan: changed(plan, program_scan=False),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_a_broken_plan_is_told(problem: str) -> None:
    module, plan = planned(advantages, *[wide(9, 64)] * 3)
    found = verify.problems(module, BROKEN[problem](plan))
    assert any(problem in each for each in found), found


MUTANTS = [
    ("a trip too few", "advantages", r"if \(at_0 \+ trips_0 >= 11\)", "if (at_0 + trips_0 >= 10)"),
    ("trips behind the last", "moving", r"if \(at_0 \+ trips_0 >= 12\) break;", ""),
    ("the last read", "advantages", r"< 10 \? ahead_0 \+ trips_0 : 10", "< 9 ? ahead_0 + trips_0 : 9"),
    ("the trip that is read", "mamba", r"read_0\[at_\d\]", "read_0[0]"),
    ("another state", "advantages", r"state_1 = read_1\[at_0\];", "state_1 = add_1;"),
    ("the state is lost", "behind", r"state_0 = add_\d;", ""),
    ("where it begins", "gradient", r"state_0 = 0\.0f;", "state_0 = 1.0f;"),
    ("one of a thread's numbers", "rwkv", r"p_(\d) < 8; \+\+p_\1\) \{\n\s*state", r"p_\1 < 7; ++p_\1) {\n state"),
    ("a neighbour's sum is left out", "summed by neighbours", r"(\w+) \+= __shfl_xor_sync\([^;]*, 4, 8\);", ""),
    ("a group too far", "summed by neighbours", r"& 24", "& 16"),
    ("a lane's start", "long reductions", r"r_2 = lane_1 \+ 32", "r_2 = lane_1 + 33"),
    ("a neighbour's place", "mamba", r"out_0\[48 \* (\w+) ", r"out_0[48 * \1 + 1 "),
]


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize(("what", "name", "pattern", "instead"), MUTANTS, ids=[each[0] for each in MUTANTS])
def test_a_mutant_of_the_code_dies(what: str, name: str, pattern: str, instead: str, runner: Any) -> None:
    found = batch(name)
    program = found.program(planner.plan(found.module, RULES["blocks"], LIMITS).plan)
    assert killed(runner, found, program) == ""
    assert killed(runner, found, with_text(program, lambda text: re.sub(pattern, instead, text, count=1))), what


# --- bodies that nobody here has thought of --------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.sampled(62)
@pytest.mark.parametrize("seed", range(150))
def test_a_random_loop(seed: int, runner: Any) -> None:
    """As XLA has it, whether it is one launch, maps alone, or written out."""
    function, inputs = drawn(seed)
    found = Batch.one("scans", str(seed), function, inputs)
    if found.module.foreign:
        assert {found.module[each].opcode for each in found.module.foreign} == {"while"}
        return
    plan = planner.plan(found.module, RULES[("blocks", "xla", "grid")[seed % 3]], LIMITS).plan
    assert verify.problems(found.module, plan) == ()
    found.check(runner, plan)


# --- loops that blocks run, their state in shared memory ------------------------------------------------


_NUMBERS = np.random.default_rng(5)


def floats(*dims: int, scale: float = 1.0) -> np.ndarray:
    return (scale * _NUMBERS.uniform(-1, 1, dims)).astype(np.float32)


def plain(x: Any, w: Any) -> Any:
    """Elman's cell; its input is multiplied already."""
    return lax.scan(lambda h, x: (h := jnp.tanh(h @ w + x), h), jnp.zeros(x.shape[1:], x.dtype), x)


def lstm(x: Any, w: Any, u: Any, b: Any) -> Any:
    def step(carry: Any, x: Any) -> Any:
        h, c = carry
        i, f, g, o = jnp.split(x @ w + h @ u + b, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    begin = jnp.zeros((x.shape[1], u.shape[0]), x.dtype)
    return lax.scan(step, (begin, begin), x)


def normed(x: Any, w: Any) -> Any:
    """A cell with a layer norm, and one state for all rows beside it."""

    def step(carry: Any, x: Any) -> Any:
        h, count = carry
        y = h @ w + x
        y = (y - y.mean(-1, keepdims=True)) * lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)
        return (jnp.tanh(y * count), count * 0.75 + 0.25), (h, y.max(-1))

    return lax.scan(step, (jnp.zeros(x.shape[1:]), jnp.ones(x.shape[2])), x)


def heat(x: Any) -> Any:
    """Neighbours meet in a long row."""

    def step(_: Any, h: Any) -> Any:
        return h + 0.2 * (jnp.pad(h, ((0, 0), (1, 0)))[:, :-1] - 2 * h + jnp.pad(h, ((0, 0), (0, 1)))[:, 1:])

    return lax.fori_loop(0, 6, step, x)


def sinkhorn(x: Any) -> Any:
    """Rows and columns of a matrix in turn."""

    def step(_: Any, x: Any) -> Any:
        x = x - jax.nn.logsumexp(x, axis=2, keepdims=True)
        return x - jax.nn.logsumexp(x, axis=1, keepdims=True)

    return jnp.exp(lax.fori_loop(0, 5, step, x))


def heads(q: Any, k: Any, v: Any) -> Any:
    """A product for each row by a matrix of its own."""

    def step(h: Any, q: Any) -> Any:
        share = jax.nn.softmax(jnp.einsum("bd,bnd->bn", h + q, k), axis=-1)
        h = jnp.einsum("bn,bnd->bd", share, v)
        return h, share.max(-1)

    return lax.scan(step, jnp.zeros(q.shape[1:]), q)


def half(x: Any, w: Any) -> Any:
    """Products of bfloat16 that are summed in float, a state of each, and whole numbers."""

    def step(carry: Any, x: Any) -> Any:
        h, total, count = carry
        y = jnp.dot(h, w, preferred_element_type=jnp.float32)
        h = jnp.tanh(y + x).astype(jnp.bfloat16)
        return (h, total * 0.5 + y, count + jnp.int32(2)), (h, y * count)

    begin = jnp.zeros(x.shape[1:])
    return lax.scan(step, (begin.astype(jnp.bfloat16), begin, jnp.int32(1)), x)


def sums(x: Any, w: Any, g: Any, s: Any) -> Any:
    """What a gradient adds up over the steps, backwards, from other values than zero; and what only looks so."""

    def step(carry: Any, xs: Any) -> Any:
        h, g, s, t, last = carry
        at, x = xs
        h = jnp.tanh(h @ w + x * at)
        g = g + h.T @ (x * at)
        return (h, g, s + h.sum(0), x[0] + t * 2, (h * x).sum(0) + last), g.sum() * 0 + h

    begin = (jnp.zeros(x.shape[1:]), g, s, s, s)
    return lax.scan(step, begin, (jnp.arange(x.shape[0], dtype=jnp.float32), x), reverse=True)


def weights(x: Any, w: Any, v: Any) -> Any:
    """A cell's weights as parts, put together in each trip; and one that is multiplied from the left."""

    def step(h: Any, x: Any) -> Any:
        a, b = jnp.split(h @ jnp.concatenate([w, v * 0.5], 1), 2, 1)
        return jnp.tanh(a * b + x), (v @ h.T).T

    return lax.scan(step, jnp.zeros(x.shape[1:]), x)


def training(cell: Any) -> Any:
    """Loss and gradients of a recurrent layer."""

    def loss(*given: Any) -> Any:
        (last, *_), hs = cell(*given)
        return (last * last).sum() + jnp.sin(hs).sum()

    return jax.value_and_grad(loss, argnums=(0, 1, 2, 3))


BF16 = jnp.bfloat16
BY_BLOCKS: dict[str, tuple[Any, tuple[np.ndarray, ...]]] = {
    "plain": (plain, (floats(5, 3, 40), floats(40, 40, scale=0.2))),
    "lstm": (lstm, (floats(4, 5, 12), floats(12, 4 * 72, scale=0.3), floats(72, 4 * 72, scale=0.2), floats(4 * 72))),
    "normed": (normed, (floats(4, 3, 48), floats(48, 48, scale=0.2))),
    "heat": (heat, (floats(3, 700),)),
    "sinkhorn": (sinkhorn, (floats(2, 24, 20),)),
    "heads": (heads, (floats(3, 4, 16), floats(4, 40, 16), floats(4, 40, 16))),
    "half": (half, (np.asarray(floats(5, 3, 136), BF16), np.asarray(floats(136, 136, scale=0.1), BF16))),
    "weights": (weights, (floats(4, 3, 40), floats(40, 40, scale=0.2), floats(40, 40, scale=0.2))),
    "many rows": (plain, (floats(3, 700, 136), floats(136, 136, scale=0.1))),
    "one trip": (plain, (floats(1, 3, 136), floats(136, 136, scale=0.1))),
}  # fmt: skip


@functools.cache
def batch_of_blocks(name: str) -> Batch:
    return Batch.one("scans", name, *BY_BLOCKS[name])


def loops(module: HloModule) -> list[Loop]:
    return [module[names[0]].attributes["loop"] for names in module.scans.values()]


@pytest.mark.parametrize("rules", ["xla", "blocks", *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)])
@pytest.mark.parametrize("name", BY_BLOCKS)
@pytest.mark.sampled(24)
def test_a_loop_by_blocks_is_one_launch(name: str, rules: str, runner: Any) -> None:
    found = batch_of_blocks(name)
    left = [each for each in found.module.foreign if found.module[each].opcode != "dot"]
    assert left == []
    plan = planner.plan(found.module, RULES[rules], LIMITS).plan
    assert verify.problems(found.module, plan) == ()
    assert all(each.by_block for each in loops(found.module))
    assert sum(program.scan for kernel in plan.kernels for program in kernel.programs) == 1
    found.check(runner, plan)


LSTM = (floats(4, 3, 12), floats(12, 4 * 72, scale=0.3), floats(72, 4 * 72, scale=0.2), floats(4 * 72))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "inputs", "products", "rows"),
    [
        (lambda x, w, g, s: sums(x, w, g, s)[0][:4], (floats(5, 3, 40), floats(40, 40, scale=0.2), floats(40, 40),
                                                      floats(40)), 1, (3,)),
        # Before the first loop the input's; between them all states' once more, for what the second needs of the gates;
        # behind it the gradients of the input and of both weights.
        (training(lstm), LSTM, 5, (3, 3)),
    ],
    ids=["sums", "training"],
)  # fmt: skip
@pytest.mark.parametrize("rules", ["xla", "blocks"])
def test_what_is_only_added_up_is_summed_behind_the_loop(
    function: Any, inputs: Any, products: int, rows: tuple[int, ...], rules: str, runner: Any
) -> None:
    found = Batch.one("scans", "sums", function, inputs)
    assert {found.module[each].opcode for each in found.module.foreign} <= {"dot"}
    assert tuple(each.axes[0] for each in loops(found.module)) == rows
    assert len([each for each in found.module.instructions if each.opcode == "dot"]) == products
    plan = planner.plan(found.module, RULES[rules], LIMITS).plan
    assert verify.problems(found.module, plan) == ()
    found.check(runner, plan)


def test_a_sum_that_is_read_on_the_way_stays() -> None:
    shapes = [wide(5, 300, 40), wide(40, 40), wide(40, 40), wide(40)]
    module = importer.read(oracle.lowered(lambda *given: sums(*given)[1], *shapes), "m.hlo")
    assert {module[each].opcode for each in module.foreign} == {"while"}


@pytest.mark.slow
@pytest.mark.sampled(50)
@pytest.mark.parametrize("seed", range(100))
def test_a_random_loop_by_blocks(seed: int, runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "MOST_HELD", -1)  # no thread holds anything
    function, inputs = drawn(seed)
    found = Batch.one("scans", str(seed), function, inputs)
    if any(found.module[each].opcode == "while" for each in found.module.foreign):
        return
    plan = planner.plan(found.module, RULES[("blocks", "xla", "grid")[seed % 3]], LIMITS).plan
    assert verify.problems(found.module, plan) == ()
    found.check(runner, plan)


def test_what_the_state_has_no_part_in_is_multiplied_before() -> None:
    shapes = [wide(64, 128, 96), wide(96, 512), wide(128, 512), wide(512)]
    module = importer.read(oracle.lowered(lstm, *shapes), "m.hlo")
    (first,) = [each for each in module.instructions if each.opcode == "dot"]
    assert first.dims == (64, 128, 512)
    (loop,) = loops(module)
    assert [loop.body[each].dims for each in loop.kept] == [(128, 512)]
    assert loop.axes == (128,)


def test_a_plan_has_room_for_the_state() -> None:
    found = batch_of_blocks("lstm")
    plan = planner.plan(found.module, RULES["blocks"], LIMITS).plan
    (loop,) = loops(found.module)
    needed = {loop.shared_bytes(rows) for rows in range(1, 9)}
    (kernel,) = [each for each in plan.kernels if any(one.scan for one in each.programs)]
    assert kernel.shared_bytes in needed
    less = kernel.shared_bytes - 16
    (program,) = kernel.programs
    small = dataclasses.replace(program, shared_bytes=less)
    kernels = dataclasses.replace(kernel, phases=(dataclasses.replace(kernel.phases[0], programs=(small,)),))
    steps = tuple(kernels if each is kernel else each for each in plan.steps)
    (problem,) = verify.problems(found.module, dataclasses.replace(plan, steps=steps))
    assert "bytes of shared memory and has" in problem


# --- broken on purpose ----------------------------------------------------------------------------------
