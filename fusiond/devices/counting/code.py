"""The code that the library runs: one row per operation."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusiond.devices.counting.layout import PtxLayout
from fusiond.model.ptx.flat import PtxInstruction

CODE = np.dtype(
    [
        ("operation", "i4"), ("kind", "u1"), ("negated", "u1"), ("unused", "u1"), ("counted", "u1"),
        ("space", "u1"), ("bytes", "u1"), ("elements", "u1"), ("flags", "u1"), ("guard", "i4"),
        ("d", "i4"), ("a", "i4"), ("b", "i4"), ("c", "i4"), ("e", "i4"), ("target", "i4"), ("reconverge", "i4"),
        ("immediate", "i8"), ("vector", "i4", 8),
    ],
    align=True,
)  # fmt: skip
PLAIN, BRANCH, EXIT, BARRIER = range(4)  #: Kinds of a row


@dataclass(frozen=True, slots=True)
class PtxCode:
    """A kernel that can be run."""

    instructions: NDArray[np.void]
    sources: tuple[PtxInstruction, ...]  #: Of each of them, the instruction that it came from
    register_bytes: int
    constants: NDArray[np.uint8]
    specials: NDArray[np.int32]  #: (offset of a register, which special value is put there), shape (n, 2)
    layout: PtxLayout
