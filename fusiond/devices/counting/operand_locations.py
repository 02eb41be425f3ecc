"""Where a kernel's operands lie: registers in each block's file, constants in a shared pool."""

import numpy as np
from numpy.typing import NDArray

from fusiond.devices.counting import layout
from fusiond.devices.counting.layout import REGISTER_BYTES
from fusiond.model.ptx.flat import PtxKernel
from fusiond.model.ptx.operands import PtxName
from fusiond.model.ptx.tree import SIZES

LANES = 32


class Places:
    """A place is an offset in bytes: of a register from 0 on, of a constant its complement."""

    def __init__(self, kernel: PtxKernel) -> None:
        self._types = kernel.registers
        self._end = 0
        self._pool = bytearray()
        self._pooled: dict[tuple[int, bool], int] = {}
        self._fresh = 0
        self.of: dict[str, int] = {name: self.room(SIZES[type_]) for name, type_ in kernel.registers.items()}
        """Register -> its place."""

    def room(self, size: int) -> int:
        """A new register of so many bytes a lane (0: a predicate)."""
        place = self._end
        self._end += REGISTER_BYTES[size]
        return place

    def temporary(self, size: int) -> int:
        """A register that the kernel does not name."""
        return self.of[self.named_temporary(size).name]

    def named_temporary(self, size: int) -> PtxName:
        """The same as an operand."""
        self._fresh += 1
        name = f".t{self._fresh}"
        self.of[name] = self.room(size)
        return PtxName(name)

    def constant(self, bits: int, wide: bool = False) -> int:
        """A number of 4 bytes, or 8: the same for every lane."""
        bits &= 2**64 - 1 if wide else 2**32 - 1
        if (bits, wide) not in self._pooled:
            self._pooled[bits, wide] = len(self._pool)
            self._pool += bits.to_bytes(8 if wide else 4, "little") * LANES
            self._pool += bytes(-len(self._pool) % 64)
        return ~self._pooled[bits, wide]

    def words(self, data: bytes) -> int:
        """Bytes that are the same for a warp: a list that an operation reads itself."""
        place = len(self._pool)
        self._pool += data + bytes(-len(data) % 64)
        return ~place

    def size(self, name: PtxName) -> int | None:
        """Bytes of a register of the kernel; None for anything else."""
        type_ = self._types.get(name.name)
        return None if type_ is None else SIZES[type_]

    @property
    def register_bytes(self) -> int:
        """Of all registers of a warp, with room to read past the last."""
        return -(-(self._end + 512) // 256) * 256

    def constants(self) -> NDArray[np.uint8]:
        """The pool, aligned for vector loads."""
        pool = np.frombuffer(bytes(self._pool) + bytes(512), np.uint8)
        found = layout.aligned(pool.size)
        found[:] = pool
        return found
