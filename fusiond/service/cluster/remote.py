"""Runs on the machine of a device: supervises its child process on behalf of a remote tuner. Needs no Ray.

A request names bundles and references by paths of the box that asks. Here a bundle is a folder that was unpacked from
the bytes that came with the first request for it, and a reference a file that the child wrote.
"""

import dataclasses
import importlib
import io
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fusiond.devices import protocol
from fusiond.devices.base import DeviceProvider
from fusiond.devices.supervisor import Supervisor
from fusiond.model.errors import DeviceError, MachineFault
from fusiond.model.keys import text_key
from fusiond.model.nouns import DeviceInfo


def provider_of(spec: str) -> DeviceProvider:
    """`MODULE:CLASS`, as the child process is told it."""
    module, _, name = spec.partition(":")
    made: DeviceProvider = getattr(importlib.import_module(module), name)()
    return made


def packed(bundle: Path) -> bytes:
    """A bundle as bytes, the same for the same content."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for path in sorted(bundle.rglob("*")):
            if path.is_file():
                entry = tarfile.TarInfo(path.relative_to(bundle).as_posix())
                entry.size, entry.mode = path.stat().st_size, 0o700 if path.parent.name == "binaries" else 0o600
                with path.open("rb") as stream:
                    tar.addfile(entry, stream)
    return data.getvalue()


class Remote:
    """One device, on its own box."""

    def __init__(self, spec: str, index: int | None = None) -> None:
        """`index`: which of the devices of that kind; None: the first one. DeviceError where it is not there."""
        provider = provider_of(spec)
        infos = provider.devices()
        if index is not None and len(infos) > 1:
            infos = tuple(each for each in infos if each.name.endswith(f":{index}"))
        if not infos:
            raise DeviceError(f"no device for {spec}: {'; '.join(provider.missing()) or 'none is there'}")
        self._info = infos[0]
        self._supervisor = Supervisor(provider, self._info)
        self._folder = Path(tempfile.mkdtemp(prefix="fusiond-cluster-"))
        self._bundles: dict[str, Path] = {}

    def info(self) -> DeviceInfo:
        return self._info

    def call(self, line: str, timeout_secs: float, bundles: Mapping[str, bytes]) -> str:
        """One request, as the child reads it, and its reply, as the child writes it. `bundles`: those that this device
        has not seen yet, by their paths in the request. A MachineFault of this box is a reply."""
        for path, data in bundles.items():
            self._unpack(path, data)
        try:
            return protocol.encode_reply(self._supervisor.call(self._here(protocol.decode_request(line)), timeout_secs))
        except MachineFault as fault:
            return protocol.encode_reply(fault)

    def call_with(self, line: str, timeout_secs: float, names: list[str], *bundles: bytes) -> str:
        """The same for a transport that resolves its own references among the arguments."""
        return self.call(line, timeout_secs, dict(zip(names, bundles, strict=True)))

    def fresh(self) -> None:
        self._supervisor.fresh()

    def close(self) -> None:
        self._supervisor.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _unpack(self, path: str, data: bytes) -> None:
        folder = self._folder / text_key(path)
        shutil.rmtree(folder, ignore_errors=True)
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            tar.extractall(folder, filter="data")
        self._bundles[path] = folder

    def _here(self, request: protocol.Request) -> protocol.Request:
        """The request with paths of this box."""
        if isinstance(request, protocol.Reference):
            return dataclasses.replace(
                request, bundle=str(self._bundles[request.bundle]), outputs=self._file(request.outputs)
            )
        if isinstance(request, protocol.CheckRequest):
            references = tuple((seed, self._file(path)) for seed, path in request.references)
            return dataclasses.replace(request, bundle=str(self._bundles[request.bundle]), references=references)
        if isinstance(request, protocol.SampleRequest):
            baseline = None if request.baseline is None else str(self._bundles[request.baseline])
            return dataclasses.replace(request, candidate=str(self._bundles[request.candidate]), baseline=baseline)
        return request

    def _file(self, path: str) -> str:
        return str(self._folder / f"{text_key(path)}.npz")


def bundles_of(request: protocol.Request) -> tuple[str, ...]:
    """The paths of the bundles that a request is about."""
    if isinstance(request, protocol.SampleRequest):
        return (request.candidate, *((request.baseline,) if request.baseline is not None else ()))
    return (request.bundle,) if isinstance(request, protocol.Reference | protocol.CheckRequest) else ()
