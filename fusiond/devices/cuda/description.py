"""Describes a GPU from the driver's attributes: name, limits and environment. Makes no context."""

import functools
import importlib.metadata
import re

import fusiond
from fusiond.build import nvcc, triton
from fusiond.devices.cuda.driver import Attribute, Driver
from fusiond.devices.cuda.nvml import Sensors
from fusiond.model.errors import RequestError, UnknownName
from fusiond.model.gpu.limits import limits as table_limits
from fusiond.model.nouns import DeviceInfo, DeviceLimits, frozen
from fusiond.model.system import driver as driver_file

NO_DRIVER = "install NVIDIA's driver; in a container, start it with the GPU (docker run --gpus all)"
NO_PYCUDA = (
    "PyCUDA is not installed: pip install 'fusiond[cuda]', with the CUDA toolkit's nvcc on PATH. Where curand or"
    " libcuda is missing at build time, first write CUDA_ROOT=..., CUDA_ENABLE_CURAND=False and"
    " CUDADRV_LIB_DIR=[CUDA_ROOT/lib64/stubs] into ~/.aksetup-defaults.py"
)


def index_of(name: str) -> int:
    """`cuda:1` -> 1, `cuda` -> 0. UnknownName for anything else."""
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if match is None:
        raise UnknownName("device", name, ["cuda:0"])
    return int(match.group(1) or 0)


def describe(driver: Driver, index: int) -> DeviceInfo | None:
    """A device by its attributes; None for one older than fusiond builds for."""
    ask = functools.partial(driver.attribute, index)
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
