"""The contexts of the devices that a Program is for, through PyCUDA. The first is current all the time; what belongs to
another device (its streams, events, modules, allocations, and whatever is enqueued there) is asked for while that
device's own is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fusiond.devices.cuda.driver import Driver


class Contexts:
    """Of one Program, in the order of its devices."""

    def __init__(self, cuda: Any, driver: Driver, others: Sequence[Any] = ()) -> None:
        """`others`: the contexts beside the one that is current."""
        self._cuda, self._driver = cuda, driver
        self._others = tuple(others)
        self._handles: dict[int, int] = {}

    def __len__(self) -> int:
        return 1 + len(self._others)

    @contextlib.contextmanager
    def on(self, device: int) -> Iterator[None]:
        """With a device's context current."""
        if device == 0:
            yield
            return
        with _pushed(self._cuda, self._others[device - 1]):
            yield

    def handle(self, device: int) -> int:
        """The driver's handle of a device's context."""
        if device not in self._handles:
            with self.on(device):
                self._handles[device] = self._driver.current_context()
        return self._handles[device]

    def synchronize(self) -> None:
        """Wait for all that was enqueued anywhere."""
        for device in range(len(self)):
            with self.on(device):
                self._cuda.Context.synchronize()


def connected(cuda: Any, driver: Driver, contexts: Mapping[int, Any]) -> None:
    """Let each of some devices use the memory of the others, where the link between them allows that; where it does
    not, the driver takes copies through the host. `contexts`: by the devices' indices."""
    handles = {}
    for index, context in contexts.items():
        with _pushed(cuda, context):
            handles[index] = driver.current_context()
    for one, context in contexts.items():
        with _pushed(cuda, context):
            for other, their in handles.items():
                if one != other and driver.can_access_peer(one, other):
                    driver.enable_peer_access(their)


@contextlib.contextmanager
def _pushed(cuda: Any, context: Any) -> Iterator[None]:
    context.push()
    try:
        yield
    finally:
        cuda.Context.pop()
