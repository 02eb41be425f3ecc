"""The API and pages over TCP for holders of a token, as HTTPS where there is a certificate."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fusiond.service.daemon import socket as sockets
from fusiond.service.daemon import tls
from fusiond.service.daemon.http import HttpServer
from fusiond.service.daemon.limits import HttpLimits
from fusiond.service.web.access import Access, new_token


class Tcp:
    """One listener; nothing is served before `serve`. RequestError where the port or the certificate cannot be used."""

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
        """Read the certificate again, as after a renewal: connections from now on see it. RequestError, and the old
        one is shown on, where it cannot be used."""
        if self._files is not None:
            self._context = tls.server(*self._files)

    def stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
