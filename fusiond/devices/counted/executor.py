"""Runs Programs on the processor as the cpu device does; their times are counted bounds.

A sample is the lower bound of the launches on the named GPU, from its PTX (`fusiond.devices.counting`): the same at
every time, on every machine. Nothing is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fusiond.devices.base import Clockless, DataPlane, ExecutionError
from fusiond.devices.counting.cached import counted
from fusiond.devices.counting.kernels import CountError
from fusiond.devices.counting.model import Gpu
from fusiond.devices.cpu.executor import CpuExecutor, CpuProgram
from fusiond.devices.cpu.native import Runtime
from fusiond.model.outcomes import Outcome
from fusiond.model.program import Program, SourceKind


class CountedExecutor(Clockless):
    """`fusiond.devices.base.Executor` for a GPU that is not here."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._cpu = CpuExecutor()
        self.data: DataPlane = self._cpu.data

    def load(self, program: Program, binaries: Mapping[str, Path]) -> CountedProgram:
        return CountedProgram(self._cpu.runtime, program, binaries, self._gpu)

    def close(self) -> None:
        self._cpu.close()


class CountedProgram(CpuProgram):
    """`fusiond.devices.base.Loaded`: a CpuProgram whose samples are bounds."""

    def __init__(self, runtime: Runtime, program: Program, binaries: Mapping[str, Path], gpu: Gpu) -> None:
        super().__init__(runtime, program, binaries)
        self.clock = "counted"
        self._gpu = gpu
        self._hosts_built = {each.name: binaries[each.name] for each in program.sources if each.kind is SourceKind.HOST}
        self._bound_us: float | None = None

    def sample_us(self, repeats: int, *, cold: bool = False) -> float:
        """The bound of one run; `launch_refused` for a program that cannot be counted, with the reason."""
        if self._bound_us is None:
            self._bound_us = self._counted()
        return self._bound_us

    def _counted(self) -> float:
        try:
            found = counted(self.program, self._gpu, host=self._hosts_built)
        except CountError as problem:
            raise ExecutionError(Outcome.LAUNCH_REFUSED, f"it cannot be counted: {problem}") from None
        failed = [row["failed"] for row in found if row["failed"]]
        if failed:
            raise ExecutionError(Outcome.LAUNCH_REFUSED, f"it cannot be counted: {failed[0]}")
        bound_us: float = found[0]["program_bound_us"] if found else 0.0
        if bound_us <= 0:
            raise ExecutionError(Outcome.LAUNCH_REFUSED, "nothing of it can be counted: no kernel is in its timed span")
        return bound_us
