"""Messages between a planner and its children: pickled tuples on a private socket.

    to a child      ("ask", request, method, arguments)   ("answer", request, fine, value)   ("drop", numbers)
    from a child    ("done", request, value)  ("raised", request, exception)
                    ("call", request, name, arguments)  and waits for the answer  ("log", level, logger, text)

A child is as trustworthy as the plugins in it, which this user has installed: pickle keeps nobody out, and need not.
"""

import copyreg
import pickle
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import Any

from fusiond.model.nouns import SAMPLER, DeviceLimits, frozen
from fusiond.requests.isolation import limits
from fusiond.requests.registry import PluginState
from fusiond.strategy import CatalogueEntry


def _reduced(mapping: MappingProxyType[Any, Any]) -> tuple[Any, ...]:
    return frozen, (dict(mapping),)


copyreg.pickle(MappingProxyType, _reduced)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildLimits:
    """What one child may use."""

    secs: float = limits.SECS  #: For one request, without what it waits for on the other side (compilers, files)
    memory_bytes: int = limits.MEMORY_BYTES  #: Of its address space
    stack_bytes: int = limits.STACK_BYTES  #: Of the thread that works on a request: parsers recurse


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A strategy, as far as it is not a function."""

    name: str
    version: int
    job_keys: tuple[str, ...]
    wrong_versions: tuple[int, ...]
    names: dict[str, str]
    drafts: tuple[str, ...] = ()
    orders: tuple[str, ...] = (SAMPLER,)
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What the plugins have registered."""

    strategies: tuple[Described, ...]
    states: tuple[PluginState, ...]
    catalogue: dict[tuple[str, str], CatalogueEntry]
    listens: bool  #: A plugin wants to be told of trials and records


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """A `Target` without its compiler, which is on the other side."""

    arch: str
    limits: DeviceLimits


def portable(value: object) -> None:
    """Raises whatever keeps a value from being sent."""
    pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))


def send(connection: Connection, message: tuple[object, ...]) -> None:
    connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


def receive(connection: Connection) -> tuple[Any, ...]:
    """The next message; EOFError at the end, OSError for a connection that broke."""
    message: tuple[Any, ...] = pickle.loads(connection.recv_bytes())
    return message
