"""The GPUs of this machine, as the daemon's process sees them: described and built for, never touched.

Nothing here creates a context: identity and limits are attributes that the driver answers after cuInit. PyCUDA is
imported only by `executor`, which is called in the child process.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fusiond.build import gxx, nvcc
from fusiond.devices.base import Binary, Executor
from fusiond.devices.cuda.description import NO_DRIVER, NO_PYCUDA, describe, index_of
from fusiond.devices.cuda.driver import Driver, DriverError, DriverMissing
from fusiond.devices.cuda.loop_code import with_trampolines
from fusiond.devices.cuda.sanitize import sanitize
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Program, Source, SourceKind, Step, replace_sources

if TYPE_CHECKING:  # see fusiond.devices.base
    from fusiond.strategy import Facts


class CudaProvider:
    """`fusiond.devices.base.DeviceProvider` for NVIDIA's GPUs."""

    kind = "cuda"
    shares_cores = False

    def __init__(self, open_driver: Callable[[], Driver] | None = None) -> None:
        self._open_driver = open_driver or _driver

    def devices(self) -> tuple[DeviceInfo, ...]:
        """Those of compute capability 7.5 and later that the driver shows, in nvidia-smi's order; the fastest first
        would be a guess."""
        try:
            driver = self._open_driver()
            found = [describe(driver, index) for index in range(driver.count())]
        except (DriverMissing, DriverError):
            return ()
        return tuple(each for each in found if each is not None)

    def missing(self) -> tuple[str, ...]:
        found = []
        try:
            driver = self._open_driver()
            if driver.count() == 0:
                found.append("cuda: the driver shows no GPU: look at nvidia-smi and at CUDA_VISIBLE_DEVICES")
            elif not self.devices():
                found.append("cuda: no GPU of compute capability 7.5 or later")
        except (DriverMissing, DriverError) as problem:
            found.append(f"cuda: {problem}: {NO_DRIVER}")
        if importlib.util.find_spec("pycuda") is None:
            found.append(f"cuda: {NO_PYCUDA}")
        if (line := nvcc.missing()) is not None:
            found.append(f"cuda: {line}")
        return tuple(found)

    def normalise(self, program: Program) -> Program:
        """Without register caps on host code, and without waits that the order within a stream implies."""

        def plain(source: Source) -> Source:
            return dataclasses.replace(source, register_cap=None) if source.kind is SourceKind.HOST else source

        streams = {step.name: step.stream for step in program.steps}

        def needed(step: Step) -> Step:
            after = tuple(dict.fromkeys(name for name in step.after if streams[name] != step.stream))
            return dataclasses.replace(step, after=after)

        return dataclasses.replace(replace_sources(program, plain), steps=tuple(map(needed, program.steps)))

    def build(self, source: Source, arch: str) -> Binary | BuildFailed:
        if source.kind is SourceKind.HOST:
            if (line := gxx.missing()) is not None:
                return BuildFailed(reason=line)
            path = gxx.build(with_trampolines(source))
            return path if isinstance(path, BuildFailed) else Binary(source=source.name, path=path)
        built = nvcc.build(source, arch)
        return built if isinstance(built, BuildFailed) else Binary(source=source.name, path=built.path)

    def ptx(self, source: Source, arch: str) -> str | None:
        if source.kind is SourceKind.HOST:
            return None
        text = nvcc.ptx(source, arch)
        return None if isinstance(text, BuildFailed) else text

    def sanitize(self, bundle: Path, device: str) -> tuple[str, ...]:
        return sanitize(bundle, device)

    def facts(self, arch: str) -> Facts:
        return nvcc.NvccFacts(arch)

    def executor(self, name: str) -> Executor:
        """In the child process: DeviceError when PyCUDA or the device is not there."""
        from fusiond.devices.cuda.executor import CudaExecutor  # imports PyCUDA, which only the child may

        return CudaExecutor.open(index_of(name))


_driver = functools.cache(Driver)
"""One driver for the process; a failure is not remembered, it may be mended."""
