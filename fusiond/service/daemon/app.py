"""The daemon's HTTP + JSON, for one user on a Unix socket; `App.starlette` lists the routes.

Every error is `{"error": {"kind", "where", "problem"}}`: 400 for a wrong request, 413 for a body that is too long,
404 for what is not known, 409 for a device that is not there and for a name that stands for several contents, 5xx for
what is our fault or the machine's. `fusiond.service.daemon.limits` answers what is too long, too slow or too many.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from fusiond.model.errors import DeviceError, FusiondError, NothingKnown, RequestError, UnknownName
from fusiond.service.daemon import judge, openapi
from fusiond.service.daemon.judge import JudgeRequest, KernelTexts, QueueFull
from fusiond.service.daemon.limits import BODY_BYTES
from fusiond.service.daemon.metrics import CONTENT_TYPE as METRICS_TYPE
from fusiond.service.daemon.openapi import ID, LINES, DescribedRoute
from fusiond.service.wire import error_document, job_entry
from fusiond.store import lookup
from fusiond.store.jobs import JobRow

if TYPE_CHECKING:
    from fusiond.service.daemon.service import Service

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


MOST_JOBS = 1000  #: In one page of GET /jobs; whoever asks for more gets as many


class App:
    """The endpoints: each checks the request, asks the service (in a thread, where that may block), and answers."""

    def __init__(self, service: Service, pages: Sequence[Route] = (), exchange: Sequence[DescribedRoute] = ()) -> None:
        """Beside the routes of the API: `pages`; `exchange`, what other boxes ask, where they may."""
        self.service = service
        self.pages = pages
        self.exchange = exchange
        self._comparing = asyncio.Semaphore(_MOST_COMPARING)

    def starlette(self) -> Starlette:
        service, store = self.service, self.service.store
        plugins = "The plugins, and why one did not load."
        submit, cancel = "Queue the jobs of a job file.", "Stop a job, or take it off the queue."
        finish = "End a job's search, and measure the finals of what is there."
        progress = "Its progress, an object a line, until it ends."
        best = "The best known answer for a name: `pair` or `workload`."
        question = "The answers for what a job file asks, by its content."
        judged = (
            "Whether a candidate is right, and how fast beside its reference. It may wait in a queue; 503 with "
            "Retry-After where that is full."
        )
        routes = [
            DescribedRoute("GET /health", _given(service.health), "What this daemon is and does.", "Object"),
            DescribedRoute("GET /jobs", self.jobs, "Jobs, the newest first.", "Jobs", *openapi.JOBS),
            DescribedRoute("POST /jobs", self.submit, submit, "Jobs", body="Submission", status=201),
            DescribedRoute("GET /jobs/{id}", _of_job(store.named_job), "One job.", "Job", ID),
            DescribedRoute("GET /jobs/{id}/events", self.events, progress, None, ID, kind=LINES),
            DescribedRoute("POST /jobs/{id}/cancel", _of_job(service.cancel), cancel, "Job", ID),
            DescribedRoute("POST /jobs/{id}/finish", _of_job(store.finish_early), finish, "Job", ID),
            DescribedRoute("GET /best", self.best, best, "Answer", *openapi.BEST),
            DescribedRoute("POST /best", self.best_of_job, question, "Answers", body="Question"),
            DescribedRoute("POST /judge", self.judge, judged, "Ruling", body="Case"),
            DescribedRoute(
                "GET /devices", _given(service.devices, "devices"), "The devices that have a worker.", "Object"
            ),
            DescribedRoute("GET /plugins", _given(service.work.plugins, "plugins"), plugins, "Object"),
            DescribedRoute("GET /metrics", self.metrics, "For Prometheus.", None, kind="text/plain"),
            DescribedRoute("GET /openapi.json", _given(lambda: openapi.document(routes)), "This document.", "Object"),
            *self.exchange,
        ]
        handlers: dict[Any, Any] = {FusiondError: _fusiond_error, HTTPException: _http_error, Exception: _our_error}
        return Starlette(routes=[*routes, *self.pages], exception_handlers=handlers)

    async def submit(self, request: Request) -> Response:
        submission = _submission(await object_of(request))
        rows = await run_in_threadpool(self.service.submit, submission)
        return JSONResponse({"jobs": [job_entry(row) for row in rows]}, status_code=201)

    async def jobs(self, request: Request) -> Response:
        states = tuple(request.query_params.getlist("state"))
        limit = min(_whole(request.query_params.get("limit", "100"), where="limit"), MOST_JOBS)
        if limit < 1:
            raise RequestError(f"{limit} is not a number of jobs; name 1 to {MOST_JOBS}", where="limit")
        before = request.query_params.get("before")
        rows = await run_in_threadpool(self.service.jobs, states, limit, before)
        return JSONResponse({"jobs": [job_entry(row) for row in rows]})

    async def events(self, request: Request) -> Response:
        job = (await run_in_threadpool(self.service.store.named_job, request.path_params["id"])).id
        return StreamingResponse(self._lines(job), media_type=LINES)

    async def _lines(self, job: str) -> AsyncIterator[str]:
        async for progress in self.service.broker.follow(job, self.service.store.named_job):
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
            self.service.metrics.looked_up(match, time.perf_counter() - began)
        if match != "ambiguous":
            return JSONResponse(document)
        problem = f"stands for {len(document['answers'])} contents; POST /best with the job file that is meant"
        error = {"kind": "Ambiguous", "where": document["name"], "problem": problem}
        return JSONResponse({"error": error, **document}, status_code=409)

    async def _found(self, question: BestQuery) -> dict[str, Any]:
        # In the loop's own thread: it reads the store alone, for less time than handing it to another thread takes.
        try:
            document = self.service.best(question)
        except NothingKnown:
            found = await run_in_threadpool(self.service.work.elsewhere, question)
            if found is None:
                raise
            return found
        if "to_compare" in document:
            async with self._comparing:
                await run_in_threadpool(lookup.compared, document)
        if document["match"] == "stale":  # writes, and may have to wait for others that do
            await run_in_threadpool(self.service.recheck, document)
        return document

    async def best_of_job(self, request: Request) -> Response:
        question = _job_question(await object_of(request))
        began = time.perf_counter()
        found = await run_in_threadpool(self.service.best_of_job, question)
        for each in found:
            match = "unknown" if isinstance(each, NothingKnown) else each["match"]
            self.service.metrics.looked_up(match, (time.perf_counter() - began) / len(found))
        answers = [{"error": error_document(each)} if isinstance(each, NothingKnown) else each for each in found]
        if all("error" in each for each in answers):
            return JSONResponse(answers[0], status_code=404)
        return JSONResponse({"answers": answers})

    async def judge(self, request: Request) -> Response:
        wanted = _judge_request(await object_of(request))
        case = self.service.docket.enter(wanted)
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

    async def metrics(self, request: Request) -> Response:
        return Response(await run_in_threadpool(self.service.metrics.text), media_type=METRICS_TYPE)


Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


def _given(read: Callable[[], Any], name: str = "") -> Endpoint:
    """The endpoint that shows a document, under a name where there is one."""

    async def endpoint(request: Request) -> Response:
        found = await run_in_threadpool(read)
        return JSONResponse({name: found} if name else found)

    return endpoint


def _of_job(action: Callable[[str], JobRow]) -> Endpoint:
    """The endpoint that does something with the job of an id, and shows it."""

    async def endpoint(request: Request) -> Response:
        return JSONResponse(job_entry(await run_in_threadpool(action, request.path_params["id"])))

    return endpoint


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
    _only_known(body, JudgeRequest)
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
    given = _of_job_file(body, JobQuestion)
    sizes = body.get("sizes") or {}
    if not isinstance(sizes, dict) or not all(type(each) is int and 1 <= each < 2**62 for each in sizes.values()):
        raise RequestError("expected an object of names and whole numbers from 1", where="sizes")
    if given["cache"] is not None:
        _cache(given["cache"])
    return JobQuestion(**given, sizes=sizes)


def _cache(text: str) -> str:
    if text not in ("warm", "cold"):
        raise RequestError(f"is {text[:40]!r}; it can be warm, cold", where="cache")
    return text


def _submission(body: dict[str, Any]) -> Submission:
    given = _of_job_file(body, Submission)
    priority = given.pop("priority") or 0
    if abs(priority) > 1_000_000:
        raise RequestError("must be from -1000000 to 1000000", where="priority")
    return Submission(**given, priority=priority)


_KINDS = {"path": str, "priority": int, "text": str, "device": str, "trials": int, "seed": int, "cache": str}
"""Keys of a body about a job file, in the order in which they are looked at."""


def _of_job_file(body: dict[str, Any], kind: type[Submission | JobQuestion]) -> dict[str, Any]:
    """The texts and numbers of a body; `kind` has all keys that it may have."""
    known = _only_known(body, kind)
    given = {name: _field(body, name, _KINDS[name]) for name in _KINDS if name in known}
    if not given["path"]:
        raise RequestError("the key 'path' is missing", where="body")
    if not given["path"].startswith("/") or "\0" in given["path"]:
        raise RequestError("is not an absolute path", where="path")
    return given


def _only_known(body: dict[str, Any], kind: type[Any]) -> list[str]:
    known = [each.name for each in dataclasses.fields(kind)]
    for name in body:
        if name not in known:
            raise UnknownName("key", name, known, where="body")
    return known


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


_STATUS = {NothingKnown: 404, TooLarge: 413, RequestError: 400, DeviceError: 409}


async def _fusiond_error(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, FusiondError)
    unknown = isinstance(problem, RequestError) and problem.where == "job"
    status = next((404 if unknown else code for kind, code in _STATUS.items() if isinstance(problem, kind)), 503)
    if status == 503:
        log.log(logging.DEBUG if isinstance(problem, QueueFull) else logging.ERROR, "%s %s: %s", request.method,
                request.url.path, problem)  # fmt: skip
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
