"""The tree of a kernel's body: typed as C types it, one node for each operation.

    Expr = Const(value)                              3, 0x1f, 0.04, 0.04f
         | PixelAccess(image, dx, dy, channel)       src[1, -1], src, src.r[0, 1]; x, y, width, height (POSITIONS)
         | Fetch(image, x, y, channel)               at(src, x, y): a pixel of an image in memory, anywhere
         | Lookup(table, index)                      lookup(gamma, src): an element of a table of constants
         | Local(name)                               a name bound by a Let around it
         | UnaryOperation(op, operand)               op: - ~ !
         | BinaryOperation(op, left, right)          op: + - * / % << >> & | ^ && || < <= > >= == !=
         | Select(condition, then, other)            condition ? then : other
         | Cast(operand, implicit)                   float(x), or what C converts by itself
         | FunctionCall(function, arguments)         min, sqrt, ... (FUNCTIONS)
         | Let(name, value, body)                    value is computed once, body uses it by name

Every node knows its `dtype`: uint8, int16, uint16, int32, float16, float32 or float64. All conversions that C does by
itself (an integer of 8 or 16 bits is an int32 in arithmetic, a float16 a float32; int32 with float32 is float32;
float64 wins) stand in the tree as implicit Casts, so that both operands of an operation have one type. Where C leaves
the result open, it is defined here:

- int32 arithmetic wraps round at 32 bits (`-`, `*`, `<<`, `abs` of the least number too).
- `/` and `%` of integers truncate towards zero; by zero both give 0; the least number by -1 wraps (and leaves 0).
- A shift takes the low five bits of its count; `>>` keeps the sign.
- A float becomes an int32 by truncation; what does not fit becomes the nearest int32, NaN becomes 0. A uint8 is the low
  eight bits of the int32, an int16 or uint16 the low sixteen.
- `min` and `max` of floats: a NaN loses against a number; in `minimum` and `maximum` it wins, as NumPy has it.
  `clamp(x, low, high)` is `min(max(x, low), high)`.
- `&&`, `||` and `?:` evaluate all their operands; nothing here has a side effect.
- Each float operation is rounded by itself, products and sums are not contracted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

DTYPES = ("uint8", "int16", "uint16", "int32", "float16", "float32")  #: What an image can hold
POSITIONS = {"x": "@x", "y": "@y", "width": "@width", "height": "@height"}
"""Name in a body -> the image that it is read as: the column and the row of a pixel, and how many there are of either.
No image of a pipeline can have these names."""
X, Y, WIDTH, HEIGHT = POSITIONS.values()
_RANK = {"uint8": 0, "int16": 0, "uint16": 0, "int32": 1, "float16": 2, "float32": 2, "float64": 3}
INT32 = (-(2**31), 2**31 - 1)
INTEGERS = {"uint8": (0, 255), "int16": (-(2**15), 2**15 - 1), "uint16": (0, 2**16 - 1), "int32": INT32}
"""Dtype -> least, most."""
BITWISE = ("<<", ">>", "&", "|", "^")
LOGICAL = ("&&", "||")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


class TypeProblem(ValueError):
    """An operation on operands that C does not have; the text is one line for the author of the body. `column`: where
    in the body, from 1, where that is known."""

    def __init__(self, problem: str, column: int | None = None) -> None:
        super().__init__(problem)
        self.column = column


@dataclass(frozen=True, slots=True)
class Const:
    value: int | float
    dtype: str


@dataclass(frozen=True, slots=True)
class PixelAccess:
    """A pixel of an image, `dx` to the right and `dy` below; `channel` None is the channel that is being computed.

    `dtype` is the image's own."""

    image: str
    dx: int
    dy: int
    channel: int | None
    dtype: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """A pixel of an image in memory, `x` from the left and `y` from the top (int32); outside it the border decides.

    `channel` of `channels` that the image has, None: the one that is being computed."""

    image: str
    x: Expr
    y: Expr
    channel: int | None
    channels: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Lookup:
    """An element of a table of constants, the nearest one where `index` (int32) is outside."""

    table: str
    values: tuple[int | float, ...]
    index: Expr
    dtype: str


@dataclass(frozen=True, slots=True)
class Local:
    name: str
    dtype: str


@dataclass(frozen=True, slots=True)
class UnaryOperation:
    op: str
    operand: Expr
    dtype: str


@dataclass(frozen=True, slots=True)
class BinaryOperation:
    """Both operands have one dtype; comparisons and logical operations give int32 (0 or 1), all others that dtype."""

    op: str
    left: Expr
    right: Expr
    dtype: str


@dataclass(frozen=True, slots=True)
class Select:
    """`condition` is compared with zero in its own dtype; both branches have the dtype of the result."""

    condition: Expr
    then: Expr
    other: Expr
    dtype: str


@dataclass(frozen=True, slots=True)
class Cast:
    operand: Expr
    dtype: str
    implicit: bool


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """All arguments have the dtype of the result."""

    function: str
    arguments: tuple[Expr, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Let:
    """`value` under a name that only `body` sees; `dtype` is the body's, the name has the value's."""

    name: str
    value: Expr
    body: Expr
    dtype: str


Expr: TypeAlias = (
    Const | PixelAccess | Fetch | Lookup | Local | UnaryOperation | BinaryOperation | Select | Cast | FunctionCall | Let
)
_OPERANDS: dict[type, tuple[str, ...]] = {
    UnaryOperation: ("operand",), Cast: ("operand",), BinaryOperation: ("left", "right"), Let: ("value", "body"),
    Select: ("condition", "then", "other"), Fetch: ("x", "y"), Lookup: ("index",),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """What a tree costs: operations of the arithmetic units, and of the special function units."""

    alu: int = 0
    sfu: int = 0

    def __add__(self, other: Operations) -> Operations:
        return Operations(alu=self.alu + other.alu, sfu=self.sfu + other.sfu)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSignature:
    """`real`: its arguments are floats (an int32 becomes float64, as in C++). Its cost is that of the call alone."""

    arity: int
    real: bool
    cost: Operations


def _alike(names: str, arity: int, *, real: bool, cost: Operations) -> dict[str, FunctionSignature]:
    return dict.fromkeys(names.split(), FunctionSignature(arity=arity, real=real, cost=cost))


_ALU, _SFU = Operations(alu=1), Operations(sfu=1)
FUNCTIONS = {
    **_alike("min max", 2, real=False, cost=_ALU),
    **_alike("minimum maximum", 2, real=False, cost=Operations(alu=3)),
    **_alike("abs", 1, real=False, cost=_ALU),
    **_alike("clamp", 3, real=False, cost=Operations(alu=2)),
    **_alike("floor ceil trunc rint", 1, real=True, cost=_ALU),
    **_alike("sqrt rsqrt exp exp2 log log2 log10 sin cos tan atan", 1, real=True, cost=_SFU),
    **_alike("atan2", 2, real=True, cost=_SFU),
    **_alike("tanh", 1, real=True, cost=_SFU),
    **_alike("pow", 2, real=True, cost=_SFU),
}
"""min, max, clamp and abs are the type's own; `rint` rounds half to even."""
EXTREMES = ("min", "max", "minimum", "maximum")


# --- typed constructors ---------------------------------------------------------------------------------


def const(value: int | float, dtype: str) -> Const:
    """A constant as its type holds it. TypeProblem when it does not fit."""
    if dtype in INTEGERS:
        least, most = INTEGERS[dtype]
        if not isinstance(value, int) or not least <= value <= most:
            raise TypeProblem(f"{value!r} does not fit {dtype} ({least} to {most})")
        return Const(int(value), dtype)
    packed = {"float16": "<e", "float32": "<f", "float64": "<d"}[dtype]
    try:
        number = float(value)
        rounded = struct.unpack(packed, struct.pack(packed, number))[0]
    except OverflowError:
        raise TypeProblem(f"{value!r} does not fit {dtype}") from None
    if number - number != 0:
        raise TypeProblem(f"{value!r} is not a finite number")
    return Const(rounded, dtype)


def promoted(expr: Expr) -> Expr:
    """As C has it in arithmetic: an integer of 8 or 16 bits becomes an int32, a float16 a float32."""
    if expr.dtype == "float16":
        return converted(expr, "float32")
    return converted(expr, "int32") if expr.dtype in INTEGERS else expr


def converted(expr: Expr, dtype: str) -> Expr:
    """The implicit conversion to a dtype; nothing when it has that dtype."""
    return expr if expr.dtype == dtype else Cast(expr, dtype, implicit=True)


def common(*dtypes: str) -> str:
    """The type of the usual arithmetic conversions."""
    return max((*dtypes, "int32"), key=_RANK.__getitem__)


def unary(op: str, operand: Expr) -> Expr:
    operand = promoted(operand)
    if op == "+":
        return operand
    if op == "~" and operand.dtype != "int32":
        raise TypeProblem(f"~ needs an integer, not a {operand.dtype}")
    if op == "-" and isinstance(operand, Const):
        negated = -operand.value
        return Const(negated, operand.dtype) if operand.value != INT32[0] else operand
    return UnaryOperation(op, operand, "int32" if op == "!" else operand.dtype)


def binary(op: str, left: Expr, right: Expr) -> Expr:
    """An operation with both operands brought to one type. TypeProblem for what C does not have, and for what can be
    seen to be senseless: a division by the constant 0, a shift by 32 and more."""
    left, right = promoted(left), promoted(right)
    dtype = common(left.dtype, right.dtype)
    if dtype != "int32" and (op in BITWISE or op == "%"):
        raise TypeProblem(f"{op} needs integers, not {left.dtype} and {right.dtype}")
    if isinstance(right, Const):
        if op in ("/", "%") and dtype == "int32" and right.value == 0:
            raise TypeProblem(f"{op} by the constant 0")
        if op in ("<<", ">>") and not 0 <= right.value <= 31:
            raise TypeProblem(f"a shift by {right.value}; an int32 can be shifted by 0 to 31")
    if op in LOGICAL:  # each operand is compared with zero by itself
        return BinaryOperation(op, truth(left), truth(right), "int32")
    return BinaryOperation(op, converted(left, dtype), converted(right, dtype), "int32" if op in COMPARISONS else dtype)


def truth(expr: Expr) -> Expr:
    """0 or 1: whether a value is other than zero."""
    if isinstance(expr, BinaryOperation) and (expr.op in COMPARISONS or expr.op in LOGICAL):
        return expr
    if isinstance(expr, UnaryOperation) and expr.op == "!":
        return expr
    expr = promoted(expr)
    return BinaryOperation("!=", expr, Const(0 if expr.dtype == "int32" else 0.0, expr.dtype), "int32")


def select(condition: Expr, then: Expr, other: Expr) -> Expr:
    dtype = common(then.dtype, other.dtype)
    return Select(promoted(condition), converted(promoted(then), dtype), converted(promoted(other), dtype), dtype)


def cast(operand: Expr, dtype: str) -> Expr:
    """A conversion that is written out."""
    return operand if operand.dtype == dtype else Cast(operand, dtype, implicit=False)


def call(function: str, *arguments: Expr) -> Expr:
    """A function of FUNCTIONS. TypeProblem for a wrong number of arguments."""
    known = FUNCTIONS[function]
    if len(arguments) != known.arity:
        wanted = "one argument" if known.arity == 1 else f"{known.arity} arguments"
        raise TypeProblem(f"{function} takes {wanted}; here are {len(arguments)}")
    dtypes = [promoted(each).dtype for each in arguments]
    if known.real:  # C++ takes an integer argument of these as a double
        dtypes = ["float64" if each == "int32" else each for each in dtypes]
    dtype = common(*dtypes)
    return FunctionCall(function, tuple(converted(promoted(each), dtype) for each in arguments), dtype)


def let(name: str, value: Expr, body: Expr) -> Expr:
    return Let(name, value, body, body.dtype)


def position(name: str) -> PixelAccess:
    """The value of a name of POSITIONS."""
    return PixelAccess(POSITIONS[name], 0, 0, 0, "int32")


def fetch(image: str, x: Expr, y: Expr, channel: int | None, channels: int, dtype: str) -> Fetch:
    """TypeProblem where a coordinate is not a whole number."""
    return Fetch(image, _whole(x, "at"), _whole(y, "at"), channel, channels, dtype)


def lookup(table: str, values: tuple[int | float, ...], index: Expr, dtype: str) -> Lookup:
    """TypeProblem where the index is not a whole number."""
    return Lookup(table, values, _whole(index, "lookup"), dtype)


def _whole(expr: Expr, function: str) -> Expr:
    if expr.dtype not in INTEGERS:
        raise TypeProblem(f"{function} takes whole numbers, not a {expr.dtype}; write int(...)")
    return promoted(expr)


# --- walking --------------------------------------------------------------------------------------------


def children(expr: Expr) -> tuple[Expr, ...]:
    """The operands, in the order in which they are written."""
    if isinstance(expr, FunctionCall):
        return expr.arguments
    return tuple(getattr(expr, name) for name in _OPERANDS.get(type(expr), ()))


def walk(expr: Expr) -> Iterator[Expr]:
    """The node and all below it, parents first, left to right."""
    pending = [expr]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(children(node)))


def depth(expr: Expr) -> int:
    """The longest way down, counted in nodes."""
    deepest, pending = 0, [(expr, 1)]
    while pending:
        node, level = pending.pop()
        deepest = max(deepest, level)
        pending.extend((each, level + 1) for each in children(node))
    return deepest


def accesses(expr: Expr) -> tuple[PixelAccess, ...]:
    """The distinct pixels that are read at fixed offsets, and positions, in the order in which they first stand."""
    return tuple(dict.fromkeys(node for node in walk(expr) if isinstance(node, PixelAccess)))


def rebuilt(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """The same node over operands that `change` has been given."""
    if isinstance(expr, FunctionCall):
        return replace(expr, arguments=tuple(map(change, expr.arguments)))
    changed: dict[str, Any] = {name: change(getattr(expr, name)) for name in _OPERANDS.get(type(expr), ())}
    return replace(expr, **changed) if changed else expr


def map_accesses(expr: Expr, change: Callable[[PixelAccess], Expr]) -> Expr:
    """The same tree with every access replaced. What comes instead must have the access' dtype."""
    if not isinstance(expr, PixelAccess):
        return rebuilt(expr, lambda each: map_accesses(each, change))
    found = change(expr)
    assert found.dtype == expr.dtype, f"{expr} became a {found.dtype}"
    return found


def shifted(expr: Expr, dx: int, dy: int) -> Expr:
    """The same tree seen from another pixel; what a Local around it holds stays what it is."""

    def moved(each: PixelAccess) -> Expr:
        if each.image in (WIDTH, HEIGHT):
            return each
        across, down = (0 if each.image == Y else dx), (0 if each.image == X else dy)
        return PixelAccess(each.image, each.dx + across, each.dy + down, each.channel, each.dtype)

    return map_accesses(expr, moved)


def operations(expr: Expr) -> Operations:
    """Counted on the tree (the paper's n_ALU and n_SFU, without the store).

    One ALU operation for each operator, whatever its type, and for a conversion between integer and float of what is no
    constant; a function as FUNCTIONS says; a pixel, a constant and a name cost nothing."""
    total = Operations()
    for node in walk(expr):
        match node:
            case UnaryOperation() | BinaryOperation() | Select():
                total += _ALU
            case FunctionCall(function=function):
                total += FUNCTIONS[function].cost
            case Fetch() | Lookup():  # the address
                total += _ALU
            case Cast(operand=operand, dtype=dtype):
                if not isinstance(operand, Const) and _real(operand.dtype) != _real(dtype):
                    total += _ALU
    return total


def _real(dtype: str) -> bool:
    return dtype.startswith("float")
