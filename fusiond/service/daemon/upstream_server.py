"""The endpoints that an upstream serves to other daemons, beside the API (docs/operating.md has what is said).

Over TCP they take a token (`fusiond tokens`): `read` to look up, `write` for the others. Look-ups are answered in the
event loop itself: SQLite needs less time than handing them to another thread would.
"""

import asyncio
import json
import re
import time
from collections.abc import Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fusiond.model.errors import RequestError
from fusiond.service.daemon.app import body_of, object_of
from fusiond.service.daemon.openapi import EXCHANGED, LINES, DescribedRoute
from fusiond.store.exchange import transfer
from fusiond.store.exchange.database import Exchange
from fusiond.store.exchange.entry import LINE_BYTES

MOST_BYTES = 2_000_000  #: Of one that is not a push
PUSH_BYTES = LINE_BYTES + 8_000_000
MOST_CLAIM_SECS = 600.0
_MOST_IMPORTING = 2  #: Pushes that are checked at a time: signatures take the processor
Counted = Callable[..., None]  #: Told of each request: what it is, what came of it, and how often
_KEY = re.compile(r"[0-9a-f]{32}")


class Endpoints:
    """Of one exchange."""

    def __init__(self, exchange: Exchange, counted: Counted = lambda request, result, count=1: None) -> None:
        self._exchange = exchange
        self._counted = counted
        self._importing = asyncio.Semaphore(_MOST_IMPORTING)

    def routes(self) -> list[DescribedRoute]:
        line = "a JSON object: an answer with the key, the signature and, where asked for, the programs"
        push = "Hand over answers, a line each; what became of them."
        claim = "Ask to tune a question alone for some seconds."
        return [
            DescribedRoute(
                "GET /exchange/answer", self.answer, f"What is served to a content: {line}.", "Entry", *EXCHANGED
            ),
            DescribedRoute("POST /exchange/answers", self.push, push, "Pushed", body="Entry", body_kind=LINES),
            DescribedRoute("POST /exchange/claims", self.claim, claim, "Claimed", body="Claim"),
            DescribedRoute(
                "POST /exchange/claims/release", self.release, "Let go of a claim.", "Object", body="Release"
            ),
        ]

    async def answer(self, request: Request) -> Response:
        given = request.query_params
        text = self._served(given.get("family"), given.get("device"), given.get("cache", "warm"), given.get("sizes"))
        self._counted("answer", "unknown" if text is None else "found")
        if text is None:
            error = {"kind": "NothingKnown", "where": "", "problem": "nothing is known here"}
            return JSONResponse({"error": error}, status_code=404)
        if given.get("programs"):
            text = f'{text[:-1]},"programs":{self._programs(text)}}}'
        return Response(text, media_type="application/json")

    async def push(self, request: Request) -> Response:
        data = await body_of(request, PUSH_BYTES)
        lines = [each for each in data.split(b"\n") if each.strip()]
        async with self._importing:
            found = await run_in_threadpool(transfer.read, self._exchange, lines)
        for result in ("new", "known", "refused"):
            self._counted("push", result, getattr(found, result))
        return JSONResponse({"new": found.new, "known": found.known, "refused": found.refused, "why": found.why})

    async def claim(self, request: Request) -> Response:
        body = await object_of(request, MOST_BYTES)
        secs = body.get("secs")
        if not isinstance(secs, int | float) or not 1 <= secs <= MOST_CLAIM_SECS:
            raise RequestError(f"expected a number from 1 to {MOST_CLAIM_SECS:g}", where="secs")
        at = time.time()
        question, holder = _text(body, "question"), _text(body, "holder")
        granted, by, expires = await run_in_threadpool(self._exchange.claim, question, holder, secs, at)
        self._counted("claim", "granted" if granted else "held")
        return JSONResponse({"granted": granted, "holder": by, "left_secs": round(expires - at, 3)})

    async def release(self, request: Request) -> Response:
        body = await object_of(request, MOST_BYTES)
        await run_in_threadpool(self._exchange.release, _text(body, "question"), _text(body, "holder"))
        return JSONResponse({})

    def _served(self, family: Any, device: Any, cache: Any, sizes: Any) -> str | None:
        for name, value in (("family", family), ("device", device)):
            if not isinstance(value, str) or not _KEY.fullmatch(value):
                raise RequestError("expected 32 hexadecimal digits", where=name)
        if cache not in ("warm", "cold"):
            raise RequestError("can be warm, cold", where="cache")
        if sizes is not None and (not isinstance(sizes, str) or len(sizes) > 20_000):
            raise RequestError("expected the canonical text of an object", where="sizes")
        found = self._exchange.find(family=family, devices=[device], cache=cache, sizes=sizes)
        return self._exchange.envelope(found[0]["key"]) if found else None

    def _programs(self, envelope: str) -> str:
        body = json.loads(envelope)["body"]
        names = dict.fromkeys(each["digest"] for each in (body["program"], body["unfused"]) if each is not None)
        plans = {name: self._exchange.program(name) for name in names}
        return f"{{{','.join(f'{json.dumps(name)}:{plan}' for name, plan in plans.items() if plan)}}}"


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not 1 <= len(value) <= 300 or not value.isprintable():
        raise RequestError("expected a text of at most 300 characters", where=name)
    return value
