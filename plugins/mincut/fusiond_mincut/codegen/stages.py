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

from collections import Counter
from collections.abc import Iterable, Mapping

from fusiond.model.codegen.code import Code, bare, call, cpp
from fusiond.model.codegen.literals import literal
from fusiond.model.codegen.operators import ATOM, UNARY, Term, atom, binary, choice, prefix
from fusiond.model.codegen.statements import Statements, folded, function, wrapped
from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.borders import FUNCTIONS, MAPPED
from fusiond_mincut.frontend.expr import (
    COMPARISONS,
    LOGICAL,
    BinaryOperation,
    Cast,
    Const,
    Expr,
    Fetch,
    FunctionCall,
    Let,
    Local,
    Lookup,
    PixelAccess,
    Select,
    UnaryOperation,
)
from fusiond_mincut.frontend.graph import ImageKernel, Pipeline

STORED = {
    "uint8": "uchar",
    "int16": "short",
    "uint16": "ushort",
    "int32": "int",
    "float16": "__half",
    "float32": "float",
}
"""What an image's pixel is in memory."""
TYPES = {**STORED, "int32": "Int", "float64": "double"}  #: What a value is in the text
CHANNELS = "rgba"
_MEMORY = "&"  #: Before the name of an image: a stage is given the image itself, not a pixel of it

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


_FIRST = "    __device__ __forceinline__ explicit operator float() const { return (float)v; }\n"


def types(pipeline: Pipeline, kernels: Iterable[str]) -> tuple[str, str]:
    """The text of the integer types that some kernels need, those of 8 and of 32 bits."""
    images = {each for name in kernels for each in (name, *pipeline.kernel(name).reads)}
    held = {pipeline.images[name].dtype for name in images}
    nodes = [each for name in kernels for body in pipeline.kernel(name).bodies for each in tree.walk(body)]
    held |= {each.dtype for each in nodes}
    wide = "".join(
        f"    __device__ __forceinline__ explicit operator {STORED[dtype]}() const {{ return ({STORED[dtype]})v; }}\n"
        for dtype in ("int16", "uint16")
        if dtype in held
    )
    small = UCHAR + ("typedef unsigned short ushort;\n" if held & {"uint16", "float16"} else "")
    small = "#include <cuda_fp16.h>\n" * ("float16" in held) + small
    called = {each.function for each in nodes if isinstance(each, FunctionCall)}
    extremes = "".join(
        f"template <class T> __device__ __forceinline__ T {name}(T a, T b) {{ return a != a || a {sign} b ? a : b; }}\n"
        for name, sign in (("minimum", "<"), ("maximum", ">"))
        if name in called
    )
    return small, (INT.replace(_FIRST, wide + _FIRST) if wide else INT) + extremes


def index_maps(modes: Iterable[str]) -> list[str]:
    """The text of the index maps of these border modes."""
    wanted = set(modes)
    return [FUNCTIONS[mode] for mode in MAPPED if mode in wanted]


def fetched_modes(kernels: Iterable[ImageKernel]) -> set[str]:
    """The border modes of what is read at computed coordinates."""
    return {kernel.border(image).mode for kernel in kernels for image in kernel.fetched}


def stages(kernel: ImageKernel, suffix: str = "") -> str:
    """The functions of a kernel, one for each body, and what they call; their names end with `suffix`."""
    nodes = [each for body in kernel.bodies for each in tree.walk(body)]
    tables = {each.table: each for each in nodes if isinstance(each, Lookup)}
    fetches = {(each.image, each.dtype): each for each in nodes if isinstance(each, Fetch)}
    parts = [_table(kernel, each, suffix) for each in tables.values()]
    parts += [_fetch(kernel, each, suffix) for each in fetches.values()]
    return "".join([*parts, *(_stage(kernel, body, number, suffix) for number, body in enumerate(kernel.bodies))])


def pixels(kernel: ImageKernel, channel: int) -> tuple[PixelAccess, ...]:
    """What the function that computes a channel takes, in order; a `channel` of None is the one being computed. Of an
    image that is read at computed coordinates it takes what `image_of` names."""
    body = kernel.bodies[channel if len(kernel.bodies) > 1 else 0]
    images = (each for each in tree.walk(body) if isinstance(each, Fetch))
    return (*tree.accesses(body), *dict.fromkeys(_memory(each) for each in images))


def _memory(fetch: Fetch) -> PixelAccess:
    return PixelAccess(_MEMORY + fetch.image, 0, 0, fetch.channel, fetch.dtype)


def image_of(access: PixelAccess) -> str | None:
    """The image that a stage is given whole, as `NAME_image + channel, width, height, elements of a row`; None where it
    is a pixel."""
    return access.image.removeprefix(_MEMORY) if access.image.startswith(_MEMORY) else None


def stage_of(kernel: ImageKernel, channel: int) -> str:
    """The name of the function that computes a channel."""
    return f"{kernel.name}_stage{CHANNELS[channel] if len(kernel.bodies) > 1 else ''}"


def offset_name(name: str, dx: int, dy: int, channel: int | None = None) -> str:
    """A value's name: src_0, src_w1, src_e2s1, with the letter of a channel behind it."""
    across = f"{'w' if dx < 0 else 'e'}{abs(dx)}" if dx else ""
    down = f"{'n' if dy < 0 else 's'}{abs(dy)}" if dy else ""
    return f"{name}_{across + down or '0'}{'' if channel is None else CHANNELS[channel]}"


def constant(value: int | float, dtype: str) -> Code:
    """A constant as a C++ expression of its type in TYPES."""
    if dtype == "float16":
        return call(TYPES[dtype], literal(value, "float32"))
    if dtype == "int32":
        return call("Int", bare(literal(value, dtype)))
    return cpp("{}({})", TYPES[dtype], int(value)) if dtype in tree.INTEGERS else literal(value, dtype)


def _stage(kernel: ImageKernel, body: Expr, channel: int, suffix: str) -> str:
    taken = pixels(kernel, channel)
    parameters = {each: _parameter(each, taken) for each in taken}
    statements = Statements()
    result = _Trees(kernel, parameters, statements, suffix).value(tree.converted(body, kernel.dtype))
    statements.line(folded(cpp("return {};", result.code)))
    head = f"__device__ __forceinline__ {TYPES[kernel.dtype]} {stage_of(kernel, channel)}{suffix}"
    given = (f"{TYPES[each.dtype]} {name}" if image_of(each) is None else _whole(each, name)
             for each, name in parameters.items())  # fmt: skip
    return function(head, given, statements)


def _whole(access: PixelAccess, name: str) -> str:
    return f"const {STORED[access.dtype]}* __restrict__ {name}, int {name}_width, int {name}_height, int {name}_row"


def _fetch(kernel: ImageKernel, fetch: Fetch, suffix: str) -> str:
    """The function that reads a pixel of an image at any coordinates, its border included."""
    border, name = kernel.border(fetch.image), f"{kernel.name}_{fetch.image}_at{suffix}"
    kind, stored = TYPES[fetch.dtype], STORED[fetch.dtype]
    body = Statements()
    if border.mode == "constant":
        body.line("if ((unsigned)x.v >= (unsigned)width || (unsigned)y.v >= (unsigned)height)")
        body.line(cpp("    return {};", constant(border.value, fetch.dtype)))
        column, row = "x.v", "y.v"
    else:
        column, row = (f"{border.mode}_index({axis}.v, {side})" for axis, side in (("x", "width"), ("y", "height")))
    times = "" if fetch.channels == 1 else f" * {fetch.channels}"
    body.line(f"return image[{row} * elements + {column}{times}];")
    parameters = [f"const {stored}* __restrict__ image", "int width", "int height", "int elements", "Int x", "Int y"]
    return function(f"__device__ __forceinline__ {kind} {name}", parameters, body)


def _table(kernel: ImageKernel, lookup: Lookup, suffix: str) -> str:
    """A table in global memory: lanes read it at different places, which constant memory would serve one by one."""
    name, stored = f"{kernel.name}_{lookup.table}_table{suffix}", STORED[lookup.dtype]
    given = wrapped([literal(each, lookup.dtype) for each in lookup.values])
    last = len(lookup.values) - 1
    return (
        f"static __device__ const {stored} {name}[{last + 1}] = {{\n    {given}}};\n"
        f"__device__ __forceinline__ {TYPES[lookup.dtype]} {name}_at(Int i) "
        f"{{ return {name}[::min(::max(i.v, 0), {last})]; }}\n"
    )


def _parameter(access: PixelAccess, taken: tuple[PixelAccess, ...]) -> str:
    """The channel is named only where one image is read at several."""
    channels = {each.channel for each in taken if each.image == access.image}
    channel = access.channel if len(channels) > 1 else None
    image = image_of(access)
    if image is not None:
        return f"{image}_image{'' if channel is None else CHANNELS[channel]}"
    return offset_name(access.image.replace("@", "pixel_"), access.dx, access.dy, channel)


class _Trees:
    """Prints trees; what Let binds becomes a declaration in `statements`."""

    def __init__(
        self, kernel: ImageKernel, pixels: Mapping[PixelAccess, str], statements: Statements, suffix: str
    ) -> None:
        self.kernel, self.pixels, self.statements, self.suffix = kernel, pixels, statements, suffix
        self.locals: dict[str, Code] = {}
        self.bound: Counter[str] = Counter()

    def value(self, expr: Expr) -> Term:
        """A value of TYPES[expr.dtype]."""
        match expr:
            case Const(value, dtype):
                signed = value < 0 and dtype.startswith("float")
                return Term(constant(value, dtype), UNARY if signed else ATOM)
            case PixelAccess():
                return atom(self.pixels[expr])
            case Fetch(image, x, y):
                memory = self.pixels[_memory(expr)]
                read = f"{self.kernel.name}_{image}_at{self.suffix}"
                sides = f"{memory}_width", f"{memory}_height", f"{memory}_row"
                return Term(call(read, memory, *sides, self.value(x).code, self.value(y).code))
            case Lookup(table, _, index):
                return Term(call(f"{self.kernel.name}_{table}_table{self.suffix}_at", self.value(index).code))
            case Local(name):
                return Term(self.locals[name])
            case Let(name, value, body):
                return self._let(name, value, body)
            case Cast(operand, dtype):
                return Term(self._cast(operand, dtype))
            case Select(condition, then, other):
                return choice(self.condition(condition), self.value(then), self.value(other))
            case FunctionCall(name, arguments, dtype):
                return Term(self._call(name, [self.value(each).code for each in arguments], dtype))
            case UnaryOperation(op, operand) if op != "!":
                return prefix(op, self.value(operand))
            case BinaryOperation(op) if op not in COMPARISONS and op not in LOGICAL:
                return self._operation(expr)
        return Term(call("Int", self.condition(expr).code))

    def condition(self, expr: Expr) -> Term:
        """A bool: whether the value is other than zero."""
        match expr:
            case BinaryOperation(op, left, right) if op in LOGICAL:
                return binary(op, self.condition(left), self.condition(right))
            case BinaryOperation(op) if op in COMPARISONS:
                return self._operation(expr)
            case UnaryOperation("!", operand):
                return prefix("!", self.condition(operand))
        return binary("!=", self.value(expr), atom("0"))

    def _operation(self, expr: BinaryOperation) -> Term:
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
            name += "f" if dtype == "float32" and name not in tree.EXTREMES else ""
        return call(name, *arguments)
