"""The pipeline that is being traced: what its function has made so far."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fusiond_mincut.frontend.expr import Expr
from fusiond_mincut.frontend.graph import ImageKernel, PipelineImage


@dataclass(slots=True)
class PipelineTrace:
    """Images and kernels in the order in which they were made, and the names that the current stage gave to values."""

    dtype: str
    """Of images that do not say their own; so is `channels`."""
    channels: int
    width: int
    height: int
    images: dict[str, PipelineImage] = field(default_factory=dict)
    kernels: list[ImageKernel] = field(default_factory=list)
    lets: list[tuple[str, Expr]] = field(default_factory=list)

    def add(self, kernel: ImageKernel) -> None:
        self.images[kernel.name] = kernel.image
        self.kernels.append(kernel)

    def free_name(self, name: str) -> str:
        """The name, with the first number behind it that makes it one of its own."""
        number = 1
        while (chosen := name if number == 1 else f"{name}{number}") in self.images:
            number += 1
        return chosen


_active: list[PipelineTrace] = []
"""The last one is current: the function of a pipeline may trace another."""


def current() -> PipelineTrace | None:
    return _active[-1] if _active else None


@contextmanager
def tracing(trace: PipelineTrace) -> Iterator[None]:
    """Stages that are called inside add their kernels to this trace."""
    _active.append(trace)
    try:
        yield
    finally:
        _active.pop()
