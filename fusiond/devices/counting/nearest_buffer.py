"""Names the buffer that an out-of-bounds address was probably meant for."""

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

_OUTSIDE = re.compile(r"at (0x[0-9a-f]+) is outside of every buffer")
_NEAR_BYTES = 1 << 20  #: Nearer to a buffer than this, an address was meant for it


def named(text: str, buffers: Mapping[str, NDArray[np.uint8]]) -> str:
    """What a launch broke of, its address as the place that it has beside the nearest buffer."""
    return _OUTSIDE.sub(lambda match: _near(match, buffers), text)


def _near(match: re.Match[str], buffers: Mapping[str, NDArray[np.uint8]]) -> str:
    address = int(match[1], 16)
    found = match[0]
    nearest = _NEAR_BYTES
    for name, data in buffers.items():
        begin = int(data.ctypes.data)
        for distance, where in ((begin - address, "before"), (address - begin - data.nbytes, "behind the end of")):
            if 0 <= distance < nearest:
                nearest = distance
                found = f"is outside of every buffer, {distance} bytes {where} {name}"
    return found
