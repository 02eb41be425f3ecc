"""`/openapi.json`: describes the endpoints of `app` in OpenAPI 3.1."""

from collections.abc import Mapping
from typing import Any

from fusiond import __version__
from fusiond.model.outcomes import JobState
from fusiond.service.daemon import judge

_TEXT = {"type": "string"}
_WHOLE = {"type": "integer"}
_STATES = [state.value for state in JobState]


def document(*, exchange: bool = False) -> dict[str, Any]:
    """The whole document; `exchange`: with what other boxes ask and tell."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fusiond",
            "version": __version__,
            "description": "Which GPU kernels are worth fusing, and how: measured, kept, and served.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://fusiond", "description": "the daemon's Unix socket, whatever the host is called"}],
        "paths": {
            "/health": {"get": _operation("What this daemon is and does.", "Object")},
            "/jobs": {
                "get": _operation(
                    "Jobs, the newest first.",
                    "Jobs",
                    _query("state", "Only jobs in this state; may be repeated.", {"type": "string", "enum": _STATES}),
                    _query("limit", "At most so many.", {**_WHOLE, "minimum": 1, "maximum": 1000, "default": 100}),
                    _query("before", "Only jobs that came before the one with this ID: the next page.", _TEXT),
                ),
                "post": _operation("Queue the jobs of a job file.", "Jobs", body="Submission", status=201),
            },
            "/jobs/{id}": {"get": _operation("One job.", "Job", _ID)},
            "/jobs/{id}/events": {
                "get": _operation(
                    "Its progress, an object a line, until it ends.", None, _ID, kind="application/x-ndjson"
                )
            },
            "/jobs/{id}/cancel": {"post": _operation("Stop a job, or take it off the queue.", "Job", _ID)},
            "/jobs/{id}/finish": {
                "post": _operation("End a job's search, and measure the finals of what is there.", "Job", _ID)
            },
            "/best": {
                "get": _operation(
                    "The best known answer for a name: `pair` or `workload`.",
                    "Answer",
                    _query("pair", "Two kernels with a comma between, in any order.", _TEXT),
                    _query("workload", "A workload by its name.", _TEXT),
                    _query("device", "cpu, cuda, cuda:N, or a device's model or key.", _TEXT),
                    _query("size", "NAME=NUMBER; may be repeated.", _TEXT),
                    _query("cache", "Of warm or of cold caches.", {"type": "string", "enum": ["warm", "cold"]}),
                ),
                "post": _operation("The answers for what a job file asks, by its content.", "Answers", body="Question"),
            },
            "/judge": {
                "post": _operation(
                    "Whether a candidate is right, and how fast beside its reference. It may wait in a queue; 503 with "
                    "Retry-After where that is full.", "Ruling", body="Case",
                )
            },
            "/devices": {"get": _operation("The devices that have a worker.", "Object")},
            "/plugins": {"get": _operation("The plugins, and why one did not load.", "Object")},
            "/metrics": {"get": _operation("For Prometheus.", None, kind="text/plain")},
            "/openapi.json": {"get": _operation("This document.", "Object")},
            **(_exchange() if exchange else {}),
        },
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "Over TCP; the Unix "
                                          "socket asks for none. `fusiond tokens add NAME`, or what `serve` prints."}},
        },
        "security": [{}, {"token": []}],
    }  # fmt: skip


def _exchange() -> dict[str, Any]:
    """What other boxes ask and tell (fusiond.service.daemon.upstream_server)."""
    cache = {"type": "string", "enum": ["warm", "cold"], "default": "warm"}
    line = "a JSON object: an answer with the key, the signature and, where asked for, the programs"
    return {
        "/exchange/answer": {
            "get": _operation(
                f"What is served to a content: {line}.", "Entry",
                {**_query("family", "The key of the content without its sizes.", _KEY), "required": True},
                {**_query("device", "The key of the device.", _KEY), "required": True},
                _query("cache", "Of warm or of cold caches.", cache),
                _query("sizes", "The canonical text of all sizes; left out: any.", _TEXT),
                _query("programs", "Not empty: with the programs.", _TEXT),
            )
        },
        "/exchange/find": {
            "post": _operation("The same for many contents; null where nothing is known.", "Found", body="Wanted")
        },
        "/exchange/answers": {
            "post": _operation(
                "Hand over answers, a line each; what became of them.", "Pushed", body="Entry",
                body_kind="application/x-ndjson",
            )
        },
        "/exchange/claims": {
            "post": _operation("Ask to tune a question alone for some seconds.", "Claimed", body="Claim")
        },
        "/exchange/claims/release": {"post": _operation("Let go of a claim.", "Object", body="Release")},
    }  # fmt: skip


def _operation(
    summary: str, result: str | None, *parameters: Mapping[str, Any], body: str | None = None, status: int = 200,
    kind: str = "application/json", body_kind: str = "application/json",
) -> dict[str, Any]:  # fmt: skip
    schema = _TEXT if result is None else _reference(result)
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {
            str(status): {"description": "Done.", "content": {kind: {"schema": schema}}},
            "default": {
                "description": "400 wrong request, 404 not known, 409 ambiguous, or no such device, 413 too long, 5xx "
                "the machine's or our fault.",
                "content": {"application/json": {"schema": _reference("Error")}},
            },
        },
    }
    if parameters:
        operation["parameters"] = [dict(each) for each in parameters]
    if body is not None:
        operation["requestBody"] = {
            "required": True, "content": {body_kind: {"schema": _reference(body)}}
        }  # fmt: skip
    return operation


def _query(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": dict(schema)}


_ID = {"name": "id", "in": "path", "required": True, "description": "A job's ID.", "schema": _TEXT}


_KEY = {"type": "string", "pattern": "^[0-9a-f]{32}$"}


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
        "Wanted": _object(("questions",), questions={"type": "array", "maxItems": 1000, "items": _object(
            ("family", "device"), family=_KEY, device=_KEY, cache=_TEXT, sizes={"type": ["string", "null"]},
        )}),
        "Found": _object(("answers",), answers={
            "type": "array", "items": {"anyOf": [_reference("Entry"), {"type": "null"}]}
        }),
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
