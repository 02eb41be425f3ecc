"""What HLO's scalar operations mean, in CUDA C++: one expression each, and the device functions that they call.

float16 and bfloat16 are computed in `float` and rounded after each operation, as XLA does on a processor; everything
else is computed in its own type. Where C leaves a result open and HLO does not (a division by zero, a shift by the
width, a float that fits no integer, a signed sum that wraps, NaN in a maximum), a device function says what it is.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Type:
    """An element type. `memory` is its C++ type in memory, `value` the one in registers; `program` its name in a
    Program."""

    name: str
    program: str
    memory: str
    value: str
    bits: int
    kind: str
    """float, signed, unsigned or pred."""

    @property
    def size_bytes(self) -> int:
        return max(1, self.bits // 8)

    @property
    def narrow_float(self) -> bool:
        """Computed in float, and rounded."""
        return self.kind == "float" and self.bits == 16

    @property
    def integral(self) -> bool:
        return self.kind in ("signed", "unsigned")

    @property
    def unsigned(self) -> str:
        """The C++ type of unsigned integers as wide as this one."""
        return {8: "unsigned char", 16: "unsigned short", 32: "unsigned int", 64: "unsigned long long"}[self.bits]


TYPES: Mapping[str, Type] = {
    each.name: each
    for each in (
        Type("pred", "bool", "bool", "bool", 8, "pred"),
        Type("s8", "int8", "signed char", "signed char", 8, "signed"),
        Type("s16", "int16", "short", "short", 16, "signed"),
        Type("s32", "int32", "int", "int", 32, "signed"),
        Type("s64", "int64", "long long", "long long", 64, "signed"),
        Type("u8", "uint8", "unsigned char", "unsigned char", 8, "unsigned"),
        Type("u16", "uint16", "unsigned short", "unsigned short", 16, "unsigned"),
        Type("u32", "uint32", "unsigned int", "unsigned int", 32, "unsigned"),
        Type("u64", "uint64", "unsigned long long", "unsigned long long", 64, "unsigned"),
        Type("f16", "float16", "__half", "float", 16, "float"),
        Type("bf16", "bfloat16", "__nv_bfloat16", "float", 16, "float"),
        Type("f32", "float32", "float", "float", 32, "float"),
        Type("f64", "float64", "double", "double", 64, "float"),
    )
}
"""All element types that code can be written for, by HLO's names."""


class Unsupported(Exception):
    """No code for this operation, or not for this type: what and why, in one line."""


class Functions:
    """The device functions that a source needs, each written once, in the order of first use."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def use(self, name: str, text: str) -> str:
        """Remember a function; its name."""
        self._texts.setdefault(name, text)
        return name

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self._texts.values())

    @property
    def headers(self) -> tuple[str, ...]:
        """The CUDA headers that the functions need."""
        whole = "\n".join(self._texts.values())
        return tuple(header for header, word in (("cuda_fp16.h", "half"), ("cuda_bf16.h", "bfloat16")) if word in whole)


def _define(functions: Functions, signature: str, body: str) -> str:
    name = signature[: signature.index("(")].split()[-1]
    return functions.use(name, f"__device__ __forceinline__ {signature}\n{{\n{body}\n}}\n")


# --- literals, memory -----------------------------------------------------------------------------------


def literal(kind: Type, value: float | int | bool) -> str:
    """C text of a constant, exact in the type's precision."""
    if kind.kind == "pred":
        return "true" if value else "false"
    if kind.integral:
        return _integer(kind, int(value))
    number = float(value)
    suffix = "" if kind.bits == 64 else "f"
    if math.isnan(number):
        return "(double)NAN" if kind.bits == 64 else "NAN"
    if math.isinf(number):
        word = "(double)INFINITY" if kind.bits == 64 else "INFINITY"
        return f"-{word}" if number < 0 else word
    if kind.bits < 64:
        number = _narrowed(number)
    shortest = _shortest(number, kind.bits)
    return shortest + suffix


def _integer(kind: Type, value: int) -> str:
    if kind.kind == "signed":
        value = (value + (1 << (kind.bits - 1))) % (1 << kind.bits) - (1 << (kind.bits - 1))
        suffix = "LL" if kind.bits == 64 else ""
        if kind.bits >= 32 and value == -(1 << (kind.bits - 1)):
            return f"(-{(1 << (kind.bits - 1)) - 1}{suffix} - 1)"
        return f"{value}{suffix}"
    return f"{value % (1 << kind.bits)}{'ULL' if kind.bits == 64 else 'u'}"


def _narrowed(number: float) -> float:
    try:
        narrowed: float = struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return narrowed


def _shortest(number: float, bits: int) -> str:
    text = repr(number)
    if number.is_integer() and abs(number) < 1e7:
        return f"{number:.1f}"
    if bits < 64:
        for digits in range(1, 10):
            text = f"{number:.{digits}g}"
            if _narrowed(float(text)) == number:
                break
    return text if any(mark in text for mark in ".en") else f"{text}.0"


def loaded(kind: Type, place: str) -> str:
    """The value behind a place in memory."""
    if kind.name == "f16":
        return f"__half2float({place})"
    if kind.name == "bf16":
        return f"__bfloat162float({place})"
    return place


def stored(kind: Type, value: str) -> str:
    """What is written to memory for a value."""
    if kind.name == "f16":
        return f"__float2half_rn({value})"
    if kind.name == "bf16":
        return f"__float2bfloat16_rn({value})"
    return value


def rounded(functions: Functions, kind: Type, value: str) -> str:
    """A value in `float` brought to the precision of a narrow type; nothing to do for the others."""
    if not kind.narrow_float:
        return value
    round_trip = loaded(kind, stored(kind, "value"))
    name = _define(functions, f"float round_{kind.name}(float value)", f"    return {round_trip};")
    return f"{name}({bare(value)})"


def bare(value: str) -> str:
    """Without the parentheses that enclose all of it."""
    if not (value.startswith("(") and value.endswith(")")):
        return value
    depth = 0
    for place, letter in enumerate(value):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0 and place < len(value) - 1:
            return value
    return value[1:-1]


# --- unary ----------------------------------------------------------------------------------------------

_REAL: Mapping[str, str] = {
    "exponential": "exp",
    "exponential-minus-one": "expm1",
    "log": "log",
    "log-plus-one": "log1p",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "cbrt": "cbrt",
    "sine": "sin",
    "cosine": "cos",
    "tan": "tan",
    "tanh": "tanh",
    "erf": "erf",
    "acos": "acos",
    "acosh": "acosh",
    "asin": "asin",
    "asinh": "asinh",
    "atanh": "atanh",
    "cosh": "cosh",
    "sinh": "sinh",
}
"""Opcode -> C function of a double; with f of a float."""

_EXACT: Mapping[str, str] = {
    "ceil": "ceil",
    "floor": "floor",
    "round-nearest-afz": "round",
    "round-nearest-even": "rint",
}
"""The same, for results that need no rounding."""

UNARY = frozenset(
    {*_REAL, *_EXACT, "abs", "negate", "sign", "logistic", "is-finite", "not", "popcnt", "count-leading-zeros"}
    | {"copy", "optimization-barrier"}
)
BINARY = frozenset(
    {"add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "power", "atan2", "and", "or", "xor"}
    | {"shift-left", "shift-right-arithmetic", "shift-right-logical"}
)
EXPENSIVE = frozenset({*_REAL, "logistic", "divide", "remainder", "power", "atan2"})
"""Worth keeping in shared memory rather than computing twice."""


def unary(functions: Functions, opcode: str, kind: Type, a: str) -> str:
    """The expression of a unary operation on a value (a name or a literal) of type `kind`. Raises Unsupported."""
    if opcode in ("copy", "optimization-barrier"):
        return a
    if kind.kind == "float":
        return _unary_float(functions, opcode, kind, a)
    if opcode == "not":
        return f"!{a}" if kind.kind == "pred" else _wrapped(kind, f"~{a}")
    if kind.integral:
        return _unary_integer(functions, opcode, kind, a)
    raise Unsupported(f"no {opcode} of {kind.name}")


def _unary_float(functions: Functions, opcode: str, kind: Type, a: str) -> str:
    f = "" if kind.bits == 64 else "f"
    if opcode in _REAL:
        return rounded(functions, kind, f"{_REAL[opcode]}{f}({a})")
    if opcode in _EXACT:
        return f"{_EXACT[opcode]}{f}({a})"
    if opcode == "abs":
        return f"fabs{f}({a})"
    if opcode == "negate":
        return f"-{a}" if not a.startswith("-") else f"-({a})"
    if opcode == "is-finite":
        return f"(fabs{f}({a}) < {literal(kind, math.inf)})"
    if opcode == "logistic":
        one = literal(kind, 1.0)
        return rounded(functions, kind, f"{one} / ({one} + exp{f}(-({a})))")
    if opcode == "sign":
        zero, one = literal(kind, 0.0), literal(kind, 1.0)
        body = f"    return value > {zero} ? {one} : value < {zero} ? -{one} : value;  // keeps -0 and NaN"
        return f"{_define(functions, f'{kind.value} sign_{_wide(kind)}({kind.value} value)', body)}({a})"
    raise Unsupported(f"no {opcode} of {kind.name}")


def _unary_integer(functions: Functions, opcode: str, kind: Type, a: str) -> str:
    signed = kind.kind == "signed"
    if opcode == "negate":
        return _wrapped(kind, f"0 - ({kind.unsigned}){a}")
    if opcode == "abs":
        return f"({a} < 0 ? {_wrapped(kind, f'0 - ({kind.unsigned}){a}')} : {a})" if signed else a
    if opcode == "sign":
        return f"({kind.value})(({a} > 0) - ({a} < 0))" if signed else f"({kind.value})({a} != 0)"
    if opcode == "popcnt":
        count = f"__popcll({a})" if kind.bits == 64 else f"__popc(({kind.unsigned}){a})"
        return f"({kind.value}){count}"
    if opcode == "count-leading-zeros":
        if kind.bits == 64:
            return f"({kind.value})__clzll((long long){a})"
        spare = f" - {32 - kind.bits}" if kind.bits < 32 else ""
        return f"({kind.value})(__clz((int)({kind.unsigned}){a}){spare})"
    raise Unsupported(f"no {opcode} of {kind.name}")


# --- binary ---------------------------------------------------------------------------------------------

_OPERATORS: Mapping[str, str] = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "and": "&",
    "or": "|",
    "xor": "^",
}
_LOGIC: Mapping[str, str] = {
    "and": "{a} && {b}",
    "multiply": "{a} && {b}",
    "minimum": "{a} && {b}",
    "or": "{a} || {b}",
    "add": "{a} || {b}",
    "maximum": "{a} || {b}",
    "xor": "{a} != {b}",
}


def binary(functions: Functions, opcode: str, kind: Type, a: str, b: str) -> str:
    """The expression of a binary operation on two values of type `kind`. Raises Unsupported."""
    if kind.kind == "pred":
        if opcode not in _LOGIC:
            raise Unsupported(f"no {opcode} of pred")
        return f"({_LOGIC[opcode].format(a=a, b=b)})"
    if kind.kind == "float":
        return _binary_float(functions, opcode, kind, a, b)
    return _binary_integer(functions, opcode, kind, a, b)


def _binary_float(functions: Functions, opcode: str, kind: Type, a: str, b: str) -> str:
    f = "" if kind.bits == 64 else "f"
    if opcode in ("add", "subtract", "multiply", "divide"):
        return rounded(functions, kind, f"({a} {_OPERATORS[opcode]} {b})")
    if opcode in ("maximum", "minimum"):
        sign = ">" if opcode == "maximum" else "<"
        body = f"    return a != a || a {sign} b ? a : b;  // NaN if either is" if kind.kind == "float" else ""
        # When b is NaN, `a > b` is false and b it is.
        arguments = f"{kind.value} a, {kind.value} b"
        return f"{_define(functions, f'{kind.value} {opcode}_{_wide(kind)}({arguments})', body)}({a}, {b})"
    if opcode == "remainder":
        return rounded(functions, kind, f"fmod{f}({a}, {b})")
    if opcode == "power":
        return rounded(functions, kind, f"pow{f}({a}, {b})")
    if opcode == "atan2":
        return rounded(functions, kind, f"atan2{f}({a}, {b})")
    raise Unsupported(f"no {opcode} of {kind.name}")


def _wide(kind: Type) -> str:
    """The type in which values of this one are computed."""
    return "f32" if kind.narrow_float else kind.name


def _wrapped(kind: Type, expression: str) -> str:
    """The bits that remain of a sum or product of unsigned values."""
    return f"({kind.value})({expression})"


_BITS: Mapping[str, str] = {
    "shift-left": "    return ({U})b < {bits} ? ({T})(({U})a << ({U})b) : ({T})0;",
    "shift-right-logical": "    return ({U})b < {bits} ? ({T})(({U})a >> ({U})b) : ({T})0;",
    "shift-right-arithmetic": "    return ({S})a >> (({U})b < {bits} ? ({U})b : {bits} - 1);",
}


def _binary_integer(functions: Functions, opcode: str, kind: Type, a: str, b: str) -> str:
    if opcode in ("and", "or", "xor"):
        return f"({kind.value})({a} {_OPERATORS[opcode]} {b})"
    if opcode in ("add", "subtract", "multiply"):
        # Unsigned arithmetic wraps; so does the cast back, in nvcc, in g++ and since C++20 by the standard.
        wide = "unsigned long long" if kind.bits == 64 else "unsigned int"
        if kind.value == wide:
            return f"({a} {_OPERATORS[opcode]} {b})"
        return _wrapped(kind, f"({wide}){a} {_OPERATORS[opcode]} ({wide}){b}")
    if opcode in ("maximum", "minimum"):
        return f"({a} {'>' if opcode == 'maximum' else '<'} {b} ? {a} : {b})"
    signed = f"signed {kind.unsigned.removeprefix('unsigned ')}"
    body = ""
    if opcode in _BITS:
        body = _BITS[opcode].format(T=kind.value, U=kind.unsigned, S=signed, bits=kind.bits)
    elif opcode == "divide":
        body = _lines(f"if (b == 0) return ({kind.value})-1;", *_no_overflow(kind, "a"), "return a / b;")
    elif opcode == "remainder":
        body = _lines("if (b == 0) return a;", *_no_overflow(kind, "0"), "return a % b;")
    elif opcode == "power":
        body = _power(kind)
    if not body:
        raise Unsupported(f"no {opcode} of {kind.name}")
    name = f"{opcode.replace('-', '_')}_{kind.name}"
    return f"{_define(functions, f'{kind.value} {name}({kind.value} a, {kind.value} b)', body)}({a}, {b})"


def _lines(*lines: str) -> str:
    return "\n".join(f"    {line}" for line in lines)


def _no_overflow(kind: Type, answer: str) -> tuple[str, ...]:
    """The one signed division that does not fit: the least value by -1."""
    if kind.kind != "signed" or kind.bits < 32:
        return ()
    least = _integer(kind, -(1 << (kind.bits - 1)))
    return (f"if (b == -1 && a == {least}) return {answer};",)


def _power(kind: Type) -> str:
    negative: tuple[str, ...] = ()
    if kind.kind == "signed":  # the floor towards zero of 1 / a^n
        negative = (f"if (b < 0) return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : ({kind.value})0;",)
    wide = "unsigned long long" if kind.bits == 64 else "unsigned int"
    return _lines(
        *negative,
        f"{wide} result = 1, square = ({wide})a;",
        f"for ({kind.unsigned} rest = ({kind.unsigned})b; rest != 0; rest >>= 1) {{",
        "    if (rest & 1) result *= square;",
        "    square *= square;",
        "}",
        f"return ({kind.value})result;",
    )


# --- comparisons, selections, conversions ---------------------------------------------------------------

_DIRECTIONS = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}


def compare(functions: Functions, direction: str, kind: Type, a: str, b: str, *, total_order: bool = False) -> str:
    """A comparison of two values. With `total_order`: -NaN < -inf < ... < -0 < 0 < ... < inf < NaN."""
    if total_order and kind.kind == "float":
        whole, bits = ("long long", "__double_as_longlong") if kind.bits == 64 else ("int", "__float_as_int")
        last = "0x7fffffffffffffffLL" if kind.bits == 64 else "0x7fffffff"
        body = _lines(f"const {whole} bits = {bits}(value);", f"return bits < 0 ? bits ^ {last} : bits;")
        name = _define(functions, f"{whole} rank_{_wide(kind)}({kind.value} value)", body)
        a, b = f"{name}({a})", f"{name}({b})"
    if kind.kind == "unsigned" and b == literal(kind, 0) and direction in ("LT", "GE"):
        return "true" if direction == "GE" else "false"  # nvcc warns of the comparison
    return f"({a} {_DIRECTIONS[direction]} {b})"


def clamp(functions: Functions, kind: Type, low: str, value: str, high: str) -> str:
    """min(max(value, low), high), NaN where any of them is."""
    return binary(functions, "minimum", kind, _atomic(binary(functions, "maximum", kind, value, low)), high)


def _atomic(value: str) -> str:
    return value if value.isidentifier() or value.endswith(")") else f"({value})"


def convert(functions: Functions, source: Type, target: Type, a: str) -> str:
    """A value brought to another type: integers wrap, floats saturate (NaN becomes 0), truth is 0 or 1."""
    if source.name == target.name:
        return a
    if target.kind == "pred":
        return f"({a} != {literal(source, 0)})"
    if target.kind == "float":
        value = a if source.value == target.value else f"({target.value}){a}"
        return value if _holds(target, source) else rounded(functions, target, value)
    if source.kind != "float":
        return f"({target.value}){a}"
    wide = _wide(source)
    body = _lines(
        "if (value != value) return 0;",
        f"if (value <= {_bound(source, target, low=True)}) return {_limit(target, low=True)};",
        f"if (value >= {_bound(source, target, low=False)}) return {_limit(target, low=False)};",
        f"return ({target.value})value;",
    )
    signature = f"{target.value} {wide}_to_{target.name}({source.value} value)"
    return f"{_define(functions, signature, body)}({a})"


def _holds(target: Type, source: Type) -> bool:
    """Every value of `source` is one of `target`, or the target is computed in its own precision."""
    return not target.narrow_float or source.kind == "pred"


def _limit(kind: Type, *, low: bool) -> str:
    if low:
        return _integer(kind, -(1 << (kind.bits - 1)) if kind.kind == "signed" else 0)
    return _integer(kind, (1 << (kind.bits - (1 if kind.kind == "signed" else 0))) - 1)


def _bound(source: Type, target: Type, *, low: bool) -> str:
    """The power of two from which on a value does not fit: every float holds it exactly."""
    if low:
        value = -float(1 << (target.bits - 1)) if target.kind == "signed" else 0.0
    else:
        value = float(1 << (target.bits - (1 if target.kind == "signed" else 0)))
    return literal(TYPES["f64" if source.bits == 64 else "f32"], value)


_AS_BITS: Mapping[str, tuple[str, str]] = {
    "f32": ("(unsigned int)__float_as_int({})", "__int_as_float((int){})"),
    "f64": ("(unsigned long long)__double_as_longlong({})", "__longlong_as_double((long long){})"),
    "f16": ("__half_as_ushort(__float2half_rn({}))", "__half2float(__ushort_as_half({}))"),
    "bf16": ("__bfloat16_as_ushort(__float2bfloat16_rn({}))", "__bfloat162float(__ushort_as_bfloat16({}))"),
}
"""Type -> (its bits as an unsigned integer, the value of such bits)."""


def bitcast_convert(source: Type, target: Type, a: str) -> str:
    """The same bits as another type of the same width. Raises Unsupported for other widths."""
    if source.bits != target.bits or "pred" in (source.kind, target.kind):
        raise Unsupported(f"no bitcast-convert from {source.name} to {target.name}")
    unsigned = _AS_BITS[source.name][0].format(a) if source.kind == "float" else f"({source.unsigned}){a}"
    if target.kind == "float":
        return _AS_BITS[target.name][1].format(f"({target.unsigned}){_atomic(unsigned)}")
    return f"({target.value}){_atomic(unsigned)}"


def reduce_precision(functions: Functions, kind: Type, exponent_bits: int, mantissa_bits: int, a: str) -> str:
    """A float as one with fewer bits would hold it: rounded to even, infinite above its range, zero below (it has no
    subnormal numbers)."""
    if kind.kind != "float":
        raise Unsupported(f"no reduce-precision of {kind.name}")
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
    signature = f"{kind.value} precision_{exponent_bits}_{mantissa_bits}_{_wide(kind)}({kind.value} value)"
    return f"{_define(functions, signature, _lines(*lines))}({a})"
