"""The parser of every small language of fusiond's files: sizes and restrictions, formulas over vectors, bodies of image
kernels.

A `Grammar` says which literals, operators and functions a language has; what its trees mean is said where they are
used. Nothing is ever evaluated as Python.

    tree     :=  Literal | Name | Call
    Call     :=  operator, operands            "+" of one or two operands, "min" of two, "[]" of a name and two offsets
                                               "?:" of three, "(float)" of one: a conversion, written before its operand

Operators are parsed by precedence (V. Pratt, Top Down Operator Precedence, 1973). Binary ones associate to the left.
`chained` ones mean what they do in mathematics: `a <= b < c` is `a <= b and b < c`.
"""

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fusiond.model.errors import UnknownName

Node: TypeAlias = "Literal | Name | Call"

_LITERALS = {
    "hexadecimal": r"0[xX][0-9a-fA-F]+",
    "float": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?|[0-9]+[eE][+-]?[0-9]+[fF]?",
    "integer": r"[0-9]+",
    "string": r"'[^'\n]*'|\"[^\"\n]*\"",
}
_NAME = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*"
_BEHIND_NUMBER = re.compile(r"[A-Za-z0-9_.]")
_DEEPEST = 50  #: Parentheses and prefixes inside each other: what bounds the recursion of the parser
_LONGEST_INTEGER = 1000  #: Python reads no integer of many thousand digits


class GrammarError(ValueError):
    """The text is not an expression of its language; the message is one line, `column` counts from 1."""

    def __init__(self, problem: str, column: int) -> None:
        super().__init__(problem)
        self.column = column


@dataclass(frozen=True, slots=True)
class Literal:
    """A number or a quoted text as written. `kind`: integer, hexadecimal, float, string."""

    kind: str
    text: str
    value: int | float | str
    column: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True)
class Name:
    name: str  #: With its dots: `block.x`
    column: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True)
class Call:
    operator: str
    operands: tuple[Node, ...]
    column: int = field(default=1, compare=False)  #: Of the operator
    depth: int = field(default=0, compare=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class Grammar:
    """A language. A larger precedence binds tighter; a prefix's operand holds all that binds at least as tight."""

    binary: Mapping[str, int]
    prefix: Mapping[str, int]
    functions: Mapping[str, int | None]  #: Name -> how many operands it takes; None: one or more
    literals: Collection[str] = ("integer",)
    chained: frozenset[str] = frozenset()
    conversions: frozenset[str] = frozenset()  #: Types T of which `(T) x` converts x
    conditional: bool = False  #: Whether there is `a ? b : c`
    subscripts: bool = False  #: Whether there is `name[a, b]`
    longest: int = 1000  #: In characters
    most_tokens: int = 250
    deepest: int = 600  #: Operations inside each other

    @functools.cached_property
    def words(self) -> frozenset[str]:
        """Operators that look like names."""
        return frozenset(each for each in (*self.binary, *self.prefix) if each.isalpha())

    @functools.cached_property
    def _token(self) -> re.Pattern[str]:
        signs = {each for each in (*self.binary, *self.prefix, "(", ")", ",") if not each.isalpha()}
        signs |= {*"?:"} if self.conditional else set()
        signs |= {*"[]"} if self.subscripts else set()
        sign = "|".join(re.escape(each) for each in sorted(signs, key=len, reverse=True))
        kinds = {kind: _LITERALS[kind] for kind in _LITERALS if kind in self.literals} | {"name": _NAME, "sign": sign}
        return re.compile(r"\s*(?:" + "|".join(f"(?P<{kind}>{pattern})" for kind, pattern in kinds.items()) + ")")

    def is_name(self, text: str) -> bool:
        """Whether a text can stand for a value."""
        return re.fullmatch(_NAME, text) is not None and text not in self.words

    def parse(self, text: str) -> Node:
        """The tree of a text. GrammarError says what is wrong, and at which column."""
        parser = _Parser(self, text)
        root = parser.expression(0, 0)
        if not parser.at_end:
            raise parser.unexpected()
        return root

    def tokens(self, text: str) -> Iterator[tuple[str, str, int]]:
        """(kind, text, column) of each token. GrammarError."""
        if len(text) > self.longest:
            raise GrammarError(f"longer than {self.longest} characters", 1)
        position, end, count = 0, len(text.rstrip()), 0
        while position < end:
            found = self._token.match(text, position)
            if found is None:
                column = position + len(text[position:]) - len(text[position:].lstrip()) + 1
                raise GrammarError(f"unexpected {text[column - 1]!r}", column)
            kind = found.lastgroup or ""
            position, column = found.end(), found.start(kind) + 1
            if kind in ("integer", "hexadecimal", "float") and _BEHIND_NUMBER.match(text, position):
                raise GrammarError(f"{text[column - 1 : position + 1]!r} is not a number", column)
            count += 1
            if count > self.most_tokens:
                raise GrammarError(f"more than {self.most_tokens} words and signs", column)
            yield kind, found[kind], column


def _literal(kind: str, text: str, column: int) -> Literal:
    if kind == "string":
        return Literal(kind, text, text[1:-1], column)
    if kind == "float":
        return Literal(kind, text, float(text.rstrip("fF")), column)
    if len(text) > _LONGEST_INTEGER:
        raise GrammarError(f"a number of {len(text)} digits", column)
    return Literal(kind, text, int(text, 16 if kind == "hexadecimal" else 10), column)


def walk(root: Node) -> Iterator[Node]:
    """Every node of a tree, operators before their operands, from left to right."""
    left = [root]
    while left:
        node = left.pop()
        yield node
        if isinstance(node, Call):
            left += reversed(node.operands)


class _Parser:
    def __init__(self, grammar: Grammar, text: str) -> None:
        self._grammar = grammar
        self._tokens = list(grammar.tokens(text))
        self._position = 0
        self._end = len(text.rstrip()) + 1

    @property
    def at_end(self) -> bool:
        return self._position == len(self._tokens)

    @property
    def _column(self) -> int:
        return self._end if self.at_end else self._tokens[self._position][2]

    def unexpected(self) -> GrammarError:
        if not self._tokens:
            return GrammarError("an empty expression", 1)
        if self.at_end:
            return GrammarError("ends too early", self._end)
        return GrammarError(f"unexpected {self._tokens[self._position][1]!r}", self._column)

    def _operator(self, ahead: int = 0) -> str | None:
        """The sign (or the word that is an operator) that comes next; None: something else."""
        if self._position + ahead < len(self._tokens):
            kind, text, _ = self._tokens[self._position + ahead]
            if kind == "sign" or text in self._grammar.words:
                return text
        return None

    def _take(self, sign: str) -> bool:
        if self._operator() == sign:
            self._position += 1
            return True
        return False

    def _close(self, sign: str) -> None:
        if not self._take(sign):
            problem = f"a {sign!r} is missing"
            raise GrammarError(
                problem if self.at_end else f"{problem} before {self._tokens[self._position][1]!r}", self._column
            )

    def _made(self, operator: str, operands: tuple[Node, ...], column: int) -> Call:
        depth = 1 + max((each.depth for each in operands if isinstance(each, Call)), default=0)
        if depth > self._grammar.deepest:
            raise GrammarError(f"more than {self._grammar.deepest} operations inside each other", column)
        return Call(operator, operands, column, depth)

    def expression(self, least: int, nested: int) -> Node:
        """Everything whose operators bind at least so tight."""
        grammar = self._grammar
        if nested > _DEEPEST:
            raise GrammarError("nested too deeply", self._column)
        left = self._prefixed(least, nested)
        while (operator := self._operator()) in grammar.binary:
            assert operator is not None
            precedence = grammar.binary[operator]
            if precedence < least:
                break
            left = self._chain(left, precedence, nested) if operator in grammar.chained else self._joined(left, nested)
        if least == 0 and grammar.conditional and self._operator() == "?":
            column = self._column
            self._position += 1
            chosen = self.expression(0, nested + 1)
            self._close(":")
            left = self._made("?:", (left, chosen, self.expression(0, nested + 1)), column)
        return left

    def _joined(self, left: Node, nested: int) -> Node:
        _, operator, column = self._tokens[self._position]
        self._position += 1
        return self._made(operator, (left, self.expression(self._grammar.binary[operator] + 1, nested)), column)

    def _chain(self, left: Node, precedence: int, nested: int) -> Node:
        """`a <= b < c`: each neighbour is compared with the next."""
        whole: Node | None = None
        while (operator := self._operator()) in self._grammar.chained:
            assert operator is not None
            column = self._column
            self._position += 1
            right = self.expression(precedence + 1, nested)
            one = self._made(operator, (left, right), column)
            whole = one if whole is None else self._made("and", (whole, one), column)
            left = right
        assert whole is not None
        return whole

    def _prefixed(self, least: int, nested: int) -> Node:
        operator = self._operator() or ""
        column = self._column
        precedence = self._grammar.prefix.get(operator, -1)
        if precedence >= least:
            self._position += 1
            return self._made(operator, (self.expression(precedence, nested + 1),), column)
        if operator == "(":
            return self._parenthesis(nested)
        return self._atom(nested)

    def _parenthesis(self, nested: int) -> Node:
        column = self._column
        self._position += 1
        type_name = self._tokens[self._position][1] if not self.at_end else ""
        if type_name in self._grammar.conversions and self._operator(1) == ")":
            self._position += 2
            tightest = max(self._grammar.prefix.values())
            return self._made(f"({type_name})", (self.expression(tightest, nested + 1),), column)
        node = self.expression(0, nested + 1)
        self._close(")")
        return node

    def _atom(self, nested: int) -> Node:
        if self.at_end or self._operator() is not None:
            raise self.unexpected()
        kind, text, column = self._tokens[self._position]
        self._position += 1
        if kind != "name":
            return _literal(kind, text, column)
        if self._take("("):
            return self._function(text, column, nested)
        if self._grammar.subscripts and self._take("["):
            first = self.expression(0, nested + 1)
            self._close(",")
            second = self.expression(0, nested + 1)
            self._close("]")
            return self._made("[]", (Name(text, column), first, second), column)
        return Name(text, column)

    def _function(self, name: str, column: int, nested: int) -> Node:
        functions = self._grammar.functions
        if name not in functions:
            raise GrammarError(str(UnknownName("function", name, functions)), column)
        operands = [self.expression(0, nested + 1)]
        while self._take(","):
            operands.append(self.expression(0, nested + 1))
        self._close(")")
        wanted = functions[name]
        if wanted is not None and len(operands) != wanted:
            raise GrammarError(f"{name} takes {wanted} value{'s' if wanted > 1 else ''}, not {len(operands)}", column)
        return self._made(name, tuple(operands), column)
