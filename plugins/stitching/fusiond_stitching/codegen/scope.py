"""The statements of a generated function: nested blocks that remember which values and indices they already hold.

A value is computed in the outermost block where its index is known: behind no condition that the request does not
stand behind, but out of every loop whose variable it does not need. What a block (or one round it) has computed is
found again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from fusiond.model.codegen import code
from fusiond.model.codegen.code import Code, bare, cpp, joined
from fusiond.model.codegen.statements import Statements
from fusiond_stitching.analysis import indexing
from fusiond_stitching.analysis.indexing import Index, Quotient, Remainder, Symbol, symbol
from fusiond_stitching.codegen import semantics
from fusiond_stitching.codegen.semantics import Functions, NoCode, Type

MOST_STATEMENTS = 40_000
"""A function with more is a plan gone wrong (a value computed again at every index that asks for it)."""


_PACK = "template <class T, int N>\nstruct alignas(sizeof(T) * N) Pack {\n    T at[N];\n};\n"


class SourceUnit:
    """What all functions of one source share: device functions and constant tables. `most_elements`: of any tensor."""

    def __init__(self, most_elements: int = 0) -> None:
        self.most_elements = most_elements
        self.functions = Functions()
        self.packs = False  #: Whether somebody loads or stores several neighbours at once: then `pack` is declared
        self._tables: dict[tuple[str, str], str] = {}  # type, values -> name

    def table(self, kind: Type, values: str) -> str:
        """The name of a constant array that holds these values (C text, in braces)."""
        return self._tables.setdefault((kind.value, values), f"table_{len(self._tables)}")

    def pack(self, kind: Type, count: int) -> Code:
        """The type of `count` neighbours in memory, which are loaded and stored at once."""
        self.packs = True
        return cpp("Pack<{}, {}>", kind.memory, count).needing(*kind.headers)

    @property
    def declarations(self) -> tuple[str, ...]:
        """What stands before the functions."""
        tables = (f"__device__ const {kind} {name}[] = {held};\n" for (kind, held), name in self._tables.items())
        return (*((_PACK,) if self.packs else ()), *tables)


class GeneratedFunction:
    """What all blocks of one generated function share: its names, and how long it may become."""

    def __init__(self, unit: SourceUnit, *, index_type: str = "int") -> None:
        self.unit = unit
        self.index_type = index_type
        self.unrolled = 0  #: Loops of at most so many rounds are written out by the compiler
        self.statements = 0
        self._names: dict[str, int] = {}

    @property
    def functions(self) -> Functions:
        return self.unit.functions

    def fresh(self, hint: str) -> Code:
        """A name that the function does not use yet: `add_0`, `add_1`, ..."""
        word = "".join(letter if letter.isalnum() else "_" for letter in hint)
        count = self._names.get(word, 0)
        self._names[word] = count + 1
        return code.name(f"{word}_{count}")


class Scope:
    """A block of statements. `conditional`: it does not always run, so nothing moves out of it."""

    def __init__(self, function: GeneratedFunction, parent: Scope | None = None, *, conditional: bool = False) -> None:
        self.function = function
        self.parent = parent
        self.conditional = conditional
        self.body = Statements()
        self.symbols: set[str] = set()
        self._values: dict[tuple[str, tuple[Index, ...]], Code] = {}
        self._atoms: dict[Quotient | Remainder, Code] = {}

    # --- statements ---

    def line(self, text: Code) -> None:
        self._counted()
        self.body.line(text)

    def comment(self, text: str) -> None:
        self.body.comment(text)

    def _counted(self) -> None:
        self.function.statements += 1
        if self.function.statements > MOST_STATEMENTS:
            raise NoCode(
                f"the kernel would need more than {MOST_STATEMENTS} statements: values are computed again too often"
            )

    def declare(self, kind: Type, hint: str, expression: Code) -> Code:
        """A named value."""
        return self.constant(kind.value, hint, bare(expression))

    def constant(self, kind: str, hint: str, expression: Code) -> Code:
        """The same, of a C++ type."""
        self._counted()
        return self.body.declare(kind, self.function.fresh(hint), expression)

    def mutable(self, kind: Type, hint: str, value: Code) -> Code:
        """A named value that is assigned again."""
        name = self.function.fresh(hint)
        self.line(cpp("{} {} = {};", kind.value, name, value))
        return name

    def shared(self, kind: Type, hint: str, offset_bytes: int) -> Code:
        """A pointer to a part of the arena."""
        name = self.function.fresh(hint)
        self.line(cpp("{0}* const {1} = ({0}*)(arena + {2});", kind.memory, name, offset_bytes).needing(*kind.headers))
        return name

    def stored(self, kind: Type, value: Code) -> Code:
        """What is written to memory for a value of the type."""
        return semantics.stored(self.function.functions, kind, value)

    def variable(self, hint: str, expression: Code, count: int, *, low: int = 0) -> Index:
        """A named index with values low .. low + count - 1; a number where there is only one."""
        if count <= 1:
            return indexing.number(low)
        return self.known(self.constant(self.function.index_type, hint, expression), count, low=low)

    def known(self, name: str, count: int, *, low: int = 0) -> Index:
        """An index whose variable this block has."""
        self.symbols.add(name)
        return symbol(name, count, low=low)

    def _outwards(self) -> Iterator[Scope]:
        """This block and those round it."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def knows(self, symbols: Iterable[str]) -> bool:
        """Whether this block or those round it have the variables of an index."""
        return all(any(symbol in scope.symbols for scope in self._outwards()) for symbol in symbols)

    @contextmanager
    def block(self, header: Code, *, conditional: bool = True, end: str | None = "}") -> Iterator[Scope]:
        """A nested block: `header {`, its statements, `end`."""
        inner = Scope(self.function, self, conditional=conditional)
        yield inner
        self.body.nest(header, inner.body, end=end)

    def when(self, conditions: Sequence[Code], *, end: str | None = "}") -> AbstractContextManager[Scope]:
        """A nested block behind conditions, if there are any."""
        return self.block(cpp("if ({})", joined(" && ", conditions)) if conditions else Code(""), end=end)

    # --- values and indices ---

    def home(self, symbols: frozenset[str]) -> Scope:
        """The outermost block that may compute what depends on these variables alone."""
        scope = self
        while scope.parent is not None and not scope.conditional and not (scope.symbols & symbols):
            scope = scope.parent
        return scope

    def remember(self, name: str, indices: tuple[Index, ...], value: Code) -> None:
        self._values[name, indices] = value

    def recall(self, name: str, indices: tuple[Index, ...]) -> Code | None:
        """The value of an instruction at an index, where this block or one round it has it."""
        key = (name, indices)
        return next((scope._values[key] for scope in self._outwards() if key in scope._values), None)

    def index(self, index: Index) -> Code:
        """C text of an index; quotients and remainders become variables."""
        return index_text(index, self._atom)

    def _atom(self, atom: Quotient | Remainder) -> Code:
        for scope in self._outwards():
            if atom in scope._atoms:
                return scope._atoms[atom]
        home = self.home(atom.of.symbols)
        inside = home.index(atom.of)
        if not inside.isidentifier():
            inside = cpp("({})", inside)
        sign = "/" if isinstance(atom, Quotient) else "%"
        home._atoms[atom] = home.constant(self.function.index_type, "at", cpp("{} {} {}", inside, sign, atom.divisor))
        return home._atoms[atom]


def index_text(index: Index, name: Callable[[Quotient | Remainder], Code]) -> Code:
    """C text of an index; `name` gives a quotient or remainder (a variable that holds it)."""
    parts: list[Code] = []
    for atom, coefficient in index.terms:
        word = code.name(atom.name) if isinstance(atom, Symbol) else name(atom)
        word = word if abs(coefficient) == 1 else cpp("{} * {}", abs(coefficient), word)
        parts.append(_signed(word, coefficient, first=not parts))
    if index.constant or not parts:
        parts.append(_signed(cpp("{}", abs(index.constant)), index.constant, first=not parts))
    return joined(" ", parts)


def _signed(word: Code, sign: int, *, first: bool) -> Code:
    if first:
        return cpp("-{}", word) if sign < 0 else word
    return cpp("- {}", word) if sign < 0 else cpp("+ {}", word)
