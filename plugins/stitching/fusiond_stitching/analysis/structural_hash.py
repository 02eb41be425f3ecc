"""Tells which kernels will have the same code before it is written, because layers repeat.

A key describes all that the emitter looks at: launch shape, stages, chunks, homes, and the instructions behind them
down to what lies in buffers, with numbers in place of names. Kernels with equal keys have equal code over the buffers
that correspond, but for the names of local variables; kernels with equal code may well have different keys, and lose
nothing but time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Sequence
from dataclasses import dataclass

from fusiond_stitching.analysis.plan import Global, Home, Stage, StageResult, StitchedKernel
from fusiond_stitching.frontend.graph import Computation, HloInstruction, HloModule
from fusiond_stitching.frontend.scan_loop import Loop


@dataclass(frozen=True, slots=True)
class Outline:
    """`key`: equal for kernels with equal code. `buffers`: those that correspond, in equal order."""

    key: object
    buffers: tuple[str, ...]


def outline(module: HloModule, kernel: StitchedKernel, available: Container[str]) -> Outline:
    """`available`: the instructions whose values are in their buffers when the kernel begins."""
    return _Outlining(module, available).of(kernel)


class _Outlining:
    def __init__(self, module: HloModule, available: Container[str]) -> None:
        self.module = module
        self.available = available
        self.stored: set[str] = set()  #: What this kernel has put into global memory so far
        self.numbers: dict[str, int] = {}
        self.buffers: dict[str, int] = {}
        self.nodes: list[object] = []

    def of(self, kernel: StitchedKernel) -> Outline:
        phases = []
        for phase in kernel.phases:
            programs = []
            for each in phase.programs:
                self.numbers = {}  # each is a function of its own
                stages = tuple(self._stage(stage) for stage in each.stages)
                held = tuple(self._node(name) for name in each.rows.held) if each.rows else ()
                rows = dataclasses.replace(each.rows, held=()) if each.rows else None
                turned = tuple(self._node(name) for name in each.tile.reads) if each.tile else ()
                tile = (each.tile.dims, each.tile.dim, turned) if each.tile else None
                launch = (each.blocks, each.shared_bytes, each.updates, each.scan, tile)
                programs.append((*launch, stages, rows, held, tuple(self.nodes)))
                self.nodes = []
            self.stored |= {result.instruction for each in phase.programs for result in each.results if result.stored}
            phases.append(tuple(programs))
        names = tuple(self.buffers)
        rank = tuple(sorted(range(len(names)), key=lambda at: self.module.argument_order[names[at]]))
        return Outline((kernel.threads, kernel.grid, kernel.shared_bytes, tuple(phases), rank), names)

    def _stage(self, stage: Stage) -> object:
        own = tuple(self._result(each) for each in stage.results)
        return (stage.chunk, stage.dims, stage.barrier, stage.reduction, stage.sweep, stage.place, own)

    def _result(self, result: StageResult) -> object:
        number = self._node(result.instruction)
        return (number, tuple(self._home(each) for each in result.homes))

    def _home(self, home: Home) -> object:
        return ("global", self._buffer(home.buffer)) if isinstance(home, Global) else home

    def _buffer(self, name: str) -> int:
        return self.buffers.setdefault(name, len(self.buffers))

    def _node(self, name: str) -> int:
        """The number of an instruction in this program; what it is made of is written down at the first visit."""
        stack = [name]
        while stack:
            each = stack[-1]
            if each in self.numbers:
                stack.pop()
                continue
            instruction = self.module[each]
            inside = each == name or not self._read_from_buffer(each)
            waiting = [operand for operand in instruction.operands if operand not in self.numbers] if inside else []
            if waiting:
                stack += reversed(waiting)
                continue
            self.numbers[stack.pop()] = len(self.nodes)
            self.nodes.append(self._described(instruction) if inside else self._leaf(instruction))
        return self.numbers[name]

    def _read_from_buffer(self, name: str) -> bool:
        return name in self.available or name in self.stored or self.module[name].opcode == "parameter"

    def _leaf(self, instruction: HloInstruction) -> object:
        return (self._buffer(self.module.buffer_of(instruction.name)), instruction.dtype, instruction.dims)

    def _described(self, instruction: HloInstruction) -> object:
        operands = tuple(self.numbers[each] for each in instruction.operands)
        return (instruction.opcode, instruction.dtype, instruction.dims, operands, _attributes(instruction))


def _attributes(instruction: HloInstruction) -> object:
    found: list[object] = []
    for name, value in sorted(instruction.attributes.items()):
        if isinstance(value, Loop):
            found.append((name, value.key, (value.place(instruction.attributes["result"]),)))
        elif name == "result" and instruction.opcode == "scan":
            continue  # a name of the loop's own
        elif isinstance(value, Computation) and value.simple is not None:
            found.append((name, value.simple, tuple(each.dtype for each in value.parameters)))
        else:
            found.append((name, repr(value), ()))  # told apart by repr: -0.0 from 0.0, 1 from 1.0 and True
    return tuple(found)


def corresponding(first: Outline, second: Outline, names: Sequence[str]) -> tuple[str, ...]:
    """Buffers of the first kernel -> those of the second, which has the same key."""
    place = {name: at for at, name in enumerate(first.buffers)}
    return tuple(second.buffers[place[each]] for each in names)
