"""Words for people."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 kernel`, `2 kernels`, `0 kernels`; `2 processes` where the plural is given."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"
