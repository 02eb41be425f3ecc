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

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusiond_mincut import expr as tree
from fusiond_mincut.expr import (
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
from fusiond_mincut.graph import Kernel

TYPES = {"uint8": "uchar", "int32": "Int", "float32": "float", "float64": "double"}
"""What a value is in the text."""
STORED = {"uint8": "uchar", "int32": "int", "float32": "float"}
"""What an image's pixel is in memory."""
CHANNELS = "rgb"

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

_PRECEDENCE = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, "<=": 7, ">": 7, ">=": 7,
    "<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip
_CHOICE, _UNARY, _ATOM = 0, 11, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The function of one body. `pixels` are its parameters in order; a `channel` of None is the one being computed."""

    name: str
    pixels: tuple[Access, ...]
    text: str


def stages(kernel: Kernel) -> tuple[Stage, ...]:
    """One function for each body of a kernel."""
    several = len(kernel.bodies) > 1
    return tuple(_stage(kernel, body, CHANNELS[number] if several else "") for number, body in enumerate(kernel.bodies))


def stage_of(kernel: Kernel, channel: int) -> str:
    """The name of the function that computes a channel."""
    return f"{kernel.name}_stage{CHANNELS[channel] if len(kernel.bodies) > 1 else ''}"


def offset_name(name: str, dx: int, dy: int, channel: int | None = None) -> str:
    """A value's name: src_0, src_w1, src_e2s1, with the letter of a channel behind it."""
    across = f"{'w' if dx < 0 else 'e'}{abs(dx)}" if dx else ""
    down = f"{'n' if dy < 0 else 's'}{abs(dy)}" if dy else ""
    return f"{name}_{across + down or '0'}{'' if channel is None else CHANNELS[channel]}"


def constant(value: int | float, dtype: str) -> str:
    """A constant as a C++ expression of its type in TYPES."""
    if dtype == "int32":
        return "Int(-2147483647 - 1)" if value == tree.INT32[0] else f"Int({value})"
    return f"uchar({value})" if dtype == "uint8" else _real(float(value), dtype)


def _stage(kernel: Kernel, body: Expr, letter: str) -> Stage:
    pixels = tree.accesses(body)
    shown = _Text({each: _parameter(each, pixels) for each in pixels})
    result = shown.value(body if body.dtype == kernel.dtype else tree.converted(body, kernel.dtype))
    name = f"{kernel.name}_stage{letter}"
    head = f"__device__ __forceinline__ {TYPES[kernel.dtype]} {name}("
    parameters = rows([f"{TYPES[each.dtype]} {shown.pixels[each]}" for each in pixels], "    ", len(head))
    lines = [
        f"{head}{parameters})",
        "{",
        *(f"    {each}" for each in shown.lines),
        f"    return {_wrapped(result)};",
        "}",
    ]
    return Stage(name=name, pixels=pixels, text="\n".join(lines) + "\n")


def _parameter(access: Access, pixels: tuple[Access, ...]) -> str:
    """The channel is named only where one image is read at several."""
    channels = {each.channel for each in pixels if each.image == access.image}
    return offset_name(access.image, access.dx, access.dy, access.channel if len(channels) > 1 else None)


def rows(items: Sequence[str], indent: str, start: int = 0, width: int = 116) -> str:
    """Items with commas between them, in lines that are not too long; the first begins at column `start`."""
    text, column = "", start
    for number, item in enumerate(items):
        last = number == len(items) - 1
        if text and column + len(item) + 2 > width:
            text, column = f"{text.rstrip()}\n{indent}", len(indent)
        text += item if last else f"{item}, "
        column += len(item) + 2
    return text


def _wrapped(text: str, width: int = 112) -> str:
    """Long lines are broken at spaces, for people."""
    lines, line = [], ""
    for word in text.split(" "):
        if line and len(line) + len(word) > width:
            lines.append(line)
            line = "    " * 2 + word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])


class _Text:
    """Trees as C++ text; what Let binds becomes a statement in `lines`."""

    def __init__(self, pixels: Mapping[Access, str]) -> None:
        self.pixels = pixels
        self.lines: list[str] = []
        self.locals: dict[str, str] = {}

    def value(self, expr: Expr) -> str:
        return self.shown(expr)[0]

    def operand(self, expr: Expr, least: int) -> str:
        """The text, in parentheses when it binds less tightly than `least`."""
        text, level = self.shown(expr)
        return text if level >= least else f"({text})"

    def shown(self, expr: Expr) -> tuple[str, int]:
        """The text of a value of TYPES[expr.dtype], and how tightly it binds."""
        match expr:
            case Const(value, dtype):
                return constant(value, dtype), _ATOM if value >= 0 or dtype in ("int32", "uint8") else _UNARY
            case Access():
                return self.pixels[expr], _ATOM
            case Local(name):
                return self.locals[name], _ATOM
            case Let(name, value, body):
                return self._bound(name, value, body)
            case Cast(operand, dtype):
                return self._cast(operand, dtype), _ATOM
            case Select(condition, then, other):
                text = f"{self.condition(condition, 1)} ? {self.operand(then, 1)} : {self.operand(other, 1)}"
                return text, _CHOICE
            case Call(function, arguments, dtype):
                return self._call(function, [self.value(each) for each in arguments], dtype), _ATOM
            case Unary(op, operand):
                if op == "!":
                    return f"Int({self.condition(expr, _CHOICE)})", _ATOM
                return f"{op}{self.operand(operand, _ATOM)}", _UNARY
            case Binary(op):
                if op in COMPARISONS or op in LOGICAL:
                    return f"Int({self.condition(expr, _CHOICE)})", _ATOM
                return self._operation(expr), _PRECEDENCE[op]
        raise AssertionError(expr)

    def condition(self, expr: Expr, least: int) -> str:
        """The text of a bool: whether the value is other than zero."""
        match expr:
            case Binary(op, left, right) if op in LOGICAL:
                level = _PRECEDENCE[op]
                text = f"{self.condition(left, level)} {op} {self.condition(right, level + 1)}"
            case Binary(op) if op in COMPARISONS:
                text, level = self._operation(expr), _PRECEDENCE[op]
            case Unary("!", operand):
                text, level = f"!({self.condition(operand, _CHOICE)})", _UNARY
            case _:
                text, level = f"{self.operand(expr, _PRECEDENCE['!='] + 1)} != 0", _PRECEDENCE["!="]
        return text if level >= least else f"({text})"

    def _operation(self, expr: Binary) -> str:
        level = _PRECEDENCE[expr.op]
        left, right = self.operand(expr.left, level), self.operand(expr.right, level + 1)
        # An integer constant is written plainly where the other operand makes the operation one of Int.
        if isinstance(expr.right, Const) and not isinstance(expr.left, Const):
            right = self._plain(expr.right, right)
        elif isinstance(expr.left, Const) and not isinstance(expr.right, Const):
            left = self._plain(expr.left, left)
        return f"{left} {expr.op} {right}"

    @staticmethod
    def _plain(const: Const, text: str) -> str:
        return str(const.value) if const.dtype == "int32" and const.value > tree.INT32[0] else text

    def _bound(self, name: str, value: Expr, body: Expr) -> tuple[str, int]:
        text = self.value(value)
        number = sum(each.split(" ")[2].startswith(f"{name}_let") for each in self.lines)
        bound = f"{name}_let{number or ''}"
        self.lines.append(f"const {TYPES[value.dtype]} {bound} = {_wrapped(text)};")
        outer = self.locals.get(name)
        self.locals[name] = bound
        found = self.shown(body)
        if outer is None:
            del self.locals[name]
        else:
            self.locals[name] = outer
        return found

    def _cast(self, operand: Expr, dtype: str) -> str:
        text = self.value(operand)
        if operand.dtype.startswith("float") and dtype in ("int32", "uint8"):
            text = f"to_int({text})"
            return text if dtype == "int32" else f"uchar({text})"
        return f"{TYPES[dtype]}({text})"

    @staticmethod
    def _call(function: str, arguments: list[str], dtype: str) -> str:
        if function == "clamp":
            value, low, high = arguments
            return _Text._call("min", [_Text._call("max", [value, low], dtype), high], dtype)
        name = function
        if dtype.startswith("float"):
            name = {"min": "fmin", "max": "fmax", "abs": "fabs"}.get(function, function)
            name += "f" if dtype == "float32" else ""
        return f"{name}({', '.join(arguments)})"


def _real(value: float, dtype: str) -> str:
    """The shortest literal that is exactly this number."""
    text = repr(value)
    if dtype == "float32":
        held = struct.pack("f", value)
        text = next(each for each in (f"{value:.{digits}g}" for digits in range(1, 10))
                    if struct.pack("f", float(each)) == held)  # fmt: skip
    if not any(mark in text for mark in ".en"):
        text += ".0"
    return text + ("f" if dtype == "float32" else "")
