"""GPUs that are counted for, by the names of `fusiond.devices.counting.model`: `counted:h100`. They are there where
nvcc and g++ are, and are used only when named.

Programs run on the processor as on the cpu device. A sample is the lower bound of the launches on the named GPU, from
their PTX (`fusiond.devices.counting`): the same at every time, on every machine. Nothing is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import fusiond
from fusiond.build import gxx, nvcc, triton
from fusiond.devices.base import Binary, Executor, LaunchRefused
from fusiond.devices.counting.kernels import CountError
from fusiond.devices.counting.model import GPUS, Gpu
from fusiond.devices.cpu.executor import CpuExecutor, CpuProgram
from fusiond.devices.cpu.native import Runtime
from fusiond.devices.cpu.provider import CpuProvider
from fusiond.devices.cuda.provider import CudaProvider
from fusiond.model.errors import UnknownName
from fusiond.model.nouns import DeviceInfo, frozen
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Program, Source, SourceKind

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
        _, _, gpu = name.partition(":")
        if gpu not in GPUS:
            raise UnknownName("device", name, [f"counted:{each}" for each in GPUS])
        return CountedExecutor(GPUS[gpu])


class CountedExecutor(CpuExecutor):
    """`fusiond.devices.base.Executor` for a GPU that is not here."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self._gpu = gpu

    def load(self, program: Program, binaries: Mapping[str, Path]) -> CountedProgram:
        return CountedProgram(self.runtime, program, binaries, self._gpu)


class CountedProgram(CpuProgram):
    """`fusiond.devices.base.Loaded`: a CpuProgram whose samples are bounds."""

    def __init__(self, runtime: Runtime, program: Program, binaries: Mapping[str, Path], gpu: Gpu) -> None:
        super().__init__(runtime, program, binaries)
        self.clock = "counted"
        self._gpu = gpu
        self._binaries = binaries
        self._bound_us: float | None = None

    def sample_us(self, repeats: int, *, cold: bool = False) -> float:
        """The bound of one run; `launch_refused` for a program that cannot be counted, with the reason."""
        if self._bound_us is None:
            self._bound_us = self._counted()
        return self._bound_us

    def _counted(self) -> float:
        from fusiond.devices.counting.cached import counted  # a fiftieth of a second, for the child alone

        try:
            found = counted(self.program, self._gpu, host=self._binaries)
        except CountError as problem:
            raise LaunchRefused(f"it cannot be counted: {problem}") from None
        failed = [row["failed"] for row in found if row["failed"]]
        if failed:
            raise LaunchRefused(f"it cannot be counted: {failed[0]}")
        bound_us: float = found[0]["program_bound_us"] if found else 0.0
        if bound_us <= 0:
            raise LaunchRefused("nothing of it can be counted: no kernel is in its timed span")
        return bound_us
