"""Host memory for the buffers of a Program, with guard zones round everything that is not a buffer.

    [ guard zone | arena: buffer, gap, buffer ... | guard zone ]

Guard zones and gaps hold a pattern; a write that misses its buffer by less than a zone is seen afterwards, one that
misses by more meets a mapping of somebody else's or none at all (and kills the child).
"""

import mmap
import random
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fusiond.model.language.narrow import numpy_dtype
from fusiond.model.program import Buffer

GUARD_BYTES = 64 * 1024
ALIGNMENT_BYTES = 256
"""As the driver aligns what it allocates, and no more: an allocation begins anywhere else each time."""
_PLACES = 16
_PATTERN = 0xC3
_FREED = 0xDD


class HostAllocation:
    """One allocation: a buffer of its own, or an arena of several."""

    def __init__(self, name: str, buffers: Sequence[Buffer]) -> None:
        self.name = name
        self.live = True
        wholes = (each for each in buffers if each.part_of is None)
        self._buffers = sorted(wholes, key=lambda each: each.offset_bytes)
        size = max(each.offset_bytes + each.size_bytes for each in buffers)
        self._first = GUARD_BYTES + ALIGNMENT_BYTES * random.randrange(_PLACES)
        total = 2 * GUARD_BYTES + ALIGNMENT_BYTES * _PLACES + size
        try:
            mapping = mmap.mmap(-1, total)
        except (OSError, OverflowError) as problem:
            raise MemoryError(f"{name}: {total} bytes: {problem}") from None
        self._bytes: NDArray[np.uint8] = np.frombuffer(mapping, np.uint8)
        self.inside = self._bytes[self._first : self._first + size]  #: All of it but the guard zones at both ends
        self.views: dict[str, NDArray[np.generic]] = {
            each.name: self.inside[each.offset_bytes :][: each.size_bytes].view(numpy_dtype(each.dtype))
            for each in buffers
        }
        for gap, _ in self._gaps():
            gap[:] = _PATTERN

    def broken(self) -> Iterator[str]:
        """A line for each zone that somebody wrote to; the zone is mended."""
        for gap, where in self._gaps():
            wrong = gap != _PATTERN
            if wrong.any():
                yield f"{int(np.count_nonzero(wrong))} bytes written {where}"
                gap[:] = _PATTERN

    def release(self) -> None:
        """Free: what is read from here on is a pattern, and `live` says that nobody should."""
        self.live = False
        for view in self.views.values():
            view.view(np.uint8)[:] = _FREED

    def _gaps(self) -> Iterator[tuple[NDArray[np.uint8], str]]:
        end = 0
        before = ""
        for buffer in self._buffers:
            start = self._first + buffer.offset_bytes
            where = f"before {buffer.name}" if not before else f"between {before} and {buffer.name}"
            if start > end:
                yield self._bytes[end:start], where
            end = start + buffer.size_bytes
            before = buffer.name
        yield self._bytes[end:], f"behind {before}"
