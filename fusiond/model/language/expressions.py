"""The small expression language of fusiond's YAML files and of restrictions over a space.

    or       :=  and ("or" and)*
    and      :=  not ("and" not)*
    not      :=  "not" not | compare
    compare  :=  sum (("<=" | ">=" | "==" | "!=" | "<" | ">") sum)*         a <= b < c: a <= b and b < c
    sum      :=  product (("+" | "-") product)*
    product  :=  unary (("*" | "/" | "//" | "%") unary)*
    unary    :=  "-" unary | atom
    atom     :=  INTEGER | STRING | NAME | FUNCTION "(" or ("," or)* ")" | "(" or ")"
    NAME     :=  letters, digits, "_" and ".":  n   block.x   threads.a
    FUNCTION :=  min | max | ceil_div

Whole numbers only: `//` and `%` round down, as in Python; `/` is for what divides without a remainder, and else an
error. Labels in quotes can be compared for equality. Results must fit 64 bits. Nothing is ever evaluated as Python.
Where names stand for Extents (`fusiond.model.language.extents`), so do results.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fusiond.model.language import extents
from fusiond.model.language.grammar import Grammar, GrammarError, Literal, Name, Node, walk

Scalar: TypeAlias = int | str | bool | None

LIMIT = 2**63
_COMPARISONS = ("<=", ">=", "==", "!=", "<", ">")
_LANGUAGE = Grammar(
    binary={"or": 1, "and": 2, **dict.fromkeys(_COMPARISONS, 4), "+": 5, "-": 5, "*": 6, "/": 6, "//": 6, "%": 6},
    prefix={"not": 4, "-": 7},
    functions={"min": None, "max": None, "ceil_div": 2},
    literals=("integer", "string"),
    chained=frozenset(_COMPARISONS),
)
_FORMULAS = Grammar(
    binary=_LANGUAGE.binary, prefix=_LANGUAGE.prefix, functions=_LANGUAGE.functions, literals=_LANGUAGE.literals,
    chained=_LANGUAGE.chained, longest=4000, most_tokens=600,
)  # fmt: skip
"""What strategies put together of several texts may be longer than what a person writes."""


class ExpressionError(ValueError):
    """The text is not an expression, a name has no value, or a value is out of range; the message is one line."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression; `text` is what was written."""

    text: str
    root: Node
    names: frozenset[str]  #: Every name that the expression mentions

    def value(self, names: Mapping[str, Scalar]) -> Scalar:
        """Evaluate; ExpressionError for a name without a value, a division by zero, a wrong type, an overflow."""
        return _evaluate(self.root, names, self.text)

    def integer(self, names: Mapping[str, Scalar]) -> int:
        """The value, which must be an integer."""
        value = self.value(names)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ExpressionError(f"{self.text!r} is {value!r}, not an integer")
        return value

    def holds(self, names: Mapping[str, Scalar]) -> bool:
        """The value, which must be a truth value."""
        value = self.value(names)
        if not isinstance(value, bool):
            raise ExpressionError(f"{self.text!r} is {value!r}, not true or false")
        return value


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """Parse one expression; ExpressionError says what is wrong and where."""
    return _parsed(text, _LANGUAGE)


@functools.lru_cache(maxsize=4096)
def parse_formula(text: str) -> Expression:
    """Parse an expression that a strategy has put together: it may be longer."""
    return _parsed(text, _FORMULAS)


def is_name(text: str) -> bool:
    """Whether a text can stand for a value in an expression."""
    return _LANGUAGE.is_name(text)


def _parsed(text: str, language: Grammar) -> Expression:
    try:
        root = language.parse(text)
    except GrammarError as problem:
        shown = repr(text if len(text) <= 100 else f"{text[:97]}...")
        raise ExpressionError(f"{shown}, column {problem.column}: {problem}") from None
    nodes = tuple(walk(root))
    for each in nodes:
        if isinstance(each, Literal) and each.kind == "integer":
            _in_range(int(each.value), each.text)
    return Expression(text, root, frozenset(each.name for each in nodes if isinstance(each, Name)))


_ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": extents.quotient,
    "//": lambda a, b: a // b, "%": lambda a, b: a % b, "ceil_div": extents.ceil_div,
}  # fmt: skip
_ORDER: Mapping[str, Callable[[int, int], bool]] = {
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip


def _evaluate(node: Node, names: Mapping[str, Scalar], text: str) -> Scalar:
    if isinstance(node, Literal):
        assert not isinstance(node.value, float)
        return node.value
    if isinstance(node, Name):
        if node.name not in names:
            known = ", ".join(sorted(names)) or "none"
            raise ExpressionError(f"{text!r}: {node.name!r} has no value (known: {known})")
        return names[node.name]
    if node.operator in ("and", "or"):
        left = _truth(_evaluate(node.operands[0], names, text), text)
        if left is (node.operator == "or"):
            return left
        return _truth(_evaluate(node.operands[1], names, text), text)
    values = [_evaluate(each, names, text) for each in node.operands]
    if node.operator == "not":
        return not _truth(values[0], text)
    if node.operator == "==":
        return values[0] == values[1]
    if node.operator == "!=":
        return values[0] != values[1]
    integers = [_integer(each, text) for each in values]
    if node.operator in _ORDER:
        return _ORDER[node.operator](integers[0], integers[1])
    return _in_range(_calculate(node.operator, integers, text), text)


def _calculate(operator: str, values: list[int], text: str) -> int:
    if len(values) == 1 and operator == "-":
        return -values[0]
    if operator in ("min", "max"):
        return extents.least(*values) if operator == "min" else extents.most(*values)
    if operator in ("/", "//", "%", "ceil_div") and values[1] == 0:
        raise ExpressionError(f"{text!r}: division by zero")
    if operator == "/" and int(values[0]) % int(values[1]):
        left, right = map(int, values)
        raise ExpressionError(f"{text!r}: {left} / {right} is not a whole number; use // to round down, ceil_div up")
    return _ARITHMETIC[operator](values[0], values[1])


def _truth(value: Scalar, text: str) -> bool:
    if not isinstance(value, bool):
        raise ExpressionError(f"{text!r}: {value!r} is not true or false")
    return value


def _integer(value: Scalar, text: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ExpressionError(f"{text!r}: {value!r} is not a whole number")
    return value


def _in_range(value: int, text: str) -> int:
    if not -LIMIT <= value < LIMIT:
        raise ExpressionError(f"{text!r} does not fit 64 bits")
    return value
