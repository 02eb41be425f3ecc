"""How the element types stand in generated code, alike on both sides and without CUDA's headers.

stored      what a pointer points to: floats of 16 and 8 bits are whole numbers there, of their bits
computed    what a formula computes in: floats of 16 bits are computed in float, and rounded once, to even
made        a value from a hash: floats of 16 and 8 bits lie in [0.5, 1), so that a wrong one is far off
"""

from collections.abc import Mapping

from fusiond.model.language.dtypes import DTYPES

_BITS: Mapping[str, tuple[str, int, int]] = {
    "float16": ("unsigned short", 0x3800, 0x3FF),
    "bfloat16": ("unsigned short", 0x3F00, 0x7F),
    "float8_e4m3fn": ("unsigned char", 0x30, 0x7),
    "float8_e5m2": ("unsigned char", 0x38, 0x3),
}
"""A float that is stored as bits -> their type, the bits of 0.5, and those of its fraction."""
IN_FLOAT = ("float16", "bfloat16")  #: What formulas compute in float: CONVERSIONS have from_float16, to_float16 ...


def stored(dtype: str) -> str:
    """The C++ type of an element in memory."""
    return _BITS[dtype][0] if dtype in _BITS else DTYPES[dtype].cuda


def computed(dtype: str) -> str:
    """The C++ type that a formula for such an output computes in."""
    return "float" if dtype in IN_FLOAT else DTYPES[dtype].cuda


def made(dtype: str, hashed: str) -> str:
    """The text of an element that is made of a hash, an `unsigned`."""
    if dtype in _BITS:
        ctype, half, fraction = _BITS[dtype]
        return f"({ctype})({half:#x}u | ({hashed} & {fraction:#x}u))"
    if dtype == "bool":
        return f"({hashed} >> 31) != 0u"
    return f"Made<{DTYPES[dtype].cuda}>::of({hashed})"


CONVERSIONS = """
{prefix} unsigned bits_of(float value) {{ {float_bits} }}
{prefix} float float_of(unsigned bits) {{ {bits_float} }}
{prefix} float from_bfloat16(unsigned short bits) {{ return float_of(unsigned(bits) << 16); }}
{prefix} unsigned short to_bfloat16(float value) {{
    unsigned bits = bits_of(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (unsigned short)((bits >> 16) | 0x40u);  // NaN stays NaN
    return (unsigned short)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}}
{prefix} float from_float16(unsigned short half) {{
    unsigned sign = (half & 0x8000u) << 16, exponent = (half >> 10) & 31u, fraction = half & 0x3FFu;
    if (exponent == 31u) return float_of(sign | 0x7F800000u | (fraction << 13));
    if (exponent != 0u) return float_of(sign | ((exponent + 112u) << 23) | (fraction << 13));
    float small = float(fraction) / 16777216.0f;
    return sign != 0u ? -small : small;
}}
{prefix} unsigned short to_float16(float value) {{
    unsigned bits = bits_of(value), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7FFFFFFFu;
    if (rest > 0x7F800000u) return (unsigned short)(sign | 0x7E00u);
    if (rest >= 0x47800000u) return (unsigned short)(sign | 0x7C00u);
    if (rest < 0x38800000u) {{  // beside 0.5 a float has the spacing of the smallest halves
        return (unsigned short)(sign | (bits_of(float_of(rest) + 0.5f) - 0x3F000000u));
    }}
    return (unsigned short)(sign | ((rest + 0xFFFu + ((rest >> 13) & 1u) - 0x38000000u) >> 13));
}}
"""
