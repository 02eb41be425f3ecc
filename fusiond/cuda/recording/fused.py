"""An answer as a launch: it matches the answer's arguments with those of the recorded launches."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusiond.build.exporting import launch as exported
from fusiond.cuda.recording import group_job, machines
from fusiond.cuda.recording.arguments import NULL, Array
from fusiond.cuda.recording.group_job import KernelsQuestion
from fusiond.cuda.recording.launches import RecordedLaunch
from fusiond.cuda.recording.machines import PROCESSOR, Built
from fusiond.cuda.recording.origins import Drafted
from fusiond.model.language.dtypes import is_float
from fusiond.model.program import Bytes, Pointer, Program, Role, Scalar
from fusiond.model.program import Launch as Step
from fusiond.service.frameworks import launching
from fusiond.service.frameworks.launching import Unusable
from fusiond.service.frameworks.running import LaidOutPlan, LaunchFailed, StepPlan


class NotNow(Exception):
    """This time the launches run as they are; the text is why, in one line."""


@dataclass(frozen=True, slots=True)
class ArgumentPlace:
    """Where a launch's arguments stand in the answer: (step, its first argument)."""

    launch: int
    step: int
    first: int


@dataclass(frozen=True, slots=True)
class BufferPlace:
    """Which array of the launches' a buffer is."""

    launch: int
    argument: int

    def array(self, launches: Sequence[RecordedLaunch]) -> Array:
        argument = launches[self.launch].arguments[self.argument]
        assert isinstance(argument, Array)
        return argument


class FusedLaunch:
    """An answer, built; loaded where it is first launched."""

    def __init__(self, built: Built, places: Sequence[ArgumentPlace], buffers: Sequence[BufferPlace]) -> None:
        self._built, self._places, self._buffers = built, places, buffers
        self._plans: dict[int, StepPlan] = {}  #: By context
        self._lock = threading.Lock()

    def start(self, launches: Sequence[RecordedLaunch], device: int, stream: int) -> None:
        """All launches as one. NotNow, before anything is done; LaunchFailed: `left` says what is still to be done."""
        plan = self.loaded(device, stream)
        addresses = [each.array(launches).address for each in self._buffers]
        values = {
            (each.step, each.first + at): argument.data
            for each in self._places
            for at, argument in enumerate(launches[each.launch].arguments)
        }
        with self._lock, _scratch(plan.scratch, device, stream) as own:
            plan.run([*addresses, *own], stream, values)

    def laid_out(self, launches: Sequence[RecordedLaunch], device: int, stream: int) -> LaidOutLaunch:
        """For launches with these numbers that come again, at other addresses. Unusable, NotNow, LaunchFailed."""
        plan = self.loaded(device, stream)
        buffers = {(each.launch, each.argument): number for number, each in enumerate(self._buffers)}
        values: dict[tuple[int, int], bytes | int] = {
            (each.step, each.first + at): found
            for each in self._places
            for at, argument in enumerate(launches[each.launch].arguments)
            if (found := buffers.get((each.launch, at), argument.data)) != b""
        }
        return LaidOutLaunch(LaidOutPlan(plan, len(buffers), values), plan.scratch, device)

    def left(self, problem: LaunchFailed) -> list[int]:
        """The launches that were not begun when one of the answer's failed to start."""
        return sorted(each.launch for each in self._places if each.step >= problem.step)

    def loaded(self, device: int, stream: int) -> StepPlan:
        """The answer in the current context. NotNow, LaunchFailed."""
        key = machines.context(device)
        found = self._plans.get(key)
        if found is None:
            if machines.capturing(stream, device):
                raise NotNow("nothing is loaded while a stream is captured; launch once before")
            try:
                found = self._plans[key] = StepPlan(self._built.plan, self._built.machine())
            except Unusable as problem:
                raise LaunchFailed(str(problem)) from None
        return found


class LaidOutLaunch:
    """A fused launch whose arguments lie ready, but for the addresses."""

    def __init__(self, plan: LaidOutPlan, scratch: Sequence[int], device: int) -> None:
        self._plan, self._scratch, self._device = plan, scratch, device
        self._lock = threading.Lock()

    def start(self, addresses: Sequence[int], stream: int) -> None:
        """`addresses`: of the launches' arrays, in their order. LaunchFailed."""
        with self._lock, _scratch(self._scratch, self._device, stream) as own:
            self._plan.run([*addresses, *own], stream)


@contextlib.contextmanager
def _scratch(sizes: Sequence[int], device: int, stream: int) -> Iterator[list[int]]:
    """Memory that is the launch's own, given back in the order of the stream."""
    if not sizes:
        yield []
        return
    if device == PROCESSOR:
        held = [np.empty(each + 64, np.uint8) for each in sizes]
        yield [-(-each.ctypes.data // 64) * 64 for each in held]
        return
    driver = machines.driver()
    found: list[int] = []
    try:
        for each in sizes:
            found.append(driver.handle("cuMemAllocAsync", each, stream, kind=ctypes.c_ulonglong))
        yield found
    except exported.LaunchError as problem:
        raise LaunchFailed(str(problem)) from None
    finally:
        for each in found:
            driver.status("cuMemFreeAsync", each, stream)


def built(
    program: Program,
    asked: KernelsQuestion,
    launches: Sequence[RecordedLaunch],
    values: Sequence[Sequence[Any]],
    device: int,
    arch: str | None,
) -> FusedLaunch:
    """An answer to launches whose numbers were asked for as `values`. Unusable where it cannot be launched here."""
    drafts = [group_job.drafted(each.origin) for each in launches]
    buffers = [
        BufferPlace(number, place)
        for number, (launch, draft) in enumerate(zip(launches, drafts, strict=True))
        for place, (argument, parameter) in enumerate(zip(launch.arguments, draft.parameters, strict=True))
        if isinstance(argument, Array) and parameter.pointer
    ]
    names = [f"{asked.letter(each.launch)}.p{each.argument}" for each in buffers]
    known = {each.name: each.role for each in program.buffers}
    in_place = [name for name in names if known.get(name) is Role.INOUT]
    plan = launching.flat(program, names, (), in_place=in_place)
    places = [
        _place(program, number, _pattern(asked.letter(number), launch, draft, numbers))
        for number, (launch, draft, numbers) in enumerate(zip(launches, drafts, values, strict=True))
    ]
    return FusedLaunch(machines.built(program, plan, device, arch), places, buffers)


def _pattern(letter: str, launch: RecordedLaunch, draft: Drafted, numbers: Sequence[Any]) -> list[Any]:
    """The arguments that the answer passes for a launch."""
    found: list[Any] = []
    for place, (argument, parameter, value) in enumerate(zip(launch.arguments, draft.parameters, numbers, strict=True)):
        if parameter.pointer:
            found.append(Scalar(dtype="uint64", value=0) if argument == NULL else Pointer(buffer=f"{letter}.p{place}"))
        elif parameter.struct:
            found.append(Bytes(hex=argument.data.hex()))
        else:
            assert parameter.dtype is not None
            asked = group_job.as_kind(value, argument.dtype, parameter.dtype)
            found.append(Scalar(dtype=parameter.dtype, value=float(asked) if is_float(parameter.dtype) else int(asked)))
    return found


def _place(program: Program, launch: int, pattern: Sequence[Any]) -> ArgumentPlace:
    found = [
        ArgumentPlace(launch, number, first)
        for number, step in enumerate(program.steps)
        if isinstance(step, Step)
        for first in range(len(step.arguments) - len(pattern) + 1)
        if list(step.arguments[first : first + len(pattern)]) == pattern
    ]
    if len(found) != 1:
        raise Unusable(f"the arguments of launch {launch} stand in the answer {len(found)} times")
    return found[0]
