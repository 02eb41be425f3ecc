"""Why a name that a text declares is not known: the host's function, a class or kernel that cannot be read.

A slice leaves such a declaration out, and clang then says that the name is not declared, which is not so.
"""

from __future__ import annotations

import re

from fusiond.errors import RequestError
from fusiond_hfuse.frontend import clang_tree, cursors, slicing
from fusiond_hfuse.frontend.cursors import cindex
from fusiond_hfuse.frontend.source_kernel import TranslationUnit

_NAMED = re.compile(
    r"`(\w+)` is declared in none of the files"
    r"|.*?(?:no (?:member|type|template) named|use of undeclared identifier|unknown type name) '(\w+)'"
)


def reason(
    problem: RequestError, unit: TranslationUnit, defines: tuple[tuple[str, str], ...], flags: tuple[str, ...]
) -> RequestError:
    """A problem with a name as a problem with its declaration, where the unit has one; else the same."""
    named = _NAMED.match(problem.problem)
    name = (named.group(1) or named.group(2)) if named is not None else ""
    if not name:
        return problem
    found = [each for each in slicing.declarations(unit, defines, flags) if name in each.names]
    if found and all(each.host for each in found):
        line = unit.text.encode().count(b"\n", 0, found[0].start) + 1
        return RequestError(
            f"`{name}` is a function of the host: where it is declared ({unit.where(line)}), no `__device__` is read",
            where=problem.where,
        )
    marked = _MARKED.format(name=re.escape(name))
    code = clang_tree.blanked(unit.text.encode())
    marks = next((each for each in re.finditer(marked, code) if not _is_macro(code, each.group(1))), None)
    if marks is None:
        return problem
    line = code.count("\n", 0, marks.start()) + 1
    return RequestError(
        f"`{name}` ({unit.where(line)}) is declared with `{marks.group(1)}`, a macro that none of the files defines"
        f"{_left_out(unit)}",
        where=problem.where,
    )


_MARKED = r"\b(?:struct|class|union)\s+([A-Za-z_]\w*)\s*(?:\([^()\n]*\)\s*)?\b{name}\b\s*[{{:]"


def _is_macro(code: str, name: str) -> bool:
    return name in ("alignas", "final") or re.search(rf"#[ \t]*define[ \t]+{re.escape(name)}\b", code) is not None


def _left_out(unit: TranslationUnit) -> str:
    return f" (not read: {', '.join([*unit.missing][:_MOST_LISTED])})" if unit.missing else ""


_MOST_LISTED = 6


def kernel(
    unit: TranslationUnit, name: str, defines: tuple[tuple[str, str], ...], flags: tuple[str, ...]
) -> RequestError | None:
    """What is wrong with the head of a kernel that a text has and clang does not; None where there is no such text."""
    code = clang_tree.blanked(unit.text.encode())
    head = re.search(rf"\b__global__\b[^;{{}}]*?\b({re.escape(name)})\s*\([^;{{}}]*", code)
    if head is None:
        return None
    first, last = (code.count("\n", 0, at) + 1 for at in (head.start(), head.end()))
    arch = clang_tree.architectures(unit.text)[0]
    tree = clang_tree.tolerant(unit.text, unit.system, defines, flags, arch, host=unit.host_headers, bodies=False)
    try:
        wrong = [
            each
            for each in tree.diagnostics
            if each.severity >= cindex.Diagnostic.Error
            and each.location.file is not None
            and each.location.file.name == clang_tree.MAIN
        ]
        own = next((each for each in wrong if first <= each.location.line <= last), None)
        problem = own or next(iter(wrong), None)
        if problem is None:
            return None
        said = clang_tree.sentence(unit, problem.spelling, problem.location.line)
        return RequestError(f"the kernel {name} cannot be read: {said}", where=unit.where(problem.location.line))
    finally:
        cursors.forget(tree)
