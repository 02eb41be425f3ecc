"""How near chunks come to their ideal on a timed link: the cpu device runs the kernels, copies take what a link would.

Emulated: kernels take what they take on the processor, so only the share of the ideal says anything: how well chunks
are issued, and nothing of a GPU. The link is as fast as the kernels, where overlap is worth most.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from fusiond.build import gxx
from fusiond.build.cache import BuildCache
from fusiond.devices.cpu.executor import CpuExecutor, CpuProgram
from fusiond.devices.cpu.link import Link
from fusiond.model import BuildFailed
from fusiond_transfer.analysis import chunks
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.analysis.script import Script, script
from fusiond_transfer.codegen import emit
from fusiond_transfer.codegen.emit import Execution
from fusiond_transfer.python import KernelGraph

LENGTHS = (1 << 20, 1 << 22, 1 << 24)
COUNTS = (2, 4, 8, 16)
LATENCY_US = 8.0
RUNS = 5


def table(
    say: Callable[[str], None], *, lengths: Sequence[int] = LENGTHS, counts: Sequence[int] = COUNTS
) -> list[dict[str, Any]]:
    """A line for each length, number of chunks, and order in which engines take what is ready; medians of RUNS."""
    found = []
    for elements in lengths:
        plan = there_and_back(elements)
        kernels_us = _loaded(plan, 1, Link(bytes_per_us=1e6, latency_us=0.0)).timed().busy_us["kernels"]
        equal = 4 * elements / max(1.0, kernels_us - LATENCY_US)
        for late in (False, True):
            link = Link(bytes_per_us=equal, latency_us=LATENCY_US, late=late)
            whole = _spans(plan, 1, link)
            for count in counts:
                cut = _spans(plan, count, link)
                # The ideal of each run is of what its own kernels took, without the chunks' latencies.
                ideals = [chunks.ideal_us(_busy(elements, run.busy_us["kernels"], link), count) for run in cut]
                shares = [ideal_us / run.span_us for ideal_us, run in zip(ideals, cut, strict=True)]
                found.append({"elements": elements, "late": late, "chunks": count,
                              "whole_us": statistics.median(each.span_us for each in whole),
                              "chunked_us": statistics.median(each.span_us for each in cut),
                              "share_of_ideal": statistics.median(shares)})  # fmt: skip
                say(f"{elements} elements, late {late}, {count} chunks: {found[-1]}")
    return found


def there_and_back(elements: int) -> Script:
    """A vector up, an element-wise kernel, a vector down."""
    graph = KernelGraph("there_and_back", elements=elements)
    graph.inputs("x")
    graph.device("work", reads=("x",), writes=("y",), body="sqrt(abs(x) + 1) * x + 1")
    graph.outputs("y")
    return script(Schedules(graph.build()).grouping("interval_stabbing"))


def _busy(elements: int, kernels_us: float, link: Link) -> dict[str, float]:
    message = link.message_us(4 * elements)
    return {"up": message, "kernels": kernels_us, "down": message}


def _spans(plan: Script, count: int, link: Link) -> list[Any]:
    loaded = _loaded(plan, count, link)
    return [loaded.timed() for _ in range(RUNS)]


def _loaded(plan: Script, count: int, link: Link) -> CpuProgram:
    made = emit.program(plan, Execution(memory="pinned", issue="overlapped", chunks=count), name="chunked")
    binaries = {}
    for source in made.sources:
        binary = gxx.build(source, cache=BuildCache())
        if isinstance(binary, BuildFailed):
            raise RuntimeError(binary.detail)
        binaries[source.name] = binary
    return CpuExecutor(link).load(made, binaries)
