"""Maps an address to memory: to an allocation, or to the part of one that an allocator handed out."""

import bisect
import collections
from dataclasses import dataclass

from fusiond.cuda.capture.trace import CapturedPlace, CapturedTrace

POOL_BYTES, POOL_ALIGNMENT, POOL_PARTS = 2**21, 512, 4
"""An allocation this large, of which a run uses so many addresses at such multiples, is taken for a pool (PyTorch's and
CuPy's hand out multiples of 512 bytes); each of these addresses then begins a region."""


@dataclass(frozen=True, slots=True)
class MemoryRegion:
    allocation: int
    low: int
    high: int  #: Bytes from the beginning of the allocation


class Regions:
    """Of a trace."""

    def __init__(self, trace: CapturedTrace) -> None:
        starts: dict[int, set[int]] = collections.defaultdict(set)
        for launch in trace.launches:
            for argument in launch.arguments:
                for _, place in argument.places:
                    if place.allocation.size_bytes >= POOL_BYTES and place.offset % POOL_ALIGNMENT == 0:
                        starts[place.allocation.number].add(place.offset)
        self._pools = {number: sorted({0, *each}) for number, each in starts.items() if len(each) >= POOL_PARTS}

    def of(self, place: CapturedPlace) -> MemoryRegion:
        starts = self._pools.get(place.allocation.number, [0])
        at = bisect.bisect_right(starts, place.offset)
        high = starts[at] if at < len(starts) else place.allocation.size_bytes
        return MemoryRegion(place.allocation.number, starts[at - 1], high)
