"""Whether an output was computed in lower precision than the reference's, judged by its error against double precision.

The error of an array is ||output - truth|| / ||truth|| over the elements that are finite in both. That of a reference
in float32 is a few 1e-8 to 1e-6; a candidate may sum in another order, contract to fma and use fast intrinsics, and
must not multiply or add in half precision. What separates the two, measured with NumPy over sums of 64 to 2**20
elements, matrix products (K up to 4096), softmax, layer norm, GELU and axpy, of uniform and normal data:

    honest     at most 2.7e-5: 2**20 elements one after the other, where the reference sums as a tree (6e-8); nearly all
               others are below 6e-6 (online softmax 8e-7, `__expf` at arguments of -30: 6e-6, K = 4096: 1.1e-6)
    lowered    from 6e-5 (only the exponentials of a softmax in half), mostly 1.4e-4 to 8e-4 (float16, tf32), 1.6e-3 and
               more (bfloat16, sums in half)

So the limit lies between them, at 2**-15 = 3.1e-5, plus 8 times what the reference itself is wrong by, beyond the
rounding of the output's type, which costs everybody the same (float16: 2e-4); 2.5 times that is allowed, as cutting off
instead of rounding costs twice as much.

Where factors of one sign are summed up, their roundings cancel out: uniform data in tf32 cost 4e-5 at K = 64, and 5e-6
at K = 4096. So a candidate is compared as well with what inputs rounded to `ROUNDED` bits give in double precision: one
that is twice as near to that as to the truth, in 16 different outputs or more, has rounded them. Two independent errors
would have to be correlated by 0.87 for that.

Not seen: products in half that cancel out in the same way, and fewer than 16 such outputs. Refused, though there is no
half in it: a variance as the difference of two sums where the mean is beyond 10 standard deviations (up to 1e-2),
`tanh.approx` (1e-4), and a lone sum that nearly cancels out, of 2**20 elements one after the other (3e-4).
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fusiond.model.language.narrow import NARROW, numpy_dtype, readable
from fusiond.model.program import Buffer

Array = NDArray[np.generic]

ROUNDED: Mapping[str, int] = {"float16 or tf32": 11, "bfloat16": 8}
"""What inputs may have been rounded to -> the bits of its significand, with the leading one."""
EXACT = ":float64"  #: Ends the names of outputs in double precision
RUNS: Mapping[str, int] = {EXACT: 53, **{f"{EXACT}:{name}": bits for name, bits in ROUNDED.items()}}
"""How names end -> the bits of the significands of the inputs that they are of."""

_FACTOR = 8.0
_ROUNDINGS = 2.5
_LEAST = 2.0**-15
_LEAST_DOUBLE = 2.0**-43
"""Of what is computed in double precision: as many of its roundings as `_LEAST` is of float32's."""
_DOUBLE = 2.0**-40  #: Below this error, something was computed in double precision
_OUTPUTS = 16


def rounded(values: Array, dtype: str) -> Array:
    """Values as an output of this type holds them (bits, for those of NARROW), rounded once."""
    if dtype in NARROW:
        return NARROW[dtype].bits(values.astype(np.float64))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return values.astype(numpy_dtype(dtype))


def narrowed(values: Array, bits: int) -> Array:
    """Values rounded to significands of so many bits, as float64."""
    fraction, exponent = np.frexp(values.astype(np.float64))
    found: NDArray[np.float64] = np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits)
    return found


def own_error(truth: Array, outputs: Array) -> float:
    """||outputs - truth|| / ||truth|| over the elements that are finite in both; both of shape (elements,), and of
    numbers, not of bits. Where the truth is 0, it is 0 or infinite."""
    known, found = truth.astype(np.float64), outputs.astype(np.float64)
    finite = np.isfinite(known) & np.isfinite(found)
    known, found = known[finite], found[finite]
    scale = float(np.abs(known).max(initial=0.0))
    if scale == 0.0:
        return math.inf if found.any() else 0.0
    with np.errstate(over="ignore", under="ignore"):
        return float(np.linalg.norm(found / scale - known / scale) / np.linalg.norm(known / scale))


def precision_problem(
    buffer: Buffer, truth: Array, reference: Array, candidate: Array, of_rounded: Mapping[str, Array] | None = None
) -> str:
    """Empty, or one line that says by how much a candidate's output is worse than the reference's own.

    `truth` is float64; `reference` and `candidate` are as the buffer is declared; all of shape (elements,).
    `of_rounded`: the truth of inputs that were rounded, by the names in `ROUNDED`."""
    values = readable(candidate, buffer.dtype)
    rounding = own_error(truth, readable(rounded(truth, buffer.dtype), buffer.dtype))
    own = own_error(truth, readable(reference, buffer.dtype))
    found = own_error(truth, values)
    least = _LEAST_DOUBLE if buffer.dtype == "float64" and own < _DOUBLE else _LEAST
    said = f"{buffer.name}: relative error {_shown(found)}, the reference's own is {_shown(own)}: "
    if found > _FACTOR * max(0.0, own - rounding) + _ROUNDINGS * rounding + least:
        return said + "computed in lower precision"
    for name, other in (of_rounded or {}).items():
        if own_error(other, values) < found / 2 and found > 2 * own and np.unique(truth).size >= _OUTPUTS:
            return said + f"computed with inputs in {name}"
    return ""


def judged(path: str, buffer: Buffer, reference: Array, candidate: Array) -> str:
    """`precision_problem` by what `fusiond.tuning.judging.truth` has written; empty where it has nothing of this
    output."""
    with np.load(path, allow_pickle=False) as file:
        found = {suffix: file[buffer.name + suffix] for suffix in RUNS if buffer.name + suffix in file}
    if EXACT not in found:
        return ""
    of_rounded = {name: found[f"{EXACT}:{name}"] for name in ROUNDED if f"{EXACT}:{name}" in found}
    return precision_problem(buffer, found[EXACT], reference, candidate, of_rounded)


def _shown(error: float) -> str:
    return f"{error:.1e}".replace("e-0", "e-")
