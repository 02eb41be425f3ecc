"""The daemon's configuration as JSON Schema, for editors. `config.read` decides."""

import dataclasses
from typing import Any

from fusiond.model.inputs.schemas import DIALECT
from fusiond.service.daemon.config import DEVICE, LEVELS, DaemonConfig
from fusiond.tuning.contention import Policy


def config() -> dict[str, Any]:
    """The schema of fusiond.yaml. Every key may be left out, and those without a default may be empty."""
    text = {"type": "string", "minLength": 1}
    device = {"type": "string", "pattern": f"^{DEVICE.pattern}$"}
    url = {"type": "string", "pattern": "^https?://"}
    upstream = {
        "type": "object", "required": ["url"], "additionalProperties": False,
        "properties": {"url": url, "token_file": text, "ca_file": text},
    }  # fmt: skip
    one = {"anyOf": [url, upstream]}
    found: dict[str, dict[str, Any]] = {
        "db": text,
        "socket": text,
        "web": {"type": "string", "pattern": r"^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$"},
        "tls_cert": text,
        "tls_key": text,
        "devices": {"anyOf": [device, {"type": "array", "items": device, "minItems": 1}]},
        "poll_secs": {"type": "number", "minimum": 0.05, "maximum": 3600},
        "when_busy": {"enum": [each.value for each in Policy]},
        "probe_secs": {"type": "number", "minimum": 1, "maximum": 86400},
        "judge_mb": {"type": "integer", "minimum": 64, "maximum": 1 << 30},
        "upstream": {"anyOf": [*one["anyOf"], {"type": "array", "items": one}]},
        "upstream_secs": {"type": "number", "minimum": 0.05, "maximum": 60},
        "log_level": {"enum": list(LEVELS)},
        "log": {"enum": ["text", "json"]},
    }
    for field in dataclasses.fields(DaemonConfig):
        plain = field.default
        if plain is None or plain == ():
            found[field.name] = {"anyOf": [found[field.name], {"type": "null"}]}
        elif not isinstance(plain, tuple):
            found[field.name]["default"] = plain
    return {
        "$schema": DIALECT, "title": "fusiond configuration", "type": "object", "properties": found,
        "additionalProperties": False,
    }  # fmt: skip
