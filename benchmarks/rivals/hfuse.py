"""What CUDA offers for kernels side by side without fusing them: ways to issue our own unfused kernels.

Two streams and the branches of a CUDA graph are unfused ways of the tuner's own; here they stand beside the answer in
its pairs. The others issue the kernels of the fastest unfused way, at its block shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.rivals import ways
from benchmarks.rivals.base import About, Rival, bundle
from fusiond.build.exporting.bundle import read_bundle
from fusiond.devices.base import Loaded
from fusiond.devices.cuda.executor import CudaExecutor
from fusiond.devices.cuda.loaded import CudaProgram
from fusiond.model.program import Program

UNFUSED = "unfused"  #: The bundle of the fastest unfused way


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A Program as it is planned, by its bundle's name."""

    name: str
    what: str
    bundle: str
    close: float = 0.0

    def missing(self) -> str:
        return ""

    def load(self, executor: CudaExecutor, program: Program, about: About) -> Loaded:
        return executor.load(*read_bundle(bundle(about, self.bundle)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """The kernels of the fastest unfused way, issued otherwise."""

    name: str
    what: str
    issue: Callable[[CudaExecutor, CudaProgram], None]
    close: float = 0.0

    def missing(self) -> str:
        return ""

    def load(self, executor: CudaExecutor, program: Program, about: About) -> Loaded:
        loaded = executor.load(*read_bundle(bundle(about, UNFUSED)))
        self.issue(executor, loaded)
        return loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A rival that cannot be measured so, and why."""

    name: str
    what: str
    why: str
    close: float = 0.0

    def missing(self) -> str:
        return self.why

    def load(self, executor: CudaExecutor, program: Program, about: About) -> Loaded:
        raise LookupError(self.why)


def _priorities(executor: CudaExecutor, loaded: CudaProgram) -> None:
    launches = ways.bare_launches(loaded)
    ways.on_streams(loaded, executor.driver, ways.prioritised(executor.driver, len(launches)), launches)


def _priorities_turned(executor: CudaExecutor, loaded: CudaProgram) -> None:
    launches = ways.bare_launches(loaded)
    streams = ways.prioritised(executor.driver, len(launches))
    ways.on_streams(loaded, executor.driver, streams[::-1], launches)


def _green(executor: CudaExecutor, loaded: CudaProgram) -> None:
    launches = ways.bare_launches(loaded)
    streams = ways.green(executor.driver, executor.index, len(launches))
    ways.on_streams(loaded, executor.driver, streams, launches)


def _overlapping(executor: CudaExecutor, loaded: CudaProgram) -> None:
    ways.overlapping(loaded, executor.driver, ways.bare_launches(loaded))


RIVALS: tuple[Rival, ...] = (
    Planned(name="two streams", what="a stream for each kernel, in the better order", bundle="streams"),
    Planned(name="graph branches", what="a CUDA graph, a branch for each kernel", bundle="graph"),
    Issued(name="priorities", what="a stream for each kernel, the first of higher priority", issue=_priorities),
    Issued(
        name="priorities, turned",
        what="a stream for each kernel, the last of higher priority",
        issue=_priorities_turned,
    ),
    Issued(name="green contexts", what="a green context for each kernel, the multiprocessors parted", issue=_green),
    Issued(
        name="programmatic dependent launch",
        what="one stream; the next kernel may begin before the one before it has ended",
        issue=_overlapping,
    ),
    Absent(
        name="MPS",
        what="a process for each kernel, under the multi-process service",
        why="two processes have no stream and no event in common, so no pair can hold their span; it needs"
        " nvidia-cuda-mps-control, too",
    ),
)
