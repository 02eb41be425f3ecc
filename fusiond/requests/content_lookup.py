"""Resolves jobs and names by content: the part of `best` that needs the plugins.

a store --index--> what the plugins say, and content keys of workloads that an earlier version wrote
a name  --families--> the contents that the files of a folder, or the catalogue, give it
a job   --best_of_jobs--> the answers for what it asks, whatever it is called
"""

import contextlib
import dataclasses
import itertools
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusiond import __version__
from fusiond.model.errors import FusiondError, MachineFault, NothingKnown, StoreError
from fusiond.model.keys import canonical
from fusiond.model.nouns import Job, Workload, frozen
from fusiond.model.system import driver, files
from fusiond.requests import job_cache
from fusiond.requests.isolation.registry import IsolatedRegistry
from fusiond.requests.planning import Prepared, prepare
from fusiond.requests.registry import Registry
from fusiond.store import lookup, named_files, sources
from fusiond.store.database import Store
from fusiond.store.exchange import find
from fusiond.store.format import exchange_file, lookup_name
from fusiond.store.lookup import Says
from fusiond.strategy import Strategy

log = logging.getLogger(__name__)

Elsewhere = Callable[[str, tuple[str, ...], str, str | None], bool]
"""(content_family_key, device keys, cache, canonical text of the sizes) -> whether an answer came that is imported."""
IDLE = -1000  #: The priority of a check that nobody waits for
MAX_BUILT = 16  #: Combinations of equally named documents that are parsed for one name and strategy


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
    return frozenset(workload.content_family_key for _, workload in _meanings(registry, name, folder, {}))


def _meanings(
    registry: Registry, name: str, folder: str | None, sizes: Mapping[str, int]
) -> Iterator[tuple[Job, Workload]]:
    """The jobs that a name may stand for at these sizes, each as it is parsed."""
    members = [named_files.whole(each) for each in lookup_name(name).split(",")]
    claims = {each: named_files.claims(folder, each) for each in members} if folder else {}
    local = any(claims.values())
    for strategy in registry.strategies.values():
        for kind, key in strategy.names.items():
            if local and not any(each.get(kind) for each in claims.values()):
                continue
            known = registry.names(kind)
            ways = [claims.get(each, {}).get(kind) or [each] * (each in known) for each in members]
            for documents in itertools.islice(itertools.product(*ways), MAX_BUILT):
                found = _meaning(registry, strategy, key, documents, folder or "/", sizes)
                if found is not None:
                    yield found


def _meaning(
    registry: Registry, strategy: Strategy, key: str, documents: tuple[str, ...], folder: str, sizes: Mapping[str, int]
) -> tuple[Job, Workload] | None:
    """A job for these documents that says nothing else than sizes; None where there is no such job."""
    values: list[object] = [list(documents)] if len(documents) > 1 else [documents[0], list(documents)]
    for value in values:
        job = Job(
            strategy=strategy.name, request=frozen({key: value}), sizes=frozen(sizes), path=str(Path(folder) / "best")
        )
        parsed = _parsed(registry, job)
        if parsed is not None:
            return job, parsed
    return None


# --- jobs -----------------------------------------------------------------------------------------------


def ready(registry: Registry, wanted: Iterable[Job], sizes: Mapping[str, int] | None = None) -> tuple[Prepared, ...]:
    """Jobs, parsed; what is given overrules their sizes. RequestError for whatever is wrong with one."""
    asked = (dataclasses.replace(job, sizes=frozen({**job.sizes, **(sizes or {})})) for job in wanted)
    return tuple(prepare(registry, job) for job in asked)


def remember(
    database: Path,
    registry: Registry,
    path: Path | str,
    text: str,
    wanted: Sequence[Job],
    found: Sequence[Prepared],
    sizes: Mapping[str, int] | None = None,
) -> None:
    """Keep what a job file stands for (`memory`), where that depends on nothing but files. `wanted`: as the file says
    it; `found`: the same, parsed, with the `sizes` that were given, perhaps for another device or budget."""
    if not isinstance(registry, IsolatedRegistry) or registry.here is None or len(wanted) != len(found):
        return
    looked: dict[str, str] = {}
    digests: dict[str, str] = {}
    for each in found:
        if each.looked is None:
            return
        looked |= each.looked
        for name, content in each.job.files.items():
            digest = content if name.startswith("digest:") else _digest_of(name, content)
            if digest is None:
                return
            digests[name.removeprefix("digest:")] = digest
    asked = [_question(job, each.workload) for job, each in zip(wanted, found, strict=True)]
    job_cache.remember(
        database, path, text, asked, sizes, files=digests, looked=looked, says=says(registry), here=registry.here
    )


def _digest_of(file: str, text: str) -> str | None:
    """Of the bytes that this text was read from; None where they are others by now."""
    with contextlib.suppress(OSError, FusiondError):
        digest = sources.text_key(sources.read(file))
        if files.read_text(Path(file)) == text:
            return digest
    return None


def _question(job: Job, workload: Workload) -> job_cache.RememberedWorkload:
    return job_cache.RememberedWorkload(
        key=workload.key,
        content=workload.content_key,
        family=workload.content_family_key,
        name=workload.name,
        sizes=dict(workload.sizes),
        device=job.device,
        search=canonical(job.search),
        cache=job.search.cache,
        path=job.path,
    )


def best_of_jobs(
    database: Path,
    registry: Registry,
    wanted: Iterable[Prepared],
    *,
    device: str | None = None,
    cache: str | None = None,
    elsewhere: Elsewhere | None = None,
) -> tuple[dict[str, Any] | NothingKnown, ...]:
    """For each job the document of `best --json`, or why there is none. What is given overrules the job. `elsewhere`
    is asked for what neither this box nor an import knows.

    The store was indexed."""
    found: dict[tuple[object, ...], dict[str, Any] | NothingKnown] = {}
    for each in wanted:
        where, state = device or each.job.device, cache or each.job.search.cache
        key = each.workload.content_key, where, state
        if key not in found:
            found[key] = document = _best_of(
                database, registry, _question(each.job, each.workload), where, state, elsewhere
            )
            if not isinstance(document, NothingKnown):
                queue_check(database, registry, each.job, each.workload, document)
    return tuple(found.values())


def _best_of(
    database: Path,
    registry: Registry,
    asked: job_cache.RememberedWorkload,
    device: str,
    cache: str,
    elsewhere: Elsewhere | None,
) -> dict[str, Any] | NothingKnown:
    document = job_cache.answer(database, asked, device, cache, says(registry))
    if document is None or (not isinstance(document, NothingKnown) and document["match"] == "nearest"):
        found = imported(
            database, registry, {asked.family}, device=device, sizes=asked.sizes, cache=cache, elsewhere=elsewhere
        )
        if found is not None and (document is None or found["match"] != "nearest"):
            document = found
    return job_cache.unknown(database, asked, device) if document is None else document


def imported(
    database: Path,
    registry: Registry,
    families: Collection[str],
    *,
    device: str | None,
    sizes: Mapping[str, int] | None,
    cache: str,
    elsewhere: Elsewhere | None = None,
) -> dict[str, Any] | None:
    """What other boxes found for a content on a device like one of this machine; None where nobody did. What was not
    imported is asked for `elsewhere`."""
    if not os.path.exists(exchange_file(os.fspath(database))):
        return None
    devices = devices_here(database, registry, device)

    def look() -> dict[str, Any] | None:
        return find.best_of(
            database,
            families=families,
            sizes=sizes,
            device=device,
            devices=devices,
            cache=cache,
            driver=driver.version(),
            version=__version__,
            says=says(registry),
        )

    found = look()
    if elsewhere is None or (found is not None and found["match"] != "nearest"):
        return found
    text = canonical(dict(sizes)) if sizes else None
    came = [elsewhere(family, tuple(sorted(devices)), cache, text) for family in sorted(families)]
    return look() if any(came) else found


def queue_check(
    database: Path, registry: Registry, job: Job, workload: Workload, document: Mapping[str, Any]
) -> str | None:
    """Have an imported answer measured here, when the device has nothing else to do: the id of the job. None where
    nobody trusts its signer, no device here is equal to its own, or it was tried within the last hour."""
    given = document.get("imported")
    if given is None or not given["trusted"] or document["match"] == "nearest":
        return None
    infos = [info for _, info in registry.devices()]
    name = next((each.name for each in infos if each.key == document["device"]["key"]), None)
    if name is None or workload.key != document["workload"]["key"] or document["program_key"] is None:
        return None
    wanted = dataclasses.replace(
        prepare(registry, job).job, device=name, search=dataclasses.replace(job.search, cache=document["cache"])
    )
    with contextlib.suppress(StoreError), contextlib.closing(Store.open(database)) as store:
        if not store.verified_lately(workload.key, name):
            return store.submit(wanted, workload, kind="verify", priority=IDLE).id
    return None


def queue_check_of_name(database: Path, registry: Registry, name: str, folder: str | None, document: Any) -> None:
    """The same for an answer that was asked for by a name: the job is what the name stands for here."""
    if not document["imported"]["trusted"]:
        return
    sizes = document["workload"]["sizes"]
    for job, workload in _meanings(registry, name, folder, sizes):
        if workload.content_key == document["content_key"]:
            queue_check(database, registry, job, workload, document)
            return


def devices_here(database: Path, registry: Registry, device: str | None) -> set[str]:
    """The keys of the devices of this machine that a request means: those that are there, and those that were."""
    infos = [info for _, info in registry.devices()]
    if device not in (None, "auto", "all"):
        infos = [each for each in infos if device in (each.name, each.name.partition(":")[0], each.model)]
    return lookup.device_keys(database, device) | {each.key for each in infos}
