"""Deep fusion (section 3.2): which instructions form a group, and in which order groups run.

The graph is walked layer by layer from the outputs up (`span`). An instruction joins the group of its readers when all
of them sit in one group (or in groups that may become one) and a schedule is left that suits everybody
(SchdConsistent); otherwise it is given up, and becomes the root of a group that runs earlier. That is Algorithm 1,
with two differences. The set `giveup` is a number here: every group has a place in the order of launches, counted
from the end, and an instruction may join only groups of its *last-placed* reader, so that quotient graphs without
cycles are all that can come out. And a policy may allow groups to merge where they share a producer.

Each group carries its surviving candidates, which say for each new member whether a schedule is left (`open_groups`).

Reshape, broadcast, transpose, slice and the like are not members: they are inlined wherever they are read (section
4.3), so their readers simply ask their operands. One that is an output, or what a library call reads, is an ordinary
member.
"""

from collections.abc import Container, Iterable, Mapping, Sequence

from fusiond.model.nouns import frozen
from fusiond_stitching.analysis import fusion
from fusiond_stitching.analysis import span as spans
from fusiond_stitching.analysis.absorption import absorbed
from fusiond_stitching.analysis.fusion import END, Fusion, FusionGroup, LaunchPlace
from fusiond_stitching.analysis.open_groups import OpenGroup, OpenGroups
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.frontend.graph import BYTES, EXPENSIVE, SOURCES, HloInstruction, HloModule, reached

EVALUATIONS = 64
"""At how many indices the code of one kernel may compute a value. XLA has such a limit too: the code of a stencil that
is applied n times grows exponentially, and no compiler would come to its end."""
COPIES = 4  #: By XLA's rules: how many kernels may compute a cheap instruction again


def fuse(
    module: HloModule,
    policy: FusionPolicy,
    apart: frozenset[str] = frozenset(),
    lifted: Mapping[str, LaunchPlace] | None = None,
) -> Fusion:
    """Groups for a whole module. `apart`: instructions that shall not join their readers (the feedback of shared-memory
    planning, section 5.1.2). `lifted`: outputs that shall have no place below this one."""
    return _Fusing(module, policy, apart, lifted or {}).run()


class _Fusing:
    def __init__(
        self, module: HloModule, policy: FusionPolicy, apart: frozenset[str], lifted: Mapping[str, LaunchPlace]
    ) -> None:
        self.module = module
        self.policy = policy
        self.apart = apart
        self.lifted = lifted
        self.spans = spans.analyse(module)
        self.is_member = fusion.members_of(module, policy)
        self.is_library = {each.name: fusion.library(module, each, policy) for each in module.instructions}
        self.groups = OpenGroups(module, policy, self.spans.between, self.is_library)
        self.evaluations = Evaluations(module) if policy.rules == "xla" else None
        self.calls: dict[str, LaunchPlace] = {}
        self.again: dict[str, int] = {}
        """How long the chain is, of cheap instructions that are computed again, down to this one."""
        self.reasons: dict[str, str] = {}
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
            _siblings(self.module, self.policy, self.groups, self.apart, self.calls)
        elif self.policy.rules == "stitch" and not self.policy.packing:
            _layers(self.module, self.policy, self.groups)
        groups = (
            FusionGroup(
                place=each.place,
                root=each.root,
                members=tuple(sorted(each.members, key=number.__getitem__)),
                candidates=tuple(
                    fusion.FusionCandidate(one.schedule, one.blocks, frozen(one.chunks)) for one in each.candidates
                ),
            )
            for each in self.groups
        )
        return Fusion(
            groups=fusion.in_order(self.module, groups),
            calls=frozen(self.calls),
            read=frozen(self.read),
            reasons=frozen(self.reasons),
        )

    # --- one instruction ---

    def _call(self, instruction: HloInstruction) -> None:
        place = self.groups.least.get(instruction.name, END)
        self.calls[instruction.name] = place
        self.read[instruction.name] = self._read_by(instruction)
        for source in self.read[instruction.name]:
            above = place if self.is_library[source] else (place[0] + 1, 0)
            self.groups.at_least(source, above)

    def _read_by(self, call: HloInstruction) -> frozenset[str]:
        """What a boundary reads from buffers, constants among them. A library's operands lie behind reshapes at most; a
        launch of ours computes what is in no group, and what it has absorbed."""
        if call.name not in self.module.launches:
            return frozenset(self.module.base(operand).name for operand in call.operands)

        def computed(name: str) -> bool:
            each = self.module[name]
            free = not (each.opcode in SOURCES or self.is_library[name] or self.is_member(each))
            return free or name in self.absorbed

        found = reached(call.operands, lambda name: self.module[name].operands if computed(name) else ())
        return frozenset(name for name in found if not computed(name))

    def _member(self, instruction: HloInstruction) -> None:
        name = instruction.name
        floor = self.lifted.get(name, (0, 0))
        place = max(self.groups.least.get(name, floor), floor)
        readers = [each for each in self.groups.askers(name) if each.place == place]
        if self.policy.rules != "stitch":
            self._by_rule(instruction, place, readers)
            return
        if not readers:
            self._begin(instruction, place)
            return
        if len(readers) > 1 and instruction.elements == 1 and self._may_repeat(instruction):
            # A number that every thread may compute for itself, rather than that it ties groups together which share
            # nothing else (a step's bias correction, and all leaves of a tree of parameters).
            self._through(instruction)
            return
        problem = self._kept_apart(instruction, readers) or self.groups.join(instruction, readers)
        if not problem:
            return
        chain = 1 + max((self.again.get(each, 0) for each in self.module.users[name]), default=0)
        if chain <= fusion.CHAIN and instruction.opcode not in EXPENSIVE and self._may_repeat(instruction):
            self.again[name] = chain
            self._through(instruction)
            return
        self.reasons[name] = problem
        above = (place[0], place[1] + 1) if self.policy.barriers else (place[0] + 1, 0)
        self._begin(instruction, above)

    def _kept_apart(self, instruction: HloInstruction, readers: Sequence[OpenGroup]) -> str:
        """Why it may not join its readers, whatever schedules there are; empty when it may."""
        if instruction.name in self.apart:
            return "shared memory did not suffice for it and its readers"
        if len(readers) > 1 and not self.policy.merge:
            return "its readers are in several groups"
        layer = self.spans.between(instruction.name)
        if self.policy.layers and any(each.layer != layer for each in readers):
            return "a library-call layer lies between"
        return ""

    def _begin(self, instruction: HloInstruction, place: LaunchPlace) -> None:
        group = self.groups.begin(instruction, place)
        if self.evaluations is not None:
            self.evaluations.begin(group)

    def _by_rule(self, instruction: HloInstruction, place: LaunchPlace, readers: Sequence[OpenGroup]) -> None:
        """The baselines' rules. `xla`: a producer goes into its only consumer, or is computed again in each of
        several when it is cheap; a reduce, a scatter and a dot are always roots."""
        root = instruction.opcode in ("reduce", "scatter", "dot")
        if self.evaluations is not None and readers and not root and self._joins_by_rule(instruction, readers):
            return
        self._begin(instruction, (place[0] + 1, 0) if readers else place)

    def _joins_by_rule(self, instruction: HloInstruction, readers: Sequence[OpenGroup]) -> bool:
        """`xla`: whether an instruction goes into the kernels of its readers, where it is put then."""
        assert self.evaluations is not None
        name = instruction.name
        users = self.module.users[name]
        if any(len(self.evaluations.of(each, instruction)) > EVALUATIONS for each in readers):
            return False
        inside = set(readers[0].members)
        alone = len(readers) == 1 and all(self._inside(each, inside) for each in users)
        if alone and name not in self.module.is_output:
            self.evaluations.add(readers[0], instruction)
            self.groups.inline(instruction, readers[0])
            return True
        seen_outside = name in self.module.is_output or self._read_by_library(instruction)
        if instruction.opcode in EXPENSIVE or seen_outside or len(self.groups.askers(name)) > COPIES:
            return False
        self._through(instruction)
        return True

    def _inside(self, name: str, members: Container[str]) -> bool:
        """A user, or everybody behind a user that is inlined, is a member of one group."""
        if name in members:
            return True
        instruction = self.module[name]
        if self.is_library[name] or self.is_member(instruction) or not self.module.users[name]:
            return False
        return all(self._inside(each, members) for each in self.module.users[name])

    def _through(self, instruction: HloInstruction) -> None:
        """Inlined wherever it is read: who asks for it asks its operands."""
        for group in self.groups.askers(instruction.name):
            if self.evaluations is not None:
                self.evaluations.add(group, instruction)
            self.groups.pass_on(instruction, group)

    def _may_repeat(self, instruction: HloInstruction) -> bool:
        """Whether nobody needs it in memory, and readers may compute it for themselves."""
        if not self.policy.recompute or not instruction.elementwise:
            return False
        if instruction.name in self.apart or instruction.name in self.module.is_output:
            return False
        return not self._read_by_library(instruction)

    def _read_by_library(self, instruction: HloInstruction) -> bool:
        """Whether a library call reads it, as it is or behind reshapes."""
        users = [self.module[each] for each in self.module.users[instruction.name]]
        return any(
            self.is_library[each.name] or (each.opcode == "reshape" and self._read_by_library(each)) for each in users
        )


class Evaluations:
    def __init__(self, module: HloModule) -> None:
        self.module = module
        self.indices: dict[tuple[int, str], frozenset[int]] = {}
        """(group, value) -> indices at which the value is computed."""
        self.derived: dict[tuple[int, str, int], int] = {}  #: (index, reader, operand) -> index

    def begin(self, group: OpenGroup) -> None:
        """The root of a group is computed at one index."""
        self.indices[group.number, group.root] = frozenset({0})

    def add(self, group: OpenGroup, instruction: HloInstruction) -> None:
        """An instruction stands in the code of a group's kernel from now on."""
        self.indices[group.number, instruction.name] = self.of(group, instruction)

    def of(self, group: OpenGroup, instruction: HloInstruction) -> frozenset[int]:
        """At how many different indices a kernel would compute this value, each standing in its code (known up
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


# --- groups that do not depend on each other, as one ---------------------------------------------------


def _siblings(
    module: HloModule, policy: FusionPolicy, groups: OpenGroups, apart: Container[str], calls: Iterable[str]
) -> None:
    """`xla`: multi-output fusion. Groups of one place that read a common buffer share a kernel: reduces over equal
    dims, and loops over equal dims."""
    owner = {name for group in groups for name in group.members} | set(calls)
    open_: dict[tuple[object, ...], list[tuple[OpenGroup, set[str]]]] = {}
    for group in groups:
        root = module[group.root]
        if root.opcode in ("scatter", "dot"):
            continue
        key: tuple[object, ...] = (group.place, root.dims)
        if root.opcode == "reduce":
            key = (group.place, module[root.operands[0]].dims, root.attributes["dimensions"])
        read = fusion.read(module, group.members, owner)
        for into, theirs in open_.setdefault(key, []):
            room = group.root not in apart and _room_beside(module, policy, into, group)
            if read & theirs and room and groups.put_beside(into, group):
                theirs |= read
                break
        else:
            open_[key].append((group, read))


def _room_beside(module: HloModule, policy: FusionPolicy, into: OpenGroup, group: OpenGroup) -> bool:
    """Whether shared memory is not bound to set them apart: reduces exchange an accumulator of every thread."""
    reduces = [module[each] for one in (into, group) for each in one.members]
    each = [BYTES[one.dtype] * policy.threads for one in reduces if one.opcode == "reduce"]
    return len(each) <= 1 or sum(each) <= policy.shared_limit


def _layers(module: HloModule, policy: FusionPolicy, groups: OpenGroups) -> None:
    """ElementwiseFusion (section 3.2): element-wise groups of one layer with equal output shapes become one, while what
    they read and write stays below the footprint."""
    open_: dict[tuple[object, ...], tuple[OpenGroup, int]] = {}
    for group in groups:
        if not group.elementwise:
            continue
        key = (group.place, group.layer if policy.layers else 0, module[group.root].dims)
        read = {each for member in group.members for each in module[member].operands}
        size = sum(module[each].size_bytes for each in read.union(group.members))
        held = open_.get(key)
        if held is None or held[1] + size > policy.footprint_bytes:
            open_[key] = (group, size)
            continue
        into = held[0]
        if groups.put_beside(into, group):
            open_[key] = (into, held[1] + size)
