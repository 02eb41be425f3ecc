"""Whether all threads of a block come to a barrier together, as far as the text tells.

A partial barrier counts threads, so that one which leaves before it would be waited for: `__syncthreads()` of a whole
block waits for those that have not returned. Where threads may part, the barrier must be one that the leavers keep
voting at (`diverges`, and the voting in fuse.py).

A barrier inside an `if` or a loop must be free of what differs between threads, since CUDA itself asks that all agree
there. A jump over a barrier must be proven uniform (divergence.py): one that leaves the kernel need not be, for CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator

from fusiond_hfuse.frontend import cursors, shadows
from fusiond_hfuse.frontend.constructs import LOOPS, Inside, nearest
from fusiond_hfuse.frontend.cursors import CursorKind, cindex
from fusiond_hfuse.frontend.divergence import Callees, DivergenceAnalysis

_LOCAL_TYPES = (CursorKind.STRUCT_DECL, CursorKind.CLASS_DECL, CursorKind.UNION_DECL)
_STEPS = (CursorKind.BREAK_STMT, CursorKind.CONTINUE_STMT)
_JUMPS = (CursorKind.RETURN_STMT, CursorKind.GOTO_STMT, CursorKind.INDIRECT_GOTO_STMT, *_STEPS)


def diverges(
    function: cindex.Cursor, meeting: frozenset[str], callees: Callees, *, is_kernel: bool
) -> cindex.Cursor | None:
    """The first place in a function's body where threads may part, some of them to a barrier that others never reach.

    `meeting` are the functions that reach a barrier.
    """
    nodes = list(cursors.preorder(function))
    waits = list(_barriers(nodes, meeting))
    if not waits:
        return None
    flow = DivergenceAnalysis(function, callees, parameters_agree=is_kernel, kernel=is_kernel)
    waits = list(_barriers(flow.nodes, meeting))
    for cursor, inside in waits:
        if not flow.comes_together(cursor, inside, proven=False):
            return cursor
    places = [cursor.extent.start.offset for cursor, _ in waits]
    for cursor, inside in flow.nodes:
        if cursor.kind not in _JUMPS or any(_own(outer) for outer in inside):
            continue
        if _jumps_over(cursor, inside, places) and not _all_jump(flow, cursor, inside, places):
            return cursor
    return None


def leaves(function: cindex.Cursor) -> bool:
    """Whether a thread may be done with a function before its end."""
    kinds = (CursorKind.RETURN_STMT, CursorKind.GOTO_STMT, CursorKind.INDIRECT_GOTO_STMT)
    return any(
        cursor.kind in kinds and not any(_own(outer) for outer in inside)
        for cursor, inside in cursors.preorder(function)
    )


def _all_jump(flow: DivergenceAnalysis, cursor: cindex.Cursor, inside: Inside, places: list[int]) -> bool:
    """Whether all threads take a jump, or none does: of a `break` or `continue`, all that are in its loop."""
    if cursor.kind not in _STEPS:
        return cursor.kind is not CursorKind.INDIRECT_GOTO_STMT and flow.comes_together(cursor, inside, proven=True)
    at = nearest(cursor, inside)
    if at is None:
        return flow.comes_together(cursor, inside, proven=True)
    loops = [number for number, outer in enumerate(inside) if outer.kind in LOOPS and _holds(outer, places)]
    if loops:
        flow = flow.within(inside[loops[-1]], inside[: loops[-1]])
    return flow.comes_together(cursor, inside, proven=True, behind=at + 1)


def _barriers(
    nodes: list[tuple[cindex.Cursor, Inside]], meeting: frozenset[str]
) -> Iterator[tuple[cindex.Cursor, Inside]]:
    """Calls that reach a barrier; a lambda that holds one waits wherever it is named."""
    lambdas = set()
    for cursor, inside in nodes:
        if (
            cursor.kind in (CursorKind.CALL_EXPR, CursorKind.OVERLOADED_DECL_REF)
            and cursor.spelling in meeting
            and not shadows.of_a_tile(cursor)
        ):
            outer = next((each for each in inside if each.kind is CursorKind.LAMBDA_EXPR), None)
            if outer is None:
                yield cursor, inside
            else:
                lambdas |= {each.spelling for each in inside[: inside.index(outer)] if each.kind is CursorKind.VAR_DECL}
    for cursor, inside in nodes:
        if cursor.kind is CursorKind.DECL_REF_EXPR and cursor.spelling in lambdas:
            yield cursor, inside


def _own(cursor: cindex.Cursor) -> bool:
    """Whether jumps inside do not leave the function: those of a lambda, or of a local type."""
    return cursor.kind is CursorKind.LAMBDA_EXPR or cursor.kind in _LOCAL_TYPES


def _holds(construct: cindex.Cursor, places: list[int]) -> bool:
    extent = construct.extent
    return any(extent.start.offset <= place < extent.end.offset for place in places)


def _jumps_over(cursor: cindex.Cursor, inside: Inside, places: list[int]) -> bool:
    """Whether a barrier may be reached by those that do not take this jump: later in the text, or again in a loop."""
    if cursor.kind in _STEPS:
        at = nearest(cursor, inside)
        return at is not None and _holds(inside[at], places)
    here = cursor.extent.start.offset
    if cursor.kind is not CursorKind.RETURN_STMT:
        labels = [each.referenced.location.offset for each in cursors.children(cursor) if each.referenced is not None]
        here = min(here, *labels) if labels else 0
    return any(place > here for place in places) or any(
        _holds(outer, places) for outer in inside if outer.kind in LOOPS
    )
