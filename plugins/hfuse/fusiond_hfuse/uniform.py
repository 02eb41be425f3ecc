"""Whether all threads of a block come to a barrier together, as far as the text tells.

A partial barrier counts threads, so that one which leaves before it would be waited for: `__syncthreads()` of a whole
block waits for those that have not returned. Where threads may part, the barrier must be one that the leavers keep
voting at (`diverges`, and `fusiond_drain` in fuse.py).

Two questions are asked of an expression. *Proven* uniform is what is made of literals, `blockIdx`, `blockDim`,
`gridDim`, parameters of the kernel, constants, and variables that hold nothing else, written where all threads come.
*Tainted* is what is made of `threadIdx`, directly or through a variable. Between them lies what memory holds. A jump
over a barrier must be proven uniform; a barrier inside an `if` or a loop must only be free of taint, since CUDA itself
asks that all threads agree there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from clang import cindex
from clang.cindex import CursorKind

from fusiond_hfuse import shadows

_UNIFORM_BUILTINS = ("blockIdx", "blockDim", "gridDim", "warpSize")
_UNIFORM_CALLS = frozenset({
    "min", "max", "abs", "llabs", "fminf", "fmaxf", "fmin", "fmax", "ceil", "ceilf", "floor", "floorf", "sqrtf",
    "__syncthreads_count", "__syncthreads_and", "__syncthreads_or", "__umulhi", "__mulhi", "__clz", "__ffs", "__popc",
})  # fmt: skip
_LOOPS = (CursorKind.FOR_STMT, CursorKind.WHILE_STMT, CursorKind.DO_STMT, CursorKind.CXX_FOR_RANGE_STMT)
_LOCAL_TYPES = (CursorKind.STRUCT_DECL, CursorKind.CLASS_DECL, CursorKind.UNION_DECL)
_WRITES = (CursorKind.BINARY_OPERATOR, CursorKind.COMPOUND_ASSIGNMENT_OPERATOR, CursorKind.UNARY_OPERATOR)
_JUMPS = (CursorKind.RETURN_STMT, CursorKind.GOTO_STMT, CursorKind.BREAK_STMT, CursorKind.CONTINUE_STMT)
_BRANCHES = (CursorKind.IF_STMT, CursorKind.SWITCH_STMT, CursorKind.CONDITIONAL_OPERATOR)

Inside = tuple[cindex.Cursor, ...]


def diverges(
    body: cindex.Cursor, meeting: frozenset[str], seeing: frozenset[str], is_kernel: bool, data: bytes
) -> cindex.Cursor | None:
    """The first place in a function's body where threads may part, some of them to a barrier that others never reach.

    `meeting` are the functions that reach a barrier, `seeing` those that see the block.
    """
    return _Flow(body, meeting, seeing, is_kernel, data).parting()


class _Flow:
    def __init__(
        self, body: cindex.Cursor, meeting: frozenset[str], seeing: frozenset[str], is_kernel: bool, data: bytes
    ) -> None:
        self.body = body
        self.meeting = meeting
        self.seeing = seeing
        self.is_kernel = is_kernel
        self.data = data
        self.nodes = list(shadows.preorder(body))
        self.unproven: set[int] = set()
        self.tainted: set[int] = set()

    def parting(self) -> cindex.Cursor | None:
        waits = list(self._barriers())
        if not waits:
            return None
        self._flow(self.tainted, lambda each: not self._is_tainted(each))
        self._flow(self.unproven, self._is_proven)
        for cursor, inside in waits:
            if not all(self._together(outer, lambda each: not self._is_tainted(each)) for outer in inside):
                return cursor
        places = [cursor.extent.start.offset for cursor, _ in waits]
        for cursor, inside in self.nodes:
            if cursor.kind not in _JUMPS or any(_own(outer) for outer in inside):
                continue
            if _jumps_over(cursor, inside, places) and not all(
                self._together(outer, self._is_proven) for outer in inside
            ):
                return cursor
        return None

    def _barriers(self) -> Iterator[tuple[cindex.Cursor, Inside]]:
        """Calls that reach a barrier; a lambda that holds one waits wherever it is named."""
        lambdas = set()
        for cursor, inside in self.nodes:
            if (
                cursor.kind in (CursorKind.CALL_EXPR, CursorKind.OVERLOADED_DECL_REF)
                and cursor.spelling in self.meeting
                and not shadows.of_a_tile(cursor)
            ):
                outer = next((each for each in inside if each.kind is CursorKind.LAMBDA_EXPR), None)
                if outer is None:
                    yield cursor, inside
                else:
                    lambdas |= {
                        each.spelling for each in inside[: inside.index(outer)] if each.kind is CursorKind.VAR_DECL
                    }
        for cursor, inside in self.nodes:
            if cursor.kind is CursorKind.DECL_REF_EXPR and cursor.spelling in lambdas:
                yield cursor, inside

    # --- what variables hold ---

    def _flow(self, varying: set[int], agree: Callable[[cindex.Cursor], bool]) -> None:
        """Collect the variables that may differ between threads, until there are no more."""
        while True:
            before = len(varying)
            for cursor, inside in self.nodes:
                target, value = self._write(cursor)
                if target is None or target.hash in varying or shadows.shared(target):
                    continue  # what all threads see is the same for all
                told = value is None or agree(value)
                if not told or not all(self._together(outer, agree) for outer in inside):
                    varying.add(target.hash)
            if len(varying) == before:
                return

    def _write(self, cursor: cindex.Cursor) -> tuple[cindex.Cursor | None, cindex.Cursor | None]:
        """The variable that a cursor writes, and what it writes; a variable whose address is taken is its own value."""
        children = list(cursor.get_children())
        if cursor.kind is CursorKind.VAR_DECL:
            values = [each for each in children if each.kind.is_expression()]
            if cursor.type.kind in (cindex.TypeKind.LVALUEREFERENCE, cindex.TypeKind.RVALUEREFERENCE):
                return cursor, cursor  # what is written through it is not followed
            return (cursor, values[-1]) if values else (None, None)
        if cursor.kind not in _WRITES or not children:
            return None, None
        target = _variable(children[0])
        if target is None or target.type.is_const_qualified():
            return None, None
        if cursor.kind is CursorKind.BINARY_OPERATOR:
            between = self.data[children[0].extent.end.offset : children[-1].extent.start.offset]
            if re.match(rb"\s*[^\s=]|\s*==", between):
                return None, None
            return target, children[-1]
        if cursor.kind is CursorKind.UNARY_OPERATOR:
            sign = self.data[cursor.extent.start.offset : cursor.extent.start.offset + 1]
            return (target, cursor) if sign == b"&" else (target, None)
        return target, children[-1]

    def _together(self, outer: cindex.Cursor, agree: Callable[[cindex.Cursor], bool]) -> bool:
        """Whether all threads of a block agree on how they pass a construct that something stands in."""
        if outer.kind is CursorKind.LAMBDA_EXPR:
            return agree != self._is_proven  # who calls it when is not followed
        children = list(outer.get_children())
        if outer.kind in _BRANCHES:
            conditions = children[:2] if children and children[0].kind is CursorKind.DECL_STMT else children[:1]
        elif outer.kind is CursorKind.DO_STMT:
            conditions = children[-1:]
        elif outer.kind in _LOOPS:
            conditions = [each for each in children[:-1] if each.kind is not CursorKind.DECL_STMT]
        else:
            return True
        return all(agree(each) for each in conditions)

    # --- expressions ---

    def _is_tainted(self, cursor: cindex.Cursor) -> bool:
        for each in shadows.below(cursor):
            if each.kind is CursorKind.DECL_REF_EXPR:
                if each.spelling == "threadIdx":
                    return True
                if each.referenced is not None and each.referenced.hash in self.tainted:
                    return True
            elif each.kind is CursorKind.CALL_EXPR:
                if each.spelling in _UNIFORM_CALLS and each.spelling.startswith("__syncthreads"):
                    return False
                if each.spelling in self.seeing or each.spelling.startswith(("__shfl", "__ballot", "atomic")):
                    return True
        return False

    def _is_proven(self, cursor: cindex.Cursor) -> bool:
        stack = [cursor]
        while stack:
            each = stack.pop()
            if each.kind is CursorKind.CALL_EXPR and each.spelling.startswith("__syncthreads"):
                continue  # what the block has counted is the same for all its threads
            if each.kind is CursorKind.CALL_EXPR and each.spelling not in _UNIFORM_CALLS:
                return False
            if each.kind in (CursorKind.CXX_THIS_EXPR, CursorKind.LAMBDA_EXPR, CursorKind.StmtExpr):
                return False
            if each.kind is CursorKind.UNARY_OPERATOR and self.data[
                each.extent.start.offset : each.extent.start.offset + 1
            ] in (
                b"*",
                b"&",
            ):
                return False
            if each.kind is CursorKind.ARRAY_SUBSCRIPT_EXPR:
                base = _variable(next(iter(each.get_children())))
                if base is None or not any(child.kind is CursorKind.CUDACONSTANT_ATTR for child in base.get_children()):
                    return False
            if each.kind is CursorKind.DECL_REF_EXPR and not self._proven_name(each):
                return False
            stack += list(each.get_children())
        return True

    def _proven_name(self, cursor: cindex.Cursor) -> bool:
        target = cursor.referenced
        if cursor.spelling == "threadIdx" or target is None:
            return False
        if cursor.spelling in _UNIFORM_BUILTINS:
            return True
        if target.kind in (
            CursorKind.TEMPLATE_NON_TYPE_PARAMETER,
            CursorKind.ENUM_CONSTANT_DECL,
            CursorKind.FUNCTION_DECL,
        ):
            return True
        if target.kind is CursorKind.PARM_DECL:
            return self.is_kernel and target.hash not in self.unproven
        if target.kind is not CursorKind.VAR_DECL or target.hash in self.unproven:
            return False
        if any(child.kind is CursorKind.CUDACONSTANT_ATTR for child in target.get_children()):
            return True
        if any(child.kind is CursorKind.CUDASHARED_ATTR for child in target.get_children()):
            return False
        local = self.body.extent.start.offset <= target.location.offset < self.body.extent.end.offset
        return local or bool(target.type.is_const_qualified())


def _own(cursor: cindex.Cursor) -> bool:
    """Whether a jump inside is none of the function's."""
    return cursor.kind is CursorKind.LAMBDA_EXPR or cursor.kind in _LOCAL_TYPES


def _jumps_over(cursor: cindex.Cursor, inside: Inside, barriers: list[int]) -> bool:
    """Whether a barrier may be reached by those that do not take this jump: later in the text, or again in a loop."""
    here = cursor.extent.start.offset
    loops = [outer.extent for outer in inside if outer.kind in _LOOPS]
    if cursor.kind in (CursorKind.BREAK_STMT, CursorKind.CONTINUE_STMT):
        nearest = [outer.extent for outer in inside if outer.kind in (*_LOOPS, CursorKind.SWITCH_STMT)][-1:]
        return any(each.start.offset <= offset < each.end.offset for each in nearest for offset in barriers)
    if any(offset > here for offset in barriers):
        return True
    return any(loop.start.offset <= offset < loop.end.offset for loop in loops for offset in barriers)


def _variable(cursor: cindex.Cursor) -> cindex.Cursor | None:
    """The variable that an expression names, conversions, members and parentheses left aside."""
    while cursor.kind in (CursorKind.UNEXPOSED_EXPR, CursorKind.PAREN_EXPR, CursorKind.MEMBER_REF_EXPR):
        inner = list(cursor.get_children())
        if len(inner) != 1:
            return None
        cursor = inner[0]
    if cursor.kind is not CursorKind.DECL_REF_EXPR:
        return None
    target = cursor.referenced
    kinds = (CursorKind.VAR_DECL, CursorKind.PARM_DECL)
    return target if target is not None and target.kind in kinds else None
