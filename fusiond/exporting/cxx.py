"""Numbers, names and types of a Program as C++.

Sizes are members of a struct; what follows from them is computed with 64 bits, and rounds down as in
`fusiond.expressions`:

    ceil_div(4 * hist.n, 256)    ->    ceil_div((4LL * sizes.hist_n), 256LL)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from fusiond.expressions import Call, Literal, Name, Node, parse_formula
from fusiond.extents import Extent
from fusiond.program import DTYPES, Program, Scalar

_CXX20 = (
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class compl "
    "concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default "
    "delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline int long "
    "mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register "
    "reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template this "
    "thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor "
    "xor_eq"
)
_WORDS = frozenset((*_CXX20.split(), "linux", "unix"))
"""The words of C++20, and two that g++ defines."""

HELPERS = """\
[[maybe_unused]] inline long long floor_div(long long a, long long b) {
    return b == 0 ? 0 : a / b - (a % b != 0 && (a < 0) != (b < 0));
}
[[maybe_unused]] inline long long floor_mod(long long a, long long b) { return a - floor_div(a, b) * b; }
[[maybe_unused]] inline long long ceil_div(long long a, long long b) { return -floor_div(-a, b); }
[[maybe_unused]] inline long long least(std::initializer_list<long long> values) { return std::min(values); }
[[maybe_unused]] inline long long most(std::initializer_list<long long> values) { return std::max(values); }
"""
"""A division by zero is 0, which the checks of grids and lengths refuse."""

_RANGES: Mapping[str, tuple[int, int]] = {
    name: (-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1) if name.startswith("int") else (0, 2 ** (8 * size) - 1)
    for name, (_, size) in DTYPES.items()
    if name.startswith(("int", "uint"))
}


class Names:
    """C++ identifiers of buffers, sizes, seams and arenas: `a.x` is a_x, `A@device` is A_device; unique within their
    kind."""

    def __init__(self, program: Program) -> None:
        arenas = sorted({each.arena for each in program.buffers if each.arena is not None})
        self.buffers = _identifiers((each.name for each in program.buffers), {"workspace", "host_workspace"})
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


def number(value: int, names: Names) -> str:
    """A whole number of the plan as an expression of `sizes`."""
    if isinstance(value, Extent):
        return _translated(parse_formula(value.text).root, names)
    return _literal(value)


def _literal(value: int) -> str:
    return f"{value}LL" if value >= 0 else f"({value}LL)"


_FUNCTIONS = {"//": "floor_div", "%": "floor_mod", "ceil_div": "ceil_div"}


def _translated(node: Node, names: Names) -> str:
    if isinstance(node, Literal):
        return _literal(int(node.value))
    if isinstance(node, Name):
        return f"sizes.{names.sizes[node.name]}"
    assert isinstance(node, Call)
    operands = [_translated(each, names) for each in node.operands]
    if node.operator == "negate":
        return f"(-{operands[0]})"
    if node.operator in _FUNCTIONS:
        return f"{_FUNCTIONS[node.operator]}({', '.join(operands)})"
    if node.operator in ("min", "max"):
        return f"{'least' if node.operator == 'min' else 'most'}({{{', '.join(operands)}}})"
    return f"({operands[0]} {node.operator} {operands[1]})"


def element(dtype: str) -> str:
    """The C++ type of a buffer's elements."""
    return DTYPES[dtype][0]


def scalar(value: Scalar, names: Names) -> str:
    """The value of an argument, of its very type."""
    return typed(value.dtype, value.value, names)


def typed(dtype: str, value: int | float, names: Names) -> str:
    """A number as an expression of a type; floats that are known bit for bit."""
    kind = DTYPES[dtype][0]
    if isinstance(value, Extent):
        wide = number(value, names)
        return f"{kind}(static_cast<float>({wide}))" if kind.startswith("__") else f"static_cast<{kind}>({wide})"
    if kind.startswith("__"):
        return f"{kind}({_float_text(value)}f)" if math.isfinite(value) else f"{kind}({_special(value)})"
    if "float" in dtype:
        return f"static_cast<{kind}>({_float_text(value) if math.isfinite(value) else _special(value)})"
    if dtype == "bool":
        return "true" if value else "false"
    if int(value) == -(2**63):
        return "(-9223372036854775807LL - 1)"
    return f"static_cast<{kind}>({int(value)}{'ULL' if int(value) >= 2**63 else 'LL'})"


def _float_text(value: float) -> str:
    text = repr(float(value))
    return text if any(each in text for each in ".e") else f"{text}.0"


def _special(value: float) -> str:
    if math.isnan(value):
        return "std::numeric_limits<float>::quiet_NaN()"
    return f"{'-' if value < 0 else ''}std::numeric_limits<float>::infinity()"


def quoted(text: str) -> str:
    """A text as a C++ string literal, in one line."""
    plain = " ".join(text.split()).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{plain}"'


def limits(dtype: str) -> tuple[int, int] | None:
    """The least and the greatest value of a whole-number type that 64 bits with sign do not hold by themselves."""
    low, high = _RANGES.get(dtype, (0, 0))
    if not high or dtype == "int64":
        return None
    return low, min(high, 2**63 - 1)
