"""Deep fusion (section 3.2): which instructions form a group, and in which order groups run.

The graph is walked layer by layer from the outputs up (`span`). An instruction joins the group of its readers when all
of them sit in one group (or in groups that may become one) and a schedule is left that suits everybody
(SchdConsistent); otherwise it is given up, and becomes the root of a group that runs earlier. That is Algorithm 1,
with two differences. The set `giveup` is a number here: every group has a place in the order of launches, counted
from the end, and an instruction may join only groups of its *last-placed* reader, so that quotient graphs without
cycles are all that can come out. And a policy may allow groups to merge where they share a producer.

A place is (level, phase), compared as pairs. Without grid barriers each step up is a level, and levels are launches.
With them a step up is a phase inside the level, and only a library call between begins a new level.

Schedules. Each group carries its surviving candidates: a schedule of the root, and by propagation
(`propagate.required`) the chunk of every member. SchdConsistent asks of each candidate, for the new member: does a
block get at most `grain` elements (or are there blocks for the whole device anyway), and is next to nothing computed
twice.

Reshape, broadcast, transpose, slice and the like are no members: wherever they are read they are inlined (section
4.3), so their readers simply ask their operands. One that is an output, or what a library call reads, is an ordinary
member.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fusiond.model import frozen
from fusiond_stitching.analysis import schedule as schedules
from fusiond_stitching.analysis import span as spans
from fusiond_stitching.analysis import traffic
from fusiond_stitching.analysis.plan import Chunk, Flat, Schedule, base_of
from fusiond_stitching.analysis.policy import Policy
from fusiond_stitching.analysis.propagate import Requirements, joined
from fusiond_stitching.frontend.graph import BYTES, EXPENSIVE, MOVEMENT, SOURCES, Instruction, Module

Place: TypeAlias = tuple[int, int]
"""(level, phase), counted from the end."""

END: Place = (-1, 0)
KEPT = 60
"""Candidates of a group."""
WASTE = 256
"""Elements that every block may compute twice without being asked."""
EVALUATIONS = 64
"""`xla`: at how many indices the code of one kernel may compute a value. XLA has such a limit too: the code of a
stencil that is applied n times grows exponentially, and no compiler would come to its end."""
COPIES = 4
"""By XLA's rules: how many kernels may compute a cheap instruction again."""
_FREE = frozenset({"reshape", "broadcast", "iota", "window"})
"""What costs no kernel even where nothing is fused."""
FAR_LESS = 64
"""What is so much smaller than a value costs nothing to be read beside it."""
CHAIN = 6
"""The longest chain of cheap instructions that is computed again."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule of the root, and what it means for every member."""

    schedule: Schedule
    blocks: int
    chunks: Mapping[str, Chunk]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Instructions that one block program computes, in topological order. `root` is the one it began with."""

    place: Place
    root: str
    members: tuple[str, ...]
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """`groups` in the order of execution: descending places. `calls`: library call or scatter in place -> the place of
    the kernel before which it must be done. `read`: call -> what it reads from buffers. `reasons`: root -> why it is
    not part of its readers' group."""

    groups: tuple[Group, ...]
    calls: Mapping[str, Place]
    read: Mapping[str, frozenset[str]] = field(default_factory=frozen)
    reasons: Mapping[str, str] = field(default_factory=frozen)


@dataclass(slots=True)
class _Candidate:
    schedule: Schedule
    blocks: int
    chunks: dict[str, Chunk]
    needs: dict[str, Chunk]
    """What members need of what is not yet placed."""
    work: int = 0
    """Elements that one block computes."""


@dataclass(slots=True)
class _Group:
    number: int
    place: Place
    root: str
    layer: int
    members: list[str]
    candidates: list[_Candidate]
    elementwise: bool = True
    asks: dict[str, None] = field(default_factory=dict)
    """What its candidates have needs for."""


def fuse(
    module: Module,
    policy: Policy,
    apart: frozenset[str] = frozenset(),
    lifted: Mapping[str, Place] | None = None,
) -> Fusion:
    """Groups for a whole module. `apart`: instructions that shall not join their readers (the feedback of shared-memory
    planning, section 5.1.2). `lifted`: outputs that shall have no place below this one."""
    return _Fusing(module, policy, apart, lifted or {}).run()


def members_of(module: Module, policy: Policy) -> Callable[[Instruction], bool]:
    """Whether an instruction is computed by a group (and not a source, a library call, or inlined everywhere)."""
    read_by_library = {
        base_of(module, operand).name
        for each in module.instructions
        if library(module, each, policy) and each.name not in module.launches
        for operand in each.operands
    }

    def is_member(instruction: Instruction) -> bool:
        if instruction.opcode in SOURCES:
            return False
        if library(module, instruction, policy):
            return False
        if instruction.opcode in MOVEMENT and (policy.rules != "none" or instruction.opcode in _FREE):
            return instruction.name in module.is_output or instruction.name in read_by_library
        return True

    return is_member


def library(module: Module, instruction: Instruction, policy: Policy) -> bool:
    """A library call under this policy: a batched dot may be stitched."""
    batched = instruction.opcode == "dot" and instruction.attributes.get("lhs_batch")
    if policy.stitch_dots and batched and instruction.name not in module.foreign:
        return False
    return module.library(instruction)


def absorbed(module: Module, policy: Policy) -> frozenset[str]:
    """What scatters in place and scans read, to be computed by their kernels, an update or a trip at a time:
    element-wise values and gathers (nothing else where every instruction has a kernel of its own). What others read,
    too, is among them where these compute it again from no more than they would read of it."""
    found: set[str] = set()
    if policy.rules == "none" or not module.launches:
        return frozenset()
    bases = set(module.in_place.values())
    for each in reversed(module.instructions):
        users = module.users[each.name]
        if not users or each.name in bases or each.name in module.is_output or library(module, each, policy):
            continue
        if each.opcode in SOURCES or each.opcode in ("reduce", "scatter", "dot"):
            continue
        if any(_before(module[user], each.name) for user in users if module[user].opcode == "scan"):
            continue
        inside = [user for user in users if user in found or user in module.launches]
        free = each.opcode in MOVEMENT and bool(inside)
        if len(inside) == len(users) or free or (inside and policy.recompute and _again(module, each, found, policy)):
            # A costly value that is spread over the windows of the updates would be computed once for each of them.
            most = max(_evaluated(module, user) for user in users)
            if each.opcode not in EXPENSIVE or 2 * each.elements > most:
                found.add(each.name)
    return frozenset(found)


def _again(module: Module, each: Instruction, found: Container[str], policy: Policy) -> bool:
    """Whether those who read a value may compute it: element by element, where that moves no more than storing it and
    reading it each time."""
    users = _users(module, each.name)
    outside = [user for user in users if user.name not in module.launches and user.name not in found]
    once = all((user.elementwise or user.opcode == "gather") and user.elements == each.elements for user in outside)
    if not each.elementwise or not once:
        return False
    read, computed = _behind(module, (each.name,), policy)
    besides, anyway = _behind(module, [name for user in outside for name in user.operands if name != each.name], policy)
    wide = [name for name in read - besides if FAR_LESS * module[name].elements > each.elements]
    steps = [name for name in computed - anyway if FAR_LESS * module[name].elements > each.elements]
    read_bytes = sum(module[name].size_bytes for name in wide)
    return len(steps) <= CHAIN and (len(users) - 1) * read_bytes <= len(users) * each.size_bytes


def _users(module: Module, name: str) -> list[Instruction]:
    """Who computes with a value, through what only moves it."""
    found: dict[str, Instruction] = {}
    stack, seen = list(module.users[name]), set(module.users[name])
    while stack:
        user = module[stack.pop()]
        if user.opcode not in MOVEMENT or user.name in module.is_output:
            found[user.name] = user
            continue
        stack += [each for each in module.users[user.name] if each not in seen]
        seen.update(module.users[user.name])
    return list(found.values())


def _behind(module: Module, names: Iterable[str], policy: Policy) -> tuple[set[str], set[str]]:
    """(what values are computed from: sources, calls, reductions; the element-wise instructions between)."""
    read: set[str] = set()
    computed: set[str] = set()
    stack = list(names)
    seen = set(stack)
    while stack and len(computed) <= FAR_LESS:
        found = module[stack.pop()]
        movement = found.opcode in MOVEMENT or found.opcode == "gather"
        if (found.elementwise or movement) and not library(module, found, policy):
            computed |= {found.name} if found.elementwise else set()
            new = [operand for operand in found.operands if operand not in seen]
            seen.update(new)
            stack += new
        elif found.opcode != "constant":
            read.add(found.name)
    return read, computed


def _before(scan: Instruction, operand: str) -> bool:
    """Whether a loop wants an operand in memory: its threads would compute it many times."""
    loop = scan.attributes["loop"]
    return any(name == operand and own in loop.before for name, own in zip(scan.operands, loop.inputs, strict=True))


def _evaluated(module: Module, launch: str) -> int:
    """How often what a scatter in place, a scan or any other reads is computed, if it is computed there."""
    if launch in module.in_place:
        return module[module[launch].operands[2]].elements
    if launch not in module.launches:
        return module[launch].elements
    loop = module[launch].attributes["loop"]
    return loop.trips * math.prod(loop.axes)  # type: ignore[no-any-return]


class _Fusing:
    def __init__(self, module: Module, policy: Policy, apart: frozenset[str], lifted: Mapping[str, Place]) -> None:
        self.module = module
        self.policy = policy
        self.apart = apart
        self.lifted = lifted
        self.required = Requirements(module)
        self.spans = spans.analyse(module)
        self.is_member = members_of(module, policy)
        self.groups: dict[int, _Group] = {}
        self.merged: dict[int, int] = {}
        self.requests: dict[str, dict[int, None]] = {each.name: {} for each in module.instructions}
        self.least: dict[str, Place] = {}
        self.calls: dict[str, Place] = {}
        self.again: dict[str, int] = {}
        self.reasons: dict[str, str] = {}
        self.indices: dict[tuple[int, str], frozenset[int]] = {}
        self.derived: dict[tuple[int, str, int], int] = {}
        """`xla`: (group, value) -> indices at which the value is computed; (index, reader, operand) -> index."""
        self.is_library = {each.name: library(module, each, policy) for each in module.instructions}
        self.absorbed = absorbed(module, policy)
        self.read: dict[str, frozenset[str]] = {}

    def run(self) -> Fusion:
        number = self.module.number
        order = sorted(self.module.instructions, key=lambda each: (self.spans.of[each.name], -number[each.name]))
        for instruction in order:
            if self.is_library[instruction.name]:
                self._call(instruction)
            elif instruction.name in self.absorbed:
                # Where it is read it is computed. Launches have asked for what it reads; groups do so now.
                if any(user not in self.module.launches for user in self.module.users[instruction.name]):
                    self._through(instruction)
            elif self.is_member(instruction):
                self._member(instruction)
            elif instruction.opcode not in SOURCES:
                self._through(instruction)
        if self.policy.rules == "xla":
            self._siblings()
        elif self.policy.rules == "stitch" and not self.policy.packing:
            self._fuse_layers()
        groups = [
            Group(
                place=each.place,
                root=each.root,
                members=tuple(sorted(each.members, key=number.__getitem__)),
                candidates=tuple(Candidate(one.schedule, one.blocks, frozen(one.chunks)) for one in each.candidates),
            )
            for each in self.groups.values()
        ]
        groups.sort(key=lambda each: ((-each.place[0], -each.place[1]), min(number[name] for name in each.members)))
        return Fusion(
            groups=tuple(groups), calls=frozen(self.calls), read=frozen(self.read), reasons=frozen(self.reasons)
        )

    # --- one instruction ---

    def _call(self, instruction: Instruction) -> None:
        place = self.least.get(instruction.name, END)
        self.calls[instruction.name] = place
        self.read[instruction.name] = self._read_by(instruction)
        for source in self.read[instruction.name]:
            above = place if self.is_library[source] else (place[0] + 1, 0)
            self._at_least(source, above)

    def _read_by(self, call: Instruction) -> frozenset[str]:
        """What a boundary reads from buffers, constants among them. A library's operands lie behind reshapes at most; a
        launch of ours computes what is no member, and what it has absorbed."""
        if call.name not in self.module.launches:
            return frozenset(base_of(self.module, operand).name for operand in call.operands)
        found: set[str] = set()
        stack = list(call.operands)
        while stack:
            each = self.module[stack.pop()]
            free = not (each.opcode in SOURCES or self.is_library[each.name] or self.is_member(each))
            if free or each.name in self.absorbed:
                stack += each.operands
            else:
                found.add(each.name)
        return frozenset(found)

    def _member(self, instruction: Instruction) -> None:
        name = instruction.name
        floor = self.lifted.get(name, (0, 0))
        place = max(self.least.get(name, floor), floor)
        readers = [each for each in self._askers(name) if each.place == place]
        if self.policy.rules != "stitch":
            self._by_rule(instruction, place, readers)
            return
        if not readers:
            self._begin(instruction, place)
            return
        if len(readers) > 1 and self._scalar(instruction):
            self._through(instruction)
            return
        problem = self._join(instruction, readers)
        if not problem:
            return
        if self._repeatable(instruction):
            self.again[name] = 1 + max((self.again.get(each, 0) for each in self.module.users[name]), default=0)
            self._through(instruction)
            return
        self.reasons[name] = problem
        above = (place[0], place[1] + 1) if self.policy.barriers else (place[0] + 1, 0)
        self._begin(instruction, above)

    def _by_rule(self, instruction: Instruction, place: Place, readers: Sequence[_Group]) -> None:
        """The baselines' rules. `xla`: a producer goes into its only consumer, or is computed again in each of
        several when it is cheap; a reduce, a scatter and a dot are always roots."""
        name = instruction.name
        users = self.module.users[name]
        if self.policy.rules == "xla" and readers and instruction.opcode not in ("reduce", "scatter", "dot"):
            inside = set(readers[0].members)
            if any(len(self._evaluations(each, instruction)) > EVALUATIONS for each in readers):
                self._begin(instruction, (place[0] + 1, 0))
                return
            alone = len(readers) == 1 and all(self._inside(each, inside) for each in users)
            if alone and name not in self.module.is_output:
                readers[0].members.append(name)
                self._evaluated(readers[0], instruction)
                for one in readers[0].candidates:
                    one.chunks[name] = one.needs[name]
                self._ask_operands(readers[0], instruction)
                return
            seen_outside = name in self.module.is_output or any(
                self.is_library[each] or self._feeds_library(self.module[each]) for each in users
            )
            if instruction.opcode not in EXPENSIVE and not seen_outside and len(self._askers(name)) <= COPIES:
                self._through(instruction)
                return
        self._begin(instruction, (place[0] + 1, 0) if readers else place)

    def _evaluations(self, group: _Group, instruction: Instruction) -> frozenset[int]:
        """`xla`: at how many different indices a kernel would compute this value, each standing in its code (known up
        to one more than is allowed). Element-wise users share their index with it; all others have one of their own."""
        found: set[int] = set()
        for user in self.module.users[instruction.name]:
            own = self.indices.get((group.number, user), frozenset())
            if self.module[user].elementwise:
                found |= own
                continue
            places = [at for at, each in enumerate(self.module[user].operands) if each == instruction.name]
            for index in sorted(own):
                for at in places:
                    found.add(self.derived.setdefault((index, user, at), len(self.derived) + 1))
            if len(found) > EVALUATIONS:
                break
        return frozenset(sorted(found)[: EVALUATIONS + 1])

    def _evaluated(self, group: _Group, instruction: Instruction) -> None:
        if self.policy.rules == "xla":
            self.indices[group.number, instruction.name] = self._evaluations(group, instruction)

    def _inside(self, name: str, members: Container[str]) -> bool:
        """A user, or everybody behind a user that is inlined, is a member of one group."""
        if name in members:
            return True
        instruction = self.module[name]
        if self.is_library[name] or self.is_member(instruction) or not self.module.users[name]:
            return False
        return all(self._inside(each, members) for each in self.module.users[name])

    def _siblings(self) -> None:
        """`xla`: multi-output fusion. Groups of one place that read a common buffer share a kernel: reduces over equal
        dims, and loops over equal dims."""
        owner = {name for group in self.groups.values() for name in group.members} | set(self.calls)
        open_: dict[tuple[object, ...], list[tuple[_Group, set[str]]]] = {}
        for group in list(self.groups.values()):
            root = self.module[group.root]
            if root.opcode in ("scatter", "dot"):
                continue
            key: tuple[object, ...] = (group.place, root.dims)
            if root.opcode == "reduce":
                key = (group.place, self.module[root.operands[0]].dims, root.attributes["dimensions"])
            read = traffic.inputs(self.module, group.members, owner)
            for into, theirs in open_.setdefault(key, []):
                if read & theirs and self._room_beside(into, group) and self._put_beside(into, group):
                    theirs |= read
                    break
            else:
                open_[key].append((group, read))

    def _room_beside(self, into: _Group, group: _Group) -> bool:
        """Not set apart by shared-memory planning, nor bound to be: reduces exchange an accumulator of every thread."""
        if group.root in self.apart:
            return False
        reduces = [self.module[each] for one in (into, group) for each in one.members]
        each = [BYTES[one.dtype] * self.policy.threads for one in reduces if one.opcode == "reduce"]
        return len(each) <= 1 or sum(each) <= self.policy.shared_limit

    def _put_beside(self, into: _Group, group: _Group) -> bool:
        """Two groups that do not depend on each other as one, block counts being equal. False when none are."""
        kept = []
        for mine in into.candidates:
            yours = next((each for each in group.candidates if each.blocks == mine.blocks), None)
            if yours is not None:
                mine.chunks.update(yours.chunks)
                mine.work += yours.work
                kept.append(mine)
        if not kept:
            return False
        into.candidates = kept
        into.members += group.members
        del self.groups[group.number]
        return True

    def _through(self, instruction: Instruction) -> None:
        """Inlined wherever it is read: who asks for it asks its operands."""
        for group in self._askers(instruction.name):
            self._evaluated(group, instruction)
            self._ask(group, instruction, lambda one: one.needs.get(instruction.name))

    def _scalar(self, instruction: Instruction) -> bool:
        """A number that every thread may compute for itself, rather than that it ties groups together which share
        nothing else (a step's bias correction, and all leaves of a tree of parameters)."""
        if not self.policy.recompute or instruction.elements != 1 or not instruction.elementwise:
            return False
        if instruction.name in self.apart or instruction.name in self.module.is_output:
            return False
        users = [self.module[each] for each in self.module.users[instruction.name]]
        return not any(self.is_library[each.name] or self._feeds_library(each) for each in users)

    def _repeatable(self, instruction: Instruction) -> bool:
        """Cheap, and short enough a chain, to be computed again by every reader."""
        if not self.policy.recompute or instruction.name in self.apart:
            return False
        if not instruction.elementwise or instruction.opcode in EXPENSIVE or instruction.name in self.module.is_output:
            return False
        users = [self.module[each] for each in self.module.users[instruction.name]]
        if any(self.is_library[each.name] or self._feeds_library(each) for each in users):
            return False
        return 1 + max((self.again.get(each.name, 0) for each in users), default=0) <= CHAIN

    def _feeds_library(self, instruction: Instruction) -> bool:
        if instruction.opcode != "reshape":
            return False
        return any(
            self.is_library[each] or self._feeds_library(self.module[each])
            for each in self.module.users[instruction.name]
        )

    # --- groups ---

    def _begin(self, instruction: Instruction, place: Place) -> None:
        """A new group with this root and all its schedules."""
        policy = self.policy
        work = instruction.elements * self._inputs(instruction)
        wanted = max(1, min(work // (4 * policy.threads), 8 * policy.multiprocessors))
        found = []
        for each, chunk, blocks in schedules.candidates(instruction.dims, wanted, policy.middle):
            found.append(_Candidate(each, blocks, {instruction.name: chunk}, {}, self._local(instruction, chunk)))
        if instruction.elements > policy.threads and instruction.opcode != "reduce":
            flat = schedules.flat(instruction.elements, 4 * policy.threads)
            chunk = flat.chunk(instruction.dims)
            found.append(_Candidate(flat, flat.blocks(instruction.dims), {instruction.name: chunk}, {}, flat.sword))
        fits = [each for each in found if self._suits(instruction, each.chunks[instruction.name], each.blocks)]
        number = len(self.groups) + len(self.merged)
        group = _Group(
            number=number,
            place=place,
            root=instruction.name,
            layer=self.spans.between(instruction.name),
            members=[instruction.name],
            candidates=(fits or found)[:KEPT],
            elementwise=instruction.elementwise or instruction.opcode in MOVEMENT,
        )
        self.indices[number, instruction.name] = frozenset({0})
        self.groups[number] = group
        self._ask_operands(group, instruction)

    def _join(self, instruction: Instruction, readers: Sequence[_Group]) -> str:
        """Put an instruction into the group (or groups) that read it. Returns why not; empty when it is done."""
        policy = self.policy
        name = instruction.name
        if name in self.apart:
            return "shared memory did not suffice for it and its readers"
        if len(readers) > 1 and not policy.merge:
            return "its readers are in several groups"
        if policy.layers and any(each.layer != self.spans.between(name) for each in readers):
            return "a library-call layer lies between"
        base, *others = sorted(readers, key=lambda each: -len(each.members))
        fits: list[tuple[_Candidate, list[_Candidate], Chunk, int]] = []
        for one in base.candidates:
            partners: list[_Candidate] = []
            chunk, blocks, work = one.needs[name], one.blocks, one.work
            for other in others:
                partner = self._partner(instruction, chunk, blocks, work, other)
                if partner is None:
                    break
                partners.append(partner)
                chunk = joined(chunk, partner.needs[name], instruction.dims)
                blocks = max(blocks, partner.blocks)
                work += partner.work
            if len(partners) == len(others) and self._suits(instruction, chunk, blocks):
                fits.append((one, partners, chunk, blocks))
        if not fits:
            return self._why_not(base, others)
        used: set[int] = set()
        candidates = []
        for one, partners, chunk, blocks in fits:
            if id(one) in used:
                continue
            used.add(id(one))
            for partner in partners:
                one.chunks.update(partner.chunks)
                for asked, need in partner.needs.items():
                    mine = one.needs.get(asked)
                    one.needs[asked] = need if mine is None else joined(mine, need, self.module[asked].dims)
                one.work += partner.work
            one.blocks = blocks
            one.chunks[name] = chunk
            one.work += self._local(instruction, chunk)
            candidates.append(one)
        base.candidates = candidates
        for other in others:
            base.members += other.members
            base.asks.update(other.asks)
            base.elementwise = base.elementwise and other.elementwise
            self.merged[other.number] = base.number
            del self.groups[other.number]
        base.members.append(name)
        base.elementwise = base.elementwise and (instruction.elementwise or instruction.opcode in MOVEMENT)
        self._ask_operands(base, instruction)
        return ""

    def _partner(
        self, instruction: Instruction, chunk: Chunk, blocks: int, work: int, other: _Group
    ) -> _Candidate | None:
        """The other group's first candidate that goes with this one: equal block counts (section 4.3), or one of the
        two runs whole in every block because it is tiny."""
        name = instruction.name
        for exact in (True, False):
            for each in other.candidates:
                if exact != (each.blocks == blocks):
                    continue
                if not exact:
                    tiny = (each.blocks == 1 and each.work <= WASTE) or (blocks == 1 and work <= WASTE)
                    if not tiny:
                        continue
                both = joined(chunk, each.needs[name], instruction.dims)
                if self._suits(instruction, both, max(blocks, each.blocks)):
                    return each
        return None

    def _why_not(self, base: _Group, others: Sequence[_Group]) -> str:
        if others:
            return f"no schedule suits {base.root} and {', '.join(each.root for each in others)}"
        return f"no schedule suits it and {base.root}: blocks would need each other's results"

    def _suits(self, instruction: Instruction, chunk: Chunk, blocks: int) -> bool:
        """SchdConsistent for one member and one candidate: enough blocks, and next to nothing computed twice."""
        inputs = self._inputs(instruction)
        total = instruction.elements * inputs
        local = chunk.size * inputs
        enough = local <= max(self.policy.grain, total / (3 * self.policy.multiprocessors))
        enough = enough or instruction.elements <= 1  # nothing is there to be cut
        return enough and blocks * local <= 1.5 * total + blocks * WASTE

    def _inputs(self, instruction: Instruction) -> int:
        """Elements that are read for one of the result: more than 1 for a reduce and a dot."""
        if instruction.elementwise:
            return 1
        if instruction.opcode == "reduce":
            source = self.module[instruction.operands[0]]
            return max(1, source.elements // max(1, instruction.elements))
        if instruction.opcode == "dot":
            lhs = self.module[instruction.operands[0]]
            return math.prod(lhs.dims[at] for at in instruction.attributes["lhs_contracting"])
        return 1

    def _local(self, instruction: Instruction, chunk: Chunk) -> int:
        return chunk.size * self._inputs(instruction)

    # --- who asks whom ---

    def _ask_operands(self, group: _Group, instruction: Instruction) -> None:
        self._ask(group, instruction, lambda one: one.chunks[instruction.name])

    def _ask(self, group: _Group, instruction: Instruction, chunk_of: Callable[[_Candidate], Chunk | None]) -> None:
        for place, operand in enumerate(instruction.operands):
            source = self.module[operand]
            self._at_least(operand, group.place)
            if source.opcode in SOURCES or self.is_library[operand]:
                continue
            self.requests[operand][group.number] = None
            group.asks[operand] = None
            # The common case of `required`, without a look at its attributes.
            same_index = instruction.elementwise and source.dims == instruction.dims and source.elements > 1
            for one in group.candidates:
                chunk = chunk_of(one)
                if chunk is None:
                    continue
                need = chunk if same_index else self.required(instruction, place, chunk)
                mine = one.needs.get(operand)
                if mine is None:
                    one.needs[operand] = need
                elif mine is not need:
                    one.needs[operand] = joined(mine, need, source.dims)

    def _at_least(self, name: str, place: Place) -> None:
        if place > self.least.get(name, END):
            self.least[name] = place

    def _askers(self, name: str) -> list[_Group]:
        """The groups that read an instruction, each once, in the order of their numbers."""
        found: dict[int, None] = {}
        for number in self.requests[name]:
            while number in self.merged:
                number = self.merged[number]
            found[number] = None
        return [self.groups[number] for number in sorted(found)]

    # --- ElementwiseFusion ---

    def _fuse_layers(self) -> None:
        """ElementwiseFusion (section 3.2): element-wise groups of one layer with equal output shapes become one,
        while what they read and write stays below the footprint."""
        open_: dict[tuple[object, ...], tuple[_Group, int]] = {}
        for group in list(self.groups.values()):
            if not group.elementwise:
                continue
            root = self.module[group.root]
            key = (group.place, group.layer if self.policy.layers else 0, root.dims)
            size = self._footprint(group.members)
            held = open_.get(key)
            if held is None or held[1] + size > self.policy.footprint_bytes:
                open_[key] = (group, size)
                continue
            into = held[0]
            if self._put_beside(into, group):
                open_[key] = (into, held[1] + size)

    def _footprint(self, members: Iterable[str]) -> int:
        own = set(members)
        names = {each for member in members for each in self.module[member].operands} | own
        return sum(self.module[each].size_bytes for each in names)


__all__ = ["Candidate", "Flat", "Fusion", "Group", "fuse", "library", "members_of"]
