"""Parses a kernel's text once more with all edits done, as it will stand in a fused source.

    namespace fusiond_a { poison; the edited text }      with the built-in variables outside

What the second tree still says of a built-in variable is a leak, however it was written: behind `::`, by a macro, in a
default argument, a destructor, a member's initialiser. What does not parse any more was edited wrongly, or cannot be.
So neither comes to a compiler, let alone to a device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from fusiond.errors import RequestError
from fusiond.model import Rejection
from fusiond_hfuse.frontend import cooperative_groups, cursors, overloads, shadows
from fusiond_hfuse.frontend.clang_tree import DECLARATIONS_FILE, MAIN, NAME_OF_CUDA, ClangTree
from fusiond_hfuse.frontend.source_kernel import HERE, Parsed, TranslationUnit


def rejections(
    unit: TranslationUnit,
    parsed: Parsed,
    tree: ClangTree,
    instance: str,
    defines: tuple[tuple[str, str], ...],
    flags: tuple[str, ...],
    arch: str,
    refusal: Callable[[str, int, str], Rejection],
) -> list[Rejection]:
    """What is wrong with the edited text of a unit that was right before."""
    head = _surroundings(unit, parsed, tree)
    again = ClangTree(unit, applied(unit.text, parsed), instance, defines, flags, arch, inside=(head, "}\n"))
    errors = [each for each in again.errors() if each[1] not in tree.instantiation]
    if any(instantiated for _, _, instantiated in errors):
        whole = ClangTree(unit, unit.text, instance, defines, flags, arch, kernels=False)
        said = {message.replace("fusiond_a::", "") for _, message, _ in errors}
        own = [each for each in whole.errors() if each[2] and each[1] in said]
        if own:
            line, message, _ = own[0]
            raise RequestError(f"{instance} does not compile: {message}", where=unit.where(line))
    found = []
    for line, message, _ in errors:
        rule, detail = _reason(message)
        found.append(refusal(rule, min(max(line, 1), again.lines), detail))
    try:
        found += [refusal("leak", line, detail) for line, detail in _leaks(again)]
    finally:
        cursors.forget(again.unit)
    return found


def _surroundings(unit: TranslationUnit, parsed: Parsed, tree: ClangTree) -> str:
    """What stands before the edited text in a fused source, as far as it decides what the text means."""
    counted = "".join(
        f"struct fusiond_barrier_{name.removeprefix('__syncthreads_')} "
        "{ __device__ int operator()(int predicate) const; };\n"
        for name in shadows.COUNTED
        if parsed.counted
    )
    return (
        shadows.macros(parsed.counted)
        + "namespace fusiond_a {\n"
        + shadows.poison(parsed.counted)
        + "struct fusiond_barrier { __device__ void operator()() const; };\n"
        + counted
        + overloads.kept(tuple(name for name in parsed.overloads if name in tree.of_cuda()))
        + (cooperative_groups.text(unit.system) if tree.groups else "")
    )


def _reason(message: str) -> tuple[str, str]:
    """The rule and the detail of a refusal, for an error in the edited text."""
    if "fusiond_leak" in message or "deleted function '__syncthreads" in message:
        return "leak", "a built-in variable or the barrier is used where no parameter can stand for it"
    if re.search(r"redefinition of '(threadIdx|blockIdx|blockDim|gridDim|__syncthreads\w*)'", message):
        name = message.split("'")[1]
        return "name", f"`{name}` is the name of a variable; rename it"
    if "conflicts with target of using declaration" in message:
        return "name", NAME_OF_CUDA
    return "rewrite", f"it cannot be made part of another kernel: {message}"


def _leaks(tree: ClangTree) -> Iterator[tuple[int, str]]:
    """(line, detail) of every built-in variable that is still named."""
    for top in cursors.written_in(tree.cursor, MAIN):
        if not top.kind.is_declaration():
            continue
        for cursor in cursors.below(top):
            if shadows.use(cursor, DECLARATIONS_FILE):
                yield cursor.location.line - tree.before, f"`{cursor.spelling}` names the built-in past its shadow"


def applied(text: str, parsed: Parsed) -> str:
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
    return b"".join([*pieces, data[position:]]).decode().replace(HERE, "fusiond_a")
