"""Probes of a device: copies of some sizes, and the kernels of a graph by themselves."""

from collections.abc import Set

from fusiond.model.program import Buffer, Copy, Memory, Pointer, Prefetch, Program, Role, unsized
from fusiond.strategy import Probe
from fusiond_transfer.analysis import mapped_or_managed, memory_costs
from fusiond_transfer.analysis.cost import KINDS, MOST_KERNELS, SIZES, copy_key, kernel_key
from fusiond_transfer.codegen import body
from fusiond_transfer.frontend.graph import MANAGED, Graph, GraphKernel


def probes(graph: Graph) -> tuple[Probe, ...]:
    """Copies of some sizes, each way, in both kinds of memory; and every different kernel of the graph by itself.
    Where vectors may lie in one memory: prefetches of these sizes, and kernels with mapped operands."""
    found = [_copy(up, memory, size) for up in (True, False) for memory in KINDS for size in SIZES]
    seen = {each.key for each in found}
    code = body.code(graph)
    for kernel in graph.kernels:
        if len(found) - 4 * len(SIZES) >= MOST_KERNELS:
            break
        key = kernel_key(graph, kernel)
        if key not in seen:
            seen.add(key)
            found.append(_kernel(graph, kernel, code))
    if len(mapped_or_managed.choices(graph, MANAGED)) > 1:
        found += [_prefetch(up, size) for up in (True, False) for size in SIZES]
    found += [_kernel(graph, kernel, code, mapped, key) for kernel, mapped, key in memory_costs.variants(graph)]
    return tuple(found)


def _prefetch(up: bool, size_bytes: int) -> Probe:
    """Pages that are on the other side before what counts begins."""
    pages = Buffer(name="pages", dtype="uint8", elements=size_bytes, role=Role.INOUT, memory=Memory.MANAGED)
    steps = (
        Prefetch(name="home", buffers=("pages",), to_device=not up, counted=False),
        Prefetch(name="prefetch", buffers=("pages",), to_device=up),
    )
    name = f"prefetch {size_bytes} bytes {'up' if up else 'down'}"
    return Probe(
        key=memory_costs.prefetch_key(up, size_bytes),
        program=Program(name=name, buffers=(pages,), sources=(), steps=steps),
    )


def _copy(up: bool, memory: Memory, size_bytes: int) -> Probe:
    near = Buffer(
        name="near", dtype="uint8", elements=size_bytes, role=Role.INPUT if up else Role.OUTPUT, memory=memory
    )
    far = Buffer(name="far", dtype="uint8", elements=size_bytes, role=Role.OUTPUT if up else Role.INPUT)
    source, target = ("near", "far") if up else ("far", "near")
    return Probe(
        key=copy_key(up, memory, size_bytes),
        program=Program(
            name=f"copy {size_bytes} bytes {'up' if up else 'down'}",
            buffers=(near, far),
            sources=(),
            steps=(Copy(name="copy", source=(source,), target=(target,)),),
        ),
    )


def _kernel(
    graph: Graph, kernel: GraphKernel, code: body.Generated, mapped: Set[str] = frozenset(), key: str = ""
) -> Probe:
    """A kernel by itself, on the device with some of its operands in mapped memory."""
    entry = code.entries[kernel.name]
    source = next(each for each in code.sources if each.name == entry.source)
    memory = Memory.DEVICE if kernel.device else Memory.PAGEABLE
    buffers, arguments = [], []
    for position, name in enumerate((*kernel.read_operands, *kernel.write_operands)):
        vector = graph.operand(name)
        role = Role.INPUT if position < len(kernel.read_operands) else Role.OUTPUT
        buffers.append(
            Buffer(name=f"p{position}", dtype=vector.dtype, elements=vector.elements, role=role, fill=vector.fill,
                   memory=Memory.PINNED if name in mapped else memory)
        )  # fmt: skip
        arguments.append(Pointer(buffer=f"p{position}"))
    step = entry.call("kernel", (*arguments, *entry.scalars), device=kernel.device)
    program = unsized(Program(name=f"kernel {kernel.name}", buffers=tuple(buffers), sources=(source,), steps=(step,)))
    return Probe(key=key or kernel_key(graph, kernel), program=program)
