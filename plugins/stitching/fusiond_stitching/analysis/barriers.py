"""Where a block's barriers stand, between the stages of its program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fusiond_stitching.analysis.shared_memory import SharedBuffer


class Barriers:
    """Between two of them nobody reads what was written, or writes over what was touched."""

    def __init__(self, buffers: Mapping[str, SharedBuffer], offsets: Mapping[str, int]) -> None:
        self.buffers = buffers
        self.offsets = offsets
        self.written: set[str] = set()
        self.touched: set[str] = set()

    def before(self, read: Mapping[str, bool], writes: Sequence[str], results: Iterable[str]) -> bool:
        """Whether a stage that reads and writes these needs a barrier before it. `read`: value -> whether the threads
        that read its elements are those that wrote them."""
        needed = any(each in self.written for each, own in read.items() if not own)
        needed = needed or any(self._over(mine, theirs) for mine in writes for theirs in self.touched)
        if needed:
            self.written.clear()
            self.touched.clear()
        self.written.update(results)
        self.touched.update(writes)
        self.touched.update(each for each in read if each in self.buffers)
        return needed

    def _over(self, mine: str, theirs: str) -> bool:
        if mine == theirs:
            return False
        a, b = self.offsets[mine], self.offsets[theirs]
        return a < b + self.buffers[theirs].size_bytes and b < a + self.buffers[mine].size_bytes
