"""Content keys: the same value gives the same key, in every process and on every machine."""

import dataclasses
import enum
import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

GENERATOR = "philox4x64-10, 1"
"""What draws data (`fusiond.model.inputs.fills`): part of every workload's key, since an answer belongs to the data it
was found with. Another number when the same fill draws other data."""

SILENT_DEFAULT: Mapping[str, bool] = MappingProxyType({"silent_default": True})
"""Metadata of a dataclass's field that says nothing where it has its default: what came later leaves the keys of what
was there before."""


def plain(value: object) -> Any:
    """Turn a frozen dataclass (or any nest of them) into JSON values, with sorted, complete content.

    Enums become their values, tuples become lists, mappings keep string keys. Raises TypeError for anything
    that has no one obvious JSON form, so that a key can never depend on an object's address."""
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: plain(getattr(value, f.name))
            for f in dataclasses.fields(value)
            if not (f.metadata and "silent_default" in f.metadata and getattr(value, f.name) == f.default)
        }
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, frozenset | set):
        return sorted((plain(item) for item in value), key=str)
    raise TypeError(f"{type(value).__name__} has no canonical form")


def canonical(value: object) -> str:
    """The one JSON text of a value: sorted names, no spaces."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=True)


def content_key(value: object) -> str:
    """A 32-digit hexadecimal key of a value's content."""
    return text_key(canonical(value))


def text_key(text: str | bytes) -> str:
    """A 32-digit hexadecimal key of a text."""
    data = text.encode() if isinstance(text, str) else text
    return hashlib.blake2b(data, digest_size=16).hexdigest()
