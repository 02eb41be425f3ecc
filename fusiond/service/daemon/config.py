"""The daemon's configuration: configs/fusiond.yaml, each key explained there."""

import dataclasses
import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fusiond.model.errors import RequestError
from fusiond.model.inputs import documents
from fusiond.model.inputs.documents import Node
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
    """MODULE:CLASS of the kind of device on its nodes."""
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
    names = tuple(field.name for field in dataclasses.fields(DaemonConfig))
    keys = documents.parse(files.read_text(path), str(path)).mapping(known=names)
    given = {
        name: _READERS[name](node, path.parent)
        for name, node in keys.items()
        if node.value is not None or name not in _MAY_BE_NULL
    }
    return DaemonConfig(**given)


def address(text: str) -> tuple[str, int] | None:
    """`127.0.0.1:8080`, `[::1]:0` (any free port): a host's address and a port; None for anything else."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([A-Za-z0-9.-]+)):(\d{1,5})", text.strip())
    if match is None or int(match[3]) > 65535:
        return None
    return match[1] or match[2], int(match[3])


def _upstreams(node: Node, folder: Path) -> tuple[UpstreamAddress, ...]:
    """URLs, each alone or with the file that holds its token."""
    found = []
    for each in node.sequence() if isinstance(node.value, tuple) else (node,):
        if isinstance(each.value, dict):
            keys = each.mapping(known=("url", "token_file", "ca_file"), required=("url",))
            token = _token(keys["token_file"], folder) if "token_file" in keys else ""
            authority = _authority(keys["ca_file"], folder) if "ca_file" in keys else None
            found.append(UpstreamAddress(url=_url(keys["url"]), token=token, authority=authority))
        else:
            found.append(UpstreamAddress(url=_url(each), token=""))
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


def _address(node: Node) -> tuple[str, int]:
    found = address(node.text())
    if found is None:
        raise node.fail(f"is {node.text()[:40]!r}; write HOST:PORT, for example 127.0.0.1:8080")
    return found


def _path(node: Node, folder: Path) -> Path:
    text = node.text()
    if not text or "\0" in text:
        raise node.fail("is not a path")
    return folder / Path(text).expanduser()


def _devices(node: Node) -> tuple[str, ...]:
    names = node.sequence() if isinstance(node.value, tuple) else (node,)
    if not names:
        raise node.fail("names no device; write all, cpu, cuda, cuda:0 or counted:h100")
    for each in names:
        if not DEVICE.fullmatch(each.text()):
            raise each.fail(f"is {each.text()[:40]!r}; write all, cpu, cuda, cuda:0 or counted:h100")
    return tuple(dict.fromkeys(each.text() for each in names))


_MAY_BE_NULL = ("db", "socket", "web", "tls_cert", "tls_key", "upstream")
"""Keys whose null stands for the default."""

_READERS: Mapping[str, Callable[[Node, Path], Any]] = {
    "db": _path,
    "socket": _path,
    "web": lambda node, _: _address(node),
    "tls_cert": _path,
    "tls_key": _path,
    "devices": lambda node, _: _devices(node),
    "poll_secs": lambda node, _: node.number(least=0.05, most=3600),
    "when_busy": lambda node, _: node.choice(*Policy),
    "probe_secs": lambda node, _: node.number(least=1, most=86400),
    "judge_mb": lambda node, _: node.integer(least=64, most=1 << 30),
    "upstream": _upstreams,
    "upstream_secs": lambda node, _: node.number(least=0.05, most=60),
    "log_level": lambda node, _: node.choice(*LEVELS),
    "log": lambda node, _: node.choice("text", "json"),
}
"""Key -> its value from its node and the folder of the file."""
