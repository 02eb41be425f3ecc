"""reduce-window: what lies in a window, running sums in runs, what stays a boundary; against XLA on the processor."""

import functools
from collections.abc import Callable
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from jax import lax

from fusiond.model.errors import RequestError
from fusiond_stitching.analysis import planner, verify
from fusiond_stitching.analysis.policy import unfused
from fusiond_stitching.frontend import constant_numbers, importer, printer

from . import handmade, oracle
from .cases import INF, Case, rand, special
from .checking import Batch
from .policies import LIMITS, POLICIES


def most(x, sizes, strides, padding, **more):
    return lax.reduce_window(x, -np.inf, lax.max, sizes, strides, padding, **more)


def sums(x, sizes, strides, padding, **more):
    return lax.reduce_window(x, x.dtype.type(0), lax.add, sizes, strides, padding, **more)


def running(x, whole):
    return (
        jnp.cumsum(x, 1), jnp.cumprod(1 + x / 100, 1), lax.cummax(x, axis=1, reverse=True), jnp.cumsum(whole, 1),
        lax.cummin(whole, axis=1), jax.grad(lambda y: (jnp.cumsum(jnp.tanh(y), 1) ** 2).mean())(x),
    )  # fmt: skip


def filtered(x, filters, strides, padding, layout, groups=1, **more):
    return lax.conv_general_dilated(
        x, filters, strides, padding, dimension_numbers=layout, feature_group_count=groups,
        precision=lax.Precision.HIGHEST, **more
    )  # fmt: skip


def detected(image):
    """Harris' corners: stencils of stencils, with zeros outside of each."""

    def stencil(x, taps):
        return filtered(x[None, None], jnp.array(taps, x.dtype)[None, None], (1, 1), "SAME", PLANES)[0, 0]

    across = [[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]]
    dx, dy = stencil(image, across), stencil(image, np.transpose(across))
    xx, yy, xy = (stencil(each, np.outer([1, 2, 1], [1, 2, 1]) / 16) for each in (dx * dx, dy * dy, dx * dy))
    return xx * yy - xy * xy - 0.04 * (xx + yy) ** 2


PLANES, PIXELS, VOLUMES = ("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC"), ("NCDHW", "OIDHW", "NDHWC")
CONVOLUTIONS = tuple(Case(name, "convolutions", function, inputs) for name, function, *inputs in (
    ("stencils", detected, rand(17, 23)),
    ("depthwise", lambda x, w: filtered(x, w, (1, 2), ((2, 0), (-1, 3)), PIXELS, 3, rhs_dilation=(2, 1)),
     rand(2, 11, 13, 3), rand(3, 5, 1, 6)),
    ("several", lambda x, w: filtered(x, w, (1, 1), "VALID", PLANES, 2), rand(2, 4, 7, 9), rand(2, 2, 3, 2)),
    ("one pixel", lambda x, w: filtered(x, w, (2, 1), "SAME", PLANES), rand(1, 3, 5, 7), rand(1, 3, 1, 1)),
    ("volume", lambda x, w: filtered(x, w, (2, 1, 1), "SAME", VOLUMES), rand(1, 1, 5, 6, 7), rand(2, 1, 3, 2, 3)),
    ("signal", lambda x, w: filtered(x, w, (1,), "SAME", ("NWC", "WIO", "NWC"), 2), rand(3, 40, 2), rand(15, 1, 2)),
    ("half", lambda x, w: filtered(x, w, (1, 1), "SAME", PLANES),
     rand(2, 1, 9, 7).astype(jnp.bfloat16), rand(1, 1, 3, 3).astype(jnp.bfloat16)),
    ("half sums", lambda x, w: filtered(x, w, (1, 1), "SAME", PLANES, preferred_element_type=np.float32),
     rand(1, 1, 9, 7).astype(np.float16), rand(1, 1, 5, 3).astype(np.float16)),
    ("slopes", lambda x, w: jax.grad(lambda x: (filtered(x, w, (2, 1), "SAME", PLANES, 3) ** 2).sum())(x),
     rand(2, 3, 9, 8), rand(3, 1, 3, 4)),
    ("backwards", lambda x, w: lax.conv_transpose(
        x, w, (2, 2), "SAME", dimension_numbers=PIXELS, transpose_kernel=True), rand(1, 5, 6, 2), rand(3, 3, 1, 2)),
))  # fmt: skip
CASES = (
    Case("pooled", "windows", lambda x: (most(x, (1, 3, 3), (1, 2, 2), "SAME"), sums(x, (1, 2, 2), (1, 2, 2), "VALID")),
         (rand(3, 11, 13),)),
    Case("dilated", "windows", lambda x: sums(
        jnp.exp(x), (3, 2), (2, 1), ((2, -1), (3, 4)), base_dilation=(2, 3), window_dilation=(3, 1)), (rand(7, 9),)),
    Case("special", "windows", lambda x: most(x, (1, 5), (1, 1), ((0, 0), (2, 2))), (special(4, 33),)),
    Case("short", "windows", running, (rand(3, 33), rand(3, 33, dtype="int32", low=-9, high=9))),
    Case("runs", "windows", running, (rand(2, 1023), rand(2, 1023, dtype="int32", low=-9, high=9))),
    Case("whole runs", "windows", lambda x, y: (jnp.cumsum(x), jnp.cumsum(y, 0)), (rand(2112), rand(96, 3))),
    Case("own", "windows", lambda x: lax.reduce_window(
        x, np.float32(0.25), lambda a, b: a + b - a * b, (3, 2), (1, 2), "VALID"), (rand(7, 8),)),
    Case("halves", "windows", lambda x: most(x, (4,), (3,), "SAME").astype(np.float32),
         (rand(50).astype(jnp.bfloat16),)),
    Case("one", "windows", lambda x: (
        jnp.cumsum(x, 0), sums(x, (1, 1), (1, 1), "VALID"), sums(x, (1, 7), (1, 1), "VALID")), (rand(1, 7),)),
    Case("logarithms", "windows", lambda x, y: (
        lax.cumlogsumexp(x, axis=1), lax.cumlogsumexp(3 * x, axis=0), lax.cumlogsumexp(y, axis=0, reverse=True)),
        (rand(3, 301), np.concatenate([rand(33), [-INF] * 2, rand(66)]).astype(np.float32))),
    Case("slope", "windows", jax.grad(lambda x: (sums(x, (1, 3, 3), (1, 2, 2), "SAME") ** 2).mean()), (rand(2, 9, 9),)),
)  # fmt: skip


@functools.cache
def batch(group: str = "windows") -> Batch:
    return Batch.made(CONVOLUTIONS if group == "convolutions" else CASES, group)


@pytest.mark.slow
@pytest.mark.parametrize("group", ["windows", "convolutions"])
@pytest.mark.parametrize(
    "policy", [pytest.param("unfused", marks=pytest.mark.slow), pytest.param("grid", marks=pytest.mark.slow), "tiny"]
)
@pytest.mark.sampled(4)
def test_windows_hold_what_xlas_hold(policy, group, runner):
    here = batch(group)
    assert not here.module.foreign
    found = planner.plan(here.module, POLICIES.get(policy) or unfused(), LIMITS)
    assert found.problems == ()
    assert verify.problems(here.module, found.plan) == ()
    here.check(runner, found.plan)


def test_a_window_alone_is_no_kernel():
    module = importer.read(oracle.lowered(CASES[0].function, *CASES[0].inputs), "x")
    assert sorted(each.opcode for each in module.instructions if each.opcode in ("window", "reduce")) == [
        "reduce", "reduce", "window", "window",
    ]  # fmt: skip
    assert len(planner.plan(module, unfused(), LIMITS).plan.kernels) == 2


def test_long_running_sums_do_not_read_everything_again():
    module = importer.read(oracle.lowered(lambda x: jnp.cumsum(x, 1), rand(2, 5000)), "x")
    seen = [each.elements for each in module.instructions if each.opcode == "window"]
    assert sum(seen) < 2 * 5000 * 40
    assert len(seen) == 3  # 5,000 = 157 runs of 32; 157 = 5 runs of 32; 5


@pytest.mark.slow
def test_a_window_is_written_and_read_again():
    module = batch().module
    again = importer.read(printer.written(module), "x")
    assert importer.digest(again) == importer.digest(module)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: lax.reduce_window(x, np.float32(1), lax.add, (3,), (1,), "SAME"),  # what lies outside is left out
        lambda x: lax.reduce_window(x, np.float32(0), lambda a, b: a - b, (3,), (1,), "SAME"),
        lambda x: lax.reduce_window(
            (x, x), (np.float32(0),) * 2, lambda a, b: (a[0] + b[0], a[1]), (3,), (1,), "VALID"
        ),
    ],
)
def test_what_padding_would_change_is_a_boundary(function):
    module = importer.read(oracle.lowered(function, rand(9)), "x")
    assert {module[each].opcode for each in module.foreign} == {"reduce-window"}
    assert all("left to a library" in why for why in module.foreign.values())


@pytest.mark.parametrize(
    ("x", "filters", "groups", "size"),
    [
        ((1, 2, 9, 9), (2, 2, 3, 3), 1, "several channels and filters"),
        ((1, 1, 9, 9), (17, 1, 3, 3), 1, "many filters"),
        ((1, 1, 40, 40), (1, 1, 16, 15), 1, "a large window"),
    ],
)
def test_a_convolution_that_shares_much_is_a_librarys(x, filters, groups, size):
    text = oracle.lowered(lambda x, w: filtered(x, w, (1, 1), "SAME", PLANES, groups), rand(*x), rand(*filters))
    module = importer.read(text, "x")
    assert {module[each].opcode for each in module.foreign} == {"convolution"}, size


def test_a_convolution_that_does_not_fit_is_said():
    text = oracle.lowered(CONVOLUTIONS[2].function, *CONVOLUTIONS[2].inputs)
    assert "window={size=3x2}" in text
    with pytest.raises(RequestError, match="window, channels and filters do not fit"):
        importer.read(text.replace("window={size=3x2}", "window={size=2x2}"), "x")
    with pytest.raises(RequestError, match=r"gives .* but the text says"):
        importer.read(text.replace("f32[2,2,5,8]{3,2,1,0} convolution", "f32[2,2,5,7]{3,2,1,0} convolution"), "x")


@pytest.mark.parametrize(
    ("window", "shape", "said"),
    [
        ("{size=3 stride=2 pad=1_1}", "f32[9]", "gives [5], but the text says [9]"),
        ("{size=3x1}", "f32[9]", "does not fit"), ("{size=3 stride=1x1}", "f32[7]", "one entry per dimension"),
        ("{size=3 rhs_reversal=1}", "f32[7]", "none is reversed"),
        ("{size=three}", "f32[7]", "expected whole numbers"), ("{size=0}", "f32[9]", "does not fit"),
    ],
)  # fmt: skip
def test_a_window_that_cannot_be_is_one_line(window, shape, said):
    written = f"""HloModule x

add {{ a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}}

ENTRY main {{
  x = f32[9] parameter(0)
  z = f32[] constant(0)
  ROOT r = {shape} reduce-window(x, z), window={window}, to_apply=add
}}
"""
    with pytest.raises(RequestError) as caught:
        importer.read(written, "x.hlo")
    assert said in str(caught.value)
    assert "x.hlo:11" in str(caught.value)


# --- windows that are put in or cut out by their places -------------------------------------------------


X = np.random.default_rng(3).normal(size=(7, 9)).astype(np.float32)
INSIDE = np.random.default_rng(4).normal(size=(5, 7)).astype(np.float32)
LABELS = np.array([0, 8, 3, 3, 8, 1, 5], np.int32)
NUMBERS = lax.ScatterDimensionNumbers((0, 1), (), (0, 1))


def window(update: Callable[..., Any], start: Any) -> Callable[..., Any]:
    """A scatter of one window that begins at `start`, or where an argument says."""

    def function(x: Any, u: Any, *at: Any) -> Any:
        index = at[0] if at else jnp.array(start, jnp.int32)
        return update(x, index, u, NUMBERS, mode=lax.GatherScatterMode.FILL_OR_DROP)

    return function


def jacobi(u: Any) -> Any:
    for _ in range(2):
        u = u.at[1:-1, 1:-1].set(0.25 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]))
    return u


def at(*start: int, kind: Any = np.int32) -> np.ndarray:
    return np.array(start, kind)


PLACED: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "inside": (lambda x, u: x.at[1:-1, 1:-1].set(u), (X, INSIDE)),
    "added": (lambda x, u: x.at[2:, :-2].add(u), (X, INSIDE)),
    "multiplied": (lambda x, u: x.at[:-2, 2:].multiply(u), (X, INSIDE)),
    "twice": (jacobi, (X,)),
    "a row": (lambda x, u: x.at[3].set(u[0, :1].repeat(9)), (X, INSIDE)),
    "an element": (lambda x, u: x.at[2, 5].set(u[0, 0]), (X, INSIDE)),
    "does not fit": (window(lax.scatter_add, (3, 0)), (X, INSIDE)),
    "before the first": (window(lax.scatter, (-1, 1)), (X, INSIDE)),
    "given": (window(lax.scatter_add, None), (X, INSIDE, at(2, 1))),
    "given, does not fit": (window(lax.scatter, None), (X, INSIDE, at(2, 3))),
    "given, before the first": (window(lax.scatter_add, None), (X, INSIDE, at(-1, 0))),
    "given in bytes": (window(lax.scatter, None), (X, INSIDE, at(1, 2, kind=np.int8))),
    "cut": (lambda x: lax.dynamic_slice(x, (jnp.int32(2), jnp.int32(30)), (3, 4)) * 2, (X,)),
    "diagonal": (lambda x, u: x.at[jnp.arange(7), jnp.arange(7)].add(u[0]), (X, INSIDE)),
    "rows and labels": (lambda x, y: jax.grad(lambda x: (x[jnp.arange(7), y] ** 2).sum())(x), (X, LABELS)),
    "columns and labels": (lambda x, y: x.at[y[:7] % 7, jnp.arange(7)].set(y * 1.0), (X[:, :7], LABELS)),
}
"""What no scatter is left of."""


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", PLACED)
def test_one_window_is_put_in_by_its_place(name: str, runner: Any) -> None:
    batch = Batch.one("scatter", name, *PLACED[name])
    assert all(each.opcode not in ("scatter", "dynamic-slice") for each in batch.module.instructions) or "given" in name
    batch.check(runner, handmade.unfused(batch.module))


def test_rows_that_are_not_all_counted_stay_a_scatter(runner: Any) -> None:
    def some(x: Any, y: Any) -> Any:
        return x.at[jnp.arange(5), y[:5]].add(1.0)

    batch = Batch.one("scatter", "some", some, (X, LABELS))
    assert any(each.opcode == "scatter" for each in batch.module.instructions)
    batch.check(runner, handmade.unfused(batch.module))


def numbers(*arrays: Callable[[], Any]) -> list[tuple[int, ...] | None]:
    """What is known of values that jax makes of constants."""

    def function() -> Any:
        return [each() for each in arrays]

    with jax.disable_jit(False):
        module = importer.read(oracle.lowered(function), "known")
    given = {each.name: each for each in module.instructions}
    return [constant_numbers.elements(given, name) for name in module.outputs]


@hypothesis.given(
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=6), st.integers(-5, 5), st.integers(1, 3)
)
@hypothesis.settings(max_examples=25)
def test_numbers_are_what_numpy_says(values: list[int], limit: int, step: int) -> None:
    array = np.array(values, np.int32)
    with np.errstate(over="ignore"):
        wanted = np.concatenate(
            [np.where(array < limit, array + np.int32(len(values)), array)[::step],
             np.maximum(array * np.int32(3), array - np.int32(7)), np.broadcast_to(array[:1], (3,)),
             np.arange(4, dtype=np.int32)]
        )  # fmt: skip

    def same() -> Any:
        x = lax.optimization_barrier(jnp.array(array))
        return jnp.concatenate(
            [jnp.where(x < limit, x + len(values), x)[::step], jnp.maximum(x * 3, x - 7), jnp.broadcast_to(x[:1], (3,)),
             lax.iota(jnp.int32, 4)],
        )  # fmt: skip

    assert numbers(same) == [tuple(wanted.tolist())]


def test_what_depends_on_an_input_is_not_known() -> None:
    module = importer.read(oracle.lowered(lambda x: jnp.stack([x[0], jnp.int32(3)]), LABELS), "unknown")
    given = {each.name: each for each in module.instructions}
    assert constant_numbers.elements(given, module.outputs[0]) is None
