"""Access to the pages over TCP by token: as `?token=`, then as a cookie, or as a bearer.

A socket that only its user can open needs none of this; a port of this machine can be reached by all of its users, and
by what their browsers run.
"""

import hmac
import secrets
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "fusiond_token"
SAFE = ("GET", "HEAD")
_POLICY = "; ".join((
    "default-src 'none'", "style-src 'self'", "script-src 'self'", "img-src 'self' data:", "connect-src 'self'",
    "form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'",
))  # fmt: skip
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def new_token() -> str:
    """256 random bits."""
    return secrets.token_urlsafe(32)


READABLE = ("/best", "/health", "/devices", "/metrics", "/openapi.json", "/exchange/answer")
"""What a token for programs reads, whatever else it may do."""
WRITABLE = ("/exchange/answers", "/exchange/claims", "/exchange/claims/release")


class Access:
    """ASGI middleware: 401 for whoever brings no token, 403 for a wrong one, and for a form of another origin.

    `rights` says what a bearer's token allows, `read` or `write`, that of no such token None: programs of other boxes
    have tokens of their own, which open no page."""

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        rights: Callable[[str], str | None] = lambda token: None,
        *,
        secure: bool = False,
    ) -> None:
        """`secure`: the cookie goes over TLS alone."""
        self._secure = secure
        self._app = app
        self._token = token
        self._rights = rights

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._refused(scope)
        if refused is not None:
            await refused(scope, receive, send)
            return
        await self._app(scope, receive, secured(send))

    def _refused(self, scope: Scope) -> Response | None:
        """The answer to whoever may not go on, or has to go on elsewhere; None for everybody else."""
        headers = Headers(scope=scope)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if given:
            if not self._is_it(given[0]):
                return _no(403, "the token is wrong")
            if scope["method"] not in SAFE or "text/html" not in headers.get("accept", ""):
                return None
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            moved = RedirectResponse(scope["path"] + (f"?{rest}" if rest else ""), status_code=303, headers=HEADERS)
            moved.set_cookie(COOKIE, given[0], httponly=True, samesite="strict", path="/", secure=self._secure)
            return moved
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return None if self._is_it(bearer.strip()) else self._refused_program(scope, bearer.strip())
        cookie = _cookie(headers.get("cookie", ""))
        if not cookie:
            return _no(401, "a token is needed: the URL that `fusiond serve` printed has it")
        if not self._is_it(cookie):
            return _no(403, "the token is of an earlier start; use the URL that `fusiond serve` printed last")
        if scope["method"] not in SAFE and not _same_origin(headers):
            return _no(403, "a form of another page")
        return None

    def _refused_program(self, scope: Scope, token: str) -> Response | None:
        rights = self._rights(token)
        if rights is None:
            return _no(403, "the token is wrong")
        path = scope["path"]
        if path in WRITABLE:
            return None if rights == "write" else _no(403, "this token may read, and not write")
        looks = scope["method"] in SAFE and path in READABLE
        return None if looks else _no(403, "this token is for look-ups and for the exchange")

    def _is_it(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token.encode())


def secured(send: Send) -> Send:
    """Adds the headers that keep a page to itself."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name.lower() for name, _ in message["headers"]}
            more = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in own]
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return sending


def _no(status: int, why: str) -> Response:
    headers = {**HEADERS, **({"www-authenticate": "Bearer"} if status == 401 else {})}
    return PlainTextResponse(f"{why}\n", status_code=status, headers=headers)


def _cookie(text: str) -> str:
    try:
        found = SimpleCookie(text).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _same_origin(headers: Headers) -> bool:
    """Browsers say where a form comes from; what says nothing is not a browser, and has no cookie of ours."""
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host")
