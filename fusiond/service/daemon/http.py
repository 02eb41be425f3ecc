"""The HTTP server on the daemon's socket: uvicorn, with limits for each connection, and an own way to accept them.

The loop of asyncio meets a lack of file descriptors with a log line for every connection of the backlog, again and
again. Here accepting pauses for a second, and one line a minute says so.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import uvicorn

from fusiond.model.system import faults
from fusiond.service.daemon import socket as sockets
from fusiond.service.daemon import tls
from fusiond.service.daemon.limits import HttpLimits, LimitedProtocol
from fusiond.service.web.access import Access, new_token

log = logging.getLogger(__name__)

PAUSE_SECS = 1.0
SAY_EVERY_SECS = 60.0
HANDSHAKE_SECS = 10.0
_MOST_BEGUN = 256  #: Connections whose handshakes go on
_AT_ONCE = 32  #: Connections that are accepted in one turn of the loop
_LACKING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Accepts from one listener; what uvicorn asks of an `asyncio.Server`: `close` and `wait_closed`."""

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        """`tls`: what a connection is accepted with now; None: without."""
        self._listener = listener
        self._tls = tls
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._paused: asyncio.TimerHandle | None = None
        self._said_at = -SAY_EVERY_SECS
        self._begun: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        self._loop.remove_reader(self._listener)
        if self._paused is not None:
            self._paused.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._begun)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as problem:
                if problem.errno not in _LACKING:
                    raise
                self._pause(problem)
                return
            if len(self._begun) >= _MOST_BEGUN:  # handshakes that nobody ends: they have their time, others wait
                connection.close()
                continue
            connection.setblocking(False)
            if connection.family != socket.AF_UNIX:
                # An answer is two writes, of which the second would wait 40 ms for the first one's acknowledgement.
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._begin(connection))
            self._begun.add(task)
            task.add_done_callback(self._begun.discard)

    async def _begin(self, connection: socket.socket) -> None:
        try:
            tls = self._tls()
            secs = None if tls is None else HANDSHAKE_SECS
            await self._loop.connect_accepted_socket(self._protocol, connection, ssl=tls, ssl_handshake_timeout=secs)
        except OSError as problem:
            log.warning("a connection was lost at its beginning: %s", faults.lacks(problem))
            connection.close()

    def _pause(self, problem: OSError) -> None:
        """The listener stays readable as long as somebody waits there: do not look for a while."""
        self._loop.remove_reader(self._listener)
        self._paused = self._loop.call_later(PAUSE_SECS, self._loop.add_reader, self._listener, self._accept)
        if time.monotonic() - self._said_at >= SAY_EVERY_SECS:
            self._said_at = time.monotonic()
            log.error("new connections wait: %s", faults.lacks(problem))


class HttpServer(uvicorn.Server):
    """`run(sockets=[listener])` serves until `should_exit` is set."""

    def __init__(self, app: Any, limits: HttpLimits, tls: Callable[[], ssl.SSLContext | None] = lambda: None) -> None:
        self._tls = tls
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                http="h11",
                loop="asyncio",
                ws="none",
                h11_max_incomplete_event_size=limits.header_bytes,
                timeout_keep_alive=round(limits.idle_secs),
                timeout_graceful_shutdown=2,
            )
        )
        self._limits = limits
        self._turned_at = time.monotonic()

    @property
    def silent_secs(self) -> float:
        """For how long its loop has not turned; it does so ten times a second."""
        return time.monotonic() - self._turned_at

    async def on_tick(self, counter: int) -> bool:
        self._turned_at = time.monotonic()
        return await super().on_tick(counter)

    async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        loop = asyncio.get_running_loop()

        def protocol() -> asyncio.Protocol:
            return LimitedProtocol(self.config, self.server_state, self.lifespan.state, loop, self._limits)

        acceptors = [Acceptor(each, protocol, self._tls) for each in sockets or ()]
        self.servers = cast("list[asyncio.base_events.Server]", acceptors)
        self.started = True


class Tcp:
    """The API and pages over TCP for holders of a token, as HTTPS where there is a certificate. Nothing is served
    before `serve`. RequestError where the port or the certificate cannot be used."""

    def __init__(self, address: tuple[str, int], certificate: Path | None, key: Path | None) -> None:
        self._files = (certificate, key) if certificate is not None and key is not None else None
        self._context = tls.server(*self._files) if self._files is not None else None
        self._listener = sockets.listen_tcp(address)
        self._server: HttpServer | None = None

    def serve(self, app: Any, rights: Callable[[str], str | None], limits: HttpLimits) -> str:
        """Begin, in a thread; the URL with the token. `rights`: of a program's own token."""
        token = new_token()
        guarded = Access(app, token, rights, secure=self._context is not None)
        self._server = HttpServer(guarded, limits, lambda: self._context)
        threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]}, name="web", daemon=True).start()
        host, port = self._listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        return f"{'http' if self._context is None else 'https'}://{shown}:{port}/?token={token}"

    def renew(self) -> None:
        """Read the certificate again, for connections from now on. RequestError where it fails: the old one stays."""
        if self._files is not None:
            self._context = tls.server(*self._files)

    def stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
