"""A pipeline's YAML file as JSON Schema, for editors. `parser.read` decides."""

from typing import Any

from fusiond.model.inputs.schemas import FILL, NUMBER, TEXT, Schema, closed, document, list_of, mapping_of, names
from fusiond_mincut.frontend import borders, expr, graph, masks, syntax

_DTYPE: Schema = {"enum": list(expr.DTYPES)}
_CHANNELS: Schema = {"type": "integer", "minimum": 1, "maximum": len(syntax.CHANNELS)}
_SIDE = {"type": "integer", "minimum": 1, "maximum": graph.WIDEST_IMAGE}
_FORMULA = {"type": ["string", "number"], "description": "an expression over images, parameters, masks and `let`"}
_BORDER = {"anyOf": [{"enum": list(borders.MAPPED)}, closed({"constant": NUMBER}, ["constant"])]}
_SIZE: Schema = {
    **list_of({"type": ["integer", "string"]}, least=2, most=2),
    "description": "width and height: numbers, or expressions of the pipeline's width and height",
}
_RATIO: Schema = {"type": ["integer", "string"], "pattern": "^[0-9]+ */ *[0-9]+$", "minimum": 1}
_STEPS: Schema = {"anyOf": [_RATIO, list_of(_RATIO, least=2, most=2)]}
_STEP: Schema = {
    "anyOf": [
        *_STEPS["anyOf"],
        closed({"step": _STEPS, "origin": list_of({"type": "integer"}, least=2, most=2)}, minProperties=1),
    ]
}
_HISTOGRAM = closed({graph.HISTOGRAM: _SIZE}, [graph.HISTOGRAM])
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
            "size": _SIZE,
            "step": {"anyOf": [_STEP, mapping_of(_STEP, least=1)]},
            "let": mapping_of(_FORMULA),
            "body": {"anyOf": [_FORMULA, mapping_of(_FORMULA, least=1)]},
            "reduce": {"anyOf": [{"enum": list(graph.REDUCTIONS)}, _HISTOGRAM]},
            "row": _FORMULA,
            "axis": {"enum": list(graph.AXES)},
        },
        ["pattern", "reads", "body"],
        allOf=[
            {"if": {"properties": {"pattern": {"const": "local"}}, "required": ["pattern"]},
             "then": {"required": ["mask"]}, "else": {"not": {"required": ["mask"]}}},
            {"if": {"properties": {"pattern": {"const": "global"}}, "required": ["pattern"]},
             "then": {"required": ["reduce"]}, "else": {"not": {"required": ["reduce"]}}},
        ],
    )  # fmt: skip
    typed = {"value": NUMBER, "dtype": {"enum": ["int32", "float32", "float64"]}, "runtime": {"type": "boolean"}}
    given = closed({"name": TEXT, **image, "size": _SIZE, "fill": FILL}, ["name"])
    return document(
        "pipeline",
        {
            "pipeline": {"type": "string", "pattern": f"^{graph.TITLE.pattern}$"},
            "summary": TEXT,
            "image": closed(
                {"width": _SIDE, "height": _SIDE, **image, "pitched": {"type": "boolean"}}, ["width", "height", "dtype"]
            ),
            "inputs": list_of({"anyOf": [TEXT, given]}, least=1),
            "outputs": list_of(TEXT, least=1),
            "parameters": mapping_of({"anyOf": [NUMBER, closed(typed, ["value"])]}),
            "masks": mapping_of(list_of(list_of({"type": ["number", "null"]}, least=1), least=1)),
            "tables": mapping_of(list_of(NUMBER, least=1)),
            "kernels": mapping_of(kernel, least=1),
        },
        ["pipeline", "image", "inputs", "outputs", "kernels"],
    )
