"""Barriers: what becomes a partial barrier, and what would hang or leak if it did.

    __syncthreads()  -->  bar.sync ID, THREADS      over the threads of one side (Li et al., CGO 2022, section III-A)

A thread that has returned never arrives at a counted barrier, and the rest of its side would wait for ever. So a
return that stands before a barrier is refused, unless it is plain that all threads of the block take it together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from clang import cindex
from clang.cindex import CursorKind

from fusiond.model import Rejection
from fusiond_hfuse import shadows

Refuse = Callable[[str, int, str], Rejection]
"""(rule, line, sentence) -> Rejection."""

BARRIER = "__syncthreads"
FIRST_ID = 1
"""Barrier 0 is what `__syncthreads` means to the hardware; nothing in a fused kernel may use it."""

_LOOPS = (CursorKind.FOR_STMT, CursorKind.WHILE_STMT, CursorKind.DO_STMT, CursorKind.CXX_FOR_RANGE_STMT)
_LOCAL_TYPES = (CursorKind.STRUCT_DECL, CursorKind.CLASS_DECL, CursorKind.UNION_DECL)
_UNIFORM_BUILTINS = ("blockIdx", "blockDim", "gridDim", "warpSize")
_FORBIDDEN = {
    "__syncthreads_count": "counts over the whole block",
    "__syncthreads_and": "votes over the whole block",
    "__syncthreads_or": "votes over the whole block",
    "__barrier_sync": "names a barrier of the block itself",
    "__barrier_sync_count": "names a barrier of the block itself",
    "cooperative_groups": "has barriers of its own",
    "__cluster_barrier_arrive": "waits for a thread block cluster",
    "__cluster_barrier_wait": "waits for a thread block cluster",
    "__cudaBarrier": "has barriers of its own",
}
_ASM_FORBIDDEN = re.compile(
    r"\b(bar|barrier|exit|ret|mbarrier)\b"
    r"|%(tid|ntid|ctaid|nctaid|warpid|nwarpid|envreg\d*|dynamic_smem_size|total_smem_size)\b"
)


def calls(cursor: cindex.Cursor, meeting: frozenset[str]) -> Iterator[cindex.Cursor]:
    """Every call below a cursor of the barrier, or of a function that reaches it (`meeting`); through macros too."""
    for each in shadows.below(cursor):
        if each.kind in (CursorKind.CALL_EXPR, CursorKind.OVERLOADED_DECL_REF) and each.spelling in meeting:
            yield each


def early_returns(body: cindex.Cursor, meeting: frozenset[str], is_kernel: bool, refuse: Refuse) -> list[Rejection]:
    """A Rejection for each return that some threads may take before a barrier that the others reach.

    A kernel's parameters are the same for all threads; those of another function need not be.
    """
    barriers = [call.extent.start.offset for call in calls(body, meeting)]
    if not barriers:
        return []
    written = _written(body) if is_kernel else None
    found = []
    for statement, inside in _returns(body):
        if not _barrier_follows(statement, inside, barriers):
            continue
        if not all(_uniform_guard(outer, written) for outer in inside[1:]):
            found.append(
                refuse(
                    "return_before_barrier",
                    statement.location.line,
                    "`return` before a `__syncthreads()`: a thread that returns never arrives at its side's counted "
                    "barrier. Put the work behind the test instead of returning",
                )
            )
    return found


def _returns(body: cindex.Cursor) -> Iterator[tuple[cindex.Cursor, tuple[cindex.Cursor, ...]]]:
    """Every return of a function itself, not of a lambda or a local type, with what it stands in."""
    for each, inside in shadows.preorder(body):
        own = not any(outer.kind is CursorKind.LAMBDA_EXPR or outer.kind in _LOCAL_TYPES for outer in inside)
        if each.kind is CursorKind.RETURN_STMT and own:
            yield each, inside


def _barrier_follows(statement: cindex.Cursor, inside: tuple[cindex.Cursor, ...], barriers: list[int]) -> bool:
    """Whether a barrier may be reached after this statement's place: later in the text, or again in a loop round it."""
    here = statement.extent.start.offset
    if any(offset > here for offset in barriers):
        return True
    loops = [outer.extent for outer in inside if outer.kind in _LOOPS]
    return any(loop.start.offset <= offset < loop.end.offset for loop in loops for offset in barriers)


def _uniform_guard(cursor: cindex.Cursor, written: set[str] | None) -> bool:
    """Whether all threads of a block agree on how they pass this construct."""
    if cursor.kind is CursorKind.COMPOUND_STMT:
        return True
    if cursor.kind is not CursorKind.IF_STMT:
        return False
    condition = next(iter(cursor.get_children()), None)
    return condition is not None and _uniform(condition, written)


def _uniform(cursor: cindex.Cursor, written: set[str] | None) -> bool:
    """Whether an expression is the same for a whole block: blockIdx, sizes, parameters that nobody writes, literals.

    `written` are the names that the body writes; None where parameters are not uniform at all.
    """
    for each in shadows.below(cursor):
        if each.kind in (CursorKind.CALL_EXPR, CursorKind.ARRAY_SUBSCRIPT_EXPR, CursorKind.CXX_UNARY_EXPR):
            return False
        if each.kind is CursorKind.UNARY_OPERATOR and _first_token(each) == "*":
            return False
        if each.kind is CursorKind.DECL_REF_EXPR:
            target = each.referenced
            if each.spelling in _UNIFORM_BUILTINS:
                continue
            if target is None or not _uniform_variable(target, written):
                return False
    return True


def _uniform_variable(target: cindex.Cursor, written: set[str] | None) -> bool:
    """A parameter that nobody writes, or a const local made of such."""
    if target.kind is CursorKind.TEMPLATE_NON_TYPE_PARAMETER:
        return True
    if target.kind is CursorKind.PARM_DECL:
        return written is not None and target.spelling not in written
    if target.kind is not CursorKind.VAR_DECL or not target.type.is_const_qualified():
        return False
    values = [child for child in target.get_children() if child.kind.is_expression()]
    return bool(values) and all(_uniform(value, written) for value in values)


def _written(body: cindex.Cursor) -> set[str]:
    """Names that the body assigns to, steps, or takes the address of."""
    names = set()
    for each in shadows.below(body):
        if each.kind in (
            CursorKind.BINARY_OPERATOR,
            CursorKind.COMPOUND_ASSIGNMENT_OPERATOR,
            CursorKind.UNARY_OPERATOR,
        ):
            target = next(iter(each.get_children()), None)
            if target is not None and target.kind is CursorKind.DECL_REF_EXPR:
                names.add(target.spelling)
    return names


def _first_token(cursor: cindex.Cursor) -> str:
    token = next(iter(cursor.get_tokens()), None)
    return token.spelling if token is not None else ""


def forbidden(tree: cindex.TranslationUnit, path: str, refuse: Refuse) -> list[Rejection]:
    """Rejections for what the shadow parameters cannot hide, found in the tokens: macros, `::`, inline assembly."""
    found = []
    size = tree.cursor.extent
    tokens = [token for token in tree.get_tokens(extent=size) if token.kind is not cindex.TokenKind.COMMENT]
    hidden = ("threadIdx", "blockIdx", "blockDim", "gridDim", BARRIER)
    for position, token in enumerate(tokens):
        text = token.spelling
        line = token.location.line
        before = tokens[position - 1].spelling if position else ""
        if text in _FORBIDDEN:
            detail = f"`{text}` {_FORBIDDEN[text]}, and the block of a fused kernel is shared by two"
            found.append(refuse("block_barrier", line, detail))
        elif text in hidden and before == "::" and not _qualifies(tokens, position):
            found.append(refuse("leak", line, f"`::{text}` names the built-in past its shadow"))
        elif text in ("asm", "__asm__", "__asm"):
            found += _assembly(tokens, position, line, refuse)
        elif text == "<<<":
            found.append(
                refuse("launch", line, "a kernel launch `<<<` in the source; keep host code in a file of its own")
            )
        elif text == "__managed__":
            found.append(refuse("symbol", line, "`__managed__` variables are not supported; pass a buffer"))
        elif text in ("texture", "surface", "cudaTextureObject_t", "cudaSurfaceObject_t"):
            found.append(refuse("texture", line, f"`{text}`: textures and surfaces are not supported"))
    return found


def _qualifies(tokens: list[cindex.Token], position: int) -> bool:
    """Whether the `::` before a token follows a name (`space::threadIdx`) rather than standing alone."""
    return position >= 2 and tokens[position - 2].kind is cindex.TokenKind.IDENTIFIER


def _assembly(tokens: list[cindex.Token], position: int, line: int, refuse: Refuse) -> list[Rejection]:
    """The strings of one asm statement, up to its closing parenthesis or first colon."""
    text = ""
    for token in tokens[position + 1 : position + 400]:
        if token.kind is cindex.TokenKind.LITERAL and token.spelling.startswith('"'):
            text += token.spelling
        elif token.spelling in (":", "::", ";") or (token.spelling == ")" and text):
            break
    match = _ASM_FORBIDDEN.search(text)
    if match is None:
        return []
    return [
        refuse("assembly", line, f"inline assembly with `{match.group()}` acts on the whole block, past the shadows")
    ]
