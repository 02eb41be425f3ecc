"""Finds a kernel among a unit's declarations, and explains an ambiguous name."""

from __future__ import annotations

from collections.abc import Iterator

from fusiond.model.errors import RequestError, UnknownName
from fusiond_hfuse.frontend import cursors, instances
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
    known: list[tuple[str, cindex.Cursor]], entry: str, template: bool, where: str
) -> tuple[cindex.Cursor, list[cindex.Cursor]]:
    """The definition of the kernel called `entry`, and all of its declarations. `template`: an instance is named.
    UnknownName, or a RequestError, where there is none, or several."""
    found = [cursor for name, cursor in known if name == entry]
    if not found:
        raise UnknownName("kernel", entry, {name for name, _ in known}, where=where)
    bodies = [cursor for cursor in found if cursor.is_definition()]
    if len(bodies) != 1:
        kinds = ", ".join(str(each.spelling) for each in found[0].type.get_canonical().argument_types())
        how = f'is defined more than once; say which: `instance: "{entry}({kinds})"`' if bodies else "is only declared"
        raise RequestError(f"{entry} {how}", where=where)
    is_template = bodies[0].kind is CursorKind.FUNCTION_TEMPLATE
    if is_template and not template:
        raise RequestError(instances.asked(entry, _parameters(bodies[0])), where=where)
    if template and not is_template:
        raise RequestError(f"{entry} is not a template, so it has no instance", where=where)
    return bodies[0], found


def template_head(body: cindex.Cursor, code: str) -> str:
    """`template <...>` in front of a kernel; empty where there is none."""
    parameters = [each for each in cursors.children(body) if each.kind in _TEMPLATE_PARAMETERS]
    if not parameters:
        return ""
    start, last = body.extent.start.offset, parameters[-1].extent.end.offset
    return code[start : code.find(">", last) + 1]


_TEMPLATE_PARAMETERS = (CursorKind.TEMPLATE_TYPE_PARAMETER, CursorKind.TEMPLATE_NON_TYPE_PARAMETER,
                        CursorKind.TEMPLATE_TEMPLATE_PARAMETER)  # fmt: skip


def _parameters(template: cindex.Cursor) -> list[str]:
    return [
        f"{each.type.spelling if each.kind is CursorKind.TEMPLATE_NON_TYPE_PARAMETER else 'class'} {each.spelling}"
        for each in cursors.children(template)
        if each.kind in _TEMPLATE_PARAMETERS
    ]
