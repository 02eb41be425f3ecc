"""Barriers: what becomes a partial barrier, and what acts on the whole block whatever is done.

    __syncthreads()          -->  bar.sync ID, THREADS           over one side (Li et al., CGO 2022, section III-A)
    __syncthreads_count(p)   -->  bar.red.popc.u32 _, ID, THREADS, p

Where threads may leave before a barrier that others reach, `barrier_divergence.py` says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from clang import cindex
from clang.cindex import CursorKind

from fusiond.model import Rejection
from fusiond_hfuse.frontend import cursors
from fusiond_hfuse.frontend.shadows import SHADOWED

Refuse = Callable[[str, int, str], Rejection]
"""(rule, line, sentence) -> Rejection."""

REDUCTIONS = ("__syncthreads_count", "__syncthreads_and", "__syncthreads_or")
BARRIERS = ("__syncthreads", *REDUCTIONS)
FIRST_ID = 1
"""Barrier 0 is what `__syncthreads` means to the hardware; nothing in a fused kernel may use it."""

_FORBIDDEN = {
    "__barrier_sync": "names a barrier of the block itself",
    "__barrier_sync_count": "names a barrier of the block itself",
    "this_multi_grid": "waits for several devices",
    "this_cluster": "waits for a thread block cluster",
    "cluster_group": "waits for a thread block cluster",
    "__cluster_barrier_arrive": "waits for a thread block cluster",
    "__cluster_barrier_wait": "waits for a thread block cluster",
    "__cudaBarrier": "has barriers of its own",
}
_TEXTURE_REFERENCES = ("texture", "surface")
"""Templates; a variable may well be called so."""
_TEXTURES = ("cudaTextureObject_t", "cudaSurfaceObject_t", "CUtexObject", "CUsurfObject")
_ASM_FORBIDDEN = re.compile(
    r"\b(bar|barrier|exit|ret|mbarrier|griddepcontrol|setmaxnreg|wgmma|tcgen05)\b"
    r"|%(tid|ntid|ctaid|nctaid|warpid|nwarpid|envreg\d*|dynamic_smem_size|total_smem_size)\b"
)
_ASM_WHY = (
    (
        "bar|barrier",
        "waits at a barrier of the whole block, which a fused kernel shares; `__syncthreads()` can be fused",
    ),
    ("exit|ret", "ends the thread before it has come to the end of the kernel, past what fusion puts there"),
    ("mbarrier", "is not followed here; `cuda::barrier` can be fused"),
    ("griddepcontrol", "orders launches (programmatic dependent launch), and a fused launch has no such order"),
    (
        "wgmma|tcgen05",
        "needs whole warpgroups, and a side of a fused block need not begin with one; `nvcuda::wmma` can be fused",
    ),
    ("setmaxnreg", "changes the registers of a warpgroup, which are the fused kernel's to divide"),
    ("%.*", "reads where the thread is in the fused block, not in its own; the built-in variables can be fused"),
)


def forbidden(tokens: list[cindex.Token], refuse: Refuse) -> list[Rejection]:
    """Rejections for what the shadow parameters cannot hide, found in the tokens: macros, `::`, inline assembly."""
    found = []
    for position, token in enumerate(tokens):
        text = token.spelling
        line = token.location.line
        before = tokens[position - 1].spelling if position else ""
        after = tokens[position + 1].spelling if position + 1 < len(tokens) else ""
        if text in _FORBIDDEN:
            detail = f"`{text}` {_FORBIDDEN[text]}, and the block of a fused kernel is shared"
            found.append(refuse("block_barrier", line, detail))
        elif text in SHADOWED and before == "::" and not _qualifies(tokens, position):
            found.append(refuse("leak", line, f"`::{text}` names the built-in past its shadow"))
        elif text in ("asm", "__asm__", "__asm"):
            found += _assembly(tokens, position, line, refuse)
        elif text == "<<<":
            found.append(refuse("launch", line, "a kernel that launches kernels (`<<<`) needs the device runtime"))
        elif text == "__managed__":
            found.append(refuse("symbol", line, "`__managed__` variables are not supported; pass a buffer"))
        elif text in _TEXTURES or (text in _TEXTURE_REFERENCES and after == "<"):
            found.append(
                refuse(
                    "texture", line, f"`{text}`: no buffer becomes a texture or a surface here; read through a pointer"
                )
            )
    return found


def grid_waits(functions: Iterable[cindex.Cursor], refuse: Refuse) -> Iterator[Rejection]:
    """Rejections for `grid.sync()` and `sync(grid)`."""
    for function in functions:
        for cursor in cursors.below(function):
            if cursor.kind is not CursorKind.CALL_EXPR or cursor.spelling != "sync":
                continue
            target = cursor.referenced
            parent = target.semantic_parent if target is not None else None
            kinds = [each.type.get_canonical().spelling for each in cursor.get_arguments()]
            if (parent is not None and parent.spelling == "grid_group") or any("grid_group" in kind for kind in kinds):
                detail = "it waits for the whole grid, and a fused launch has another"
                yield refuse("block_barrier", cursor.location.line, detail)


def _qualifies(tokens: list[cindex.Token], position: int) -> bool:
    """Whether the `::` before a token follows a name (`space::threadIdx`) rather than standing alone."""
    return position >= 2 and tokens[position - 2].kind is cindex.TokenKind.IDENTIFIER


def _assembly(tokens: list[cindex.Token], position: int, line: int, refuse: Refuse) -> list[Rejection]:
    """The template of one asm statement, up to its first colon or closing parenthesis.

    What macros put into it is looked for in all strings of the file; what they make of their arguments cannot be known.
    """
    text = ""
    for token in tokens[position + 1 : position + 400]:
        if token.kind is cindex.TokenKind.LITERAL and '"' in token.spelling:
            text += token.spelling
        elif token.spelling in (":", "::", ";") or (token.spelling == ")" and text):
            break
        elif token.spelling == "#":
            return [refuse("assembly", line, "inline assembly that a macro puts together from its arguments")]
        elif token.kind is cindex.TokenKind.IDENTIFIER and token.spelling != "__volatile__":
            text += " ".join(each.spelling for each in tokens if each.kind is cindex.TokenKind.LITERAL)
    match = _ASM_FORBIDDEN.search(text)
    if match is None:
        return []
    why = next(said for pattern, said in _ASM_WHY if re.fullmatch(pattern, match.group()))
    return [refuse("assembly", line, f"inline assembly with `{match.group()}` {why}")]
