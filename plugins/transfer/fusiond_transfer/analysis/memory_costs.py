"""The cost of vectors in one memory for both sides (`mapped_or_managed`).

A prefetch costs as a message does. A kernel whose operands are mapped takes another time, which depends on how it uses
them: so each is measured with just those operands mapped that a choice maps. One that is measured by itself finds its
managed operands where it wants them, as behind a prefetch; where pages go back and forth (`managed: all`), the
prefetches of both ways are all that this counts.
"""

import functools
from collections.abc import Iterator
from dataclasses import replace

from fusiond.model.program import Memory
from fusiond.strategy import Answers
from fusiond_transfer.analysis import cost, mapped_or_managed
from fusiond_transfer.analysis.cost import GraphCosts, Points
from fusiond_transfer.frontend.graph import MANAGED, MAPPED, Graph, GraphKernel

MOST_VARIANTS = 16  #: Different kernels with mapped operands that are measured; the others are assumed


def prefetch_key(up: bool, size_bytes: int) -> str:
    return f"transfer: prefetch {'up' if up else 'down'} {size_bytes} bytes"


def mapped_key(graph: Graph, kernel: GraphKernel, mapped: frozenset[str]) -> str:
    """Of the kernel as it is, and the positions of its operands that are mapped."""
    passed = (*kernel.read_operands, *kernel.write_operands)
    positions = [str(position) for position, name in enumerate(passed) if name in mapped]
    return f"{cost.kernel_key(graph, kernel)} mapped {' '.join(positions)}"


def variants(graph: Graph) -> Iterator[tuple[GraphKernel, frozenset[str], str]]:
    """(kernel, what is mapped of its operands, key) of what there is to measure, each once."""
    seen: set[str] = set()
    for mapped in mapped_or_managed.choices(graph, MAPPED).values():
        for kernel in graph.kernels:
            own = mapped & {*kernel.reads, *kernel.writes}
            if not kernel.device or not own or len(seen) >= MOST_VARIANTS:
                continue
            key = mapped_key(graph, kernel, own)
            if key not in seen:
                seen.add(key)
                yield kernel, own, key


def shared(graph: Graph, costs: GraphCosts, answers: Answers, *, mapped: str, managed: str) -> GraphCosts:
    """The costs with these choices; the same where they leave everything copied."""
    mapped_there = mapped_or_managed.choices(graph, MAPPED)[mapped]
    managed_there = mapped_or_managed.choices(graph, MANAGED)[managed]
    if not mapped_there and not managed_there:
        return costs
    kernels = dict(costs.kernels)
    wanted, missing = costs.wanted, costs.missing
    for kernel in graph.kernels:
        own = mapped_there & {*kernel.reads, *kernel.writes}
        if not kernel.device or not own:
            continue
        time_us = answers.get(mapped_key(graph, kernel, own))
        wanted += 1
        if isinstance(time_us, float | int):
            kernels[kernel.name] = float(time_us)
        else:
            missing += 1
            kernels[kernel.name] += _over_the_link_us(graph, kernel, own, costs)
    prefetches: dict[bool, Points] = {}
    for up in (True, False) if managed_there else ():
        points = cost.measured_points(functools.partial(prefetch_key, up), answers)
        wanted += len(cost.SIZES)
        missing += len(cost.SIZES) - len(points)
        prefetches[up] = points if len(points) > 1 else costs.messages[up, Memory.PINNED]
    return replace(
        costs, mapped=mapped_there, managed=managed_there, kernels=kernels, prefetches=prefetches, wanted=wanted,
        missing=missing,
    )  # fmt: skip


def _over_the_link_us(graph: Graph, kernel: GraphKernel, mapped: frozenset[str], costs: GraphCosts) -> float:
    """Each byte of these operands once, without a startup: loads and stores need no message."""

    def bytes_us(name: str, up: bool) -> float:
        startup = costs.startup_us(up, Memory.PINNED)
        return costs.message_us(up, Memory.PINNED, int(graph.vector(name).size_bytes)) - startup

    read = sum(bytes_us(name, True) for name in kernel.reads if name in mapped)
    return read + sum(bytes_us(name, False) for name in kernel.writes if name in mapped)
