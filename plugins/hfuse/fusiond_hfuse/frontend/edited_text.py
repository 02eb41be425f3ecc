"""A unit's text with what is done to it: edits by their places in bytes, and reasons to refuse it.

The text is looked at in `code`, where comments and the insides of strings are blank and every character is a byte: a
place in clang's tree is a place there.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterator

from fusiond.model import Rejection
from fusiond_hfuse.frontend import clang_tree, cursors
from fusiond_hfuse.frontend.cursors import cindex
from fusiond_hfuse.frontend.source_kernel import TranslationUnit


class EditedText:
    """The text of one reading."""

    def __init__(
        self, unit: TranslationUnit, tree: clang_tree.ClangTree, name: str, macros: list[tuple[int, int]]
    ) -> None:
        self.unit = unit
        self.tree = tree
        self.name = name
        self.data = unit.text.encode()
        self.code = clang_tree.blanked(self.data)
        self.macros = macros
        """The definitions of the file."""
        self.edits: dict[tuple[int, int], str] = {}
        """By start and end, what stands there instead."""
        self.rejections: list[Rejection] = []
        self.scope: tuple[str, ...] = ()
        """The kernel's namespaces."""
        self.head = ""
        """Its `template <...>`."""

    def refuse(self, rule: str, cursor: cindex.Cursor, detail: str) -> None:
        """Say why the kernel cannot be fused, with the place that `cursor` stands at."""
        self.rejections.append(self.refusal(rule, cursor.location.line, detail))

    def refusal(self, rule: str, line: int, detail: str) -> Rejection:
        """The same for a line of the unit."""
        return Rejection(rule=rule, nodes=(self.name,), detail=f"{self.unit.where(line)}: {' '.join(detail.split())}")

    def edit(self, start: int, end: int, text: str) -> None:
        """Put a text in place of what stands from `start` to `end`."""
        self.edits[start, end] = text

    def behind(self, opened: int) -> int:
        """The offset behind the parenthesis that closes one opened just before `opened`."""
        depth = 1
        while depth and opened < len(self.code):
            depth += {"(": 1, ")": -1}.get(self.code[opened], 0)
            opened += 1
        return opened

    @functools.cached_property
    def tokens(self) -> list[cindex.Token]:
        """All of the text, comments left out."""
        return list(self._tokens(0, len(self.data)))

    def _tokens(self, start: int, end: int) -> Iterator[cindex.Token]:
        return cursors.tokens(self.tree.unit, clang_tree.MAIN, start, end)

    def words(self, start: int, end: int, names: Collection[str]) -> Iterator[tuple[int, str]]:
        """(offset, name) of each of these names that stands there."""
        for each in self._tokens(start, end):
            if each.spelling in names and each.location.offset < end:
                yield each.location.offset, each.spelling

    def in_macros(self, word: str, text: str, *, called: bool = False) -> bool:
        """Replace a word in the macros of the file, `called` with its arguments; whether it stood in one."""
        found = False
        for start, end in self.macros:
            for at, _ in self.words(start, end, {word}):
                behind = at + len(word)
                opening = self.code.find("(", behind, end) if called else -1
                found = True
                self.edit(at, self.behind(opening + 1) if opening >= 0 else behind, text)
        return found

    def named_in_macro(self, name: str) -> bool:
        """Whether a macro of the file calls it, or names it with template arguments."""
        for start, end in self.macros:
            found = [each.spelling for each in self._tokens(start, end)]
            if any(one == name and next_ in ("(", "<") for one, next_ in itertools.pairwise(found)):
                return True
        return False

    def handed_to_macro(self, offset: int, name: str) -> bool:
        """Whether it is named in the arguments of the macro that is used here: that place is looked at by itself."""
        opening = self.code.find("(", offset)
        if opening < 0 or not self.code[offset:opening].strip().isidentifier():
            return False
        end = self.behind(opening + 1) - 1
        return next(self.words(opening + 1, end, {name}), None) is not None

    def constant(self, expression: str) -> int | None:
        """The value of an integral expression where the kernel stands; None when it cannot be told."""
        return self.tree.constant(expression, self.scope, self.head)
