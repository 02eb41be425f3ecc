"""A group and one of its candidates as a block program: what is stored where, and in which loop nests.

First it is decided who is stored at all (size requirements, section 5.1.1): what others read through global memory,
every reduce, scatter and dot, and every element-wise value whose recomputation would cost more than a buffer and a
barrier (several readers; or read once by something that reads it many times, as the paper's Divide in front of a
dot). The rest is inlined. Then stored values are put into stages: a value joins the stage of one that it reads at the
same index, or another loop nest over the same chunk. Barriers stand where a stage reads what another thread wrote
since the last one, or writes over what another thread may still read.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fusiond_stitching.analysis import shared_memory
from fusiond_stitching.analysis.fusion import Candidate, Group, reach
from fusiond_stitching.analysis.plan import (
    BlockProgram,
    Box,
    Chunk,
    Exchange,
    Flat,
    Global,
    Home,
    Reduction,
    Result,
    Shared,
    Stage,
    chunk_bytes,
)
from fusiond_stitching.analysis.policy import Policy
from fusiond_stitching.analysis.shared_memory import Wanted
from fusiond_stitching.frontend.graph import BYTES, EXPENSIVE, Instruction, Module

SMALL_REDUCE = 8
"""A reduce over this many elements or fewer may be inlined."""
WEIGHT_EXPENSIVE = 20
WEIGHT_READ = 4
WEIGHT_MOST = 400
BARRIER = 40
"""Weights in the cost of a cheap instruction, per thread: rough, and only used to decide who gets a buffer."""
PATIENCE = 16
"""Rounds of size shrinking in which nothing is given up that need not be."""
STUCK = 2
"""As many, if they help nothing."""
SITES = 12
"""A value that stands in more different places of the generated code than this is stored, whatever it costs."""


@dataclass(slots=True)
class _Stage:
    number: int
    level: int
    chunk: Chunk
    dims: tuple[int, ...]
    reduce: tuple[object, ...] | None
    results: list[str] = field(default_factory=list)


def block_program(
    module: Module,
    policy: Policy,
    group: Group,
    candidate: Candidate,
    stored: frozenset[str],
    elsewhere: Container[str],
    name: str,
) -> BlockProgram | str:
    """The block program of a group under one candidate. `stored` are the members that must reach global memory,
    `elsewhere` what has a buffer that others fill. A text says why there is none: shared memory does not suffice
    (section 5.1.2)."""
    planner = _Planner(module, policy, group, candidate, stored, elsewhere)
    dropped: set[str] = set()
    spilled: set[str] = set()
    rounds = stuck = 0
    smallest = math.inf
    while True:
        planner.choose(dropped)
        planner.build()
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
    def __init__(
        self,
        module: Module,
        policy: Policy,
        group: Group,
        candidate: Candidate,
        stored: frozenset[str],
        elsewhere: Container[str],
    ) -> None:
        self.module = module
        self.policy = policy
        self.group = group
        self.candidate = candidate
        self.chunks = candidate.chunks
        self.stored = stored
        self.members = frozenset(group.members)
        self.nodes = reach(module, group, elsewhere)
        self.weight = self._weights()
        self.kept: dict[str, None] = {}
        self.stages: list[_Stage] = []
        self.stage_of: dict[str, _Stage] = {}
        self.reads: dict[str, dict[str, bool]] = {}
        self.sites: dict[str, int] = {}

    def _weights(self) -> dict[str, int]:
        """What it costs to compute one element on the spot, everything inlined down to reduces and buffers."""
        found: dict[str, int] = {}
        for each in self.nodes:
            own = WEIGHT_EXPENSIVE if each.opcode in EXPENSIVE else 1
            for operand in each.operands:
                source = self.module[operand]
                heavy = source.opcode in ("reduce", "dot", "scatter")
                own += WEIGHT_READ if heavy or operand not in found else found[operand]
            found[each.name] = min(own, WEIGHT_MOST)
        return found

    # --- who is stored ---

    def inputs(self, instruction: Instruction) -> int:
        """Elements read per element computed."""
        if instruction.opcode == "reduce":
            source = self.module[instruction.operands[0]]
            return math.prod(source.dims[at] for at in instruction.attributes["dimensions"])
        if instruction.opcode == "dot":
            lhs = self.module[instruction.operands[0]]
            return math.prod(lhs.dims[at] for at in instruction.attributes["lhs_contracting"])
        return 1

    def _must(self, instruction: Instruction) -> bool:
        if instruction.name in self.stored:
            return True
        if instruction.opcode == "reduce":
            return self.inputs(instruction) > SMALL_REDUCE
        return instruction.opcode in ("scatter", "dot")

    def choose(self, dropped: set[str]) -> None:
        """Fill `kept`: everything that is stored. `dropped` shall not be, unless it must."""
        self.kept = {}
        sites: dict[str, dict[tuple[object, ...], int]] = {}
        for each in reversed(self.nodes):
            own = sites.pop(each.name, {})
            self.sites[each.name] = len(own)
            member = each.name in self.members
            keep = member and self._must(each)
            if member and not keep and own and each.name not in dropped and self.policy.rules == "stitch":
                keep = self._worth(each, own)
            if keep:
                self.kept[each.name] = None
                trips = self.chunks[each.name].size * self.inputs(each)
                own = {(self._nest(each),): trips}
            for place, operand in enumerate(each.operands):
                if operand not in self.weight:
                    continue
                into = sites.setdefault(operand, {})
                for site, count in own.items():
                    where = (
                        site if each.elementwise or (keep and each.opcode == "reduce") else (*site, each.name, place)
                    )
                    more = self.inputs(each) if not keep and each.opcode == "reduce" else 1
                    into[where] = max(into.get(where, 0), count * more)
                    if len(into) > 2 * SITES:
                        break
        self.kept = {each.name: None for each in self.nodes if each.name in self.kept}

    def _nest(self, instruction: Instruction) -> tuple[object, ...]:
        """What loop nests are told apart by."""
        return (self.chunks[instruction.name], instruction.dims, self._reduce_key(instruction))

    def _reduce_key(self, instruction: Instruction) -> tuple[object, ...] | None:
        if instruction.opcode != "reduce":
            return None
        return (self.module[instruction.operands[0]].dims, instruction.attributes["dimensions"])

    def _worth(self, instruction: Instruction, sites: Mapping[tuple[object, ...], int]) -> bool:
        count = sum(sites.values())
        local = self.chunks[instruction.name].size
        if len(sites) > SITES:
            return True
        if not self.policy.merge:  # the paper's rule (section 5.1.1)
            reused = instruction.opcode in EXPENSIVE and count > 2 * local
            return len(sites) > 1 or reused
        saved = self.weight[instruction.name] * (count - local)
        return saved > WEIGHT_READ * local + 2 * count + BARRIER * self.policy.threads

    # --- stages ---

    def build(self) -> None:
        """Fill `stages`, `stage_of` and `reads`."""
        self.reads = {name: self._reads_of(self.module[name]) for name in self.kept}
        self.stages = []
        self.stage_of = {}
        by_nest: dict[tuple[object, ...], list[_Stage]] = {}
        for name in self.kept:
            instruction = self.module[name]
            stage = self._joinable(instruction, by_nest)
            if stage is None:
                level = max((self.stage_of[each].level + 1 for each in self.reads[name]), default=0)
                key = self._reduce_key(instruction)
                stage = _Stage(len(self.stages), level, self.chunks[name], instruction.dims, key)
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

    def _reads_of(self, instruction: Instruction) -> dict[str, bool]:
        """Stored values that an instruction reads, through what is inlined; True where only at its own index."""
        found: dict[str, bool] = {}
        seen: set[tuple[str, bool]] = set()
        stack = [(operand, instruction.elementwise, instruction.dims) for operand in instruction.operands]
        while stack:
            name, same, dims = stack.pop()
            if name not in self.weight or (name, same) in seen:
                continue
            seen.add((name, same))
            source = self.module[name]
            same = same and source.dims == dims
            if name in self.kept:
                found[name] = found.get(name, True) and same
                continue
            stack += [(operand, same and source.elementwise, dims) for operand in source.operands]
        return found

    def _joinable(self, instruction: Instruction, by_nest: Mapping[tuple[object, ...], list[_Stage]]) -> _Stage | None:
        """An existing stage that can compute this value too."""
        name = instruction.name
        reads = self.reads[name]
        key = self._reduce_key(instruction)
        if instruction.opcode in ("scatter", "dot"):
            return None
        for stage in by_nest.get((self.chunks[name], instruction.dims), [])[-8:]:
            if key is not None and stage.reduce != key:
                continue
            if any(self.module[each].opcode in ("scatter", "dot") for each in stage.results):
                continue
            inside = [each for each in reads if self.stage_of[each] is stage]
            if key is not None and inside:
                continue
            if key is None and stage.reduce is not None and not inside:
                continue  # only the thread that holds the total computes what follows a reduce
            if not all(reads[each] for each in inside):
                continue
            others = (self.stage_of[each].level for each in reads if self.stage_of[each] is not stage)
            level = max(others, default=-1) + 1
            if level <= stage.level:
                return stage
            if key is not None and self.policy.merge and not self._read_by_now(stage):
                stage.level = level  # both read the same values, once if the earlier one waits
                return stage
        return None

    def _read_by_now(self, stage: _Stage) -> bool:
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

    def allocate(self, spilled: set[str]) -> tuple[list[Wanted], dict[str, int]]:
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
            buffers.append(Wanted(name, size, stage.number, crossing[name], reused))
        for stage in self.stages:
            size = self._workspace(stage)
            if size:
                buffers.append(Wanted(f"{stage.results[0]}#workspace", size, stage.number, stage.number))
        tree = None if self.policy.merge else self._dominance()
        return buffers, shared_memory.layout(buffers, tree)

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

    def _dominance(self) -> dict[str, str]:
        """The dominance tree of the stored values, from a root above all that nobody else in the group reads."""
        read = {each for reads in self.reads.values() for each in reads}
        root = "<root>"
        successors: dict[str, Sequence[str]] = {name: tuple(reads) for name, reads in self.reads.items()}
        successors[root] = tuple(name for name in self.kept if name not in read or name in self.stored)
        return shared_memory.dominators(successors, root)

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
            size = chunk_bytes(instruction, self.chunks[name])
            own = self._unique(name)
            if name in self.stored and own:
                free.append(("global", name, size))
            elif not self._must(instruction):
                (expensive if instruction.opcode in EXPENSIVE else cheap).append(("inline", name, size))
            elif self.policy.spill and own:
                spill.append(("global", name, size))
        return [*free, *cheap, *expensive] or sorted(spill, key=lambda each: -each[2])

    def _unique(self, name: str) -> bool:
        """No two blocks compute the same chunk, so a block finds its own values in global memory."""
        chunk = self.chunks[name]
        return self.candidate.blocks == (chunk.parts if isinstance(chunk, Box | Flat) else 1)

    # --- reductions ---

    def reduction(self, stage: _Stage) -> Reduction | None:
        if stage.reduce is None:
            return None
        first = self.module[stage.results[0]]
        source = self.module[first.operands[0]]
        inputs = self.inputs(first)
        outputs = math.prod(stage.chunk.local)
        threads = self.policy.threads
        inner = _inner(source.dims, first.attributes["dimensions"])
        if inputs <= 1 or outputs == 0:
            return Reduction(1)
        if inner:
            lanes = min(32, _power(inputs))
            if outputs * lanes <= threads // 4 and inputs >= 4 * lanes:
                lanes = threads
            kind = Exchange.WARP if self.policy.warp else Exchange.SHARED
            return Reduction(lanes, kind if lanes > 1 else Exchange.NONE)
        width = min(threads, _power(outputs))
        lanes = min(threads // width, _power(inputs))
        return Reduction(lanes, Exchange.SHARED if lanes > 1 else Exchange.NONE, inner=False)

    def _by_one_thread(self, stage: _Stage, name: str) -> bool:
        """Every element of a value that a stage reads has been written by the very thread that reads it."""
        writer = self.stage_of[name]
        reduction = self.reduction(stage)
        if stage.chunk.size == writer.chunk.size == 1 and (reduction is None or reduction.lanes == 1):
            return True
        if (stage.chunk, stage.dims) != (writer.chunk, writer.dims):
            return False
        at_own_index = all(self.reads[each].get(name, True) for each in stage.results)
        return at_own_index and self._threads_of(stage) == self._threads_of(writer)

    def _threads_of(self, stage: _Stage) -> Sequence[int]:
        """The thread that writes each element of a chunk; where they repeat, only the first round."""
        threads = self.policy.threads
        reduction = self.reduction(stage)
        lanes = reduction.lanes if reduction is not None else 1
        at_once = threads // lanes
        apart = lanes if reduction is not None and reduction.inner else 1
        return [place % at_once * apart for place in range(min(math.prod(stage.chunk.local), threads))]

    def _workspace(self, stage: _Stage) -> int:
        reduction = self.reduction(stage)
        if reduction is None or reduction.exchange is Exchange.NONE:
            return 0
        if reduction.exchange is Exchange.WARP and reduction.lanes <= 32:
            return 0
        count = self.policy.threads if reduction.exchange is Exchange.SHARED else self.policy.threads // 32
        size = 0
        for name in stage.results:
            instruction = self.module[name]
            if instruction.opcode == "reduce":
                values = instruction.operands[: len(instruction.operands) // 2]
                size += sum(-(-count * BYTES[self.module[each].dtype] // 16) * 16 for each in values)
        return size

    # --- the result ---

    def program(
        self, name: str, buffers: Sequence[Wanted], offsets: Mapping[str, int], spilled: set[str], size: int
    ) -> BlockProgram:
        where = {each.name: Shared(offsets[each.name], each.size_bytes) for each in buffers}
        stages = []
        barrier = _Barriers({each.name: each for each in buffers}, offsets)
        for stage in self.stages:
            results = []
            for each in stage.results:
                homes: list[Home] = []
                if each in where:
                    homes.append(where[each])
                if each in self.stored or each in spilled:
                    homes.append(Global(self.module.buffer_of(each)))
                results.append(Result(each, tuple(homes)))
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
            stages.append(
                Stage(
                    chunk=stage.chunk,
                    dims=stage.dims,
                    results=tuple(results),
                    barrier=barrier.before(read, writes, stage.results),
                    reduction=reduction,
                )
            )
        return BlockProgram(
            name=name,
            blocks=self.candidate.blocks,
            stages=tuple(stages),
            root=self.group.root,
            schedule=self.candidate.schedule,
            shared_bytes=size,
        )


class _Barriers:
    """Where barriers stand. Between two of them nobody reads what was written, or writes over what was touched."""

    def __init__(self, buffers: Mapping[str, Wanted], offsets: Mapping[str, int]) -> None:
        self.buffers = buffers
        self.offsets = offsets
        self.written: set[str] = set()
        self.touched: set[str] = set()

    def before(self, read: Mapping[str, bool], writes: Sequence[str], results: Iterable[str]) -> bool:
        """Whether a stage that reads and writes these needs a barrier before it. `read`: value -> whether the threads
        that read its elements are those that wrote them."""
        needed = any(each in self.written for each, own in read.items() if not own)
        needed = needed or any(self._over(mine, theirs) for mine in writes for theirs in self.touched)
        if needed:
            self.written.clear()
            self.touched.clear()
        self.written.update(results)
        self.touched.update(writes)
        self.touched.update(each for each in read if each in self.buffers)
        return needed

    def _over(self, mine: str, theirs: str) -> bool:
        if mine == theirs:
            return False
        a, b = self.offsets[mine], self.offsets[theirs]
        return a < b + self.buffers[theirs].size_bytes and b < a + self.buffers[mine].size_bytes


def _inner(dims: tuple[int, ...], reduced: Sequence[int]) -> bool:
    """Whether neighbouring elements of the operand go into one result: the last dimension larger than 1 is reduced."""
    last = max((at for at, dim in enumerate(dims) if dim > 1), default=None)
    return last in reduced


def _power(number: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << max(0, number - 1).bit_length()
