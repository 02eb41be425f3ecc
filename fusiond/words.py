"""Words for people."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 kernel`, `2 kernels`, `0 kernels`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
