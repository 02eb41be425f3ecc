"""Row operations as one writes them in Triton. Imported only where Triton is: its decorators want the source's file."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

LARGEST = 16384  #: A row that is no longer than this is held by one program


@triton.jit
def _softmax(y, x, width, BLOCK: tl.constexpr):  # noqa: N803
    """One program for a row. A long row is read twice: its maximum and sum go together in one pass."""
    row = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    highest = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, width, BLOCK):
        values = tl.load(x + row + begin + columns, mask=begin + columns < width, other=float("-inf"))
        above = tl.maximum(highest, values)
        safe = tl.where(above == float("-inf"), 0.0, above)
        total = total * tl.exp(highest - safe) + tl.exp(values - safe)
        highest = above
    most = tl.max(highest, 0)
    whole = tl.sum(total * tl.exp(highest - most), 0)
    for begin in range(0, width, BLOCK):
        inside = begin + columns < width
        values = tl.load(x + row + begin + columns, mask=inside, other=float("-inf"))
        tl.store(y + row + begin + columns, tl.exp(values - most) / whole, mask=inside)


@triton.jit
def _layer_norm(y, x, scale, shift, width, epsilon, BLOCK: tl.constexpr):  # noqa: N803
    """One program for a row, which it holds."""
    row = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(x + row + columns, mask=inside, other=0.0)
    centred = tl.where(inside, values - tl.sum(values, 0) / width, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / width + epsilon)
    scaled = centred * inverse * tl.load(scale + columns, mask=inside, other=0.0)
    tl.store(y + row + columns, scaled + tl.load(shift + columns, mask=inside, other=0.0), mask=inside)


def softmax(torch: Any, triton: Any, x: Any) -> Any:
    """(rows, width) -> the same."""
    made = torch.empty_like(x)
    block = min(LARGEST, triton.next_power_of_2(x.shape[1]))
    _softmax[(x.shape[0],)](made, x, x.shape[1], BLOCK=block, num_warps=_warps(block))
    return made


def layer_norm(torch: Any, triton: Any, x: Any, scale: Any, shift: Any, epsilon: float) -> Any:
    """(rows, width), (width,), (width,) -> as x. ValueError for a row that one program cannot hold."""
    block = triton.next_power_of_2(x.shape[1])
    if block > LARGEST:
        raise ValueError(f"a row of {x.shape[1]} is longer than one program holds")
    made = torch.empty_like(x)
    _layer_norm[(x.shape[0],)](made, x, scale, shift, x.shape[1], epsilon, BLOCK=block, num_warps=_warps(block))
    return made


def _warps(block: int) -> int:
    """So that a thread holds some 16 elements."""
    return min(16, max(4, block // 512))
