"""The daemon's HTTP + JSON, for one user on a Unix socket.

    GET  /health                what this daemon is and does
    POST /jobs                  {"path", "text"?, "device"?, "trials"?, "seed"?, "priority"?} -> {"jobs": [...]}
    GET  /jobs?state=queued     {"jobs": [...]}, the newest first; also limit=, and before=ID for the next page
    GET  /jobs/{id}             one job
    GET  /jobs/{id}/events      NDJSON, one `Progress` a line, until the job ends; an empty line now and then
    POST /jobs/{id}/cancel      one job
    POST /jobs/{id}/finish      one job: its search ends, its finals begin
    GET  /best?pair=A,B         the document of `best --json`; also workload=, device=, size=a.n=5, cache=cold
    POST /best                  {"path", "text"?, "device"?, "sizes"?, "cache"?} -> {"answers": [document or error...]}
    POST /judge                 {"reference", "candidate", "device"?, "trials"?, "timeout_secs"?} -> the document of
                                `judge --json`; a kernel is an absolute path, or {"yaml": text, "files"?: {name: text}};
                                a reference may be {"function": "f.py:name", "files"}
    GET  /devices  /plugins     lists
    below /exchange             what other boxes ask and tell (fusiond.service.daemon.upstream_server)
    GET  /metrics               for Prometheus
    GET  /openapi.json          all of this for programs
    GET  / and below /page, /answers, /static   the pages (fusiond.service.web)

Every error is `{"error": {"kind", "where", "problem"}}`: 400 for a wrong request, 413 for a body that is too long,
404 for what is not known, 409 for a device that is not there and for a name that stands for several contents, 5xx for
what is our fault or the machine's. `fusiond.service.daemon.limits` answers what is too long, too slow or too many.
"""

import asyncio
import dataclasses
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from fusiond.model.errors import DeviceError, FusiondError, NothingKnown, RequestError, UnknownName
from fusiond.service.daemon import judge, openapi
from fusiond.service.daemon.judge import JudgeCase, JudgeRequest, KernelTexts, QueueFull
from fusiond.service.daemon.limits import BODY_BYTES
from fusiond.service.daemon.metrics import CONTENT_TYPE as METRICS_TYPE
from fusiond.service.daemon.stream import Broker
from fusiond.service.wire import error_document, job_entry
from fusiond.store.jobs import JobRow

log = logging.getLogger(__name__)

_MOST_COMPARING = 8
"""Threads that read sources of the users' at a time: others are left for everything else when those hang."""


class TooLarge(RequestError):
    """A body that nobody will read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The body of POST /jobs, checked. `text` is the job file's content, `path` where it lies (for files beside it)."""

    path: str
    text: str | None
    device: str | None
    trials: int | None
    seed: int | None
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BestQuery:
    """The query of GET /best, checked."""

    name: str
    device: str | None
    sizes: dict[str, int]
    cache: str = "warm"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuestion:
    """The body of POST /best, checked: what a job file asks. `cache` None: as the job says."""

    path: str
    text: str | None
    device: str | None
    sizes: dict[str, int]
    cache: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """What the endpoints do; blocking functions, called in threads of their own. They raise FusiondErrors."""

    health: Callable[[], dict[str, Any]]
    submit: Callable[[Submission], tuple[JobRow, ...]]
    jobs: Callable[[tuple[str, ...], int, str | None], tuple[JobRow, ...]]
    job: Callable[[str], JobRow]
    cancel: Callable[[str], JobRow]
    finish: Callable[[str], JobRow]
    best: Callable[[BestQuery], dict[str, Any]]  #: Called in the event loop: it reads the store, and waits for nobody
    compare: Callable[[dict[str, Any]], dict[str, Any]]
    """Complete an answer that has sources `to_compare`; may take for ever where they lie on a mount that is gone."""
    recheck: Callable[[dict[str, Any]], None]  #: Have a stale answer measured again
    best_of_job: Callable[[JobQuestion], tuple[dict[str, Any] | NothingKnown, ...]]
    judge: Callable[[JudgeRequest], JudgeCase]  #: Called in the event loop: it queues a request, and waits for nobody
    devices: Callable[[], list[dict[str, Any]]]
    plugins: Callable[[], list[dict[str, Any]]]
    metrics: Callable[[], bytes]
    elsewhere: Callable[[BestQuery], dict[str, Any] | None] = lambda question: None
    """What other boxes know where this one has nothing; bounded in time."""
    looked_up: Callable[[str, float], None] = lambda match, secs: None
    """Count a look-up: its `match`, and the seconds that it took."""


MOST_JOBS = 1000  #: In one page of GET /jobs; whoever asks for more gets as many


class App:
    """The endpoints, each a coroutine that checks the request, calls one action, and words the answer."""

    def __init__(
        self, actions: Actions, broker: Broker, pages: Sequence[Route] = (), exchange: Sequence[Route] = ()
    ) -> None:
        """`pages`: the routes of the pages, beside those of the API; `exchange`: what other boxes ask, where they
        may."""
        self.actions = actions
        self.pages = pages
        self.exchange = exchange
        self.broker = broker
        self._comparing = asyncio.Semaphore(_MOST_COMPARING)

    def starlette(self) -> Starlette:
        routes = [
            Route("/health", self.health),
            Route("/jobs", self.jobs),
            Route("/jobs", self.submit, methods=["POST"]),
            Route("/jobs/{id}", self._of_job(self.actions.job)),
            Route("/jobs/{id}/events", self.events),
            Route("/jobs/{id}/cancel", self._of_job(self.actions.cancel), methods=["POST"]),
            Route("/jobs/{id}/finish", self._of_job(self.actions.finish), methods=["POST"]),
            Route("/best", self.best),
            Route("/best", self.best_of_job, methods=["POST"]),
            Route("/judge", self.judge, methods=["POST"]),
            Route("/devices", self.devices),
            Route("/plugins", self.plugins),
            Route("/metrics", self.metrics),
            Route("/openapi.json", self.openapi),
            *self.exchange,
            *self.pages,
        ]
        handlers: dict[Any, Any] = {FusiondError: _fusiond_error, HTTPException: _http_error, Exception: _our_error}
        return Starlette(routes=routes, exception_handlers=handlers)

    async def health(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self.actions.health))

    async def submit(self, request: Request) -> Response:
        submission = _submission(await object_of(request))
        rows = await run_in_threadpool(self.actions.submit, submission)
        return JSONResponse({"jobs": [job_entry(row) for row in rows]}, status_code=201)

    async def jobs(self, request: Request) -> Response:
        states = tuple(request.query_params.getlist("state"))
        limit = min(_whole(request.query_params.get("limit", "100"), where="limit"), MOST_JOBS)
        if limit < 1:
            raise RequestError(f"{limit} is not a number of jobs; name 1 to {MOST_JOBS}", where="limit")
        before = request.query_params.get("before")
        rows = await run_in_threadpool(self.actions.jobs, states, limit, before)
        return JSONResponse({"jobs": [job_entry(row) for row in rows]})

    def _of_job(self, action: Callable[[str], JobRow]) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint that does something with the job of an id, and shows it."""

        async def endpoint(request: Request) -> Response:
            return JSONResponse(job_entry(await run_in_threadpool(action, request.path_params["id"])))

        return endpoint

    async def events(self, request: Request) -> Response:
        job = (await run_in_threadpool(self.actions.job, request.path_params["id"])).id
        return StreamingResponse(self._lines(job), media_type="application/x-ndjson")

    async def _lines(self, job: str) -> AsyncIterator[str]:
        async for progress in self.broker.follow(job, self.actions.job):
            yield json.dumps(progress.as_json()) + "\n" if progress else "\n"

    async def best(self, request: Request) -> Response:
        began = time.perf_counter()
        match = "refused"
        try:
            question = _question(request)
            document = await self._found(question)
            match = document["match"]
        except NothingKnown:
            match = "unknown"
            raise
        finally:
            self.actions.looked_up(match, time.perf_counter() - began)
        if match != "ambiguous":
            return JSONResponse(document)
        problem = f"stands for {len(document['answers'])} contents; POST /best with the job file that is meant"
        error = {"kind": "Ambiguous", "where": document["name"], "problem": problem}
        return JSONResponse({"error": error, **document}, status_code=409)

    async def _found(self, question: BestQuery) -> dict[str, Any]:
        # In the loop's own thread: it reads the store alone, for less time than handing it to another thread takes.
        try:
            document = self.actions.best(question)
        except NothingKnown:
            found = await run_in_threadpool(self.actions.elsewhere, question)
            if found is None:
                raise
            return found
        if "to_compare" in document:
            async with self._comparing:
                await run_in_threadpool(self.actions.compare, document)
        if document["match"] == "stale":  # writes, and may have to wait for others that do
            await run_in_threadpool(self.actions.recheck, document)
        return document

    async def best_of_job(self, request: Request) -> Response:
        question = _job_question(await object_of(request))
        began = time.perf_counter()
        found = await run_in_threadpool(self.actions.best_of_job, question)
        for each in found:
            match = "unknown" if isinstance(each, NothingKnown) else each["match"]
            self.actions.looked_up(match, (time.perf_counter() - began) / len(found))
        answers = [{"error": error_document(each)} if isinstance(each, NothingKnown) else each for each in found]
        if all("error" in each for each in answers):
            return JSONResponse(answers[0], status_code=404)
        return JSONResponse({"answers": answers})

    async def judge(self, request: Request) -> Response:
        wanted = _judge_request(await object_of(request))
        case = self.actions.judge(wanted)
        ruling = asyncio.wrap_future(case.ruling)
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait((ruling, gone), return_when=asyncio.FIRST_COMPLETED)
            if not ruling.done():
                raise RequestError("the client went away", where="body")
            return JSONResponse(await ruling)
        finally:
            gone.cancel()
            case.give_up()
            ruling.cancel()  # else what it still raises is nobody's

    async def devices(self, request: Request) -> Response:
        return JSONResponse({"devices": await run_in_threadpool(self.actions.devices)})

    async def plugins(self, request: Request) -> Response:
        return JSONResponse({"plugins": await run_in_threadpool(self.actions.plugins)})

    async def metrics(self, request: Request) -> Response:
        return Response(await run_in_threadpool(self.actions.metrics), media_type=METRICS_TYPE)

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(openapi.document(exchange=bool(self.exchange)))


# --- requests -------------------------------------------------------------------------------------------


async def body_of(request: Request, most: int = BODY_BYTES) -> bytes:
    """A request's body. TooLarge for one of more than `most` bytes."""
    too_large = TooLarge(f"is longer than {most // 1_000_000} MB", where="body")
    if _whole(request.headers.get("content-length", "0"), where="body") > most:
        raise too_large
    data = bytearray()
    try:
        async for chunk in request.stream():
            data += chunk
            if len(data) > most:
                raise too_large
    except ClientDisconnect:
        raise RequestError("the client went away", where="body") from None
    return bytes(data)


async def object_of(request: Request, most: int = BODY_BYTES) -> dict[str, Any]:
    """The JSON object in a request's body; RequestError for anything else."""
    data = await body_of(request, most)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise RequestError("is not JSON", where="body") from None
    if not isinstance(document, dict):
        raise RequestError("is not a JSON object", where="body")
    return document


async def _disconnected(request: Request) -> None:
    """Until the client is gone, once its body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _judge_request(body: dict[str, Any]) -> JudgeRequest:
    known = [each.name for each in dataclasses.fields(JudgeRequest)]
    for name in body:
        if name not in known:
            raise UnknownName("key", name, known, where="body")
    device, trials = _field(body, "device", str) or "auto", _field(body, "trials", int)
    secs = body.get("timeout_secs", judge.SECS)
    if "\0" in device:
        raise RequestError("is not a device", where="device")
    if trials is not None and not 1 <= trials <= judge.MOST_TRIALS:
        raise RequestError(f"must be from 1 to {judge.MOST_TRIALS}", where="trials")
    if isinstance(secs, bool) or not isinstance(secs, int | float) or not 0 < secs <= judge.MOST_SECS:
        raise RequestError(f"must be a number of seconds, at most {judge.MOST_SECS:g}", where="timeout_secs")
    kernels = {role: _kernel(body, role) for role in ("reference", "candidate")}
    return JudgeRequest(**kernels, device=device, trials=trials, timeout_secs=float(secs))


def _kernel(body: dict[str, Any], role: str) -> str | KernelTexts:
    given = body.get(role)
    if isinstance(given, dict):
        return judge.kernel_texts(given, where=role)
    path: str = _field(body, role, str) or ""
    if not path.startswith("/") or "\0" in path:
        raise RequestError("is neither an absolute path nor an object of yaml or function, and files", where=role)
    return path


def _job_question(body: dict[str, Any]) -> JobQuestion:
    path = _path(body, ("path", "text", "device", "sizes", "cache"))
    sizes = body.get("sizes") or {}
    if not isinstance(sizes, dict) or not all(type(each) is int and 1 <= each < 2**62 for each in sizes.values()):
        raise RequestError("expected an object of names and whole numbers from 1", where="sizes")
    cache = _field(body, "cache", str)
    return JobQuestion(
        path=path,
        text=_field(body, "text", str),
        device=_field(body, "device", str),
        sizes=sizes,
        cache=None if cache is None else _cache(cache),
    )


def _cache(text: str) -> str:
    if text not in ("warm", "cold"):
        raise RequestError(f"is {text[:40]!r}; it can be warm, cold", where="cache")
    return text


def _path(body: dict[str, Any], known: tuple[str, ...]) -> str:
    """The job file that a body is about; `known` are the keys that it may have."""
    for name in body:
        if name not in known:
            raise UnknownName("key", name, known, where="body")
    path: str | None = _field(body, "path", str)
    if not path:
        raise RequestError("the key 'path' is missing", where="body")
    if not path.startswith("/") or "\0" in path:
        raise RequestError("is not an absolute path", where="path")
    return path


def _submission(body: dict[str, Any]) -> Submission:
    path = _path(body, ("path", "text", "device", "trials", "seed", "priority"))
    priority = _field(body, "priority", int) or 0
    if abs(priority) > 1_000_000:
        raise RequestError("must be from -1000000 to 1000000", where="priority")
    return Submission(
        path=path,
        text=_field(body, "text", str),
        device=_field(body, "device", str),
        trials=_field(body, "trials", int),
        seed=_field(body, "seed", int),
        priority=priority,
    )


def _field(body: dict[str, Any], name: str, kind: type) -> Any:
    value = body.get(name)
    if isinstance(value, str) and any("\ud800" <= each <= "\udfff" for each in value):
        raise RequestError("holds half a character", where=name)
    if value is None or (isinstance(value, kind) and not isinstance(value, bool)):
        return value
    raise RequestError(f"is not a {'text' if kind is str else 'whole number'}", where=name)


def _question(request: Request) -> BestQuery:
    query = request.query_params
    pair, workload = query.get("pair"), query.get("workload")
    if (pair is None) == (workload is None):
        raise RequestError("give one of pair and workload", where="query")
    if pair is not None:
        members = sorted(each.strip() for each in pair.split(","))
        if len(members) != 2 or not all(members):
            raise RequestError(f"{pair[:80]!r} is not a pair", where="pair")
        workload = ",".join(members)
    sizes = {}
    for text in query.getlist("size"):
        name, _, value = text.partition("=")
        sizes[name] = _whole(value, where="size")
    cache = _cache(query.get("cache", "warm"))
    return BestQuery(name=workload or "", device=query.get("device"), sizes=sizes, cache=cache)


def _whole(text: str, *, where: str) -> int:
    try:
        return min(max(int(text), -(2**62)), 2**62)
    except ValueError:
        raise RequestError(f"{text[:80]!r} is not a whole number", where=where) from None


# --- errors ---------------------------------------------------------------------------------------------


async def _fusiond_error(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, FusiondError)
    if isinstance(problem, NothingKnown) or (isinstance(problem, RequestError) and problem.where == "job"):
        status = 404
    elif isinstance(problem, TooLarge):
        status = 413
    elif isinstance(problem, RequestError):
        status = 400
    elif isinstance(problem, DeviceError):
        status = 409
    else:
        log.log(logging.DEBUG if isinstance(problem, QueueFull) else logging.ERROR, "%s %s: %s", request.method,
                request.url.path, problem)  # fmt: skip
        status = 503
    headers = {"retry-after": str(problem.retry_secs)} if isinstance(problem, QueueFull) else None
    return JSONResponse({"error": error_document(problem)}, status_code=status, headers=headers)


async def _http_error(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    error = {"kind": "RequestError", "where": request.url.path, "problem": problem.detail}
    return JSONResponse({"error": error}, status_code=problem.status_code, headers=problem.headers)


async def _our_error(request: Request, problem: Exception) -> Response:
    log.error("%s %s failed: %s: %s", request.method, request.url.path, type(problem).__name__, problem)
    error = {"kind": "Bug", "where": request.url.path, "problem": f"{type(problem).__name__}: {problem}"}
    return JSONResponse({"error": error}, status_code=500)
