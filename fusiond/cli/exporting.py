"""`fusiond best --export`: the files with which a program calls an answer, written by the strategy that found it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from fusiond.cli.tuning import recorded_job
from fusiond.devices.base import Binary
from fusiond.errors import DeviceError, NothingKnown, RequestError
from fusiond.model import Config, DeviceInfo, Rejection
from fusiond.planning import answers, emitted, prepare, target_of
from fusiond.registry import Registry
from fusiond.store.database import Store


def export(database: Path, document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the files of an answer of `best` into `folder`: what the strategy offers, and the built sources."""
    if document["config"] is None:
        raise NothingKnown("this answer has no fused form to export: keep them apart")
    registry = Registry.load()
    with closing(Store.open(database, create=False)) as store:
        prepared = prepare(registry, recorded_job(store, document["workload"]["key"]))
        info = _device(store, document["device"]["key"])
        provider = registry.provider(info.name or document["device"]["name"])
        analysis = prepared.strategy.analyse(prepared.workload, target_of(provider, info))
        known = answers(store, registry, prepared.strategy, analysis, info.key)
    config = Config.of(document["config"])
    program = emitted(prepared.strategy, analysis, config, known)
    if isinstance(program, Rejection):
        raise NothingKnown(f"the {prepared.strategy.name} of today refuses this config: {program.detail}")
    files = {name: text.encode() for name, text in prepared.strategy.export(analysis, config, program).items()}
    for source in program.sources:
        binary = provider.build(source, info.arch)
        if isinstance(binary, Binary):
            files[f"{source.name}{binary.path.suffix}"] = binary.path.read_bytes()
    return _written(folder, files)


def _device(store: Store, key: str) -> DeviceInfo:
    for row in store.devices():
        if row.info.key == key:
            return row.info
    raise DeviceError("the device of this answer is not in the store")


def _written(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """All of the files; none, where one would take the place of something else."""
    paths = {folder / name: data for name, data in files.items()}
    for path, data in paths.items():
        if path.exists() and not (path.is_file() and path.read_bytes() == data):
            raise RequestError(f"{path} exists already, and is something else; name an empty folder", where="--export")
    for path, data in paths.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except OSError as problem:
            raise RequestError(f"cannot be written: {problem.strerror}", where=str(path)) from None
    return list(paths)
