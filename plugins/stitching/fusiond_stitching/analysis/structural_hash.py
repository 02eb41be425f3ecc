"""Tells which kernels will have the same code before it is written, because layers repeat.

A key describes all that the emitter looks at: launch shape, stages, chunks, homes, and the instructions behind them
down to what lies in buffers, with numbers in place of names. Kernels with equal keys have equal code over the buffers
that correspond, but for the names of local variables; kernels with equal code may well have different keys, and lose
nothing but time.
"""

import dataclasses
from collections.abc import Container, Sequence
from dataclasses import dataclass

from fusiond_stitching.analysis.plan import Global, StageResult, StitchedKernel
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
                stages = tuple(
                    (
                        stage.chunk,
                        stage.dims,
                        stage.barrier,
                        stage.reduction,
                        stage.sweep,
                        stage.place,
                        tuple(self._result(result) for result in stage.results),
                    )
                    for stage in each.stages
                )
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

    def _result(self, result: StageResult) -> object:
        number = self._node(result.instruction)
        homes = (("global", self._buffer(each.buffer)) if isinstance(each, Global) else each for each in result.homes)
        return (number, tuple(homes))

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
            buffered = each in self.available or each in self.stored or instruction.opcode == "parameter"
            inside = each == name or not buffered
            waiting = [operand for operand in instruction.operands if operand not in self.numbers] if inside else []
            if waiting:
                stack += reversed(waiting)
                continue
            self.numbers[stack.pop()] = len(self.nodes)
            own: tuple[object, ...]
            if inside:
                operands = tuple(self.numbers[operand] for operand in instruction.operands)
                own = (instruction.opcode, operands, _attributes(instruction))
            else:
                own = (self._buffer(self.module.buffer_of(each)),)
            self.nodes.append((instruction.dtype, instruction.dims, *own))
        return self.numbers[name]


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
