"""What buffers hold: data drawn from a run's seed and the buffer's name, and the poison for what must be written."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
from numpy.typing import NDArray

from fusiond import faults
from fusiond.dtypes import BFLOAT16, bfloat16_bits, bfloat16_values, is_float, numpy_dtype
from fusiond.errors import RequestError
from fusiond.program import Buffer, Role

Array = NDArray[np.generic]

POISONS = 2
"""Two kinds, told apart everywhere: floats are NaN or 1.3e36 (a maximum swallows the one and not the other), whole
numbers two odd patterns, truth values True or False."""
_FLOAT_BYTES = (0xFF, 0x7B)
_OTHER_BYTES = (0xA5, 0x5A)


def fill(buffer: Buffer, seed: int) -> Array:
    """The contents of a buffer at the start of a run: shape (elements,), dtype as declared.

    Equal for equal (name, fill, dtype, elements, seed), so that a reference and a candidate see the same data. Raises
    RequestError when a file does not fit the buffer.
    """
    if buffer.dtype == BFLOAT16 and buffer.fill.kind not in ("zeros", "file"):
        return _bfloat16(buffer, seed)
    dtype = numpy_dtype(buffer.dtype)
    spec = buffer.fill
    if spec.kind == "zeros":
        return np.zeros(buffer.elements, dtype)
    if spec.kind == "constant":
        return np.full(buffer.elements, spec.low).astype(dtype)
    if spec.kind == "iota":
        return np.arange(buffer.elements, dtype=np.int64).astype(dtype)
    if spec.kind == "file":
        return _from_file(buffer, dtype)
    return _drawn(buffer, dtype, _generator(buffer.name, seed))


def poison(buffer: Buffer, kind: int = 0) -> Array:
    """Poison of the buffer's size: shape (elements,). What nobody wrote is never right under both kinds."""
    if buffer.dtype == "bool":
        return np.full(buffer.elements, kind % POISONS == 0)
    byte = (_FLOAT_BYTES if is_float(buffer.dtype) else _OTHER_BYTES)[kind % POISONS]
    return np.full(buffer.size_bytes, byte, np.uint8).view(numpy_dtype(buffer.dtype))


def initial(buffer: Buffer, seed: int, *, kind: int | None = None) -> Array:
    """What a buffer holds before a run: its fill where the program reads it, else poison (of a kind drawn from the
    seed, unless one is named)."""
    read = buffer.role in (Role.INPUT, Role.INOUT)
    return fill(buffer, seed) if read else poison(buffer, seed if kind is None else kind)


def _drawn(buffer: Buffer, dtype: np.dtype[np.generic], generator: np.random.Generator) -> Array:
    spec = buffer.fill
    if spec.kind == "integers":
        low, high = int(spec.low), int(spec.high)
        return generator.integers(low, high, size=buffer.elements, endpoint=True).astype(dtype)
    # float32 is drawn as such: half the time of drawing doubles.
    draw_type = np.float32 if dtype == np.float32 else np.float64
    if spec.kind == "uniform":
        unit = generator.random(buffer.elements, dtype=draw_type)
        values = (unit * draw_type(spec.high - spec.low) + draw_type(spec.low)).astype(dtype)
        return _below(values, spec.low, spec.high) if spec.low < spec.high else values
    if spec.kind == "normal":
        normal = generator.standard_normal(buffer.elements, dtype=draw_type)
        return (normal * draw_type(spec.high) + draw_type(spec.low)).astype(dtype)
    raise RequestError(f"unknown fill {spec.kind!r}", where=buffer.name)


def _bfloat16(buffer: Buffer, seed: int) -> Array:
    """Drawn as float64, and rounded once."""
    bits = bfloat16_bits(fill(dataclasses.replace(buffer, dtype="float64"), seed))
    spec = buffer.fill
    if spec.kind != "uniform" or not spec.low < spec.high:
        return bits
    # Rounding may arrive at `high`, which is not part of the range: the next one below it, unless that is below `low`.
    values = bfloat16_values(bits)
    beyond = values >= spec.high
    down = np.where(bits == 0, 0x8001, np.where(bits >> 15, bits + 1, bits - 1)).astype(np.uint16)
    return np.where(beyond & (bfloat16_values(down) >= spec.low), down, bits)


def _below(values: Array, low: float, high: float) -> Array:
    """Rounding to a narrower type, or adding `low`, may arrive at `high` itself, which is not part of the range."""
    if not np.issubdtype(values.dtype, np.floating):
        return values
    least, most = values.dtype.type(low), values.dtype.type(high)
    clipped: Array = np.minimum(values, np.maximum(np.nextafter(most, least), least))
    return clipped


def _generator(name: str, seed: int) -> np.random.Generator:
    """SFC64, NumPy's fastest, keyed by the buffer's name: two buffers of one program differ."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.SFC64(int.from_bytes(digest, "big")))


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
