"""Which functions of a unit call which, and so which must be handed the shadow parameters: see shadows.py."""

from collections.abc import Iterator

from fusiond_hfuse.frontend import barriers, cursors, shadows
from fusiond_hfuse.frontend.clang_tree import DECLARATIONS_FILE
from fusiond_hfuse.frontend.cursors import CursorKind, cindex
from fusiond_hfuse.frontend.edited_text import EditedText


class CallGraph:
    """The functions of a unit round its kernel. `move`: static shared arrays are parts of the dynamic one, so that who
    uses one sees the block."""

    def __init__(self, text: EditedText, *, move: bool) -> None:
        self.text = text
        self.move = move
        self.functions: list[cindex.Cursor] = []  #: All but the kernel, methods too
        self.seeing: frozenset[str] = frozenset()
        """The names of those that see the block, by themselves or through others."""
        self.meeting: frozenset[str] = frozenset()  #: The names of what waits at a barrier

    def close(self, body: cindex.Cursor) -> None:
        """Once all functions are known: which of them see the block, and which wait."""
        calls: dict[str, set[str]] = {}
        for each in (*self.functions, body):
            calls.setdefault(each.spelling, set()).update(name for _, name in self.mentions(each))
        own = {each.spelling for each in self.functions if self._sees(each)}
        self.seeing = shadows.closure(calls, own) - {body.spelling}
        waits = {each.spelling for each in (*self.functions, body) if barriers.waits(each)}
        self.meeting = shadows.closure(calls, waits) | {barriers.BARRIER}

    def meets(self) -> bool:
        """Whether something in the text is called like what threads of a warp wait for each other in."""
        names = (each.spelling for each in self.text.tokens)
        return any(each == "__syncwarp" or (each[:2] == "__" and each[-5:] == "_sync") for each in names)

    def mentions(self, function: cindex.Cursor) -> Iterator[tuple[int, str]]:
        """(offset, name) of every word in a function that is one of the user's functions: more than are calls, and what
        is none does not compile with parameters put into it."""
        own = {each.spelling for each in self.functions}
        yield from self.text.words(function.extent.start.offset, function.extent.end.offset, own)

    def _sees(self, function: cindex.Cursor) -> bool:
        """Whether a function itself uses a built-in variable, a barrier, or the arena in dynamic shared memory."""
        return any(
            cursors.use(each, DECLARATIONS_FILE)
            or (each.kind in (CursorKind.VAR_DECL, CursorKind.DECL_REF_EXPR) and cursors.dynamic_shared(each))
            or (self.move and cursors.shared(each))
            for each in cursors.below(function)
        )
