"""Who may leave a kernel of PTX while others go on: by the branches that threads of a block may take differently.

A register is uniform where all threads of a block have the same in it, warp-uniform where those of a warp have. What
nobody can say is divergent, so that an answer errs on the side of a barrier that waits for those that have left.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from fusiond.ptx.flat import PtxInstruction, PtxKernel, names
from fusiond.ptx.operands import Negated, PtxAddress, PtxName, PtxNumber

MEETINGS = frozenset(
    {"shfl", "vote", "match", "redux", "elect", "mma", "wmma", "wgmma", "ldmatrix", "stmatrix", "movmatrix"}
)
"""What threads of a warp do together; `bar.warp` too."""
_ENDS = ("ret", "exit")
_PURE = frozenset(
    {
        "abs", "add", "addc", "and", "bfe", "bfi", "bfind", "bmsk", "brev", "clz", "cnot", "copysign", "cos", "cvt",
        "cvta", "div", "dp2a", "dp4a", "ex2", "fma", "fns", "isspacep", "lg2", "lop3", "mad", "mad24", "madc", "mapa",
        "max", "min", "mov", "mul", "mul24", "neg", "not", "or", "popc", "prmt", "rcp", "rem", "rsqrt", "sad", "selp",
        "set", "setp", "shf", "shl", "shr", "sin", "slct", "sqrt", "sub", "subc", "szext", "tanh", "testp", "xor",
    }
)  # fmt: skip
"""What gives the same for the same operands."""


class Spread(enum.IntEnum):
    """How far a value may differ."""

    UNIFORM = 0
    WARP = 1
    """From warp to warp."""
    THREAD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """How threads leave before others."""

    drains: bool = False
    """Some thread may be gone while another one waits at a barrier."""
    beside: str = ""
    """What threads of a warp meet in while some of them may be gone: then those cannot be waited for."""
    leaves: bool = False
    """Some thread of a warp may be gone while others of it go on."""


class BranchFlow:
    """A kernel's instructions as a graph; the node behind the last one is where a thread is gone."""

    def __init__(self, kernel: PtxKernel) -> None:
        self.kernel = kernel
        self.end = len(kernel.instructions)
        self.successors = [tuple(self._after(at, each)) for at, each in enumerate(kernel.instructions)]
        self.postdominators = self._postdominators()

    def _after(self, at: int, instruction: PtxInstruction) -> Iterator[int]:
        base = instruction.opcode.partition(".")[0]
        labels = self.kernel.labels
        jumps = True
        if base in _ENDS or base == "trap":
            yield self.end
        elif base == "bra":
            target = instruction.operands[0]
            yield labels[target.name] if isinstance(target, PtxName) and target.name in labels else self.end
        elif base == "brx":
            table = instruction.operands[1]
            assert isinstance(table, PtxName)
            yield from (labels[each] for each in self.kernel.branch_targets.get(table.name, ()) if each in labels)
        else:
            jumps = False
        if not jumps or instruction.guard is not None:
            yield at + 1

    def reached(self, starts: Iterable[int], *, without: Collection[int] = ()) -> set[int]:
        """What can be reached from some nodes, these included, without passing others."""
        stop = set(without)
        found: set[int] = set()
        waiting = [each for each in starts if each not in stop]
        while waiting:
            at = waiting.pop()
            if at in found:
                continue
            found.add(at)
            if at < self.end:
                waiting += [each for each in self.successors[at] if each not in stop]
        return found

    def _postdominators(self) -> list[int]:
        """The node where the ways behind each one meet again (Cooper, Harvey and Kennedy, "A Simple, Fast Dominance
        Algorithm", on the reversed graph)."""
        before: list[list[int]] = [[] for _ in range(self.end + 1)]
        for at, after in enumerate(self.successors):
            for each in after:
                before[each].append(at)
        order: list[int] = []
        seen = {self.end}
        stack = [(self.end, iter(before[self.end]))]
        while stack:
            at, rest = stack[-1]
            following = next((each for each in rest if each not in seen), None)
            if following is None:
                order.append(at)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(before[following])))
        rank = {at: k for k, at in enumerate(order)}
        found = dict.fromkeys(range(self.end + 1), -1)
        found[self.end] = self.end
        changed = True
        while changed:
            changed = False
            for at in reversed(order[:-1]):
                new = -1
                for each in self.successors[at]:
                    if found[each] < 0:
                        continue
                    new = each if new < 0 else _common(new, each, found, rank)
                if new != found[at]:
                    found[at] = new
                    changed = True
        return [self.end if found[at] < 0 else found[at] for at in range(self.end)]


def _common(a: int, b: int, found: Mapping[int, int], rank: Mapping[int, int]) -> int:
    while a != b:
        while rank[a] < rank[b]:
            a = found[a]
        while rank[b] < rank[a]:
            b = found[b]
    return a


class _Spreads:
    """How far each register may differ: a fixed point over all instructions, without regard to their order."""

    def __init__(self, flow: BranchFlow, rows_are_warps: bool) -> None:
        self._flow, self._rows_are_warps = flow, rows_are_warps
        self.of: dict[str, Spread] = {}
        self._writes: dict[str, list[int]] = {}
        for at, each in enumerate(flow.kernel.instructions):
            for name in _results(each):
                self._writes.setdefault(name, []).append(at)
        self._spread_all()

    def branch(self, at: int) -> Spread:
        """How far threads may differ in what they do behind an instruction."""
        instruction = self._flow.kernel.instructions[at]
        guard = instruction.guard
        found = Spread.UNIFORM if guard is None else self._name(guard.name if isinstance(guard, Negated) else guard)
        if instruction.opcode.startswith("brx"):
            found = max(found, self._operands(instruction, 0))
        return found

    def _spread_all(self) -> None:
        instructions = self._flow.kernel.instructions
        done: set[int] = set()
        changed = True
        while changed:
            changed = False
            for each in instructions:
                spread = self._result(each)
                if each.guard is not None:
                    guard = each.guard.name if isinstance(each.guard, Negated) else each.guard
                    spread = max(spread, self._name(guard))
                changed |= self._raise(_results(each), spread)
            for at in range(len(instructions)):
                if len(self._flow.successors[at]) > 1 and at not in done and self.branch(at) > Spread.UNIFORM:
                    done.add(at)
                    changed |= self._inside(at)

    def _inside(self, at: int) -> bool:
        """What threads set to different things because they came different ways."""
        inside = self._flow.reached(self._flow.successors[at], without=(self._flow.postdominators[at],))
        changed = False
        for name, places in self._writes.items():
            if len(places) > 1 and not inside.isdisjoint(places):
                changed |= self._raise((name,), self.branch(at))
        return changed

    def _raise(self, registers: Iterable[str], spread: Spread) -> bool:
        changed = False
        for each in registers:
            if spread > self.of.get(each, Spread.UNIFORM):
                self.of[each] = spread
                changed = True
        return changed

    def _name(self, name: PtxName) -> Spread:
        word = name.name
        if word in self.of:
            return self.of[word]
        if not word.startswith("%") or word in self._writes or word in self._flow.kernel.registers:
            return Spread.UNIFORM
        if word.startswith(("%tid.y", "%tid.z")):
            return Spread.WARP if self._rows_are_warps else Spread.THREAD
        if word.startswith(("%ctaid", "%nctaid", "%ntid", "%cluster", "%ncluster", "%nwarpid", "%envreg", "%smid",
                            "%nsmid", "%dynamic", "%total", "%aggr", "%gridid", "%is_explicit")):  # fmt: skip
            return Spread.UNIFORM
        return Spread.WARP if word == "%warpid" else Spread.THREAD

    def _operands(self, instruction: PtxInstruction, first: int = 1) -> Spread:
        found = Spread.UNIFORM
        for operand in instruction.operands[first:]:
            for name in names(operand):
                found = max(found, self._name(PtxName(name)))
        return found

    def _result(self, instruction: PtxInstruction) -> Spread:
        base, _, rest = instruction.opcode.partition(".")
        given = self._operands(instruction)
        if base in ("ld", "ldu"):
            space = rest.split(".")
            constant = "param" in space or "const" in space or "nc" in space or base == "ldu"
            where = instruction.operands[1]
            spread = max((self._name(PtxName(each)) for each in names(where)), default=Spread.UNIFORM)
            return spread if constant and isinstance(where, PtxAddress) else Spread.THREAD
        if base in ("shfl",) and rest.startswith("sync.idx"):
            lane = instruction.operands[2]
            source = self._operands(PtxInstruction("", (lane,), None, 0, 0, 0), 0)
            return Spread.WARP if source is Spread.UNIFORM else Spread.THREAD
        if base in ("bar", "barrier"):
            return Spread.UNIFORM
        if base in ("vote", "redux", "match"):
            return Spread.WARP if base != "match" else Spread.THREAD
        if base == "shr" and self._rows_are_warps and given is Spread.THREAD:
            return self._by_warps(instruction)
        return given if base in _PURE else Spread.THREAD

    def _by_warps(self, instruction: PtxInstruction) -> Spread:
        """`tid.x >> 5` and beyond is the same in a warp."""
        source, amount = instruction.operands[1], instruction.operands[2]
        if not isinstance(amount, PtxNumber) or amount.bits < 5 or not isinstance(source, PtxName):
            return Spread.THREAD
        writes = self._writes.get(source.name, [])
        moved = self._flow.kernel.instructions[writes[0]] if len(writes) == 1 else None
        plain = moved is not None and moved.opcode.startswith("mov") and moved.operands[1] == PtxName("%tid.x")
        return Spread.WARP if plain or source == PtxName("%tid.x") else Spread.THREAD


def _results(instruction: PtxInstruction) -> tuple[str, ...]:
    """The registers that an instruction writes."""
    base = instruction.opcode.partition(".")[0]
    if base in ("st", "red", "bra", "ret", "exit", "trap", "cp", "membar", "fence", "prefetch", "brx") or (
        base in ("bar", "barrier") and ".red" not in instruction.opcode
    ):
        return ()
    return tuple(names(instruction.operands[0])) if instruction.operands else ()


def leaving(
    kernel: PtxKernel, *, rows_are_warps: bool, waits: Collection[str] = (), meets: Mapping[str, str] | None = None
) -> Leaving:
    """How threads of a kernel leave before others. `waits` are the functions that wait at a barrier of the block,
    `meets` those in which threads of a warp meet, with the word for it; `rows_are_warps`: no warp has threads of two
    rows of the block."""
    flow = BranchFlow(kernel)
    barriers: set[int] = set()
    meetings: dict[int, str] = {}
    for at, each in enumerate(kernel.instructions):
        base = each.opcode.partition(".")[0]
        if each.opcode.startswith(("bar.warp", "barrier.cluster")):
            meetings[at] = each.opcode
        elif base in ("bar", "barrier"):
            barriers.add(at)
        elif base in MEETINGS:
            meetings[at] = each.opcode
        elif base == "call":
            callees = {name for operand in each.operands for name in names(operand)}
            if callees & set(waits):
                barriers.add(at)
            for name in callees & set(meets or {}):
                meetings[at] = (meets or {})[name]
    if not barriers and not meetings:
        return Leaving()
    spreads = _Spreads(flow, rows_are_warps)
    drains, beside, leaves = False, "", False
    for at in range(flow.end):
        after = flow.successors[at]
        if len(after) < 2 or spreads.branch(at) is Spread.UNIFORM:
            continue
        meeting = flow.postdominators[at]
        behind = [flow.reached((each,), without=barriers) for each in after]
        inside = flow.reached(after, without=() if meeting == flow.end else (meeting,))
        if not any(flow.end in each for each in behind):
            continue
        divergent = spreads.branch(at) is Spread.THREAD
        gone_early = meeting == flow.end or not flow.reached((meeting,)) & (barriers | set(meetings))
        met = next((meetings[each] for each in sorted(meetings) if each in inside), "")
        leaves |= divergent and bool(met) and gone_early
        if barriers & inside and gone_early:
            drains = True
            if divergent and met:
                beside = met
    return Leaving(drains=drains, beside=beside, leaves=leaves)
