"""Requests to the daemon on its Unix socket. The daemon's errors are raised again here. httpx is imported on use."""

from __future__ import annotations

import contextlib
import json

from fusiond.model.errors import DaemonError, DeviceError, FusiondError, NothingKnown, RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    import httpx

TIMEOUT_SECS = 30.0


def socket_of(db: Path) -> Path:
    """Where the daemon of a store listens, or would."""
    from fusiond.service.daemon import lock
    from fusiond.service.daemon import socket as sockets

    holder = lock.holder(db)
    return holder.socket if holder else sockets.default_path(db)


def answering(socket: Path) -> Path:
    """The same socket; DaemonError where nobody listens there (httpcore leaks that of a failed attempt)."""
    from fusiond.service.daemon import socket as sockets

    if not sockets.answers(socket):
        raise _absent(socket)
    return socket


def ask(
    socket: Path,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    timeout_secs: float = TIMEOUT_SECS,
    query: Sequence[tuple[str, str]] | None = None,
) -> Any:
    """The document that answers a request. The daemon's own error, or DaemonError where none answers."""
    with _reached(socket, timeout_secs) as client:
        return _checked(client.request(method, path, json=body, params=tuple(query or ())))


def stream(socket: Path, path: str) -> Iterator[Any]:
    """The documents of an answer, one a line, as they come."""
    with _reached(socket) as client, client.stream("GET", path) as response:
        if response.is_error:
            response.read()
            _checked(response)
        for line in response.iter_lines():
            if line:
                yield _json(line)


def http(socket: Path, timeout_secs: float = TIMEOUT_SECS) -> httpx.Client:
    import httpx

    return httpx.Client(
        transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://fusiond", timeout=timeout_secs, trust_env=False
    )


@contextlib.contextmanager
def _reached(socket: Path, timeout_secs: float = TIMEOUT_SECS) -> Iterator[httpx.Client]:
    """A client of a daemon that answers; DaemonError where that does no more."""
    import httpx

    answering(socket)
    try:
        with http(socket, timeout_secs) as client:
            yield client
    except httpx.TimeoutException:
        raise DaemonError(f"the daemon on {socket} does not answer within {timeout_secs:.0f} s") from None
    except httpx.TransportError:
        raise _absent(socket) from None


def _absent(socket: Path) -> DaemonError:
    return DaemonError(f"no daemon answers on {socket}; start one with `fusiond serve`")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise DaemonError("the daemon answered something that is not JSON") from None


def _checked(response: httpx.Response) -> Any:
    """The document of a good answer; otherwise the error that the daemon raised, as it was."""
    document = _json(response.text)
    if not response.is_error:
        return document
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        raise DaemonError(f"the daemon answered {response.status_code}")
    raise _raised(response.status_code, str(error.get("problem", "")), str(error.get("where", "")), error.get("kind"))


def _raised(status: int, problem: str, where: str, kind: object) -> FusiondError:
    if kind == NothingKnown.__name__:
        return NothingKnown(problem)
    if kind == DeviceError.__name__:
        return DeviceError(problem)
    if kind in (DaemonError.__name__, "QueueFull"):  # too many of something, or a request that did not arrive in time
        return DaemonError(f"the daemon refused: {problem}")
    if status < 500:
        return RequestError(problem, where=where)
    return DaemonError(f"the daemon failed: {problem}")
