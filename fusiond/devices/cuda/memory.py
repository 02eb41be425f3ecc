"""A Program's buffers on the device and on the host, each allocation between two guard zones.

    | guard 4 KiB | buffer, or the buffers of an arena at their offsets | guard 4 KiB |

A guard begins at the very byte where the allocation's last buffer ends, so an overrun by one element is seen.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusiond.devices.base import Array, LaunchRefused
from fusiond.devices.cuda.driver import Driver
from fusiond.model.language.narrow import numpy_dtype
from fusiond.model.program import Memory, Program, Role, home_bytes, homes

GUARD_BYTES = 4096
GUARD_BYTE = 0xDB  #: Not 0, not all ones, not what poison consists of: what a stray kernel is unlikely to write
_PAGE = 4096
LEFT_TO_OTHERS = 1 / 16
"""Of the device's memory: a Program never takes the last of it, which a neighbour may be about to need."""

_ON_DEVICE = (Memory.DEVICE, Memory.MANAGED)  #: What takes room there: managed memory does when it is used there

Raw = NDArray[np.uint8]


class DeviceAllocation:
    """One allocation, or the variable of a module: `address` in bytes, and the host's view of it unless it is device
    memory. Managed memory is filled, compared and copied by the host."""

    def __init__(self, cuda: Any, memory: Memory, size_bytes: int, *, address: int | None = None) -> None:
        """Allocates with guard zones; with `address` it wraps a module's variable, which has none."""
        self._cuda = cuda
        self.size_bytes = size_bytes
        self.guarded = address is None
        self.array: Raw | None = None
        self._whole: Raw | None = None
        self._allocation: Any = None
        if address is not None:
            self.address = address
            return
        total = size_bytes + 2 * GUARD_BYTES
        if memory is Memory.DEVICE:
            self._allocation = cuda.mem_alloc(total)
            self.address = int(self._allocation) + GUARD_BYTES
            for start in (self.address - GUARD_BYTES, self.address + size_bytes):
                cuda.memset_d8(start, GUARD_BYTE, GUARD_BYTES)
            return
        if memory is Memory.PINNED:
            self._whole = cuda.pagelocked_empty(total, np.uint8)
        elif memory is Memory.MANAGED:
            self._whole = cuda.managed_empty(total, np.uint8, mem_flags=cuda.mem_attach_flags.GLOBAL)
        else:
            spare = np.empty(total + _PAGE, np.uint8)
            start = -spare.ctypes.data % _PAGE
            self._whole = spare[start : start + total]
        assert self._whole is not None
        self._whole[:GUARD_BYTES] = GUARD_BYTE
        self._whole[GUARD_BYTES + size_bytes :] = GUARD_BYTE
        self.array = self._whole[GUARD_BYTES : GUARD_BYTES + size_bytes]
        self.address = self._whole.ctypes.data + GUARD_BYTES

    def write(self, offset: int, data: Raw) -> None:
        if self.array is not None:
            self.array[offset : offset + data.size] = data
        else:
            self._cuda.memcpy_htod(self.address + offset, data)

    def read(self, offset: int, size_bytes: int) -> Raw:
        if self.array is not None:
            return self.array[offset : offset + size_bytes].copy()
        data = np.empty(size_bytes, np.uint8)
        self._cuda.memcpy_dtoh(data, self.address + offset)
        return data

    def broken(self) -> tuple[str, ...]:
        """`before`, `after`: where the guard zones were written to, with the distance of the nearest byte."""
        if not self.guarded:
            return ()
        if self._whole is not None:
            left, right = self._whole[:GUARD_BYTES], self._whole[-GUARD_BYTES:]
        else:
            left, right = np.empty(GUARD_BYTES, np.uint8), np.empty(GUARD_BYTES, np.uint8)
            self._cuda.memcpy_dtoh(left, self.address - GUARD_BYTES)
            self._cuda.memcpy_dtoh(right, self.address + self.size_bytes)
        found = []
        (before,) = np.nonzero(left != GUARD_BYTE)
        if before.size:
            found.append(f"{GUARD_BYTES - int(before[-1])} bytes before it")
        (after,) = np.nonzero(right != GUARD_BYTE)
        if after.size:
            found.append(f"{int(after[0])} bytes after its end")
        return tuple(found)

    def free(self) -> None:
        if self._allocation is not None:
            self._allocation.free()
        self._allocation = self._whole = self.array = None


class PooledBlock(DeviceAllocation):
    """Device memory from the driver's stream-ordered pool; freed in the order of `stream` (a handle)."""

    def __init__(self, cuda: Any, driver: Driver, size_bytes: int, stream: int) -> None:
        self._driver, self.stream = driver, stream
        self._base = driver.allocate(size_bytes + 2 * GUARD_BYTES, stream)
        super().__init__(cuda, Memory.DEVICE, size_bytes, address=self._base + GUARD_BYTES)
        self.guarded = True
        for start in (self._base, self.address + size_bytes):
            driver.fill(start, GUARD_BYTE, GUARD_BYTES, stream)

    def free(self) -> None:
        base, self._base = self._base, 0
        if base:
            self._driver.free(base, self.stream)


class ProgramMemory:
    """All buffers of one Program: `blocks` by arena, or by buffer where it has none of its own.

    `symbols` holds (address, size in bytes) of the buffers that are a module's variables."""

    def __init__(self, cuda: Any, program: Program, symbols: dict[str, tuple[int, int]]) -> None:
        self._cuda = cuda
        self._buffers = {each.name: each for each in program.buffers}
        self.blocks: dict[str, DeviceAllocation] = {}
        self._pristine: dict[str, Any] = {}
        try:
            for buffer in program.buffers:
                if buffer.symbol is not None:
                    address, size = symbols[buffer.name]
                    if size < buffer.size_bytes:
                        raise LaunchRefused(
                            f"buffer {buffer.name!r} has {buffer.size_bytes} bytes, {buffer.symbol} has {size}"
                        )
                    self.blocks[buffer.name] = DeviceAllocation(cuda, Memory.DEVICE, buffer.size_bytes, address=address)
            for home, members in homes(program).items():
                self.blocks[home] = DeviceAllocation(cuda, members[0].memory, home_bytes(members))
        except BaseException:
            self.free()
            raise

    def place(self, name: str) -> tuple[DeviceAllocation, int]:
        """The block of a buffer and its offset there."""
        buffer = self._buffers[name]
        if buffer.arena is not None and buffer.symbol is None:
            return self.blocks[buffer.arena], buffer.offset_bytes
        return self.blocks[name], 0

    def address(self, name: str) -> int:
        block, offset = self.place(name)
        return block.address + offset

    def device_address(self, name: str) -> int | None:
        """Where a buffer lies on the device; None where it is host memory."""
        block, offset = self.place(name)
        return None if block.array is not None else block.address + offset

    def span(self, names: Sequence[str]) -> tuple[DeviceAllocation, int, int]:
        """Allocation, offset and bytes of a run of neighbouring buffers, from the first's start to the last's end."""
        block, start = self.place(names[0])
        last, offset = self.place(names[-1])
        if last is not block or any(self.place(each)[0] is not block for each in names):
            raise LaunchRefused(f"buffers {', '.join(names)} do not lie in one arena")
        return block, start, offset + self._buffers[names[-1]].size_bytes - start

    def write(self, name: str, data: Array) -> None:
        buffer = self._buffers[name]
        wanted = numpy_dtype(buffer.dtype)
        if data.shape != (buffer.elements,) or data.dtype != wanted:
            raise ValueError(f"{name}: {data.dtype}{data.shape} is not {wanted}({buffer.elements},)")
        block, offset = self.place(name)
        block.write(offset, np.ascontiguousarray(data).view(np.uint8))

    def read(self, name: str) -> Array:
        buffer = self._buffers[name]
        block, offset = self.place(name)
        return block.read(offset, buffer.size_bytes).view(numpy_dtype(buffer.dtype))

    def snapshot(self, *, outputs: bool = False) -> None:
        """Copies of the inout buffers that are reset for each run, on the side where they live; of `outputs`, too."""
        for buffer in self._buffers.values():
            restored = buffer.role is Role.INOUT and buffer.reset == "each_run"
            if not restored and not (outputs and buffer.role is Role.OUTPUT and buffer.part_of is None):
                held = self._pristine.pop(buffer.name, None)
                if hasattr(held, "free"):
                    held.free()
                continue
            block, offset = self.place(buffer.name)
            if block.array is not None:
                self._pristine[buffer.name] = block.read(offset, buffer.size_bytes)
            else:
                copy = self._pristine.get(buffer.name) or self._cuda.mem_alloc(buffer.size_bytes)
                self._cuda.memcpy_dtod(int(copy), block.address + offset, buffer.size_bytes)
                self._pristine[buffer.name] = copy

    @property
    def restored_on_device(self) -> int | None:
        """How many copies `restore_on` enqueues; None where some buffers are the host's to restore."""
        held = [self.place(name)[0].array is None for name in self._pristine]
        return len(held) if all(held) else None

    def restore_on(self, stream: Any) -> None:
        """Enqueue what `restore` does; only where `restored_on_device` says how many copies that is."""
        for name, copy in self._pristine.items():
            block, offset = self.place(name)
            size = self._buffers[name].size_bytes
            self._cuda.memcpy_dtod_async(block.address + offset, int(copy), size, stream)

    def restore(self) -> None:
        for name, copy in self._pristine.items():
            block, offset = self.place(name)
            if block.array is not None:
                block.write(offset, copy)
            else:
                self._cuda.memcpy_dtod(block.address + offset, int(copy), self._buffers[name].size_bytes)

    def broken_guards(self) -> tuple[str, ...]:
        """One line for each allocation round which something was written."""
        return tuple(f"{name}: {each}" for name, block in self.blocks.items() for each in block.broken())

    def guard_zones(self) -> tuple[int, ...]:
        """The addresses of the guard zones on the device, each of GUARD_BYTES bytes."""
        blocks = [each for each in self.blocks.values() if each.guarded and each.array is None]
        return tuple(start for each in blocks for start in (each.address - GUARD_BYTES, each.address + each.size_bytes))

    def broken_host_guards(self) -> bool:
        """Whether a guard zone was written to in host memory."""
        return any(block.broken() for block in self.blocks.values() if block.array is not None)

    def free(self) -> None:
        for copy in self._pristine.values():
            if hasattr(copy, "free"):
                copy.free()
        self._pristine.clear()
        for block in self.blocks.values():
            block.free()
        self.blocks.clear()


def device_bytes(program: Program) -> int:
    """Bytes of device memory that a Program holds while it is measured: its buffers, the pristine copies of those that
    are reset for each run, the guard zones, and on top the most that the plan's own allocations hold at once: what
    they stand in for is kept. A module's variables themselves come with the module."""
    there = [each for each in program.buffers if each.symbol is not None or each.memory in _ON_DEVICE]
    sizes = [home_bytes(members) for members in homes(program).values() if members[0].memory in _ON_DEVICE]
    copies = sum(each.size_bytes for each in there if each.role is Role.INOUT and each.reset == "each_run")
    return sum(sizes) + 2 * GUARD_BYTES * len(sizes) + copies + _allocated_bytes(program)


def _allocated_bytes(program: Program) -> int:
    """The most that a Program's own allocations of device memory hold at once, in the order of its steps."""
    members = homes(program)
    held: dict[str, int] = {}
    most = 0
    for step in program.steps:
        if step.allocates is not None:
            own = members[step.allocates]
            if own[0].memory in _ON_DEVICE:
                held[step.allocates] = home_bytes(own) + 2 * GUARD_BYTES
        elif step.frees is not None:
            held.pop(step.frees, None)
        most = max(most, sum(held.values()))
    return most


def refuse_too_much(cuda: Any, program: Program) -> None:
    """Bound what a Program may take: ExecutionError before anything is allocated."""
    needed = device_bytes(program)
    free, total = cuda.mem_get_info()
    left = int(total * LEFT_TO_OTHERS)
    if needed > free - left:
        spared = f"{_gib(free)} GiB are free, and {_gib(left)} are left to others"
        raise LaunchRefused(f"it needs {_gib(needed)} GiB of device memory; {spared}")


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.3g}"
