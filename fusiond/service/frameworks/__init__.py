"""The common part of `fusiond.jax` and `fusiond.torch`: it asks about regions and launches answers."""

from collections.abc import Mapping

DTYPES: Mapping[str, str] = {
    "bool": "pred", "int8": "s8", "int16": "s16", "int32": "s32", "int64": "s64", "uint8": "u8", "uint16": "u16",
    "uint32": "u32", "uint64": "u64", "float8_e4m3fn": "f8e4m3fn", "float8_e5m2": "f8e5m2", "float16": "f16",
    "bfloat16": "bf16", "float32": "f32", "float64": "f64", "complex64": "c64",
}  # fmt: skip
"""The frameworks' element types -> HLO's; what has any other type is left to the framework."""
MOST_TAPS = 225
MOST_FILTERS = 16


def is_stencil(outputs: int, inputs: int, groups: int, taps: int) -> bool:
    """Whether a convolution is fused: one filter a channel, or up to MOST_FILTERS of them, or as many channels that one
    filter reads; each of at most MOST_TAPS pixels. With several of both it is worth a library's product of matrices."""
    own = outputs // groups
    return min(inputs, own) == 1 and max(inputs, own) <= MOST_FILTERS and 0 < taps <= MOST_TAPS >= inputs * taps // 2
