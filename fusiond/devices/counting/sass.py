"""nvdisasm's listing -> the basic blocks of its kernels, and how many of their instructions a launch executed.

ptxas says of each SASS instruction which line of the PTX it comes from, and the PTX was run; how often each SASS block
was executed is derived from both (`frequencies`). It is an estimate where the two do not have the same loops.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fusiond.build import nvcc, nvdisasm
from fusiond.build.cache import BuildCache
from fusiond.devices.counting import frequencies
from fusiond.devices.counting.classes import class_of
from fusiond.devices.counting.frequencies import BasicBlock, SassInstruction
from fusiond.devices.counting.rows import BRANCH, EXIT
from fusiond.devices.counting.sampling import LaunchCounts
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Source


class SassError(Exception):
    """A listing whose control flow is not understood; one line."""


SassFunction: TypeAlias = tuple[BasicBlock, ...]
"""A kernel. The first block is where it begins; blocks that nothing leads to are not among them."""


def of_source(source: Source, arch: str, *, cache: BuildCache | None = None) -> Mapping[str, SassFunction]:
    """The kernels of a source that is built with -lineinfo, by their mangled names. SassError where there is none: no
    nvdisasm, or ptxas refuses the source."""
    built = nvcc.build(source, arch, cache=cache)
    if isinstance(built, BuildFailed):
        raise SassError(built.reason)
    text = nvdisasm.listing(built.path, cache=cache)
    if isinstance(text, BuildFailed):
        raise SassError(text.reason)
    return parse(text)


@dataclass(frozen=True, slots=True)
class Executed:
    """SASS instructions of one launch, by class (`classes.CLASSES`)."""

    threads: Mapping[str, int]  #: Summed over the active threads, whether or not the instruction's predicate held
    warps: Mapping[str, int]  #: Summed over warps


def executed(function: SassFunction, lines: Mapping[int, frequencies.LineCounts]) -> Executed:
    """What a launch executed whose PTX lines did what `lines` say. SassError where the solver gives up."""
    threads: dict[str, float] = {}
    warps: dict[str, float] = {}
    try:
        found = frequencies.of_blocks(function, lines)
    except frequencies.Unsolved as problem:
        raise SassError(str(problem)) from None
    for block, often in zip(function, found, strict=True):
        for each in block.instructions:
            kind = class_of(each.opcode)
            threads[kind] = threads.get(kind, 0.0) + often.threads
            warps[kind] = warps.get(kind, 0.0) + often.warps
    return Executed(
        {kind: round(value) for kind, value in threads.items()}, {kind: round(value) for kind, value in warps.items()}
    )


def lines_of(result: LaunchCounts) -> dict[int, frequencies.LineCounts]:
    """How often each line of the PTX was executed in a launch. Instructions of one line (inline assembly) are taken to
    be executed as often as the one of them that was executed most."""
    threads, warps = result.counts["lanes"].tolist(), result.counts["warps"].tolist()
    entered = _entered(result, threads)
    found: dict[int, frequencies.LineCounts] = {}
    for k, source in enumerate(result.code.sources):
        if not source.line:  # the end that every kernel is given, behind its text
            continue
        known = found.get(source.line)
        opcodes = (source.opcode,) if known is None else tuple(dict.fromkeys((*known.opcodes, source.opcode)))
        guarded = source.guard is not None and (known is None or known.guarded)
        if known is None or threads[k] > known.threads:
            known = frequencies.LineCounts(
                opcodes=(), guarded=False, threads=threads[k], warps=warps[k], entered=entered[k]
            )
        found[source.line] = dataclasses.replace(known, opcodes=opcodes, guarded=guarded)
    return found


def _entered(result: LaunchCounts, threads: list[int]) -> list[int | None]:
    """For each instruction, the threads that entered the innermost loop around it: those of the instruction before the
    loop's first, where that one falls into the loop. nvcc writes loops so."""
    code = result.code.instructions
    back = [(at - int(target), int(target), at) for at, target in enumerate(code["target"]) if 0 <= target <= at]
    back = [each for each in back if code["kind"][each[2]] == BRANCH]
    found: list[int | None] = [None] * len(threads)
    for _, begin, end in sorted(back, reverse=True):
        before = begin - 1
        falls = before >= 0 and (code["kind"][before] not in (BRANCH, EXIT) or code["guard"][before] != -1)
        for at in range(begin, end + 1):
            found[at] = threads[before] if falls else None
    return found


# --- the listing ----------------------------------------------------------------------------------------

_SECTION = re.compile(r"\s*\.section\s+\.text\.([\w$.]+)")
_LABEL = re.compile(r"([.\w$]+):$")
_LINE = re.compile(r"\s*//## File \"\.nv_debug_ptx_txt\", line (\d+)")
_INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(@!?U?P[T\d]+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_TARGET = re.compile(r"`\(([^)]+)\)")
_LEAVING = ("EXIT", "RET", "KILL", "BPT")
_JUMPS = ("BRA", "JMP")
_UNKNOWN = ("BRX", "JMX", "BRXU", "JMXU", "CALL.ABS")


def _conditional(line: SassInstruction) -> bool:
    """A second predicate of a jump stands among its operands."""
    return line.guarded or re.match(r"!?U?P\d", line.operands) is not None


def parse(text: str) -> Mapping[str, SassFunction]:
    """The kernels of a listing, by their mangled names. SassError for jumps to where a register says."""
    functions: dict[str, SassFunction] = {}
    name, lines, labels, ptx_line = "", list[SassInstruction](), dict[str, int](), 0
    for row in [*text.splitlines(), "\t.section\t.text.end"]:
        if section := _SECTION.match(row):
            if name:
                functions[name] = _Blocks(name, lines, labels).function()
            name, lines, labels, ptx_line = section.group(1), [], {}, 0
        elif label := _LABEL.match(row):
            labels[label.group(1)] = len(lines)
            if not label.group(1).startswith((".L_", ".text.")):
                ptx_line = 0  # a function of ptxas's own: of no line
        elif number := _LINE.match(row):
            ptx_line = int(number.group(1))
        elif found := _INSTRUCTION.match(row):
            guard, opcode, operands = found.groups()
            guarded = bool(guard) and guard.strip() not in ("@PT", "@UPT")
            lines.append(SassInstruction(opcode, guarded, ptx_line, operands))
    return functions


_After = tuple[tuple[int, ...], bool, int | None]
"""Where control goes from an instruction, whether threads may end there, and the function that it calls."""


def _targets(after: _After) -> list[int]:
    following, _, calls = after
    return [*following, *([calls] if calls is not None else [])]


class _Blocks:
    """Divides a function's instructions at labels and branches. Where lanes meet again (BSYNC), what follows is next in
    the listing, too."""

    def __init__(self, name: str, lines: list[SassInstruction], labels: Mapping[str, int]) -> None:
        self._name, self._lines, self._labels = name, lines, labels
        self._known: dict[int, bool] = {}  #: First instruction of what is called -> whether it comes back

    def function(self) -> SassFunction:
        lines = self._lines
        after = [self._after(at) for at in range(len(lines))]
        bounds = self._bounds(after)
        targets = {begin: _targets(after[end - 1]) for begin, end in bounds}
        reached = frequencies.reachable([0], lambda begin: [each for each in targets[begin] if each in targets])
        kept = [each for each in bounds if each[0] in reached]
        number = {begin: k for k, (begin, _) in enumerate(kept)}
        blocks = []
        for begin, end in kept:
            following, ends, calls = after[end - 1]
            inside = tuple(lines[begin:end])
            successors = tuple(number[each] for each in dict.fromkeys(following) if each in number)
            blocks.append(BasicBlock(inside, successors, ends, None if calls is None else number[calls]))
        return tuple(blocks)

    def _bounds(self, after: Sequence[_After]) -> list[tuple[int, int]]:
        """Begin and end of each block: one begins at a label, behind a branch, and where something goes."""
        starts = {0, *self._labels.values()}
        for at, each in enumerate(after):
            following, ends, calls = each
            if following != (at + 1,) or ends or calls is not None:
                starts |= {at + 1, *_targets(each)}
        ordered = sorted(each for each in starts if each < len(after))
        return list(zip(ordered, [*ordered[1:], len(after)], strict=True))

    def _after(self, at: int) -> _After:
        line = self._lines[at]
        opcode, guarded = line.opcode, line.guarded
        if opcode.startswith(_UNKNOWN):
            raise SassError(f"{self._name}: {opcode} goes where a register says, its instructions are not counted")
        word = opcode.partition(".")[0]
        falls = (at + 1,) if at + 1 < len(self._lines) else ()
        if word in _LEAVING:
            return (falls if guarded else ()), True, None
        if word == "CALL":
            target = self._target(line)
            if self._returns(target):
                return falls, False, target
            return ((*falls, target) if guarded else (target,)), False, None
        if word in _JUMPS:
            # `.DIV` is taken where the warp's lanes have parted: there a slower copy of the code follows, which is
            # taken as not executed.
            if opcode.startswith("BRA.DIV"):
                return falls, False, None
            return ((*falls, self._target(line)) if _conditional(line) else (self._target(line),)), False, None
        return falls, False, None

    def _returns(self, target: int) -> bool:
        """Whether what is called comes back. Up to sm_80, ptxas leaves loops by calling what ends the kernel. Calls on
        the way are judged alike; one that leads round to here again is a jump, too."""
        if target not in self._known:
            self._known[target] = False
            self._known[target] = self._reaches_return(target)
        return self._known[target]

    def _reaches_return(self, target: int) -> bool:
        seen, waiting = set[int](), [target]
        while waiting:
            at = waiting.pop()
            if at in seen or at >= len(self._lines):
                continue
            seen.add(at)
            line = self._lines[at]
            word = line.opcode.partition(".")[0]
            if word == "RET":
                return True
            jumps = word in _JUMPS and not line.opcode.startswith("BRA.DIV")
            gone = jumps or (word == "CALL" and not self._returns(self._target(line)))
            if gone:
                waiting.append(self._target(line))
            if not (gone or word in _LEAVING) or _conditional(line):
                waiting.append(at + 1)
        return False

    def _target(self, line: SassInstruction) -> int:
        named = _TARGET.search(line.operands)
        if named is None or named.group(1) not in self._labels:
            raise SassError(f"{self._name}: the target of {line.opcode} {line.operands} is not known")
        return self._labels[named.group(1)]
