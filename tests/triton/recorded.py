"""Kernels in Triton that tests launch."""

# mypy: ignore-errors
# ruff: noqa: N803
import triton
import triton.language as tl


@triton.jit
def scale(x, y, by, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * by, mask=at < n)


@triton.jit
def count(values, counts, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts + tl.load(values + at, mask=at < n, other=0), 1, mask=at < n)


@triton.jit
def sometimes(x, y, by, n, BLOCK: tl.constexpr):
    """`scale`, that leaves out the last element with 512 at once, reads behind its array with 128, and is not compiled
    for 256."""
    tl.static_assert(BLOCK != 256)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = at + (BLOCK == 128) * 1000000
    tl.store(y + at, tl.load(x + first, mask=at < n) * by, mask=at < n - (BLOCK == 512))


@triton.jit
def summed(x, total, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total, tl.sum(tl.load(x + at, mask=at < n, other=0.0)))
