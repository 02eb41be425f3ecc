"""The daemon's configuration: configs/fusiond.yaml, each key explained there."""

import dataclasses
import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from fusiond.model.errors import RequestError
from fusiond.model.inputs import documents
from fusiond.model.inputs.documents import Node
from fusiond.model.inputs.schemas import DIALECT, TEXT, Schema
from fusiond.model.system import files
from fusiond.service.daemon import tls
from fusiond.tuning.contention import Policy

LEVELS = ("debug", "info", "warning", "error")
DEVICE = re.compile(r"(all|cpu|cuda(:[0-9]{1,3})?|counted(:[a-z0-9]{1,16})?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamAddress:
    """One line of `upstream`."""

    url: str  #: Without a slash at its end
    token: str = field(default="", repr=False)
    authority: Path | None = None  #: Of its certificate (PEM), where that is none that everybody trusts


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """How `fusiond serve` behaves. Options of the command line stand above the file, the file above these defaults."""

    db: Path | None = None  #: The store; None: FUSIOND_DB, else the user's own
    socket: Path | None = None  #: None: beside the store
    web: tuple[str, int] | None = None  #: Host and port of the pages; None: on the socket alone
    tls_cert: Path | None = None  #: The certificate of `web` (PEM, with the chain); None: plain HTTP
    tls_key: Path | None = None  #: Its private key
    devices: tuple[str, ...] = ("all",)  #: The devices that get a worker: `all`, `cpu`, `cuda`, `cuda:N`
    poll_secs: float = 1.0  #: How often a worker looks for jobs that another process queued
    when_busy: str = "wait"
    """While another process computes on the GPU: `wait`, `share` it, or leave it to them (`exclusive`)."""
    probe_secs: float = 300.0  #: How often a sick device is looked at again
    judge_mb: int = 8192  #: MiB of data that each process may have which judges a candidate
    upstream: tuple[UpstreamAddress, ...] = ()  #: Daemons that are asked what is not known here, and told what is found
    upstream_secs: float = 2.0  #: How long one of them is waited for
    log_level: str = "info"
    log: str = "text"  #: `text`, or `json`: an object a line

    def names(self, device: str) -> bool:
        """Whether `devices` name this one."""
        return any(each in ("all", device, device.partition(":")[0]) for each in self.devices)


AT_RUN_TIME = ("poll_secs", "when_busy", "probe_secs", "log_level", "log")
"""What a daemon takes over when it reads its configuration again (SIGHUP); the rest asks for a new start."""


def find() -> Path | None:
    """The configuration where the XDG base directory specification has it: `fusiond/fusiond.yaml` in $XDG_CONFIG_HOME
    (~/.config), then in each of $XDG_CONFIG_DIRS (/etc/xdg). None when there is none."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    folders = [home, *(os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")]
    absolute = [path for path in (Path(each).expanduser() for each in folders if each) if path.is_absolute()]
    return next((path for each in absolute if (path := each / "fusiond" / "fusiond.yaml").is_file()), None)


def read(path: Path) -> DaemonConfig:
    """The configuration of one file; relative paths in it are relative to it. RequestError with file, line and key."""
    keys = documents.parse(files.read_text(path), str(path)).mapping(known=tuple(_KEYS))
    given = {
        name: _KEYS[name][0](node, path.parent)
        for name, node in keys.items()
        if node.value is not None or not _may_be_null(name)
    }
    return DaemonConfig(**given)


def schema() -> dict[str, Any]:
    """fusiond.yaml as JSON Schema, for editors; `read` decides. Keys without a default may be empty."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, (_, own) in _KEYS.items():
        default = _DEFAULTS[name]
        if _may_be_null(name):
            found[name] = {"anyOf": [own, {"type": "null"}]}
        else:
            found[name] = own if isinstance(default, tuple) else {**own, "default": default}
    plain = {"title": "fusiond configuration", "type": "object", "properties": found, "additionalProperties": False}
    return {"$schema": DIALECT, **plain}


def address(text: str) -> tuple[str, int] | None:
    """`127.0.0.1:8080`, `[::1]:0` (any free port): a host's address and a port; None for anything else."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([A-Za-z0-9.-]+)):(\d{1,5})", text.strip())
    if match is None or int(match[3]) > 65535:
        return None
    return match[1] or match[2], int(match[3])


def _upstreams(node: Node, folder: Path) -> tuple[UpstreamAddress, ...]:
    """URLs, each alone or with the file that holds its token."""
    found = []
    for each in _each(node):
        keys = {"url": each}
        if isinstance(each.value, dict):
            keys = dict(each.mapping(known=("url", "token_file", "ca_file"), required=("url",)))
        token = _token(keys["token_file"], folder) if "token_file" in keys else ""
        authority = _authority(keys["ca_file"], folder) if "ca_file" in keys else None
        found.append(UpstreamAddress(url=_url(keys["url"]), token=token, authority=authority))
    if len({each.url for each in found}) < len(found):
        raise node.fail("names one twice")
    return tuple(found)


def _url(node: Node) -> str:
    """`https://box`, or `http://` of this machine: a token goes over no network in the clear."""
    text = node.text().rstrip("/")
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise node.fail(f"is {text[:80]!r}; write https://HOST[:PORT]") from None
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.query or parts.fragment:
        raise node.fail(f"is {text[:80]!r}; write https://HOST[:PORT]")
    if parts.scheme == "http" and not _is_here(host):
        raise node.fail(f"is {text[:80]!r}: write https://, or http:// of an SSH tunnel's end on this machine")
    return text


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _token(node: Node, folder: Path) -> str:
    path = _path(node, folder)
    try:
        mode, text = path.stat().st_mode, files.read_text(path).strip()
    except OSError as problem:
        raise node.fail(f"{path} cannot be read: {problem.strerror}") from None
    if mode & 0o077:
        raise node.fail(f"{path} can be read by others; `chmod 600` it")
    if not re.fullmatch(r"[A-Za-z0-9_.~+/=-]{16,200}", text):
        raise node.fail(f"{path} holds no token; `fusiond tokens add NAME` on the upstream prints one")
    return text


def _authority(node: Node, folder: Path) -> Path:
    path = _path(node, folder)
    try:
        tls.client(path)
    except RequestError as problem:
        raise node.fail(problem.problem) from None
    return path


def _address(node: Node, folder: Path) -> tuple[str, int]:
    found = address(node.text())
    if found is None:
        raise node.fail(f"is {node.text()[:40]!r}; write HOST:PORT, for example 127.0.0.1:8080")
    return found


def _path(node: Node, folder: Path) -> Path:
    text = node.text()
    if not text or "\0" in text:
        raise node.fail("is not a path")
    return folder / Path(text).expanduser()


def _devices(node: Node, folder: Path) -> tuple[str, ...]:
    names = _each(node)
    if not names:
        raise node.fail("names no device; write all, cpu, cuda, cuda:0 or counted:h100")
    for each in names:
        if not DEVICE.fullmatch(each.text()):
            raise each.fail(f"is {each.text()[:40]!r}; write all, cpu, cuda, cuda:0 or counted:h100")
    return tuple(dict.fromkeys(each.text() for each in names))


def _each(node: Node) -> tuple[Node, ...]:
    """One value, or a list of such."""
    return node.sequence() if isinstance(node.value, tuple) else (node,)


_Key: TypeAlias = "tuple[Callable[[Node, Path], Any], Schema]"
"""A value from its node and the folder of the file; and as JSON Schema."""


def _number(least: float, most: float) -> _Key:
    schema = {"type": "number", "minimum": least, "maximum": most}
    return lambda node, _: node.number(least=least, most=most), schema


def _choice(*names: str) -> _Key:
    return lambda node, _: node.choice(*names), {"enum": list(names)}


_DEVICE = {"type": "string", "pattern": f"^{DEVICE.pattern}$"}
_URL = {"type": "string", "pattern": "^https?://"}
_UPSTREAM = {
    "type": "object",
    "required": ["url"],
    "additionalProperties": False,
    "properties": {"url": _URL, "token_file": TEXT, "ca_file": TEXT},
}
_KEYS: Mapping[str, _Key] = {
    "db": (_path, TEXT),
    "socket": (_path, TEXT),
    "web": (_address, {"type": "string", "pattern": r"^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$"}),
    "tls_cert": (_path, TEXT),
    "tls_key": (_path, TEXT),
    "devices": (_devices, {"anyOf": [_DEVICE, {"type": "array", "items": _DEVICE, "minItems": 1}]}),
    "poll_secs": _number(0.05, 3600),
    "when_busy": _choice(*Policy),
    "probe_secs": _number(1, 86400),
    "judge_mb": (
        lambda node, _: node.integer(least=64, most=1 << 30),
        {"type": "integer", "minimum": 64, "maximum": 1 << 30},
    ),
    "upstream": (_upstreams, {"anyOf": [_URL, _UPSTREAM, {"type": "array", "items": {"anyOf": [_URL, _UPSTREAM]}}]}),
    "upstream_secs": _number(0.05, 60),
    "log_level": _choice(*LEVELS),
    "log": _choice("text", "json"),
}
_DEFAULTS = {each.name: each.default for each in dataclasses.fields(DaemonConfig)}


def _may_be_null(name: str) -> bool:
    """Whether null stands for the default."""
    return _DEFAULTS[name] in (None, ())
