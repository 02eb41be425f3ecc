"""How often each block of SASS ran, solved for from how often each line of the PTX ran.

What is known: as many threads enter a block as leave it, all threads enter the first, and the instructions that the
PTX line i became were executed as often as i was, in all places where ptxas has put copies of them (loops that it
unrolls, ends of branches that it doubles). Not all lines can be believed: ptxas moves instructions out of loops, merges
some, and executes both sides of a short branch under predicates. So a linear program looks for frequencies that obey
the first two exactly and disagree least, in instructions, with the third; among equals the fewest instructions win:
paths that no line speaks for, like a division's for denormal numbers, are taken as not executed.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy import sparse  # a quarter of a second, which what is known already does without

_SIDE_EFFECT, _ARITHMETIC, _INTEGER = 8.0, 2.0, 0.5
"""What a line's word counts: memory and barriers are neither merged nor doubled, integers often."""
_CHEAPEST = 1e-3
_NOTHING = 1e-9
_ENTRY = 1.0  #: What a thread counts that ought to have entered a loop
_CALL = 100.0
"""Instructions that a call of a function of ptxas's own seems to have, so that it is passed by where it can be."""


class Unsolved(Exception):
    """The solver gave up; one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineCounts:
    """What a line of the PTX did in a launch."""

    opcodes: tuple[str, ...]
    guarded: bool
    threads: int
    warps: int
    entered: int | None = None
    """Threads that entered the innermost loop that it is in; None: it is in none, or that is not known."""


@dataclass(frozen=True, slots=True)
class Often:
    """How often a block was executed."""

    threads: float
    warps: float


@dataclass(frozen=True, slots=True)
class SassInstruction:
    opcode: str  #: With its modifiers: `LDG.E.128`
    guarded: bool
    line: int  #: Of the PTX; 0: of none, as in what ptxas adds of its own
    operands: str = ""


@dataclass(frozen=True, slots=True)
class BasicBlock:
    instructions: tuple[SassInstruction, ...]
    successors: tuple[int, ...]  #: Numbers of blocks; empty where threads end here, or a function returns
    ends: bool  #: Whether threads may end here, or a function return
    calls: int | None  #: The first block of the function that its last instruction calls


def of_blocks(blocks: Sequence[BasicBlock], lines: Mapping[int, LineCounts]) -> list[Often]:
    """The frequencies of a kernel's blocks, of which the first is where it begins. Unsolved where there are none, as of
    a kernel that never ends."""
    entering = max((each.threads for each in lines.values()), default=0)
    if entering == 0:
        return [Often(0.0, 0.0) for _ in blocks]
    first = lines[min(lines)]
    seen = _Places(blocks, lines)
    program = _Program(blocks, first.threads, entering, [seen.entered(k) for k in range(len(blocks))])
    for line, (copies, weight) in seen.evidence.items():
        program.believe(lines[line].threads, copies, weight)
    for k in range(len(blocks)):
        if (most := seen.most(k)) is not None:
            program.doubt(k, most)
    loops = _loops(blocks)
    for loop in loops:
        within = frozenset[int]().union(*(each for each in loops if each < loop))
        if (times := seen.entries(loop - within)) is not None:
            program.enter(loop, times)
    threads = program.solved()
    lanes = [seen.lanes(k) for k in range(len(blocks))]
    _spread(lanes, blocks, threads)
    others = first.threads / max(first.warps, 1)
    return [Often(each, each / (active or others)) for each, active in zip(threads, lanes, strict=True)]


def _spread(lanes: list[float | None], blocks: Sequence[BasicBlock], threads: Sequence[float]) -> None:
    """Give blocks of which no line says how many lanes are active those of neighbours with as many threads."""
    edges = [(k, target) for k, block in enumerate(blocks) for target in block.successors]
    alike = [(a, b) for a, b in edges if abs(threads[a] - threads[b]) <= _NOTHING * max(threads[a], 1.0)]
    changed = True
    while changed:
        changed = False
        for a, b in alike:
            if (lanes[a] is None) != (lanes[b] is None):
                lanes[a] = lanes[b] = lanes[a] or lanes[b]
                changed = True


# --- what stands for a line -----------------------------------------------------------------------------

_STANDS_FOR: tuple[tuple[str, str, float], ...] = (
    (r"(ld|ldu)\.(volatile\.|relaxed\.|acquire\.|weak\.)?(param|const)\b.*", r"", 0.0),
    (r"(ld|ldu|ldmatrix)\b.*", r"LD[GSL]?(SM)?", _SIDE_EFFECT),
    (r"st\b.*", r"ST[GSL]?", _SIDE_EFFECT),
    (r"(atom|red)\b.*", r"(ATOM[GS]?|REDG?)", _SIDE_EFFECT),
    (r"(bar|barrier)\b.*", r"BAR", _SIDE_EFFECT),
    (r"(bra|ret|exit)\b.*", r"EXIT", _INTEGER),
    (r"shfl\b.*", r"SHFL", _SIDE_EFFECT),
    (r"w?mma\b.*", r"[HIDB]MMA", _SIDE_EFFECT),
    (r"(add|sub|mul|fma|mad)\..*\bf32", r"F(ADD|MUL|FMA)", _ARITHMETIC),
    (r"(add|sub|mul|fma|mad)\..*\bf64", r"D(ADD|MUL|FMA)", _ARITHMETIC),
    (r"(add|sub|mul|fma)\..*\bb?f16(x2)?", r"H(ADD|MUL|FMA)2", _ARITHMETIC),
    (r"(ex2|lg2|sin|cos|tanh|rcp|rsqrt|sqrt|div)\b.*", r"MUFU", _ARITHMETIC),
    (r"setp\..*\bf32", r"FSETP", _INTEGER),
    (r"cvt\b.*", r"(F2F|F2I|I2F|FRND|F2FP|I2FP)", _INTEGER),
    (r"(and|or|xor|not|lop3)\b.*", r"U?LOP3", _INTEGER),
    (r"(mul|mad)\..*[bus](16|32)", r"U?IMAD(?!\.(MOV|IADD|SHL))", _INTEGER),
    (r"(add|sub)\..*[bus](16|32|64)", r"(U?IADD3|VIADD|IMAD\.IADD|LEA)", _INTEGER),
    (r"(shf|shl|shr)\b.*", r"(U?SHF|IMAD\.SHL|LEA)", _INTEGER),
)
# Comparisons of integers are not among them: in a loop that ptxas unrolls they are other ones, and more.
_UPPER_HALF = re.compile(r"\b(X|EX)\b")  #: Of a 64-bit operation: belongs to the instruction before it


def _principal(opcode: str) -> tuple[re.Pattern[str], float] | None:
    """The opcodes of which one is executed each time that this PTX instruction is, and what that is worth."""
    for pattern, stands, weight in _STANDS_FOR:
        if re.fullmatch(pattern, opcode):
            return (re.compile(rf"({stands})(\..*)?"), weight) if stands else None
    return None


class _Places:
    """Where copies of each line are."""

    def __init__(self, blocks: Sequence[BasicBlock], lines: Mapping[int, LineCounts]) -> None:
        self._lines = lines
        self.evidence: dict[int, tuple[Counter[tuple[int, bool]], float]] = {}
        """Line -> how many copies there are in each block (and whether under a predicate), and the weight."""
        self._in: list[list[tuple[int, bool]]] = [[] for _ in blocks]
        known = {number: [p for o in line.opcodes if (p := _principal(o))] for number, line in lines.items()}
        for k, block in enumerate(blocks):
            for each in block.instructions:
                if _UPPER_HALF.search(each.opcode):
                    continue
                for stands, weight in known.get(each.line, ()):
                    if stands.fullmatch(each.opcode):
                        aside = each.guarded and not lines[each.line].guarded
                        copies, _ = self.evidence.setdefault(each.line, (Counter(), weight))
                        copies[k, aside] += 1
                        self._in[k].append((each.line, aside))
                        break
        self._leave_helpers_out()

    def _leave_helpers_out(self) -> None:
        """Integer operations take two instructions at times, both of which look like the one (a negation before an
        addition). What stands together in the PTX is copied together, so a line has no more copies in a block than its
        neighbours that cannot be mistaken; where all can, than half of them."""
        together: dict[tuple[int, int], list[int]] = {}
        run, before = 0, (-1, -1)
        for number in sorted(self._lines):
            often = (self._lines[number].threads, self._lines[number].warps)
            run, before = run + (often != before), often
            if number in self.evidence:
                for k in {block for block, _ in self.evidence[number][0]}:
                    together.setdefault((run, k), []).append(number)
        for (_, k), numbers in together.items():
            count = {each: sum(self.evidence[each][0][k, aside] for aside in (False, True)) for each in numbers}
            sure = [count[each] for each in numbers if self.evidence[each][1] > _INTEGER]
            most = max(sure) if sure else statistics.median_low(count.values())
            for each in numbers:
                if self.evidence[each][1] == _INTEGER and count[each] > most:
                    copies = self.evidence[each][0]
                    copies[k, False] = min(copies[k, False], most)
                    copies[k, True] = most - copies[k, False]
                    self.evidence[each] = (+copies, _INTEGER)

    def entered(self, block: int) -> int | None:
        """Threads that entered the loop that a block is in, by the line that is in the outermost one."""
        found = (self._lines[line].entered for line, _ in self._in[block])
        return min((each for each in found if each is not None), default=None)

    def most(self, block: int) -> float | None:
        """Threads that can have executed a block that holds several rounds of a loop; None: it is no such block. Who
        goes round once never comes there. Where all go round equally often, as it seems where the rounds are a multiple
        of the entries, that is exact."""
        copies = Counter(line for line, aside in self._in[block] if not aside)
        found = []
        for line, count in copies.items():
            entered, threads = self._lines[line].entered, self._lines[line].threads
            if self.evidence[line][1] > _INTEGER and entered and count > 1:
                rounds, rest = divmod(threads, entered)
                found.append(entered * (rounds // count) if rest == 0 else (threads - entered) / (count - 1))
        return min(found, default=None)

    def entries(self, loop: frozenset[int]) -> int | None:
        """Threads that entered a loop of SASS, by what stands in it and in no loop within it, where that is a loop of
        the PTX with one copy of each line; None: it is none, or that is not known."""
        found = set[int | None]()
        for k in loop:
            for line, _ in self._in[k]:
                copies, weight = self.evidence[line]
                if weight > _INTEGER:
                    found.add(self._lines[line].entered if sum(copies.values()) == 1 else None)
        return found.pop() if len(found) == 1 else None

    def lanes(self, block: int) -> float | None:
        """Threads of a warp that were active in a block, on average; None where no line says."""
        found = [(line, aside) for line, aside in self._in[block] if self._lines[line].warps]
        chosen = [line for line, aside in found if not aside] or [line for line, _ in found]
        ratios = sorted(self._lines[line].threads / self._lines[line].warps for line in chosen)
        return ratios[len(ratios) // 2] if ratios else None


def reachable(starts: Iterable[int], following: Callable[[int], Iterable[int]]) -> set[int]:
    """What control can come to from these, themselves among it."""
    found, waiting = set[int](), list(starts)
    while waiting:
        at = waiting.pop()
        if at not in found:
            found.add(at)
            waiting += following(at)
    return found


def _loops(blocks: Sequence[BasicBlock]) -> list[frozenset[int]]:
    """The loops of a kernel, nested ones too: what can reach itself, and again without what it is entered by."""
    found: list[frozenset[int]] = []
    from scipy import sparse

    waiting = [frozenset(range(len(blocks)))]
    while waiting:
        among = sorted(waiting.pop())
        place = {k: n for n, k in enumerate(among)}
        edges = [(place[k], place[to]) for k in among for to in blocks[k].successors if to in place]
        if not edges:
            continue
        at = (np.array([a for a, _ in edges]), np.array([b for _, b in edges]))
        graph = sparse.csr_array((np.ones(len(edges)), at), shape=(len(among), len(among)))
        _, label = sparse.csgraph.connected_components(graph, connection="strong")
        for each in range(label.max() + 1):
            members = frozenset(k for k, of in zip(among, label, strict=True) if of == each)
            if len(members) > 1 or any(k in blocks[k].successors for k in members):
                found.append(members)
                heads = {to for k, block in enumerate(blocks) if k not in members for to in block.successors}
                waiting.append(members - heads)
    return found


# --- the linear program ---------------------------------------------------------------------------------


class _Program:
    """Variables are edges, blocks, and what a line's copies differ by; all in units of `scale` threads."""

    def __init__(self, blocks: Sequence[BasicBlock], entering: int, scale: int, entered: Sequence[int | None]) -> None:
        self._scale = float(scale)
        self._entered = entered
        self._blocks = range(len(blocks))
        self._costs = [_CHEAPEST * (len(each.instructions) + _CALL * (each.calls is not None)) for each in blocks]
        self._limits: list[tuple[list[tuple[int, float]], float]] = []
        self._entries: set[frozenset[int]] = set()  #: The edges into each loop that is to be entered
        self._out: list[list[tuple[int, int]]] = []
        """Of each block, the variables of what leaves it and the blocks where that goes."""
        into: list[list[tuple[int, float]]] = [[(k, -1.0)] for k in self._blocks]
        self._equal: list[tuple[list[tuple[int, float]], float]] = []
        for k, block in enumerate(blocks):
            out = [(k, -1.0)]
            self._out.append([])
            for target in block.successors:
                edge = self._variable(0.0)
                self._out[k].append((edge, target))
                out.append((edge, 1.0))
                into[target].append((edge, 1.0))
            if block.ends or not block.successors:
                out.append((self._variable(0.0), 1.0))
            self._equal.append((out, 0.0))
            if block.calls is not None:
                into[block.calls].append((k, 1.0))
                self._out[k].append((k, block.calls))
        for k in self._blocks:
            self._equal.append((into[k], -entering / self._scale if k == 0 else 0.0))

    def believe(self, threads: int, copies: Mapping[tuple[int, bool], int], weight: float) -> None:
        """A line was executed by so many threads, in all of its copies together. Of a copy that ptxas put under a
        predicate, any part of the block's executions counts."""
        row = []
        for (block, aside), count in copies.items():
            if aside:
                part = self._variable(0.0)
                self._limits.append(([(part, 1.0), (block, -1.0)], 0.0))
                row.append((part, float(count)))
            else:
                row.append((block, float(count)))
        row += [(self._variable(weight), -1.0), (self._variable(weight), 1.0)]
        self._equal.append((row, threads / self._scale))

    def enter(self, loop: frozenset[int], threads: int) -> None:
        """A loop was entered by so many threads."""
        row = [(edge, 1.0) for k in self._blocks if k not in loop for edge, to in self._out[k] if to in loop]
        row += [(self._variable(_ENTRY), -1.0), (self._variable(_ENTRY), 1.0)]
        self._equal.append((row, threads / self._scale))

    def doubt(self, block: int, threads: float) -> None:
        """More threads than these in a block only where lines say so."""
        self._limits.append(([(block, 1.0), (self._variable(_SIDE_EFFECT), -1.0)], threads / self._scale))

    def solved(self) -> list[float]:
        """Threads that execute each block."""
        from scipy import optimize

        while True:
            shape = len(self._costs)
            left, right = _matrix(self._equal, shape)
            upper, bound = _matrix(self._limits, shape) if self._limits else (None, None)
            found = optimize.linprog(self._costs, A_ub=upper, b_ub=bound, A_eq=left, b_eq=right, method="highs")
            if found.x is None:
                raise Unsolved(f"no frequencies obey the control flow: {found.message}")
            values = [max(float(each), 0.0) for each in found.x]
            if not self._enter_loops(values):
                return [values[k] * self._scale for k in self._blocks]

    def _enter_loops(self, values: Sequence[float]) -> bool:
        """Whether some loop went round without that anything entered it, which the conservation of flow allows, and
        that was not known before. Each is then to be entered by as many as entered the loop in PTX, of those who came
        nearest to it."""
        reached = self._downstream(0, values)
        lost, more = {k for k in self._blocks if values[k] > _NOTHING} - reached, False
        while lost:
            loop = self._downstream(lost.pop(), values)
            lost -= loop
            entries = [(edge, k) for k in self._blocks if k not in loop for edge, to in self._out[k] if to in loop]
            known = [each / self._scale for k in loop if (each := self._entered[k]) is not None]
            nearest = [values[k] for k in self._upstream([k for _, k in entries], reached, values)]
            enough = min(max(values[k] for k in loop), max(nearest, default=0.0), *known)
            edges = frozenset(edge for edge, _ in entries)
            if enough > _NOTHING and edges not in self._entries:
                self._entries.add(edges)
                row = [(edge, -1.0) for edge in sorted(edges)]
                # Not at any price: of two loops on two sides of a branch each may want all threads.
                self._limits.append(([*row, (self._variable(_ENTRY), -1.0)], -enough))
                more = True
        return more

    def _downstream(self, block: int, values: Sequence[float]) -> set[int]:
        """A block, and what threads come to from it."""
        return reachable([block], lambda at: [to for edge, to in self._out[at] if values[edge] > _NOTHING])

    def _upstream(self, blocks: list[int], reached: set[int], values: Sequence[float]) -> set[int]:
        """The nearest blocks before these that are executed."""
        into: list[list[int]] = [[] for _ in self._blocks]
        for k in self._blocks:
            for _, target in self._out[k]:
                into[target].append(k)
        executed = {at for at in reached if values[at] > _NOTHING}
        return executed & reachable(blocks, lambda at: () if at in executed else into[at])

    def _variable(self, cost: float) -> int:
        self._costs.append(cost)
        return len(self._costs) - 1


def _matrix(
    rows: Sequence[tuple[Sequence[tuple[int, float]], float]], width: int
) -> tuple[sparse.csr_array, np.ndarray]:
    from scipy import sparse

    places = [(k, at, value) for k, (row, _) in enumerate(rows) for at, value in row]
    data = np.array([value for _, _, value in places])
    at = (np.array([k for k, _, _ in places]), np.array([column for _, column, _ in places]))
    return sparse.csr_array((data, at), shape=(len(rows), width)), np.array([right for _, right in rows])
