"""C expressions as text, read into trees. Nothing is ever evaluated as Python.

    body    = chosen
    chosen  = operand [ "?" chosen ":" chosen ]
    operand = unary { OPERATOR unary }                    C's operators, with C's precedence
    unary   = { "-" | "+" | "~" | "!" | "(" TYPE ")" } primary
    primary = NUMBER | "(" chosen ")"
            | NAME                                        a parameter, width, height, a name of `let`, a pixel at [0, 0]
            | IMAGE [ "." ("r" | "g" | "b") ] [ "[" INTEGER "," INTEGER "]" ]
            | TYPE "(" chosen ")"                         uchar, int, float, double
            | FUNCTION "(" chosen { "," chosen } ")"      see expr.FUNCTIONS
            | WINDOW "(" MASK "," chosen ")"              sum, product, smallest, largest; see masks

Numbers are C's: `3` and `0x1f` are int32, `0.04` is float64, `0.04f` is float32. Without [dx, dy] an image is read at
[0, 0]; without a channel, the channel that is being computed is read. Inside a window operation every image is seen
from each pixel of the window, while the names of `let` keep the value that they have at its centre.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fusiond.errors import UnknownName
from fusiond_mincut import expr as tree
from fusiond_mincut import masks
from fusiond_mincut.expr import Const, Expr, TypeProblem
from fusiond_mincut.masks import Mask

LONGEST = 20_000
DEEPEST = 200
MOST_NODES = 20_000
_NESTED = 60
_LONGEST_NUMBER = 1000
"""Python reads no integer of many thousand digits."""
TYPES = {"uchar": "uint8", "int": "int32", "float": "float32", "double": "float64"}
CHANNELS = "rgb"
RESERVED = frozenset({*tree.FUNCTIONS, *masks.WINDOWED, *TYPES, "width", "height", "true", "false"})
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PRECEDENCE = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, "<=": 7, ">": 7, ">=": 7,
    "<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<hex>0[xX][0-9a-fA-F]+)
  | (?P<float>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?|[0-9]+[eE][+-]?[0-9]+[fF]?)
  | (?P<int>[0-9]+)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<op>\|\||&&|==|!=|<=|>=|<<|>>|[-+*/%<>&|^~!?:,.()\[\]])
    )""",
    re.VERBOSE,
)


def name_problem(name: str) -> str | None:
    """Why something that a body reads, or a kernel, cannot have this name; None when it can."""
    if not NAME.fullmatch(name) or len(name) > 60:
        return f"{name[:80]!r} is no name; letters, digits and _ are wanted, at most 60"
    if name in RESERVED:
        return f"{name!r} means something else in bodies; take another name"
    if "__" in name or name.startswith("_"):
        return f"{name!r}: names with a leading or a double _ belong to the compiler"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Readable:
    """What a body may read by name. `single`: one value (what a global kernel made), not an image of them."""

    dtype: str
    channels: int
    single: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The names of a body. `channels`: how many its kernel computes (one that computes one channel has to say which
    channel of an RGB image it reads)."""

    images: Mapping[str, Readable]
    channels: int = 1
    constants: Mapping[str, Const] = field(default_factory=dict)
    locals: Mapping[str, str] = field(default_factory=dict)
    masks: Mapping[str, Mask] = field(default_factory=dict)


def parse(text: str, scope: Scope) -> Expr:
    """The tree of a body. TypeProblem with one line that names the column, for whatever is wrong with it."""
    if len(text) > LONGEST:
        raise TypeProblem(f"longer than {LONGEST} characters")
    parser = _Parser(text, scope)
    found = parser.chosen(0)
    if parser.kind != "end":
        raise parser.problem(f"{parser.text!r} follows a complete expression")
    limited(found)
    return found


def limited(found: Expr) -> None:
    """TypeProblem when a tree is deeper or larger than everything here is made for."""
    if tree.depth(found) > DEEPEST:
        raise TypeProblem(f"more than {DEEPEST} operations inside each other; give parts a name with let")
    if sum(1 for _ in tree.walk(found)) > MOST_NODES:
        raise TypeProblem(f"more than {MOST_NODES} operations and operands")


class _Parser:
    def __init__(self, text: str, scope: Scope) -> None:
        self.source, self.scope = text, scope
        self.position = 0
        self.kind, self.text, self.start = "", "", 0
        self.advance()

    def problem(self, what: str) -> TypeProblem:
        return TypeProblem(f"column {self.start + 1}: {what}")

    def advance(self) -> str:
        """Go to the next token; the text of the one that was current."""
        last = self.text
        rest = self.source[self.position :]
        if not rest.strip():
            self.kind, self.text, self.start = "end", "the end", len(self.source)
            return last
        found = _TOKEN.match(self.source, self.position)
        if found is None:
            self.start = self.position + len(rest) - len(rest.lstrip())
            raise self.problem(f"{self.source[self.start]!r} does not belong here")
        self.kind = found.lastgroup or ""
        self.text, self.start = found.group(self.kind), found.start(self.kind)
        self.position = found.end()
        if self.kind in ("int", "hex", "float") and re.match(r"[A-Za-z0-9_.]", self.source[self.position :]):
            raise self.problem(
                f"{self.text + self.source[self.position]!r} is no number (0.5f is a float, 0.5 a double)"
            )
        return last

    def expect(self, text: str) -> None:
        if self.kind != "op" or self.text != text:
            raise self.problem(f"{text!r} is wanted, not {self.text!r}")
        self.advance()

    def at(self, *texts: str) -> bool:
        return self.kind == "op" and self.text in texts

    def typed(self, start: int, build: Callable[[], Expr]) -> Expr:
        """A node, or a TypeProblem at its operator."""
        try:
            return build()
        except TypeProblem as problem:
            if str(problem).startswith("column "):
                raise
            raise TypeProblem(f"column {start + 1}: {problem}") from None

    def chosen(self, level: int) -> Expr:
        if level > _NESTED:
            raise self.problem("nested too deeply")
        condition = self.operand(level, 1)
        if not self.at("?"):
            return condition
        start = self.start
        self.advance()
        then = self.chosen(level + 1)
        self.expect(":")
        other = self.chosen(level + 1)
        return self.typed(start, lambda: tree.select(condition, then, other))

    def operand(self, level: int, least: int) -> Expr:
        left = self.unary(level)
        while self.kind == "op" and _PRECEDENCE.get(self.text, 0) >= least:
            start, op = self.start, self.text
            self.advance()
            right = self.operand(level, _PRECEDENCE[op] + 1)
            left = self._joined(start, op, left, right)
        return left

    def _joined(self, start: int, op: str, left: Expr, right: Expr) -> Expr:
        return self.typed(start, lambda: tree.binary(op, left, right))

    def unary(self, level: int) -> Expr:
        if level > _NESTED:
            raise self.problem("nested too deeply")
        if self.at("-", "+", "~", "!"):
            start, op = self.start, self.advance()
            operand = self.unary(level + 1)
            return self.typed(start, lambda: tree.unary(op, operand))
        if self.at("("):
            self.advance()
            if self.kind == "name" and self.text in TYPES and self.source[self.position :].lstrip()[:1] == ")":
                dtype = TYPES[self.advance()]
                self.expect(")")
                return tree.cast(self.unary(level + 1), dtype)
            inner = self.chosen(level + 1)
            self.expect(")")
            return inner
        return self.primary(level)

    def primary(self, level: int) -> Expr:
        start = self.start
        if self.kind in ("int", "hex"):
            text = self.advance()
            if len(text) > 1 and text.startswith("0") and text.isdigit():
                raise TypeProblem(f"column {start + 1}: {text} would be octal in C; write it without the leading 0")
            if len(text) > _LONGEST_NUMBER:
                raise TypeProblem(f"column {start + 1}: a number of {len(text)} digits does not fit an int32")
            value = int(text, 16 if text[:2] in ("0x", "0X") else 10)
            return self.typed(start, lambda: tree.const(value, "int32"))
        if self.kind == "float":
            text = self.advance()
            dtype = "float32" if text[-1] in "fF" else "float64"
            return self.typed(start, lambda: tree.const(float(text.rstrip("fF")), dtype))
        if self.kind != "name":
            raise self.problem(f"an operand is wanted, not {self.text!r}")
        name = self.advance()
        if self.at("("):
            return self._called(name, start, level)
        scope = self.scope
        if name in scope.locals:
            return tree.Local(name, scope.locals[name])
        if name in scope.constants:
            return scope.constants[name]
        if name in scope.images:
            return self._pixel(name, start)
        known = {*scope.images, *scope.locals, *scope.constants}
        raise TypeProblem(f"column {start + 1}: {UnknownName('name', name, known)}")

    def _called(self, name: str, start: int, level: int) -> Expr:
        if name not in tree.FUNCTIONS and name not in TYPES and name not in masks.WINDOWED:
            known = {*tree.FUNCTIONS, *TYPES, *masks.WINDOWED}
            raise TypeProblem(f"column {start + 1}: {UnknownName('function', name, known)}")
        self.expect("(")
        if name in masks.WINDOWED:
            mask = self._mask(name)
            self.expect(",")
            inner = self.chosen(level + 1)
            self.expect(")")
            if sum(1 for _ in tree.walk(inner)) * sum(len(row) for row in mask.taps) > MOST_NODES:
                raise TypeProblem(f"column {start + 1}: more than {MOST_NODES} operations and operands in the window")
            return self.typed(start, lambda: masks.windowed(name, mask, inner))
        arguments = [self.chosen(level + 1)]
        while self.at(","):
            self.advance()
            arguments.append(self.chosen(level + 1))
        self.expect(")")
        if name in TYPES:
            if len(arguments) != 1:
                raise TypeProblem(f"column {start + 1}: {name}(x) converts one value")
            return tree.cast(arguments[0], TYPES[name])
        return self.typed(start, lambda: tree.call(name, *arguments))

    def _mask(self, function: str) -> Mask:
        if self.kind != "name" or self.text not in self.scope.masks:
            known = ", ".join(sorted(self.scope.masks)) or "none; they stand under masks:"
            raise self.problem(f"{function} runs over a mask, and {self.text!r} is none (there are: {known})")
        return self.scope.masks[self.advance()]

    def _pixel(self, name: str, start: int) -> Expr:
        image = self.scope.images[name]
        channel = None
        if self.at("."):
            self.advance()
            if self.kind != "name" or self.text not in tuple(CHANNELS) or image.channels == 1:
                offered = "it has one channel" if image.channels == 1 else "the channels are r, g and b"
                raise self.problem(f"{name}.{self.text} is nothing: {offered}")
            channel = CHANNELS.index(self.advance())
        if image.channels == 1:
            channel = 0
        elif channel is None and self.scope.channels == 1:
            raise TypeProblem(f"column {start + 1}: {name} has three channels and this kernel one; write {name}.r")
        dx = dy = 0
        if self.at("["):
            if image.single:
                raise self.problem(f"{name} is a single value, no image; it has no [dx, dy]")
            self.advance()
            dx = self._offset()
            self.expect(",")
            dy = self._offset()
            self.expect("]")
        return tree.Access(name, dx, dy, channel, image.dtype)

    def _offset(self) -> int:
        sign = 1
        while self.at("-", "+"):
            sign = -sign if self.advance() == "-" else sign
        if self.kind != "int" or len(self.text) > 6:
            raise self.problem(f"a whole number is wanted, not {self.text!r}: img[dx, dy] has constant offsets")
        return sign * int(self.advance())
