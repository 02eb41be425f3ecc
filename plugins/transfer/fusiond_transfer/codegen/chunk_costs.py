"""The estimated span of a chunked Program by the device's costs, and its ideal."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from fusiond.model.program import Buffer, HostCall, Launch, Memory, Pointer, Program, timeline
from fusiond_transfer.analysis import chunks
from fusiond_transfer.analysis.cells import Script
from fusiond_transfer.analysis.cost import ASSUMED_LAUNCH_US, GraphCosts
from fusiond_transfer.codegen import emit
from fusiond_transfer.codegen.buffers import Execution
from fusiond_transfer.frontend.graph import GraphKernel

MOST_OPS = 400  #: Above this many moves and calls no Program is made only to estimate it


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Of one number of chunks, by the costs: nothing here is measured on the Program."""

    count: int
    span_us: float
    whole_us: float  #: The same streams, nothing cut
    busy_us: Mapping[str, float]  #: Engine -> what its steps take together where nothing is cut

    @property
    def ideal_us(self) -> float:
        return chunks.ideal_us(self.busy_us, self.count)


def best(script: Script, costs: GraphCosts, counts: Iterable[int], execution: Execution) -> Estimate | None:
    """The number of chunks with the least span, of some that begin with 1; None where a script is too large to be
    estimated."""
    if len(script.ops) > MOST_OPS:
        return None
    found = []
    for count in counts:
        made = emit.program(script, replace(execution, chunks=count), name="cut")
        found.append((count, timeline.timeline(made, step_us(script, made, costs))))
    whole = found[0][1]
    count, fastest = min(found, key=lambda each: each[1].span_us)
    return Estimate(count=count, span_us=fastest.span_us, whole_us=whole.span_us, busy_us=whole.busy_us)


def step_us(script: Script, program: Program, costs: GraphCosts) -> dict[str, float]:
    """Each step by the costs: a chunk of a kernel is a launch, and its share of the rest."""
    buffers = {each.name: each for each in program.buffers}
    kernels = {kernel.name: kernel for kernel in script.calls}
    engine = timeline.engines(program)
    found = {}
    for step in program.steps:
        if isinstance(step, Launch | HostCall):
            name, mark, _ = step.name.partition("#")
            kernel = kernels[name]
            whole_us = costs.kernels[kernel.origin or name]
            if not mark:
                found[step.name] = whole_us
                continue
            share = _share(script, kernel, step, buffers)
            launch_us = min(ASSUMED_LAUNCH_US, whole_us) if isinstance(step, Launch) else 0.0
            found[step.name] = launch_us + (whole_us - launch_us) * share
        elif step.messages:
            up = engine(step) == timeline.UP
            host = next((buffers[name].memory for pair in step.messages for name in pair
                         if buffers[name].memory is not Memory.DEVICE), Memory.PINNED)  # fmt: skip
            found[step.name] = costs.message_us(up, host, sum(int(buffers[a].size_bytes) for a, _ in step.messages))
        else:
            found[step.name] = 0.0
    return found


def _share(script: Script, kernel: GraphKernel, step: Launch | HostCall, buffers: Mapping[str, Buffer]) -> float:
    """How much of a kernel's work a call for a chunk of it is."""
    pointers = [each.buffer for each in step.arguments if isinstance(each, Pointer)]
    names = (*kernel.read_operands, *kernel.write_operands)
    name, chunk = next((name, chunk) for name, chunk in zip(names, pointers, strict=True) if "#" in chunk)
    return int(buffers[chunk].elements) / int(script.graph.operand(name).elements)
