"""The small expression language of fusiond's YAML files and of restrictions over a space.

    or       :=  and ("or" and)*
    and      :=  not ("and" not)*
    not      :=  "not" not | compare
    compare  :=  sum (("<=" | ">=" | "==" | "!=" | "<" | ">") sum)?
    sum      :=  product (("+" | "-") product)*
    product  :=  unary (("*" | "//" | "%") unary)*
    unary    :=  "-" unary | atom
    atom     :=  INTEGER | STRING | NAME | FUNCTION "(" or ("," or)* ")" | "(" or ")"
    NAME     :=  letters, digits, "_" and ".":  n   block.x   threads.a
    FUNCTION :=  min | max | ceil_div

Integers only (`//` and `%` round down, as in Python), with labels in quotes that can be compared for equality. Results
must fit 64 bits. Nothing is ever evaluated as Python. Where names stand for Extents (`fusiond.extents`), so do results.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fusiond import extents

Scalar: TypeAlias = int | str | bool | None
Node: TypeAlias = "Literal | Name | Call"

LIMIT = 2**63
_MAX_TEXT = 1000
_MAX_TOKENS = 250
"""A chain of n operators is a tree of depth n: this bounds the recursion of evaluation."""
_MAX_FORMULA_TEXT = 4000
_MAX_FORMULA_TOKENS = 600
"""What strategies put together of several texts may be longer than what a person writes."""
_MAX_DEPTH = 50
_WORDS = ("and", "or", "not")

_TOKEN = re.compile(
    r"\s*(?:(?P<integer>[0-9]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*)"
    r"|(?P<string>'[^'\n]*'|\"[^\"\n]*\")|(?P<operator>//|<=|>=|==|!=|[-+*%<>(),]))"
)


class ExpressionError(ValueError):
    """The text is no expression, a name has no value, or a value is out of range; the message is one line."""


@dataclass(frozen=True, slots=True)
class Literal:
    value: int | str


@dataclass(frozen=True, slots=True)
class Name:
    name: str


@dataclass(frozen=True, slots=True)
class Call:
    operator: str
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression; `text` is what was written."""

    text: str
    root: Node
    names: frozenset[str]
    """Every name that the expression mentions."""

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
    return _parsed(text, _MAX_TEXT, _MAX_TOKENS)


@functools.lru_cache(maxsize=4096)
def parse_formula(text: str) -> Expression:
    """Parse an expression that a strategy has put together: it may be longer."""
    return _parsed(text, _MAX_FORMULA_TEXT, _MAX_FORMULA_TOKENS)


def is_name(text: str) -> bool:
    """Whether a text can stand for a value in an expression."""
    found = _TOKEN.fullmatch(text)
    return found is not None and found.lastgroup == "name" and text == text.strip() and text not in _WORDS


def _parsed(text: str, most_text: int, most_tokens: int) -> Expression:
    if len(text) > most_text:
        raise ExpressionError(f"an expression of {len(text)} characters (at most {most_text})")
    tokens = _tokens(text, most_tokens)
    parser = _Parser(text, tokens)
    root = parser.either(0)
    if parser.position < len(tokens):
        raise ExpressionError(f"{text!r}: unexpected {tokens[parser.position][1]!r}")
    return Expression(text, root, frozenset(_names(root)))


def _tokens(text: str, most: int) -> list[tuple[str, str]]:
    tokens = []
    position = 0
    while position < len(text.rstrip()):
        match = _TOKEN.match(text, position)
        if match is None:
            wrong = text[position:].strip()[:1]
            hint = " (whole numbers only: use // to divide)" if wrong == "/" else ""
            raise ExpressionError(f"{text!r}: unexpected {wrong!r}{hint}")
        kind = match.lastgroup or ""
        tokens.append((kind, match.group(kind)))
        position = match.end()
    if not tokens:
        raise ExpressionError("an empty expression")
    if len(tokens) > most:
        raise ExpressionError(f"an expression of {len(tokens)} words and signs (at most {most})")
    return tokens


class _Parser:
    """Recursive descent; the grammar is at the top of the module."""

    def __init__(self, text: str, tokens: list[tuple[str, str]]) -> None:
        self.text = text
        self.tokens = tokens
        self.position = 0

    def _take(self, *texts: str) -> str | None:
        if self.position < len(self.tokens):
            kind, text = self.tokens[self.position]
            if text in texts and kind in ("operator", "name"):
                self.position += 1
                return text
        return None

    def _chain(self, part: Callable[[int], Node], depth: int, *operators: str) -> Node:
        node = part(depth)
        while operator := self._take(*operators):
            node = Call(operator, (node, part(depth)))
        return node

    def either(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise ExpressionError(f"{self.text[:40]!r}...: nested too deeply")
        return self._chain(self._both, depth, "or")

    def _both(self, depth: int) -> Node:
        return self._chain(self._negation, depth, "and")

    def _negation(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise ExpressionError(f"{self.text[:40]!r}...: nested too deeply")
        if self._take("not"):
            return Call("not", (self._negation(depth + 1),))
        left = self._sum(depth)
        if operator := self._take("<=", ">=", "==", "!=", "<", ">"):
            return Call(operator, (left, self._sum(depth)))
        return left

    def _sum(self, depth: int) -> Node:
        return self._chain(self._product, depth, "+", "-")

    def _product(self, depth: int) -> Node:
        return self._chain(self._unary, depth, "*", "//", "%")

    def _unary(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise ExpressionError(f"{self.text[:40]!r}...: nested too deeply")
        if self._take("-"):
            return Call("negate", (self._unary(depth + 1),))
        return self._atom(depth)

    def _atom(self, depth: int) -> Node:
        if self.position == len(self.tokens):
            raise ExpressionError(f"{self.text!r}: ends too early")
        kind, text = self.tokens[self.position]
        self.position += 1
        if kind == "integer":
            if len(text) > 19:
                raise ExpressionError(f"{text[:24]}... does not fit 64 bits")
            return Literal(int(text))
        if kind == "string":
            return Literal(text[1:-1])
        if kind == "name" and text not in _WORDS:
            return self._call(text, depth) if self._take("(") else Name(text)
        if text == "(":
            node = self.either(depth + 1)
            self._close()
            return node
        raise ExpressionError(f"{self.text!r}: unexpected {text!r}")

    def _call(self, function: str, depth: int) -> Node:
        if function not in ("min", "max", "ceil_div"):
            raise ExpressionError(f"{self.text!r}: unknown function {function!r} (min, max, ceil_div)")
        operands = [self.either(depth + 1)]
        while self._take(","):
            operands.append(self.either(depth + 1))
        self._close()
        if function == "ceil_div" and len(operands) != 2:
            raise ExpressionError(f"{self.text!r}: ceil_div takes two values")
        return Call(function, tuple(operands))

    def _close(self) -> None:
        if not self._take(")"):
            raise ExpressionError(f"{self.text!r}: a ')' is missing")


def _names(node: Node) -> set[str]:
    if isinstance(node, Name):
        return {node.name}
    if isinstance(node, Call):
        return set().union(*(_names(each) for each in node.operands))
    return set()


_ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "ceil_div": extents.ceil_div,
}
_ORDER: Mapping[str, Callable[[int, int], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _evaluate(node: Node, names: Mapping[str, Scalar], text: str) -> Scalar:
    if isinstance(node, Literal):
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
    if operator == "negate":
        return -values[0]
    if operator in ("min", "max"):
        return extents.least(*values) if operator == "min" else extents.most(*values)
    if operator in ("//", "%", "ceil_div") and values[1] == 0:
        raise ExpressionError(f"{text!r}: division by zero")
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
