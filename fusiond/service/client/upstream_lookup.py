"""Asks the daemon, and through it the upstreams, for an answer that the store does not have."""

from __future__ import annotations

from fusiond.model.errors import DaemonError, FusiondError, NothingKnown
from fusiond.store import named_files
from fusiond.store.format import exchange_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

ASK_SECS = 10.0  #: The daemon bounds what it waits for itself (`upstream_secs`); reading a job file comes to that


def by_name(
    db: Path, name: str, *, device: str | None, sizes: Mapping[str, int] | None, cache: str, folder: str | None
) -> dict[str, Any] | None:
    """What the upstreams know of a name of the catalogue; None where nobody is to be asked, and where a file of the
    folder says what the name stands for: the daemon knows no folder."""
    if not _has_upstreams(db) or (folder and any(named_files.claims(folder, each.strip()) for each in name.split(","))):
        return None
    given = {"workload": name, "cache": cache, **({"device": device} if device else {})}
    query = [*given.items(), *(("size", f"{size}={value}") for size, value in (sizes or {}).items())]
    return _asked(db, "GET", query=query)


def by_job(
    db: Path,
    path: Path | str,
    text: str | None,
    *,
    device: str | None,
    sizes: Mapping[str, int] | None,
    cache: str | None,
) -> list[dict[str, Any]] | None:
    """What the upstreams know of a job file: a document, or an error, for each of its workloads."""
    if not _has_upstreams(db):
        return None
    from pathlib import Path

    from fusiond.model.system import files

    where = Path(path).absolute()
    body = {
        "path": str(where), "text": files.read_text(where) if text is None else text,
        **({"device": device} if device else {}), **({"sizes": dict(sizes)} if sizes else {}),
        **({"cache": cache} if cache else {}),
    }  # fmt: skip
    found = _asked(db, "POST", body=body)
    return found["answers"] if found is not None else None


def _has_upstreams(db: Path) -> bool:
    import os

    if not os.path.exists(exchange_file(os.fspath(db))):
        return False
    from fusiond.store.exchange.find import exchange_of

    exchange = exchange_of(db)
    return exchange is not None and exchange.has_upstreams()


def _asked(db: Path, method: str, *, query: Any = None, body: Any = None) -> dict[str, Any] | None:
    from fusiond.service.client import connection

    try:
        found: dict[str, Any] = connection.ask(connection.socket_of(db), method, "/best", body, ASK_SECS, query)
        return found
    except (NothingKnown, DaemonError):
        return None
    except FusiondError:  # ambiguous there, or a device that is not here: the store's own answer stands
        return None
