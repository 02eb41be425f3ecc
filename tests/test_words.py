"""Words for people."""

from __future__ import annotations

from fusiond.words import counted


def test_one_is_no_plural() -> None:
    assert [counted(number, "kernel") for number in (0, 1, 2, 10_000)] == [
        "0 kernels", "1 kernel", "2 kernels", "10000 kernels",
    ]  # fmt: skip
