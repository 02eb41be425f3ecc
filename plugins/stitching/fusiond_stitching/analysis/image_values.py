"""Numbers and operations of a module as the text of an image pipeline's bodies."""

import math
from collections.abc import Sequence

import numpy as np

from fusiond_stitching.frontend.graph import HloInstruction

DTYPES = {"f32": "float32", "f16": "float16", "pred": "uint8", "u8": "uint8", "s32": "int32"}
"""Of what is an image, or computed for one pixel."""
_BINARY = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "and": "&&", "or": "||", "xor": "!="}
_COMPARE = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}
_CALLS = {"maximum": "maximum", "minimum": "minimum", "abs": "abs", "sqrt": "sqrt", "rsqrt": "rsqrt", "log": "log",
          "exponential": "exp", "sine": "sin", "cosine": "cos", "tan": "tan", "tanh": "tanh", "atan2": "atan2",
          "power": "pow", "floor": "floor", "ceil": "ceil", "round-nearest-even": "rint"}  # fmt: skip
_OTHERS = {"negate": "-{}", "not": "!{}", "copy": "{}", "select": "({} ? {} : {})",
           "clamp": "minimum(maximum({1}, {0}), {2})", "logistic": "1.0f / (1.0f + exp(-{}))"}  # fmt: skip
_WHOLE = ("add", "subtract", "multiply", "compare", "select", "maximum", "minimum", "clamp", "negate", "abs")
"""What int32 does there as here."""


class NoPipeline(Exception):
    """This module is none."""


def literal(value: float, dtype: str) -> str:
    if dtype in ("pred", "s32", "u8"):
        return str(int(value)) if value >= 0 else f"({int(value)})"
    if math.isinf(value):
        return f"({'-' if value < 0 else ''}1.0f / 0.0f)"
    if math.isnan(value):
        raise NoPipeline
    text = repr(float(np.float32(value)))
    return f"({text}f)" if text.startswith("-") else f"{text}f"


def applied(value: HloInstruction, source: str, given: Sequence[str]) -> str:
    """An element-wise operation, of operands of a type; each result in float16 is rounded to it."""
    dtype, opcode = value.dtype, value.opcode
    if dtype not in ("f32", "f16", "pred", "s32") or (source in ("s32", "u8") and opcode not in (*_WHOLE, "convert")):
        raise NoPipeline
    if opcode == "convert":
        if dtype == "s32" and source not in ("pred", "u8"):
            raise NoPipeline
        text = {"f32": "float({})", "f16": "half(float({}))", "pred": "{} != 0", "s32": "int({})"}[dtype]
        text = text.format(given[0])
    elif opcode in _BINARY:
        text = f"{given[0]} {_BINARY[opcode]} {given[1]}"
    elif opcode in _CALLS:
        text = extreme(opcode, given) if opcode in ("maximum", "minimum") else f"{_CALLS[opcode]}({', '.join(given)})"
    elif opcode == "compare":
        text = f"{given[0]} {_COMPARE[value.attributes['direction']]} {given[1]}"
    elif opcode in _OTHERS:
        text = _OTHERS[opcode].format(*given)
    else:
        raise NoPipeline
    return f"half({text})" if dtype == "f16" and opcode != "convert" else text


def extreme(opcode: str, given: Sequence[str]) -> str:
    """Of pairs of neighbours, and of pairs of those; what is not a number is both the least and the greatest."""
    while len(given) > 1:
        pairs = [given[at : at + 2] for at in range(0, len(given), 2)]
        given = [f"{opcode}({', '.join(pair)})" if len(pair) > 1 else pair[0] for pair in pairs]
    return given[0]
