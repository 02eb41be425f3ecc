"""The routes of the pages, and the pages as files of their own (`fusiond explain ID --html FILE`)."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from fusiond.model.errors import FusiondError, NothingKnown, RequestError
from fusiond.model.outcomes import JobState
from fusiond.service.remaining import Standing, duration
from fusiond.service.web import views
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow
from fusiond.store.trials import TrialLine

STATIC = Path(__file__).parent / "static"
FILES = {
    "style.css": "text/css; charset=utf-8",
    "plots.css": "text/css; charset=utf-8",
    "fusiond.js": "text/javascript; charset=utf-8",
}
MOST_KNOWN = 8  #: Running jobs whose trials are kept for the next look
Change = Callable[[str], JobRow]  #: What a button does with a job's ID


def environment() -> Environment:
    """Jinja2 with everything escaped, and a name that is not given an error."""
    found = Environment(
        loader=PackageLoader("fusiond.service.web"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    found.filters["when"] = lambda text: text[:16].replace("T", " ") if text else ""
    found.filters["duration"] = duration
    found.filters["way"] = lambda role: role.partition(":")[2] or role
    found.filters["ratio"] = lambda value: "" if value is None else f"{value:.3f}x"
    found.globals["answer_path"] = views.answer_path
    return found


class Pages:
    """Pages over a store; `now` says what the daemon does, `standing` how one of its jobs stands, `changes` are the
    buttons: name -> function."""

    def __init__(
        self,
        store: Store,
        now: views.Look,
        changes: Mapping[str, Change],
        standing: Callable[[str], Standing | None] = lambda job: None,
    ) -> None:
        self._store = store
        self._now = now
        self._standing = standing
        self._changes = changes
        self._templates = environment()
        self._known: dict[str, list[TrialLine]] = {}
        """Of jobs that run and are looked at: what was read of their trials."""
        self._lock = threading.Lock()

    def routes(self) -> list[Route]:
        """`/`, `/page/jobs/{id}`, its buttons, `/answers/...`, the style sheet and the script."""
        return [
            Route("/", self.overview),
            Route("/page/jobs/{id}", self.job),
            Route("/page/jobs/{id}/{change}", self.change, methods=["POST"]),
            Route("/answers/{workload}/{device}/{cache}", self.answer),
            Route("/static/{name}", self.static),
        ]

    async def overview(self, request: Request) -> Response:
        states = request.query_params.getlist("state")
        known = [state.value for state in JobState]
        if wrong := [each for each in states if each not in known]:
            raise RequestError(f"{wrong[0][:40]!r} is none of {', '.join(known)}", where="state")
        return await self._page("overview.html", lambda: views.overview(self._store, self._now(), states))

    async def job(self, request: Request) -> Response:
        id, after = request.path_params["id"], request.query_params.get("after")
        try:
            last = None if after is None else int(after)
        except ValueError:
            raise RequestError(f"{after[:40] if after else ''!r} is not a number of a trial", where="after") from None
        return await self._page(
            "job.html", lambda: views.job(self._store, id, self._standing(id), after=last, read=self._read)
        )

    async def answer(self, request: Request) -> Response:
        keys = request.path_params
        return await self._page(
            "answer.html", lambda: views.answer(self._store, keys["workload"], keys["device"], keys["cache"])
        )

    async def change(self, request: Request) -> Response:
        action = self._changes.get(request.path_params["change"])
        if action is None:
            raise HTTPException(404, "there is no such button")
        row = await run_in_threadpool(action, request.path_params["id"])
        return RedirectResponse(f"/page/jobs/{row.id}", status_code=303)

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in FILES:
            raise HTTPException(404, "there is no such file")
        return FileResponse(STATIC / name, media_type=FILES[name])

    def _read(self, row: JobRow) -> list[TrialLine]:
        """The trials of a job; of one that runs, those alone are read that were not there the last time."""
        if row.state.ended:
            with self._lock:
                self._known.pop(row.id, None)
            return self._store.trial_lines(row.id)
        with self._lock:
            known = self._known.get(row.id, [])
        more = self._store.trial_lines(row.id, after=max((each.id for each in known), default=0))
        if more:
            known = sorted([*known, *more], key=lambda each: (each.role, each.sequence))
        with self._lock:
            self._known.pop(row.id, None)
            self._known[row.id] = known
            while len(self._known) > MOST_KNOWN:
                del self._known[next(iter(self._known))]
        return known

    async def _page(self, template: str, look: Callable[[], dict[str, Any]]) -> Response:
        """A page, read and written in a thread of its own; what goes wrong is a page, too."""

        def written() -> tuple[int, str]:
            try:
                return 200, self._templates.get_template(template).render(look(), alone=None)
            except FusiondError as problem:
                unknown = isinstance(problem, NothingKnown) or (
                    isinstance(problem, RequestError) and problem.where == "job"
                )
                status = 404 if unknown else 400 if isinstance(problem, RequestError) else 503
                page = self._templates.get_template("problem.html").render(problem=str(problem), alone=None)
                return status, page

        status, text = await run_in_threadpool(written)
        return HTMLResponse(text, status_code=status)


def standing_alone(store: Store, id: str) -> str:
    """A job's page and its answer's, as one file that loads nothing. RequestError for a job that is not there."""
    templates = environment()
    alone: dict[str, Any] = {
        "style": views.style(),
        "script": Markup((STATIC / "fusiond.js").read_text(encoding="utf-8")),
        "answer": "",
    }
    job = views.job(store, id)
    record = job["answer"]
    if record is not None:
        found = views.answer(store, record.workload_key, record.device_key, record.cache)
        text = templates.get_template("answer_body.html").render(found, alone=alone)
        alone["answer"] = Markup(text)
    return templates.get_template("job.html").render(job, alone=alone)


def capture(document: Mapping[str, Any], name: str) -> str:
    """A capture's page, from the document of `fusiond capture DIR --json`, as one file that loads nothing."""
    alone = {"style": views.style(), "script": Markup((STATIC / "fusiond.js").read_text(encoding="utf-8"))}
    return environment().get_template("capture.html").render(document, name=name, alone=alone)


def unchanged(id: str) -> NoReturn:
    """What a button does where nothing can be changed."""
    raise RequestError("nothing can be changed here", where="job")
