"""Methods of other libraries' classes, which are ours while a recorder is open."""

import threading
from collections.abc import Callable, Iterable
from typing import Any

Method = tuple[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]]
"""A class, the method's name, and what makes ours of it."""


class Replacing:
    """Nothing is imported: what a program has not loaded, it does not launch."""

    def __init__(self, methods: Callable[[], Iterable[Method]]) -> None:
        self._methods = methods
        self._lock = threading.Lock()
        self._open = 0
        self._before: list[tuple[Any, str, Any]] = []

    def begin(self) -> None:
        """A recorder was opened."""
        with self._lock:
            self._open += 1
            if self._before:
                return
            for kind, name, by in self._methods():
                before = getattr(kind, name)
                self._before.append((kind, name, before))
                setattr(kind, name, by(before))

    def end(self) -> None:
        """A recorder was closed."""
        with self._lock:
            self._open -= 1
            if self._open == 0:
                for kind, name, before in self._before:
                    setattr(kind, name, before)
                self._before.clear()
