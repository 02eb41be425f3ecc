"""A kernel's body as a CUDA function of the pixels that it reads: one function for each stage of a fused kernel.

    sx: dx * dx                     -->  __device__ __forceinline__ Int sx_stage(Int dx_0)
                                         {
                                             return dx_0 * dx_0;
                                         }

The function is the same wherever the pixels come from (an image, a tile, a register), so every way to fuse computes the
same tree. Values have the types of TYPES: an int32 is an `Int`, whose arithmetic is the one that expr.py defines
(signed overflow is undefined in C++, and a compiler may use that across fused stages).

Names in the text are the user's name, an underscore, and a suffix without one: they can neither clash with each other
nor be a word of C++. An offset is written as on a compass: src_w1n2 is src[-1, -2], src_0 is src[0, 0], src_e1b the
blue of src.b[1, 0].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from fusiond.codegen.code import Code, bare, call, cpp
from fusiond.codegen.literals import literal
from fusiond.codegen.operators import ATOM, UNARY, Term, atom, binary, choice, prefix
from fusiond.codegen.statements import Statements, folded, function
from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.expr import (
    COMPARISONS,
    LOGICAL,
    Access,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Let,
    Local,
    Select,
    Unary,
)
from fusiond_mincut.frontend.graph import Kernel, Pipeline

STORED = {"uint8": "uchar", "int16": "short", "uint16": "ushort", "int32": "int", "float32": "float"}
"""What an image's pixel is in memory."""
TYPES = {**STORED, "int32": "Int", "float64": "double"}
"""What a value is in the text."""
CHANNELS = "rgba"

UCHAR = "typedef unsigned char uchar;\n"
INT = """\
// int32 as the pipeline means it: it wraps round, a division by zero gives 0, a shift counts modulo 32.
struct Int {
    int v;
    Int() = default;
    __device__ __forceinline__ Int(int value) : v(value) {}
    __device__ __forceinline__ explicit operator int() const { return v; }
    __device__ __forceinline__ explicit operator uchar() const { return (uchar)v; }
    __device__ __forceinline__ explicit operator float() const { return (float)v; }
    __device__ __forceinline__ explicit operator double() const { return (double)v; }
};
__device__ __forceinline__ Int operator+(Int a, Int b) { return (int)((unsigned)a.v + (unsigned)b.v); }
__device__ __forceinline__ Int operator-(Int a, Int b) { return (int)((unsigned)a.v - (unsigned)b.v); }
__device__ __forceinline__ Int operator-(Int a) { return (int)(0u - (unsigned)a.v); }
__device__ __forceinline__ Int operator*(Int a, Int b) { return (int)((unsigned)a.v * (unsigned)b.v); }
__device__ __forceinline__ Int operator/(Int a, Int b) { return b.v == 0 ? Int(0) : b.v == -1 ? -a : Int(a.v / b.v); }
__device__ __forceinline__ Int operator%(Int a, Int b) { return b.v == 0 || b.v == -1 ? 0 : a.v % b.v; }
__device__ __forceinline__ Int operator<<(Int a, Int b) { return (int)((unsigned)a.v << (b.v & 31)); }
__device__ __forceinline__ Int operator>>(Int a, Int b) { return a.v >> (b.v & 31); }
__device__ __forceinline__ Int operator&(Int a, Int b) { return a.v & b.v; }
__device__ __forceinline__ Int operator|(Int a, Int b) { return a.v | b.v; }
__device__ __forceinline__ Int operator^(Int a, Int b) { return a.v ^ b.v; }
__device__ __forceinline__ Int operator~(Int a) { return ~a.v; }
__device__ __forceinline__ bool operator<(Int a, Int b) { return a.v < b.v; }
__device__ __forceinline__ bool operator<=(Int a, Int b) { return a.v <= b.v; }
__device__ __forceinline__ bool operator>(Int a, Int b) { return a.v > b.v; }
__device__ __forceinline__ bool operator>=(Int a, Int b) { return a.v >= b.v; }
__device__ __forceinline__ bool operator==(Int a, Int b) { return a.v == b.v; }
__device__ __forceinline__ bool operator!=(Int a, Int b) { return a.v != b.v; }
__device__ __forceinline__ Int min(Int a, Int b) { return a.v < b.v ? a : b; }
__device__ __forceinline__ Int max(Int a, Int b) { return a.v > b.v ? a : b; }
__device__ __forceinline__ Int abs(Int a) { return a.v < 0 ? -a : a; }
__device__ __forceinline__ Int to_int(float a) { return __float2int_rz(a); }
__device__ __forceinline__ Int to_int(double a) { return a == a ? __double2int_rz(a) : 0; }  // a NaN would not be 0
"""


_SHORTS = {"int16": "short", "uint16": "ushort"}
_FIRST = "    __device__ __forceinline__ explicit operator float() const { return (float)v; }\n"


def types(pipeline: Pipeline, kernels: Iterable[str]) -> tuple[str, str]:
    """The text of the integer types that some kernels need, those of 8 and of 32 bits."""
    images = {each for name in kernels for each in (name, *pipeline.kernel(name).reads)}
    held = {pipeline.images[name].dtype for name in images}
    held |= {each.dtype for name in kernels for body in pipeline.kernel(name).bodies for each in tree.walk(body)}
    wide = "".join(
        f"    __device__ __forceinline__ explicit operator {name}() const {{ return ({name})v; }}\n"
        for dtype, name in _SHORTS.items()
        if dtype in held
    )
    small = UCHAR + ("typedef unsigned short ushort;\n" if "uint16" in held else "")
    return small, INT.replace(_FIRST, wide + _FIRST) if wide else INT


def stages(kernel: Kernel, suffix: str = "") -> str:
    """The functions of a kernel, one for each body; their names end with `suffix`."""
    return "".join(_stage(kernel, body, number, suffix) for number, body in enumerate(kernel.bodies))


def pixels(kernel: Kernel, channel: int) -> tuple[Access, ...]:
    """What the function that computes a channel takes, in order; a `channel` of None is the one being computed."""
    return tree.accesses(kernel.bodies[channel if len(kernel.bodies) > 1 else 0])


def stage_of(kernel: Kernel, channel: int) -> str:
    """The name of the function that computes a channel."""
    return f"{kernel.name}_stage{CHANNELS[channel] if len(kernel.bodies) > 1 else ''}"


def offset_name(name: str, dx: int, dy: int, channel: int | None = None) -> str:
    """A value's name: src_0, src_w1, src_e2s1, with the letter of a channel behind it."""
    across = f"{'w' if dx < 0 else 'e'}{abs(dx)}" if dx else ""
    down = f"{'n' if dy < 0 else 's'}{abs(dy)}" if dy else ""
    return f"{name}_{across + down or '0'}{'' if channel is None else CHANNELS[channel]}"


def constant(value: int | float, dtype: str) -> Code:
    """A constant as a C++ expression of its type in TYPES."""
    if dtype == "int32":
        return call("Int", bare(literal(value, dtype)))
    return cpp("{}({})", TYPES[dtype], int(value)) if dtype in tree.INTEGERS else literal(value, dtype)


def _stage(kernel: Kernel, body: Expr, channel: int, suffix: str) -> str:
    taken = pixels(kernel, channel)
    parameters = {each: _parameter(each, taken) for each in taken}
    statements = Statements()
    result = _Trees(parameters, statements).value(tree.converted(body, kernel.dtype))
    statements.line(folded(cpp("return {};", result.code)))
    head = f"__device__ __forceinline__ {TYPES[kernel.dtype]} {stage_of(kernel, channel)}{suffix}"
    return function(head, (f"{TYPES[each.dtype]} {name}" for each, name in parameters.items()), statements)


def _parameter(access: Access, taken: tuple[Access, ...]) -> str:
    """The channel is named only where one image is read at several."""
    channels = {each.channel for each in taken if each.image == access.image}
    return offset_name(access.image, access.dx, access.dy, access.channel if len(channels) > 1 else None)


class _Trees:
    """Prints trees; what Let binds becomes a declaration in `statements`."""

    def __init__(self, pixels: Mapping[Access, str], statements: Statements) -> None:
        self.pixels, self.statements = pixels, statements
        self.locals: dict[str, Code] = {}
        self.bound: Counter[str] = Counter()

    def value(self, expr: Expr) -> Term:
        """A value of TYPES[expr.dtype]."""
        match expr:
            case Const(value, dtype):
                signed = value < 0 and dtype.startswith("float")
                return Term(constant(value, dtype), UNARY if signed else ATOM)
            case Access():
                return atom(self.pixels[expr])
            case Local(name):
                return Term(self.locals[name])
            case Let(name, value, body):
                return self._let(name, value, body)
            case Cast(operand, dtype):
                return Term(self._cast(operand, dtype))
            case Select(condition, then, other):
                return choice(self.condition(condition), self.value(then), self.value(other))
            case Call(name, arguments, dtype):
                return Term(self._call(name, [self.value(each).code for each in arguments], dtype))
            case Unary(op, operand) if op != "!":
                return prefix(op, self.value(operand))
            case Binary(op) if op not in COMPARISONS and op not in LOGICAL:
                return self._operation(expr)
        return Term(call("Int", self.condition(expr).code))

    def condition(self, expr: Expr) -> Term:
        """A bool: whether the value is other than zero."""
        match expr:
            case Binary(op, left, right) if op in LOGICAL:
                return binary(op, self.condition(left), self.condition(right))
            case Binary(op) if op in COMPARISONS:
                return self._operation(expr)
            case Unary("!", operand):
                return prefix("!", self.condition(operand))
        return binary("!=", self.value(expr), atom("0"))

    def _operation(self, expr: Binary) -> Term:
        # An integer constant is written plainly where the other operand makes the operation one of Int.
        plain = isinstance(expr.left, Const) != isinstance(expr.right, Const)
        left, right = (
            Term(literal(each.value, "int32"))
            if plain and isinstance(each, Const) and each.dtype == "int32" and each.value > tree.INT32[0]
            else self.value(each)
            for each in (expr.left, expr.right)
        )
        return binary(expr.op, left, right)

    def _let(self, name: str, value: Expr, body: Expr) -> Term:
        term = self.value(value)
        bound = f"{name}_let{self.bound[name] or ''}"
        self.bound[name] += 1
        outer, kind = dict(self.locals), TYPES[value.dtype]
        column = len(f"const {kind} {bound} = ")
        self.locals[name] = self.statements.declare(kind, bound, folded(term.code, column))
        found = self.value(body)
        self.locals = outer
        return found

    def _cast(self, operand: Expr, dtype: str) -> Code:
        code = self.value(operand).code
        if operand.dtype.startswith("float") and dtype in tree.INTEGERS:
            code = call("to_int", code)
            return code if dtype == "int32" else call(TYPES[dtype], code)
        return call(TYPES[dtype], code)

    @staticmethod
    def _call(name: str, arguments: list[Code], dtype: str) -> Code:
        if name == "clamp":
            value, low, high = arguments
            return _Trees._call("min", [_Trees._call("max", [value, low], dtype), high], dtype)
        if dtype.startswith("float"):
            name = {"min": "fmin", "max": "fmax", "abs": "fabs"}.get(name, name)
            name += "f" if dtype == "float32" else ""
        return call(name, *arguments)
