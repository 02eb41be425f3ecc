"""Data on a GPU: drawn, kept and compared there. A checked run moves a few bytes per buffer; whole buffers cross the
bus only for files, for references of another process, and for host memory."""

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusiond.devices import compare as comparing
from fusiond.devices.base import Array, Loaded
from fusiond.devices.compare import Comparison
from fusiond.devices.cuda.failures import named
from fusiond.devices.cuda.kernels import Kernels
from fusiond.devices.cuda.loaded import CudaProgram
from fusiond.devices.cuda.memory import LEFT_TO_OTHERS
from fusiond.devices.data import HostData, content
from fusiond.model.inputs.fills import DRAWN, fill, is_read, poison_byte
from fusiond.model.language.narrow import numpy_dtype
from fusiond.model.program import EQUAL, Buffer

KEPT_SHARE = 0.25
"""Of the memory that is free beside what is kept. A Program that needs it gets all of it (`make_room`)."""


@dataclass(frozen=True, slots=True)
class DeviceCopy:
    """A copy on the device."""

    allocation: Any
    size_bytes: int
    dtype: np.dtype[np.generic]

    @property
    def address(self) -> int:
        return int(self.allocation)


class DeviceData:
    """`fusiond.devices.base.DataPlane` for one GPU. Buffers in host memory are left to the host's."""

    def __init__(self, cuda: Any, multiprocessors: int) -> None:
        self._cuda = cuda
        self._kernels = Kernels(cuda, multiprocessors)
        self._host = HostData()
        self._kept: OrderedDict[Hashable, DeviceCopy] = OrderedDict()

    def fill(self, loaded: Loaded, buffer: Buffer, seed: int, *, kind: int | None = None) -> None:
        if buffer.part_of is not None:
            return None
        address = _address(loaded, buffer)
        if address is None:
            return self._host.fill(loaded, buffer, seed, kind=kind)
        with named(f"filling {buffer.name!r}"):
            if not is_read(buffer) or buffer.fill.kind == "zeros":
                byte = 0 if is_read(buffer) else poison_byte(buffer.dtype, seed if kind is None else kind)
                self._cuda.memset_d8(address, byte, buffer.size_bytes)
                return None
            key = content(buffer, seed)
            kept = self._used(key)
            if kept is not None:
                self._cuda.memcpy_dtod(address, kept.address, kept.size_bytes)
            elif buffer.fill.kind == "file":
                loaded.write(buffer.name, fill(buffer, seed))
                self._keep(key, address, buffer)
            else:
                self._kernels.draw(address, buffer, seed)
                if buffer.fill.kind in DRAWN:
                    self._keep(key, address, buffer)

    def intact(self, loaded: Loaded, buffer: Buffer, seed: int) -> bool:
        address = _address(loaded, buffer)
        if address is None:
            return self._host.intact(loaded, buffer, seed)
        with named(f"looking at {buffer.name!r}"):
            kept = self._used(content(buffer, seed))
            if kept is not None:
                return self._same_bytes(kept.address, address, buffer.size_bytes)
            if buffer.fill.kind == "file":
                return self._host.intact(loaded, buffer, seed)
            return self._kernels.drawn(address, buffer, seed)

    def broken_guards(self, loaded: Loaded) -> tuple[str, ...]:
        assert isinstance(loaded, CudaProgram)
        with named("looking at the guard zones"):
            if not self._kernels.broken_guards(loaded.memory.guard_zones()) and not loaded.memory.broken_host_guards():
                return ()
        return loaded.broken_guards()

    def keep(self, loaded: Loaded, buffer: Buffer, reference: str) -> Array:
        address = _address(loaded, buffer)
        if address is None:
            return self._host.keep(loaded, buffer, reference)
        with named(f"keeping {buffer.name!r}"):
            self._keep((reference, buffer.name), address, buffer)
        return loaded.read(buffer.name)

    def compare(self, loaded: Loaded, buffer: Buffer, reference: str, stored: Callable[[], Array]) -> Comparison:
        address = _address(loaded, buffer)
        if address is None:
            return self._host.compare(loaded, buffer, reference, stored)
        key = reference, buffer.name
        with named(f"comparing {buffer.name!r}"):
            kept = self._used(key) or self._upload(key, stored(), buffer)
            if kept is None:  # of another shape, or too large to be kept
                return comparing.compare(buffer, stored(), loaded.read(buffer.name))
            count, first, worst = self._kernels.compare(
                kept.address, address, buffer.elements, buffer.dtype, buffer.compare
            )
            if not comparing.by_tolerance(buffer):
                worst = float(count)
            if count == 0:
                return Comparison(equal=True, worst=worst)
            size = kept.dtype.itemsize
            values = [np.empty(1, kept.dtype) for _ in range(2)]
            for place, value in zip((kept.address, address), values, strict=True):
                self._cuda.memcpy_dtoh(value, place + first * size)
            return comparing.difference(
                buffer, buffer.elements, count, worst, first, reference=values[0], actual=values[1]
            )

    def forget(self, reference: str) -> None:
        self._host.forget(reference)
        for key in [key for key in self._kept if isinstance(key, tuple) and len(key) == 2 and key[0] == reference]:
            self._drop(key)

    def clear(self) -> bool:
        held = self._host.clear() or bool(self._kept)
        for key in list(self._kept):
            self._drop(key)
        return held

    def make_room(self, needed_bytes: int) -> None:
        """Give back what is kept, the oldest first, until a Program of this size may be loaded."""
        while self._kept:
            free, total = self._cuda.mem_get_info()
            if needed_bytes <= free - int(total * LEFT_TO_OTHERS):
                return
            self._drop(next(iter(self._kept)))

    def close(self) -> None:
        """Free everything, before the context goes; driver errors are not raised."""
        with contextlib.suppress(self._cuda.Error):
            self.clear()
        self._kept.clear()
        self._kernels.close()

    def _same_bytes(self, one: int, other: int, size_bytes: int) -> bool:
        """Compared in the widest words that both lie in."""
        width = next(each for each in (8, 4, 2, 1) if (one | other | size_bytes) % each == 0)
        return self._kernels.compare(one, other, size_bytes // width, f"uint{8 * width}", EQUAL)[0] == 0

    def _used(self, key: Hashable | None) -> DeviceCopy | None:
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key]

    def _keep(self, key: Hashable | None, address: int, buffer: Buffer) -> None:
        """Keep a copy of what lies at an address, if there is room."""
        kept = None if key is None else self._room(key, numpy_dtype(buffer.dtype), buffer.size_bytes)
        if kept is not None:
            self._cuda.memcpy_dtod(kept.address, address, kept.size_bytes)

    def _upload(self, key: Hashable, data: Array, buffer: Buffer) -> DeviceCopy | None:
        if data.shape != (buffer.elements,) or data.dtype != numpy_dtype(buffer.dtype):
            return None
        kept = self._room(key, data.dtype, data.nbytes)
        if kept is not None:
            self._cuda.memcpy_htod(kept.address, np.ascontiguousarray(data))
        return kept

    def _room(self, key: Hashable, dtype: np.dtype[np.generic], size_bytes: int) -> DeviceCopy | None:
        """Memory for a copy, at the cost of those that were not used for longest; None where it is too large."""
        self._drop(key)
        held = sum(each.size_bytes for each in self._kept.values())
        free, _ = self._cuda.mem_get_info()
        most = int((free + held) * KEPT_SHARE)
        if not 0 < size_bytes <= most:
            return None
        while held + size_bytes > most:
            held -= self._drop(next(iter(self._kept)))
        try:
            kept = DeviceCopy(self._cuda.mem_alloc(size_bytes), size_bytes, dtype)
        except self._cuda.Error:  # in pieces too small: what is kept for speed is not worth a failure
            return None
        self._kept[key] = kept
        return kept

    def _drop(self, key: Hashable) -> int:
        """Free a copy; the bytes that it had."""
        kept = self._kept.pop(key, None)
        if kept is None:
            return 0
        kept.allocation.free()
        return kept.size_bytes


def _address(loaded: Loaded, buffer: Buffer) -> int | None:
    assert isinstance(loaded, CudaProgram)
    return loaded.memory.device_address(buffer.name)
