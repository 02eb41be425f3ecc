"""Compiler and occupancy facts of a candidate's launches."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusiond.build import nvcc
from fusiond.model.gpu.occupancy import Occupancy, launch_problem, occupancy
from fusiond.model.nouns import CompileFacts
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Program
from fusiond.strategy import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """What the compiler and the occupancy rules say of one launch of a candidate: nothing of it was measured."""

    candidate: str
    launch: str
    entry: str
    facts: CompileFacts | None  #: None for what does not build
    threads: int
    dynamic_shared_bytes: int
    occupancy: Occupancy | None
    problem: str | None
    """Why the device would not launch it, or the compiler's first line of why it does not build; else None."""

    def as_json(self) -> dict[str, Any]:
        facts, occupancy = self.facts, self.occupancy
        return {
            "candidate": self.candidate,
            "launch": self.launch,
            "entry": self.entry,
            "registers": facts and facts.registers,
            "shared_bytes": facts and facts.shared_bytes + self.dynamic_shared_bytes,
            "barriers": facts and facts.barriers,
            "spill_bytes": facts and facts.spill_store_bytes + facts.spill_load_bytes,
            "threads": self.threads,
            "blocks_per_sm": occupancy and occupancy.blocks_per_sm,
            "occupancy": occupancy and round(occupancy.ratio, 4),
            "limited_by": occupancy and occupancy.limited_by,
            "problem": self.problem,
        }


def kernel_facts(target: Target, programs: Mapping[str, Program]) -> tuple[KernelFacts, ...] | None:
    """Registers, spills and occupancy of every launch; None where the target has no registers, or nobody can
    compile."""
    if target.limits.registers_per_sm == 0:
        return None
    found = []
    for candidate, program in programs.items():
        for step in program.launches:
            entries = target.facts(program.source(step.source))
            if entries is None:
                return None
            if isinstance(entries, BuildFailed):
                failed = f"does not build: {entries.reason}"
            else:
                failed = "" if step.entry in entries else "the compiler says nothing of this entry"
            row = KernelFacts(
                candidate=candidate,
                launch=step.name,
                entry=step.entry,
                facts=None,
                threads=step.block[0] * step.block[1] * step.block[2],
                dynamic_shared_bytes=step.shared_bytes,
                occupancy=None,
                problem=failed or None,
            )
            known = None if failed or isinstance(entries, BuildFailed) else entries[step.entry]
            found.append(row if known is None else _with_facts(target, row, known))
    return tuple(found)


def _with_facts(target: Target, row: KernelFacts, facts: CompileFacts) -> KernelFacts:
    shared_bytes = facts.shared_bytes + row.dynamic_shared_bytes
    return dataclasses.replace(
        row,
        facts=facts,
        occupancy=occupancy(target.limits, facts.registers, shared_bytes, row.threads, barriers=facts.barriers),
        problem=launch_problem(target.limits, facts.registers, shared_bytes, row.threads),
    )


def without_facts(target: Target, facts: tuple[KernelFacts, ...] | None) -> tuple[str, ...]:
    """Why there are none; empty where there are."""
    if facts is not None:
        return ()
    if target.limits.registers_per_sm == 0:
        return ("no registers or occupancy: the cpu device has none; name a GPU's architecture, such as --arch sm_90",)
    return (f"no registers, spills or occupancy: {nvcc.missing() or 'the compiler said nothing'}",)
