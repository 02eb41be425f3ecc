"""Barriers: those that become partial, and those that act on the whole block.

    __syncthreads()          -->  bar.sync ID, THREADS           over one side (Li et al., CGO 2022, section III-A)

Whether all threads come to them: uniformity.py.
"""

import re
from collections.abc import Callable

from clang import cindex
from clang.cindex import CursorKind

from fusiond.model.nouns import Rejection
from fusiond_hfuse.frontend import cursors
from fusiond_hfuse.frontend.shadows import SHADOWED

Refuse = Callable[[str, int, str], Rejection]  #: (rule, line, sentence) -> Rejection

BARRIER = "__syncthreads"

_FORBIDDEN = re.compile(r"__barrier_sync\w*|__syncthreads_\w+|__cluster\w+|cudaGridDependencySynchronize")
_ASM_FORBIDDEN = re.compile(
    r"\b(bar|barrier|exit|ret|mbarrier|griddepcontrol|setmaxnreg|wgmma|tcgen05)\b"
    r"|%(tid|ntid|ctaid|nctaid|warpid|nwarpid|envreg\d*|dynamic_smem_size|total_smem_size)\b"
)


def waits(function: cindex.Cursor) -> bool:
    """Whether a function calls `__syncthreads`."""
    return any(each.kind is CursorKind.CALL_EXPR and each.spelling == BARRIER for each in cursors.below(function))


def forbidden(tokens: list[cindex.Token], refuse: Refuse) -> list[Rejection]:
    """Rejections for what the shadow parameters cannot hide, found in the tokens: macros, `::`, inline assembly."""
    found = []
    for position, token in enumerate(tokens):
        text, line = token.spelling, token.location.line
        before = tokens[position - 1].spelling if position else ""
        qualifies = position >= 2 and tokens[position - 2].kind is cindex.TokenKind.IDENTIFIER
        if _FORBIDDEN.fullmatch(text):
            found.append(refuse("block_barrier", line, f"`{text}` acts on more than a side of a fused block"))
        elif text in SHADOWED and before == "::" and not qualifies:
            found.append(refuse("leak", line, f"`::{text}` names the built-in past its shadow"))
        elif text in ("asm", "__asm__", "__asm"):
            found += _assembly(tokens, position, line, refuse)
        elif text == "__managed__":
            found.append(refuse("symbol", line, "`__managed__` variables are not supported; pass a buffer"))
        elif text == "<<<":
            found.append(refuse("launch", line, "a kernel that launches kernels (`<<<`) needs the device runtime"))
        elif text == "__CUDA_ARCH__":
            found.append(refuse("architecture", line, "it is another kernel for each `__CUDA_ARCH__`"))
    return found


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
    why = "acts on more than a side of a fused block, or reads where the thread is in it"
    return [refuse("assembly", line, f"inline assembly with `{match.group()}`, which {why}")]
