"""Job files as JSON Schema, for editors that complete and check YAML by it.

A schema says which keys there are and what they may hold; what only a strategy knows (which sizes a kernel has, what a
file must say) is left to `fusiond plan`.
"""

from collections.abc import Iterable
from typing import Any

from fusiond.model.inputs.schemas import COUNT, DIALECT, Schema, closed
from fusiond.model.nouns import Search
from fusiond.requests import jobs
from fusiond.strategy import Strategy

_DEVICE = {
    "type": "string",
    "pattern": "^[a-z][a-z0-9_]*(:[a-z0-9]{1,16})?$",
    "examples": ["auto", "cpu", "cuda", "cuda:0", "counted:h100", "all"],
}


def documents(strategies: Iterable[Strategy]) -> dict[str, Schema]:
    """Kind -> schema, of job files and of the documents that strategies read."""
    known = sorted(strategies, key=lambda each: each.name)
    return {"job": job(known), **{kind: schema for each in known for kind, schema in each.documents.items()}}


def job(strategies: Iterable[Strategy]) -> dict[str, Any]:
    """The schema of job files, with the keys of these strategies."""
    known = sorted(strategies, key=lambda each: each.name)
    own: dict[str, Any] = {key: {} for each in known for key in each.job_keys}
    default = Search()
    return {
        "$schema": DIALECT,
        "title": "fusiond job",
        "type": "object",
        "required": ["strategy"],
        "properties": {
            "schema": {"const": jobs.SCHEMA},
            "strategy": {"enum": [each.name for each in known]},
            "sizes": {
                "type": "object",
                "description": "NAME or a.NAME: whole number from 1",
                "additionalProperties": COUNT,
            },
            "sweep": {
                "type": "object",
                "description": "name: list of sizes; one workload for each combination",
                "additionalProperties": {"type": "array", "items": COUNT, "minItems": 1},
            },
            "device": {**_DEVICE, "default": "auto"},
            "accept_constant": {"type": "boolean", "default": False},
            "search": closed(
                {
                    "trials": {"type": "integer", "minimum": 1, "default": default.trials},
                    "timeout": {"type": ["string", "integer", "number"], "examples": ["90s", "10m", "2h"]},
                    "seed": {"type": "integer", "minimum": 0, "default": default.seed},
                    "least_gain": {"type": "number", "minimum": 1, "maximum": 100, "default": default.least_gain},
                    "sanitize": {"type": "boolean", "default": False},
                    "patience": {"anyOf": [{"type": "integer", "minimum": 1}, {"enum": ["none", None]}]},
                    "order": {"type": "string", "default": "sampler"},
                }
            ),
            "measure": closed({"cache": {"enum": list(jobs.CACHES), "default": "warm"}}),
            **own,
        },
        "allOf": [
            {
                "if": {"properties": {"strategy": {"const": each.name}}},
                "then": {"propertyNames": {"enum": [*jobs.CORE_KEYS, *each.job_keys]}},
            }
            for each in known
        ],
    }
