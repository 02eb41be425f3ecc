"""The daemon's configuration: configs/fusiond.yaml, each key explained there."""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass
from pathlib import Path

from fusiond.inputs import documents
from fusiond.inputs.documents import Node
from fusiond.system import files
from fusiond.tuning.contention import Policy

LEVELS = ("debug", "info", "warning", "error")
_DEVICE = re.compile(r"(all|cpu|cuda(:[0-9]{1,3})?|counted(:[a-z0-9]{1,16})?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How `fusiond serve` behaves. Options of the command line stand above the file, the file above these defaults."""

    db: Path | None = None
    """The store; None: FUSIOND_DB, else the user's own."""
    socket: Path | None = None
    """None: beside the store."""
    web: tuple[str, int] | None = None
    """Host and port of the pages; None: on the socket alone."""
    devices: tuple[str, ...] = ("all",)
    """The devices that get a worker: `all`, `cpu`, `cuda`, `cuda:N`."""
    poll_secs: float = 1.0
    """How often a worker looks for jobs that another process queued."""
    when_busy: str = "wait"
    """While another process computes on the GPU: `wait`, `share` it, or leave it to them (`exclusive`)."""
    probe_secs: float = 300.0
    """How often a sick device is looked at again."""
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
    if "devices" in keys:
        config = dataclasses.replace(config, devices=_devices(keys["devices"]))
    if "poll_secs" in keys:
        config = dataclasses.replace(config, poll_secs=keys["poll_secs"].number(least=0.05, most=3600))
    if "when_busy" in keys:
        config = dataclasses.replace(config, when_busy=keys["when_busy"].choice(*Policy))
    if "probe_secs" in keys:
        config = dataclasses.replace(config, probe_secs=keys["probe_secs"].number(least=1, most=86400))
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
        if not _DEVICE.fullmatch(each.text()):
            raise each.fail(f"is {each.text()[:40]!r}; write all, cpu, cuda, cuda:0 or counted:h100")
    return tuple(dict.fromkeys(each.text() for each in names))
