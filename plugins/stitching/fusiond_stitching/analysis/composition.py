"""A plan in which each group runs as it was fastest by itself.

    plan of the whole module      k0: g0 | g1 | g2, all at 256 threads
    ways of its parts             g0: 128/2048/warp/device/16, g2: 128/8192/shared/paper/shared
                             -->  k0: g0 | g1 | g2, at 128 threads, g0 in blocks of 2048 elements, ...

Fusion is not decided anew: groups and launches stay. Of a way, rows, grain, exchange and shared memory are a group's
own affair. Threads are the launch's: where all groups of a launch that were measured want the same number, it has that
number, and where they differ the number of the whole plan; groups that were not measured follow. A launch with a
group for which there is no block program at that number stays as it was.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass

from fusiond.model.nouns import Config, DeviceLimits
from fusiond_stitching.analysis import parts, planner
from fusiond_stitching.analysis.parts import Part
from fusiond_stitching.analysis.plan import (
    BlockProgram,
    Global,
    Home,
    Phase,
    StageResult,
    StitchedKernel,
    StitchingPlan,
)
from fusiond_stitching.analysis.planner import PlannedModule
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.frontend.graph import HloModule

EXCHANGES = ("warp", "shared")
LIMITS = ("device", "paper")
SHARED = "shared"
ROWS = ("16", "8", "32", "4", SHARED)
_LABEL = re.compile(r"(\d{1,4})/(\d{1,9})/(\w+)/(\w+)/(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a group was fastest by itself."""

    threads: int
    grain: int
    exchange: str
    shared: str
    rows: str

    def __str__(self) -> str:
        return f"{self.threads}/{self.grain}/{self.exchange}/{self.shared}/{self.rows}"

    @staticmethod
    def of(config: Config) -> Way:
        """The way that a config of a part stands for. KeyError or TypeError for any other config."""
        return Way(
            threads=config.integer("threads"),
            grain=config.integer("grain"),
            exchange=config.text("exchange"),
            shared=config.text("shared"),
            rows=config.text("rows"),
        )

    @staticmethod
    def read(text: str) -> Way:
        """What `str` wrote. ValueError when it did not."""
        found = _LABEL.fullmatch(text)
        if found is None or found[3] not in EXCHANGES or found[4] not in LIMITS or found[5] not in ROWS:
            raise ValueError(f"{text!r} does not say how to compute a group: THREADS/GRAIN/EXCHANGE/SHARED/ROWS")
        return Way(threads=int(found[1]), grain=int(found[2]), exchange=found[3], shared=found[4], rows=found[5])

    def policy(self, rules: FusionPolicy, shared_limits: Mapping[str, int]) -> FusionPolicy:
        """The rules of a whole plan with this way in their place. `shared_limits`: bytes by label."""
        registers = self.rows != SHARED
        return dataclasses.replace(
            rules,
            threads=self.threads,
            grain=self.grain,
            warp=self.exchange == "warp",
            registers=registers,
            per_thread=int(self.rows) if registers else rules.per_thread,
            shared_limit=shared_limits[self.shared],
        )


@dataclass(kw_only=True)
class Composition:
    """A plan without problems, with every launch as its groups were fastest."""

    module: HloModule
    found: PlannedModule
    parts: Mapping[str, Part]  #: Root -> the group by itself
    ways: Mapping[str, Way]  #: Root -> how it was fastest
    rules: FusionPolicy
    shared_limits: Mapping[str, int]  #: Bytes by label
    limits: DeviceLimits

    def __post_init__(self) -> None:
        self.members = {group.root: frozenset(group.members) for group in self.found.fusion.groups}
        self.alone = parts.groups(self.module, self.found)
        self.taken: list[str] = []  #: The parts that were taken, a name for each group that runs in a way of its own
        plan = self.found.plan
        steps = (self._launch(step) if isinstance(step, StitchedKernel) else step for step in plan.steps)
        self.plan = StitchingPlan(steps=tuple(steps), notes=plan.notes)

    def _launch(self, kernel: StitchedKernel) -> StitchedKernel:
        asked = {self.ways[each.root].threads for each in kernel.programs if each.root in self.ways}
        if not asked:
            return kernel
        threads = asked.pop() if len(asked) == 1 else self.rules.threads
        made = {each.root: self._program(each, threads) for each in kernel.programs}
        if any(each is None for each in made.values()):
            return kernel
        phases = []
        for phase in kernel.phases:
            programs = (made[each.root] for each in phase.programs)
            phases.append(Phase(programs=tuple(each for each in programs if each is not None)))
        rules = dataclasses.replace(self.rules, threads=threads)
        if planner.threads_of(rules, [each for phase in phases for each in phase.programs]) is None:
            return kernel
        self.taken += [self.parts[root].name for root in made if root in self.ways]
        return planner.kernel(rules, kernel.name, tuple(phases), self.limits)

    def _program(self, program: BlockProgram, threads: int) -> BlockProgram | None:
        """A group's block program in its own way, at a number of threads; None where there is none."""
        root = program.root
        rules = self.ways[root].policy(self.rules, self.shared_limits) if root in self.ways else self.rules
        rules = dataclasses.replace(rules, threads=threads)
        if rules == self.rules:
            return program
        part = self.parts.get(root)
        inner = self.alone[root] if part is None else part.module
        found = parts.only(parts.planned(inner, rules, self.limits))
        if isinstance(found, str):
            return None
        names = part.names if part else {name: name for name in inner.by_name}
        stages = tuple(
            dataclasses.replace(stage, results=tuple(self._renamed(each, names) for each in stage.results))
            for stage in found.stages
        )
        renamed = dataclasses.replace(found, name=program.name, root=names[found.root], stages=stages)
        return renamed if all(each.instruction in self.members[root] for each in renamed.results) else None

    def _renamed(self, result: StageResult, names: Mapping[str, str]) -> StageResult:
        name = names[result.instruction]
        buffer = Global(self.module.buffer_of(name))
        homes: list[Home] = [buffer if isinstance(home, Global) else home for home in result.homes]
        return StageResult(name, tuple(homes))
