"""Devices that are counted for, by the names of `fusiond.devices.counting.model`: `counted:h100`. They exist where
nvcc and g++ do, and are used only when named."""

from pathlib import Path

import fusiond
from fusiond.build import gxx, nvcc, triton
from fusiond.devices.base import Binary, Executor
from fusiond.devices.counting.model import GPUS
from fusiond.devices.cpu.provider import CpuProvider
from fusiond.devices.cuda.provider import CudaProvider
from fusiond.model.errors import UnknownName
from fusiond.model.nouns import DeviceInfo, frozen
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Source, SourceKind

_BOARDS = {
    "a100": ("NVIDIA A100-SXM4-80GB", 80), "h100": ("NVIDIA H100 80GB HBM3", 80), "h200": ("NVIDIA H200", 141),
    "l4": ("NVIDIA L4", 24), "rtx4090": ("NVIDIA GeForce RTX 4090", 24),
}  # fmt: skip
"""What the driver calls each, and its memory in GB."""


class CountedProvider:
    """`fusiond.devices.base.DeviceProvider` for GPUs of which bounds are counted."""

    kind = "counted"
    shares_cores = False  #: Nothing is timed, so that whatever else the cores do makes no difference

    def __init__(self) -> None:
        self._cpu, cuda = CpuProvider(), CudaProvider()
        self.normalise, self.ptx, self.facts = cuda.normalise, cuda.ptx, cuda.facts  # as for a GPU that is here

    def devices(self) -> tuple[DeviceInfo, ...]:
        if self.missing():
            return ()
        env = {"fusiond": fusiond.__version__, "toolkit": nvcc.version() or "none", **triton.environment()}
        return tuple(
            DeviceInfo(
                name=f"counted:{gpu.name}",
                model=f"{_BOARDS[gpu.name][0]} (counted)",
                arch=gpu.arch,
                memory_bytes=_BOARDS[gpu.name][1] * 10**9,
                evidence="counted",
                env=frozen(env),
                limits=gpu.limits,
            )
            for gpu in GPUS.values()
        )

    def missing(self) -> tuple[str, ...]:
        return tuple(f"counted: {line}" for line in (gxx.missing(), nvcc.missing()) if line is not None)

    def build(self, source: Source, arch: str) -> Binary | BuildFailed:
        """What the processor runs; what nvcc refuses is refused."""
        if source.kind is not SourceKind.HOST:
            built = nvcc.build(source, arch)
            if isinstance(built, BuildFailed):
                return built
        return self._cpu.build(source, arch)

    def sanitize(self, bundle: Path, device: str) -> tuple[str, ...]:
        return self._cpu.sanitize(bundle, "cpu")

    def executor(self, name: str) -> Executor:
        from fusiond.devices.counted.executor import CountedExecutor  # the child's alone: it loads the interpreter

        _, _, gpu = name.partition(":")
        if gpu not in GPUS:
            raise UnknownName("device", name, [f"counted:{each}" for each in GPUS])
        return CountedExecutor(GPUS[gpu])
