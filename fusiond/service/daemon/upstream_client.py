"""Another daemon that this one asks and tells: look-ups, pushes, claims. The one home of httpx in the daemon.

Whatever is said there is checked as an import is. A call is over within `secs`, however slowly bytes come, reads no
more than a bounded number of them, follows no redirect and uses no proxy of the environment. An upstream that failed is
left alone for a while, so that one that is dead costs a look-up once, not each time.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import httpx

from fusiond.service.daemon import tls
from fusiond.service.daemon.config import UpstreamAddress
from fusiond.store.exchange.entry import LINE_BYTES

log = logging.getLogger(__name__)

REST_SECS = 30.0  #: How long an upstream that failed is left alone
_CHUNK = 65_536


class Unreachable(Exception):
    """An upstream that does not answer, or not as it should; the text says how, in a line."""


class Upstream:
    """Calls raise Unreachable. Any thread may call."""

    def __init__(self, address: UpstreamAddress, secs: float) -> None:
        self.url, self._secs, self._address = address.url, secs, address
        self._trust = tls.client(address.authority)
        self._http = self._client()
        self._rests_until = 0.0
        self._told = ""
        self.heard: Callable[[str, str, str, float], None] = lambda upstream, call, result, secs: None
        """Told of each call: to whom, which, `ok` or `failed`, and how long it took."""
        self._lock = threading.Lock()

    def _client(self) -> httpx.Client:
        token = self._address.token
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(
            base_url=self.url, headers=headers, timeout=self._secs, trust_env=False, follow_redirects=False,
            verify=self._trust,
        )  # fmt: skip

    @property
    def rests(self) -> bool:
        """Whether it failed a short while ago."""
        return time.monotonic() < self._rests_until

    def close(self) -> None:
        self._http.close()

    def answer(self, *, family: str, device: str, cache: str, sizes: str | None) -> bytes | None:
        """The entry that it serves to a question, with programs; None where it has none."""
        query = {"family": family, "device": device, "cache": cache, "programs": "1"}
        status, body = self._call("GET", "/exchange/answer", {**query, **({"sizes": sizes} if sizes else {})})
        return body if status == 200 else None

    def push(self, lines: Sequence[str]) -> Mapping[str, Any]:
        """Hand over entries: what became of them."""
        _, body = self._call("POST", "/exchange/answers", content="\n".join(lines).encode())
        found = _document(body)
        counts = [found.get(name) for name in ("new", "known", "refused")]
        if any(type(each) is not int for each in counts) or sum(map(int, counts)) != len(lines):  # type: ignore[arg-type]
            raise self._failed("its answer to a push is none")
        return found

    def claim(self, question: str, holder: str, secs: float) -> tuple[bool, str, float]:
        """Ask to tune a question alone: whether that is granted, who holds it, and for how many seconds yet."""
        sent = {"question": question, "holder": holder, "secs": secs}
        _, body = self._call("POST", "/exchange/claims", content=json.dumps(sent).encode())
        found = _document(body)
        granted, by, left = found.get("granted"), found.get("holder"), found.get("left_secs")
        if type(granted) is not bool or not isinstance(by, str) or not isinstance(left, int | float):
            raise self._failed("its answer to a claim is none")
        return granted, by[:200], max(0.0, min(float(left), 3600.0))

    def release(self, question: str, holder: str) -> None:
        sent = {"question": question, "holder": holder}
        self._call("POST", "/exchange/claims/release", content=json.dumps(sent).encode())

    def _call(
        self, method: str, path: str, query: Mapping[str, str] | None = None, content: bytes | None = None
    ) -> tuple[int, bytes]:
        """Status and body; 404 is an answer, everything else that is none is a failure."""
        if self.rests:
            raise Unreachable(f"{self.url} failed a moment ago")
        began, call = time.monotonic(), "push" if path.endswith("answers") else path.rpartition("/")[2].rstrip("s")
        result = "failed"
        try:
            status, found = self._bounded(method, path, query, content)
            if status not in (200, 404):
                raise self._failed(f"it answers {status}: {found[:200].decode('utf-8', 'replace')}")
            result = "ok"
        finally:
            self.heard(self.url, call, result, time.monotonic() - began)
        with self._lock:
            if self._told:
                log.warning("upstream %s answers again", self.url)
            self._told = ""
        return status, found

    def _bounded(self, *request: Any) -> tuple[int, bytes]:
        """httpx bounds each read, not their sum; a thread that is held up for ever ends with the process."""
        outcome: Future[tuple[int, bytes]] = Future()

        def call(http: httpx.Client) -> None:
            try:
                outcome.set_result(self._request(http, *request))
            except BaseException as problem:
                outcome.set_exception(problem)

        threading.Thread(target=call, args=[self._http], name="upstream", daemon=True).start()
        try:
            return outcome.result(self._secs + 0.1)
        except TimeoutError:
            self._http = self._client()  # the old one's connections are not to be trusted
            raise self._failed(f"it is slower than {self._secs:g} s") from None

    def _request(
        self, http: httpx.Client, method: str, path: str, query: Mapping[str, str] | None, content: bytes | None
    ) -> tuple[int, bytes]:
        deadline = time.monotonic() + self._secs
        try:
            with http.stream(method, path, params=query, content=content) as response:
                found = bytearray()
                for chunk in response.iter_bytes(_CHUNK):
                    found += chunk
                    if len(found) > 2 * LINE_BYTES:
                        raise self._failed("it answers more than an answer can be")
                    if time.monotonic() > deadline:
                        raise self._failed(f"it is slower than {self._secs:g} s")
                return response.status_code, bytes(found)
        except httpx.TimeoutException:
            raise self._failed(f"it does not answer within {self._secs:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, RuntimeError) as problem:
            raise self._failed(str(problem) or type(problem).__name__) from None

    def _failed(self, why: str) -> Unreachable:
        """It rests; said once until it answers again."""
        text = " ".join(why.split())
        with self._lock:
            self._rests_until = time.monotonic() + REST_SECS
            if not self._told:
                log.warning("upstream %s: %s; it is left alone for %g s at a time", self.url, text, REST_SECS)
            self._told = text
        return Unreachable(f"{self.url}: {text}")


def _document(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}
