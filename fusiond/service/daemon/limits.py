"""Limits of one connection: uvicorn's HTTP/1.1 protocol with time-outs and sizes, each with its status.

header     longer than `header_bytes`: 431; not complete within `header_secs`: 408
body       longer than the application takes: 413, by the application, while the rest is read and thrown away
           (a client that still writes would see a broken pipe in place of the answer); not complete within
           `body_secs`: 408
answer     not taken within `answer_secs`: the connection is dropped
idle       closed after `idle_secs`
many       beyond `connections`: 503 at once
"""

import asyncio
import enum
import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from fusiond.model.errors import DaemonError, RequestError

BODY_BYTES = 8_000_000  #: The longest body of a request


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    header_bytes: int = 65_536
    header_secs: float = 10.0
    body_secs: float = 30.0
    answer_secs: float = 60.0  #: How long a client may leave an answer unread while more of it waits
    idle_secs: float = 60.0  #: How long a connection between two requests is kept
    connections: int = 256
    linger_secs: float = 1.0  #: How long what a refused client still writes is read, so that it sees the answer


class _Stage(enum.Enum):
    """What is waited for on a connection."""

    IDLE = "the next request"
    HEADER = "the rest of the request's header"
    BODY = "the rest of the request's body"
    ANSWER = "our own answer"


class LimitedProtocol(H11Protocol):
    """One connection."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        limits: HttpLimits,
    ) -> None:
        super().__init__(config, server_state, app_state, loop)
        self._limits = limits
        self._stage: _Stage | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > 2 * self._limits.connections:  # those that linger are too many, too
            transport.abort()
        elif len(self.connections) > self._limits.connections:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"{self._limits.connections} connections are open; try again")
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._refused:
            super().data_received(data)
            self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        most = self._limits.header_bytes
        if len(self.conn.trailing_data[0]) > most:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the header is longer than {most} bytes")
        else:
            self._refuse(HTTPStatus.BAD_REQUEST, "the request is not HTTP/1.1")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._abort_later()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread_timer is not None and not self.transport.is_closing():
            self._unread_timer.cancel()
            self._unread_timer = None

    def shutdown(self) -> None:
        if self._refused:
            self.transport.abort()
        else:
            super().shutdown()

    def _watch(self) -> None:
        """Let the clock run for what is waited for now; nothing starts anew while it stays the same."""
        if self._refused:
            return
        if self.transport.is_closing():
            self._abort_later()
            return
        stage = self._waited_for()
        if stage is self._stage:
            return
        self._stage = stage
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        secs = {
            _Stage.IDLE: self._limits.idle_secs if self.cycle else self._limits.header_secs,
            _Stage.HEADER: self._limits.header_secs,
            _Stage.BODY: self._limits.body_secs,
        }.get(stage)
        if secs is not None:
            self._timer = self.loop.call_later(secs, self._too_late, stage, secs)

    def _waited_for(self) -> _Stage:
        if self.conn.their_state is h11.SEND_BODY:
            return _Stage.BODY
        if self.conn.their_state is not h11.IDLE:
            return _Stage.ANSWER
        return _Stage.HEADER if self.conn.trailing_data[0] else _Stage.IDLE

    def _too_late(self, stage: _Stage, secs: float) -> None:
        answered = self.cycle is not None and self.cycle.response_started
        if stage is _Stage.IDLE or (stage is _Stage.BODY and answered):
            self.transport.close()
            self._abort_later()
        else:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"{stage.value} did not come within {secs:g} s")

    def _abort_later(self) -> None:
        """Give up what nobody reads: a transport that is closed goes once all is written, which is never then."""
        if self._unread_timer is None:
            self._unread_timer = self.loop.call_later(self._limits.answer_secs, self.transport.abort)

    def _refuse(self, status: HTTPStatus, problem: str) -> None:
        """Answer, and close the connection when the client has had the time to read that."""
        self._refused = True
        self._unset_keepalive_if_required()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        busy = status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.REQUEST_TIMEOUT)
        kind = DaemonError.__name__ if busy else RequestError.__name__
        body = json.dumps({"error": {"kind": kind, "where": "request", "problem": problem}}).encode()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.flow.resume_reading()
        self.transport.write(head.encode("ascii") + body)
        if self.transport.can_write_eof():  # TLS cannot
            self.transport.write_eof()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self._limits.linger_secs, self.transport.abort)
