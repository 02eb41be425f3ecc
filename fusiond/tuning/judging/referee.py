"""Checks of a candidate on the processor beyond its outputs.

Outputs are compared by who runs programs on a device (`fusiond.devices.worker`): on data that nobody can know, twice
for each seed, from poisoned outputs, between guard zones, in timed runs too, and in double precision. What is left:

    launches   work that is launched from the device, which no span covers
    state      variables in which a kernel remembers what it has computed
    races      two threads at one address without an order (the build with ThreadSanitizer)
    bounds     reads beyond a buffer: every access of the PTX is looked at (`fusiond.devices.counting`)
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from fusiond.build import nvcc
from fusiond.devices.counting import ptx_check
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Program, SourceKind
from fusiond.model.system import children, faults
from fusiond.tuning.judging.written_variables import written_variables
from fusiond.tuning.measuring import References

RACE_BLOCKS = 8  #: Of a launch, in which races are looked for: those with ThreadSanitizer are some 50 times slower
_FROM_DEVICE = re.compile(r"\b(?:__)?cuda(?:CDP2)?(?:LaunchDevice|GetParameterBuffer|GraphLaunch)\w*")
_NEEDS_LINKING = "separate compilation mode"  #: What nvcc says of a kernel that launches another one


Finding: TypeAlias = "tuple[str, str]"
"""Why a candidate is wrong, in one line; what was not looked at, and why. Each may be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedPlace:
    """A program at some sizes, with the outputs that are right there."""

    program: Program
    bundle: Path
    seed: int
    outputs: Path  #: An .npz of the reference's outputs on that seed

    @classmethod
    def of(cls, program: Program, bundle: Path, right: References) -> InspectedPlace:
        """With the first of the outputs that are right there."""
        seed, outputs = right.of[0]
        return cls(program=program, bundle=bundle, seed=seed, outputs=Path(outputs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Accused:
    """A candidate in the places where it is looked at: at the job's sizes, and at odd ones where there are some."""

    places: tuple[InspectedPlace, ...]
    reference: Path | None
    """A bundle of the reference at the smallest sizes; races that it has are no fault of a candidate."""
    timeout_secs: float = 60.0
    wrong: bool = False  #: Its outputs are known to be wrong: then only what may be the cause says more

    @property
    def smallest(self) -> InspectedPlace:
        return min(self.places, key=lambda each: sum(int(one.elements) for one in each.program.buffers))


def launches(accused: Accused) -> Finding:
    """A source that launches kernels itself."""
    return launches_kernels(accused.places[0].program), ""


def launches_kernels(program: Program) -> str:
    """Which source of a program launches work from the device, and how it says so; empty where none does."""
    for source in program.sources:
        if source.kind is SourceKind.HOST:
            continue
        found = _FROM_DEVICE.search(source.text)
        if found is not None:
            return _launching(source.name, f"calls {found[0]}")
        if "<<<" in source.text and nvcc.find() is not None:
            built = nvcc.named_ptx(source, "sm_90")
            if isinstance(built, BuildFailed) and _NEEDS_LINKING in f"{built.reason}{built.log}":
                return _launching(source.name, "launches with <<<")
    return ""


def _launching(name: str, what: str) -> str:
    return f"{name} {what}: work of a child kernel is outside of what is measured"


def state(accused: Accused) -> Finding:
    """Variables of the module that it writes: what it keeps there it need not compute again."""
    name = next(written_variables(accused.places[0].program), None)
    if name is None:
        return "", ""
    remedy = "say it under `constants:`, and it is restored before each"
    return f"`{name}` keeps its value from launch to launch: {remedy}", ""


def bounds(accused: Accused) -> Finding:
    """Every access of what nvcc makes of it, and whether that computes the same."""
    hint = ""
    for place in accused.places:
        said = ptx_check.apart(
            place.bundle, place.outputs, seed=place.seed, fmad=False, timeout_secs=accused.timeout_secs
        )
        if said.agrees is False and (said.broke or not accused.wrong):
            return f"as nvcc compiles it: {said.detail}", ""
        if said.agrees is None:
            hint = f"reads beyond a buffer were not looked for: {said.detail}"
    return "", hint


def races(accused: Accused) -> Finding:
    """Races that the reference has not."""
    problem, hint = _races(accused.smallest.bundle, accused.timeout_secs)
    if problem and accused.reference is not None and _races(accused.reference, accused.timeout_secs)[0]:
        return "", f"the reference has races, too: {problem}"
    return problem, hint


def _races(bundle: Path, timeout_secs: float) -> Finding:
    command = [sys.executable, "-m", "fusiond.devices.cpu.race", str(bundle), "--blocks", str(RACE_BLOCKS)]
    try:
        done = children.run(command, timeout_secs=timeout_secs)
    except subprocess.TimeoutExpired:
        return "", f"races were not looked for to the end: it takes longer than {timeout_secs:g} s"
    fault = faults.of_end(done.returncode, "the race check")
    if fault is not None:
        raise fault
    *found, last = done.stdout.splitlines() or [""]
    if done.returncode == 1 and found and all(map(_stores_alike, found)):
        said = "threads store to one place in no order, which is right where all store the same"
        return "", f"{said}: {found[0]}"
    if done.returncode == 1 and found:
        return f"race: {found[0]}{f', and {len(found) - 1} more' if len(found) > 1 else ''}", ""
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or [last])[0]
        return "", f"races were not looked for: {said}"
    return "", ""


_STORES = re.compile(r".*: write of \d+ bytes by .* at (\S+) races with write of \d+ bytes by .* at (\S+)")


def _stores_alike(race: str) -> bool:
    """Whether it is between two stores of one line, and none of them is part of an update: that reads, too, and its
    reads race with its writes."""
    found = _STORES.fullmatch(race)
    return found is not None and found[1] == found[2]


DEFENCES: Mapping[str, Callable[[Accused], Finding]] = {
    "launches": launches,
    "state": state,
    "races": races,
    "bounds": bounds,
}


def inspect(accused: Accused, *, without: Collection[str] = ()) -> tuple[str, tuple[str, ...]]:
    """(why a candidate is wrong, or an empty text; what was not looked at). All at once, on all cores; of several
    problems the first in the order of DEFENCES is told. Raises MachineFault."""
    with ThreadPoolExecutor(len(DEFENCES)) as pool:
        tasks = [pool.submit(look, accused) for name, look in DEFENCES.items() if name not in without]
        found = [each.result() for each in tasks]
    return next((problem for problem, _ in found if problem), ""), tuple(hint for _, hint in found if hint)
