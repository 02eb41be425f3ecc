"""`/openapi.json`: describes the endpoints of `app` in OpenAPI 3.1."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from starlette.routing import Route

from fusiond import __version__
from fusiond.model.outcomes import JobState
from fusiond.service.daemon import judge

LINES = "application/x-ndjson"  #: A JSON object a line
_TEXT = {"type": "string"}
_WHOLE = {"type": "integer"}
_STATES = [state.value for state in JobState]


class DescribedRoute(Route):
    """A route, and what the document says of it."""

    def __init__(
        self, route: str, endpoint: Callable[..., Any], summary: str, result: str | None,
        *parameters: Mapping[str, Any], body: str | None = None, status: int = 200, kind: str = "application/json",
        body_kind: str = "application/json",
    ) -> None:  # fmt: skip
        """`route`: a method and a path; `result` and `body`: schemas of the document."""
        self.method, _, path = route.partition(" ")
        super().__init__(path, endpoint, methods=[self.method])
        schema = _TEXT if result is None else _reference(result)
        self.operation: dict[str, Any] = {
            "summary": summary,
            "responses": {
                str(status): {"description": "Done.", "content": {kind: {"schema": schema}}},
                "default": {
                    "description": "400 wrong request, 404 not known, 409 ambiguous, or no such device, 413 too long, "
                    "5xx the machine's or our fault.",
                    "content": {"application/json": {"schema": _reference("Error")}},
                },
            },
        }
        if parameters:
            self.operation["parameters"] = [dict(each) for each in parameters]
        if body is not None:
            content = {body_kind: {"schema": _reference(body)}}
            self.operation["requestBody"] = {"required": True, "content": content}


def document(routes: Iterable[DescribedRoute]) -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for each in routes:
        paths.setdefault(each.path, {})[each.method.lower()] = each.operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fusiond",
            "version": __version__,
            "description": "Which GPU kernels are worth fusing, and how: measured, kept, and served.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://fusiond", "description": "the daemon's Unix socket, whatever the host is called"}],
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "Over TCP; the Unix "
                                          "socket asks for none. `fusiond tokens add NAME`, or what `serve` prints."}},
        },
        "security": [{}, {"token": []}],
    }  # fmt: skip


def _query(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": dict(schema)}


_CACHE = {"type": "string", "enum": ["warm", "cold"]}
_KEY = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
ID = {"name": "id", "in": "path", "required": True, "description": "A job's ID.", "schema": _TEXT}
JOBS = (
    _query("state", "Only jobs in this state; may be repeated.", {"type": "string", "enum": _STATES}),
    _query("limit", "At most so many.", {**_WHOLE, "minimum": 1, "maximum": 1000, "default": 100}),
    _query("before", "Only jobs that came before the one with this ID: the next page.", _TEXT),
)
BEST = (
    _query("pair", "Two kernels with a comma between, in any order.", _TEXT),
    _query("workload", "A workload by its name.", _TEXT),
    _query("device", "cpu, cuda, cuda:N, or a device's model or key.", _TEXT),
    _query("size", "NAME=NUMBER; may be repeated.", _TEXT),
    _query("cache", "Of warm or of cold caches.", _CACHE),
)
EXCHANGED = (
    {**_query("family", "The key of the content without its sizes.", _KEY), "required": True},
    {**_query("device", "The key of the device.", _KEY), "required": True},
    _query("cache", "Of warm or of cold caches.", {**_CACHE, "default": "warm"}),
    _query("sizes", "The canonical text of all sizes; left out: any.", _TEXT),
    _query("programs", "Not empty: with the programs.", _TEXT),
)


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


def _schemas() -> dict[str, Any]:
    maybe = {"type": ["number", "null"]}
    file = {
        "path": {**_TEXT, "description": "The job file, absolute."},
        "text": {**_TEXT, "description": "Its content."},
    }
    return {
        "Object": {"type": "object"},
        "Error": _object(
            ("error",),
            error=_object(("kind", "problem"), kind=_TEXT, where={"type": ["string", "null"]}, problem=_TEXT),
        ),
        "Job": _object(
            ("id", "state"),
            id=_TEXT, state={"type": "string", "enum": _STATES}, workload=_TEXT, device=_TEXT, trials=_WHOLE,
        ),
        "Jobs": _object(("jobs",), jobs={"type": "array", "items": _reference("Job")}),
        "Submission": _object(("path",), **file, device=_TEXT, trials=_WHOLE, seed=_WHOLE, priority=_WHOLE),
        "Question": _object(
            ("path",), **file, device=_TEXT, cache=_TEXT, sizes={"type": "object", "additionalProperties": _WHOLE}
        ),
        "Answer": _object(
            ("workload", "device", "verdict", "evidence", "match"),
            workload={"type": "object"}, device={"type": "object"}, verdict=_TEXT, config={"type": ["object", "null"]},
            time_us=maybe, baseline=_TEXT, baseline_us=maybe, speedup=maybe,
            ci95={"type": ["array", "null"], "items": {"type": "number"}},
            evidence={"type": "string", "enum": ["measured", "emulated", "counted", "replayed"]},
            match={"type": "string", "enum": ["exact", "stale", "nearest", "ambiguous"]},
            notes={"type": "array", "items": _TEXT},
        ),
        "Entry": _object(
            ("fusiond_answer", "key", "signature", "body"), fusiond_answer=_WHOLE, key=_TEXT, signature=_TEXT,
            body={"type": "object"}, programs={"type": "object"},
        ),
        "Pushed": _object(
            ("new", "known", "refused", "why"), new=_WHOLE, known=_WHOLE, refused=_WHOLE,
            why={"type": "array", "items": _TEXT},
        ),
        "Claim": _object(
            ("question", "holder", "secs"), question=_TEXT, holder=_TEXT,
            secs={"type": "number", "minimum": 1, "maximum": 600},
        ),
        "Claimed": _object(
            ("granted", "holder", "left_secs"), granted={"type": "boolean"}, holder=_TEXT,
            left_secs={"type": "number"},
        ),
        "Release": _object(("question", "holder"), question=_TEXT, holder=_TEXT),
        "Kernel": {"anyOf": [
            {**_TEXT, "description": "The absolute path of a kernel's YAML file."},
            _object((), yaml={**_TEXT, "description": "Its content, which names `files`."},
                    function={**_TEXT, "description": "Instead of yaml: `FILE.py:FUNCTION`, of one of `files`."},
                    files={"type": "object", "maxProperties": judge.MOST_FILES, "additionalProperties": _TEXT}),
        ]},
        "Case": _object(
            ("reference", "candidate"), reference=_reference("Kernel"), candidate=_reference("Kernel"),
            device={**_TEXT, "default": "auto"}, trials={**_WHOLE, "minimum": 1, "maximum": judge.MOST_TRIALS},
            timeout_secs={"type": "number", "exclusiveMinimum": 0, "maximum": judge.MOST_SECS, "default": judge.SECS},
        ),
        "Ruling": _object(
            ("right", "problem", "speedup", "ci95", "evidence"),
            right={"type": "boolean"}, problem={"type": ["string", "null"]}, speedup=maybe,
            ci95={"type": ["array", "null"], "items": {"type": "number"}}, evidence={"type": ["string", "null"]},
            hints={"type": "array", "items": _TEXT},
        ),
        "Answers": _object(("answers",), answers={"type": "array", "items": _reference("Answer")}),
    }  # fmt: skip
