"""The statements of a generated function: nested blocks that remember which values and indices they already hold.

A value is computed in the outermost block where its index is known: behind no condition that the request does not
stand behind, but out of every loop whose variable it does not need. What a block (or one round it) has computed is
found again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fusiond_stitching import indexing
from fusiond_stitching.indexing import Index, Quotient, Remainder, symbol
from fusiond_stitching.semantics import Functions, Type, Unsupported, bare

MOST_STATEMENTS = 40_000
"""A function with more is a plan gone wrong (a value computed again at every index that asks for it)."""


class Unit:
    """What all functions of one source share: device functions and constant tables. `most_elements`: of any tensor."""

    def __init__(self, most_elements: int = 0) -> None:
        self.most_elements = most_elements
        self.functions = Functions()
        self._tables: dict[str, str] = {}  # type and values -> name

    def table(self, kind: Type, values: str) -> str:
        """The name of a constant array that holds these values (C text, in braces)."""
        return self._tables.setdefault(f"{kind.value} TABLE[] = {values}", f"table_{len(self._tables)}")

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(f"__device__ const {text.replace('TABLE', name)};\n" for text, name in self._tables.items())


class Function:
    """What all blocks of one generated function share: its names, and how long it may become."""

    def __init__(self, unit: Unit, *, index_type: str = "int") -> None:
        self.unit = unit
        self.index_type = index_type
        self.statements = 0
        self._names: dict[str, int] = {}

    @property
    def functions(self) -> Functions:
        return self.unit.functions

    def fresh(self, hint: str) -> str:
        """A name that the function does not use yet: `add_0`, `add_1`, ..."""
        word = "".join(letter if letter.isalnum() else "_" for letter in hint)
        count = self._names.get(word, 0)
        self._names[word] = count + 1
        return f"{word}_{count}"


class Scope:
    """A block of statements. `conditional`: it does not always run, so nothing moves out of it."""

    def __init__(self, function: Function, parent: Scope | None = None, *, conditional: bool = False) -> None:
        self.function = function
        self.parent = parent
        self.conditional = conditional
        self.lines: list[str] = []
        self.symbols: set[str] = set()
        self._values: dict[tuple[str, tuple[Index, ...]], str] = {}
        self._atoms: dict[Quotient | Remainder, str] = {}

    # --- statements ---

    def line(self, text: str) -> None:
        self.function.statements += 1
        if self.function.statements > MOST_STATEMENTS:
            raise Unsupported(
                f"the kernel would need more than {MOST_STATEMENTS} statements: values are computed again too often"
            )
        self.lines.append(text)

    def declare(self, kind: Type, hint: str, expression: str) -> str:
        """A named value."""
        name = self.function.fresh(hint)
        self.line(f"const {kind.value} {name} = {bare(expression)};")
        return name

    def variable(self, hint: str, expression: str, count: int, *, low: int = 0) -> Index:
        """A named index with values low .. low + count - 1; a number where there is only one."""
        if count <= 1:
            return indexing.number(low)
        name = self.function.fresh(hint)
        self.line(f"const {self.function.index_type} {name} = {expression};")
        return self.known(name, count, low=low)

    def known(self, name: str, count: int, *, low: int = 0) -> Index:
        """An index whose variable this block has."""
        self.symbols.add(name)
        return symbol(name, count, low=low)

    @contextmanager
    def block(self, header: str, *, conditional: bool = True, end: str | None = "}") -> Iterator[Scope]:
        """A nested block: `header {`, its lines, `end`."""
        inner = Scope(self.function, self, conditional=conditional)
        yield inner
        self.lines.append(f"{header} {{".lstrip())
        self.lines += [f"    {line}" for line in inner.lines]
        if end is not None:
            self.lines.append(end)

    # --- values and indices ---

    def home(self, symbols: frozenset[str]) -> Scope:
        """The outermost block that may compute what depends on these variables alone."""
        scope = self
        while scope.parent is not None and not scope.conditional and not (scope.symbols & symbols):
            scope = scope.parent
        return scope

    def remember(self, name: str, indices: tuple[Index, ...], value: str) -> None:
        self._values[name, indices] = value

    def recall(self, name: str, indices: tuple[Index, ...]) -> str | None:
        """The value of an instruction at an index, where this block or one round it has it."""
        key = (name, indices)
        scope: Scope | None = self
        while scope is not None:
            if key in scope._values:
                return scope._values[key]
            scope = scope.parent
        return None

    def index(self, index: Index) -> str:
        """C text of an index; quotients and remainders become variables."""
        return indexing.text(index, self._atom)

    def _atom(self, atom: Quotient | Remainder) -> str:
        scope: Scope | None = self
        while scope is not None:
            if atom in scope._atoms:
                return scope._atoms[atom]
            scope = scope.parent
        home = self.home(atom.of.symbols)
        inside = home.index(atom.of)
        if not inside.isidentifier():
            inside = f"({inside})"
        name = self.function.fresh("at")
        home.line(
            f"const {self.function.index_type} {name} = {inside} {'/' if isinstance(atom, Quotient) else '%'} "
            f"{atom.divisor};"
        )
        home._atoms[atom] = name
        return name


_WORD = re.compile(r"\b[A-Za-z_]\w*\b")
_CONSTANT = re.compile(r"\s*const [\w ]+ (\w+) = .*;$")


def without_unused(lines: Sequence[str]) -> list[str]:
    """The lines without the constants that nobody reads (an index that turned out not to matter, say)."""
    words = [_WORD.findall(line.partition("//")[0]) for line in lines]
    count = Counter(word for found in words for word in found)
    kept = [True] * len(lines)
    for place in reversed(range(len(lines))):  # a constant is read behind its declaration only
        declared = _CONSTANT.match(lines[place])
        if declared and count[declared[1]] == 1:
            kept[place] = False
            count.subtract(words[place])
    return [line for line, keep in zip(lines, kept, strict=True) if keep]
