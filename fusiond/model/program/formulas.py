"""The Extents in a Program: formulas over the sizes of its workload, wherever they stand in it."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from fusiond.model.language.extents import Extent

_PLAIN = frozenset({str, int, float, bool, type(None)})
"""What holds no Extent: an Extent is an int of a class of its own."""

_EMPTY = ()


def formulas(value: Any) -> Iterator[tuple[str, int]]:
    """(formula, value) of each in a nest of dataclasses and tuples."""
    found: list[tuple[str, int]] = []
    _collect(value, found)
    return iter(found)


def _collect(value: Any, found: list[tuple[str, int]]) -> None:
    kind = type(value)
    if kind is Extent:
        found.append((value.text, int(value)))
    elif isinstance(value, tuple):
        for each in value:
            if type(each) not in _PLAIN:
                _collect(each, found)
    else:
        for name in _fields(kind)[0]:
            each = getattr(value, name)
            if each is not _EMPTY and type(each) not in _PLAIN:  # few are left, in a program of a thousand kernels
                _collect(each, found)


def _fields(kind: type) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All fields of a dataclass, and those that it is made with."""
    if kind not in _FIELDS:
        fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        _FIELDS[kind] = tuple(each.name for each in fields), tuple(each.name for each in fields if each.init)
    return _FIELDS[kind]


_FIELDS: dict[type, tuple[tuple[str, ...], tuple[str, ...]]] = {}


def replaced(value: Any, change: Callable[[Extent], int]) -> Any:
    """A nest of dataclasses and tuples with each Extent changed; what holds none is the very same."""
    kind = type(value)
    if kind is Extent:
        return change(value)
    if isinstance(value, tuple):
        found = tuple(each if type(each) in _PLAIN else replaced(each, change) for each in value)
        return found if any(a is not b for a, b in zip(found, value, strict=True)) else value
    changed = {}
    for name in _fields(kind)[1]:
        part = getattr(value, name)
        if type(part) not in _PLAIN and (new := replaced(part, change)) is not part:
            changed[name] = new
    return dataclasses.replace(value, **changed) if changed else value
