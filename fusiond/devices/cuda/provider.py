"""The GPUs of this machine, as the daemon's process sees them: described and built for, never touched.

Nothing here creates a context: identity and limits are attributes that the driver answers after cuInit. PyCUDA is
imported only by `executor`, which is called in the child process.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import fusiond
from fusiond.build import gxx, nvcc, triton
from fusiond.cuda.limits import limits as table_limits
from fusiond.devices import peers
from fusiond.devices.base import Binary, Executor
from fusiond.devices.cuda.driver import Attribute, Driver, DriverError, DriverMissing
from fusiond.devices.cuda.loop_code import with_trampolines
from fusiond.devices.cuda.nvml import Sensors
from fusiond.devices.cuda.sanitize import sanitize
from fusiond.errors import RequestError, UnknownName
from fusiond.model import BuildFailed, DeviceInfo, DeviceLimits, frozen
from fusiond.program import Program, Source, SourceKind, Step, replace_sources
from fusiond.system import driver as driver_file

if TYPE_CHECKING:  # see fusiond.devices.base
    from fusiond.strategy import Facts

NO_DRIVER = "install NVIDIA's driver; in a container, start it with the GPU (docker run --gpus all)"
NO_PYCUDA = (
    "PyCUDA is not installed: pip install 'fusiond[cuda]', with the CUDA toolkit's nvcc on PATH. Where curand or"
    " libcuda is missing at build time, first write CUDA_ROOT=..., CUDA_ENABLE_CURAND=False and"
    " CUDADRV_LIB_DIR=[CUDA_ROOT/lib64/stubs] into ~/.aksetup-defaults.py"
)


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
        return peers.counted(each for each in found if each is not None)

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


def index_of(name: str) -> int:
    """`cuda:1` -> 1, `cuda` -> 0. UnknownName for anything else."""
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if match is None:
        raise UnknownName("device", name, ["cuda:0"])
    return int(match.group(1) or 0)


def describe(driver: Driver, index: int) -> DeviceInfo | None:
    """A device by its attributes; None for one older than fusiond builds for."""

    def ask(attribute: int) -> int:
        return driver.attribute(index, attribute)

    major, minor = ask(Attribute.MAJOR), ask(Attribute.MINOR)
    if (major, minor) < (7, 5):
        return None
    arch = f"sm_{major}{minor}"
    model, uuid = driver.name(index), driver.uuid(index)
    slice_of = re.search(r"\bMIG (\S+)", model)
    env = {
        "driver": Sensors(uuid).driver_version() or driver_file.version() or "?",
        "cuda": driver.version(),
        "toolkit": nvcc.version() or "none",
        "pycuda": _installed("pycuda"),
        **triton.environment(),
        "fusiond": fusiond.__version__,
    }
    try:
        barriers = table_limits(arch).barriers_per_sm
    except RequestError:  # newer than the table; nothing else in it is needed
        barriers = 0
    limits = DeviceLimits(
        multiprocessors=ask(Attribute.MULTIPROCESSORS),
        registers_per_sm=ask(Attribute.REGISTERS_PER_SM),
        registers_per_block=ask(Attribute.REGISTERS_PER_BLOCK),
        shared_bytes_per_sm=ask(Attribute.SHARED_BYTES_PER_SM),
        shared_bytes_per_block=ask(Attribute.SHARED_BYTES_PER_BLOCK_OPTIN),
        shared_bytes_reserved=ask(Attribute.RESERVED_SHARED_BYTES_PER_BLOCK),
        shared_granularity_bytes=256 if major == 7 else 128,
        threads_per_sm=ask(Attribute.THREADS_PER_SM),
        threads_per_block=ask(Attribute.THREADS_PER_BLOCK),
        blocks_per_sm=ask(Attribute.BLOCKS_PER_SM),
        barriers_per_sm=barriers,
    )
    return DeviceInfo(
        name=f"cuda:{index}",
        model=model,
        arch=arch,
        memory_bytes=driver.memory_bytes(index),
        mig=slice_of.group(1) if slice_of else "",
        uuid=uuid,
        env=frozen(env),
        limits=limits,
    )


def _installed(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "none"


@functools.cache
def _driver() -> Driver:
    """One driver for the process; a failure is not remembered, it may be mended."""
    return Driver()
