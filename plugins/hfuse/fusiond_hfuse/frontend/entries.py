"""Finds a kernel among a unit's declarations, and says what is missing where it is not clear which one is meant."""

from __future__ import annotations

from collections.abc import Iterator

from fusiond.errors import RequestError, UnknownName
from fusiond_hfuse.frontend import cursors, instances
from fusiond_hfuse.frontend.cursors import SCOPES, CursorKind, cindex
from fusiond_hfuse.frontend.instances import TemplateParameter


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
    if not template:
        _refuse_template(found, bodies, entry, where)
    if len(bodies) != 1:
        raise RequestError(f"{entry} {_not_one(bodies, entry)}", where=where)
    if template and bodies[0].kind is not CursorKind.FUNCTION_TEMPLATE:
        raise RequestError(f"{entry} is not a template, so it has no instance", where=where)
    return bodies[0], found


def _refuse_template(found: list[cindex.Cursor], bodies: list[cindex.Cursor], entry: str, where: str) -> None:
    """RequestError that asks for an instance, where the kernel is a template."""
    # Where every body is a specialisation's, the template itself may be no more than declared.
    candidates = found if len(bodies) > 1 else bodies
    pattern = next((each for each in candidates if each.kind is CursorKind.FUNCTION_TEMPLATE), None)
    if pattern is not None:
        raise RequestError(instances.asked(entry, slots(pattern)), where=where)


def _not_one(bodies: list[cindex.Cursor], entry: str) -> str:
    if not bodies:
        return "is only declared"
    kinds = ", ".join(str(each.spelling) for each in bodies[0].type.get_canonical().argument_types())
    return f'is defined more than once; say which by its types: `instance: "{entry}({kinds})"`'


def other_definitions(body: cindex.Cursor, declarations: list[cindex.Cursor]) -> list[cindex.Cursor]:
    """The definitions of a kernel that an instance does not come from."""
    return [each for each in declarations if each.is_definition() and each != body]


def template_head(body: cindex.Cursor, data: bytes) -> str:
    """`template <...>` in front of a kernel."""
    text = data[body.extent.start.offset : body.location.offset].decode("latin-1")
    parameters = [each for each in cursors.children(body) if each.kind in _TEMPLATE_PARAMETERS]
    if not parameters:
        return ""
    last = parameters[-1].extent.end.offset - body.extent.start.offset
    return text[: text.find(">", last) + 1]


_TEMPLATE_PARAMETERS = (CursorKind.TEMPLATE_TYPE_PARAMETER, CursorKind.TEMPLATE_NON_TYPE_PARAMETER,
                        CursorKind.TEMPLATE_TEMPLATE_PARAMETER)  # fmt: skip


def slots(template: cindex.Cursor) -> tuple[TemplateParameter, ...]:
    """The parameters of a template."""
    return tuple(
        TemplateParameter(name=each.spelling, kind=_kind(each), default=_has_default(each))
        for each in cursors.children(template)
        if each.kind in _TEMPLATE_PARAMETERS
    )


def _kind(parameter: cindex.Cursor) -> str:
    if parameter.kind is CursorKind.TEMPLATE_TYPE_PARAMETER:
        return "class"
    if parameter.kind is CursorKind.TEMPLATE_TEMPLATE_PARAMETER:
        return "template"
    kind = parameter.type.get_canonical()
    return f"enum {kind.spelling}" if kind.kind is cindex.TypeKind.ENUM else str(parameter.type.spelling)


def _has_default(parameter: cindex.Cursor) -> bool:
    return any(token.spelling == "=" for token in parameter.get_tokens())
