"""Checks a plan against its module, sharing no code with the planner.

    exact cover     every output reaches its buffer; nothing is computed in two places; a value that is read has been
                    computed before, in another launch, behind a grid barrier, or earlier in the same block program
                    (so the quotient graph has no cycle); every element of a buffer is written, by one block
                    (`chunk_coverage`); what a block finds again in global memory it has written itself
    scatters        one in place changes what was stored in an earlier launch and nobody else reads; each update is
                    applied once
    shared memory   no two buffers with a byte in common are alive in one stage, but for a write in place; buffers and
                    workspaces are large enough, aligned, and inside the arena (`shared_use`)
    barriers        between a write and another thread's read of it, and between a read and what overwrites it

Nothing of `shared_memory`, `stages` or `propagate` is used, here or in what this calls.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fusiond_stitching.analysis import chunk_coverage, shared_use, verify_rows
from fusiond_stitching.analysis.plan import (
    BlockProgram,
    Global,
    LaneExchange,
    LibraryCall,
    Reduction,
    Registers,
    Stage,
    StageResult,
    StitchedKernel,
    StitchingPlan,
    TransposeTile,
)
from fusiond_stitching.analysis.shared_use import StageReads
from fusiond_stitching.frontend.graph import BYTES, MOVEMENT, SOURCES, HloInstruction, HloModule


def problems(module: HloModule, plan: StitchingPlan, *, shared_limit: int | None = None) -> tuple[str, ...]:
    """One line for everything that is wrong with a plan; none when it is sound. `shared_limit`: bytes of shared memory
    that a block may have."""
    checking = _Checking(module, plan, shared_limit)
    checking.run()
    return tuple(dict.fromkeys(checking.found))


Say: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an instruction is computed. Library calls have no stage."""

    step: int
    phase: int = 0
    program: int = 0
    stage: int = 0
    at: int = 0  #: The place among the stage's results

    @property
    def launch(self) -> tuple[int, int]:
        return (self.step, self.phase)


class _Checking:
    def __init__(self, module: HloModule, plan: StitchingPlan, shared_limit: int | None) -> None:
        self.module = module
        self.plan = plan
        self.shared_limit = shared_limit
        self.found: list[str] = []
        self.places: dict[str, _Place] = {}
        self.results: dict[str, StageResult] = {}

    def run(self) -> None:
        for step, each in enumerate(self.plan.steps):
            if isinstance(each, LibraryCall):
                self._locate(each.instruction, _Place(step), f"library call {each.instruction}")
                continue
            for phase, programs in enumerate(each.phases):
                for number, program in enumerate(programs.programs):
                    for stage, one in enumerate(program.stages):
                        for at, result in enumerate(one.results):
                            if program.rows is not None and self._kept_on_the_way(result):
                                continue
                            place = _Place(step, phase, number, stage, at)
                            self._locate(result.instruction, place, f"{each.name}/{program.name}")
                            self.results.setdefault(result.instruction, result)
        for step, each in enumerate(self.plan.steps):
            if isinstance(each, LibraryCall):
                self._library(step, each)
            else:
                self._kernel(step, each)
        for name, buffer in self.module.computed.items():
            if self.module[name].elements and not self._stored(name):
                self.found.append(f"{name} is never written to {buffer}")
        for name in self.module.foreign:
            if name not in self.places:
                self.found.append(f"library call {name} is never made")

    def _at(self, where: str) -> Say:
        return lambda problem: self.found.append(f"{where}: {problem}")

    def _kept_on_the_way(self, result: StageResult) -> bool:
        """A value that rows have in registers, and whoever else reads it computes again."""
        source = self.module.by_name.get(result.instruction)
        inlined = source is not None and (source.elementwise or source.opcode in MOVEMENT)
        return inlined and result.homes == (Registers(),)

    def _locate(self, name: str, place: _Place, where: str) -> None:
        if name not in self.module.by_name:
            self.found.append(f"{where}: there is no instruction {name}")
        elif self.module[name].opcode == "parameter":
            self.found.append(f"{where}: {name} is a parameter")
        elif name in self.places:
            self.found.append(f"{where}: {name} is computed a second time")
        else:
            self.places[name] = place

    def _stored(self, name: str) -> bool:
        place = self.places.get(name)
        if place is None:
            return False
        called = isinstance(self.plan.steps[place.step], LibraryCall)
        return called or (name in self.results and self.results[name].stored is not None)

    # --- steps ---

    def _library(self, step: int, call: LibraryCall) -> None:
        where = f"library call {call.instruction}"
        instruction = self.module.by_name.get(call.instruction)
        if instruction is None:
            return
        if not self.module.library(instruction) or call.instruction in self.module.launches:
            self.found.append(f"{where}: {instruction.opcode} is not a library call")
        for operand in instruction.operands:
            source = self.module[operand]
            while source.opcode == "reshape" and source.name not in self.places:
                source = self.module[source.operands[0]]
            if source.opcode in SOURCES or not source.elements:
                continue
            place = self.places.get(source.name)
            if place is None or not self._stored(source.name):
                self.found.append(f"{where}: {source.name} has no buffer")
            elif place.step >= step:
                self.found.append(f"{where}: {source.name} is read before it is computed")

    def _kernel(self, step: int, kernel: StitchedKernel) -> None:
        say = self._at(kernel.name)
        most = max((phase.blocks for phase in kernel.phases), default=0)
        if not kernel.phases or any(not phase.programs for phase in kernel.phases):
            say("there is nothing to do in a phase")
        if not 1 <= kernel.threads <= 1024:
            say(f"a block cannot have {kernel.threads} threads")
        if kernel.cooperative and not 1 <= kernel.grid <= most:
            say(f"{kernel.grid} blocks are launched for {most}")
        if not kernel.cooperative and kernel.grid != most:
            say(f"{kernel.grid} blocks are launched for {most}, and there is no second round")
        if self.shared_limit is not None and kernel.shared_bytes > self.shared_limit:
            say(f"{kernel.shared_bytes} bytes of shared memory, and {self.shared_limit} are allowed")
        for phase, programs in enumerate(kernel.phases):
            for number, program in enumerate(programs.programs):
                if program.shared_bytes > kernel.shared_bytes:
                    say(f"{program.name} needs {program.shared_bytes} bytes of shared memory")
                self._program(_Place(step, phase, number), program, kernel)

    # --- block programs ---

    def _program(self, here: _Place, program: BlockProgram, kernel: StitchedKernel) -> None:
        say = self._at(f"{kernel.name}/{program.name}")
        if program.blocks < 1:
            say("it has no blocks")
            return
        if any(each.instruction not in self.module.by_name for each in program.results):
            return
        if program.rows is not None:
            self._in_rows(say, here, program, kernel.threads)
        elif program.updates:
            self._in_place(say, here, program)
        elif program.scan:
            self._scan(say, here, program)
        elif program.tile is not None:
            self._tile(say, here, program, program.tile, kernel.threads)
        else:
            self._stages(say, here, program, kernel.threads)

    def _stages(self, say: Say, here: _Place, program: BlockProgram, threads: int) -> None:
        for result in program.results:
            if result.instruction in self.module.launches:
                say(f"{result.instruction} has a launch of its own, and is computed by nothing else")
        for stage in program.stages:
            self._stage(say, program, stage, threads)
        reads = [self._reads(say, here, program, number) for number in range(len(program.stages))]
        self._found_again(say, program, reads)
        overlaps = shared_use.overlaps(self.module, program, reads)
        for problem in (*overlaps, *shared_use.races(program, reads, threads)):
            say(problem)

    def _found_again(self, say: Say, program: BlockProgram, reads: Sequence[StageReads]) -> None:
        """What a block reads of its own program and has not in shared memory, it has written itself."""
        chunks = {each.instruction: stage.chunk for stage in program.stages for each in stage.results}
        for name in dict.fromkeys(name for read in reads for name in read.own):
            if self.results[name].shared is None and not chunk_coverage.unique(chunks[name], program.blocks):
                say(f"{name} is read from global memory, where another block writes it")

    def _in_rows(self, say: Say, here: _Place, program: BlockProgram, threads: int) -> None:
        def outside(reader: StageResult, name: str) -> bool:
            place = self.places.get(name)
            if place is None or (*place.launch, place.program) == (*here.launch, here.program):
                return False
            self._read(say, here, reader, name, False, StageReads())
            return True

        for problem in verify_rows.problems(self.module, program, threads, outside):
            say(problem)

    def _in_place(self, say: Say, here: _Place, program: BlockProgram) -> None:
        """The updates of a scatter: each applied once, to what has been stored before and nobody else reads."""
        results = list(program.results)
        name = results[0].instruction if len(program.stages) == len(results) == 1 else program.root
        if len(results) != 1 or name not in self.module.in_place:
            say(f"{name} is not a scatter in place")
            return
        (stage,) = program.stages
        updates = self.module[self.module[name].operands[2]]
        if stage.dims != updates.dims:
            say(f"{name}: its stage is not over the updates")
            return
        if problem := _shared_out(stage, stage.dims, program.blocks, "two blocks apply the same updates"):
            say(f"{name}: {problem}")
        self._homes(say, stage)
        if self.module.in_place[name] not in self.places:
            say(f"{self.module.in_place[name]}, which {name} changes in place, is never computed")
        for user in self.module.users[self.module.in_place[name]]:
            if user != name:
                say(f"{user} reads {self.module.in_place[name]}, which {name} changes in place")
        self._reads(say, here, program, 0)

    def _scan(self, say: Say, here: _Place, program: BlockProgram) -> None:
        """A loop: all of its results, each thread's part of them computed once."""
        names = tuple(each.instruction for each in program.results)
        results = next((each for each in self.module.scans.values() if set(each) & set(names)), ())
        if len(program.stages) != 1 or not results or sorted(names) != sorted(results):
            say(f"{', '.join(names)} are not the results of a loop")
            return
        (stage,) = program.stages
        loop = self.module[results[0]].attributes["loop"]
        if stage.dims != loop.axes:
            say("its stage is not over the loop's axes")
            return
        if loop.by_block and (needed := loop.shared_bytes(stage.chunk.size)) > program.shared_bytes:
            say(f"{loop.name} needs {needed} bytes of shared memory and has {program.shared_bytes}")
        if problem := _shared_out(stage, stage.dims, program.blocks, "two blocks compute the same part"):
            say(problem)
        self._homes(say, stage)
        self._reads(say, here, program, 0)

    def _tile(self, say: Say, here: _Place, program: BlockProgram, tile: TransposeTile, threads: int) -> None:
        """A transpose: all results are the same elements, each of them in one tile, and what is read through shared
        memory has room there."""
        if len(program.stages) != 1:
            say("a transpose has one stage")
            return
        (stage,) = program.stages
        for each in stage.results:
            instruction = self.module[each.instruction]
            if instruction.dims != stage.dims or instruction.elements != math.prod(tile.dims):
                say(f"{each.instruction} has other dims than its tiles")
            if instruction.opcode == "reduce" or self.module.library(instruction):
                say(f"{each.instruction} is not computed by tiles")
        self._homes(say, stage)
        if problem := _shared_out(stage, tile.dims, program.blocks, "two blocks write the same elements"):
            say(problem)
        sides = {tile.dim: 32, len(tile.dims) - 1: 32}
        if len(sides) != 2 or any(size > sides.get(at, 1) for at, size in enumerate(stage.chunk.local)):
            say("a tile is larger than 32 x 32")
        if threads % 32 or threads > 1024:
            say(f"a tile is not shared out among {threads} threads")
        needed = sum(-(-32 * 33 * BYTES[self.module[name].dtype] // 16) * 16 for name in tile.reads)
        if program.shared_bytes < needed:
            say(f"tiles need {needed} bytes of shared memory and have {program.shared_bytes}")
        self._reads(say, here, program, 0)

    def _homes(self, say: Say, stage: Stage) -> None:
        """What a launch of its own computes lies in its buffer, and nowhere else."""
        for each in stage.results:
            buffer = self.module.buffer_of(each.instruction)
            if each.homes != (Global(buffer),):
                say(f"{each.instruction} has another home than {buffer}")

    def _stage(self, say: Say, program: BlockProgram, stage: Stage, threads: int) -> None:
        reduces = 0
        for at, result in enumerate(stage.results):
            instruction = self.module[result.instruction]
            if instruction.dims != stage.dims:
                say(f"{result.instruction} has other dims than its stage")
            if instruction.opcode == "reduce":
                reduces += 1
                if reduces != at + 1:
                    say(f"the reduce {result.instruction} does not stand first in its stage")
            if result.stored is not None:
                wanted = self.module.buffer_of(result.instruction)
                if result.stored.buffer != wanted:
                    say(f"{result.instruction} goes to {result.stored.buffer}, not to {wanted}")
                problem = chunk_coverage.coverage(stage.chunk, stage.dims, program.blocks)
                if problem:
                    say(f"{result.instruction}: {problem}")
            if result.shared is not None:
                size = math.prod(stage.chunk.local) * BYTES[instruction.dtype]
                if result.shared.size_bytes < size:
                    say(f"{result.instruction} needs {size} bytes of shared memory and has {result.shared.size_bytes}")
        problem = chunk_coverage.shape(stage.chunk, stage.dims)
        if problem:
            say(f"stage of {', '.join(each.instruction for each in stage.results)}: {problem}")
        self._reduction(say, stage, reduces, threads)

    def _reduction(self, say: Say, stage: Stage, reduces: int, threads: int) -> None:
        reduction = stage.reduction
        if not reduces:
            if reduction is not None:
                say(f"{stage.results[0].instruction} is not a reduce")
            return
        if reduction is None:
            say(f"it is not said how {stage.results[0].instruction} is reduced")
            return
        members = [self.module[each.instruction] for each in stage.results[:reduces]]
        over = {(self.module[each.operands[0]].dims, tuple(each.attributes["dimensions"])) for each in members}
        if len(over) > 1:
            say(f"{' and '.join(each.name for each in members)} do not reduce the same dims")
        problem = _lanes(reduction, threads)
        if problem:
            say(f"{members[0].name}: {problem}")
        needed = _workspace_bytes(self.module, members, reduction, threads)
        has = reduction.workspace.size_bytes if reduction.workspace else 0
        if has < needed:
            say(f"{members[0].name} needs a workspace of {needed} bytes and has {has}")

    # --- reads ---

    def _reads(self, say: Say, here: _Place, program: BlockProgram, number: int) -> StageReads:
        stage = program.stages[number]
        reads = StageReads()
        for at, result in enumerate(stage.results):
            instruction = self.module[result.instruction]
            seen: set[tuple[str, bool]] = set()
            stack = [(name, instruction.elementwise) for name in reversed(instruction.operands)]
            while stack:
                name, same = stack.pop()
                source = self.module[name]
                same = same and source.dims == stage.dims
                if (name, same) in seen:
                    continue
                seen.add((name, same))
                if source.opcode == "parameter" or not source.elements:
                    continue
                place = self.places.get(name)
                if place is not None:
                    self._read(say, _Place(here.step, here.phase, here.program, number, at), result, name, same, reads)
                    continue
                if self.module.library(source) or source.opcode == "scatter":
                    say(f"{result.instruction} reads {name}, which nothing computes: {source.opcode} is not inlined")
                    continue
                stack += [(each, same and source.elementwise) for each in reversed(source.operands)]
        return reads

    def _read(self, say: Say, here: _Place, reader: StageResult, name: str, same: bool, reads: StageReads) -> None:
        """Whether a value that some place computes can be read here, and how."""
        place = self.places[name]
        said = f"{reader.instruction} reads {name}"
        if isinstance(self.plan.steps[place.step], LibraryCall):
            if place.step >= here.step:
                say(f"{said} before the library has computed it")
            return
        result = self.results[name]
        if (*place.launch, place.program) != (*here.launch, here.program):
            if result.stored is None:
                say(f"{said}, which has no buffer and is computed elsewhere")
            elif place.launch == here.launch:
                say(f"{said}, which other blocks compute in the same phase")
            elif place.launch > here.launch:
                say(f"{said} before it is computed")
            return
        if place.stage == here.stage:
            if place.at >= here.at:
                say(f"{said} before it is computed")
            elif not same:
                say(f"{said} of the same stage at another index")
            return
        if place.stage > here.stage:
            say(f"{said} before it is computed")
        elif not result.homes:
            say(f"{said}, which is only in a register of another stage")
        else:
            reads.own[name] = reads.own.get(name, True) and same
            reads.by.setdefault(name, set()).add(here.at)


def _shared_out(stage: Stage, dims: tuple[int, ...], blocks: int, twice: str) -> str:
    """Why it is not that each element of a stage is computed by one block; empty when it is."""
    problem = chunk_coverage.shape(stage.chunk, dims) or chunk_coverage.coverage(stage.chunk, dims, blocks)
    return problem or ("" if chunk_coverage.unique(stage.chunk, blocks) else twice)


def _lanes(reduction: Reduction, threads: int) -> str:
    lanes = reduction.lanes
    power = lanes >= 1 and lanes & (lanes - 1) == 0
    if lanes == 1:
        return ""
    if reduction.exchange is LaneExchange.NONE:
        return f"{lanes} lanes exchange nothing"
    if lanes > threads or threads % lanes:
        return f"{lanes} lanes in a block of {threads} threads"
    if reduction.inner and lanes != threads and not (power and lanes <= 32):
        return f"{lanes} lanes are neither a power of two up to 32 nor all threads"
    if not reduction.inner and (not power or reduction.exchange is not LaneExchange.SHARED):
        return f"a column reduce cannot have {lanes} lanes that exchange by {reduction.exchange}"
    return ""


def _workspace_bytes(module: HloModule, members: Sequence[HloInstruction], reduction: Reduction, threads: int) -> int:
    """At least this much is exchanged through shared memory: an accumulator per thread, or per warp."""
    if reduction.lanes == 1 or (reduction.exchange is LaneExchange.WARP and reduction.lanes <= 32):
        return 0
    slots = threads // 32 if reduction.exchange is LaneExchange.WARP else threads
    values = {each.values for each in members}
    return sum(slots * BYTES[module[name].dtype] for names in values for name in names)
