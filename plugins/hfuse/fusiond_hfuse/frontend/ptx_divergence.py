"""Which threads may leave a PTX kernel early, from the branches that threads of a block may take differently.

A register is uniform where all threads of a block have the same in it, warp-uniform where those of a warp have. What
nobody can say is divergent, so that an answer errs on the side of a barrier that waits for those that have left.
"""

import bisect
import enum
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fusiond.model.ptx.flow import post_dominators
from fusiond.model.ptx.tree import TOKEN, Directive, Instruction, Label, PtxBlock

MEETINGS = frozenset(
    {"shfl", "vote", "match", "redux", "elect", "mma", "wmma", "wgmma", "ldmatrix", "stmatrix", "movmatrix"}
)
"""What threads of a warp do together; `bar.warp` too."""
_MARKED = MEETINGS | {"bar", "barrier", "call"}
_ENDS = ("ret", "exit", "trap")
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
    WARP = 1  #: From warp to warp
    THREAD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """How threads leave before others."""

    drains: bool = False  #: Some thread may be gone while another one waits at a barrier
    beside: str = ""  #: What threads of a warp meet in while some of them may be gone: then those cannot be waited for
    leaves: bool = False  #: Some thread of a warp may be gone while others of it go on


class BranchFlow:
    """A kernel's instructions as a graph of basic blocks; the node behind the last one is where a thread is gone.
    Where threads may meet is a block of its own."""

    def __init__(self, body: PtxBlock) -> None:
        self.instructions: list[Instruction] = []
        self._jumps: dict[int, tuple[str, Sequence[Mapping[str, int]]]] = {}
        self._tables: dict[str, tuple[str, ...]] = {}
        self._walk(body, ())
        count = len(self.instructions)
        targets = {at: self._targets(at) for at in self._jumps}
        marks = [at for at, each in enumerate(self.instructions) if each.opcode.partition(".")[0] in _MARKED]
        after = {at + 1 for at in (*marks, *targets)}
        self.starts = sorted({0, *itertools.chain(*targets.values()), *marks, *after} - {count})
        self.end = len(self.starts)
        self.successors: list[tuple[int, ...]] = []
        for end in (*self.starts[1:], count):
            falls = end - 1 not in targets or self.instructions[end - 1].guard
            following = [*targets.get(end - 1, ()), *([end] if falls else ())]
            self.successors.append(tuple(dict.fromkeys(map(self.block, following))))
        self.predecessors: list[list[int]] = [[] for _ in range(self.end + 1)]
        for block, blocks in enumerate(self.successors):
            for each in blocks:
                self.predecessors[each].append(block)
        self.postdominators = [
            self.end if each is None else each for each in post_dominators(self.successors, self.end)
        ]
        """The block where the ways behind each one meet again."""

    def _walk(self, block: PtxBlock, outer: Sequence[Mapping[str, int]]) -> None:
        """Instructions, and what each jump names with the labels that it sees: those of the scopes around it."""
        own: dict[str, int] = {}
        scopes, label = (own, *outer), ""
        for each in block.statements:
            if isinstance(each, Instruction):
                base = each.opcode.partition(".")[0]
                if base in ("bra", "brx", *_ENDS):
                    target = each.text.split(",")[-1].strip() if base[0] == "b" else ""
                    self._jumps[len(self.instructions)] = target, scopes
                self.instructions.append(each)
            elif isinstance(each, Label):
                label = each.name
                own[label] = len(self.instructions)
            elif isinstance(each, PtxBlock):
                self._walk(each, scopes)
            elif isinstance(each, Directive) and each.kind == "branchtargets":
                self._tables[label] = tuple(word for word in each.words[1:] if word != ",")

    def _targets(self, at: int) -> list[int]:
        """The instructions that a jump leads to."""
        name, scopes = self._jumps[at]
        listed = self._tables.get(name, ()) if self.instructions[at].base == "brx" else (name,)
        end = len(self.instructions)
        return [next((own[each] for own in scopes if each in own), end) for each in listed]

    def block(self, at: int) -> int:
        """The block that an instruction is in."""
        return bisect.bisect_right(self.starts, at) - 1 if at < len(self.instructions) else self.end

    def last(self, block: int) -> Instruction:
        return self.instructions[(self.starts[block + 1] if block + 1 < self.end else len(self.instructions)) - 1]

    def reached(self, starts: Iterable[int], *, without: Collection[int] = (), back: bool = False) -> set[int]:
        """What can be reached from some blocks, these included, without passing others; `back`: from what."""
        found: set[int] = set()
        waiting = list(starts)
        while waiting:
            at = waiting.pop()
            if at not in found and at not in without:
                found.add(at)
                if back:
                    waiting += self.predecessors[at]
                elif at < self.end:
                    waiting += self.successors[at]
        return found


class _Spreads:
    """How far each register may differ: a fixed point over the instructions that branches depend on, without regard to
    their order. Registers of one name in several scopes count as one."""

    def __init__(self, flow: BranchFlow, rows_are_warps: bool) -> None:
        self._flow, self._rows_are_warps = flow, rows_are_warps
        self.of: dict[str, Spread] = {}
        self._writes: dict[str, list[int]] = {}
        for at, each in enumerate(flow.instructions):
            for name in _results(each):
                self._writes.setdefault(name, []).append(at)
        self._several = [
            (name, {flow.block(at) for at in places}) for name, places in self._writes.items() if len(places) > 1
        ]
        self._branches = [block for block, after in enumerate(flow.successors) if len(after) > 1]
        self._spread_all()

    def branch(self, block: int) -> Spread:
        """How far threads may differ in what they do behind a block."""
        last = self._flow.last(block)
        found = self._name(last.guard.lstrip("!")) if last.guard else Spread.UNIFORM
        return max(found, self._name(last.words[0])) if last.base == "brx" else found

    def _spread_all(self) -> None:
        waiting = []
        for block in self._branches:
            last = self._flow.last(block)
            waiting += [last.guard.lstrip("!"), *(last.words[:1] if last.base == "brx" else ())]
        rules: dict[int, tuple[Instruction, list[str]]] = {}
        while waiting:
            for at in self._writes.get(waiting.pop(), ()):
                if at not in rules:
                    each = self._flow.instructions[at]
                    rules[at] = each, _names(_first(each.text)[1])
                    waiting += [*rules[at][1], each.guard.lstrip("!")]
        done: dict[int, Spread] = {}
        changed = True
        while changed:
            changed = False
            for each, sources in rules.values():
                spread = self._result(each, sources)
                if each.guard:
                    spread = max(spread, self._name(each.guard.lstrip("!")))
                changed |= self._raise(_results(each), spread)
            for block in self._branches:
                if (spread := self.branch(block)) > done.get(block, Spread.UNIFORM):
                    done[block] = spread
                    changed |= self._inside(block, spread)

    def _inside(self, block: int, spread: Spread) -> bool:
        """What threads set to different things because they came different ways."""
        flow = self._flow
        inside = flow.reached(flow.successors[block], without=(flow.postdominators[block],))
        return self._raise((name for name, blocks in self._several if not inside.isdisjoint(blocks)), spread)

    def _raise(self, registers: Iterable[str], spread: Spread) -> bool:
        changed = False
        for each in registers:
            if spread > self.of.get(each, Spread.UNIFORM):
                self.of[each] = spread
                changed = True
        return changed

    def _name(self, word: str) -> Spread:
        if word in self.of or word in self._writes or word[:1] != "%":
            return self.of.get(word, Spread.UNIFORM)
        if word.startswith(("%tid.y", "%tid.z")):
            return Spread.WARP if self._rows_are_warps else Spread.THREAD
        if word.startswith(("%ctaid", "%nctaid", "%ntid", "%cluster", "%ncluster", "%nwarpid", "%envreg", "%smid",
                            "%nsmid", "%dynamic", "%total", "%aggr", "%gridid", "%is_explicit")):  # fmt: skip
            return Spread.UNIFORM
        return Spread.WARP if word == "%warpid" else Spread.THREAD

    def _result(self, instruction: Instruction, sources: list[str]) -> Spread:
        base, _, rest = instruction.opcode.partition(".")
        given = max(map(self._name, sources), default=Spread.UNIFORM)
        if base in ("ld", "ldu"):
            constant = base == "ldu" or not {"param", "const", "nc"}.isdisjoint(rest.split("."))
            return given if constant else Spread.THREAD
        if base == "shfl" and rest.startswith("sync.idx"):
            lane = self._name(instruction.text.split(",")[2].strip())
            return Spread.WARP if lane is Spread.UNIFORM else Spread.THREAD
        if base in ("bar", "barrier"):
            return Spread.UNIFORM
        if base in ("vote", "redux"):
            return Spread.WARP
        if base == "shr" and self._rows_are_warps and given is Spread.THREAD:
            return self._by_warps(instruction)
        return given if base in _PURE else Spread.THREAD

    def _by_warps(self, instruction: Instruction) -> Spread:
        """`tid.x >> 5` and beyond is the same in a warp."""
        source, amount = (each.strip() for each in instruction.text.split(",")[1:])
        if not amount.isdigit() or int(amount) < 5:
            return Spread.THREAD
        writes = self._writes.get(source, [])
        moved = self._flow.instructions[writes[0]] if len(writes) == 1 else None
        plain = moved is not None and moved.base == "mov" and moved.words[2:] == ("%tid.x",)
        return Spread.WARP if plain or source == "%tid.x" else Spread.THREAD


_NO_RESULTS = frozenset(("st", "red", "bra", "ret", "exit", "trap", "cp", "membar", "fence", "prefetch", "brx"))


def _first(operands: str) -> tuple[str, str]:
    """The first operand, and what stands behind it."""
    if operands[:1] in ("{", "("):
        end = operands.find("}" if operands[0] == "{" else ")") + 1
        return operands[:end], operands[end:]
    first, _, rest = operands.partition(",")
    return first, rest


def _names(operands: str) -> list[str]:
    return [word for word in TOKEN.findall(operands) if word[0] in "%_$" or word[0].isalpha()]


def _results(instruction: Instruction) -> list[str]:
    """The registers that an instruction writes."""
    base = instruction.opcode.partition(".")[0]
    if base in _NO_RESULTS or (base in ("bar", "barrier") and ".red" not in instruction.opcode):
        return []
    first, _ = _first(instruction.text)
    return [first] if first[1:].isalnum() else _names(first)


def leaving(body: PtxBlock, *, rows_are_warps: bool, waits: Collection[str], meets: Mapping[str, str]) -> Leaving:
    """How threads of a kernel leave before others. `waits` are the functions that wait at a barrier of the block,
    `meets` those in which threads of a warp meet, with the word for it; `rows_are_warps`: no warp has threads of two
    rows of the block."""
    flow = BranchFlow(body)
    barriers, meetings = _waiting(flow, waits, meets)
    leave = flow.reached((flow.end,), without=barriers, back=True)
    ahead = flow.reached((*barriers, *meetings), back=True)
    spreads: _Spreads | None = None
    drains, beside, leaves = False, "", False
    for block, after in enumerate(flow.successors):
        meeting = flow.postdominators[block]
        if len(after) < 2 or leave.isdisjoint(after) or meeting in ahead:
            continue
        inside = flow.reached(after, without=() if meeting == flow.end else (meeting,))
        met = next((meetings[each] for each in sorted(meetings) if each in inside), "")
        if not met and inside.isdisjoint(barriers):
            continue
        spreads = spreads or _Spreads(flow, rows_are_warps)
        spread = spreads.branch(block)
        leaves |= spread is Spread.THREAD and bool(met)
        if spread is not Spread.UNIFORM and not inside.isdisjoint(barriers):
            drains = True
            if spread is Spread.THREAD and met:
                beside = met
    return Leaving(drains=drains, beside=beside, leaves=leaves)


def _waiting(flow: BranchFlow, waits: Collection[str], meets: Mapping[str, str]) -> tuple[set[int], dict[int, str]]:
    """The blocks that end at a barrier, and those in which threads of a warp meet, with the word for it."""
    barriers: set[int] = set()
    meetings: dict[int, str] = {}
    for block, last in ((block, flow.last(block)) for block in range(flow.end)):
        if last.base == "call":
            barriers |= {block for word in last.words if word in waits}
            meetings |= [(block, meets[word]) for word in last.words if word in meets]
        elif last.base in MEETINGS or last.opcode.startswith(("bar.warp", "barrier.cluster")):
            meetings[block] = last.opcode
        elif last.base in ("bar", "barrier"):
            barriers.add(block)
    return barriers, meetings
