"""A unit's text with its edits, by byte offsets, and the reasons to refuse it.

The text is looked at in `code`, where comments and the insides of strings are blank and every character is a byte: a
place in clang's tree is a place there.
"""

import functools

from fusiond.model.nouns import Rejection
from fusiond_hfuse.frontend import clang_tree
from fusiond_hfuse.frontend.cursors import MAIN, cindex


class EditedText:
    """The text of one reading."""

    def __init__(self, tree: clang_tree.ClangTree) -> None:
        self.tree = tree
        self.code = clang_tree.blanked(tree.where.text.encode())
        self.edits: dict[tuple[int, int], str] = {}  #: By start and end, what stands there instead
        self.rejections: list[Rejection] = []
        self.head = ""  #: The kernel's `template <...>`

    def refuse(self, rule: str, at: cindex.Cursor | int, detail: str) -> None:
        """Say why the kernel cannot be fused, with the place that a cursor stands at, or a line of the unit."""
        self.rejections.append(self.refusal(rule, at if isinstance(at, int) else at.location.line, detail))

    def refusal(self, rule: str, line: int, detail: str) -> Rejection:
        said = f"{self.tree.where.where(line)}: {' '.join(detail.split())}"
        return Rejection(rule=rule, nodes=(self.tree.reading.name,), detail=said)

    def edit(self, start: int, end: int, text: str) -> None:
        """Put a text in place of what stands from `start` to `end`."""
        self.edits[start, end] = text

    @functools.cached_property
    def tokens(self) -> list[cindex.Token]:
        """All of the text, comments left out."""
        unit = self.tree.unit
        where = cindex.File.from_name(unit, MAIN)
        first, last = (cindex.SourceLocation.from_offset(unit, where, at) for at in (0, len(self.code)))
        found = unit.get_tokens(extent=cindex.SourceRange.from_locations(first, last))
        return [each for each in found if each.kind is not cindex.TokenKind.COMMENT]

    def constant(self, expression: str) -> int | None:
        """The value of an integral expression where the kernel stands; None when it cannot be told."""
        return self.tree.constant(expression, self.head)
