"""Numbers, names and types of a Program as C++.

Sizes are members of a struct; what follows from them is computed with 64 bits, and rounds down as in
`fusiond.model.language.expressions`:

    ceil_div(4 * hist.n, 256)    ->    ceil_div(4LL * sizes.hist_n, 256LL)
"""

import re
from collections.abc import Iterable

from fusiond.model.codegen.code import Code, bare, call, cpp, joined
from fusiond.model.codegen.literals import literal
from fusiond.model.codegen.operators import ATOM, UNARY, Term, atom, binary, prefix
from fusiond.model.language.dtypes import DTYPES, whole_numbers
from fusiond.model.language.expressions import parse_formula
from fusiond.model.language.extents import Extent
from fusiond.model.language.grammar import Call, Literal, Name, Node
from fusiond.model.program import Program, pitches

_CXX20 = (
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class compl "
    "concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default "
    "delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline int long "
    "mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register "
    "reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template this "
    "thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor "
    "xor_eq"
)
_WORDS = frozenset((*_CXX20.split(), "linux", "unix"))  #: The words of C++20, and two that g++ defines

HELPERS = """\
[[maybe_unused]] inline long long floor_div(long long a, long long b) {
    return b == 0 ? 0 : a / b - (a % b != 0 && (a < 0) != (b < 0));
}
[[maybe_unused]] inline long long quotient(long long a, long long b) { return b == 0 || a % b != 0 ? 0 : a / b; }
[[maybe_unused]] inline long long floor_mod(long long a, long long b) { return a - floor_div(a, b) * b; }
[[maybe_unused]] inline long long ceil_div(long long a, long long b) { return -floor_div(-a, b); }
[[maybe_unused]] inline long long least(std::initializer_list<long long> values) { return std::min(values); }
[[maybe_unused]] inline long long most(std::initializer_list<long long> values) { return std::max(values); }
"""
"""A division by zero is 0, and one with a remainder where none may be: the checks of grids and lengths refuse it."""


class CxxNames:
    """C++ identifiers of buffers, sizes, seams and arenas: `a.x` is a_x, `A@device` is A_device; unique within their
    kind."""

    def __init__(self, program: Program) -> None:
        arenas = sorted({each.arena for each in program.buffers if each.arena is not None})
        taken = {"workspace", "host_workspace", "managed_workspace"}
        self.buffers = _identifiers((each.name for each in program.buffers), taken)
        rows = pitches(program.steps)
        self.pitches = dict(zip(rows, _identifiers((f"{name}_pitch" for name in rows), taken).values(), strict=True))
        self.sizes = _identifiers((name for name, _ in program.sizes), set())
        self.seams = _identifiers((each.name for each in program.seams), {"naive"})
        self.arenas = _identifiers(arenas, set())


def _identifiers(names: Iterable[str], taken: set[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)
        plain = f"_{plain}" if plain[:1].isdigit() else plain
        while plain in _WORDS or plain in taken:
            plain += "_"
        taken.add(plain)
        found[name] = plain
    return found


def number(value: int, names: CxxNames) -> Code:
    """A whole number of the plan as an expression of `sizes` that binds as tightly as a name."""
    term = _translated(parse_formula(value.text).root, names) if isinstance(value, Extent) else _literal(value)
    return term.within(ATOM)


def _literal(value: int) -> Term:
    return Term(literal(value, "int64"), ATOM if value >= 0 else UNARY)


_FUNCTIONS = {"/": "quotient", "//": "floor_div", "%": "floor_mod", "ceil_div": "ceil_div"}


def _translated(node: Node, names: CxxNames) -> Term:
    if isinstance(node, Literal):
        return _literal(int(node.value))
    if isinstance(node, Name):
        return atom(f"sizes.{names.sizes[node.name]}")
    assert isinstance(node, Call)
    operands = [_translated(each, names) for each in node.operands]
    if len(operands) == 1 and node.operator == "-":
        return prefix("-", operands[0])
    listed = joined(", ", [each.code for each in operands])
    if node.operator in _FUNCTIONS:
        return Term(call(_FUNCTIONS[node.operator], listed))
    if node.operator in ("min", "max"):
        return Term(cpp("{}({{{}}})", "least" if node.operator == "min" else "most", listed))
    return binary(node.operator, *operands)


def element(dtype: str) -> str:
    """The C++ type of a buffer's elements."""
    return DTYPES[dtype].cuda


def typed(dtype: str, value: int | float, names: CxxNames) -> Code:
    """A number as an expression of a type; floats that are known bit for bit."""
    kind = DTYPES[dtype].cuda
    narrow = kind.startswith("__")
    if isinstance(value, Extent):
        found = number(value, names)
        return call(kind, call("static_cast<float>", found)) if narrow else call(f"static_cast<{kind}>", found)
    return call(kind if narrow else f"static_cast<{kind}>", bare(literal(value, dtype)))


def quoted(text: str) -> str:
    """A text as a C++ string literal, in one line."""
    plain = " ".join(text.split()).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{plain}"'


def limits(dtype: str) -> tuple[int, int] | None:
    """The least and the greatest value of a whole-number type that 64 bits with sign do not hold by themselves."""
    if DTYPES[dtype].floating or dtype in ("bool", "int64"):
        return None
    low, high = whole_numbers(dtype)
    return low, min(high, 2**63 - 1)
