"""The contents of buffers: drawn from a run's seed and the buffer's name, or poison for outputs.

The generator is counter-based (Philox4x64-10, as in Random123 and NumPy): element i depends on (name, seed, i) alone,
so that a device draws the same bits as the host, in any order. A drawn value is `low + scale * x` in double precision,
where x is a whole number made of the element's bits by integer operations only; it is rounded to the buffer's type
once. `Recipe` holds what decides every bit; fusiond/devices/cuda/data.cu is the same in CUDA.
"""

import functools
import hashlib
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusiond.model.errors import RequestError
from fusiond.model.language.dtypes import is_float
from fusiond.model.language.narrow import NARROW, numpy_dtype
from fusiond.model.program import Buffer, Role
from fusiond.model.system import faults

Array = NDArray[np.generic]

POISONS = 2
"""Two kinds, told apart everywhere: floats are NaN or 1.3e36 (a maximum swallows the one and not the other), whole
numbers two odd patterns, truth values True or False."""
_FLOAT_BYTES = (0xFF, 0x7B)
_OTHER_BYTES = (0xA5, 0x5A)

DRAWN = ("uniform", "normal", "integers")
_CHUNK_WORDS = 1 << 13
"""Words (64 bits) that are drawn and converted together: they stay in the cache. A multiple of a Philox block's 4."""
QUANTILE_BITS = 24  #: Quantiles of the normal distribution are whole multiples of 2**-24
_SEGMENT_BITS = 6
"""Each octave of the tail's probability has 64 segments, in which the quantile is interpolated linearly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All that decides the bits of a drawn buffer, beside its type and length.

    Element i has its own word: 64 bits of the Philox stream where `wide`, else 32 (of each 64-bit word the lower half
    comes first). Of a word w, `integers` makes `first + (w * span >> word bits)`, modulo 2**64 (a span of 0 stands for
    2**64); `uniform` makes `low + scale * w` (wide: of w's upper 53 bits), at most `top`; `normal` makes
    `low + scale * z`, with z the quantile of w in units of 2**-24."""

    kind: str
    key: tuple[int, int]
    wide: bool
    low: float = 0.0
    scale: float = 0.0
    top: float = float("inf")
    first: int = 0
    span: int = 0


def fill(buffer: Buffer, seed: int) -> Array:
    """The contents of a buffer at the start of a run: shape (elements,), dtype as declared.

    Equal for equal (name, fill, dtype, elements, seed), so that a reference and a candidate see the same data. Raises
    RequestError when a file does not fit the buffer."""
    dtype = numpy_dtype(buffer.dtype)
    spec = buffer.fill
    if spec.kind == "zeros":
        return np.zeros(buffer.elements, dtype)
    if spec.kind == "constant":
        whole = not is_float(buffer.dtype) and buffer.dtype != "bool"
        value = np.array([int(spec.low) if whole else spec.low])
        return np.full(buffer.elements, _typed(value, buffer.dtype)[0])
    if spec.kind == "iota":
        return _typed(np.arange(buffer.elements, dtype=np.int64), buffer.dtype)
    if spec.kind == "file":
        return _from_file(buffer, dtype)
    return _drawn(buffer, recipe(buffer, seed))


def recipe(buffer: Buffer, seed: int) -> Recipe:
    """How a buffer with one of the `DRAWN` fills is drawn. RequestError where the fill is unknown."""
    spec = buffer.fill
    digest = hashlib.blake2b(f"{seed}:{buffer.name}".encode(), digest_size=16).digest()
    key = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
    if spec.kind == "integers":
        first, last = int(spec.low), int(spec.high)
        span = last - first + 1
        # Of every value the same number of words, but for one in 65536.
        wide = span > 1 << 16 and not (span <= 1 << 32 and span.bit_count() == 1)
        return Recipe(kind=spec.kind, key=key, wide=wide, first=first % 2**64, span=span % 2**64)
    low, high = float(spec.low), float(spec.high)
    if spec.kind == "uniform":
        wide = buffer.dtype == "float64"
        scale = (high - low) * 2.0 ** (-53 if wide else -32)
        return Recipe(kind=spec.kind, key=key, wide=wide, low=low, scale=scale, top=_top(buffer.dtype, low, high))
    if spec.kind == "normal":
        return Recipe(kind=spec.kind, key=key, wide=False, low=low, scale=high * 2.0**-QUANTILE_BITS)
    raise RequestError(f"unknown fill {spec.kind!r}", where=buffer.name)


@functools.cache
def quantiles() -> NDArray[np.int32]:
    """The table behind `normal`: z at the lower end of each segment, in units of 2**-24, shape (1665,).

    A word's lower 31 bits are p: |z| is exceeded with probability p / 2**31. Segment `64 * shift + (p >> shift)` holds
    the p with 7 significant bits before the last `shift`; below 128 every p is a segment. The first knot stands where
    the middle of its segment is right: at p = 0 itself, z is infinite."""
    normal = statistics.NormalDist()
    segments = 1 << _SEGMENT_BITS
    most = 31 - 1 - _SEGMENT_BITS
    ends = list(range(1, 2 * segments))
    ends += [(segments + each) << shift for shift in range(1, most + 1) for each in range(segments)]
    ends.append(1 << 31)
    z = [-normal.inv_cdf(end / 2**32) if end < 1 << 31 else 0.0 for end in ends]
    z.insert(0, -2 * normal.inv_cdf(0.5 / 2**32) - z[0])
    table = np.array([round(each * 2**QUANTILE_BITS) for each in z], np.int32)
    table.flags.writeable = False
    return table


def poison(buffer: Buffer, kind: int = 0) -> Array:
    """Poison of the buffer's size: shape (elements,). What nobody wrote is never right under both kinds."""
    data = np.full(buffer.size_bytes, poison_byte(buffer.dtype, kind), np.uint8)
    return data.view(numpy_dtype(buffer.dtype))


def poison_byte(dtype: str, kind: int) -> int:
    """What every byte of a poisoned buffer is."""
    if dtype == "bool":
        return 1 - kind % POISONS
    return (_FLOAT_BYTES if is_float(dtype) else _OTHER_BYTES)[kind % POISONS]


def initial(buffer: Buffer, seed: int, *, kind: int | None = None) -> Array:
    """What a buffer holds before a run: its fill where the program reads it, else poison (of a kind drawn from the
    seed, unless one is named)."""
    return fill(buffer, seed) if is_read(buffer) else poison(buffer, seed if kind is None else kind)


def is_read(buffer: Buffer) -> bool:
    """Whether a Program reads what the buffer held before."""
    return buffer.role in (Role.INPUT, Role.INOUT)


def _drawn(buffer: Buffer, how: Recipe) -> Array:
    data = np.empty(buffer.elements, numpy_dtype(buffer.dtype))
    # NumPy's counter is increased before it is used.
    generator = np.random.Philox(key=np.array(how.key, np.uint64), counter=2**256 - 1)
    chunk = _CHUNK_WORDS if how.wide else 2 * _CHUNK_WORDS
    for start in range(0, buffer.elements, chunk):
        words = generator.random_raw(_CHUNK_WORDS)
        if not how.wide:
            words = words.view(np.uint32)
        data[start : start + chunk] = _typed(_values(how, words[: buffer.elements - start], buffer), buffer.dtype)
    return data


def _values(how: Recipe, words: NDArray[Any], buffer: Buffer) -> Array:
    """The values of words before they are rounded to the buffer's type: int64, uint64 or float64."""
    if how.kind == "integers":
        found = _scaled(words.astype(np.uint64), how.span, how.wide) + np.uint64(how.first)
        return found if buffer.dtype == "uint64" else found.view(np.int64)
    if how.kind == "normal":
        whole: NDArray[Any] = _quantile(words)
    else:
        whole = words >> np.uint64(11) if how.wide else words
    values: NDArray[np.float64] = whole * np.float64(how.scale) + how.low
    return np.minimum(values, how.top, out=values)


def _scaled(words: NDArray[Any], span: int, wide: bool) -> NDArray[Any]:
    """`words * span >> bits of a word`."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    if not wide:
        return words * np.uint64(span) >> half if span else words
    if not span:
        return words
    upper, lower = np.uint64(span >> 32), np.uint64(span & 0xFFFFFFFF)
    word_upper, word_lower = words >> half, words & low
    if not upper:
        return word_upper * lower + (word_lower * lower >> half) >> half
    middle = word_upper * lower + (word_lower * lower >> half)
    other = word_lower * upper + (middle & low)
    found: NDArray[np.uint64] = word_upper * upper + (middle >> half) + (other >> half)
    return found


def _quantile(words: NDArray[Any]) -> NDArray[np.int64]:
    p = (words & np.uint32(0x7FFFFFFF)).astype(np.int64)
    exponent = (p.astype(np.float64).view(np.int64) >> 52) - 1023
    shift = np.maximum(exponent - _SEGMENT_BITS, 0)
    place = (shift << _SEGMENT_BITS) + (p >> shift)
    knots = quantiles()
    here = knots[place].astype(np.int64)
    inside = p & ((np.int64(1) << shift) - 1)
    z = here + ((knots[place + 1] - here) * (2 * inside + 1) >> shift + 1)
    signed: NDArray[np.int64] = np.where(words >> np.uint32(31), -z, z)
    return signed


def _typed(values: Array, dtype: str) -> Array:
    """Values in a buffer's type, rounded once."""
    if dtype in NARROW:
        return NARROW[dtype].bits(values)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if is_float(dtype) or dtype == "bool" or not np.issubdtype(values.dtype, np.floating):
            return values.astype(numpy_dtype(dtype))
        return values.astype(np.int64).astype(numpy_dtype(dtype))


def _top(dtype: str, low: float, high: float) -> float:
    """The largest value of a half-open range in a type: rounding may arrive at `high`, which is not part of it."""
    if not (is_float(dtype) and low < high):
        return float("inf")
    if dtype in NARROW:
        narrow = NARROW[dtype]
        (least, most) = narrow.bits(np.array([low, high]))
        sign = 1 << (8 * narrow.held.itemsize - 1)
        below = sign + 1 if most in (0, sign) else most + 1 if most & sign else most - 1
        return float(narrow.values(np.array([least, below], narrow.held)).max())
    with np.errstate(over="ignore", under="ignore"):
        least, most = np.array([low, high]).astype(numpy_dtype(dtype))
        return float(np.maximum(np.nextafter(most, least), least))


def _from_file(buffer: Buffer, dtype: np.dtype[np.generic]) -> Array:
    path = buffer.fill.file or ""
    try:
        data = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as problem:
        if isinstance(problem, OSError) and (fault := faults.of_system(problem, path)):
            raise fault from None
        raise RequestError(f"cannot read {path}: {problem}", where=buffer.name) from None
    if data.dtype != dtype or data.size < buffer.elements:
        raise RequestError(
            f"{path} holds {data.size} x {data.dtype}; {buffer.elements} x {dtype} are wanted", where=buffer.name
        )
    return np.ascontiguousarray(data).reshape(-1)[: buffer.elements]  # at odd sizes a part of the file is enough
