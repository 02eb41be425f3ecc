"""A kernel's YAML file as JSON Schema, for editors. `kernel_file.read` decides."""

from typing import Any

from fusiond.model.inputs import schemas
from fusiond.model.inputs.schemas import DTYPE, EXPRESSION, TEXT, closed, document, list_of, mapping_of
from fusiond.model.program import Role
from fusiond_hfuse.frontend.kernel_file import FLAGS, MAX_BLOCK

_IDENTIFIER = {"type": "string", "pattern": r"^\s*[A-Za-z_][A-Za-z0-9_]{0,63}\s*$"}
_QUALIFIED = {"type": "string", "pattern": r"^\s*[A-Za-z_]\w*(::[A-Za-z_]\w*)*\s*$"}
_VALUE = {"type": ["integer", "number", "string"], "description": "a number, or an expression over sizes and block.*"}
_BUFFER = {
    "dtype": DTYPE, "elements": EXPRESSION,
    "role": {"enum": [each.value for each in Role], "description": "input, output, inout (starts filled), scratch"},
    "fill": schemas.FILL, "compare": schemas.COMPARISON,
}  # fmt: skip
_PART = {"part_of": {**TEXT, "description": "the buffer in whose memory it points"}, "offset": EXPRESSION}
_MEMBER = {"anyOf": [_VALUE, closed({"dtype": DTYPE, "value": _VALUE}, ["value"]), closed(_BUFFER, ["dtype", "role"]),
                     closed(_PART, ["part_of"])]}  # fmt: skip
_HEXADECIMAL = {"type": "string", "pattern": r"^\s*([0-9a-fA-F]\s*[0-9a-fA-F]\s*)+$"}
_INTEGER = {"type": "integer"}
_LENGTH = {"type": "integer", "minimum": 1, "maximum": MAX_BLOCK[0]}
_SHAPE = list_of(_LENGTH, least=1, most=3)

_CONSTANT = {"type": ["integer", "number", "string", "boolean", "null"], "description": "of a kernel in Triton"}


def _several(value: dict[str, Any]) -> dict[str, Any]:
    """One value, or several that are tuned."""
    return {"anyOf": [value, list_of(value, least=1)]}


def kernel() -> dict[str, Any]:
    """The schema of NAME.yaml beside a .cu file."""
    name = {"name": _IDENTIFIER}
    argument = {
        "description": "of the kernel's parameters, in their order: a buffer (elements), a scalar (value), or a struct",
        "anyOf": [
            closed({**name, **_BUFFER}, ["name", "dtype", "elements", "role"]),
            closed({**name, "dtype": DTYPE, "value": _VALUE}, ["name", "dtype", "value"]),
            closed({**name, **_PART}, ["name", "part_of"]),
            closed({**name, "struct": mapping_of(_MEMBER), "bytes": _HEXADECIMAL}, ["name", "struct"]),
            closed({**name, "bytes": _HEXADECIMAL}, ["name", "bytes"]),
        ],
    }
    symbol = {"symbol": _QUALIFIED, **name}
    variable = {
        "description": "a variable that the host sets: its numbers, what it points to, or its members (struct)",
        "anyOf": [
            closed({**symbol, **_BUFFER}, ["symbol", "dtype", "elements"]),
            closed({**symbol, "struct": mapping_of(_MEMBER)}, ["symbol", "struct"]),
        ],
    }
    return document(
        "kernel",
        {
            "kernel": {"type": "string", "pattern": r"^\s*[A-Za-z_][A-Za-z0-9_-]{0,63}\s*$"},
            "summary": TEXT,
            "source": {**TEXT, "description": "the .cu, .ptx or .py file (Triton), beside this one"},
            "form": {"enum": ["ptx", "source"], "description": "what of it is fused; by default what can be"},
            "entry": {**_QUALIFIED, "description": "the __global__ function, or the one with @triton.jit"},
            "instance": {"type": "string", "pattern": "<", "examples": ["maxpool<float, 5>"]},
            "defines": mapping_of({"anyOf": [{"type": ["integer", "string", "null"]}, list_of(_INTEGER, least=1)]}),
            "include": list_of(TEXT),
            "flags": list_of({"type": "string", "pattern": rf"^\s*({FLAGS.pattern})\s*$"}),
            "sizes": schemas.SIZES,
            "odd": {**schemas.SIZES, "description": "awkward sizes, at which a winner is checked too"},
            "arguments": list_of(argument),
            "constants": {"anyOf": [list_of(variable), mapping_of(_several(_CONSTANT))]},
            "warps": _several({"enum": [1, 2, 4, 8, 16, 32]}),
            "stages": _several({"type": "integer", "minimum": 1, "maximum": 64}),
            "block": {
                "anyOf": [
                    closed({"shape": _SHAPE, "tune": {"enum": ["x", "y", "z"]}}, ["shape"]),
                    closed({"shapes": list_of(_SHAPE, least=1)}, ["shapes"]),
                ]
            },
            "grid": list_of(EXPRESSION, least=1, most=3),
            "shared": {**EXPRESSION, "description": "bytes of the extern __shared__ array"},
        },
        ["kernel", "source", "entry", "arguments", "grid"],
    )
