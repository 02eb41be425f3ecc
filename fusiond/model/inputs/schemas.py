"""The values of `values` as JSON Schema: parts for the schemas of documents.

A schema is for editors. What a document means, and whether its numbers fit, is for the parser alone to say; a schema
must only never refuse what the parser takes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fusiond.model.inputs.values import LARGEST_SIZE
from fusiond.model.language.dtypes import DTYPES

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
NUMBER: Schema = {"type": "number"}
WHOLE: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 1}
FLAG: Schema = {"type": "boolean"}
EXPRESSION: Schema = {
    "type": ["integer", "string"],
    "description": "a whole number, or an expression over sizes: + - * // % min() max() ceil_div()",
}
DTYPE: Schema = {"enum": sorted(DTYPES)}
SIZES: Schema = {
    "type": "object",
    "description": "name: whole number from 1",
    "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]{0,63}$"},
    "additionalProperties": {"type": "integer", "minimum": 1, "maximum": LARGEST_SIZE},
}
COMPARISON: Schema = {
    "description": "equal, or how far off an element may be",
    "anyOf": [
        {"const": "equal"},
        {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": False,
            "properties": {"rtol": {"type": "number", "minimum": 0}, "atol": {"type": "number", "minimum": 0}},
        },
    ],
}


def _pair(of: Schema) -> Schema:
    return {"type": "array", "items": of, "minItems": 2, "maxItems": 2}


FILL: Schema = {
    "description": "what the buffer holds at the start",
    "anyOf": [
        {"enum": ["zeros", "iota"]},
        {
            "type": "object",
            "minProperties": 1,
            "maxProperties": 1,
            "additionalProperties": False,
            "properties": {
                "constant": NUMBER, "integers": _pair(WHOLE), "uniform": _pair(NUMBER), "normal": _pair(NUMBER),
                "file": {**TEXT, "description": "an .npy file beside this one"},
            },
        },
    ],
}  # fmt: skip


def names(pattern: str | None = None) -> Schema:
    """A list of names."""
    return {"type": "array", "items": TEXT if pattern is None else {"type": "string", "pattern": pattern}}


def list_of(item: Schema, *, least: int = 0, most: int | None = None) -> Schema:
    return {"type": "array", "items": item, "minItems": least, **({} if most is None else {"maxItems": most})}


def mapping_of(value: Schema, *, least: int = 0) -> Schema:
    """Any names, each with such a value."""
    return {"type": "object", "additionalProperties": value, "minProperties": least}


def closed(properties: Mapping[str, Schema], required: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    """An object with no other keys."""
    return {
        "type": "object",
        "required": list(required),
        "properties": dict(properties),
        "additionalProperties": False,
        **more,
    }


def document(kind: str, properties: Mapping[str, Schema], required: Sequence[str], **more: Any) -> dict[str, Any]:
    """The schema of a whole file."""
    return {"$schema": DIALECT, "title": f"fusiond {kind}", **closed(properties, required, **more)}
