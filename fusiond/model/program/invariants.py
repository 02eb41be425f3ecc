"""The invariants of a Program, which strategies must keep and devices may rely on."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fusiond.model.language import expressions
from fusiond.model.language.dtypes import DTYPES
from fusiond.model.program.buffers import FILL_KINDS, Buffer, Memory, Role, SourceKind, SourceLanguage
from fusiond.model.program.formulas import formulas
from fusiond.model.program.steps import Alloc, Copy

if TYPE_CHECKING:
    from fusiond.model.program.program import Program


def problems(program: Program) -> tuple[str, ...]:
    """Every broken invariant of a plan, each as one line that names what breaks it; empty when it is sound."""
    checks = (
        _name_problems, _buffer_problems, _arena_problems, _part_problems, _allocation_problems, _run_problems,
        _source_problems, _symbol_problems, _step_problems, _size_problems, _seam_problems,
    )  # fmt: skip
    return tuple(each for check in checks for each in check(program))


def _name_problems(program: Program) -> list[str]:
    found = []
    for kind, named in (("buffer", program.buffers), ("source", program.sources), ("step", program.steps)):
        counts = Counter(each.name for each in named)
        found += [f"two {kind}s are called {name!r}" for name, count in sorted(counts.items()) if count > 1]
    if program.issue not in ("streams", "graph"):
        found.append(f"issue is {program.issue!r}, not streams or graph")
    return found


def _source_problems(program: Program) -> list[str]:
    """PTX is device code, and nothing is left in it that a preprocessor would read."""
    found = []
    for source in program.sources:
        if source.language is SourceLanguage.PTX:
            said = {"defines": source.defines, "include_dirs": source.include_dirs}
            found += [f"source {source.name!r} is PTX and has {name}" for name, given in said.items() if given]
            if source.kind is not SourceKind.DEVICE:
                found.append(f"source {source.name!r} is PTX and host code")
    return found


def _symbol_problems(program: Program) -> list[str]:
    variables = {f"{source.name}:{symbol}" for source in program.sources for symbol in source.symbols}
    named = {each.symbol for each in program.buffers if each.symbol is not None}
    return [f"a buffer is the unknown variable {symbol!r}" for symbol in sorted(named - variables)]


def _step_problems(program: Program) -> list[str]:
    """Steps wait for earlier ones, and hold nothing that the plan allocates; something is timed."""
    buffers = {each.name: each for each in program.buffers}
    sources = {each.name: each for each in program.sources}
    allocated = {step.allocates for step in program.steps}
    found: list[str] = []
    earlier: set[str] = set()
    for step in program.steps:
        found += [f"step {step.name!r} waits for {name!r}, which is not listed before it"
                  for name in step.after if name not in earlier]  # fmt: skip
        found += step.problems(buffers, sources)
        found += [f"step {step.name!r} has {name!r} inside a struct, and the plan allocates that"
                  for name in step.held if name in buffers and (buffers[name].arena or name) in allocated]  # fmt: skip
        earlier.add(step.name)
    if not any(step.counted for step in program.steps):
        found.append("no step is counted, so there is nothing to time")
    return found


def _size_problems(program: Program) -> list[str]:
    """Every formula speaks of sizes that can be changed, and gives its number at those that there are."""
    known = dict(program.sizes)
    found = [f"the fixed size {name!r} is none of the sizes" for name in program.fixed if name not in known]
    for text, value in dict(formulas((program.buffers, program.steps))).items():
        try:
            formula = expressions.parse_formula(text)
            if formula.names & set(program.fixed):
                found.append(f"{text!r} speaks of the fixed {min(formula.names & set(program.fixed))!r}")
            elif formula.integer(known) != value:
                found.append(f"{text!r} is {formula.integer(known)} at the program's sizes, not {value}")
        except expressions.ExpressionError as problem:
            found.append(str(problem))
    return found


def _seam_problems(program: Program) -> list[str]:
    buffers, steps = {each.name for each in program.buffers}, {each.name for each in program.steps}
    found = []
    for seam in program.seams:
        found += [f"seam {seam.name!r} names the unknown buffer {name!r}"
                  for name in (*seam.reads, *seam.writes) if name not in buffers]  # fmt: skip
        found += [f"seam {seam.name!r} names the unknown step {name!r}"
                  for name in (seam.before, seam.stand_in) if name is not None and name not in steps]  # fmt: skip
    names = [each.name for each in program.seams]
    return found + [f"two seams are called {name!r}" for name in sorted(set(names)) if names.count(name) > 1]


def _buffer_problems(program: Program) -> list[str]:
    found = []
    for buffer in program.buffers:
        if buffer.dtype not in DTYPES:
            found.append(f"buffer {buffer.name!r} has the unknown dtype {buffer.dtype!r}")
        elif buffer.elements < 1:
            found.append(f"buffer {buffer.name!r} has {buffer.elements} elements")
        elif buffer.arena is not None and (buffer.offset_bytes < 0 or buffer.offset_bytes % DTYPES[buffer.dtype].bytes):
            found.append(f"buffer {buffer.name!r} is not aligned at offset {buffer.offset_bytes}")
        if buffer.fill.kind not in FILL_KINDS:
            found.append(f"buffer {buffer.name!r} has the unknown fill {buffer.fill.kind!r}")
        if buffer.reset not in ("each_run", "never"):
            found.append(f"buffer {buffer.name!r} has reset {buffer.reset!r}, not each_run or never")
    return found


def _arena_problems(program: Program) -> list[str]:
    found = []
    arenas: dict[str, list[Buffer]] = {}
    for buffer in program.buffers:
        if buffer.arena is not None and buffer.dtype in DTYPES and buffer.part_of is None:
            arenas.setdefault(buffer.arena, []).append(buffer)
    alone = {each.name for each in program.buffers if each.arena is None}
    found += [f"{name!r} is the name of an arena, and of a buffer outside it" for name in arenas if name in alone]
    for name, members in arenas.items():
        if len({each.memory for each in members}) > 1:
            found.append(f"arena {name!r} mixes kinds of memory")
        members.sort(key=lambda each: each.offset_bytes)
        for left, right in itertools.pairwise(members):
            if left.offset_bytes + left.size_bytes > right.offset_bytes:
                found.append(f"buffers {left.name!r} and {right.name!r} overlap in arena {name!r}")
    return found


def _allocation_problems(program: Program) -> list[str]:
    """What steps allocate and free is there, and what comes from the device's pool is the device's."""
    memories: dict[str, set[Memory]] = {}
    for each in program.buffers:
        if each.symbol is None:
            memories.setdefault(each.arena or each.name, set()).add(each.memory)
    found = []
    for step in program.steps:
        for arena in (step.allocates, step.frees):
            if arena is not None and arena not in memories:
                found.append(f"step {step.name!r} names the unknown arena {arena!r}")
        if isinstance(step, Alloc) and step.pooled:
            others = sorted(memories.get(step.arena, set()) - {Memory.DEVICE})
            found += [f"step {step.name!r} takes {step.arena!r} from the device's pool, and it is {each} memory"
                      for each in others]  # fmt: skip
    return found


def _run_problems(program: Program) -> list[str]:
    """What lies between the first and the last buffer of a message is one of it, or in parts of it: all is copied."""
    buffers = {each.name: each for each in program.buffers if each.dtype in DTYPES}
    wholes: dict[str, list[tuple[int, Buffer]]] = {}
    for each in program.buffers:
        if each.arena is not None and each.part_of is None and each.dtype in DTYPES:
            wholes.setdefault(each.arena, []).append((each.offset_bytes, each))
    for members in wholes.values():
        members.sort(key=lambda member: member[0])
    found = []
    for step in program.steps:
        for names in (step.source, step.target) if isinstance(step, Copy) and len(step.source) > 1 else ():
            run = [buffers[name] for name in names if name in buffers and buffers[name].arena is not None]
            if run and len(run) == len(names):
                found += [
                    f"step {step.name!r} copies over {name!r}, which lies between {names[0]!r} and {names[-1]!r}"
                    for name in _copied_over(run, wholes.get(str(run[0].arena), []))
                ]
    return found


def _copied_over(run: Sequence[Buffer], members: Sequence[tuple[int, Buffer]]) -> Iterator[str]:
    """The buffers of an arena of which a message carries something that it does not name."""
    begin, end = run[0].offset_bytes, run[-1].offset_bytes + run[-1].size_bytes
    named: dict[str, list[Buffer]] = {}
    for each in run:
        named.setdefault(each.part_of or each.name, []).append(each)
    first = max(0, bisect.bisect(members, begin, key=lambda member: member[0]) - 1)
    for at, whole in members[first:]:
        if at >= end:
            break
        reached = max(at, begin)
        for each in named.get(whole.name, ()):
            if each.offset_bytes <= reached:
                reached = max(reached, each.offset_bytes + each.size_bytes)
        if reached < min(at + whole.size_bytes, end):
            yield whole.name


def _part_problems(program: Program) -> list[str]:
    """A part lies within its whole, in the same arena, and is scratch memory of the same type."""
    wholes = {each.name: each for each in program.buffers if each.part_of is None}
    found = []
    for part in program.buffers:
        if part.part_of is None or part.dtype not in DTYPES:
            continue
        whole = wholes.get(part.part_of)
        if whole is None:
            found.append(f"buffer {part.name!r} is a part of {part.part_of!r}, which is not a buffer, or a part itself")
        elif part.arena is None or any(
            getattr(part, each) != getattr(whole, each) for each in ("arena", "dtype", "memory")
        ):
            found.append(f"buffer {part.name!r} differs from {whole.name!r}, of which it is a part, in arena or type")
        elif part.role is not Role.SCRATCH:
            found.append(f"buffer {part.name!r} is a part of {whole.name!r}, and has the role {part.role}")
        elif not (
            whole.offset_bytes <= part.offset_bytes
            and part.offset_bytes + part.size_bytes <= whole.offset_bytes + whole.size_bytes
        ):
            found.append(f"buffer {part.name!r} reaches beyond {whole.name!r}, of which it is a part")
    return found
