"""HLO's scalar operations in CUDA C++: one expression each, and the device functions that they call.

Floats of 8 and 16 bits are computed in `float` and rounded after each operation, as XLA does on a processor; everything
else is computed in its own type. Where C leaves a result open and HLO does not (a division by zero, a shift by the
width, a float that fits no integer, a signed sum that wraps, NaN in a maximum), a device function says what it is.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fusiond.model.codegen import literals
from fusiond.model.codegen.code import Code, bare, call, cpp
from fusiond.model.codegen.statements import Statements, function
from fusiond.model.language import dtypes
from fusiond_stitching.frontend.graph import DTYPES


@dataclass(frozen=True, slots=True)
class Type:
    """An element type. `memory` is its C++ type in memory, `value` the one in registers; `program` its name in a
    Program."""

    name: str
    program: str
    memory: str
    value: str
    bits: int
    kind: str  #: float, signed, unsigned or pred

    @property
    def size_bytes(self) -> int:
        return max(1, self.bits // 8)

    @property
    def narrow_float(self) -> bool:
        """Computed in float, and rounded."""
        return self.kind == "float" and self.bits < 32

    @property
    def headers(self) -> tuple[str, ...]:
        """The CUDA header that declares it, where there is one."""
        header = dtypes.DTYPES[self.program].header
        return () if header is None else (header,)

    @property
    def integral(self) -> bool:
        return self.kind in ("signed", "unsigned")

    @property
    def unsigned(self) -> str:
        """The C++ type of unsigned integers as wide as this one."""
        return {8: "unsigned char", 16: "unsigned short", 32: "unsigned int", 64: "unsigned long long"}[self.bits]


def _type(name: str) -> Type:
    of = dtypes.DTYPES[DTYPES[name]]
    kind = "pred" if name == "pred" else "float" if of.floating else "unsigned" if name.startswith("u") else "signed"
    narrow = of.floating and of.bytes < 4
    return Type(name, of.name, of.cuda, "float" if narrow else of.cuda, 8 * of.bytes, kind)


TYPES: Mapping[str, Type] = {name: _type(name) for name in DTYPES}
"""All element types that code can be written for, by HLO's names."""


class NoCode(Exception):
    """No code for this operation, or not for this type: what and why, in one line."""


class Functions:
    """The device functions that a source needs, each written once, in the order of first use."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Code, str]] = {}

    def define(self, result: str, name: str, parameters: tuple[str, ...], *lines: str) -> Code:
        """Write a function, unless there is one of that name already: `result`, its type, and the lines of its body.
        Its name, which needs the headers that the body does."""
        if name not in self._found:
            body = Statements()
            body.lines(*lines)
            text = function(f"__device__ __forceinline__ {result} {name}", parameters, body)
            self._found[name] = Code(name, (), body.headers), text
        return self._found[name][0]

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(text for _, text in self._found.values())

    @property
    def headers(self) -> frozenset[str]:
        """What all of them need, whoever calls them."""
        return frozenset[str]().union(*(name.headers for name, _ in self._found.values()))


# --- literals, memory -----------------------------------------------------------------------------------


def literal(kind: Type, value: float | int | bool) -> Code:
    """C text of a constant, exact in the type's precision."""
    return literals.literal(value, kind.program)


def loaded(kind: Type, place: Code) -> Code:
    """The value behind a place in memory."""
    if kind.name == "f16":
        return call("__half2float", place).needing(*kind.headers)
    if kind.name == "bf16":
        return call("__bfloat162float", place).needing(*kind.headers)
    if kind.narrow_float:
        return cpp("(float){}", place).needing(*kind.headers)
    return place


def stored(functions: Functions, kind: Type, value: Code) -> Code:
    """What is written to memory for a value of the type."""
    if kind.name == "f16":
        return call("__float2half_rn", value).needing(*kind.headers)
    if kind.name == "bf16":
        return call("__float2bfloat16_rn", value).needing(*kind.headers)
    if kind.name == "f8e4m3fn":
        return call(kind.memory, value).needing(*kind.headers)
    if kind.name == "f8e5m2":
        # CUDA's conversion ends infinity at the largest number. The upper half of a float16 is the same number here.
        bits = cpp("result.__x = {};", cpp(_AS_BITS[kind.name][0], Code("value"))).needing(*kind.headers)
        body = (cpp("{} result;", kind.memory), bits, Code("return result;"))
        return call(functions.define(kind.memory, "as_f8e5m2", ("float value",), *body), bare(value))
    return value


def rounded(functions: Functions, kind: Type, value: Code) -> Code:
    """A value in `float` brought to the precision of a narrow type; nothing to do for the others."""
    if not kind.narrow_float:
        return value
    if kind.bits == 16:
        lines = (cpp("return {};", loaded(kind, stored(functions, kind, Code("value")))),)
    else:
        # CUDA's conversion ends at the largest number; HLO's does not.
        end, beyond = _BEYOND[kind.name]
        nearest = loaded(kind, call(kind.memory, Code("value")))
        lines = (cpp("return fabsf(value) {} ? {} : {};", end, nearest, beyond),)
    return call(functions.define("float", f"round_{kind.name}", ("float value",), *lines), bare(value))


_BEYOND: Mapping[str, tuple[str, str]] = {
    "f8e4m3fn": ("<= 464.0f", "NAN"),
    "f8e5m2": ("< 61440.0f", "value != value ? value : copysignf(INFINITY, value)"),
}
"""Float of 8 bits -> which sizes are rounded to a finite number (to even), and what the others become."""


# --- unary ----------------------------------------------------------------------------------------------

_SAME = ("log", "sqrt", "rsqrt", "cbrt", "tan", "tanh", "erf", "acos", "acosh", "asin", "asinh", "atanh", "cosh",
         "sinh")  # fmt: skip
_REAL: Mapping[str, str] = {
    "exponential": "exp", "exponential-minus-one": "expm1", "log-plus-one": "log1p", "sine": "sin", "cosine": "cos",
    **dict(zip(_SAME, _SAME, strict=True)),
}  # fmt: skip
"""Opcode -> C function of a double; with f of a float."""

_EXACT = {"ceil": "ceil", "floor": "floor", "round-nearest-afz": "round", "round-nearest-even": "rint"}
"""The same, for results that need no rounding."""


def unary(functions: Functions, opcode: str, kind: Type, a: Code) -> Code:
    """The expression of a unary operation on a value (a name or a literal) of type `kind`. Raises NoCode."""
    if opcode == "copy":
        return a
    if kind.kind == "float":
        return _unary_float(functions, opcode, kind, a)
    if opcode == "not":
        return cpp("!{}", a) if kind.kind == "pred" else _wrapped(kind, cpp("~{}", a))
    if kind.integral:
        return _unary_integer(functions, opcode, kind, a)
    raise NoCode(f"{opcode} of {kind.name} is not supported")


def _unary_float(functions: Functions, opcode: str, kind: Type, a: Code) -> Code:
    f = "" if kind.bits == 64 else "f"
    if opcode in _REAL:
        return rounded(functions, kind, cpp("{}{}({})", _REAL[opcode], f, a))
    if opcode in _EXACT:
        return cpp("{}{}({})", _EXACT[opcode], f, a)
    if opcode == "abs":
        return cpp("fabs{}({})", f, a)
    if opcode == "negate":
        return cpp("-{}", a) if not a.startswith("-") else cpp("-({})", a)
    if opcode == "is-finite":
        return cpp("(fabs{}({}) < {})", f, a, literal(kind, math.inf))
    if opcode == "logistic":
        one = literal(kind, 1.0)
        return rounded(functions, kind, cpp("{} / ({} + exp{}(-({})))", one, one, f, a))
    if opcode == "sign":
        zero, one = literal(kind, 0.0), literal(kind, 1.0)
        line = f"return value > {zero} ? {one} : value < {zero} ? -{one} : value;  // keeps -0 and NaN"
        return call(functions.define(kind.value, f"sign_{_wide(kind)}", (f"{kind.value} value",), line), a)
    raise NoCode(f"{opcode} of {kind.name} is not supported")


def _unary_integer(functions: Functions, opcode: str, kind: Type, a: Code) -> Code:
    signed = kind.kind == "signed"
    if opcode == "negate":
        return _wrapped(kind, cpp("0 - ({}){}", kind.unsigned, a))
    if opcode == "abs":
        return cpp("({} < 0 ? {} : {})", a, _wrapped(kind, cpp("0 - ({}){}", kind.unsigned, a)), a) if signed else a
    if opcode == "sign":
        return cpp("({})(({} > 0) - ({} < 0))", kind.value, a, a) if signed else cpp("({})({} != 0)", kind.value, a)
    if opcode == "popcnt":
        count = cpp("__popcll({})", a) if kind.bits == 64 else cpp("__popc(({}){})", kind.unsigned, a)
        return cpp("({}){}", kind.value, count)
    if opcode == "count-leading-zeros":
        if kind.bits == 64:
            return cpp("({})__clzll((long long){})", kind.value, a)
        spare = f" - {32 - kind.bits}" if kind.bits < 32 else ""
        return cpp("({})(__clz((int)({}){}){})", kind.value, kind.unsigned, a, spare)
    raise NoCode(f"{opcode} of {kind.name} is not supported")


# --- binary ---------------------------------------------------------------------------------------------

_OPERATORS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "and": "&", "or": "|", "xor": "^"}
_LOGIC = {"xor": "!=", **dict.fromkeys(("and", "multiply", "minimum"), "&&"),
          **dict.fromkeys(("or", "add", "maximum"), "||")}  # fmt: skip


def binary(functions: Functions, opcode: str, kind: Type, a: Code, b: Code) -> Code:
    """The expression of a binary operation on two values of type `kind`. Raises NoCode."""
    if kind.kind == "pred":
        if opcode not in _LOGIC:
            raise NoCode(f"{opcode} of pred is not supported")
        return cpp("({} {} {})", a, _LOGIC[opcode], b)
    if kind.kind == "float":
        return _binary_float(functions, opcode, kind, a, b)
    return _binary_integer(functions, opcode, kind, a, b)


def _binary_float(functions: Functions, opcode: str, kind: Type, a: Code, b: Code) -> Code:
    f = "" if kind.bits == 64 else "f"
    if opcode in ("add", "subtract", "multiply", "divide"):
        return rounded(functions, kind, cpp("({} {} {})", a, _OPERATORS[opcode], b))
    if opcode in ("maximum", "minimum"):
        sign = ">" if opcode == "maximum" else "<"
        line = f"return a != a || a {sign} b ? a : b;  // NaN if either is"
        # When b is NaN, `a > b` is false and b it is.
        return call(functions.define(kind.value, f"{opcode}_{_wide(kind)}", _two(kind), line), a, b)
    if name := {"remainder": "fmod", "power": "pow", "atan2": "atan2"}.get(opcode):
        return rounded(functions, kind, cpp("{}{}({}, {})", name, f, a, b))
    raise NoCode(f"{opcode} of {kind.name} is not supported")


def _wide(kind: Type) -> str:
    """The type in which values of this one are computed."""
    return "f32" if kind.narrow_float else kind.name


def _wrapped(kind: Type, expression: Code) -> Code:
    """The bits that remain of a sum or product of unsigned values."""
    return cpp("({})({})", kind.value, expression)


_BITS: Mapping[str, str] = {
    "shift-left": "return ({U})b < {bits} ? ({T})(({U})a << ({U})b) : ({T})0;",
    "shift-right-logical": "return ({U})b < {bits} ? ({T})(({U})a >> ({U})b) : ({T})0;",
    "shift-right-arithmetic": "return ({S})a >> (({U})b < {bits} ? ({U})b : {bits} - 1);",
}


def _binary_integer(functions: Functions, opcode: str, kind: Type, a: Code, b: Code) -> Code:
    if opcode in ("and", "or", "xor"):
        return cpp("({})({} {} {})", kind.value, a, _OPERATORS[opcode], b)
    if opcode in ("add", "subtract", "multiply"):
        # Unsigned arithmetic wraps; so does the cast back, in nvcc, in g++ and since C++20 by the standard.
        wide = "unsigned long long" if kind.bits == 64 else "unsigned int"
        if kind.value == wide:
            return cpp("({} {} {})", a, _OPERATORS[opcode], b)
        return _wrapped(kind, cpp("({}){} {} ({}){}", wide, a, _OPERATORS[opcode], wide, b))
    if opcode in ("maximum", "minimum"):
        return cpp("({} {} {} ? {} : {})", a, ">" if opcode == "maximum" else "<", b, a, b)
    signed = f"signed {kind.unsigned.removeprefix('unsigned ')}"
    if opcode in _BITS:
        lines = [_BITS[opcode].format(T=kind.value, U=kind.unsigned, S=signed, bits=kind.bits)]
    elif opcode == "divide":
        lines = [f"if (b == 0) return ({kind.value})-1;", *_no_overflow(kind, "a"), "return a / b;"]
    elif opcode == "remainder":
        lines = ["if (b == 0) return a;", *_no_overflow(kind, "0"), "return a % b;"]
    elif opcode == "power":
        lines = _power(kind)
    else:
        raise NoCode(f"{opcode} of {kind.name} is not supported")
    name = f"{opcode.replace('-', '_')}_{kind.name}"
    return call(functions.define(kind.value, name, _two(kind), *lines), a, b)


def _two(kind: Type) -> tuple[str, str]:
    """The parameters of a binary function."""
    return f"{kind.value} a", f"{kind.value} b"


def _no_overflow(kind: Type, answer: str) -> tuple[str, ...]:
    """The one signed division that does not fit: the least value by -1."""
    if kind.kind != "signed" or kind.bits < 32:
        return ()
    least = literal(kind, -(1 << (kind.bits - 1)))
    return (f"if (b == -1 && a == {least}) return {answer};",)


def _power(kind: Type) -> list[str]:
    negative: list[str] = []
    if kind.kind == "signed":  # the floor towards zero of 1 / a^n
        negative = [f"if (b < 0) return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : ({kind.value})0;"]
    wide = "unsigned long long" if kind.bits == 64 else "unsigned int"
    return [
        *negative,
        f"{wide} result = 1, square = ({wide})a;",
        f"for ({kind.unsigned} rest = ({kind.unsigned})b; rest != 0; rest >>= 1) {{",
        "    if (rest & 1) result *= square;",
        "    square *= square;",
        "}",
        f"return ({kind.value})result;",
    ]


# --- comparisons, selections, conversions ---------------------------------------------------------------

_DIRECTIONS = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}


def compare(functions: Functions, direction: str, kind: Type, a: Code, b: Code, *, total_order: bool = False) -> Code:
    """A comparison of two values. With `total_order`: -NaN < -inf < ... < -0 < 0 < ... < inf < NaN."""
    if total_order and kind.kind == "float":
        whole, bits = ("long long", "__double_as_longlong") if kind.bits == 64 else ("int", "__float_as_int")
        last = "0x7fffffffffffffffLL" if kind.bits == 64 else "0x7fffffff"
        lines = (f"const {whole} bits = {bits}(value);", f"return bits < 0 ? bits ^ {last} : bits;")
        rank = functions.define(whole, f"rank_{_wide(kind)}", (f"{kind.value} value",), *lines)
        a, b = call(rank, a), call(rank, b)
    if kind.kind == "unsigned" and b == literal(kind, 0) and direction in ("LT", "GE"):
        return Code("true" if direction == "GE" else "false")  # nvcc warns of the comparison
    return cpp("({} {} {})", a, _DIRECTIONS[direction], b)


def clamp(functions: Functions, kind: Type, low: Code, value: Code, high: Code) -> Code:
    """min(max(value, low), high), NaN where any of them is."""
    return binary(functions, "minimum", kind, _atomic(binary(functions, "maximum", kind, value, low)), high)


def _atomic(value: Code) -> Code:
    return value if value.isidentifier() or value.endswith(")") else cpp("({})", value)


def convert(functions: Functions, source: Type, target: Type, a: Code) -> Code:
    """A value brought to another type: integers wrap, floats saturate (NaN becomes 0), truth is 0 or 1."""
    if source.name == target.name:
        return a
    if target.kind == "pred":
        return cpp("({} != {})", a, literal(source, 0))
    if target.kind == "float":
        value = a if source.value == target.value else cpp("({}){}", target.value, a)
        # Every truth value is a number of a narrow type, and wide types are computed in their own precision.
        return value if not target.narrow_float or source.kind == "pred" else rounded(functions, target, value)
    if source.kind != "float":
        return cpp("({}){}", target.value, a)
    low, high = dtypes.whole_numbers(target.program)
    wide = TYPES["f64" if source.bits == 64 else "f32"]  # every float holds exactly the powers of two that do not fit
    lines = (
        "if (value != value) return 0;",
        f"if (value <= {literal(wide, float(low))}) return {literal(target, low)};",
        f"if (value >= {literal(wide, float(high + 1))}) return {literal(target, high)};",
        f"return ({target.value})value;",
    )
    name = f"{_wide(source)}_to_{target.name}"
    return call(functions.define(target.value, name, (f"{source.value} value",), *lines), a)


_AS_BITS: Mapping[str, tuple[str, str]] = {
    "f32": ("(unsigned int)__float_as_int({})", "__int_as_float((int){})"),
    "f64": ("(unsigned long long)__double_as_longlong({})", "__longlong_as_double((long long){})"),
    "f16": ("__half_as_ushort(__float2half_rn({}))", "__half2float(__ushort_as_half({}))"),
    "bf16": ("__bfloat16_as_ushort(__float2bfloat16_rn({}))", "__bfloat162float(__ushort_as_bfloat16({}))"),
    "f8e4m3fn": ("__nv_fp8_e4m3({}).__x", "f8e4m3fn_of({})"),
    "f8e5m2": ("(unsigned char)(__half_as_ushort(__float2half_rn({})) >> 8)", "f8e5m2_of({})"),
}
"""Type -> (its bits as an unsigned integer, the value of such bits)."""


def bitcast_convert(functions: Functions, source: Type, target: Type, a: Code) -> Code:
    """The same bits as another type of the same width. Raises NoCode for other widths."""
    if source.bits != target.bits or "pred" in (source.kind, target.kind):
        raise NoCode(f"a bitcast-convert from {source.name} to {target.name} is not supported")
    unsigned = (
        cpp(_AS_BITS[source.name][0], a).needing(*source.headers)
        if source.kind == "float"
        else cpp("({}){}", source.unsigned, a)
    )
    if target.kind == "float":
        if target.bits == 8:
            body = (f"{target.memory} value;", "value.__x = bits;", "return (float)value;")
            functions.define("float", f"{target.name}_of", ("unsigned char bits",), *body)
        return cpp(_AS_BITS[target.name][1], cpp("({}){}", target.unsigned, _atomic(unsigned))).needing(*target.headers)
    return cpp("({}){}", target.value, _atomic(unsigned))


def reduce_precision(functions: Functions, kind: Type, exponent_bits: int, mantissa_bits: int, a: Code) -> Code:
    """A float as one with fewer bits would hold it: rounded to even, infinite above its range, zero below (it has no
    subnormal numbers)."""
    if kind.kind != "float":
        raise NoCode(f"reduce-precision of {kind.name} is not supported")
    wide = kind.bits == 64
    mantissa, exponent = (52, 11) if wide else (23, 8)
    whole = "unsigned long long" if wide else "unsigned int"
    end = "ULL" if wide else "u"
    bits, value = _AS_BITS["f64" if wide else "f32"]
    lines = ["if (value != value) return value;", f"{whole} bits = {bits.format('value')};"]
    if mantissa_bits < mantissa:
        spare = mantissa - mantissa_bits
        lines.append(f"bits += ((bits >> {spare}) & 1{end}) + {(1 << (spare - 1)) - 1}{end};")
        lines.append(f"bits &= ~{(1 << spare) - 1}{end};")
    if exponent_bits < exponent:
        bias, reduced = (1 << (exponent - 1)) - 1, (1 << (exponent_bits - 1)) - 1
        infinite = ((1 << exponent) - 1) << mantissa
        lines += [
            f"const {whole} size = bits & {infinite}{end}, sign = bits & {1 << (mantissa + exponent)}{end};",
            f"if (size > {(bias + reduced) << mantissa}{end}) bits = sign | {infinite}{end};",
            f"if (size <= {(bias - reduced) << mantissa}{end}) bits = sign;",
        ]
    lines.append(f"return {value.format('bits')};")
    name = f"precision_{exponent_bits}_{mantissa_bits}_{_wide(kind)}"
    return call(functions.define(kind.value, name, (f"{kind.value} value",), *lines), a)
