"""Whether all threads of a block come to a barrier of C++, as far as the text shows it plainly.

    for (int half = blockDim.x / 2; half > 0; half /= 2) { ...; __syncthreads(); }       they do: no thread decides it
    for (int i = threadIdx.x; i < n; i += blockDim.x)    { ...; __syncthreads(); }       they may not

The hardware's barrier waits for no thread that has left, so that both may be right; a barrier of one side waits for all
of the side's. What is not plain is left to PTX, whose form has the others vote on. Plain are conditions of numbers that
no thread decides: no order of statements is looked at, memory and calls count as anybody's, and so does a variable that
is written where threads may have parted.
"""

from collections.abc import Collection, Iterable, Iterator

from fusiond_hfuse.frontend import cursors
from fusiond_hfuse.frontend.cursors import DECLARATIONS_FILE, CursorKind, cindex

_LOOPS = (CursorKind.FOR_STMT, CursorKind.WHILE_STMT, CursorKind.DO_STMT, CursorKind.CXX_FOR_RANGE_STMT)
_PARTING = (*_LOOPS, CursorKind.IF_STMT, CursorKind.SWITCH_STMT)
_JUMPS = (CursorKind.BREAK_STMT, CursorKind.CONTINUE_STMT)
_LEAVES = (CursorKind.RETURN_STMT, CursorKind.GOTO_STMT, CursorKind.INDIRECT_GOTO_STMT)
_NEVER = (CursorKind.LAMBDA_EXPR, CursorKind.CONDITIONAL_OPERATOR, CursorKind.CXX_TRY_STMT)
_UNIFORM = ("blockIdx", "blockDim", "gridDim", "warpSize")
_SETTLED = (CursorKind.PARM_DECL, CursorKind.ENUM_CONSTANT_DECL, CursorKind.TEMPLATE_NON_TYPE_PARAMETER,
            CursorKind.FUNCTION_DECL, CursorKind.FUNCTION_TEMPLATE)  # fmt: skip
_UNTOLD = (cindex.TypeKind.INVALID, cindex.TypeKind.DEPENDENT)
"""Types of what is left to an instantiation, or to a compiler that knows a function that is not declared here."""

Inside = tuple[cindex.Cursor, ...]


def parting(function: cindex.Cursor, meeting: Collection[str], *, kernel: bool) -> cindex.Cursor | None:
    """Where a function may be left, or a barrier missed, by some of its threads before something of `meeting`; None
    where all come to all of them. What a function that is no kernel is handed, some thread may have decided."""
    waits, leaving = [], []
    for cursor, inside in cursors.preorder(function):
        if cursor.kind is CursorKind.CALL_EXPR and cursors.called(cursor) in meeting:
            waits.append((cursor, inside))
        elif cursor.kind in _LEAVES and not any(each.kind is CursorKind.LAMBDA_EXPR for each in inside):
            returns = cursor.kind is CursorKind.RETURN_STMT  # where else a jump goes is not looked at
            leaving.append((_outermost_loop(cursor, inside).extent.start.offset if returns else -1, cursor, inside))
    if not waits:
        return None
    last = max(_outermost_loop(*each).extent.end.offset for each in waits)
    early = [(cursor, inside) for begins, cursor, inside in leaving if begins < last]
    jump = next((cursor for cursor, _ in early if cursor.kind is not CursorKind.RETURN_STMT), None)
    if jump is not None or not any(inside for _, inside in (*waits, *early)):
        return jump
    varying = _Varying(function, kernel=kernel)
    return next((cursor for cursor, inside in (*early, *waits) if varying.parts(inside)), None)


def leaves(function: cindex.Cursor) -> bool:
    """Whether some thread may leave a function before its end."""
    return any(each.kind in _LEAVES for each in cursors.below(function))


def _outermost_loop(cursor: cindex.Cursor, inside: Inside) -> cindex.Cursor:
    return next((each for each in inside if each.kind in _LOOPS), cursor)


def _decides(cursor: cindex.Cursor) -> bool:
    return cursor.kind is CursorKind.BINARY_OPERATOR and cursors.operator(cursor) in ("&&", "||")


class _Varying:
    """The variables of a function that may differ from thread to thread."""

    def __init__(self, function: cindex.Cursor, *, kernel: bool) -> None:
        self.found: set[int] = set()
        everything = list(cursors.preorder(function))
        if not kernel:
            self.found |= {each.hash for each, _ in everything if each.kind is CursorKind.PARM_DECL}
        before = -1
        while before != len(self.found):
            before = len(self.found)
            for cursor, inside in everything:
                for target, value in self._written(cursor):
                    if value is None or self._varies(value) or self.parts(inside):
                        self.found.add(target.hash)

    def parts(self, inside: Inside) -> bool:
        """Whether threads may have parted in one of these constructs."""
        return any(
            each.kind in _NEVER or _decides(each) or (each.kind in _PARTING and self._decided(each)) for each in inside
        )

    def _decided(self, statement: cindex.Cursor) -> bool:
        """Whether a thread decides a condition: whichever part of it is no body, and in a loop what ends it."""
        *heads, last = cursors.children(statement)
        heads = [last] if statement.kind is CursorKind.DO_STMT else heads
        if statement.kind is CursorKind.IF_STMT:
            heads = [each for each in heads if each.kind.is_expression() or each.kind is CursorKind.VAR_DECL][:2]
        if statement.kind is CursorKind.CXX_FOR_RANGE_STMT or any(self._varies(each) for each in heads):
            return True
        if statement.kind not in _LOOPS:
            return False
        for cursor, inside in cursors.preorder(statement):
            if cursor.kind in _JUMPS and self.parts(inside[1:]):
                left = _LOOPS if cursor.kind is CursorKind.CONTINUE_STMT else (*_LOOPS, CursorKind.SWITCH_STMT)
                if next(each for each in reversed(inside) if each.kind in left) is inside[0]:
                    return True
        return False

    def _written(self, cursor: cindex.Cursor) -> Iterator[tuple[cindex.Cursor, cindex.Cursor | None]]:
        """Variables that a statement writes, and what decides the value (None: anything may)."""
        parts = cursors.children(cursor)
        handed: Iterable[cindex.Cursor] = ()
        if cursor.kind is CursorKind.VAR_DECL:
            yield cursor, cursor
            handed = parts[-1:] if cursor.type.kind is cindex.TypeKind.LVALUEREFERENCE else ()  # by another name
        elif parts and (cursor.kind is CursorKind.COMPOUND_ASSIGNMENT_OPERATOR or _writes(cursor)):
            target = _variable(parts[0])
            if target is not None:
                yield target, None if cursors.operator(cursor) == "&" else cursor
        elif cursor.kind is CursorKind.ASM_STMT:
            handed = (each for each in cursors.below(cursor) if each.kind is CursorKind.DECL_REF_EXPR)
        elif cursor.kind is CursorKind.CALL_EXPR:  # what is handed over as it stands is handed over by reference
            by_method = [each for each in parts[:1] if each.kind is CursorKind.MEMBER_REF_EXPR]  # of its own
            handed = [*by_method, *(each for each in parts if each.kind is CursorKind.DECL_REF_EXPR)]
        for target in map(_variable, handed):
            if target is not None and not target.type.is_const_qualified():
                yield target, None

    def _varies(self, expression: cindex.Cursor) -> bool:
        for each in cursors.below(expression):
            if each.kind in (CursorKind.UNEXPOSED_EXPR, CursorKind.CALL_EXPR) and each.type.kind in _UNTOLD:
                return True
            if each.kind is CursorKind.DECL_REF_EXPR:
                target = each.referenced
                if target is None or target.hash in self.found or not self._settled(each.spelling, target):
                    return True
            elif each.kind is CursorKind.CALL_EXPR:
                target = each.referenced
                if target is None or cursors.file_of(target) != DECLARATIONS_FILE or each.spelling[:2] in ("__", "at"):
                    return True
            elif _of_memory(each):
                return True
        return False

    @staticmethod
    def _settled(name: str, target: cindex.Cursor) -> bool:
        """Whether what is named may be the same for all threads: no thread's index, nothing that memory holds."""
        if name in _UNIFORM or target.kind in _SETTLED:
            return True
        if target.kind is not CursorKind.VAR_DECL:
            return False
        local = target.semantic_parent is not None and target.semantic_parent.kind is not CursorKind.TRANSLATION_UNIT
        fixed = target.type.is_const_qualified() or cursors.has(target, CursorKind.CUDACONSTANT_ATTR)
        return name != "threadIdx" and bool((local and not cursors.has(target, CursorKind.CUDASHARED_ATTR)) or fixed)


def _of_memory(cursor: cindex.Cursor) -> bool:
    """Whether an expression is what memory holds, or is not looked into."""
    if cursor.kind is CursorKind.MEMBER_REF_EXPR:
        parts = cursors.children(cursor)
        return not parts or bool(parts[0].type.kind is cindex.TypeKind.POINTER)
    if cursor.kind is CursorKind.UNARY_OPERATOR:
        return cursors.operator(cursor) == "*"
    return cursor.kind in (CursorKind.ARRAY_SUBSCRIPT_EXPR, CursorKind.LAMBDA_EXPR, CursorKind.CXX_THIS_EXPR)


def _writes(cursor: cindex.Cursor) -> bool:
    """Whether an operator writes to its operand, or hands its address on."""
    if cursor.kind is CursorKind.UNARY_OPERATOR:
        return cursors.operator(cursor) in ("++", "--", "&", "")
    return cursor.kind is CursorKind.BINARY_OPERATOR and cursors.operator(cursor) in ("=", "")


def _variable(cursor: cindex.Cursor) -> cindex.Cursor | None:
    """The variable that is written: itself, a member or an element of it."""
    while cursor.kind is not CursorKind.DECL_REF_EXPR:
        inner = cursors.children(cursor)
        if not inner:
            return None
        cursor = inner[0]
    return cursor.referenced
