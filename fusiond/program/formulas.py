"""The Extents in a Program: formulas over the sizes of its workload, wherever they stand in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from fusiond.language.extents import Extent

_PLAIN = frozenset({str, int, float, bool, type(None)})
"""What holds no Extent: an Extent is an int of a class of its own."""


def formulas(value: Any) -> Iterator[tuple[str, int]]:
    """(formula, value) of each in a nest of dataclasses and tuples."""
    if type(value) in _PLAIN:
        return
    if isinstance(value, Extent):
        yield value.text, int(value)
    elif isinstance(value, tuple):
        for each in value:
            if type(each) not in _PLAIN:
                yield from formulas(each)
    else:
        for name in _parts(type(value)):
            each = getattr(value, name)
            if type(each) not in _PLAIN:  # most of a program of a thousand kernels
                yield from formulas(each)


_KNOWN_PARTS: dict[type, tuple[str, ...]] = {}


def _parts(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass; none of anything else."""
    if kind not in _KNOWN_PARTS:
        fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        _KNOWN_PARTS[kind] = tuple(each.name for each in fields)
    return _KNOWN_PARTS[kind]


def replaced(value: Any, change: Callable[[Extent], int]) -> Any:
    """A nest of dataclasses and tuples with each Extent changed; what holds none is the very same."""
    if isinstance(value, Extent):
        return change(value)
    if isinstance(value, tuple):
        found = tuple(replaced(each, change) for each in value)
        return found if any(a is not b for a, b in zip(found, value, strict=True)) else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {each.name: getattr(value, each.name) for each in dataclasses.fields(value) if each.init}
        changed = {name: replaced(each, change) for name, each in parts.items()}
        changed = {name: each for name, each in changed.items() if each is not parts[name]}
        return dataclasses.replace(value, **changed) if changed else value
    return value
