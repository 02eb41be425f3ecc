"""A launch of an emitted kernel, before it is a step of a Program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaLaunch:
    """One launch of an entry; its arguments are the images, then the scalars (width, height, the sizes of others)."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    images: tuple[str, ...]
    reads: int
    """So many of the images, the first ones, are read; the others are written."""
    scalars: tuple[int, ...]
    pitched: tuple[str, ...] = ()
    """Images whose pitches are the last arguments."""
