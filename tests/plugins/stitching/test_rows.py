"""Rows held in registers: against XLA on the processor, and by what is read and written."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond_stitching.analysis import fusion, planner, row_groups, split_reductions, traffic, verify
from fusiond_stitching.analysis.plan import Phase, Registers, RowPlace, StitchingPlan
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.frontend import importer
from fusiond_stitching.frontend.graph import HloModule

from .cases import Case
from .checking import Batch
from .policies import LIMITS, MORE
from .test_codegen_mutants import killed, with_text

ROWS = FusionPolicy(**MORE, packing=True, registers=True, shared_limit=48 << 10, lift=True, multiprocessors=4)


def softmax(x: Any) -> Any:
    return jax.nn.softmax(x, -1)


def layernorm(x: Any, scale: Any, shift: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + shift


def rmsnorm(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    normal = wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
    return (normal.astype(x.dtype) * scale).astype(x.dtype)


def layernorm_backward(x: Any, scale: Any, given: Any) -> Any:
    return jax.vjp(layernorm, x, scale, scale)[1](given)


def attention(x: Any, bias: Any) -> Any:
    return jax.nn.softmax(x * 0.125 + bias, -1)


def smoothed(x: Any) -> Any:
    logs = jax.nn.log_softmax(x.astype(jnp.float32), -1)
    return logs.mean(-1), (logs * 0.5).astype(x.dtype)


def cross_entropy(x: Any, labels: Any) -> Any:
    def loss(x: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(x, -1), labels[:, None], -1).mean()

    return jax.grad(loss)(x)


def extremes(x: Any) -> Any:
    return jnp.argmax(x, -1), jax.nn.logsumexp(x, -1), x.min(-1)


def adam(parameter: Any, gradient: Any, first: Any, second: Any) -> Any:
    first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient * gradient
    return parameter - 1e-3 * first / (jnp.sqrt(second) + 1e-8), first, second


def group_norm(groups: int) -> Callable[..., Any]:
    def function(x: Any, scale: Any, shift: Any) -> Any:
        parted = x.reshape(*x.shape[:-1], groups, -1)
        axes = (*range(1, x.ndim - 1), x.ndim)
        mean = parted.mean(axes, keepdims=True)
        variance = (parted * parted).mean(axes, keepdims=True) - mean * mean
        normal = (parted - mean) * jax.lax.rsqrt(variance + 1e-5)
        return normal.reshape(x.shape) * scale + shift

    return function


def group_norm_of_flax(x: Any, scale: Any, shift: Any) -> Any:
    """The statistics are repeated for each channel, and scaled there."""
    parted = x.reshape(*x.shape[:-1], 4, -1)
    mean, square = parted.mean((1, 2, 4)), (parted * parted).mean((1, 2, 4))
    size = x.shape[-1] // 4
    mean, variance = (jnp.repeat(each, size, -1)[:, None, None] for each in (mean, square - mean * mean))
    return (x - mean) * (jax.lax.rsqrt(variance + 1e-5) * scale) + shift


def group_norm_backward(x: Any, scale: Any, given: Any) -> Any:
    return jax.vjp(lambda x: group_norm(4)(x, scale, scale), x)[1](given)[0]


def group_norm_gradients(norm: Callable[..., Any]) -> Callable[..., Any]:
    def function(x: Any, scale: Any, given: Any) -> Any:
        return jax.vjp(norm, x, scale, scale)[1](given)

    return function


def by_channel(x: Any, scale: Any) -> Any:
    """What one channel of a group comes to is used by its rows, by all of the group, and given out."""
    parted = x.reshape(*x.shape[:-1], 4, -1)
    centred = parted - parted.mean((1, 3), keepdims=True)
    most = jax.lax.reduce(centred, np.float32(2.0), jax.lax.max, (1,))
    total = (most * scale.reshape(4, -1)).sum(-1)
    return parted * most[:, None] + total[:, None, :, None], total, most * 2.0


def behind_a_convolution(x: Any, scale: Any, given: Any, weight: Any) -> Any:
    """The statistics come from another launch: only sums of channels, and of groups of them, say how rows lie."""
    y = group_norm_of_flax(x, scale, scale)
    given = (y @ weight) * given
    parted = x.reshape(*x.shape[:-1], 4, -1)
    mean = parted.mean((1, 2, 4))
    sums = ((x - jnp.repeat(mean, x.shape[-1] // 4, -1)[:, None, None]) * given).sum((1, 2))
    total = (sums * scale).reshape(x.shape[0], 4, -1).sum(-1)
    return given - jnp.repeat(total, x.shape[-1] // 4, -1)[:, None, None] * x, sums, given.sum((0, 1, 2))


def instance_norm(x: Any, scale: Any) -> Any:
    mean = x.mean((1, 2), keepdims=True)
    return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean((1, 2), keepdims=True) + 1e-5) * scale


def router(x: Any) -> Any:
    """The two best experts of each row, their shares, and how often each expert is asked."""
    shares = jax.nn.softmax(x, -1)
    best, at = jax.lax.top_k(shares, 2)
    best = best / best.sum(-1, keepdims=True)
    asked = jax.nn.one_hot(at, x.shape[-1]).sum(1).mean(0)
    return best, at, (asked * shares.mean(0)).sum()


def integers(x: Any) -> Any:
    return x - x.max(-1, keepdims=True), x.sum(-1)


def normal(*dims: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(len(dims) + dims[0]).normal(size=dims).astype(dtype)


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "softmax": (softmax, (normal(48, 96),)),
    "odd rows": (softmax, (normal(5, 7),)),
    "rows no power": (softmax, (normal(3, 264),)),
    "a long row": (softmax, (normal(2, 4096),)),
    "halves": (softmax, (normal(6, 40).astype(np.float16),)),
    "streamed": (softmax, (normal(9, 32768),)),
    "smoothed, streamed": (smoothed, (normal(9, 32768).astype(np.float16),)),
    "cross-entropy": (cross_entropy, (normal(9, 33000), np.arange(9, dtype=np.int32) * 700)),
    "layernorm": (layernorm, (normal(9, 768), normal(768), normal(768))),
    "rmsnorm": (rmsnorm, (normal(16, 512, dtype=ml_dtypes.bfloat16), normal(512, dtype=ml_dtypes.bfloat16))),
    "layernorm backward": (layernorm_backward, (normal(1024, 96), normal(96), normal(1024, 96))),
    "wide, backward": (layernorm_backward, (normal(256, 512), normal(512), normal(256, 512))),
    "both ways": (lambda x: (x.sum(-1), (x * x).sum(0)), (normal(256, 512),)),
    "attention": (attention, (normal(2, 3, 8, 72), normal(2, 1, 1, 72))),
    "extremes": (extremes, (normal(33, 100),)),
    "adam": (adam, tuple(abs(normal(31, 33)) for _ in range(4))),
    "groups": (group_norm(4), (normal(3, 5, 4, 32), normal(32), normal(32))),
    "groups, repeated": (group_norm_of_flax, (normal(3, 5, 4, 32), normal(32), normal(32))),
    "groups of halves": (
        group_norm(2), tuple(normal(*dims, dtype=np.float16) for dims in ((2, 6, 6, 48), (48,), (48,))),
    ),
    "groups, one image": (group_norm(3), (normal(1, 40, 72), normal(72), normal(72))),
    "groups, streamed": (group_norm(4), (normal(4, 600, 64), normal(64), normal(64))),
    "groups, backward": (group_norm_backward, (normal(3, 5, 4, 32), normal(32), normal(3, 5, 4, 32))),
    "groups, gradients": (group_norm_gradients(group_norm(4)),
                          (normal(9, 32, 8, 32), normal(32), normal(9, 32, 8, 32))),
    "groups, gradients by flax": (group_norm_gradients(group_norm_of_flax),
                                  (normal(32, 16, 4, 32), normal(32), normal(32, 16, 4, 32))),
    "groups, gradients of halves": (
        group_norm_gradients(group_norm(2)),
        tuple(normal(*dims, dtype=np.float16) for dims in ((2, 12, 6, 64), (64,), (2, 12, 6, 64))),
    ),
    "groups, gradients streamed": (group_norm_gradients(group_norm(4)),
                                   (normal(2, 600, 64), normal(64), normal(2, 600, 64))),
    "groups behind a product": (
        behind_a_convolution, (normal(6, 24, 16, 32), normal(32), normal(6, 24, 16, 32), normal(32, 32)),
    ),
    "channels": (instance_norm, (normal(3, 9, 8, 24), normal(24))),
    "channels of halves": (instance_norm, (normal(4, 30, 10, 32).astype(np.float16), normal(32).astype(np.float16))),
    "channels, streamed": (instance_norm, (normal(12, 30, 20, 24), normal(24))),
    "groups by channel": (by_channel, (normal(3, 40, 64), normal(64))),
    "router": (router, (normal(1024, 64),)),
    "integers": (integers, (np.arange(35 * 12, dtype=np.int32).reshape(35, 12) % 17,)),
    "columns": (lambda x: (x.sum(0), (x * x).max(0)), (normal(4096, 24),)),
}  # fmt: skip


def planned(name: str, threads: int, per_thread: int, *, row_shared: int = 0) -> tuple[Batch, planner.PlannedModule]:
    batch = Batch.one("rows", name, *CASES[name])
    module = split_reductions.reductions(batch.module, LIMITS.multiprocessors)
    batch = dataclasses.replace(batch, module=module)
    policy = dataclasses.replace(ROWS, threads=threads, per_thread=per_thread, row_shared=row_shared)
    return batch, planner.plan(batch.module, policy, LIMITS)


@pytest.mark.slow
@pytest.mark.sampled(10)
@pytest.mark.parametrize(("threads", "per_thread"), [(64, 4), (256, 16)])
@pytest.mark.parametrize("name", CASES)
def test_they_are_what_xla_computes(name: str, threads: int, per_thread: int, runner: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(row_groups, "LARGE_BYTES", 0)  # sums over rows are cut at small sizes too
    batch, found = planned(name, threads, per_thread)
    assert found.problems == ()
    assert verify.problems(batch.module, found.plan) == ()
    assert any(each.rows for kernel in found.plan.kernels for each in kernel.programs)
    for seed in (0, 1):
        batch.check(runner, found.plan, seed=seed)


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("shared_kb", [24, 64, 227])
@pytest.mark.parametrize("name", ["streamed", "cross-entropy", "smoothed, streamed"])
def test_long_rows_are_held_in_shared_memory_as_far_as_they_go(name: str, shared_kb: int, runner: Any) -> None:
    batch, found = planned(name, 64, 16, row_shared=shared_kb << 10)
    assert verify.problems(batch.module, found.plan) == ()
    programs = [each for kernel in found.plan.kernels for each in kernel.programs]
    (held,) = [each.rows for each in programs if each.rows and each.rows.streamed and each.rows.held]
    assert 0 < held.shared_steps <= held.steps
    assert held.shared_steps < held.steps or shared_kb == 227
    assert {kernel.threads for kernel in found.plan.kernels if kernel.shared_bytes > 8192} == {1024}
    for seed in (0, 1):
        batch.check(runner, found.plan, seed=seed)


def changed(found: planner.PlannedModule, stage: int | None = None, **changes: Any) -> StitchingPlan:
    """The plan of one kernel with its rows, or one of its stages, said otherwise."""
    (kernel,) = found.plan.kernels
    (program,) = kernel.programs
    assert program.rows is not None
    if stage is None:
        program = dataclasses.replace(program, rows=dataclasses.replace(program.rows, **changes))
    else:
        stages = list(program.stages)
        stages[stage] = dataclasses.replace(stages[stage], **changes)
        program = dataclasses.replace(program, stages=tuple(stages))
    return StitchingPlan(steps=(dataclasses.replace(kernel, phases=(Phase(programs=(program,)),)),))


@pytest.mark.parametrize(
    ("name", "per_thread", "changes", "said"),
    [
        ("softmax", 8, {"lanes": 3}, "cannot be groups of 3 lanes"),
        ("softmax", 8, {"steps": 1, "lanes": 8}, "do not cover 96 columns"),
        ("softmax", 8, {"pack": 64}, "do not make up rows"),
        ("softmax", 8, {"rows_per_block": 1}, "do not cover 48 rows"),
        ("softmax", 8, {"slabs": 2}, "share the columns of a row"),
        ("softmax", 8, {"columns": 192}, "is not as large as its place"),
        ("softmax", 8, {"lanes": 32}, "nothing to begin a reduction with"),
        ("groups by channel", 16, {"between": 1, "run": 0}, "do not have the same 0 columns of all runs of a row"),
        ("groups by channel", 16, {"lanes": 2, "steps": 80}, "do not have the same 16 columns of all runs of a row"),
        ("groups by channel", 16, {"rows_per_block": 3}, "bytes of shared memory"),
        ("groups by channel", 16, {"run": 8}, "is not as large as its place"),
        ("groups", 16, {"run": 3}, "do not make up rows"),
        ("groups", 16, {"between": 5}, "do not lie 5 by 8 in each other"),
        ("groups", 16, {"slabs": 2}, "do not lie 4 by 8 in each other"),
    ],
)
def test_rows_that_are_said_wrongly_are_refused(name: str, per_thread: int, changes: dict[str, int], said: str) -> None:
    batch, found = planned(name, 64, per_thread)
    problems = verify.problems(batch.module, changed(found, **changes))
    assert any(said in each for each in problems), problems


def test_a_few_numbers_of_a_row_are_stored_by_it() -> None:
    """Side by side, from what the row was reduced to; said of another place, or of another sweep, it is refused."""

    def best(x: Any) -> Any:
        return jax.lax.top_k(x, 3)

    batch = Batch.made((Case("best", "rows", best, (normal(48, 96),)),), "rows")
    policy = dataclasses.replace(ROWS, threads=64, per_thread=8)
    found = planner.plan(batch.module, policy, LIMITS)
    assert verify.problems(batch.module, found.plan) == ()
    ((program,),) = (each.programs for each in found.plan.kernels)
    (few,) = [at for at, stage in enumerate(program.stages) if stage.place is RowPlace.FEW]
    assert {batch.module[each.instruction].dims for each in program.stages[few].results} == {(48, 3)}
    for wrong, said in (({"place": RowPlace.ROW}, "as large as its place"), ({"sweep": 0}, "before it is reduced")):
        problems = verify.problems(batch.module, changed(found, few, **wrong))
        assert any(said in each for each in problems), problems


def test_what_is_read_before_it_is_there_is_refused() -> None:
    batch, found = planned("softmax", 64, 8)
    (program,) = found.plan.kernels[0].programs
    sums = next(at for at, stage in enumerate(program.stages) if stage.reduction is not None and stage.sweep == 1)
    assert any("before it is reduced" in each for each in verify.problems(batch.module, changed(found, sums, sweep=2)))
    kept = next(at for at, stage in enumerate(program.stages) if Registers() in stage.results[0].homes and at < sums)
    if program.stages[kept].place is RowPlace.WIDE:
        late = changed(found, kept, sweep=2)
        assert any("too early" in each for each in verify.problems(batch.module, late))


def test_small_values_that_others_read_too_are_no_hindrance(runner: Any) -> None:
    """The repeated statistics are used again behind a library call: rows are in registers nevertheless."""

    def function(x: Any, scale: Any, shift: Any, weight: Any) -> Any:
        size = x.shape[-1] // 4
        parted = x.reshape(*x.shape[:-1], 4, -1)
        mean, square = parted.mean((1, 3)), (parted * parted).mean((1, 3))
        mean, variance = (jnp.repeat(each, size, -1)[:, None] for each in (mean, square - mean * mean))
        factor = jax.lax.rsqrt(variance + 1e-5) * scale
        normal = (x - mean) * factor + shift
        return normal, (normal @ weight) * factor - mean

    inputs = (normal(3, 160, 32), normal(32), normal(32), normal(32, 32))
    batch = Batch.made((Case("small", "rows", function, inputs),), "rows")
    plan = planner.plan(batch.module, ROWS, LIMITS).plan
    assert verify.problems(batch.module, plan) == ()
    batch.check(runner, plan)
    found = [each.rows for kernel in plan.kernels for each in kernel.programs]
    assert any(rows is not None and rows.between > 1 for rows in found)


@pytest.mark.parametrize("name", ["groups", "groups, repeated", "groups of halves", "groups, one image"])
def test_groups_of_channels_are_read_once(name: str) -> None:
    batch, found = planned(name, 64, 16)
    ((rows,),) = [[each.rows for each in kernel.programs] for kernel in found.plan.kernels]
    assert rows is not None
    assert rows.between > 1
    assert traffic.moved(batch.module, found.plan) == traffic.ideal_bytes(batch.module)


PIECES = (
    "channels", "channels of halves", "channels, streamed", "groups behind a product", "groups, gradients",
    "groups, gradients by flax", "groups, gradients streamed", "groups by channel",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("threads", "per_thread"), [(64, 4), (64, 16), (256, 16)])
@pytest.mark.parametrize("name", PIECES)
@pytest.mark.sampled(10)
def test_channels_of_a_group_have_sums_of_their_own(
    name: str, threads: int, per_thread: int, runner: Any, monkeypatch: Any
) -> None:
    """A group norm's gradients: what is summed over all images is summed for each, where its group is read."""
    monkeypatch.setattr(row_groups, "LARGE_BYTES", 0)
    batch, found = planned(name, threads, per_thread)
    programs = [each for kernel in found.plan.kernels for each in kernel.programs]
    (one,) = [each for each in programs if any(stage.place is RowPlace.PIECE for stage in each.stages)]
    assert one.rows is not None
    assert one.rows.between == {"channels": 3, "channels of halves": 2, "channels, streamed": 3}.get(name, 4)
    others = {result.instruction for each in programs if each is not one for result in each.results}
    read = fusion.read(batch.module, others, {*batch.module.parameters, *(each.instruction for each in one.results)})
    wide = {each for each in read if batch.module[each].elements == one.rows.count * one.rows.columns}
    assert len(wide) == (name == "groups behind a product")  # whose statistics are another launch's
    for seed in (0, 1):
        batch.check(runner, found.plan, seed=seed)


def test_a_number_that_is_not_yet_reduced_is_refused() -> None:
    batch, found = planned("groups by channel", 64, 16)
    (program,) = found.plan.kernels[0].programs
    for at, stage in enumerate(program.stages):
        if stage.reduction is not None:
            late = verify.problems(batch.module, changed(found, at, sweep=stage.sweep + 1))
            assert any("before it is reduced" in each for each in late), (stage, late)
    pieces = next(at for at, stage in enumerate(program.stages) if stage.place is RowPlace.PIECE)
    assert verify.problems(batch.module, changed(found, pieces, place=RowPlace.ROW))


# --- how blocks and lanes share rows, of whatever sizes -------------------------------------------------


NORMED = FusionPolicy(**MORE, packing=True, registers=True, shared_limit=48 << 10, multiprocessors=4)


def normed_groups(images: int, pixels: int, groups: int, channels: int) -> HloModule:
    """x less the mean of its group of channels, by the sums of single channels."""
    lie = f"{images},{pixels},{groups},{channels}"
    return importer.read(f"""HloModule m

add {{ a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}}

ENTRY main {{
  x = f32[{lie}] parameter(0)
  zero = f32[] constant(0)
  piece = f32[{images},{groups},{channels}] reduce(x, zero), dimensions={{1}}, to_apply=add
  sum = f32[{images},{groups}] reduce(piece, zero), dimensions={{2}}, to_apply=add
  wide = f32[{lie}] broadcast(sum), dimensions={{0,2}}
  y = f32[{lie}] subtract(x, wide)
  ROOT both = (f32[{lie}], f32[{images},{groups},{channels}]) tuple(y, piece)
}}
""", "m.hlo")  # fmt: skip


@given(
    sizes=st.tuples(
        st.integers(2, 5), st.integers(2, 40), st.integers(2, 6), st.sampled_from([4, 8, 12, 16, 20, 32, 48, 64, 96])
    ),
    threads=st.sampled_from([32, 64, 128, 256]),
    per_thread=st.sampled_from([1, 4, 16]),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_every_row_and_column_has_a_thread_and_all_parts_meet(sizes, threads, per_thread):
    module = normed_groups(*sizes)
    policy = dataclasses.replace(NORMED, threads=threads, per_thread=per_thread)
    plan = planner.plan(module, policy, LIMITS).plan
    assert verify.problems(module, plan) == ()


@pytest.mark.parametrize("sizes", [(4, 16, 4, 16), (2, 40, 2, 8)])
def test_the_sums_of_a_group_end_one_sweep_and_the_result_is_another(sizes):
    module = normed_groups(*sizes)
    (kernel,) = planner.plan(module, dataclasses.replace(NORMED, threads=64), LIMITS).plan.kernels
    (program,) = kernel.programs
    assert any(each.place is RowPlace.PIECE for each in program.stages)
    assert {each.sweep for each in program.stages} == {0, 1}


# --- broken on purpose ----------------------------------------------------------------------------------


# (what is broken, case, threads, columns of a thread, pattern, what takes its place)
MUTANTS = [
    ("a barrier before the warps' parts are read", "a long row", 256, 4, r"__syncthreads\(\);", ""),
    ("a part of a warp", "layernorm", 256, 4, r"(warp_\d+ = )1", r"\g<1>2"),
    ("the parity of rounds", "both ways", 64, 4, r"parts_of_(\d+) \+ 2 \* at_\d+", r"parts_of_\1"),
    ("the last exchange of lanes", "softmax", 64, 8, r"step_0 = (\d+); step_0 > 0", r"step_0 = \1; step_0 > 1"),
    ("the exchange of lanes", "softmax", 64, 8, r"__shfl_xor_sync\((\w+), total_0, step_0",
     r"__shfl_xor_sync(\1, total_0, 0"),
    ("the guard of rows that are not there", "odd rows", 64, 4, r"if \(inside_0\) ", ""),
    ("the row of a thread", "softmax", 64, 8, r"threadIdx\.x / (\d+)", "0"),
    ("a kept column", "softmax", 64, 8, r"(kept_exponential_0\[)(\w+ \* \w+)? ?\+? ?j_\d+\] = ", r"\g<1>0] = "),
    ("the guard of columns", "rows no power", 64, 4, r"if \(vector_0 < \d+\) \{", "{"),
    ("the init value", "integers", 64, 4, r"(total_\d+) = 0;", r"\1 = 5;"),
    ("sums begin with what changes nothing", "columns", 64, 4, r"sums_0\[i_0\] = -0\.0f", "sums_0[i_0] = 1.0f"),
    ("groups of lanes meet", "columns", 64, 4, r"half_0 = (\d+); half_0 > 0", r"half_0 = \1; half_0 > 1"),
    ("a barrier between groups that meet", "columns", 64, 4, r"__syncthreads\(\);", ""),
    ("only the first group stores its sums", "columns", 64, 4, r"if \(own_1 == 0\)", "if (own_1 == 1)"),
    ("a warp's pieces meet", "groups by channel", 64, 4, r"(step_\d+) >= (\d+); \1 /= 2", r"\1 > \2; \1 /= 2"),
    ("the pieces of all warps", "groups by channel", 256, 4, r"warp_(\d+) = 1; warp_\1 < (\d+)",
     r"warp_\1 = 2; warp_\1 < \2"),
    ("all pieces of a run", "groups by channel", 64, 4, r"j_(\d+) = 0; j_\1 < 16; j_\1 \+= 1\)",
     r"j_\1 = 1; j_\1 < 16; j_\1 += 1)"),
    ("the second of a row's few", "router", 64, 16, r"(out_1\[)2 \* row_0 \+ 1", r"\g<1>2 * row_0"),
    ("the pieces' init value", "groups by channel", 64, 4, r"reduce_(\d+) = 2\.0f", r"reduce_\1 = -1.0f"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    ("what", "name", "threads", "per_thread", "pattern", "instead"), MUTANTS, ids=[each[0] for each in MUTANTS]
)
def test_a_mutant_dies(
    what: str, name: str, threads: int, per_thread: int, pattern: str, instead: str, runner: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from fusiond_stitching.analysis import row_groups

    monkeypatch.setattr(row_groups, "LARGE_BYTES", 0)
    batch, found = planned(name, threads, per_thread)
    program = batch.program(found.plan)
    assert killed(runner, batch, program) == ""
    mutant = with_text(program, lambda text: re.sub(pattern, instead, text, count=1))
    assert killed(runner, batch, mutant), what
