"""Element-wise operators, and their gradients."""

import math
from collections.abc import Callable

from fusiond.torch.instructions import HloValue, HloWriter, Number
from fusiond.torch.operators.table import OperatorCall, Unsupported, category, common, number, operator, working

# --- of one tensor ---


def _unary(name: str, write: Callable[[HloWriter, HloValue], HloValue]) -> None:
    def written(call: OperatorCall) -> HloValue:
        return call.finished(write(call.writer, call.wide(0)))

    operator(f"{name}.default")(written)


def _times(w: HloWriter, x: HloValue, factor: Number) -> HloValue:
    return w.binary("multiply", x, w.like(x, factor))


_ROUNDING = frozenset({"floor", "ceil", "round-nearest-even"})
for _name, _opcode in {
    "exp": "exponential", "expm1": "exponential-minus-one", "log": "log", "log1p": "log-plus-one", "sqrt": "sqrt",
    "rsqrt": "rsqrt", "tanh": "tanh", "sin": "sine", "cos": "cosine", "tan": "tan", "erf": "erf", "floor": "floor",
    "ceil": "ceil", "round": "round-nearest-even", "sign": "sign", "sgn": "sign", "neg": "negate",
    "sigmoid": "logistic",
}.items():  # fmt: skip
    _unary(_name, lambda w, x, opcode=_opcode: _same(w, x, opcode))  # type: ignore[misc]


@operator("abs.default")
def _abs(call: OperatorCall) -> HloValue:
    z = call.tensor(0)
    x, dtype = (z, "f32") if z.dtype == "c64" else (call.wide(0), working(call.result.dtype))
    return call.finished(call.writer.add("abs", dtype, x.dims, [x]))


def _same(w: HloWriter, x: HloValue, opcode: str) -> HloValue:
    return x if opcode in _ROUNDING and category(x.dtype) < 2 else w.unary(opcode, x)


def _trunc(w: HloWriter, x: HloValue) -> HloValue:
    if category(x.dtype) < 2:
        return x
    negative = w.compare("LT", x, w.like(x, 0))
    return w.select(negative, w.unary("ceil", x), w.unary("floor", x))


_unary("log2", lambda w, x: _times(w, w.unary("log", x), 1 / math.log(2)))
_unary("log10", lambda w, x: _times(w, w.unary("log", x), 1 / math.log(10)))
_unary("exp2", lambda w, x: w.binary("power", w.like(x, 2), x))
_unary("reciprocal", lambda w, x: w.binary("divide", w.like(x, 1), x))
_unary("trunc", _trunc)
_unary("relu", lambda w, x: w.binary("maximum", x, w.like(x, 0)))
_unary("erfc", lambda w, x: w.binary("subtract", w.like(x, 1), w.unary("erf", x)))


@operator("alias.default", "detach.default", view=True)
@operator("clone.default", "lift_fresh_copy.default", "contiguous.default", movement=True)
@operator("resolve_conj.default", "resolve_neg.default", movement=True)
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


# --- complex numbers ---


@operator("complex.default", "polar.default")
def _complex(call: OperatorCall) -> HloValue:
    w, a, b = call.writer, call.wide(0, dtype="f32"), call.wide(1, dtype="f32")
    if call.node.operator == "aten.polar.default":
        a, b = w.binary("multiply", a, w.unary("cosine", b)), w.binary("multiply", a, w.unary("sine", b))
    return w.add("complex", "c64", a.dims, [a, b])


@operator("view_as_complex.default", "view_as_real.default", "view.dtype", view=True)
def _viewed(call: OperatorCall) -> HloValue:
    """Complex numbers as pairs along the last dimension, and pairs as complex numbers."""
    w, x, dims = call.writer, call.tensor(0), call.result.dims
    if {x.dtype, call.result.dtype} != {"c64", "f32"}:
        raise Unsupported("it reads bits as another type")
    if x.dtype == "c64":
        parts = [w.reshape(w.add(each, "f32", x.dims, [x]), (*x.dims, 1)) for each in ("real", "imag")]
        return w.reshape(w.concatenate(parts, len(x.dims)), dims)
    x = w.reshape(x, (*dims, 2))
    parts = [w.reshape(w.part(x, len(dims), at, at + 1), dims) for at in (0, 1)]
    return w.add("complex", "c64", dims, parts)


@operator("real.default", "imag.default", view=True)
def _part(call: OperatorCall) -> HloValue:
    return call.writer.add(call.node.operator.split(".")[1], "f32", call.tensor(0).dims, [call.tensor(0)])


@operator("_conj.default", view=True)
@operator("_conj_physical.default", "conj_physical.default")
def _conjugate(call: OperatorCall) -> HloValue:
    w, z = call.writer, call.tensor(0)
    real, imag = (w.add(each, "f32", z.dims, [z]) for each in ("real", "imag"))
    return w.add("complex", "c64", z.dims, [real, w.unary("negate", imag)])


@operator("isnan.default", "isinf.default")
def _is(call: OperatorCall) -> HloValue:
    w, x = call.writer, call.floating(call.tensor(0))
    if category(x.dtype) < 2:
        return w.constant(False, "pred", x.dims)
    if call.node.operator == "aten.isnan.default":
        return w.compare("NE", x, x)
    return w.compare("EQ", w.unary("abs", x), w.like(x, math.inf))


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


@operator("hypot.default")
def _hypot(call: OperatorCall) -> HloValue:
    """By the larger one and the ratio, which do not overflow; infinite where one is, whatever the other."""
    w, a, b = call.writer, call.wide(0), call.wide(1)
    a, b = w.unary("abs", a), w.unary("abs", b)
    larger, infinite = w.binary("maximum", a, b), w.like(a, math.inf)
    ratio = w.binary("divide", w.binary("minimum", a, b), larger)
    ratio = w.select(w.compare("EQ", larger, w.like(a, 0)), larger, ratio)
    found = w.binary(
        "multiply", larger, w.unary("sqrt", w.binary("add", w.like(a, 1), w.binary("multiply", ratio, ratio)))
    )
    either = w.binary("or", w.compare("EQ", a, infinite), w.compare("EQ", b, infinite))
    return call.finished(w.select(either, infinite, found))


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
        return call.finished(_floored(w, a, b))
    quotient = w.binary("divide", a, b)
    if mode == "trunc" and not whole:
        quotient = _trunc(w, quotient)
    if mode == "floor":
        rest = w.binary("remainder", a, b)
        quotient = w.binary("subtract", quotient, w.convert(_other_sign(w, rest, b), a.dtype))
    return call.finished(quotient)


def _floored(w: HloWriter, a: HloValue, b: HloValue) -> HloValue:
    """A floored quotient of floats, by the remainder, as torch and Python have it; where b is 0, a / b."""
    rest = w.binary("remainder", a, b)
    exact = w.binary("divide", w.binary("subtract", a, rest), b)
    exact = w.select(_other_sign(w, rest, b), w.binary("subtract", exact, w.like(a, 1)), exact)
    floor = w.unary("floor", exact)
    up = w.compare("GT", w.binary("subtract", exact, floor), w.like(a, 0.5))
    found, quotient = w.select(up, w.binary("add", floor, w.like(a, 1)), floor), w.binary("divide", a, b)
    found = w.select(w.compare("EQ", exact, w.like(a, 0)), _times(w, quotient, 0.0), found)  # 0 with the sign
    return w.select(w.compare("EQ", b, w.like(b, 0)), quotient, found)


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
    elif category(x.dtype) < 2:
        raise Unsupported("a power of whole numbers")
    elif exponent in (0.5, -0.5):
        found = w.unary("sqrt" if exponent > 0 else "rsqrt", x)
    elif exponent == -1:
        found = w.binary("divide", w.like(x, 1), x)
    else:
        found = w.binary("power", x, call.wide(1, "exponent"))
    return call.finished(found)


@operator(*(f"{name}.{kind}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for kind in ("Tensor", "Scalar")))
def _comparison(call: OperatorCall) -> HloValue:
    given = call.argument(0), call.argument(1, "other")
    a, b = (call.shaped(each, working(common(given)), call.result.dims) for each in given)
    return call.writer.compare(call.node.operator.split(".")[1].upper(), a, b)


# --- of three ---


@operator("where.self")
def _where(call: OperatorCall) -> HloValue:
    dtype = call.result.dtype
    return call.writer.select(call.wide(0, dtype="pred"), call.wide(1, dtype=dtype), call.wide(2, dtype=dtype))


@operator("clamp_min.default", "clamp_min.Tensor", "clamp_max.default", "clamp_max.Tensor")
def _clamp(call: OperatorCall) -> HloValue:
    """What is not a number stays so."""
    opcode = "maximum" if "clamp_min" in call.node.operator else "minimum"
    return call.finished(call.writer.binary(opcode, call.wide(0), call.wide(1, opcode[:3])))


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
