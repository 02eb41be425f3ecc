"""The report of a capture: launches, how much of a GPU each kernel fills, and launches that are independent.

A launch needs an earlier one where one of them writes what the other touches: ranges of allocations, and what the PTX
does through each parameter; where that is not known, everything counts as written. Launches that follow each other and
need nobody between are a group. How much fusing them could hide is estimated, and orders them; none is left out.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fusiond.build.nvcc import NvccFacts
from fusiond.build.working import working_folder
from fusiond.cuda.capture.code import code_of
from fusiond.cuda.capture.documents import Undescribed, representative
from fusiond.cuda.capture.picked_kernels import Picking, by_kernel
from fusiond.cuda.capture.reads_and_writes import CapturedMemory, Touched, needs
from fusiond.cuda.capture.trace import (
    CapturedCopy,
    CapturedEvent,
    CapturedKernel,
    CapturedLaunch,
    CapturedTrace,
    CapturedWait,
    Direction,
)
from fusiond.cuda.recording.origins import short_name
from fusiond.devices.counting import child_process
from fusiond.devices.counting.model import H100, Gpu
from fusiond.model.errors import FusiondError
from fusiond.model.gpu.occupancy import Occupancy
from fusiond.model.nouns import CompileFacts
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Program, Source, SourceLanguage
from fusiond.requests import jobs, planning
from fusiond.requests.isolation import registry as plugins

MOST_BETWEEN = 24  #: Events between the first launch of a group and its last one
MOST_TOGETHER = 8  #: Launches of a group
MOST_EVENTS = 50_000  #: Of a trace, in which groups are looked for
MOST_COUNTED = 30  #: Kernels, those of the most launches or time first: each takes a second or more


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    """One kernel."""

    kernel: CapturedKernel
    launch: CapturedLaunch  #: The one that a document of it is about
    launches: int
    registers: int
    occupancy: Occupancy
    waves: float  #: The launch's blocks over those that are resident at once
    mean_us: float | None  #: Of the launches that were measured
    memory_us: float  #: Nothing measured: all that lies behind its pointers, once, at the GPU's DRAM rate
    without: str  #: Why there is no PTX of it; empty where there is
    bound_us: float | None = None  #: Counted: what it takes at least; None where it was not counted
    binding: str = ""  #: What that is bound by

    @property
    def time_us(self) -> float:
        """Measured, else counted, else by its memory."""
        return next(each for each in (self.mean_us, self.bound_us, self.memory_us) if each is not None)

    @property
    def fill(self) -> float:
        """How full its waves are: 0 to 1."""
        return self.waves / math.ceil(self.waves) if self.waves else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSet:
    """Launches that could be one."""

    launches: tuple[CapturedLaunch, ...]  #: As they came the first time
    count: int
    waits: int  #: Times that the host waited, or copied to itself, between them: there the host's program has to change
    streams: bool  #: The program has them in several streams
    hidden_us: float  #: Each time, by estimate

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(each.kernel.number for each in self.launches)

    @property
    def reasons(self) -> tuple[str, ...]:
        found = [f"the host waits between them ({self.waits} of {self.count} times)"] if self.waits else []
        return (*found, *(["in several streams already"] if self.streams else []))


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureReport:
    trace: CapturedTrace
    gpu: Gpu
    kernels: tuple[KernelReport, ...]  #: By the time of all their launches, or by launches where no time is known
    groups: tuple[LaunchSet, ...]  #: By what they could hide
    copies: tuple[tuple[str, int, int], ...]  #: (direction, copies, bytes)

    def as_json(self) -> dict[str, Any]:
        """docs/capture.md has the keys."""
        return {
            "gpu": self.gpu.name,
            "kernels": [_kernel_json(each) for each in self.kernels],
            "groups": [_group_json(each) for each in self.groups],
            "copies": [dict(zip(("direction", "count", "bytes"), each, strict=True)) for each in self.copies],
            "notes": list(self.trace.notes),
        }


def _kernel_json(each: KernelReport) -> dict[str, Any]:
    return {
        "number": each.kernel.number,
        "name": short_name(each.kernel.name),
        "mangled": each.kernel.name,
        "launches": each.launches,
        "mean_us": each.mean_us,
        "memory_us": round(each.memory_us, 3),
        "bound_us": each.bound_us,
        "bound_by": each.binding or None,
        "grid": list(each.launch.grid),
        "block": list(each.launch.block),
        "shared_bytes": each.launch.shared_bytes + each.kernel.static_shared_bytes,
        "registers": each.registers or None,
        "occupancy": round(each.occupancy.ratio, 4),
        "limited_by": each.occupancy.limited_by,
        "waves": round(each.waves, 3),
        "without_ptx": each.without or None,
    }


def _group_json(each: LaunchSet) -> dict[str, Any]:
    return {
        "kernels": list(each.numbers),
        "names": [short_name(launch.kernel.name) for launch in each.launches],
        "grids": [list(launch.grid) for launch in each.launches],
        "blocks": [list(launch.block) for launch in each.launches],
        "count": each.count,
        "hidden_us": round(each.hidden_us, 3),
        "reasons": list(each.reasons),
    }


def report(trace: CapturedTrace, gpu: Gpu = H100, *, count: bool = False) -> CaptureReport:
    """`count`: what kernels would pay at least, too. MachineFault where that cannot be run."""
    memory = CapturedMemory(trace)
    kernels = [_kernel(memory, gpu, kernel, launches) for kernel, launches in by_kernel(trace).items()]
    kernels.sort(key=lambda each: (-(each.mean_us or 0) * each.launches, -each.launches, each.kernel.number))
    if count:
        found = _counted(trace, (each.launch for each in kernels), gpu)
        bounds = ((each, *found.get(each.kernel.number, (None, ""))) for each in kernels)
        kernels = [dataclasses.replace(each, bound_us=us, binding=binding) for each, us, binding in bounds]
    groups = _groups(trace, memory, {each.kernel: each for each in kernels}, gpu)
    return CaptureReport(trace=trace, gpu=gpu, kernels=tuple(kernels), groups=tuple(groups), copies=_copies(trace))


def _counted(trace: CapturedTrace, launches: Iterable[CapturedLaunch], gpu: Gpu) -> dict[int, tuple[float, str]]:
    """By a kernel's number: its bound in us, and what binds it. Those that cannot be counted are left out.

    MachineFault where the machine does not let it run."""
    registry, programs = plugins.load(), dict[str, Program]()
    with working_folder("bounds") as folder:
        picking = Picking(trace, folder)
        for launch in launches:
            try:
                *_, path = picking.job([launch])
                (job,) = jobs.read(str(path))
                prepared = planning.prepare(registry, job)
                analysis = prepared.strategy.analyse(prepared.workload, planning.target_for_arch(gpu.arch, registry))
                programs[str(launch.kernel.number)] = planning.reference(prepared.strategy, analysis)
            except (Undescribed, FusiondError):
                continue
            if len(programs) == MOST_COUNTED:
                break
        rows = child_process.counted(programs, model=gpu.name)
    return {int(row["program"]): (row["bound_us"], row["binding"]) for row in rows if row["bound_us"] is not None}


def _kernel(
    memory: CapturedMemory, gpu: Gpu, kernel: CapturedKernel, launches: Sequence[CapturedLaunch]
) -> KernelReport:
    launch = representative(launches)
    code = code_of(kernel)
    facts = None if isinstance(code, str) else _facts(code.text, tuple(code.module.entries), gpu.arch).get(kernel.name)
    registers = kernel.registers or (facts.registers if facts else 0)
    static = max(kernel.static_shared_bytes, facts.shared_bytes if facts else 0)
    shape = math.prod(launch.block), static + launch.shared_bytes, registers
    times = [each.elapsed_ns for each in launches if each.elapsed_ns is not None]
    touched = {(each.where, each.low, each.high): each for each in memory.by(launch)}
    return KernelReport(
        kernel=kernel,
        launch=launch,
        launches=len(launches),
        registers=registers,
        occupancy=gpu.occupancy(*shape),
        waves=math.prod(launch.grid) / gpu.resident(*shape),
        mean_us=sum(times) / len(times) / 1000 if times else None,
        memory_us=sum(each.high - each.low for each in touched.values()) / gpu.dram_gbs / 1000,
        without=code if isinstance(code, str) else "",
    )


@functools.lru_cache(maxsize=256)
def _facts(text: str, entries: tuple[str, ...], arch: str) -> dict[str, CompileFacts]:
    """What ptxas says of a module's kernels; nothing where it is not here, or does not take it."""
    found = NvccFacts(arch)(Source(name="captured", text=text, entries=entries, language=SourceLanguage.PTX))
    return {} if found is None or isinstance(found, BuildFailed) else dict(found)


# --- what needs what ------------------------------------------------------------------------------------


def _waits(event: CapturedEvent) -> bool:
    return isinstance(event, CapturedWait) or (
        isinstance(event, CapturedCopy) and event.direction in (Direction.TO_HOST, Direction.ON_HOST)
    )


def _groups(
    trace: CapturedTrace, memory: CapturedMemory, kernels: dict[CapturedKernel, KernelReport], gpu: Gpu
) -> list[LaunchSet]:
    """Launches that may begin together: each comes forward past what it does not need."""
    events = trace.events[:MOST_EVENTS]
    touched = [memory.touched(each) for each in events]
    taken: set[int] = set()
    found: dict[Any, LaunchSet] = {}
    for first, event in enumerate(events):
        if first in taken or not isinstance(event, CapturedLaunch):
            continue
        members, waited = _beside(first, events, touched, taken)
        if len(members) < 2:
            continue
        taken.update(members)
        launches = tuple(each for each in (events[at] for at in members) if isinstance(each, CapturedLaunch))
        key = tuple(sorted((each.kernel.number, each.grid, each.block) for each in launches))
        known = found.get(key)
        if known is None:
            hidden = _hidden([kernels[each.kernel] for each in launches], gpu)
            streams = len({each.stream for each in launches}) > 1
            known = LaunchSet(launches=launches, count=0, waits=0, streams=streams, hidden_us=hidden)
        found[key] = dataclasses.replace(known, count=known.count + 1, waits=known.waits + waited)
    return sorted(found.values(), key=lambda each: (-each.hidden_us * each.count, each.numbers))


def _beside(
    first: int, events: Sequence[CapturedEvent], touched: Sequence[tuple[Touched, ...] | None], taken: set[int]
) -> tuple[list[int], bool]:
    """The launches that could begin with one, itself first, and whether the host waits before the last of them."""
    members, left = [first], list[int]()
    waits = waited = False
    for at in range(first + 1, min(len(events), first + 1 + MOST_BETWEEN)):
        launch = isinstance(events[at], CapturedLaunch) and at not in taken
        if launch and not any(needs(touched[at], touched[each]) for each in (*members, *left)):
            members.append(at)
            waited = waits
            if len(members) == MOST_TOGETHER:
                break
        else:
            left.append(at)
            waits |= _waits(events[at])
    return members, waited


def _hidden(kernels: Iterable[KernelReport], gpu: Gpu) -> float:
    """What one launch in place of several could save, in us: the launches between, and what their blocks could do where
    the others leave multiprocessors idle. An estimate, which orders groups."""
    times = [(each.time_us, each.fill) for each in kernels]
    apart = sum(time for time, _ in times) + (len(times) - 1) * gpu.launch_gap_us
    together = max(max(time for time, _ in times), sum(time * fill for time, fill in times))
    return apart - together


def _copies(trace: CapturedTrace) -> tuple[tuple[str, int, int], ...]:
    found: dict[Direction, list[int]] = collections.defaultdict(list)
    for each in trace.events:
        if isinstance(each, CapturedCopy):
            found[each.direction].append(each.size_bytes)
    return tuple((each.name.lower().replace("_", " "), len(found[each]), sum(found[each])) for each in sorted(found))
