"""`fusiond devices`: the devices of this machine, and what is missing for those that are not there."""

from __future__ import annotations

import argparse
from typing import Any

from fusiond.cli import options, render
from fusiond.model import DeviceInfo
from fusiond.registry import Registry
from fusiond.store.database import Store


def configure(parser: argparse.ArgumentParser) -> None:
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    registry = Registry.load()
    found = [info for provider in registry.providers.values() for info in provider.devices()]
    database = options.database(arguments)
    sick: dict[tuple[str, str], str] = {}
    if database.is_file():
        with Store.open(database, create=False) as store:
            sick = {(row.info.key, row.info.uuid): row.sick for row in store.devices() if row.sick}
    missing = {provider.kind: provider.missing() for provider in registry.providers.values()}
    entries = [entry(info, sick.get((info.key, info.uuid))) for info in found]
    if arguments.json:
        options.say_json({"devices": entries, "missing": {kind: list(texts) for kind, texts in missing.items()}})
        return 0
    columns = ("name", "model", "arch", "multiprocessors", "memory", "evidence", "state")
    rows = [
        (
            info.name,
            info.model,
            info.arch,
            info.limits.multiprocessors,
            f"{info.memory_bytes / 2**30:.0f} GiB",
            info.evidence,
            f"sick: {each['sick']}" if each["sick"] else "ready",
        )
        for info, each in zip(found, entries, strict=True)
    ]
    render.table("", columns, rows)
    for kind, texts in missing.items():
        for text in texts:
            print(f"{kind}: {text.removeprefix(f'{kind}: ')}")
    return 0


def entry(info: DeviceInfo, sick: str | None) -> dict[str, Any]:
    """A device as JSON; `sick` is null when it is well."""
    return {
        "name": info.name,
        "key": info.key,
        "model": info.model,
        "arch": info.arch,
        "multiprocessors": info.limits.multiprocessors,
        "memory_bytes": info.memory_bytes,
        "uuid": info.uuid,
        "mig": info.mig,
        "evidence": info.evidence,
        "env": dict(info.env),
        "sick": sick,
    }
