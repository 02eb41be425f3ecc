"""Questions for the best answer, as the command line, the client and the daemon put them.

A name is usually answered by the standard library alone (`store.lookup`). Only where that cannot say what the name
stands for are the plugins loaded; what they say is in the store from then on, so the next question is fast again.
"""

from __future__ import annotations

import os

from fusiond import __version__
from fusiond.model.errors import NothingKnown
from fusiond.model.system import driver
from fusiond.store import lookup
from fusiond.store.format import exchange_file
from fusiond.store.reading import Outdated

TYPE_CHECKING = False
if TYPE_CHECKING:  # `fusiond best` pays for everything that is imported here
    from collections.abc import Mapping
    from typing import Any

    from fusiond.requests.job_cache import Remembered


def by_name(
    database: os.PathLike[str] | str,
    name: str,
    *,
    device: str | None = None,
    sizes: Mapping[str, int] | None = None,
    cache: str = "warm",
    folder: str | None = None,
) -> dict[str, Any] | None:
    """The document of `best --json` for a name, from here or from an upstream; None when nothing is known of it.
    `folder`: where its files may lie (None: the current one).

    NothingKnown where only other content of that name has an answer. A check of a stale answer is queued."""
    where = folder or _current_folder()
    asked: dict[str, Any] = {"device": device, "sizes": sizes, "cache": cache}
    now: dict[str, Any] = {"driver": driver.version(), "version": __version__}
    problem: NothingKnown | None = None
    try:
        try:
            found = lookup.best(database, name=name, folder=where, strict=True, **now, **asked)
        except (lookup.Unsettled, Outdated):
            says, built = _settled(database, name, where)
            found = lookup.best(database, name=name, folder=where, says=says, built=built, **now, **asked)
    except NothingKnown as missing:
        found, problem = None, missing
    if found is None or (sizes and found["match"] == "nearest"):
        found = _imported(database, name, where, found, asked)
    if found is not None and found["match"] == "stale":
        lookup.queue_recheck(database, found)
    if found is None:
        found = _upstream_by_name(database, name, where, **asked)
    if found is None and problem is not None:
        raise problem
    return found


def by_job(
    database: os.PathLike[str] | str,
    path: os.PathLike[str] | str,
    text: str | None = None,
    *,
    device: str | None = None,
    sizes: Mapping[str, int] | None = None,
    cache: str | None = None,
    upstreams: bool = False,
) -> tuple[dict[str, Any] | NothingKnown, ...]:
    """For each workload of a job file the document of `best --json`, or the NothingKnown that says why there is none.
    `upstreams`: ask them, too.

    RequestError for a mistake in the file."""
    from fusiond.requests import job_cache  # a question by name does without

    known = job_cache.recall(database, path, text, sizes)
    found = None if known is None else _remembered(database, known, device, cache)
    if found is None:
        found = _parsed(database, path, text, device, sizes, cache)
    for each in found:
        if not isinstance(each, NothingKnown) and each["match"] == "stale":
            lookup.queue_recheck(database, each)
    if not upstreams or not any(isinstance(each, NothingKnown) for each in found):
        return found
    asked = _upstream_by_job(database, path, text, device, sizes, cache)
    if len(asked) != len(found):
        return found
    return tuple(
        other if isinstance(each, NothingKnown) and "error" not in other else each
        for each, other in zip(found, asked, strict=True)
    )


def _remembered(
    database: os.PathLike[str] | str, known: Remembered, device: str | None, cache: str | None
) -> tuple[dict[str, Any] | NothingKnown, ...] | None:
    """The same for questions that are known; None where another box may know better, or the store has to be indexed."""
    from fusiond.requests import job_cache

    found: dict[tuple[str, ...], dict[str, Any] | NothingKnown] = {}
    try:
        says = lookup.said(database)
    except Outdated:
        return None
    if says is not None and (says.versions, says.wrong) != (known.says.versions, known.says.wrong):
        return None  # other plugins were loaded for this store since
    for each in known.questions:
        where, state = device or each.device, cache or each.cache
        document = job_cache.answer(database, each, where, state, known.says)
        unsure = document is None or (isinstance(document, dict) and document["match"] == "nearest")
        if unsure and os.path.exists(exchange_file(os.fspath(database))):
            return None
        found[each.content, where, state] = job_cache.unknown(database, each, where) if document is None else document
    return tuple(found.values())


def _parsed(
    database: os.PathLike[str] | str,
    path: os.PathLike[str] | str,
    text: str | None,
    device: str | None,
    sizes: Mapping[str, int] | None,
    cache: str | None,
) -> tuple[dict[str, Any] | NothingKnown, ...]:
    from pathlib import Path

    from fusiond.model.system import files
    from fusiond.requests import content_lookup, jobs  # plugins and YAML: a question by name does without
    from fusiond.requests.isolation import registry as plugins

    database, path = Path(database), Path(path)
    text = files.read_text(path, where=str(path)) if text is None else text
    wanted = jobs.read(path, text)
    registry = plugins.load()
    content_lookup.index_file(database, registry)
    ready = content_lookup.ready(registry, wanted, sizes)
    content_lookup.remember(database, registry, path, text, wanted, ready, sizes)
    return content_lookup.best_of_jobs(database, registry, ready, device=device, cache=cache)


def _imported(
    database: os.PathLike[str] | str, name: str, folder: str | None, own: dict[str, Any] | None, asked: dict[str, Any]
) -> dict[str, Any] | None:
    """What another box found, where this one has nothing, or nothing at these sizes; else what it has. A name stands
    for what the files here and the catalogue say: it takes the plugins to know that it is the same content."""
    if not os.path.exists(exchange_file(os.fspath(database))):
        return own
    from pathlib import Path

    from fusiond.requests import content_lookup  # a hit of this store's own goes without all of this
    from fusiond.requests.isolation import registry as plugins
    from fusiond.store.exchange import find

    database = Path(database)
    families = find.known_name(database, name, asked["cache"])
    if not families:
        return own
    registry = plugins.load()
    same = families & content_lookup.families(registry, name, folder)
    found = content_lookup.imported(database, registry, same, **asked)
    if found is not None:
        content_lookup.queue_check_of_name(database, registry, name, folder, found)
    return found if own is None or (found is not None and found["match"] != "nearest") else own


def _current_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # somebody has deleted it
        return None


def _settled(database: os.PathLike[str] | str, name: str, folder: str | None) -> tuple[lookup.Says, frozenset[str]]:
    """What the plugins say, in general and of a name; the store keeps the former."""
    from pathlib import Path

    from fusiond.requests import content_lookup  # half a second that a settled name need not wait for
    from fusiond.requests.isolation import registry as plugins

    registry = plugins.load()
    content_lookup.index_file(Path(database), registry)
    return content_lookup.says(registry), content_lookup.families(registry, name, folder)


# --- what the daemon's upstreams know of a question that the store has no answer to ---

ASK_SECS = 10.0  #: The daemon bounds what it waits for itself (`upstream_secs`); reading a job file comes to that


def _upstream_by_name(
    database: os.PathLike[str] | str,
    name: str,
    folder: str | None,
    *,
    device: str | None,
    sizes: Mapping[str, int] | None,
    cache: str,
) -> dict[str, Any] | None:
    """Of a name of the catalogue; None where nobody is to be asked, or a file of the folder has that name."""
    if not _has_upstreams(database):
        return None
    from fusiond.store import named_files  # a hit goes without

    if folder and any(named_files.claims(folder, each.strip()) for each in name.split(",")):
        return None
    given = {"workload": name, "cache": cache, **({"device": device} if device else {})}
    query = [*given.items(), *(("size", f"{size}={value}") for size, value in (sizes or {}).items())]
    found: dict[str, Any] | None = _asked(database, "GET", query=query)
    return found


def _upstream_by_job(
    database: os.PathLike[str] | str,
    path: os.PathLike[str] | str,
    text: str | None,
    device: str | None,
    sizes: Mapping[str, int] | None,
    cache: str | None,
) -> list[dict[str, Any]]:
    """Of a job file: a document, or an error, for each of its workloads; empty where nobody is to be asked."""
    if not _has_upstreams(database):
        return []
    from pathlib import Path

    from fusiond.model.system import files

    where = Path(path).absolute()
    given = {"device": device, "sizes": dict(sizes or {}), "cache": cache}
    body = {"path": str(where), "text": files.read_text(where) if text is None else text}
    found = _asked(database, "POST", body=body | {name: value for name, value in given.items() if value})
    return found["answers"] if found is not None else []


def _has_upstreams(database: os.PathLike[str] | str) -> bool:
    if not os.path.exists(exchange_file(os.fspath(database))):
        return False
    from pathlib import Path

    from fusiond.store.exchange.find import exchange_of

    exchange = exchange_of(Path(database))
    return exchange is not None and exchange.has_upstreams()


def _asked(database: os.PathLike[str] | str, method: str, *, query: Any = None, body: Any = None) -> Any:
    """None where no daemon answers, or it has an error: then the store's own answer stands."""
    from pathlib import Path

    from fusiond.model.errors import FusiondError
    from fusiond.service.client import connection

    try:
        return connection.ask(connection.socket_of(Path(database)), method, "/best", body, ASK_SECS, query)
    except FusiondError:
        return None
