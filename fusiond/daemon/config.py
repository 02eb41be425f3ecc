"""The daemon's configuration: configs/fusiond.yaml, each key explained there."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from fusiond.daemon import tls
from fusiond.errors import RequestError
from fusiond.inputs import documents
from fusiond.inputs.documents import Node
from fusiond.system import files
from fusiond.tuning.contention import Policy

LEVELS = ("debug", "info", "warning", "error")
DEVICE = re.compile(r"(all|cpu|cuda(:[0-9]{1,3})?|cluster(:[0-9]{1,4})?|counted(:[a-z0-9]{1,16})?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """One line of `upstream`."""

    url: str
    """Without a slash at its end."""
    token: str = field(default="", repr=False)
    authority: Path | None = None
    """Of its certificate (PEM), where that is none that everybody trusts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How `fusiond serve` behaves. Options of the command line stand above the file, the file above these defaults."""

    db: Path | None = None
    """The store; None: FUSIOND_DB, else the user's own."""
    socket: Path | None = None
    """None: beside the store."""
    web: tuple[str, int] | None = None
    """Host and port of the pages; None: on the socket alone."""
    tls_cert: Path | None = None
    """The certificate of `web` (PEM, with the chain); None: plain HTTP."""
    tls_key: Path | None = None
    """Its private key."""
    devices: tuple[str, ...] = ("all",)
    """The devices that get a worker: `all`, `cpu`, `cuda`, `cuda:N`."""
    cluster: str | None = None
    """A Ray cluster whose devices are used, too: `auto`, or HOST:PORT of its head."""
    cluster_resource: str = "GPU"
    """What Ray counts the devices as."""
    cluster_device: str = "fusiond.devices.cuda.provider:CudaProvider"
    """MODULE:CLASS of the kind of device on its nodes."""
    poll_secs: float = 1.0
    """How often a worker looks for jobs that another process queued."""
    when_busy: str = "wait"
    """While another process computes on the GPU: `wait`, `share` it, or leave it to them (`exclusive`)."""
    probe_secs: float = 300.0
    """How often a sick device is looked at again."""
    upstream: tuple[Address, ...] = ()
    """Daemons that are asked what is not known here, and told what is found."""
    upstream_secs: float = 2.0
    """How long one of them is waited for."""
    log_level: str = "info"
    log: str = "text"
    """`text`, or `json`: an object a line."""


AT_RUN_TIME = ("poll_secs", "when_busy", "probe_secs", "log_level", "log")
"""What a daemon takes over when it reads its configuration again (SIGHUP); the rest asks for a new start."""


def find() -> Path | None:
    """The configuration where the XDG base directory specification has it: `fusiond/fusiond.yaml` in $XDG_CONFIG_HOME
    (~/.config), then in each of $XDG_CONFIG_DIRS (/etc/xdg). None when there is none."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    folders = [home, *(os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")]
    absolute = [path for path in (Path(each).expanduser() for each in folders if each) if path.is_absolute()]
    return next((path for each in absolute if (path := each / "fusiond" / "fusiond.yaml").is_file()), None)


def read(path: Path) -> Config:
    """The configuration of one file; relative paths in it are relative to it. RequestError with file, line and key."""
    names = tuple(field.name for field in dataclasses.fields(Config))
    keys = documents.parse(files.read_text(path), str(path)).mapping(known=names)
    config = Config()
    if "db" in keys and keys["db"].value is not None:
        config = dataclasses.replace(config, db=_path(keys["db"], path.parent))
    if "socket" in keys and keys["socket"].value is not None:
        config = dataclasses.replace(config, socket=_path(keys["socket"], path.parent))
    if "web" in keys and keys["web"].value is not None:
        config = dataclasses.replace(config, web=_address(keys["web"]))
    if "tls_cert" in keys and keys["tls_cert"].value is not None:
        config = dataclasses.replace(config, tls_cert=_path(keys["tls_cert"], path.parent))
    if "tls_key" in keys and keys["tls_key"].value is not None:
        config = dataclasses.replace(config, tls_key=_path(keys["tls_key"], path.parent))
    if "devices" in keys:
        config = dataclasses.replace(config, devices=_devices(keys["devices"]))
    if "cluster" in keys and keys["cluster"].value is not None:
        config = dataclasses.replace(config, cluster=_plain(keys["cluster"]))
    if "cluster_resource" in keys:
        config = dataclasses.replace(config, cluster_resource=_plain(keys["cluster_resource"]))
    if "cluster_device" in keys:
        config = dataclasses.replace(config, cluster_device=_plain(keys["cluster_device"]))
    if "poll_secs" in keys:
        config = dataclasses.replace(config, poll_secs=keys["poll_secs"].number(least=0.05, most=3600))
    if "when_busy" in keys:
        config = dataclasses.replace(config, when_busy=keys["when_busy"].choice(*Policy))
    if "probe_secs" in keys:
        config = dataclasses.replace(config, probe_secs=keys["probe_secs"].number(least=1, most=86400))
    if "upstream" in keys and keys["upstream"].value is not None:
        config = dataclasses.replace(config, upstream=_upstreams(keys["upstream"], path.parent))
    if "upstream_secs" in keys:
        config = dataclasses.replace(config, upstream_secs=keys["upstream_secs"].number(least=0.05, most=60))
    if "log_level" in keys:
        config = dataclasses.replace(config, log_level=keys["log_level"].choice(*LEVELS))
    if "log" in keys:
        config = dataclasses.replace(config, log=keys["log"].choice("text", "json"))
    return config


def address(text: str) -> tuple[str, int] | None:
    """`127.0.0.1:8080`, `[::1]:0` (any free port): a host's address and a port; None for anything else."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([A-Za-z0-9.-]+)):(\d{1,5})", text.strip())
    if match is None or int(match[3]) > 65535:
        return None
    return match[1] or match[2], int(match[3])


def _plain(node: Node) -> str:
    text = node.text()
    if not re.fullmatch(r"[A-Za-z0-9_.:/\[\]-]{1,200}", text):
        raise node.fail(f"is {text[:80]!r}; letters, digits and _ . : - are allowed")
    return text


def _upstreams(node: Node, folder: Path) -> tuple[Address, ...]:
    """URLs, each alone or with the file that holds its token."""
    found = []
    for each in node.sequence() if isinstance(node.value, tuple) else (node,):
        if isinstance(each.value, dict):
            keys = each.mapping(known=("url", "token_file", "ca_file"), required=("url",))
            token = _token(keys["token_file"], folder) if "token_file" in keys else ""
            authority = _authority(keys["ca_file"], folder) if "ca_file" in keys else None
            found.append(Address(url=_url(keys["url"]), token=token, authority=authority))
        else:
            found.append(Address(url=_url(each), token=""))
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
        raise node.fail("is no path")
    return folder / Path(text).expanduser()


def _devices(node: Node) -> tuple[str, ...]:
    names = node.sequence() if isinstance(node.value, tuple) else (node,)
    if not names:
        raise node.fail("names no device; write all, cpu, cuda, cuda:0 or counted:h100")
    for each in names:
        if not DEVICE.fullmatch(each.text()):
            raise each.fail(f"is {each.text()[:40]!r}; write all, cpu, cuda, cuda:0 or counted:h100")
    return tuple(dict.fromkeys(each.text() for each in names))
