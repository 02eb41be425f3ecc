"""A pipeline's YAML file as JSON Schema, for editors; `parser.read` is what counts."""

from __future__ import annotations

from typing import Any

from fusiond.inputs.schemas import FILL, NUMBER, TEXT, Schema, closed, document, list_of, mapping_of, names
from fusiond_mincut.frontend import expr, graph, masks, syntax

_DTYPE: Schema = {"enum": list(expr.DTYPES)}
_CHANNELS: Schema = {"type": "integer", "minimum": 1, "maximum": len(syntax.CHANNELS)}
_SIDE = {"type": "integer", "minimum": 1, "maximum": graph.WIDEST_IMAGE}
_FORMULA = {"type": ["string", "number"], "description": "an expression over images, parameters, masks and `let`"}
_BORDER = {
    "anyOf": [
        {"enum": [each for each in graph.BORDERS if each != "constant"]},
        closed({"constant": NUMBER}, ["constant"]),
    ]
}
_ODD_SIDE = {"type": "integer", "minimum": 1, "maximum": masks.WIDEST, "not": {"multipleOf": 2}}


def pipeline() -> dict[str, Any]:
    """The schema of a pipeline."""
    image: dict[str, Schema] = {"dtype": _DTYPE, "channels": _CHANNELS}
    kernel = closed(
        {
            "pattern": {"enum": list(graph.PATTERNS)},
            "reads": names(),
            "mask": {**list_of(_ODD_SIDE, least=2, most=2), "description": "width and height of what local reads"},
            "border": {"anyOf": [*_BORDER["anyOf"], mapping_of(_BORDER)]},
            **image,
            "let": mapping_of(_FORMULA),
            "body": {"anyOf": [_FORMULA, mapping_of(_FORMULA, least=1)]},
            "reduce": {"enum": list(graph.REDUCTIONS)},
        },
        ["pattern", "reads", "body"],
        allOf=[
            {"if": {"properties": {"pattern": {"const": "local"}}, "required": ["pattern"]},
             "then": {"required": ["mask"]}, "else": {"not": {"required": ["mask"]}}},
            {"if": {"properties": {"pattern": {"const": "global"}}, "required": ["pattern"]},
             "then": {"required": ["reduce"]}, "else": {"not": {"required": ["reduce"]}}},
        ],
    )  # fmt: skip
    typed = {"value": NUMBER, "dtype": {"enum": ["int32", "float32", "float64"]}}
    return document(
        "pipeline",
        {
            "pipeline": {"type": "string", "pattern": f"^{graph.TITLE.pattern}$"},
            "summary": TEXT,
            "image": closed({"width": _SIDE, "height": _SIDE, **image}, ["width", "height", "dtype"]),
            "inputs": list_of({"anyOf": [TEXT, closed({"name": TEXT, **image, "fill": FILL}, ["name"])]}, least=1),
            "outputs": list_of(TEXT, least=1),
            "parameters": mapping_of({"anyOf": [NUMBER, closed(typed, ["value", "dtype"])]}),
            "masks": mapping_of(list_of(list_of({"type": ["number", "null"]}, least=1), least=1)),
            "kernels": mapping_of(kernel, least=1),
        },
        ["pipeline", "image", "inputs", "outputs", "kernels"],
    )
