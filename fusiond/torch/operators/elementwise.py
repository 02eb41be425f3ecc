"""Element-wise operators, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

from fusiond.torch.instructions import HloValue, HloWriter, Number
from fusiond.torch.operators.table import TABLE, OperatorCall, Unsupported, category, common, number, operator, working

# --- of one tensor ---


def _unary(name: str, write: Callable[[HloWriter, HloValue], HloValue]) -> None:
    def written(call: OperatorCall) -> HloValue:
        return call.finished(write(call.writer, call.wide(0)))

    operator(f"{name}.default")(written)


def _times(w: HloWriter, x: HloValue, factor: Number) -> HloValue:
    return w.binary("multiply", x, w.like(x, factor))


for _name, _opcode in {
    "exp": "exponential", "expm1": "exponential-minus-one", "log": "log", "log1p": "log-plus-one", "sqrt": "sqrt",
    "rsqrt": "rsqrt", "tanh": "tanh", "sin": "sine", "cos": "cosine", "tan": "tan", "erf": "erf", "floor": "floor",
    "ceil": "ceil", "round": "round-nearest-even", "sign": "sign", "sgn": "sign", "abs": "abs", "neg": "negate",
    "sigmoid": "logistic",
}.items():  # fmt: skip
    _unary(_name, lambda w, x, opcode=_opcode: _same(w, x, opcode))  # type: ignore[misc]

_ROUNDING = frozenset({"floor", "ceil", "round-nearest-even"})


def _same(w: HloWriter, x: HloValue, opcode: str) -> HloValue:
    if opcode in _ROUNDING and category(x.dtype) < 2:
        return x
    return w.unary(opcode, x)


def _trunc(w: HloWriter, x: HloValue) -> HloValue:
    if category(x.dtype) < 2:
        return x
    negative = w.compare("LT", x, w.like(x, 0))
    return w.select(negative, w.unary("ceil", x), w.unary("floor", x))


def _silu(w: HloWriter, x: HloValue) -> HloValue:
    return w.binary("multiply", x, w.unary("logistic", x))


_unary("log2", lambda w, x: _times(w, w.unary("log", x), 1 / math.log(2)))
_unary("log10", lambda w, x: _times(w, w.unary("log", x), 1 / math.log(10)))
_unary("exp2", lambda w, x: w.binary("power", w.like(x, 2), x))
_unary("square", lambda w, x: w.binary("multiply", x, x))
_unary("reciprocal", lambda w, x: w.binary("divide", w.like(x, 1), x))
_unary("trunc", _trunc)
_unary("relu", lambda w, x: w.binary("maximum", x, w.like(x, 0)))
_unary("silu", _silu)
_unary("erfc", lambda w, x: w.binary("subtract", w.like(x, 1), w.unary("erf", x)))
_unary("relu6", lambda w, x: w.binary("minimum", w.binary("maximum", x, w.like(x, 0)), w.like(x, 6)))


@operator("alias.default", "detach.default", view=True)
@operator("clone.default", "lift_fresh_copy.default", "contiguous.default", movement=True)
def _identity(call: OperatorCall) -> HloValue:
    return call.tensor(0)


@operator("_to_copy.default", "to.dtype", "prims.convert_element_type.default")
def _to(call: OperatorCall) -> HloValue:
    if call.result.dims != call.tensor(0).dims:
        raise Unsupported("it changes the shape")
    return call.finished(call.tensor(0))


@operator("logical_not.default", "bitwise_not.default")
def _not(call: OperatorCall) -> HloValue:
    x = call.tensor(0)
    if call.node.operator == "aten.logical_not.default":
        x = call.writer.convert(x, "pred")
    return call.writer.unary("not", x)


@operator("isnan.default", "isinf.default", "isfinite.default")
def _is(call: OperatorCall) -> HloValue:
    w, x = call.writer, call.floating(call.tensor(0))
    if category(x.dtype) < 2:
        return w.constant(call.node.operator == "aten.isfinite.default", "pred", x.dims)
    if call.node.operator == "aten.isnan.default":
        return w.compare("NE", x, x)
    if call.node.operator == "aten.isinf.default":
        return w.compare("EQ", w.unary("abs", x), w.like(x, math.inf))
    return w.add("is-finite", "pred", x.dims, [x])


# --- of two ---


def _binary(*names: str, opcode: str) -> None:
    @operator(*names)
    def written(call: OperatorCall) -> HloValue:
        return call.finished(call.writer.binary(opcode, call.wide(0), call.wide(1)))


_binary("mul.Tensor", "mul.Scalar", opcode="multiply")
_binary("maximum.default", "max.other", opcode="maximum")
_binary("minimum.default", "min.other", opcode="minimum")
_binary("atan2.default", opcode="atan2")
_binary("bitwise_and.Tensor", "bitwise_and.Scalar", opcode="and")
_binary("bitwise_or.Tensor", "bitwise_or.Scalar", opcode="or")
_binary("bitwise_xor.Tensor", "bitwise_xor.Scalar", opcode="xor")


@operator("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Tensor", "rsub.Scalar")
def _sum(call: OperatorCall) -> HloValue:
    """a + alpha b, a - alpha b, b - alpha a."""
    w, a, b = call.writer, call.wide(0), call.wide(1)
    name = call.node.operator.split(".")[1]
    if name == "rsub":
        a, b = b, a
    alpha = number(call.argument(2, "alpha", 1))
    if alpha != 1:
        b = _times(w, b, alpha)
    if call.result.dtype == "pred":
        return w.binary("or" if name == "add" else "xor", a, b)
    return call.finished(w.binary("add" if name == "add" else "subtract", a, b))


@operator("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode")
def _div(call: OperatorCall) -> HloValue:
    w, a, b = call.writer, call.wide(0), call.wide(1)
    mode = call.argument(2, "rounding_mode")
    whole = category(a.dtype) < 2
    if mode == "floor" and not whole:
        raise Unsupported("a floored quotient of floats")
    quotient = w.binary("divide", a, b)
    if mode == "trunc" and not whole:
        quotient = _trunc(w, quotient)
    if mode == "floor":
        rest = w.binary("remainder", a, b)
        quotient = w.binary("subtract", quotient, w.convert(_other_sign(w, rest, b), a.dtype))
    return call.finished(quotient)


def _other_sign(w: HloWriter, rest: HloValue, b: HloValue) -> HloValue:
    """Whether a remainder is not 0, and has not the divisor's sign."""
    zero = w.like(rest, 0)
    odd = w.compare("NE", w.compare("LT", rest, zero), w.compare("LT", b, zero))
    return w.binary("and", w.compare("NE", rest, zero), odd)


@operator("remainder.Tensor", "remainder.Scalar", "fmod.Tensor", "fmod.Scalar")
def _remainder(call: OperatorCall) -> HloValue:
    w, a, b = call.writer, call.wide(0), call.wide(1)
    rest = w.binary("remainder", a, b)
    if "remainder" in call.node.operator:
        rest = w.select(_other_sign(w, rest, b), w.binary("add", rest, b), rest)
    return call.finished(rest)


@operator("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def _pow(call: OperatorCall) -> HloValue:
    w, x, exponent = call.writer, call.wide(0), call.argument(1, "exponent")
    if isinstance(exponent, int | float) and exponent in (1, 2, 3, 4):
        found = x
        for _ in range(int(exponent) - 1):
            found = w.binary("multiply", found, x)
        return call.finished(found)
    if category(x.dtype) < 2:
        raise Unsupported("a power of whole numbers")
    if exponent == 0.5:
        return call.finished(w.unary("sqrt", x))
    if exponent == -0.5:
        return call.finished(w.unary("rsqrt", x))
    if exponent == -1:
        return call.finished(w.binary("divide", w.like(x, 1), x))
    return call.finished(w.binary("power", x, call.wide(1, "exponent")))


def _comparison(name: str, direction: str) -> None:
    @operator(f"{name}.Tensor", f"{name}.Scalar")
    def written(call: OperatorCall) -> HloValue:
        a, b = call.argument(0), call.argument(1, "other")
        dtype = working(common((a, b)))
        return call.writer.compare(
            direction, call.shaped(a, dtype, call.result.dims), call.shaped(b, dtype, call.result.dims)
        )


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _comparison(_name, _name.upper())


@operator("logical_and.default", "logical_or.default", "logical_xor.default")
def _logical(call: OperatorCall) -> HloValue:
    opcode = call.node.operator.split(".")[1].removeprefix("logical_")
    return call.writer.binary(opcode, call.wide(0, dtype="pred"), call.wide(1, dtype="pred"))


# --- of three ---


@operator("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def _where(call: OperatorCall) -> HloValue:
    dtype = call.result.dtype
    return call.writer.select(call.wide(0, dtype="pred"), call.wide(1, dtype=dtype), call.wide(2, dtype=dtype))


@operator("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(call: OperatorCall) -> HloValue:
    dtype = call.result.dtype
    return call.writer.select(call.wide(1, dtype="pred"), call.wide(2, dtype=dtype), call.wide(0, dtype=dtype))


@operator("clamp.default", "clamp.Tensor", "clamp_min.default", "clamp_min.Tensor", "clamp_max.default",
          "clamp_max.Tensor", "hardtanh.default")  # fmt: skip
def _clamp(call: OperatorCall) -> HloValue:
    """The lower bound first, as torch does it; what is not a number stays so."""
    w, x = call.writer, call.wide(0)
    name = call.node.operator.split(".")[1]
    hard = name == "hardtanh"
    low = call.argument(1, "min_val" if hard else "min", -1.0 if hard else None) if name != "clamp_max" else None
    at = 1 if name == "clamp_max" else 2
    high = call.argument(at, "max_val" if hard else "max", 1.0 if hard else None) if name != "clamp_min" else None
    for opcode, bound in (("maximum", low), ("minimum", high)):
        if bound is not None:
            x = w.binary(opcode, x, call.shaped(bound, x.dtype, x.dims))
    return call.finished(x)


@operator("lerp.Scalar", "lerp.Tensor")
def _lerp(call: OperatorCall) -> HloValue:
    """start + weight (end - start), from the nearer end."""
    w, start, end, weight = call.writer, call.wide(0), call.wide(1), call.wide(2)
    span = w.binary("subtract", end, start)
    near = w.binary("add", start, w.binary("multiply", weight, span))
    rest = w.binary("subtract", w.like(weight, 1), weight)
    far = w.binary("subtract", end, w.binary("multiply", rest, span))
    first = w.compare("LT", w.unary("abs", weight), w.like(weight, 0.5))
    return call.finished(w.select(first, near, far))


@operator("addcmul.default", "addcdiv.default", "prims.fma.default")
def _addc(call: OperatorCall) -> HloValue:
    w, (x, a, b) = call.writer, map(call.wide, (2, 0, 1) if "fma" in call.node.operator else (0, 1, 2))
    value = number(call.argument(3, "value", 1))
    opcode = "divide" if "div" in call.node.operator else "multiply"
    scaled = a if value == 1 else _times(w, a, value)
    return call.finished(w.binary("add", x, w.binary(opcode, scaled, b)))


# --- activations ---

_SQRT_2 = math.sqrt(2.0)
_TANH_SCALE = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715


@operator("gelu.default")
def _gelu(call: OperatorCall) -> HloValue:
    w, x = call.writer, call.wide(0)
    if call.argument(1, "approximate", "none") == "tanh":
        curve = w.unary("tanh", _tanh_argument(w, x))
    else:
        curve = w.unary("erf", _times(w, x, 1 / _SQRT_2))
    half = _times(w, x, 0.5)
    return call.finished(w.binary("multiply", half, w.binary("add", w.like(x, 1), curve)))


def _tanh_argument(w: HloWriter, x: HloValue) -> HloValue:
    cube = w.binary("multiply", w.binary("multiply", x, x), x)
    return _times(w, w.binary("add", x, _times(w, cube, _CUBIC)), _TANH_SCALE)


@operator("gelu_backward.default")
def _gelu_backward(call: OperatorCall) -> HloValue:
    w, gradient, x = call.writer, call.wide(0), call.wide(1)
    one = w.like(x, 1)
    if call.argument(2, "approximate", "none") == "tanh":
        curve = w.unary("tanh", _tanh_argument(w, x))
        slope = w.binary("subtract", one, w.binary("multiply", curve, curve))
        inner = w.binary("add", one, _times(w, w.binary("multiply", x, x), 3 * _CUBIC))
        right = w.binary("multiply", w.binary("multiply", slope, _times(w, inner, _TANH_SCALE)), _times(w, x, 0.5))
        found = w.binary("add", _times(w, w.binary("add", one, curve), 0.5), right)
    else:
        cdf = _times(w, w.binary("add", one, w.unary("erf", _times(w, x, 1 / _SQRT_2))), 0.5)
        bell = w.unary("exponential", _times(w, w.binary("multiply", x, x), -0.5))
        density = _times(w, bell, 1 / math.sqrt(2.0 * math.pi))
        found = w.binary("add", cdf, w.binary("multiply", x, density))
    return call.finished(w.binary("multiply", gradient, found))


@operator("silu_backward.default")
def _silu_backward(call: OperatorCall) -> HloValue:
    w, gradient, x = call.writer, call.wide(0), call.wide(1)
    s = w.unary("logistic", x)
    one = w.like(x, 1)
    inner = w.binary("add", one, w.binary("multiply", x, w.binary("subtract", one, s)))
    return call.finished(w.binary("multiply", gradient, w.binary("multiply", s, inner)))


@operator("threshold_backward.default")
def _threshold_backward(call: OperatorCall) -> HloValue:
    w, gradient, x = call.writer, call.wide(0), call.wide(1)
    below = w.compare("LE", x, call.shaped(call.argument(2, "threshold"), x.dtype, x.dims))
    return call.finished(w.select(below, w.like(gradient, 0), gradient))


@operator("hardtanh_backward.default")
def _hardtanh_backward(call: OperatorCall) -> HloValue:
    w, gradient, x = call.writer, call.wide(0), call.wide(1)
    outside = w.binary(
        "or",
        w.compare("LE", x, w.like(x, number(call.argument(2, "min_val")))),
        w.compare("GE", x, w.like(x, number(call.argument(3, "max_val")))),
    )
    return call.finished(w.select(outside, w.like(gradient, 0), gradient))


@operator("tanh_backward.default", "sigmoid_backward.default")
def _by_result(call: OperatorCall) -> HloValue:
    """g (1 - y y), g y (1 - y)."""
    w, gradient, y = call.writer, call.wide(0), call.wide(1)
    one = w.like(y, 1)
    if call.node.operator == "aten.tanh_backward.default":
        return call.finished(w.binary("multiply", gradient, w.binary("subtract", one, w.binary("multiply", y, y))))
    slope = w.binary("multiply", w.binary("subtract", one, y), y)
    return call.finished(w.binary("multiply", gradient, slope))


@operator("leaky_relu.default", "leaky_relu_backward.default")
def _leaky_relu(call: OperatorCall) -> HloValue:
    w, backward = call.writer, "backward" in call.node.operator
    gradient = call.wide(0)
    x = call.wide(1) if backward else gradient
    slope = number(call.argument(2 if backward else 1, "negative_slope", 0.01))
    positive = w.compare("GT", x, w.like(x, 0))
    return call.finished(w.select(positive, gradient, _times(w, gradient, slope)))


@operator("elu.default")
def _elu(call: OperatorCall) -> HloValue:
    w, x = call.writer, call.wide(0)
    alpha, scale, inner = (number(call.argument(at, name, 1)) for at, name in
                           ((1, "alpha"), (2, "scale"), (3, "input_scale")))  # fmt: skip
    curve = _times(w, w.unary("exponential-minus-one", _times(w, x, inner)), alpha * scale)
    return call.finished(w.select(w.compare("GT", x, w.like(x, 0)), _times(w, x, scale), curve))


@operator("hardsigmoid.default", "hardswish.default")
def _hard(call: OperatorCall) -> HloValue:
    w, x = call.writer, call.wide(0)
    moved = w.binary("add", x, w.like(x, 3))
    bounded = w.binary("minimum", w.binary("maximum", moved, w.like(x, 0)), w.like(x, 6))
    found = _times(w, bounded, 1 / 6)
    return call.finished(w.binary("multiply", x, found) if "swish" in call.node.operator else found)


@operator("softplus.default")
def _softplus(call: OperatorCall) -> HloValue:
    w, x = call.writer, call.wide(0)
    beta, threshold = number(call.argument(1, "beta", 1)), number(call.argument(2, "threshold", 20))
    scaled = _times(w, x, beta)
    curve = _times(w, w.unary("log-plus-one", w.unary("exponential", scaled)), 1 / beta)
    return call.finished(w.select(w.compare("GT", scaled, w.like(x, threshold)), x, curve))


assert "aten.exp.default" in TABLE
