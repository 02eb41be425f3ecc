"""Parses a kernel's text once more with all edits done, as it will stand in a fused source.

    namespace fusiond_a { poison; the edited text }      with the built-in variables outside

What the second tree still says of a built-in variable is a leak, however it was written: behind `::`, by a macro, in a
default argument, a destructor, a member's initialiser. What does not parse any more was edited wrongly, or cannot be.
So neither comes to a compiler, let alone to a device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from fusiond.model.nouns import Rejection
from fusiond_hfuse.frontend import cursors, shadows
from fusiond_hfuse.frontend.clang_tree import DECLARATIONS_FILE, MAIN, ClangTree, Reading
from fusiond_hfuse.frontend.source_kernel import Parsed, TranslationUnit

_HEAD = (
    f"{shadows.MACROS}namespace fusiond_a {{\n{shadows.POISON}"
    "struct fusiond_barrier { __device__ void operator()() const; };\n"
)


def rejections(
    unit: TranslationUnit, parsed: Parsed, reading: Reading, refusal: Callable[[str, int, str], Rejection]
) -> Iterator[Rejection]:
    """What is wrong with the edited text of a unit that was right before."""
    again = ClangTree(unit, _applied(unit.text, parsed), reading, inside=(_HEAD, "}\n"))
    try:
        for line, _, message in again.errors():
            yield refusal(*_reason(message, min(max(line, 1), again.lines)))
        for top in cursors.written_in(again.cursor, MAIN):
            for cursor in cursors.below(top) if top.kind.is_declaration() else ():
                if cursors.use(cursor, DECLARATIONS_FILE):
                    detail = f"`{cursor.spelling}` names the built-in past its shadow"
                    yield refusal("leak", cursor.location.line - again.before, detail)
    finally:
        cursors.forget(again.unit)


def _reason(message: str, line: int) -> tuple[str, int, str]:
    """Rule, line and detail of a refusal, for an error in the edited text."""
    if "fusiond_leak" in message or "deleted function '__syncthreads" in message:
        return "leak", line, "a built-in variable or the barrier is used where no parameter can stand for it"
    if re.search(r"redefinition of '(threadIdx|blockIdx|blockDim|gridDim|__syncthreads)'", message):
        return "name", line, f"`{message.split(chr(39))[1]}` is the name of a variable; rename it"
    return "rewrite", line, f"it cannot be made part of another kernel: {message}"


def _applied(text: str, parsed: Parsed) -> str:
    """The text with all edits done, every line with the number it had."""
    data = text.encode()
    pieces = []
    position = 0
    for edit in parsed.edits:
        if edit.start < position:
            continue
        lost = data[edit.start : edit.end].count(b"\n") - edit.text.count("\n")
        pieces += [data[position : edit.start], edit.text.encode(), b"\n" * lost]
        position = edit.end
    return b"".join([*pieces, data[position:]]).decode()
