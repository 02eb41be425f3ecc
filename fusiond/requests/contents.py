"""What jobs and names stand for, by their content: the part of `best` that needs the plugins.

a store --index--> what the plugins say, and content keys of workloads that an earlier version wrote
a name  --families--> the contents that the files of a folder, or the catalogue, give it
a job   --best_of_jobs--> the answers for what it asks, whatever it is called
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fusiond import __version__, names
from fusiond.errors import FusiondError, MachineFault, NothingKnown, StoreError
from fusiond.model import Job, Workload, frozen
from fusiond.registry import Registry
from fusiond.requests.planning import prepare
from fusiond.store import lookup
from fusiond.store.database import Store
from fusiond.store.format import lookup_name
from fusiond.store.lookup import Says
from fusiond.strategy import Strategy
from fusiond.system import driver

log = logging.getLogger(__name__)

MAX_BUILT = 16
"""Combinations of equally named documents that are parsed for one name and strategy."""


def index(store: Store, registry: Registry) -> None:
    """Keep in the store what a lookup needs of the plugins. Called wherever a store and a registry are open together;
    cheap where there is nothing new."""
    store.save_strategies(registry.strategies.values(), registry.catalogue.values())
    for workload_key, job in store.without_content():
        try:
            parsed = None if job is None else _parsed(registry, store.load_job(job))
        except MachineFault as fault:  # the next one who opens both goes on
            log.warning("stored jobs could not be read again: %s", fault)
            return
        store.save_content(workload_key, parsed)


def _parsed(registry: Registry, job: Job) -> Workload | None:
    """A stored job under today's parser; None where it does not parse any more. Raises MachineFault."""
    try:
        return prepare(registry, job).workload
    except MachineFault:
        raise
    except Exception as problem:  # a stranger's parser may raise anything at all
        log.debug("a stored job of %s does not parse any more: %s", job.strategy, problem)
        return None


def index_file(database: Path, registry: Registry) -> None:
    """`index` of a store that is not open; one that cannot be written is asked as it is."""
    if database.is_file():
        with contextlib.suppress(StoreError), contextlib.closing(Store.open(database, create=False)) as store:
            index(store, registry)


def says(registry: Registry) -> Says:
    """What the plugins of today say, for a lookup in a store that does not have it."""
    strategies = registry.strategies
    return Says(
        versions={name: each.version for name, each in strategies.items()},
        wrong={name: each.wrong_versions for name, each in strategies.items()},
        kinds={name: tuple(each.names) for name, each in strategies.items()},
        catalogue={key: str(entry.path) for key, entry in registry.catalogue.items()},
        fusiond={__version__},
    )


# --- names ----------------------------------------------------------------------------------------------


def families(registry: Registry, name: str, folder: str | None) -> frozenset[str]:
    """The families that a name stands for by the files of a folder; where none of them has a member, by the
    catalogue."""
    members = [names.whole(each) for each in lookup_name(name).split(",")]
    claims = {each: names.claims(folder, each) for each in members} if folder else {}
    local = any(claims.values())
    found = set()
    for strategy in registry.strategies.values():
        for kind, key in strategy.names.items():
            if local and not any(each.get(kind) for each in claims.values()):
                continue
            known = registry.names(kind)
            ways = [claims.get(each, {}).get(kind) or [each] * (each in known) for each in members]
            for documents in itertools.islice(itertools.product(*ways), MAX_BUILT):
                family = _family(registry, strategy, key, documents, folder or "/")
                if family is not None:
                    found.add(family)
    return frozenset(found)


def _family(registry: Registry, strategy: Strategy, key: str, documents: tuple[str, ...], folder: str) -> str | None:
    """The family of a job for these documents that says nothing else; None where there is no such job."""
    values: list[object] = [list(documents)] if len(documents) > 1 else [documents[0], list(documents)]
    for value in values:
        job = Job(
            strategy=strategy.name,
            request=frozen({key: value}),
            sizes=frozen(),
            path=str(Path(folder) / "best"),
        )
        parsed = _parsed(registry, job)
        if parsed is not None:
            return parsed.content_family_key
    return None


# --- jobs -----------------------------------------------------------------------------------------------


def best_of_jobs(
    database: Path,
    registry: Registry,
    wanted: Iterable[Job],
    *,
    device: str | None = None,
    sizes: Mapping[str, int] | None = None,
    cache: str | None = None,
) -> tuple[dict[str, Any] | NothingKnown, ...]:
    """For each job the document of `best --json`, or why there is none. What is given overrules the job.

    The store was indexed. RequestError for whatever is wrong with a job.
    """
    found: dict[tuple[object, ...], dict[str, Any] | NothingKnown] = {}
    for job in wanted:
        asked = dataclasses.replace(job, sizes=frozen({**job.sizes, **(sizes or {})}))
        workload = prepare(registry, asked).workload
        where = device or job.device
        state = cache or job.search.cache
        key = workload.content_key, where, state
        if key not in found:
            found[key] = _best_of(database, registry, workload, job.path, where, state)
    return tuple(found.values())


def _best_of(
    database: Path, registry: Registry, workload: Workload, path: str, device: str, cache: str
) -> dict[str, Any] | NothingKnown:
    try:
        document = lookup.best_of(
            database,
            family=workload.content_family_key,
            sizes=workload.sizes,
            name=workload.name,
            device=device,
            driver=driver.version(),
            version=__version__,
            cache=cache,
            says=says(registry),
        )
    except NothingKnown as problem:  # what would be the answer is damaged
        return problem
    if document is not None:
        return document
    on = "" if device in ("auto", "all") else f" on {device}"
    others = _others(database, workload)
    hint = f"an answer for other content of that name exists ({others})" if others else "`fusiond run` finds out"
    return NothingKnown(f"nothing is known about {workload.name} as {path} asks it{on}; {hint}")


def _others(database: Path, workload: Workload) -> str:
    try:
        known = lookup.contents(database, workload.name, version=__version__)
    except FusiondError:
        return ""
    paths = [f"{each['path'] or each['strategy']}, {each['found_at']}" for each in known]
    return paths[0] if paths and all(each["content_key"] != workload.content_key for each in known) else ""
