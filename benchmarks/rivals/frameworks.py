"""Frameworks whose functions are timed: how arrays get in and out, and whether they can be told a stream.

PyTorch and CuPy enqueue on a stream of ours, so the device's clock times them as it times us. JAX takes no stream: it
is timed on the wall clock, until its results are there, and so are we beside it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from benchmarks.rivals.base import Array


class Framework(Protocol):
    """Arrays of a framework are Any: each has a type of its own."""

    clock: str  #: `device` where it can be told a stream, else `wall`

    def given(self, data: Array) -> Any:
        """Host data as an array of the device; done when it returns."""
        ...

    def taken(self, array: Any) -> Array:
        """An array of the device as host data."""
        ...

    def on(self, stream: int) -> AbstractContextManager[Any]:
        """Whatever is called inside is enqueued on this stream (its handle), where it can be told one."""
        ...

    def wait(self, arrays: Iterable[Any]) -> None:
        """Until these are there."""
        ...


def lacks(module: str, remedy: str) -> str:
    """One line where a module is not installed; empty where it is. Nothing is imported."""
    return "" if importlib.util.find_spec(module) else f"{module} is not installed: {remedy}"


class NumPy:
    """On the processor: the oracle of the others."""

    clock = "wall"

    def given(self, data: Array) -> Any:
        return np.array(data)

    def taken(self, array: Any) -> Array:
        return np.asarray(array)

    def on(self, stream: int) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def wait(self, arrays: Iterable[Any]) -> None:
        pass


class CuPy:
    clock = "device"

    def __init__(self) -> None:
        self.cupy = importlib.import_module("cupy")

    def given(self, data: Array) -> Any:
        made = self.cupy.asarray(data)
        self.cupy.cuda.Device().synchronize()
        return made

    def taken(self, array: Any) -> Array:
        found: Array = self.cupy.asnumpy(array)
        return found

    def on(self, stream: int) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = self.cupy.cuda.ExternalStream(stream)
        return found

    def wait(self, arrays: Iterable[Any]) -> None:
        self.cupy.cuda.Device().synchronize()


class Torch:
    def __init__(self, device: str = "cuda") -> None:
        """`device`: cuda, or cpu, where there is no stream."""
        self.torch = importlib.import_module("torch")
        self.device = device
        self.clock = "device" if device == "cuda" else "wall"

    def given(self, data: Array) -> Any:
        made = self.torch.from_numpy(np.array(data)).to(self.device)
        self.wait(())
        return made

    def taken(self, array: Any) -> Array:
        found: Array = array.detach().cpu().numpy()
        return found

    def on(self, stream: int) -> AbstractContextManager[Any]:
        if self.device == "cpu":
            return contextlib.nullcontext()
        cuda = self.torch.cuda
        found: AbstractContextManager[Any] = cuda.stream(cuda.ExternalStream(stream))
        return found

    def wait(self, arrays: Iterable[Any]) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()


class Jax:
    clock = "wall"

    def __init__(self) -> None:
        self.jax = importlib.import_module("jax")

    def given(self, data: Array) -> Any:
        return self.jax.device_put(np.array(data)).block_until_ready()

    def taken(self, array: Any) -> Array:
        return np.asarray(array)

    def on(self, stream: int) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def wait(self, arrays: Iterable[Any]) -> None:
        for each in arrays:
            each.block_until_ready()
