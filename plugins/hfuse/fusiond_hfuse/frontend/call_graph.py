"""Which functions of a unit call which, and so which must be handed the shadow parameters: see shadows.py."""

from __future__ import annotations

from collections.abc import Iterator

from fusiond_hfuse.frontend import barrier_divergence, barriers, constructs, cursors, divergence, shadows
from fusiond_hfuse.frontend.clang_tree import DECLARATIONS_FILE, MAIN
from fusiond_hfuse.frontend.cursors import RECORDS, CursorKind, cindex
from fusiond_hfuse.frontend.edited_text import EditedText

_MEETINGS = ("__syncwarp", "tiled_partition", "thread_block_tile")


class CallGraph:
    """The functions of a unit round its kernel. `move`: static shared arrays are parts of the dynamic one, so that who
    uses one sees the block."""

    def __init__(self, text: EditedText, *, move: bool) -> None:
        self.text = text
        self.move = move
        self.functions: list[cindex.Cursor] = []
        """All but the kernel, methods too."""
        self.seeing: frozenset[str] = frozenset()
        """The names of those that see the block, by themselves or through others."""
        self.meeting: frozenset[str] = frozenset()
        """The names of what waits at a barrier."""
        self.holders: frozenset[str] = frozenset()
        """Structs that turn into the dynamic shared array."""
        self.constructors: frozenset[str] = frozenset()
        """Classes with constructors of the user's."""
        self._own: tuple[int, set[str]] = (-1, set())

    def close(self, body: cindex.Cursor) -> None:
        """Once all functions are known: which of them see the block, and which wait."""
        self.holders = frozenset(each.semantic_parent.spelling for each in self.functions if self.held(each))
        self.constructors = frozenset(shadows.named(each) for each in self.functions if shadows.constructs(each))
        calls = {each.hash: self._calls(each) for each in (*self.functions, body)}
        names = {each.hash: shadows.named(each) for each in (*self.functions, body)}
        own = {shadows.named(each) for each in self.functions if self.sees(each)} | self.holders
        self.seeing = shadows.closure(calls, names, own) - {body.spelling} if own else frozenset()
        waits = {each.spelling for each in (*self.functions, body) if self._waits(each)}
        self.meeting = shadows.closure(calls, names, waits) | {*barriers.BARRIERS, *self._group_waits()}

    def inner_methods(self, function: cindex.Cursor) -> None:
        """The methods of types that stand inside a function."""
        for cursor, inside in cursors.preorder(function):
            if cursor.kind in shadows.FUNCTIONS and inside and inside[-1].kind in RECORDS:
                self.functions.append(cursor)

    def sees(self, function: cindex.Cursor) -> bool:
        """Whether a function itself uses a built-in variable, a barrier, or the arena in dynamic shared memory."""
        return any(
            shadows.use(each, DECLARATIONS_FILE) or shadows.dynamic_shared(each) or (self.move and shadows.shared(each))
            for each in cursors.below(function)
        )

    def held(self, function: cindex.Cursor) -> bool:
        """Whether a function turns an empty struct into the dynamic shared array, as CUDA's samples have it."""
        record = function.semantic_parent
        if function.kind is not CursorKind.CONVERSION_FUNCTION or not self.sees(function):
            return False
        barred = (CursorKind.FIELD_DECL, CursorKind.CONSTRUCTOR, CursorKind.DESTRUCTOR, CursorKind.CXX_BASE_SPECIFIER)
        return not any(shadows.use(each, DECLARATIONS_FILE) for each in cursors.below(function)) and not any(
            each.kind in barred for each in cursors.children(record)
        )

    def _waits(self, function: cindex.Cursor) -> bool:
        """Whether a function itself waits at a barrier."""
        waits = {*barriers.BARRIERS, *self._group_waits()}
        return any(
            each.kind is CursorKind.CALL_EXPR and each.spelling in waits and not shadows.of_a_tile(each)
            for each in cursors.below(function)
        )

    def _group_waits(self) -> tuple[str, ...]:
        return ("sync",) if self.text.tree.groups else ()

    def parting(self, body: cindex.Cursor, *, by_warps: bool = False) -> cindex.Cursor | None:
        """Where threads may part before a barrier, in the kernel or in a function that waits; those of one warp where
        `by_warps` is asked."""
        callees = divergence.Callees(self.functions, self.text.data, self.text.constant if by_warps else None)
        for function in (body, *self.functions):
            if function.is_definition() and constructs.body_of(function) is not None:
                found = barrier_divergence.diverges(function, self.meeting, callees, is_kernel=function is body)
                if found is not None:
                    return found
        return None

    def meets(self) -> str:
        """The first name in the text that threads of a warp wait for each other in."""
        names = (each.spelling for each in self.text.tokens)
        return next((each for each in names if each in _MEETINGS or (each[:2] == "__" and each[-5:] == "_sync")), "")

    def _calls(self, function: cindex.Cursor) -> frozenset[str]:
        """The names that a function may call: those that the tree resolves, and those it leaves to an instantiation."""
        return frozenset(name for _, name in self.mentions(function))

    def mentions(self, function: cindex.Cursor) -> Iterator[tuple[int, str]]:
        """(offset, name) of every place in a function where one of the user's functions may be called."""
        if self._own[0] != len(self.functions):  # the names of thousands, for each of them
            self._own = len(self.functions), {shadows.named(each) for each in self.functions}
        own = self._own[1] | self.holders
        made = self.constructors | self.holders
        elsewhere = set()
        for cursor in cursors.below(function):
            offset = cursor.location.offset
            if cursor.kind in (CursorKind.DECL_REF_EXPR, CursorKind.MEMBER_REF_EXPR, CursorKind.OVERLOADED_DECL_REF):
                target = cursor.referenced
                if cursor.spelling in own and (
                    cursor.kind is CursorKind.OVERLOADED_DECL_REF or target is None or shadows.callable_of(target, MAIN)
                ):
                    yield offset, cursor.spelling
                elif target is not None and not shadows.callable_of(target, MAIN):
                    elsewhere.add(offset)
            elif cursor.kind is CursorKind.CALL_EXPR and cursor.spelling in own:
                if cursor.referenced is not None and shadows.callable_of(cursor.referenced, MAIN):
                    yield -1, cursor.spelling  # a constructor, a conversion: called without being named
            elif cursor.kind in (CursorKind.TYPE_REF, CursorKind.TEMPLATE_REF):
                bare = cursor.spelling.partition("<")[0].rpartition("::")[2].rpartition(" ")[2]
                if bare not in made:
                    elsewhere.add(offset)  # a type that a method of another one is called like
            elif cursor.kind.is_declaration():
                elsewhere.add(offset)
        start, end = function.extent.start.offset, function.extent.end.offset
        for at, name in self.text.words(start, end, own):
            if at not in elsewhere:
                yield at, name
