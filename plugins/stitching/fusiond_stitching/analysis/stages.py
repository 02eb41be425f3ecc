"""A group and one of its candidates as a block program: stored values and loop nests.

Stored values (`stored_values`) are put into stages: a value joins the stage of one that it reads at the same index, or
another loop nest over the same chunk. Barriers stand where a stage reads what another thread wrote since the last one,
or writes over what another thread may still read. Where shared memory does not suffice, values are given up one after
the other (section 5.1.2).
"""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from fusiond_stitching.analysis import shared_memory
from fusiond_stitching.analysis.fusion import FusionCandidate, GroupContext
from fusiond_stitching.analysis.plan import (
    BlockProgram,
    Chunk,
    Global,
    Home,
    LaneExchange,
    Reduction,
    Shared,
    Stage,
    StageResult,
    chunk_bytes,
    power_of_two,
)
from fusiond_stitching.analysis.shared_memory import Barriers, Dominance, SharedBuffer
from fusiond_stitching.analysis.stored_values import StoredValues, reduce_key
from fusiond_stitching.frontend.graph import BYTES, EXPENSIVE, HloInstruction

PATIENCE = 16  #: Rounds of size shrinking in which nothing is given up that need not be
STUCK = 2  #: As many, if they help nothing


@dataclass(slots=True)
class _OpenStage:
    number: int
    level: int
    chunk: Chunk
    dims: tuple[int, ...]
    reduce: tuple[object, ...] | None
    results: list[str] = field(default_factory=list)


def block_program(context: GroupContext, candidate: FusionCandidate, name: str) -> BlockProgram | str:
    """The block program of a group under one candidate. A text says why there is none: shared memory does not suffice
    (section 5.1.2)."""
    planner, policy = _Planner(context, candidate), context.policy
    dropped: set[str] = set()
    spilled: set[str] = set()
    rounds = stuck = 0
    smallest = math.inf
    while True:
        planner.build(dropped)
        buffers, offsets = planner.allocate(spilled)
        size = shared_memory.total(buffers, offsets)
        if size <= policy.shared_limit:
            return planner.program(name, buffers, offsets, spilled, size)
        victims = planner.victims(spilled)
        if not victims:
            return f"{size} bytes of shared memory are needed, and the limit is {policy.shared_limit}"
        chosen = set(shared_memory.relieved(buffers, policy.shared_limit, [victim for _, victim, _ in victims]))
        # What goes lengthens the lives of its operands, and gaps remain: a long chain would lose one at a time.
        stuck += size >= smallest
        smallest = min(size, smallest)
        least = 1 << max(0, rounds - PATIENCE, stuck - STUCK)
        rounds += 1
        for how, victim, _ in victims:
            if victim in chosen or len(chosen) < least:
                chosen.add(victim)
                (dropped if how == "inline" else spilled).add(victim)


class _Planner:
    def __init__(self, context: GroupContext, candidate: FusionCandidate) -> None:
        self.module = context.module
        self.policy = context.policy
        self.root = context.group.root
        self.candidate = candidate
        self.chunks = candidate.chunks
        self.stored = context.stored
        self.values = StoredValues(context, candidate.chunks)
        self.kept: list[str] = []
        self.stages: list[_OpenStage] = []
        self.stage_of: dict[str, _OpenStage] = {}
        self.reads: dict[str, dict[str, bool]] = {}

    # --- stages ---

    def build(self, dropped: Container[str]) -> None:
        """Fill `kept`, `stages`, `stage_of` and `reads`. `dropped` are not stored unless they must be."""
        self.kept = self.values.chosen(dropped)
        self.reads = {name: self._reads_of(self.module[name]) for name in self.kept}
        self.stages = []
        self.stage_of = {}
        by_nest: dict[tuple[object, ...], list[_OpenStage]] = {}
        for name in self.kept:
            instruction = self.module[name]
            stage = self._joinable(instruction, by_nest)
            if stage is None:
                level = max((self.stage_of[each].level + 1 for each in self.reads[name]), default=0)
                key = reduce_key(self.module, instruction)
                stage = _OpenStage(len(self.stages), level, self.chunks[name], instruction.dims, key)
                self.stages.append(stage)
                by_nest.setdefault((stage.chunk, stage.dims), []).append(stage)
                stage.results.append(name)
            elif instruction.opcode == "reduce":
                at = sum(1 for each in stage.results if self.module[each].opcode == "reduce")
                stage.results.insert(at, name)
            else:
                stage.results.append(name)
            self.stage_of[name] = stage
        self.stages.sort(key=lambda each: (each.level, each.number))
        for number, stage in enumerate(self.stages):
            stage.number = number

    def _reads_of(self, instruction: HloInstruction) -> dict[str, bool]:
        """Stored values that an instruction reads, through what is inlined; True where only at its own index."""
        found: dict[str, bool] = {}
        seen: set[tuple[str, bool]] = set()
        stack = [(operand, instruction.elementwise, instruction.dims) for operand in instruction.operands]
        while stack:
            name, same, dims = stack.pop()
            if name not in self.values.weight or (name, same) in seen:
                continue
            seen.add((name, same))
            source = self.module[name]
            same = same and source.dims == dims
            if name in self.kept:
                found[name] = found.get(name, True) and same
                continue
            stack += [(operand, same and source.elementwise, dims) for operand in source.operands]
        return found

    def _joinable(
        self, instruction: HloInstruction, by_nest: Mapping[tuple[object, ...], list[_OpenStage]]
    ) -> _OpenStage | None:
        """An existing stage that can compute this value too."""
        if instruction.opcode in ("scatter", "dot"):
            return None
        reads = self.reads[instruction.name]
        for stage in by_nest.get((self.chunks[instruction.name], instruction.dims), [])[-8:]:
            if not self._shares_loop(instruction, stage):
                continue
            others = (self.stage_of[each].level for each in reads if self.stage_of[each] is not stage)
            level = max(others, default=-1) + 1
            if level <= stage.level:
                return stage
            if instruction.opcode == "reduce" and self.policy.merge and not self._read_by_now(stage):
                stage.level = level  # both read the same values, once if the earlier one waits
                return stage
        return None

    def _shares_loop(self, instruction: HloInstruction, stage: _OpenStage) -> bool:
        """Whether a stage's threads can compute this value at their own indices, whenever it runs."""
        if any(self.module[each].opcode in ("scatter", "dot") for each in stage.results):
            return False
        reads = self.reads[instruction.name]
        inside = [each for each in reads if self.stage_of[each] is stage]
        if instruction.opcode == "reduce":
            return not inside and stage.reduce == reduce_key(self.module, instruction)
        if stage.reduce is not None and not inside:
            return False  # only the thread that holds the total computes what follows a reduce
        return all(reads[each] for each in inside)

    def _read_by_now(self, stage: _OpenStage) -> bool:
        """Whether another stage reads one of its results already."""
        return any(
            self.stage_of[each] is stage
            for name, own in self.stage_of.items()
            if own is not stage
            for each in self.reads[name]
        )

    # --- shared memory ---

    def _crossing(self) -> dict[str, int]:
        """Values that another stage reads -> the number of the last stage that does."""
        found: dict[str, int] = {}
        for name, reads in self.reads.items():
            own = self.stage_of[name]
            for each in reads:
                if self.stage_of[each] is not own:
                    found[each] = max(found.get(each, 0), own.number)
        return found

    def allocate(self, spilled: set[str]) -> tuple[list[SharedBuffer], dict[str, int]]:
        """Buffers for everything that crosses from stage to stage, and workspaces for reductions."""
        crossing = self._crossing()
        buffers = []
        readers: dict[str, list[str]] = {}
        for name, reads in self.reads.items():
            for each in reads:
                readers.setdefault(each, []).append(name)
        for name in self.kept:
            if name not in crossing or name in spilled:
                continue
            stage = self.stage_of[name]
            instruction = self.module[name]
            size = chunk_bytes(instruction, self.chunks[name])
            reused = None if stage.reduce is not None else self._in_place(name, readers, crossing, spilled)
            buffers.append(SharedBuffer(name, size, stage.number, crossing[name], reused))
        for stage in self.stages:
            size = self._workspace(stage)
            if size:
                buffers.append(SharedBuffer(f"{stage.results[0]}#workspace", size, stage.number, stage.number))
        return buffers, shared_memory.layout(buffers, None if self.policy.merge else self._dominance())

    def _in_place(
        self, name: str, readers: Mapping[str, Sequence[str]], crossing: Mapping[str, int], spilled: set[str]
    ) -> str | None:
        """A buffer that this value may overwrite: read for the last time in this stage, and only at the own index."""
        stage = self.stage_of[name]
        for each in self.reads[name]:
            theirs = self.stage_of[each]
            if theirs is stage or each not in crossing or each in spilled or crossing[each] != stage.number:
                continue
            fits = (
                self.chunks[each] == self.chunks[name]
                and self.module[each].dims == self.module[name].dims
                and BYTES[self.module[each].dtype] == BYTES[self.module[name].dtype]
            )
            last = [reader for reader in readers[each] if self.stage_of[reader] is stage]
            if fits and all(self.reads[reader][each] for reader in last) and name == stage.results[-1]:
                return each
        return None

    def _dominance(self) -> Dominance:
        """The dominance tree of the stored values, from a root above all that nobody else in the group reads."""
        read = {each for reads in self.reads.values() for each in reads}
        root = "<root>"
        successors: dict[str, Sequence[str]] = {name: tuple(reads) for name, reads in self.reads.items()}
        successors[root] = tuple(name for name in self.kept if name not in read or name in self.stored)
        return Dominance.of(successors, root)

    def victims(self, spilled: set[str]) -> list[tuple[str, str, int]]:
        """What to give up next, in order (section 5.1.2): (`global` or `inline`, name, bytes). First what has a
        buffer in global memory anyway, then inexpensive element-wise values, expensive ones, those that a dot reads;
        last, where the policy spills, anything."""
        crossing = self._crossing()
        free: list[tuple[str, str, int]] = []
        cheap: list[tuple[str, str, int]] = []
        expensive: list[tuple[str, str, int]] = []
        spill: list[tuple[str, str, int]] = []
        for name in reversed(self.kept):
            if name not in crossing or name in spilled:
                continue
            instruction = self.module[name]
            # No two blocks compute the same chunk, so a block finds its own values in global memory.
            chunk = self.chunks[name]
            size, own = chunk_bytes(instruction, chunk), self.candidate.blocks == chunk.parts
            if name in self.stored and own:
                free.append(("global", name, size))
            elif not self.values.must(instruction):
                (expensive if instruction.opcode in EXPENSIVE else cheap).append(("inline", name, size))
            elif self.policy.spill and own:
                spill.append(("global", name, size))
        return [*free, *cheap, *expensive] or sorted(spill, key=lambda each: -each[2])

    # --- reductions ---

    def reduction(self, stage: _OpenStage) -> Reduction | None:
        if stage.reduce is None:
            return None
        first = self.module[stage.results[0]]
        source = self.module[first.operands[0]]
        count = self.module.inputs(first)
        outputs = math.prod(stage.chunk.local)
        threads = self.policy.threads
        # Neighbouring elements of the operand go into one result: the last dimension larger than 1 is reduced.
        last = max((at for at, dim in enumerate(source.dims) if dim > 1), default=None)
        inner = last in first.attributes["dimensions"]
        if count <= 1 or outputs == 0:
            return Reduction(1)
        if inner:
            lanes = min(32, power_of_two(count))
            if outputs * lanes <= threads // 4 and count >= 4 * lanes:
                lanes = threads
            kind = LaneExchange.WARP if self.policy.warp else LaneExchange.SHARED
            return Reduction(lanes, kind if lanes > 1 else LaneExchange.NONE)
        width = min(threads, power_of_two(outputs))
        lanes = min(threads // width, power_of_two(count))
        return Reduction(lanes, LaneExchange.SHARED if lanes > 1 else LaneExchange.NONE, inner=False)

    def _by_one_thread(self, stage: _OpenStage, name: str) -> bool:
        """Every element of a value that a stage reads has been written by the very thread that reads it."""
        writer = self.stage_of[name]
        reduction = self.reduction(stage)
        if stage.chunk.size == writer.chunk.size == 1 and (reduction is None or reduction.lanes == 1):
            return True
        if (stage.chunk, stage.dims) != (writer.chunk, writer.dims):
            return False
        at_own_index = all(self.reads[each].get(name, True) for each in stage.results)
        return at_own_index and self._threads_of(stage) == self._threads_of(writer)

    def _threads_of(self, stage: _OpenStage) -> Sequence[int]:
        """The thread that writes each element of a chunk; where they repeat, only the first round."""
        threads = self.policy.threads
        reduction = self.reduction(stage)
        lanes = reduction.lanes if reduction is not None else 1
        at_once = threads // lanes
        apart = lanes if reduction is not None and reduction.inner else 1
        return [place % at_once * apart for place in range(min(math.prod(stage.chunk.local), threads))]

    def _workspace(self, stage: _OpenStage) -> int:
        reduction = self.reduction(stage)
        if reduction is None or reduction.exchange is LaneExchange.NONE:
            return 0
        if reduction.exchange is LaneExchange.WARP and reduction.lanes <= 32:
            return 0
        count = self.policy.threads if reduction.exchange is LaneExchange.SHARED else self.policy.threads // 32
        size = 0
        for name in stage.results:
            instruction = self.module[name]
            if instruction.opcode == "reduce":
                kinds = (self.module[each].dtype for each in instruction.values)
                size += sum(-(-count * BYTES[kind] // 16) * 16 for kind in kinds)
        return size

    # --- the result ---

    def program(
        self, name: str, buffers: Sequence[SharedBuffer], offsets: Mapping[str, int], spilled: set[str], size: int
    ) -> BlockProgram:
        where = {each.name: Shared(offsets[each.name], each.size_bytes) for each in buffers}
        stages = []
        barrier = Barriers({each.name: each for each in buffers}, offsets)
        for stage in self.stages:
            results = []
            for each in stage.results:
                homes: list[Home] = []
                if each in where:
                    homes.append(where[each])
                if each in self.stored or each in spilled:
                    homes.append(Global(self.module.buffer_of(each)))
                results.append(StageResult(each, tuple(homes)))
            workspace = where.get(f"{stage.results[0]}#workspace")
            reduction = self.reduction(stage)
            if reduction is not None and workspace is not None:
                reduction = Reduction(reduction.lanes, reduction.exchange, reduction.inner, workspace)
            read = {
                each: self._by_one_thread(stage, each)
                for result in stage.results
                for each in self.reads[result]
                if self.stage_of[each] is not stage
            }
            writes = [each for each in stage.results if each in where]
            if workspace is not None:
                writes.append(f"{stage.results[0]}#workspace")
            needed = barrier.before(read, writes, stage.results)
            stages.append(
                Stage(chunk=stage.chunk, dims=stage.dims, results=tuple(results), barrier=needed, reduction=reduction)
            )
        return BlockProgram(
            name=name,
            blocks=self.candidate.blocks,
            stages=tuple(stages),
            root=self.root,
            schedule=self.candidate.schedule,
            shared_bytes=size,
        )
