"""The cpu device: always there where g++ is. It checks everything, and its times are never an answer about a GPU."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import fusiond
from fusiond.build import gxx, triton
from fusiond.devices.base import Binary, Executor
from fusiond.devices.cpu import interpreted
from fusiond.devices.cpu.executor import CpuExecutor
from fusiond.devices.cpu.link import of_environment
from fusiond.model.errors import MachineFault, UnknownName
from fusiond.model.gpu.limits import MOST_SHARED_BYTES
from fusiond.model.nouns import DeviceInfo, DeviceLimits, frozen
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Alloc, Program, Source, SourceKind, replace_sources
from fusiond.model.system import children, faults

if TYPE_CHECKING:  # bundles are checked with NumPy alone: nothing that reads YAML may be imported with this module
    from fusiond.strategy import Facts

RACES_SECS = 24 * 3600.0

LIMITS = DeviceLimits(
    multiprocessors=1, registers_per_sm=0, registers_per_block=0, shared_bytes_per_sm=MOST_SHARED_BYTES,
    shared_bytes_per_block=MOST_SHARED_BYTES, threads_per_sm=2048, blocks_per_sm=32,
)  # fmt: skip
"""There is no register file, so that there are no caps and no occupancy."""


class CpuProvider:
    """`fusiond.devices.base.DeviceProvider` for the processor."""

    kind = "cpu"
    shares_cores = True

    def devices(self) -> tuple[DeviceInfo, ...]:
        compiler = gxx.find()
        if compiler is None:
            return ()
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        link = of_environment()
        info = DeviceInfo(
            name="cpu",
            model=_model() + (f", link {link}" if link is not None else ""),
            arch="cpu",
            memory_bytes=memory,
            evidence="emulated",
            limits=LIMITS,
            env=frozen({"fusiond": fusiond.__version__, "toolkit": gxx.version(compiler), **triton.environment()}),
        )
        return (info,)

    def missing(self) -> tuple[str, ...]:
        line = gxx.missing()
        return () if line is None else (f"cpu: {line}",)

    def normalise(self, program: Program) -> Program:
        """Register caps, nvcc's flags and the pool that memory is from mean nothing here."""

        def plain(source: Source) -> Source:
            if source.kind is SourceKind.HOST:
                return source
            return dataclasses.replace(source, register_cap=None, flags=())

        steps = tuple(
            dataclasses.replace(step, pooled=False) if isinstance(step, Alloc) else step for step in program.steps
        )
        return dataclasses.replace(replace_sources(program, plain), steps=steps, issue="streams")

    def build(self, source: Source, arch: str) -> Binary | BuildFailed:
        path = interpreted.build(source)
        return path if isinstance(path, BuildFailed) else Binary(source=source.name, path=path)

    def ptx(self, source: Source, arch: str) -> str | None:
        return None

    def sanitize(self, bundle: Path, device: str) -> tuple[str, ...]:
        """Races, in the build with ThreadSanitizer. Each launch has its own limit of time."""
        command = [sys.executable, "-m", "fusiond.devices.cpu.race", str(bundle)]
        done = children.run(command, timeout_secs=RACES_SECS)
        fault = faults.of_end(done.returncode, "the race check")
        if done.returncode == faults.TEMPORARY:
            fault = MachineFault((done.stderr.strip().splitlines() or ["the race check did not run"])[-1])
        if fault is not None:
            raise fault
        if done.returncode == 2 or "no race checks" in done.stderr:
            raise LookupError(done.stderr.strip() or "no race checks")
        *races, _ = done.stdout.splitlines() or [""]
        return tuple(races) if done.returncode == 0 or races else (done.stderr.strip(),)

    def facts(self, arch: str) -> Facts:
        return lambda source: None  # nothing is known of registers where there are none

    def executor(self, name: str) -> Executor:
        if name != "cpu":
            raise UnknownName("device", name, ["cpu"])
        return CpuExecutor(of_environment())


def _model() -> str:
    """The processor's name, as the kernel gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return os.uname().machine
