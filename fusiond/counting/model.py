"""The GPU that is counted for: how many blocks run together, and how large its L2 is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Figures of NVIDIA's data sheets and of the CUDA programming guide's table of compute capabilities."""

    name: str
    arch: str
    multiprocessors: int
    threads: int
    """Per multiprocessor, as the next ones."""
    blocks: int
    shared_bytes: int
    l2_bytes: int

    def resident(self, threads: int, shared_bytes: int) -> int:
        """Blocks of so many threads that run together; registers are not asked."""
        warps = -(-threads // 32) * 32
        each = min(self.blocks, self.threads // warps, self.shared_bytes // (shared_bytes + 1024))
        return self.multiprocessors * max(each, 1)


H100 = Gpu(
    name="h100",
    arch="sm_90",
    multiprocessors=132,
    threads=2048,
    blocks=32,
    shared_bytes=228 * 1024,
    l2_bytes=50 * 2**20,
)
