"""C expressions as text, read into trees. Nothing is ever evaluated as Python.

    body    = chosen
    chosen  = operand [ "?" chosen ":" chosen ]
    operand = unary { OPERATOR unary }                    C's operators, with C's precedence
    unary   = { "-" | "+" | "~" | "!" | "(" TYPE ")" } primary
    primary = NUMBER | "(" chosen ")"
            | NAME                                        a parameter, a name of `let`, a pixel at [0, 0],
                                                          x, y, width, height
            | IMAGE [ "." ("r" | "g" | "b" | "a") ] [ "[" INTEGER "," INTEGER "]" ]
            | TYPE "(" chosen ")"                         uchar, short, ushort, int, half, float, double
            | FUNCTION "(" chosen { "," chosen } ")"      see expr.FUNCTIONS
            | WINDOW "(" MASK "," chosen ")"              sum, product, smallest, largest; see masks
            | "at" "(" IMAGE "," chosen "," chosen ")"    a pixel of an image in memory, counted from its upper left
            | "lookup" "(" NAME "," chosen ")"            an element of a table; of an image: of its first row

Numbers are C's: `3` and `0x1f` are int32, `0.04` is float64, `0.04f` is float32. Without [dx, dy] an image is read at
[0, 0]; without a channel, the channel that is being computed is read. Inside a window operation every image is seen
from each pixel of the window (`x` and `y` are that pixel's), while the names of `let` keep the value that they have at
its centre. `x`, `y`, `width` and `height` are the pixel's place and the size of the kernel's image, unless something
else has that name.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fusiond.model.errors import UnknownName
from fusiond.model.language.grammar import Call, Grammar, GrammarError, Literal, Name, Node
from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend import masks
from fusiond_mincut.frontend.expr import Const, Expr, TypeProblem
from fusiond_mincut.frontend.graph import PipelineImage
from fusiond_mincut.frontend.masks import Mask

LONGEST = 20_000
DEEPEST = 200
MOST_NODES = 20_000
TYPES = {
    "uchar": "uint8",
    "short": "int16",
    "ushort": "uint16",
    "int": "int32",
    "half": "float16",
    "float": "float32",
    "double": "float64",
}
CHANNELS = "rgba"
_CONVERSIONS = frozenset(TYPES) - {"half"}
"""Types T of which there is `(T) x`; `half` is a name that people give to values."""
RESERVED = frozenset({*tree.FUNCTIONS, *masks.WINDOWED, *_CONVERSIONS, "width", "height", "true", "false"})
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PRECEDENCE = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, "<=": 7, ">": 7, ">=": 7,
    "<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip
_LANGUAGE = Grammar(
    binary=_PRECEDENCE,
    prefix=dict.fromkeys("-+~!", 11),
    functions={
        **{name: each.arity for name, each in tree.FUNCTIONS.items()},
        **dict.fromkeys(masks.WINDOWED, 2),
        **dict.fromkeys(TYPES, 1),
        "at": 3,
        "lookup": 2,
    },
    literals=("hexadecimal", "float", "integer"),
    conversions=_CONVERSIONS,
    conditional=True,
    subscripts=True,
    longest=LONGEST,
    most_tokens=LONGEST,
    deepest=DEEPEST,
)


def name_problem(name: str) -> str | None:
    """Why something that a body reads, or a kernel, cannot have this name; None when it can."""
    if not NAME.fullmatch(name) or len(name) > 60:
        return f"{name[:80]!r} is not a name; use at most 60 letters, digits and _"
    if name in RESERVED:
        return f"{name!r} means something else in bodies; take another name"
    if "__" in name or name.startswith("_"):
        return f"{name!r}: names with a leading or a double _ belong to the compiler"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantTable:
    """Constants that `lookup` reads by index."""

    name: str
    dtype: str
    values: tuple[int | float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyScope:
    """The names of a body. `channels`: how many its kernel computes (one that computes one channel has to say which
    channel of an RGB image it reads)."""

    images: Mapping[str, PipelineImage]
    channels: int = 1
    constants: Mapping[str, Const] = field(default_factory=dict)
    locals: Mapping[str, str] = field(default_factory=dict)
    masks: Mapping[str, Mask] = field(default_factory=dict)
    tables: Mapping[str, ConstantTable] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """All that an expression can name."""
        return {*self.images, *self.locals, *self.constants}


def parse(text: str, scope: BodyScope) -> Expr:
    """The tree of a body. TypeProblem with one line, and the column, for whatever is wrong with it."""
    try:
        root = _LANGUAGE.parse(text)
    except GrammarError as problem:
        raise TypeProblem(str(problem), problem.column) from None
    found = _typed(root, scope)
    limited(found)
    return found


def limited(found: Expr) -> None:
    """TypeProblem when a tree is deeper or larger than everything here is made for."""
    if tree.depth(found) > DEEPEST:
        raise TypeProblem(f"more than {DEEPEST} operations inside each other; give parts a name with let")
    if sum(1 for _ in tree.walk(found)) > MOST_NODES:
        raise TypeProblem(f"more than {MOST_NODES} operations and operands")


def with_lets(body: Expr, lets: Sequence[tuple[str, Expr]]) -> Expr:
    """The body inside the names that it uses, directly or through another. TypeProblem as of `limited`."""
    for name, value in reversed(lets):
        if any(isinstance(each, tree.Local) and each.name == name for each in tree.walk(body)):
            body = tree.let(name, value, body)
    limited(body)
    return body


def _typed(node: Node, scope: BodyScope) -> Expr:
    """The tree of a node with types. A TypeProblem stands at the node's operator."""
    try:
        return _of(node, scope)
    except TypeProblem as problem:
        if problem.column is not None:
            raise
        raise TypeProblem(str(problem), node.column) from None


def _of(node: Node, scope: BodyScope) -> Expr:
    if isinstance(node, Literal):
        return _number(node)
    if isinstance(node, Name):
        return _named(node.name, scope)
    if node.operator == "[]":
        name, dx, dy = node.operands
        assert isinstance(name, Name)
        return _pixel(name.name, scope, (_offset(dx), _offset(dy)))
    if node.operator in masks.WINDOWED:
        return _windowed(node, scope)
    if node.operator in ("at", "lookup"):
        return _fetched(node, scope)
    operands = [_typed(each, scope) for each in node.operands]
    operator = node.operator.strip("()")  # `(float) x` is float(x)
    if operator in TYPES:
        return tree.cast(operands[0], TYPES[operator])
    if operator in tree.FUNCTIONS:
        return tree.call(operator, *operands)
    if operator == "?:":
        return tree.select(*operands)
    return tree.unary(operator, *operands) if len(operands) == 1 else tree.binary(operator, *operands)


def _number(node: Literal) -> Expr:
    if node.kind == "float":
        return tree.const(node.value, "float32" if node.text[-1] in "fF" else "float64")  # type: ignore[arg-type]
    if node.kind == "integer" and len(node.text) > 1 and node.text.startswith("0"):
        raise TypeProblem(f"{node.text} would be octal in C; write it without the leading 0")
    return tree.const(int(node.value), "int32")


def _named(name: str, scope: BodyScope) -> Expr:
    if name in scope.locals:
        return tree.Local(name, scope.locals[name])
    if name in scope.constants:
        return scope.constants[name]
    if name in tree.POSITIONS and name not in scope.images:
        return tree.position(name)
    return _pixel(name, scope, None)


def _fetched(node: Call, scope: BodyScope) -> Expr:
    given, *rest = node.operands
    of = "an image" if node.operator == "at" else "a table or an image"
    if not isinstance(given, Name):
        raise TypeProblem(f"{node.operator} reads {of} by its name", given.column)
    where = [_typed(each, scope) for each in rest]
    if node.operator == "lookup" and given.name in scope.tables:
        table = scope.tables[given.name]
        return tree.lookup(given.name, table.values, where[0], table.dtype)
    if given.name.partition(".")[0] not in scope.images:
        known = {*scope.images, *(scope.tables if node.operator == "lookup" else ())}
        raise TypeProblem(str(UnknownName(of.removeprefix("an ").removeprefix("a "), given.name, known)), given.column)
    seen = _pixel(given.name, scope, None)
    assert isinstance(seen, tree.PixelAccess)
    if scope.images[seen.image].single:
        raise TypeProblem(f"{seen.image} is a single value, not an image; it has no coordinates")
    row = where[1] if len(where) > 1 else Const(0, "int32")
    return tree.fetch(seen.image, where[0], row, seen.channel, scope.images[seen.image].channels, seen.dtype)


def _windowed(node: Call, scope: BodyScope) -> Expr:
    given, body = node.operands
    if not isinstance(given, Name) or given.name not in scope.masks:
        known = ", ".join(sorted(scope.masks)) or "none; they stand under masks:"
        text = given.name if isinstance(given, Name) else "an expression"
        raise TypeProblem(f"{node.operator} runs over a mask, and {text!r} is not one (there are: {known})")
    mask, inner = scope.masks[given.name], _typed(body, scope)
    if sum(1 for _ in tree.walk(inner)) * sum(len(row) for row in mask.taps) > MOST_NODES:
        raise TypeProblem(f"more than {MOST_NODES} operations and operands in the window")
    return masks.windowed(node.operator, mask, inner)


def _pixel(text: str, scope: BodyScope, offsets: tuple[int, int] | None) -> Expr:
    """`src`, `src.r`, either with [dx, dy]."""
    name, dot, letter = text.partition(".")
    if text in ("x", "y") and offsets is not None and name not in scope.images:
        return tree.shifted(tree.position(name), *offsets)
    if name not in scope.images:
        raise TypeProblem(str(UnknownName("name", name, scope.names)))
    image = scope.images[name]
    if dot and (letter not in tuple(CHANNELS) or image.channels == 1):
        offered = "it has one channel" if image.channels == 1 else "the channels are r, g and b"
        raise TypeProblem(f"{text} does not exist: {offered}")
    if not dot and image.channels > 1 and scope.channels == 1:
        raise TypeProblem(f"{name} has three channels and this kernel one; write {name}.r")
    if offsets is not None and image.single:
        raise TypeProblem(f"{name} is a single value, not an image; it has no [dx, dy]")
    channel = 0 if image.channels == 1 else CHANNELS.index(letter) if dot else None
    return tree.PixelAccess(name, *(offsets or (0, 0)), channel, image.dtype)


def _offset(node: Node) -> int:
    if isinstance(node, Literal) and node.kind == "integer" and len(node.text) <= 6:
        return int(node.value)
    if isinstance(node, Call) and len(node.operands) == 1 and node.operator in ("-", "+"):
        inner = _offset(node.operands[0])
        return -inner if node.operator == "-" else inner
    raise TypeProblem("img[dx, dy] has constant whole numbers as offsets", node.column)
