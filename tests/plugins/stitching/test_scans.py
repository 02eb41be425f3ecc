"""Loops in one launch: against XLA, which runs their trips one after the other."""

from __future__ import annotations

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
from fusiond_stitching.analysis import policy as policies
from fusiond_stitching.analysis.plan import StitchingPlan
from fusiond_stitching.codegen import emit
from fusiond_stitching.frontend import importer, loop_numbers, scan_users
from fusiond_stitching.frontend.graph import HloModule
from fusiond_stitching.frontend.scan_axes import Axes

from . import oracle
from .cases import Case
from .checking import Batch
from .policies import LIMITS, POLICIES
from .test_codegen_mutants import killed, with_text

RULES = {**POLICIES, "none": policies.unfused(), "xla": policies.xla_rules()}
SLOW = ("none", "stages", "grid", "paper")
_NUMBERS = np.random.default_rng(3)


def floats(*dims: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    return _NUMBERS.uniform(low, high, dims).astype(np.float32)


def advantages(rewards: Any, values: Any, done: Any) -> Any:
    """Generalised advantage estimation, from the last step to the first."""

    def step(carry: Any, x: Any) -> Any:
        advantage, following = carry
        reward, value, done = x
        delta = reward + 0.99 * following * (1 - done) - value
        advantage = delta + 0.99 * 0.95 * (1 - done) * advantage
        return (advantage, value), advantage

    begin = (jnp.zeros_like(values[-1]), values[-1])
    _, found = lax.scan(step, begin, (rewards, values, done), reverse=True)
    return found, found + values


def mamba(x: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
    """A selective state space: [time, batch, channel], and a state of so many numbers for each channel."""

    def step(h: Any, xs: Any) -> Any:
        x, delta, b, c = xs
        h = jnp.exp(delta[..., None] * a) * h + (delta * x)[..., None] * b[:, None, :]
        return h, (h * c[:, None, :]).sum(-1)

    last, y = lax.scan(step, jnp.zeros((*x.shape[1:], a.shape[-1]), x.dtype), (x, delta, b, c))
    return y, last


def rwkv(r: Any, k: Any, v: Any, w: Any, u: Any) -> Any:
    """[time, batch, head, channel]: a matrix for each head, which decays row by row."""

    def step(state: Any, xs: Any) -> Any:
        r, k, v, w = xs
        outer = k[..., :, None] * v[..., None, :]
        y = jnp.einsum("bhk,bhkv->bhv", r, state + u[:, :, None] * outer)
        return jnp.exp(-jnp.exp(w))[..., :, None] * state + outer, y

    heads, channels = u.shape
    return lax.scan(step, jnp.zeros((r.shape[1], heads, channels, channels)), (r, k, v, w))


def delta_rule(q: Any, k: Any, v: Any, beta: Any) -> Any:
    """What the state says of a key is corrected: a reduction of the state goes into the state."""

    def step(state: Any, xs: Any) -> Any:
        q, k, v, beta = xs
        wrong = v - (state * k[:, :, None]).sum(1)
        state = state + beta[:, None, None] * k[:, :, None] * wrong[:, None, :]
        return state, (state * q[:, :, None]).sum(1)

    return lax.scan(step, jnp.zeros((q.shape[1], q.shape[2], v.shape[2])), (q, k, v, beta))


def small_cell(x: Any, w: Any, u: Any, b: Any) -> Any:
    """A recurrent cell so small that a thread holds its state."""

    def step(h: Any, x: Any) -> Any:
        h = jnp.tanh(x @ w + h @ u + b)
        return h, h

    return lax.scan(step, jnp.zeros((x.shape[1], u.shape[0])), x)


def moving(x: Any) -> Any:
    """Exponential means in bfloat16; the result is what the last trip leaves, squared."""
    mean, _ = lax.scan(lambda m, x: (m * 0.9 + x * 0.1, None), jnp.zeros(x.shape[1:], x.dtype), x)
    return mean * mean


def counts(x: Any) -> Any:
    """Whole numbers, truth values, a scalar beside a tensor, and the number of the trip in the result."""

    def step(carry: Any, x: Any) -> Any:
        count, best, seen = carry
        count = count + 1
        better = x > best
        return (count, jnp.where(better, x, best), seen | better), (count * x, jnp.where(better, count, -1))

    begin = (jnp.int32(0), jnp.full(x.shape[1:], -5, x.dtype), jnp.zeros(x.shape[1:], bool))
    return lax.scan(step, begin, x)


def unrolled(x: Any) -> Any:
    """Four steps to a trip."""
    return lax.scan(lambda h, x: (h * 0.5 + x, h), jnp.zeros(x.shape[1:]), x, unroll=4)


def shifted(x: Any) -> Any:
    """Each number meets its neighbours: a thread has to have all of a row."""

    def step(h: Any, x: Any) -> Any:
        h = 0.5 * h + 0.25 * jnp.pad(h, ((0, 0), (1, 0)))[:, :-1] + 0.25 * jnp.roll(h, -1, axis=1) + x
        return h, h.max(-1)

    return lax.scan(step, jnp.zeros(x.shape[1:]), x)


def pushed(x: Any) -> Any:
    """The same with a shift that keeps the size."""
    return lax.scan(lambda h, x: (lax.pad(h, 0.0, ((1, -1, 0),)) * 0.5 + x, h), jnp.zeros(x.shape[1:]), x)


def crossed(x: Any) -> Any:
    """A state that is added to its transpose."""
    return lax.scan(lambda h, x: (0.5 * h + 0.25 * jnp.swapaxes(h, 1, 2) + x, None), jnp.zeros(x.shape[1:]), x)[0]


def power(x: Any) -> Any:
    """No piece of anything for a trip; a constant among the results."""
    return lax.fori_loop(0, 9, lambda at, s: (s[0] * x + at, s[1]), (x, x + 1))


def prefix(x: Any, y: Any) -> Any:
    """What comes before the loop and behind it is fused with what is near."""
    total, sums = lax.scan(lambda s, x: (s + x, s), jnp.zeros(x.shape[1:]), jnp.tanh(x) * 2)
    return jax.nn.softmax(sums + y, axis=-1), total - 1


def twice(x: Any, y: Any) -> Any:
    """One loop after the other, and the second backwards over what the first has laid down."""
    forward = lax.scan(lambda h, x: (h * 0.5 + x, h), jnp.zeros(x.shape[1:]), x)[1]
    return lax.scan(lambda h, x: (h * 0.5 + x, h), y, forward, reverse=True)


def behind(x: Any, gate: Any, skip: Any) -> Any:
    """What comes behind a loop element by element, in another type; one of them a result, one read by a reduction."""
    last, sums = lax.scan(lambda s, x: (s * 0.5 + x, s), jnp.zeros(x.shape[1:]), x)
    gated = sums * jnp.tanh(gate) + x * skip
    return gated.astype(jnp.bfloat16), jnp.abs(gated).sum(-1), last


def maps(x: Any, y: Any) -> Any:
    """Of three results of a backward loop two are no loop's; their readers see them from the first step on."""

    def step(h: Any, xs: Any) -> Any:
        at, x, y = xs
        share = jnp.exp(x) * at
        return h * 0.5 + share * y[:, 0], (h, share, (y.T * 2)[None])

    begin = jnp.zeros(x.shape[1:])
    steps = jnp.arange(x.shape[0], dtype=jnp.float32)
    last, (h, share, turned) = lax.scan(step, begin, (steps, x, y), reverse=True)
    return last + share.sum(0) + share[1], h * 2, turned.sum() * 1.5


def counted(x: Any) -> Any:
    """The number of the trip in a map, and as data beside a state of its own."""
    _, (a, b) = lax.scan(lambda c, x: (c + 2, (c * x, x)), jnp.int32(3), x, reverse=True)
    return a + 1, b.sum(0)


def overlaid(x: Any) -> Any:
    """Pieces that are laid down twice at the same place: no whole of all trips, but a state."""

    def body(at: Any, state: Any) -> Any:
        y, h = state
        return lax.dynamic_update_slice(y, jnp.sin(h)[None], (at // 2, 0)), h * 2

    return lax.fori_loop(0, 9, body, (x, x[0]))[0]


def counters(x: Any) -> Any:
    """One element more of the state at each trip: all threads look whether it is theirs."""
    return lax.scan(lambda h, at: (h.at[at % 5].add(1.0) * 0.5, None), x, jnp.arange(9))[0]


def equal(x: Any) -> Any:
    """Two results that are one, one that is what went in, and a product whose operand is a constant."""
    last, sums = lax.scan(lambda h, x: (h * 0.5 + x, h), jnp.zeros(x.shape[1:]), x)
    return last, sums, sums, x, x @ jnp.full((x.shape[1], 1), 0.5), last[None] @ jnp.ones((x.shape[1], 2))


def searched(a: Any, v: Any) -> Any:
    """Bisection: each thread looks up its own place in what no trip changes."""
    return jnp.searchsorted(a, v)


def picked(x: Any, at: Any) -> Any:
    """States look each other up, by an index that no trip changes and by one that is a state itself."""

    def step(carry: Any, x: Any) -> Any:
        h, at = carry
        return (h[:, at[0]] * 0.5 + x + jnp.take_along_axis(h, at, 1), (at + 1) % 6), h[:, 2:4]

    return lax.scan(step, (x[0], at), x)


def gradient(x: Any, w: Any) -> Any:
    """What jax makes of the gradient of a scan: a second one, over what the first has kept."""

    def loss(w: Any) -> Any:
        return lax.scan(lambda h, x: (jnp.tanh(h * w + x), h), jnp.zeros(x.shape[1:]), x)[0].sum()

    return jax.value_and_grad(loss)(w)


BF16 = jnp.bfloat16
CASES: dict[str, tuple[Any, tuple[np.ndarray, ...]]] = {
    "advantages": (advantages, (floats(11, 37), floats(11, 37), (floats(11, 37) > 0.7).astype(np.float32))),
    "mamba": (mamba, (floats(7, 2, 24), floats(7, 2, 24, low=0), floats(24, 4, low=-1, high=0), floats(7, 2, 4),
                      floats(7, 2, 4))),
    "rwkv": (rwkv, (floats(5, 2, 3, 8), floats(5, 2, 3, 8), floats(5, 2, 3, 8), floats(5, 2, 3, 8), floats(3, 8))),
    "delta rule": (delta_rule, (floats(6, 3, 8), floats(6, 3, 8), floats(6, 3, 10), floats(6, 3))),
    "small cell": (small_cell, (floats(6, 9, 5), floats(5, 8), floats(8, 8), floats(8))),
    "moving": (moving, (np.asarray(floats(12, 50), BF16),)),
    "counts": (counts, (_NUMBERS.integers(-9, 9, (10, 21), dtype=np.int32),)),
    "unrolled": (unrolled, (floats(16, 33),)),
    "unrolled with a rest": (unrolled, (floats(18, 33),)),
    "shifted": (shifted, (floats(5, 40, 6),)),
    "pushed": (pushed, (floats(5, 40),)),
    "crossed": (crossed, (floats(5, 20, 4, 4),)),
    "power": (power, (floats(30),)),
    "prefix": (prefix, (floats(9, 40), floats(9, 40))),
    "twice": (twice, (floats(9, 40), floats(40))),
    "gradient": (gradient, (floats(9, 40), floats(40))),
    "behind": (behind, (floats(9, 40), floats(9, 40), floats(40))),
    "maps": (maps, (floats(9, 6), floats(9, 6, 4))),
    "counted": (counted, (_NUMBERS.integers(-9, 9, (10, 21), dtype=np.int32),)),
    "overlaid": (overlaid, (floats(9, 40),)),
    "counters": (counters, (floats(7),)),
    "equal results": (equal, (floats(9, 40),)),
    "searched": (searched, (np.sort(floats(32)), floats(5, 9))),
    "picked": (picked, (floats(7, 5, 6), _NUMBERS.integers(0, 6, (5, 6), dtype=np.int32))),
    "one trip": (moving, (floats(1, 40),)),
    "scalar": (lambda x: lax.scan(lambda s, x: (jnp.cos(s + x), s), jnp.float32(0), x), (floats(30),)),
}  # fmt: skip


@functools.cache
def batch(name: str) -> Batch:
    function, inputs = CASES[name]
    return Batch.made((Case(name=name, group="scans", function=function, inputs=inputs),), "scans")


@pytest.mark.parametrize("rules", ["xla", "blocks", *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(24)
def test_a_loop_is_one_launch(name: str, rules: str, runner: Any) -> None:
    found = batch(name)
    assert found.module.foreign == {}
    plan = planner.plan(found.module, RULES[rules], LIMITS).plan
    assert verify.problems(found.module, plan) == ()
    scans = sum(program.scan for kernel in plan.kernels for program in kernel.programs)
    assert scans == len(found.module.scans) == {"twice": 2, "gradient": 2, "counted": 0}.get(name, 1)
    found.check(runner, plan)


# --- what leaves a loop, and what joins it --------------------------------------------------------------


def wide(*dims: int) -> Any:
    return jax.ShapeDtypeStruct(dims, np.float32)


def planned(function: Any, *shapes: Any) -> tuple[HloModule, StitchingPlan]:
    module = importer.read(oracle.lowered(function, *shapes), "m.hlo")
    return module, planner.plan(module, RULES["grid"], LIMITS).plan


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


def cell(x: Any, w: Any) -> Any:
    return lax.scan(lambda h, x: (jnp.tanh(h @ w + x), None), jnp.zeros(x.shape[1:]), x)[0]


APART, LENGTH = "its state cannot be divided among threads", "how often it runs is not known beforehand"


@pytest.mark.parametrize(
    ("function", "shapes", "why"),
    [
        (cell, [wide(9, 4, 512), wide(512, 512)], "it would read 1024 KB of matrices in each trip (512 at most)"),
        (cell, [wide(9, 2000, 160), wide(160, 160)], "it multiplies 2000 rows (1024 at most)"),
        (lambda x: lax.scan(lambda h, x: (h / h.sum() + x, None), x[0], x)[0], [wide(9, 5000)],
         "it sums more than 256 numbers of its state"),
        (lambda x: lax.scan(lambda h, x: (jnp.sort(h + x), None), x[0], x)[0], [wide(9, 5000)], "sort"),
        (lambda x, at: lax.scan(lambda h, at: (h.at[at].add(1.0), None), x, at)[0],
         [wide(5000), jax.ShapeDtypeStruct((9, 7), np.int32)], APART),
        (lambda x: lax.while_loop(lambda s: s.sum() < 9, lambda s: s * 2, x), [wide(50)], LENGTH),
        (lambda x: lax.fori_loop(0, 70_000, lambda i, s: jnp.sin(s), x), [wide(50)], LENGTH),
        # A loop in a loop; the inner one is known to the outer one's body.
        (lambda x: lax.fori_loop(0, 9, lambda i, s: lax.fori_loop(0, 20, lambda j, s: jnp.sin(s), s), x), [wide(50)],
         "there is a loop in it"),
        # The rest is what was there before.
        (overlaid, [wide(6000, 50)], "a row of its state needs 46 KB of shared memory (40 at most)"),
    ],
    ids=["a large product", "many rows", "a long sum", "a sort", "a scatter", "the data says", "too long", "nested",
         "twice"],
)  # fmt: skip
def test_what_is_no_thread_s_own_stays_a_boundary(function: Any, shapes: Any, why: str) -> None:
    module, _ = planned(function, *shapes)
    assert {module[each].opcode for each in module.foreign} == {"while"}
    assert all(why in each for each in module.foreign.values())
    assert module.scans == {}
    assert module.frames


def test_a_loop_inside_a_boundary_is_one_launch_of_its_body() -> None:
    function = lambda x: lax.fori_loop(0, 9, lambda i, s: lax.fori_loop(0, 20, lambda j, s: jnp.sin(s), s), x)  # noqa: E731
    module, _ = planned(function, wide(50))
    assert [len(each.scans) for each in module.frames if each.scans] == [1]


# --- plans and code broken on purpose -------------------------------------------------------------------


def test_equal_loops_have_one_text() -> None:
    def layers(x: Any, y: Any) -> Any:
        for _ in range(3):
            x = lax.scan(lambda h, x: (h * 0.5 + x, h), y, x)[1]
            x = x / x.sum()
        return x

    module, plan = planned(layers, wide(9, 40), wide(40))
    program = emit.program(module, plan)
    entries = [step.entry for step in emit.launches(program)]  # type: ignore[arg-type]
    assert len(module.scans) == 3
    assert len(entries) - len(set(entries)) >= 2
    assert len({module[names[0]].attributes["loop"].key for names in module.scans.values()}) == 1


def test_where_a_loop_is_written_is_no_part_of_what_it_is() -> None:
    def sums(x: Any, h: Any) -> Any:
        return lax.scan(lambda h, x: (h * 0.5 + x.sum(), h), h, x)[1]

    text = oracle.lowered(sums, wide(9, 4), np.float32(0))
    one, other = importer.read(text, "one.hlo"), importer.read(text.replace("\n\n", "\n\n\n"), "folder/other.hlo")
    assert one.scans
    assert importer.digest(one) == importer.digest(other)


def broken(change: str) -> tuple[HloModule, StitchingPlan]:
    module, plan = planned(advantages, *[wide(9, 64)] * 3)
    (kernel,) = plan.kernels
    (program,) = kernel.programs
    (stage,) = program.stages
    if change == "twice":
        return module, dataclasses.replace(plan, steps=(kernel, kernel))
    if change == "half of it":
        program = dataclasses.replace(program, blocks=1)
        kernel = dataclasses.replace(kernel, grid=1)
    elif change == "one result":
        stage = dataclasses.replace(stage, results=stage.results[:1])
    elif change == "elsewhere":
        results = tuple(dataclasses.replace(each, homes=stage.results[0].homes) for each in stage.results)
        stage = dataclasses.replace(stage, results=results)
    elif change == "other axes":
        stage = dataclasses.replace(stage, dims=(9, 64))
    elif change == "no loop":
        program = dataclasses.replace(program, scan=False)
    program = dataclasses.replace(program, stages=(stage,))
    phase = dataclasses.replace(kernel.phases[0], programs=(program,))
    return module, dataclasses.replace(plan, steps=(dataclasses.replace(kernel, phases=(phase,)),))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("twice", "a second time"),
        ("half of it", "are not written"),
        ("one result", "not the results of a loop"),
        ("elsewhere", "another home"),
        ("other axes", "not over the loop's axes"),
        ("no loop", "a launch of its own"),
    ],
)
def test_a_broken_plan_is_told(change: str, problem: str) -> None:
    module, plan = broken(change)
    found = verify.problems(module, plan)
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
    ("a neighbour's place", "mamba", r"out_0\[48 \* (\w+) ", r"out_0[48 * \1 + 1 "),
]


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize(("what", "name", "pattern", "instead"), MUTANTS, ids=[each[0] for each in MUTANTS])
def test_a_mutant_of_the_code_dies(what: str, name: str, pattern: str, instead: str, runner: Any) -> None:
    found = batch(name)
    program = found.program(planner.plan(found.module, RULES["blocks"], LIMITS).plan)
    assert killed(runner, found, program) == ""
    assert killed(runner, found, with_text(program, lambda text: re.sub(pattern, instead, text, count=1))), what


def wrong(name: str, rules: str, runner: Any) -> str:
    """How what was read with a broken front end differs from XLA; empty where it does not."""
    batch.cache_clear()
    try:
        found = batch(name)
        if found.module.foreign:
            return "a boundary"
        program = found.program(planner.plan(found.module, RULES[rules], LIMITS).plan)
        return killed(runner, found, program)
    finally:
        batch.cache_clear()


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("what", ["crosswise", "inside", "shifted", "wrapped", "order"])
def test_a_mutant_of_the_front_end_dies(what: str, runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if what == "crosswise":  # elements that meet crosswise are taken for a thread's own
        classes: Callable[..., Any] = Axes._classes

        def once(self: Axes, name: str) -> list[Any]:
            found = classes(self, name)
            return [each if each not in found[:at] else None for at, each in enumerate(found)]

        monkeypatch.setattr(Axes, "_classes", once)
        assert wrong("crossed", "blocks", runner)
    elif what == "inside":  # what is reduced is taken for an axis
        monkeypatch.setattr(Axes, "_inside", lambda self, name, dimensions: None)
        assert wrong("delta rule", "blocks", runner)
    elif what == "shifted":  # a pad that keeps the size is taken for one that keeps the place
        moved: Callable[..., None] = Axes._moved
        monkeypatch.setattr(
            Axes,
            "_moved",
            lambda self, each, operands, varies: (
                self._same(operands[0].name, each.name) if each.opcode == "pad" else moved(self, each, operands, varies)
            ),
        )
        assert wrong("pushed", "blocks", runner)
    elif what == "wrapped":  # a condition that is true once too often
        run = loop_numbers.run
        monkeypatch.setattr(
            loop_numbers,
            "run",
            lambda *given: (
                (found := run(*given)) and (found[0] - 1, {name: values[:-1] for name, values in found[1].items()})
            ),
        )
        assert wrong("power", "blocks", runner)
    else:  # what joins is taken from the first of a loop's results
        monkeypatch.setattr(scan_users._Users, "_stored", lambda self, own, joined: list(joined)[:1])
        with pytest.raises((KeyError, AssertionError)):
            assert not wrong("behind", "blocks", runner)


# --- bodies that nobody here has thought of --------------------------------------------------------------


def drawn(seed: int) -> tuple[Any, tuple[np.ndarray, ...]]:
    """A scan of a random body over a state of two dimensions and a scalar, and what comes behind it."""
    choose = np.random.default_rng(seed)
    steps, rows, columns = int(choose.integers(1, 9)), int(choose.integers(1, 6)), int(choose.integers(1, 9))
    moves = [
        lambda h: jnp.roll(h, 1, axis=1), lambda h: jnp.flip(h, 0), lambda h: h - h.mean(1, keepdims=True),
        lambda h: jnp.broadcast_to(h.max(0), h.shape), lambda h: lax.pad(h, 0.0, ((0, 0, 0), (-1, 1, 0))),
        lambda h: h.reshape(-1)[::-1].reshape(h.shape), lambda h: jnp.concatenate([h[1:], h[:1]], 0),
        lambda h: (h.reshape(1, *h.shape) * 0.5)[0], lambda h: h.T.reshape(h.shape), lambda h: jnp.cumsum(h, 1) * 0.3,
        lambda h: h @ jnp.full((h.shape[1], h.shape[1]), 0.1), lambda h: h.at[:, 0].set(0.5),
    ]  # fmt: skip
    plain = [jnp.sin, jnp.tanh, lambda h: h * 0.5, lambda h: jnp.abs(h) - 0.1, lambda h: jnp.where(h > 0, h, -0.5 * h)]
    picked = [plain[choose.integers(len(plain))] for _ in range(3)]
    if choose.random() < 0.6:
        picked.insert(int(choose.integers(4)), moves[choose.integers(len(moves))])
    kept = [bool(each) for each in choose.integers(0, 2, 4)]
    options = {"reverse": bool(choose.integers(2)), "unroll": int(choose.integers(1, 4))}

    def function(x: Any, w: Any) -> Any:
        def step(state: Any, xs: Any) -> Any:
            h, count, total = state
            given = jnp.exp(xs) * w
            new = h
            for each in picked:
                new = each(new)
            new = new * 0.7 + given * count
            total = total * 0.5 + (new[0, 0] if kept[3] else count)
            laid = [each for each, keep in zip((h, new, given, total), kept, strict=True) if keep]
            return (new, count + 0.25, total), tuple(laid)

        (h, _, total), laid = lax.scan(step, (x[0] * 0.1, jnp.float32(1), jnp.float32(0)), x, **options)
        behind = [jnp.tanh(each) + 1 if at % 2 else each.sum(0) for at, each in enumerate(laid)]
        return h, total, *behind

    shape = (steps, rows, columns)
    return function, (
        choose.uniform(-1, 1, shape).astype(np.float32),
        choose.uniform(-1, 1, columns).astype(np.float32),
    )


@pytest.mark.slow
@pytest.mark.sampled(16)
@pytest.mark.parametrize("seed", range(150))
def test_a_random_loop(seed: int, runner: Any) -> None:
    """As XLA has it, whether it is one launch, maps alone, or written out."""
    function, inputs = drawn(seed)
    found = Batch.made((Case(name=str(seed), group="scans", function=function, inputs=inputs),), "scans")
    if found.module.foreign:
        assert {found.module[each].opcode for each in found.module.foreign} == {"while"}
        return
    plan = planner.plan(found.module, RULES[("blocks", "xla", "grid")[seed % 3]], LIMITS).plan
    assert verify.problems(found.module, plan) == ()
    found.check(runner, plan)
