"""A kernel graph's YAML file as JSON Schema, for editors. `parser.read` decides."""

from typing import Any

from fusiond.model.inputs.schemas import (
    COMPARISON,
    EXPRESSION,
    FILL,
    FLAG,
    SIZES,
    TEXT,
    closed,
    document,
    list_of,
    mapping_of,
    names,
)
from fusiond.model.language.dtypes import DTYPES
from fusiond_transfer.frontend.graph import DEVICE, HOST, MEMORIES
from fusiond_transfer.frontend.parser import GENERATE_KEYS, MAX_GENERATED, NOT_GENERATED

_DTYPE = {"enum": list(DTYPES)}
_DIMS = {"anyOf": [EXPRESSION, list_of(EXPRESSION, least=1, most=3)]}
_FORMULA = {"type": ["string", "number"], "description": "an expression over what the kernel reads"}
_MADE = {"type": "integer", "minimum": 1, "maximum": MAX_GENERATED}
_SPAN = list_of({"type": "integer", "minimum": 1, "maximum": 100}, least=2, most=2)
_OF_A_SOURCE = ("entry", "values", "grid", "block", "shared", "rows", "whole")


def graph() -> dict[str, Any]:
    """The schema of a graph."""
    vector = {"dtype": _DTYPE, "elements": EXPRESSION, "fill": FILL, "memory": {"enum": [*MEMORIES]}}
    kernel = closed(
        {
            "name": TEXT,
            "on": {"enum": [HOST, DEVICE]},
            "reads": names(),
            "writes": {**names(), "minItems": 1},
            "in_place": mapping_of(TEXT),
            "body": {"anyOf": [_FORMULA, mapping_of(_FORMULA, least=1)]},
            "source": {**TEXT, "description": "a file beside this one"},
            "entry": {"type": "string", "pattern": r"^[A-Za-z_]\w{0,63}$"},
            "values": list_of(EXPRESSION),
            "grid": _DIMS,
            "block": _DIMS,
            "shared": EXPRESSION,
            "rows": {**TEXT, "description": "the size that counts the rows, which are made by themselves"},
            "whole": names(),
        },
        ["name", "on", "writes"],
        allOf=[
            {"not": {"required": ["body", "source"]}},
            {"if": {"required": ["source"]}, "then": {"required": ["entry"]}},
            *({"if": {"required": [key]}, "then": {"required": ["source"]}} for key in _OF_A_SOURCE),
        ],
    )
    generate = closed(
        {
            "kernels": _MADE,
            "inputs": _MADE,
            "indegree": _SPAN,
            "outdegree": _SPAN,
            "device_percent": {"type": "integer", "minimum": 0, "maximum": 100, "default": 50},
            "seed": {"type": "integer", "minimum": 0, "default": 0},
        },
        GENERATE_KEYS[:4],
    )
    return document(
        "graph",
        {
            "graph": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_-]{0,63}$"},
            "summary": TEXT,
            "sizes": SIZES,
            "odd": {**SIZES, "description": "awkward sizes, at which a winner is checked too"},
            **vector,
            "vectors": mapping_of(closed({**vector, "compare": COMPARISON})),
            "inputs": names(),
            "outputs": names(),
            "placed": names(),
            "kernels": list_of(kernel),
            "generate": generate,
            "loop": FLAG,
            "carried": mapping_of(TEXT),
            "iterations": EXPRESSION,
            "limits": closed({"device_bytes": EXPRESSION}, ["device_bytes"]),
            "adjacent": list_of(names()),
            "regions": list_of(
                {
                    "type": "object",
                    "required": ["reads", "writes"],
                    "properties": {
                        "keys": {"type": "object"},
                        "sizes": mapping_of(EXPRESSION),
                        "reads": mapping_of(TEXT, least=1),
                        "writes": mapping_of(TEXT, least=1),
                    },
                    "additionalProperties": {**TEXT, "description": "a document for another strategy"},
                    "minProperties": 3,
                }
            ),
        },
        ["graph"],
        **{
            "if": {"required": ["generate"]},
            "then": {"not": {"anyOf": [{"required": [key]} for key in NOT_GENERATED]}},
            "else": {"required": ["inputs", "outputs", "kernels"]},
        },
    )
