"""Draws inputs and compares outputs on the host, for devices that use host memory."""

from collections import OrderedDict
from collections.abc import Callable, Hashable

import numpy as np

from fusiond.devices.base import Array, Loaded
from fusiond.devices.compare import Comparison, compare
from fusiond.model.inputs.fills import initial, is_read, poison
from fusiond.model.program import Buffer

KEPT_BYTES = 512 << 20  #: Of drawn inputs and references together: a child process may live in a container of a few GiB


def content(buffer: Buffer, seed: int) -> Hashable | None:
    """What decides the bits of a filled buffer; None where that cannot be told: a file whose digest is not known."""
    if buffer.fill.kind == "file" and buffer.fill.digest is None:
        return None
    return buffer.name, buffer.dtype, buffer.elements, buffer.fill, seed


class HostData:
    """`fusiond.devices.base.DataPlane` in NumPy. Inputs are drawn once per content, and kept while there is room."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._kept: OrderedDict[Hashable, Array] = OrderedDict()

    def fill(self, loaded: Loaded, buffer: Buffer, seed: int, *, kind: int | None = None) -> None:
        if buffer.part_of is not None:
            return
        if is_read(buffer):
            loaded.write(buffer.name, self._drawn(buffer, seed))
        else:
            loaded.write(buffer.name, poison(buffer, seed if kind is None else kind))

    def intact(self, loaded: Loaded, buffer: Buffer, seed: int) -> bool:
        width = next(each for each in (8, 4, 2, 1) if buffer.size_bytes % each == 0)  # few large words are quicker
        found, wanted = (each.view(f"u{width}") for each in (loaded.read(buffer.name), self._drawn(buffer, seed)))
        return np.array_equal(found, wanted)

    def broken_guards(self, loaded: Loaded) -> tuple[str, ...]:
        return loaded.broken_guards()

    def keep(self, loaded: Loaded, buffer: Buffer, reference: str) -> Array:
        found = loaded.read(buffer.name)
        self._admit((reference, buffer.name), found)
        return found

    def compare(self, loaded: Loaded, buffer: Buffer, reference: str, stored: Callable[[], Array]) -> Comparison:
        wanted = self._kept.get((reference, buffer.name))
        if wanted is None:
            wanted = stored()
        self._admit((reference, buffer.name), wanted)
        return compare(buffer, wanted, loaded.read(buffer.name))

    def forget(self, reference: str) -> None:
        for key in [key for key in self._kept if isinstance(key, tuple) and key[0] == reference and len(key) == 2]:
            del self._kept[key]

    def clear(self) -> bool:
        held = bool(self._kept)
        self._kept.clear()
        return held

    def _drawn(self, buffer: Buffer, seed: int) -> Array:
        key = content(buffer, seed)
        if key is None:
            return initial(buffer, seed)
        data = self._kept.get(key)
        if data is None:
            data = initial(buffer, seed)
        self._admit(key, data)
        return data

    def _admit(self, key: Hashable, data: Array) -> None:
        """Keep an array as the one that was used last; those that were not used for longest go where it is too much.
        One that is too much by itself stays alone: a run needs it twice."""
        data.flags.writeable = False
        self._kept[key] = data
        self._kept.move_to_end(key)
        held = sum(each.nbytes for each in self._kept.values())
        while held > self._kept_bytes and len(self._kept) > 1:
            _, old = self._kept.popitem(last=False)
            held -= old.nbytes
