"""Scalar operations against JAX on the processor: every operation on every type, with the values that hurt."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fusiond.model.codegen.code import Code
from fusiond.model.errors import RequestError
from fusiond.model.language.narrow import numpy_dtype
from fusiond.model.program import Buffer, Launch, Pointer, Program, Role, Source
from fusiond_stitching.analysis import planner
from fusiond_stitching.codegen.semantics import (
    TYPES,
    Functions,
    NoCode,
    binary,
    bitcast_convert,
    clamp,
    compare,
    convert,
    literal,
    loaded,
    stored,
    unary,
)
from fusiond_stitching.frontend import importer
from fusiond_stitching.frontend.graph import EXPENSIVE

from . import oracle
from .checking import Batch
from .policies import LIMITS, POLICIES
from .running import Runner

INTEGERS = ("s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64")
FLOATS = ("f8e4m3fn", "f8e5m2", "f16", "bf16", "f32", "f64")
ALL = ("pred", *INTEGERS, *FLOATS)

UNARY: dict[str, Callable[[Any], Any]] = {
    "abs": lax.abs, "negate": lax.neg, "sign": lax.sign, "ceil": lax.ceil, "floor": lax.floor,
    "round-nearest-afz": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "round-nearest-even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "exponential": lax.exp, "exponential-minus-one": lax.expm1, "log": lax.log, "log-plus-one": lax.log1p,
    "logistic": lax.logistic, "sqrt": lax.sqrt, "rsqrt": lax.rsqrt, "cbrt": lax.cbrt, "sine": lax.sin,
    "cosine": lax.cos, "tan": lax.tan, "tanh": lax.tanh, "erf": lax.erf, "is-finite": lax.is_finite,
    "acos": lax.acos, "acosh": lax.acosh, "asin": lax.asin, "asinh": lax.asinh, "atanh": lax.atanh,
    "cosh": lax.cosh, "sinh": lax.sinh,
    "not": lax.bitwise_not, "popcnt": lax.population_count, "count-leading-zeros": lax.clz, "copy": lambda x: x,
}  # fmt: skip
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lax.add, "subtract": lax.sub, "multiply": lax.mul, "divide": lax.div, "remainder": lax.rem,
    "maximum": lax.max, "minimum": lax.min, "power": lax.pow, "atan2": lax.atan2, "and": lax.bitwise_and,
    "or": lax.bitwise_or, "xor": lax.bitwise_xor, "shift-left": lax.shift_left,
    "shift-right-arithmetic": lax.shift_right_arithmetic, "shift-right-logical": lax.shift_right_logical,
}  # fmt: skip
COMPARE = {"EQ": lax.eq, "NE": lax.ne, "LT": lax.lt, "LE": lax.le, "GT": lax.gt, "GE": lax.ge}
TOLERANCE = {"f8e4m3fn": 2.0**-3, "f8e5m2": 2.0**-2, "f16": 2.0**-10, "bf16": 2.0**-7, "f32": 5e-6, "f64": 1e-12}
LIBRARY = EXPENSIVE - {"divide", "remainder", "sqrt"}
"""What a library of functions computes. Of 8 and 16 bits all the rest is exact: a float operation, rounded once."""
SUBNORMAL = float(np.finfo(np.float32).tiny)  #: XLA makes 0 of what is smaller
SPECIAL = (
    *(math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.7, 3.0, -7.25, 127.5, 128.0),
    *(-129.0, 255.0, 256.5, 300.0, -300.0, 32767.5, 65536.0, 2147483648.0, -2147483904.0, 4294967296.0, 9.3e18),
    *(-9.3e18, 1.9e19, 1e20, 1e-30, 1e30, 87.0, -104.0),
)


def values(name: str) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of special values, and some random ones."""
    kind, random = TYPES[name], np.random.default_rng(5)
    if kind.kind == "pred":
        few = np.array([False, True])
    elif kind.kind == "float":
        with np.errstate(over="ignore"):  # in float16, the large ones are infinite
            few = np.concatenate([np.array(SPECIAL), random.normal(size=8)]).astype(kind.program)
    else:
        info = np.iinfo(kind.program)
        few = {info.min, info.max, info.min + 1, info.max // 3, *range(0, 8), kind.bits - 1, kind.bits, kind.bits + 1}
        few |= set() if kind.kind == "unsigned" else {-1, -2, -5, -7}
        few = np.array(sorted(few), dtype=kind.program)
    first, second = zip(*itertools.product(few, few), strict=True)
    return np.array(first, dtype=kind.program), np.array(second, dtype=kind.program)


class Cases:
    """Expressions of two operands a and b of one type, computed by one kernel, each with what JAX makes of it."""

    def __init__(self, name: str) -> None:
        self.kind = TYPES[name]
        self.functions = Functions()
        self.a, self.b = values(name)
        self.found: list[tuple[str, str, str, Callable[..., Any]]] = []  # name, type of the result, expression, wanted
        self.refused: list[str] = []

    def add(self, name: str, result: str, expression: Callable[[], str], wanted: Callable[[Any, Any], Any]) -> None:
        try:
            text = expression()
        except NoCode:
            self.refused.append(name)
            return
        self.found.append((name, result, text, wanted))

    def wanted(self) -> list[np.ndarray]:
        """What JAX says, all of it in one compilation."""
        found = jax.jit(lambda a, b: [function(a, b) for _, _, _, function in self.found])(self.a, self.b)
        return [np.asarray(each) for each in found]

    def program(self) -> Program:
        count = self.a.size
        here = self.kind
        buffers = [
            Buffer(name="a", dtype=here.program, elements=count, role=Role.INPUT),
            Buffer(name="b", dtype=here.program, elements=count, role=Role.INPUT),
        ]
        lines = [f"const {here.value} a = {loaded(here, 'in_a[i]')}, b = {loaded(here, 'in_b[i]')};"]
        parameters = [f"const {here.memory}* in_a", f"const {here.memory}* in_b"]
        for number, (_, result, text, _) in enumerate(self.found):
            kind = TYPES[result]
            buffers.append(Buffer(name=f"out_{number}", dtype=kind.program, elements=count, role=Role.OUTPUT))
            parameters.append(f"{kind.memory}* out_{number}")
            lines.append(f"const {kind.value} r{number} = {text};")
            lines.append(f"out_{number}[i] = {stored(self.functions, kind, Code(f'r{number}'))};")
        body = "\n".join(f"    {line}" for line in lines)
        headers = "".join(f"#include <{each}>\n" for each in ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h"))
        text = (
            f'{headers}{"".join(self.functions.texts)}\nextern "C" __global__ void all({", ".join(parameters)})\n'
            f"{{\n    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i >= {count}) return;\n{body}\n}}\n"
        )
        launch = Launch(
            name="all", source="all", entry="all", grid=((count + 63) // 64, 1, 1), block=(64, 1, 1),
            arguments=tuple(Pointer(buffer=each.name) for each in buffers),
        )  # fmt: skip
        return Program(
            name="all", buffers=tuple(buffers), sources=(Source(name="all", text=text, entries=("all",)),),
            steps=(launch,),
        )  # fmt: skip

    def check(self, runner: Runner) -> None:
        given = {name: each.view(numpy_dtype(self.kind.program)) for name, each in (("a", self.a), ("b", self.b))}
        got = runner.run(self.program(), given)
        for number, ((name, result, text, _), wanted) in enumerate(zip(self.found, self.wanted(), strict=True)):
            mine = got[f"out_{number}"].view(wanted.dtype)
            floats = TYPES[result].kind == "float"
            exact = name.startswith("to ") or (self.kind.bits <= 16 and name not in LIBRARY)
            tolerance = 0.0 if exact else TOLERANCE.get(result, 0.0)
            np.testing.assert_allclose(
                mine.astype(np.float64) if floats else mine,
                wanted.astype(np.float64) if floats else wanted,
                rtol=tolerance, atol=tolerance * (2.0**-6 if result == "f8e4m3fn" else 1e-3) or SUBNORMAL * floats,
                err_msg=f"{name} of {self.kind.name}: {text}",
            )  # fmt: skip


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def accepts(function: Callable[..., Any], *arrays: np.ndarray) -> bool:
    try:
        jax.eval_shape(function, *arrays)
    except TypeError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", ["f32", *(each for each in ALL if each != "f32")])
def test_operations(name, runner):
    cases = Cases(name)
    kind, a, b = cases.kind, cases.a, cases.b
    for opcode, function in UNARY.items():
        if not accepts(function, a):
            continue
        # For arguments beyond, libraries differ in how they reduce those of a sine; XLA rounds the exponential in a
        # logistic function, too, and where there is no infinity it makes a NaN of it.
        most = {"sine": 448, "cosine": 448, "tan": 448, "logistic": 6 if name == "f8e4m3fn" else 0}.get(opcode, 0)
        if most:
            text = f"(fabs(a) < {most} ? a : 1)"
            cases.add(
                opcode, name, lambda o=opcode, t=text: unary(cases.functions, o, kind, t),
                lambda x, _, f=function, m=most: f(jnp.where(jnp.abs(x) < m, x, 1)),
            )  # fmt: skip
            continue
        result = "pred" if opcode == "is-finite" else name
        cases.add(opcode, result, lambda o=opcode: unary(cases.functions, o, kind, "a"), lambda x, _, f=function: f(x))
    for opcode, function in BINARY.items():
        if accepts(function, a, b):
            cases.add(opcode, name, lambda o=opcode: binary(cases.functions, o, kind, "a", "b"), function)
    for direction, function in COMPARE.items():
        cases.add(direction, "pred", lambda d=direction: compare(cases.functions, d, kind, "a", "b"), function)
    for target in ALL:
        other = TYPES[target]
        cases.add(
            f"to {target}", target, lambda t=other: convert(cases.functions, kind, t, "a"),
            lambda x, _, t=other: lax.convert_element_type(x, t.program),
        )  # fmt: skip
        if other.bits == kind.bits and "pred" not in (name, target):
            # Values of 8 and 16 bits are floats in registers, and a NaN's bits are lost there.
            nans = kind.narrow_float
            a_or_1 = "(a != a ? 1 : a)" if nans else "a"
            cases.add(
                f"as {target}", target, lambda t=other, text=a_or_1: bitcast_convert(cases.functions, kind, t, text),
                lambda x, _, t=other, n=nans: lax.bitcast_convert_type(jnp.where(n & (x != x), 1, x), t.program),
            )  # fmt: skip
    if name != "pred":
        cases.add(
            "clamp", name, lambda: clamp(cases.functions, kind, "b", "a", literal(kind, 5)),
            lambda x, y: lax.clamp(y, x, lax.full_like(x, 5)),
        )  # fmt: skip
    assert cases.refused == []
    assert len(cases.found) >= 20
    cases.check(runner)


def test_integer_powers_wrap(runner):
    cases = Cases("s32")
    bases = (0, 1, -1, 2, 3, -7)
    for base in bases:
        text = binary(cases.functions, "power", cases.kind, str(base), "b")
        cases.add(f"{base}^b", "s32", lambda t=text: t, lambda _, y: y)
    got = runner.run(cases.program(), {"a": cases.a, "b": cases.b})
    for number, base in enumerate(bases):
        assert got[f"out_{number}"].tolist() == [_power(base, int(exponent)) for exponent in cases.b]


def _power(base: int, exponent: int) -> int:
    if exponent < 0:
        return {1: 1, -1: -1 if exponent % 2 else 1}.get(base, 0)
    wrapped = pow(base, exponent, 2**32)
    return wrapped - 2**32 if wrapped >= 2**31 else wrapped


def test_the_total_order_ranks_nan_and_the_sign_of_zero(runner):
    cases = Cases("f32")

    def rank(x):
        bits = lax.bitcast_convert_type(x, np.int32)
        return jnp.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits)

    for direction, function in COMPARE.items():
        cases.add(
            direction, "pred", lambda d=direction: compare(cases.functions, d, cases.kind, "a", "b", total_order=True),
            lambda x, y, f=function: f(rank(x), rank(y)),
        )  # fmt: skip
    cases.check(runner)


# --- complex numbers as pairs of real ones --------------------------------------------------------------


PLANNED = ("stages", "blocks")

RANDOM = np.random.default_rng(3)


def real(*dims: int) -> np.ndarray:
    return RANDOM.normal(size=dims).astype(np.float32)


def whole(*dims: int) -> np.ndarray:
    return (real(*dims) + 1j * real(*dims)).astype(np.complex64)


def rope(x: Any, angles: Any) -> Any:
    """Neighbours turned by an angle for each position."""
    turned = lax.complex(x[..., 0::2], x[..., 1::2]) * jnp.exp(1j * angles)[None]
    return jnp.stack([turned.real, turned.imag], -1).reshape(x.shape)


def arithmetic(a: Any, b: Any) -> Any:
    return a + b, a - b, a * b, a / b, -a, jnp.conj(a) * 2, a * 1j, 1 / b, a == b, a != jnp.where(a.real > 0, a, b)


def parts(a: Any) -> Any:
    return a.real, a.imag, jnp.abs(a), jnp.exp(a * 0.5), a.real.astype(jnp.complex64), (a * jnp.conj(a)).real


def moved(a: Any, b: Any) -> Any:
    return (
        a.T, a[1:, ::2], a[::-1], jnp.concatenate([a, b]), a.reshape(-1), jnp.pad(a, ((1, 0), (0, 2))), a[:, None] * b,
        jnp.take(a, jnp.array([2, 0]), axis=0), lax.dynamic_slice(a, (1, 2), (2, 3)),
        lax.dynamic_update_slice(a, b[:2, :1], (1, 3)),
    )  # fmt: skip


def sums(a: Any) -> Any:
    return a.sum(0), a.sum(), (a * jnp.array([1, 1j, -1, 2 - 0.5j, 0], jnp.complex64)).mean(-1)


def rotated(x: Any) -> Any:
    """A function of them by a call."""
    return jax.jit(lambda z: z * jnp.exp(0.25j))(x.astype(jnp.complex64)).real


EDGES = np.array([1e30 + 1e30j, 1e-30 - 1e-30j, 3e38 + 1j, 0, 1j, -2], np.complex64)
CASES: dict[str, tuple[Any, tuple[np.ndarray, ...]]] = {
    "rope": (rope, (real(3, 8, 16), real(8, 8))),
    "arithmetic": (arithmetic, (whole(4, 5), whole(4, 5))),
    "parts": (parts, (whole(4, 5),)),
    "large and small": (lambda a, b: (a / b, jnp.abs(a)), (EDGES[[0, 1, 0, 3]], EDGES[[0, 1, 2, 4]])),
    "sizes": (jnp.abs, (EDGES,)),
    "moved": (moved, (whole(4, 5), whole(4, 5))),
    "sums": (sums, (whole(4, 5),)),
    "a call": (rotated, (real(7),)),
    "a number": (lambda a: a * 2, (np.complex64(1 - 2j),)),
}


def batch(name: str) -> Batch:
    """The case, with inputs and outputs as they lie in memory."""
    function, inputs = CASES[name]
    found = Batch.one("complex", name, function, inputs)
    return dataclasses.replace(found, inputs=tuple(map(laid, inputs)), wanted=tuple(map(laid, found.wanted)))


def laid(array: np.ndarray) -> np.ndarray:
    array = np.ascontiguousarray(array)
    return array.reshape(*array.shape, 1).view(np.float32) if array.dtype == np.complex64 else array


@pytest.mark.sampled(4)
@pytest.mark.parametrize("policy", ["none", *(pytest.param(each, marks=pytest.mark.slow) for each in PLANNED)])
@pytest.mark.parametrize("name", CASES)
def test_they_are_what_xla_computes(name: str, policy: str, runner: Any) -> None:
    found = batch(name)
    assert found.module.foreign == {}
    found.check_planned(runner, policy)


def test_a_rotation_is_one_kernel_without_a_complex_number() -> None:
    module = batch("rope").module
    assert {each.dtype for each in module.instructions} <= {"f32", "pred"}
    assert len(planner.plan(module, POLICIES["blocks"], LIMITS).plan.kernels) == 1


def test_parameters_and_results_are_pairs() -> None:
    module = batch("arithmetic").module
    assert [module[name].dims for name in module.parameters] == [(4, 5, 2), (4, 5, 2)]
    assert module[module.outputs[0]].dims == (4, 5, 2)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: jnp.fft.fft(a * 2).real, lambda a: lax.while_loop(lambda s: jnp.abs(s).sum() < 9, lambda s: s * 2, a),
        lambda a: jnp.tanh(a), lambda a: (a @ a.T).real, lambda a: a.prod(),
        lambda a: a.at[jnp.array([1, 1])].add(a[:2]),
    ],
)  # fmt: skip
def test_where_one_cannot_be_a_pair_none_is(function: Any) -> None:
    module = importer.read(oracle.lowered(function, jax.ShapeDtypeStruct((4, 4), np.complex64)), "m.hlo")
    assert any("c64" in why or "library" in why for why in module.foreign.values())
    assert "c64" in {each.dtype for each in module.instructions}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ROOT c = c64[2] constant({(1, 2)})", "1 pairs of numbers for c64[2]"),
        ("ROOT c = c64[1] constant({(1, x)})", "is not a c64"),
        ("ROOT c = pred[3] compare(a, a), direction=LT", "no order"),
    ],
)
def test_what_is_no_complex_number_is_said(line: str, said: str) -> None:
    text = f"HloModule m\nENTRY main {{\n  a = c64[3] parameter(0)\n  {line}\n}}\n"
    with pytest.raises(RequestError, match=r"m\.hlo:4") as problem:
        importer.read(text, "m.hlo")
    assert said in str(problem.value)
