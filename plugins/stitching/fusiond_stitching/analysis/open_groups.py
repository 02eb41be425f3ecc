"""Groups while fusion is under way: their candidates, and what they need of ungrouped instructions.

A candidate is a schedule of the root, and by propagation (`propagate.required`) the chunk of every member, and of what
these read. SchdConsistent asks of each candidate, for a new member: does a block get at most `grain` elements (or are
there blocks for the whole device anyway), and is next to nothing computed twice.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fusiond_stitching.analysis import schedule as schedules
from fusiond_stitching.analysis.fusion import END, LaunchPlace
from fusiond_stitching.analysis.plan import Chunk, ChunkSchedule
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.analysis.propagate import Requirements, joined
from fusiond_stitching.frontend.graph import MOVEMENT, SOURCES, HloInstruction, HloModule

KEPT = 60  #: Candidates of a group
WASTE = 256  #: Elements that every block may compute twice without being asked


@dataclass(slots=True)
class OpenCandidate:
    schedule: ChunkSchedule
    blocks: int
    chunks: dict[str, Chunk]
    needs: dict[str, Chunk]  #: What members need of what is not yet placed
    work: int = 0  #: Elements that one block computes


@dataclass(slots=True)
class OpenGroup:
    number: int
    place: LaunchPlace
    root: str
    layer: int
    members: list[str]
    candidates: list[OpenCandidate]
    elementwise: bool = True


@dataclass(frozen=True, slots=True)
class _Match:
    """A candidate of the group that an instruction joins, and those of other groups that become one with it."""

    candidate: OpenCandidate
    partners: list[OpenCandidate]
    chunk: Chunk  #: Of the instruction
    blocks: int

    def united(self, module: HloModule, instruction: HloInstruction, work: int) -> OpenCandidate:
        """The candidate with its partners and the instruction, which is so much work."""
        one = self.candidate
        for partner in self.partners:
            one.chunks.update(partner.chunks)
            for asked, need in partner.needs.items():
                mine = one.needs.get(asked)
                one.needs[asked] = need if mine is None else joined(mine, need, module[asked].dims)
            one.work += partner.work
        one.blocks = self.blocks
        one.chunks[instruction.name] = self.chunk
        one.work += work
        return one


class OpenGroups:
    def __init__(
        self, module: HloModule, policy: FusionPolicy, layer_of: Callable[[str], int], is_library: Mapping[str, bool]
    ) -> None:
        self.module = module
        self.policy = policy
        self.layer_of = layer_of
        self.is_library = is_library
        self.required = Requirements(module)
        self.groups: dict[int, OpenGroup] = {}
        self.merged: dict[int, int] = {}  #: Group -> the one that it has become part of
        self.requests: dict[str, dict[int, None]] = {each.name: {} for each in module.instructions}
        self.least: dict[str, LaunchPlace] = {}  #: The lowest place that the readers of an instruction leave it

    def __iter__(self) -> Iterator[OpenGroup]:
        return iter(list(self.groups.values()))

    def begin(self, instruction: HloInstruction, place: LaunchPlace) -> OpenGroup:
        """A new group with this root and all its schedules."""
        policy = self.policy
        work = instruction.elements * self._inputs(instruction)
        wanted = max(1, min(work // (4 * policy.threads), 8 * policy.multiprocessors))
        found = []
        for each, chunk, blocks in schedules.candidates(instruction.dims, wanted, policy.middle):
            found.append(OpenCandidate(each, blocks, {instruction.name: chunk}, {}, self._local(instruction, chunk)))
        if instruction.elements > policy.threads and instruction.opcode != "reduce":
            flat = schedules.flat(instruction.elements, 4 * policy.threads)
            chunk = flat.chunk(instruction.dims)
            found.append(OpenCandidate(flat, flat.blocks(instruction.dims), {instruction.name: chunk}, {}, flat.sword))
        fits = [each for each in found if self._suits(instruction, each.chunks[instruction.name], each.blocks)]
        number = len(self.groups) + len(self.merged)
        self.groups[number] = group = OpenGroup(
            number=number,
            place=place,
            root=instruction.name,
            layer=self.layer_of(instruction.name),
            members=[instruction.name],
            candidates=(fits or found)[:KEPT],
            elementwise=instruction.elementwise or instruction.opcode in MOVEMENT,
        )
        self._ask_operands(group, instruction)
        return group

    def join(self, instruction: HloInstruction, readers: Sequence[OpenGroup]) -> str:
        """Put an instruction into the group (or groups) that read it. Returns why not; empty when it is done."""
        base, *others = sorted(readers, key=lambda each: -len(each.members))
        matches = list(self._matches(instruction, base, others))
        if not matches:
            if others:
                return f"no schedule suits {base.root} and {', '.join(each.root for each in others)}"
            return f"no schedule suits it and {base.root}: blocks would need each other's results"
        base.candidates = [
            each.united(self.module, instruction, self._local(instruction, each.chunk)) for each in matches
        ]
        for other in others:
            base.members += other.members
            base.elementwise = base.elementwise and other.elementwise
            self.merged[other.number] = base.number
            del self.groups[other.number]
        base.members.append(instruction.name)
        base.elementwise = base.elementwise and (instruction.elementwise or instruction.opcode in MOVEMENT)
        self._ask_operands(base, instruction)
        return ""

    def inline(self, instruction: HloInstruction, group: OpenGroup) -> None:
        """Put an instruction into its only reader as it is needed, whatever it costs."""
        group.members.append(instruction.name)
        for one in group.candidates:
            one.chunks[instruction.name] = one.needs[instruction.name]
        self._ask_operands(group, instruction)

    def put_beside(self, into: OpenGroup, group: OpenGroup) -> bool:
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

    # --- candidates that go together ---

    def _matches(self, instruction: HloInstruction, base: OpenGroup, others: Sequence[OpenGroup]) -> Iterator[_Match]:
        name = instruction.name
        for one in base.candidates:
            partners: list[OpenCandidate] = []
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
                yield _Match(one, partners, chunk, blocks)

    def _partner(
        self, instruction: HloInstruction, chunk: Chunk, blocks: int, work: int, other: OpenGroup
    ) -> OpenCandidate | None:
        """The other group's first candidate that goes with this one: equal block counts (section 4.3), or one of the
        two runs whole in every block because it is tiny."""
        name = instruction.name
        for exact in (True, False):
            for each in other.candidates:
                tiny = (each.blocks == 1 and each.work <= WASTE) or (blocks == 1 and work <= WASTE)
                if exact != (each.blocks == blocks) or not (exact or tiny):
                    continue
                both = joined(chunk, each.needs[name], instruction.dims)
                if self._suits(instruction, both, max(blocks, each.blocks)):
                    return each
        return None

    def _suits(self, instruction: HloInstruction, chunk: Chunk, blocks: int) -> bool:
        """SchdConsistent for one member and one candidate: enough blocks, and next to nothing computed twice."""
        inputs = self._inputs(instruction)
        total = instruction.elements * inputs
        local = chunk.size * inputs
        enough = local <= max(self.policy.grain, total / (3 * self.policy.multiprocessors))
        enough = enough or instruction.elements <= 1  # nothing is there to be cut
        return enough and blocks * local <= 1.5 * total + blocks * WASTE

    def _inputs(self, instruction: HloInstruction) -> int:
        if instruction.elementwise:
            return 1
        found = self.module.inputs(instruction)
        return max(1, found) if instruction.opcode == "reduce" else found

    def _local(self, instruction: HloInstruction, chunk: Chunk) -> int:
        return chunk.size * self._inputs(instruction)

    # --- what groups need ---

    def pass_on(self, instruction: HloInstruction, group: OpenGroup) -> None:
        """What a group needs of an instruction that is inlined, it needs of its operands."""
        self._ask(group, instruction, lambda one: one.needs.get(instruction.name))

    def _ask_operands(self, group: OpenGroup, instruction: HloInstruction) -> None:
        self._ask(group, instruction, lambda one: one.chunks[instruction.name])

    def _ask(
        self, group: OpenGroup, instruction: HloInstruction, chunk_of: Callable[[OpenCandidate], Chunk | None]
    ) -> None:
        for place, operand in enumerate(instruction.operands):
            source = self.module[operand]
            self.at_least(operand, group.place)
            if source.opcode in SOURCES or self.is_library[operand]:
                continue
            self.requests[operand][group.number] = None
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

    def at_least(self, name: str, place: LaunchPlace) -> None:
        if place > self.least.get(name, END):
            self.least[name] = place

    def askers(self, name: str) -> list[OpenGroup]:
        """The groups that read an instruction, each once, in the order of their numbers."""
        found: dict[int, None] = {}
        for number in self.requests[name]:
            while number in self.merged:
                number = self.merged[number]
            found[number] = None
        return [self.groups[number] for number in sorted(found)]
