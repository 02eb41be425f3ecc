"""Writes of a function's variables: what is written, where, and whether by a function that is handed the variable."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from fusiond_hfuse.frontend import cursors, shadows
from fusiond_hfuse.frontend.constructs import (
    REFERENCES,
    Inside,
    assigns,
    by_reference,
    called,
    constant_reference,
    parameter_types,
    sign,
    variable,
)
from fusiond_hfuse.frontend.cursors import CursorKind, cindex

UNIFORM_CALLS = frozenset({
    "min", "max", "abs", "llabs", "fminf", "fmaxf", "fmin", "fmax", "ceil", "ceilf", "floor", "floorf", "sqrtf",
    "__umulhi", "__mulhi", "__clz", "__ffs", "__popc", "__ldg", "log2", "log2f", "umin", "umax",
})  # fmt: skip
"""CUDA's functions that write to nothing, and give all threads the same for the same."""
_WRITES = (CursorKind.BINARY_OPERATOR, CursorKind.COMPOUND_ASSIGNMENT_OPERATOR, CursorKind.UNARY_OPERATOR)


@dataclass(frozen=True, slots=True)
class Write:
    """A write of a variable, and the constructs that the write stands in."""

    target: int
    """The variable's hash."""
    value: cindex.Cursor | None
    """What is written; None where that cannot be told."""
    by_call: bool
    """`value` is a call that is handed the variable's address or a reference to it."""
    cursor: cindex.Cursor
    inside: Inside


class _Callees(Protocol):
    """The user's functions: see `divergence.Callees`."""

    data: bytes

    def __contains__(self, name: str) -> bool: ...

    def takes_references(self, name: str) -> bool: ...


class Writes:
    """Those of one function. `names`: its variables, by hash, under their names."""

    def __init__(self, callees: _Callees, names: Mapping[str, list[int]]) -> None:
        self.callees = callees
        self.names = names

    def of(self, cursor: cindex.Cursor, inside: Inside) -> Iterator[Write]:
        """Those that one construct makes."""
        for target, value, by_call in self._targets(cursor):
            if not shadows.shared(target):  # what all threads see is the same for all
                yield Write(target.hash, value, by_call, cursor, inside)
        if cursor.kind is CursorKind.ASM_STMT:
            words = self.callees.data[cursor.extent.start.offset : cursor.extent.end.offset].decode("latin-1")
            by_macro = re.match(r"\s*(__asm__|__asm|asm)\b", words) is None
            for name, hashes in self.names.items():
                if by_macro or re.search(rf"\b{name}\b", words):
                    yield from (Write(each, None, False, cursor, inside) for each in hashes)

    def _targets(self, cursor: cindex.Cursor) -> Iterator[tuple[cindex.Cursor, cindex.Cursor | None, bool]]:
        """(variable, what is written to it, whether by a function that it is handed to)."""
        children = list(cursors.children(cursor))
        if cursor.kind is CursorKind.VAR_DECL:
            yield from ((target, value, False) for target, value in _initialised(cursor, children))
        elif cursor.kind is CursorKind.CALL_EXPR and self._copies(cursor):
            to, value = cursor.get_arguments()
            if (target := variable(to, elements=True)) is not None:
                yield target, value, False
        elif cursor.kind is CursorKind.CALL_EXPR:
            yield from ((each, cursor, True) for each in self._handed_over(cursor, children))
        elif cursor.kind in _WRITES and children:
            yield from ((target, value, False) for target, value in _assigned(cursor, children))

    def _copies(self, call: cindex.Cursor) -> bool:
        """Whether a call is an assignment that the compiler made for a struct."""
        return call.spelling == "operator=" and "operator=" not in self.callees and len(list(call.get_arguments())) == 2

    def _handed_over(self, call: cindex.Cursor, children: list[cindex.Cursor]) -> Iterator[cindex.Cursor]:
        """The variables that a function can write to since it is handed a reference."""
        function = call.referenced
        arguments = [each for each in call.get_arguments() if each is not None]
        if function is not None and function.kind is CursorKind.CONSTRUCTOR and function.spelling not in self.callees:
            return  # the compiler's own
        if function is not None and function.kind in shadows.FUNCTIONS:
            yield from _by_signature(call, function, arguments, children)
            return
        name = called(call)
        if name in UNIFORM_CALLS or (name in self.callees and not self.callees.takes_references(name)):
            return
        for argument in arguments:
            target = variable(argument)
            if target is not None and not target.type.is_const_qualified():
                yield target


def _initialised(
    declared: cindex.Cursor, children: list[cindex.Cursor]
) -> Iterator[tuple[cindex.Cursor, cindex.Cursor | None]]:
    """(variable, value) of a declaration with an initialiser, or of a reference."""
    values = [each for each in children if each.kind.is_expression()]
    if declared.type.kind in REFERENCES:
        yield declared, None  # what is written through it is not followed
        target = variable(values[-1]) if values else None
        if target is not None and not constant_reference(declared.type):
            yield target, None
    elif values:
        yield declared, values[-1]


def _assigned(
    operator: cindex.Cursor, children: list[cindex.Cursor]
) -> Iterator[tuple[cindex.Cursor, cindex.Cursor | None]]:
    """(variable, value) of `=` and its like, `++`, and `&`, whose writes are not followed."""
    target = variable(children[0], elements=True)
    if target is None or target.type.is_const_qualified():
        return
    if operator.kind is CursorKind.UNARY_OPERATOR:
        written = sign(operator)
        if written in ("&", "++"):
            yield target, None if written == "&" else operator
    elif assigns(operator):
        yield target, operator if variable(children[0]) is None else children[-1]


def _by_signature(
    call: cindex.Cursor, function: cindex.Cursor, arguments: list[cindex.Cursor], children: list[cindex.Cursor]
) -> Iterator[cindex.Cursor]:
    """The variables that a known function can write to: the object of a method, and what it takes by reference."""
    kinds = parameter_types(function) or list(function.type.argument_types())
    if function.kind is CursorKind.CXX_METHOD and not function.is_static_method():
        if function.spelling.startswith("operator") and len(arguments) == len(kinds) + 1:
            owner: cindex.Cursor | None = arguments.pop(0)
        else:
            owner = next(iter(cursors.children(children[0])), None) if children else None
        changes = owner is not None and not function.is_const_method()
        target = variable(owner) if changes else None
        if target is not None:
            yield target
    for argument, kind in zip(arguments, kinds, strict=False):
        if by_reference(kind) and (target := variable(argument, elements=True)) is not None:
            yield target
