"""Finds a kernel among a unit's declarations, and says what is missing where it is not clear which one is meant."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fusiond.errors import RequestError, UnknownName
from fusiond_hfuse.frontend import cursors
from fusiond_hfuse.frontend.cursors import SCOPES, CursorKind, cindex


def kernels(nodes: list[cindex.Cursor], scope: str) -> Iterator[tuple[str, cindex.Cursor]]:
    """(qualified name, cursor) of every `__global__` function, declarations included."""
    for cursor in nodes:
        if cursor.kind in SCOPES:
            inner = f"{scope}{cursor.spelling}::" if cursor.kind is CursorKind.NAMESPACE and cursor.spelling else scope
            yield from kernels(list(cursors.children(cursor)), inner)
        elif cursor.kind in (CursorKind.FUNCTION_DECL, CursorKind.FUNCTION_TEMPLATE) and cursors.has(
            cursor, CursorKind.CUDAGLOBAL_ATTR
        ):
            yield scope + cursor.spelling, cursor


def definition(
    known: list[tuple[str, cindex.Cursor]], entry: str, template: bool, where: str, chosen: cindex.Cursor | None = None
) -> tuple[cindex.Cursor, list[cindex.Cursor]]:
    """The definition of the kernel called `entry`, and all of its declarations. `template`: an instance is named, which
    clang finds at `chosen`: of several specialisations the one that is meant. UnknownName, or a RequestError, where
    there is none, or several."""
    found = [cursor for name, cursor in known if name == entry]
    if not found:
        raise UnknownName("kernel", entry, {name for name, _ in known}, where=where)
    bodies = [cursor for cursor in found if cursor.is_definition()]
    if template and chosen is not None:
        meant = [each for each in bodies if each.location.offset == chosen.location.offset]
        if len(meant) == 1 and any(each.kind is CursorKind.FUNCTION_TEMPLATE for each in found):
            return meant[0], found
    # Where every body is a specialisation's, the template itself may be no more than declared.
    candidates = found if len(bodies) > 1 else bodies
    pattern = next((each for each in candidates if each.kind is CursorKind.FUNCTION_TEMPLATE), None)
    if pattern is not None and not template:
        head = ", ".join(_template_parameters(pattern))
        example = f"{entry}<{', '.join(_example(kind) for kind in _template_kinds(pattern))}>"
        raise RequestError(
            f'{entry} is a template <{head}>; say which instance: `instance: "{example}"` in its YAML, '
            f"FILE.cu:'{example}' for `fusiond init`",
            where=where,
        )
    if len(bodies) != 1:
        what = "is only declared" if not bodies else "is defined more than once (overloads)"
        raise RequestError(f"{entry} {what}; this version wants one definition", where=where)
    is_template = bodies[0].kind is CursorKind.FUNCTION_TEMPLATE
    if template and not is_template:
        raise RequestError(f"{entry} is no template, so it has no instance", where=where)
    return bodies[0], found


def other_definitions(body: cindex.Cursor, declarations: list[cindex.Cursor]) -> list[cindex.Cursor]:
    """The definitions of a kernel that an instance does not come from."""
    return [each for each in declarations if each.is_definition() and each != body]


def template_head(body: cindex.Cursor, data: bytes) -> str:
    """`template <...>` in front of a kernel."""
    text = data[body.extent.start.offset : body.location.offset].decode("latin-1")
    opening = re.match(r"template\s*<", text)
    if opening is None:
        return ""
    depth, at = 1, opening.end()
    while depth and at < len(text):
        depth += {"<": 1, ">": -1}.get(text[at], 0)
        at += 1
    return text[:at]


_TEMPLATE_PARAMETERS = (CursorKind.TEMPLATE_TYPE_PARAMETER, CursorKind.TEMPLATE_NON_TYPE_PARAMETER,
                        CursorKind.TEMPLATE_TEMPLATE_PARAMETER)  # fmt: skip


def _example(kind: str) -> str:
    """What stands for a template's parameter in a message."""
    words = r"((const|unsigned|signed|long|short) )*(int|char|long|short|size_t|unsigned|u?int\d*_t)"
    return {"class": "float", "bool": "true"}.get(kind, "128" if re.fullmatch(words, kind) else "?")


def _template_kinds(template: cindex.Cursor) -> list[str]:
    return [
        "class"
        if each.kind is CursorKind.TEMPLATE_TYPE_PARAMETER
        else "template"
        if each.kind is CursorKind.TEMPLATE_TEMPLATE_PARAMETER
        else str(each.type.spelling)
        for each in cursors.children(template)
        if each.kind in _TEMPLATE_PARAMETERS
    ]


def _template_parameters(template: cindex.Cursor) -> list[str]:
    names = [each.spelling for each in cursors.children(template) if each.kind in _TEMPLATE_PARAMETERS]
    return [f"{kind} {name}".strip() for kind, name in zip(_template_kinds(template), names, strict=True)]
