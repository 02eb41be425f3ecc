"""Barriers: those that become partial, and those that act on the whole block.

    __syncthreads()          -->  bar.sync ID, THREADS           over one side (Li et al., CGO 2022, section III-A)

Whether all threads come to them: uniformity.py.
"""

import re

from fusiond_hfuse.frontend import cursors
from fusiond_hfuse.frontend.cursors import CursorKind, cindex
from fusiond_hfuse.frontend.edited_text import EditedText
from fusiond_hfuse.frontend.shadows import SHADOWED

BARRIER = "__syncthreads"

_FORBIDDEN = re.compile(r"__barrier_sync\w*|__syncthreads_\w+|__cluster\w+|cudaGridDependencySynchronize")
_ASM_FORBIDDEN = re.compile(
    r"\b(bar|barrier|exit|ret|mbarrier|griddepcontrol|setmaxnreg|wgmma|tcgen05)\b"
    r"|%(tid|ntid|ctaid|nctaid|warpid|nwarpid|envreg\d*|dynamic_smem_size|total_smem_size)\b"
)


def waits(function: cindex.Cursor) -> bool:
    """Whether a function calls `__syncthreads`."""
    return any(each.kind is CursorKind.CALL_EXPR and each.spelling == BARRIER for each in cursors.below(function))


def forbid(text: EditedText) -> None:
    """Refuse what the shadow parameters cannot hide, found in the tokens: macros, `::`, inline assembly."""
    for position, token in enumerate(text.tokens):
        word, line = token.spelling, token.location.line
        before = text.tokens[position - 1].spelling if position else ""
        qualifies = position >= 2 and text.tokens[position - 2].kind is cindex.TokenKind.IDENTIFIER
        if _FORBIDDEN.fullmatch(word):
            text.refuse("block_barrier", line, f"`{word}` acts on more than a side of a fused block")
        elif word in SHADOWED and before == "::" and not qualifies:
            text.refuse("leak", line, f"`::{word}` names the built-in past its shadow")
        elif word in ("asm", "__asm__", "__asm"):
            if problem := _of_assembly(text.tokens, position):
                text.refuse("assembly", line, f"inline assembly {problem}")
        elif word == "__managed__":
            text.refuse("symbol", line, "`__managed__` variables are not supported; pass a buffer")
        elif word == "<<<":
            text.refuse("launch", line, "a kernel that launches kernels (`<<<`) needs the device runtime")
        elif word == "__CUDA_ARCH__":
            text.refuse("architecture", line, "it is another kernel for each `__CUDA_ARCH__`")


def _of_assembly(tokens: list[cindex.Token], position: int) -> str:
    """What is wrong with one asm statement, by its template, up to the first colon or closing parenthesis.

    What macros put into it is looked for in all strings of the file; what they make of their arguments cannot be known.
    """
    template = ""
    for token in tokens[position + 1 : position + 400]:
        if token.kind is cindex.TokenKind.LITERAL and '"' in token.spelling:
            template += token.spelling
        elif token.spelling in (":", "::", ";") or (token.spelling == ")" and template):
            break
        elif token.spelling == "#":
            return "that a macro puts together from its arguments"
        elif token.kind is cindex.TokenKind.IDENTIFIER and token.spelling != "__volatile__":
            template += " ".join(each.spelling for each in tokens if each.kind is cindex.TokenKind.LITERAL)
    match = _ASM_FORBIDDEN.search(template)
    why = "acts on more than a side of a fused block, or reads where the thread is in it"
    return f"with `{match.group()}`, which {why}" if match is not None else ""
