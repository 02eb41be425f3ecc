"""The interface of a device: a description, a builder in this process, an executor in a child process.

    Provider --devices--> DeviceInfo        who is there
    Provider --build--> Binary | BuildFailed    in the daemon's process, ahead of time, on any core
    Provider --executor--> Executor             in the spawned child; the only thing that touches the device

Kernels never run in the daemon's process: an illegal access, a hang or an abort kills a child, which is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from fusiond.model.errors import FusiondError
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import BuildFailed, DeviceState, Outcome
from fusiond.model.program import Buffer, Program, Source

if TYPE_CHECKING:  # a bundle runs with NumPy alone: nothing that reads YAML may be imported with this module
    import numpy as np
    from numpy.typing import NDArray

    from fusiond.devices.compare import Comparison  # commands that only look something up need no NumPy
    from fusiond.strategy import Facts

Array: TypeAlias = "NDArray[np.generic]"

MORE = 75
"""The exit status of a command that its own limit of time has stopped, and that goes on where it was (EX_TEMPFAIL)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """A built source: a shared library for the processor, a cubin for a GPU. `path` is in the build cache, named by
    content."""

    source: str
    path: Path


class ExecutionError(FusiondError):
    """Running a Program failed in a way the executor can name; it becomes a `MeasureFailed` in the worker."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        self.outcome = outcome
        self.reason = reason
        super().__init__(reason)


class LaunchRefused(ExecutionError):
    """A device does not take a Program: an argument, a limit, a step."""

    def __init__(self, reason: str) -> None:
        super().__init__(Outcome.LAUNCH_REFUSED, reason)


class Loaded(Protocol):
    """One Program on the device, with its buffers allocated and guard zones round each of them.

    Every method may raise ExecutionError. Arrays are one-dimensional, of the buffer's dtype and length."""

    program: Program
    clock: str
    """What `sample_us` measures with: `device`, `wall` or `emulated`. Set to `wall` when the other one of a pair needs
    that, so that both are measured with the same."""

    def write(self, buffer: str, data: Array) -> None:
        """Copy host data into a buffer, whatever memory it is in."""

    def read(self, buffer: str) -> Array: ...

    def snapshot(self, *, outputs: bool = False) -> None:
        """Keep a pristine copy of what `restore` brings back: the `inout` buffers that are reset for each run, and with
        `outputs` those that are only written, as they are now."""

    def restore(self) -> None:
        """Bring back the pristine copy, on the device, outside any timed span. Does nothing before `snapshot`."""

    def run(self, *, seed: int, checked: bool) -> None:
        """All steps once, in an order that the plan allows, and wait for the end.

        `checked`: poison shared memory, use adversarial scheduling drawn from `seed`, where the device can; slow."""

    gate_failures: int
    """Runs that were thrown away and taken again, since it was loaded, because the device began too early."""

    def sample_us(self, repeats: int, *, cold: bool = False) -> float:
        """One timed sample: the counted span in microseconds, divided by `repeats` runs inside it.

        The caller restores the buffers before the first run; before each further one they are restored here, outside
        of what is timed. `cold`: before each run the cache is flushed, too."""

    def broken_guards(self) -> tuple[str, ...]:
        """One line for each buffer round which something was written; empty when all is well."""

    def close(self) -> None: ...


class DataPlane(Protocol):
    """Puts data where Programs find them and compares what they wrote, on the device where it can.

    It keeps what it drew or was given, in a bounded amount of memory, for the next candidate of the same workload: a
    content is what (name, type, length, fill, seed) decides. Every method may raise ExecutionError."""

    def fill(self, loaded: Loaded, buffer: Buffer, seed: int, *, kind: int | None = None) -> None:
        """What `fusiond.model.inputs.fills.initial` says, bit for bit."""

    def intact(self, loaded: Loaded, buffer: Buffer, seed: int) -> bool:
        """Whether a buffer still holds what it was filled with."""

    def broken_guards(self, loaded: Loaded) -> tuple[str, ...]:
        """As `Loaded.broken_guards`, by less traffic where all is well."""

    def keep(self, loaded: Loaded, buffer: Buffer, reference: str) -> Array:
        """Keep an output, as part of a reference of this name; what it holds, for a file that outlives this process."""

    def compare(self, loaded: Loaded, buffer: Buffer, reference: str, stored: Callable[[], Array]) -> Comparison:
        """As `fusiond.devices.compare.compare`, with the reference's output; `stored` reads that from its file, and is
        called only where it was not kept."""

    def forget(self, reference: str) -> None:
        """A reference of this name is not what it was."""

    def clear(self) -> bool:
        """Give back the memory of all that is kept; whether there was any."""


class Executor(Protocol):
    """In the child process: loads Programs, knows the device's state."""

    @property
    def data(self) -> DataPlane: ...

    def load(self, program: Program, binaries: Mapping[str, Path]) -> Loaded:
        """Source name -> built file. Raises ExecutionError (launch_refused when limits are exceeded)."""

    def state(self) -> DeviceState: ...

    def clock_mhz(self) -> float | None:
        """The clock now, as the device counts it itself; None where it cannot. Takes a millisecond at most."""

    def calibrate(self) -> Mapping[str, float]:
        """What measuring itself costs here, and the device's ceilings, by the names of `fusiond.devices.calibration`;
        empty where there is nothing to calibrate. Takes seconds. May raise ExecutionError."""

    def close(self) -> None: ...


class Clockless:
    """What an Executor of a device without a clock of its own has nothing to say about."""

    def state(self) -> DeviceState:
        return DeviceState()

    def clock_mhz(self) -> float | None:
        return None

    def calibrate(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        return None


class DeviceProvider(Protocol):
    """One kind of device (`cpu`, `cuda`), in the daemon's process. Nothing here may touch the device's context.

    The child process makes a provider of its own: the class must be at the top level of its module, and constructible
    without arguments."""

    kind: str
    shares_cores: bool  #: Measuring happens on the cores that compile, so nothing may be built meanwhile

    def devices(self) -> tuple[DeviceInfo, ...]:
        """Those that are there, best first; empty when there are none. Each `name` is the kind, or `kind:...`; `model`
        tells it from devices of other kinds: answers are kept under model, architecture and limits."""

    def missing(self) -> tuple[str, ...]:
        """What this machine lacks for this kind of device, one line each with the remedy; empty when it can be used.
        A line may begin with the kind and a colon."""

    def normalise(self, program: Program) -> Program:
        """The Program without what this device does not act on, so that equal work has one key."""

    def build(self, source: Source, arch: str) -> Binary | BuildFailed:
        """Build one source; answered from the cache where it was built before. Safe to call from several threads."""

    def ptx(self, source: Source, arch: str) -> str | None:
        """The PTX of a source that builds, for a last look at it; None where there is no such thing."""

    def sanitize(self, bundle: Path, device: str) -> tuple[str, ...]:
        """What the device's own checker finds in one run of a bundle, a line each; in processes of its own, and slow.
        LookupError with the reason where there is no such checker."""

    def facts(self, arch: str) -> Facts:
        """Compile facts for one architecture; a function that answers None where no compiler is there."""

    def executor(self, name: str) -> Executor:
        """Called in the child process only."""
