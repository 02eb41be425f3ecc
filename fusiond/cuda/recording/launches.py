"""A launch, recorded, and the recorders of a thread, to which it goes instead of being done."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fusiond.cuda.recording.arguments import Argument
from fusiond.cuda.recording.origins import Origin
from fusiond.model.program import Dim3

Grid = int | Sequence[int]


@dataclass(frozen=True, slots=True)
class RecordedLaunch:
    """One launch, recorded: what it is handed, and how it is done as it is."""

    origin: Origin
    grid: Dim3
    block: Dim3
    shared_bytes: int
    arguments: tuple[Argument, ...]
    stream: int
    device: int  #: Its number; -1 on the processor
    run: Callable[[], None] = field(repr=False, compare=False)
    unseen: str = ""  #: Why it cannot be asked for, in one line


def lengths(value: Grid) -> Dim3:
    """One to three lengths as three."""
    given = (value,) if isinstance(value, int) else tuple(int(each) for each in value)
    if not 1 <= len(given) <= 3 or min(given) < 1:
        raise ValueError(f"a grid or block of {value!r}; it has one to three lengths from 1")
    padded = (*given, 1, 1)
    return (padded[0], padded[1], padded[2])


class OpenRecorder(Protocol):
    """What launches are added to, in their order."""

    def add(self, launch: RecordedLaunch) -> None: ...

    def flush(self) -> None:
        """Launch what is recorded by now."""


class _Open(threading.local):
    """The recorders of a thread, the innermost last."""

    def __init__(self) -> None:
        self.recorders: list[OpenRecorder] = []


opened = _Open()


def current() -> OpenRecorder | None:
    """That which records the launches of this thread."""
    return opened.recorders[-1] if opened.recorders else None


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Nothing of this thread is recorded meanwhile."""
    recorders, opened.recorders = opened.recorders, []
    try:
        yield
    finally:
        opened.recorders = recorders
