"""`fusiond devices`: lists the devices of this machine, and says what the missing ones lack."""

import argparse
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from fusiond.cli import options, output, render
from fusiond.devices.lock import held_by
from fusiond.devices.machine_lock import NameHolder
from fusiond.devices.probe import probe
from fusiond.model.errors import DeviceError, UnknownName
from fusiond.model.nouns import DeviceInfo
from fusiond.requests.isolation import registry as plugins
from fusiond.requests.registry import Registry
from fusiond.store.database import Store


def configure(parser: argparse.ArgumentParser) -> None:
    options.add_store(parser)
    parser.add_argument("--reset", metavar="NAME", help="a sick device is well again: let jobs run on it")
    parser.add_argument("--probe", metavar="NAME", help="try a sick device; well again if a copy and a fill work")


def run(arguments: argparse.Namespace) -> int:
    registry = plugins.load()
    if arguments.reset or arguments.probe:
        return _recover(registry, arguments)
    found = [info for _, info in registry.devices()]
    database = options.database(arguments)
    sick: dict[tuple[str, str], str] = {}
    if database.is_file():
        with Store.open(database, create=False) as store:
            sick = {(row.info.key, row.info.uuid): row.sick for row in store.devices() if row.sick}
    missing = {provider.kind: provider.missing() for provider in registry.providers.values()}
    entries = [entry(info, sick.get((info.key, info.uuid)), held_by(info)) for info in found]
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
            _state(each),
        )
        for info, each in zip(found, entries, strict=True)
    ]
    render.table("", columns, rows)
    for kind, texts in missing.items():
        for text in texts:
            output.say(f"{kind}: {text.removeprefix(f'{kind}: ')}")
    return 0


def _recover(registry: Registry, arguments: argparse.Namespace) -> int:
    name = arguments.reset or arguments.probe
    option = "--reset" if arguments.reset else "--probe"
    with closing(Store.open(options.database(arguments))) as store:
        here = {info.name: info for _, info in registry.devices()}
        info, was = _named(store, here, name, option)
        wrong = None
        if arguments.probe:
            if info.name not in here:
                raise DeviceError(f"{name} is not here")
            wrong = probe(registry.provider(info.name, where=option), here[info.name])
        if was and wrong is None:
            store.set_sick(info.key, info.uuid, None)
    if arguments.json:
        options.say_json({"device": info.name or name, "was_sick": was, "problem": wrong})
    elif wrong is not None:
        output.say(f"{name} does not work: {wrong}")
    else:
        output.say(f"{name} is well again (it was sick: {was})" if was else f"{name} was not sick")
    return 1 if wrong else 0


def _named(store: Store, here: Mapping[str, DeviceInfo], name: str, option: str) -> tuple[DeviceInfo, str | None]:
    """A device by its name or UUID, and why it is sick."""
    for row in store.devices():
        if name and name in (row.info.name, row.info.uuid):
            return row.info, row.sick
    if name not in here:
        raise UnknownName("device", name, {*here, *(row.info.name for row in store.devices())} - {""}, where=option)
    return here[name], None


def entry(info: DeviceInfo, sick: str | None, user: NameHolder | None) -> dict[str, Any]:
    """A device as JSON; `sick` is null when it is well, `used_by` when no fusiond has its lock."""
    return {
        **{name: getattr(info, name) for name in ("name", "key", "model", "arch", "memory_bytes", "uuid", "mig")},
        "multiprocessors": info.limits.multiprocessors,
        "evidence": info.evidence,
        "env": dict(info.env),
        "sick": sick,
        "used_by": None if user is None else str(user),
    }


def _state(entry: Mapping[str, Any]) -> str:
    if entry["sick"]:
        return f"sick: {entry['sick']}"
    return f"in use: {entry['used_by']}" if entry["used_by"] else "ready"
