"""What a kernel computes, as a small expression over the vectors that it reads, element by element.

    formula  :=  "sum" "(" sum ")" | sum             sum(...) adds over all elements into an output of one element
    sum      :=  product (("+" | "-") product)*
    product  :=  unary (("*" | "/") unary)*
    unary    :=  "-" unary | atom
    atom     :=  NUMBER | NAME | FUNCTION "(" sum ("," sum)* ")" | "(" sum ")"
    FUNCTION :=  min | max (two arguments) | abs | sqrt

A NAME is a vector that the kernel reads: its element i, or its only one. C's arithmetic in the output's type. A sum is
added up in one fixed order: by 256 threads, each a stride apart, then pairwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

LANES = 256
"""Threads of a sum, and of a block."""
FUNCTIONS = {"min": 2, "max": 2, "abs": 1, "sqrt": 1}
_MAX_TEXT = 1000
_MAX_DEPTH = 50
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)|(?P<name>[A-Za-z_]\w*)|(?P<mark>[-+*/(),]))"
)


class FormulaError(ValueError):
    """The text is no formula; the message is one line."""


@dataclass(frozen=True, slots=True)
class Number:
    text: str


@dataclass(frozen=True, slots=True)
class Name:
    name: str


@dataclass(frozen=True, slots=True)
class Call:
    operator: str
    operands: tuple[Node, ...]


Node: TypeAlias = "Number | Name | Call"


@dataclass(frozen=True, slots=True)
class Expression:
    root: Node
    summed: bool
    """`sum(...)`: one value from all elements."""
    names: tuple[str, ...]


def parse(text: str) -> Expression:
    """FormulaError says what is wrong."""
    if len(text) > _MAX_TEXT:
        raise FormulaError(f"a formula of {len(text)} characters (at most {_MAX_TEXT})")
    parser = _Parser(text)
    summed = parser.tokens[:2] == ["sum", "("]
    if summed:
        parser.position = 2
    root = parser.sum(0)
    if summed:
        parser.close()
    if parser.position < len(parser.tokens):
        raise FormulaError(f"{text!r}: unexpected {parser.tokens[parser.position]!r}")
    return Expression(root, summed, tuple(dict.fromkeys(_names(root))))


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        self.position = 0
        at = 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if match is None:
                raise FormulaError(f"{text!r}: unexpected {text[at:].strip()[:1]!r}")
            self.tokens.append(match[0].strip())
            at = match.end()
        if not self.tokens:
            raise FormulaError("an empty formula")

    def _take(self, *texts: str) -> str | None:
        if self.position < len(self.tokens) and self.tokens[self.position] in texts:
            self.position += 1
            return self.tokens[self.position - 1]
        return None

    def close(self) -> None:
        if not self._take(")"):
            raise FormulaError(f"{self.text!r}: a ')' is missing")

    def sum(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise FormulaError(f"{self.text[:40]!r}...: nested too deeply")
        node = self._product(depth)
        while operator := self._take("+", "-"):
            node = Call(operator, (node, self._product(depth)))
        return node

    def _product(self, depth: int) -> Node:
        node = self._unary(depth)
        while operator := self._take("*", "/"):
            node = Call(operator, (node, self._unary(depth)))
        return node

    def _unary(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise FormulaError(f"{self.text[:40]!r}...: nested too deeply")
        if self._take("-"):
            return Call("negate", (self._unary(depth + 1),))
        return self._atom(depth)

    def _atom(self, depth: int) -> Node:
        if self.position == len(self.tokens):
            raise FormulaError(f"{self.text!r}: ends too early")
        token = self.tokens[self.position]
        self.position += 1
        if token[0].isdigit() or token[0] == ".":
            return Number(token)
        if token == "(":
            node = self.sum(depth + 1)
            self.close()
            return node
        if not (token[0].isalpha() or token[0] == "_"):
            raise FormulaError(f"{self.text!r}: unexpected {token!r}")
        if not self._take("("):
            return Name(token)
        if token == "sum":
            raise FormulaError(f"{self.text!r}: sum(...) stands round the whole formula or not at all")
        if token not in FUNCTIONS:
            raise FormulaError(f"{self.text!r}: unknown function {token!r} ({', '.join(FUNCTIONS)})")
        operands = [self.sum(depth + 1)]
        while self._take(","):
            operands.append(self.sum(depth + 1))
        self.close()
        if len(operands) != FUNCTIONS[token]:
            raise FormulaError(f"{self.text!r}: {token} takes {FUNCTIONS[token]} values")
        return Call(token, tuple(operands))


def _names(node: Node) -> list[str]:
    if isinstance(node, Name):
        return [node.name]
    if isinstance(node, Call):
        return [name for each in node.operands for name in _names(each)]
    return []


def emitted(node: Node, ctype: str, places: Mapping[str, str]) -> str:
    """The C++ text of an expression; `places`: vector -> the text of its element."""
    if isinstance(node, Number):
        return f"({ctype})({node.text})"
    if isinstance(node, Name):
        return f"({ctype}){places[node.name]}"
    operands = [emitted(each, ctype, places) for each in node.operands]
    match node.operator:
        case "negate":
            return f"(-{operands[0]})"
        case "min" | "max":
            a, b = operands
            return f"({a} {'<' if node.operator == 'min' else '>'} {b} ? {a} : {b})"
        case "abs":
            return f"({operands[0]} < ({ctype})0 ? -{operands[0]} : {operands[0]})"
        case "sqrt":
            return f"({ctype})sqrt((double){operands[0]})"
        case operator:
            return f"({operands[0]} {operator} {operands[1]})"


def mismatch(
    texts: Sequence[str], reads: Sequence[str], writes: Sequence[str], elements: Mapping[str, int]
) -> str | None:
    """Why formulas do not fit their kernel, in one line; None when they do."""
    if len(texts) != len(writes):
        return f"there are {len(texts)} formulas for {len(writes)} outputs"
    for text, output in zip(texts, writes, strict=True):
        try:
            found = parse(text)
        except FormulaError as problem:
            return str(problem)
        strange = [name for name in found.names if name not in reads]
        if strange:
            return f"{text!r} mentions {strange[0]}, which the kernel does not read"
        lengths = {elements[name] for name in found.names} - {1}
        if found.summed:
            if elements[output] != 1 or len(lengths) > 1:
                return f"{text!r}: a sum is over vectors of one length, into an output of one element"
        elif lengths - {elements[output]}:
            return f"{text!r}: {output} has {elements[output]} elements, and a vector it is made of {min(lengths)}"
    return None
