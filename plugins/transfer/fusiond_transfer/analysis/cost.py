"""The cost of a message, a kernel and a schedule on the device at hand.

A message of n bytes takes startup + n / bandwidth (Kessler, section 2), other constants for each direction, kind of
memory and range of sizes: so it is measured at a few sizes (probes of one copy each), and interpolated between them.
Kernels are probed by themselves. Where nothing has been measured the constants of ASSUMED stand in, and whoever uses
them says "not measured".
"""

import bisect
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fusiond.model.keys import content_key
from fusiond.model.program import Memory
from fusiond.strategy import Answers
from fusiond_transfer.analysis.schedule import Message, Schedule
from fusiond_transfer.frontend.graph import Body, Formula, Graph, GraphKernel

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)  #: Bytes of the copies that are measured
KINDS = (Memory.PAGEABLE, Memory.PINNED)
MOST_KERNELS = 32  #: Different kernels of a graph that are measured; the others are assumed

ASSUMED_STARTUP_US = {Memory.PAGEABLE: 12.0, Memory.PINNED: 8.0}
ASSUMED_BYTES_PER_US = {Memory.PAGEABLE: 6_000.0, Memory.PINNED: 12_000.0}
"""A PCIe 3.0 card of sixteen lanes, roughly; the paper quotes 5 to 10 us for short messages."""
ASSUMED_LAUNCH_US = 5.0
ASSUMED_DEVICE_BYTES_PER_US = 300_000.0
ASSUMED_HOST_BYTES_PER_US = 5_000.0


Points: TypeAlias = "tuple[tuple[int, float], ...]"  #: (bytes, us) in ascending order; two at least


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCosts:
    """Microseconds of messages and kernels."""

    messages: Mapping[tuple[bool, Memory], Points]  #: By (up, memory)
    kernels: Mapping[str, float]  #: Kernel name -> us
    missing: int  #: How many of the probes have not been answered
    wanted: int = 0
    name: str = ""  #: Of the answers that say so
    mapped: frozenset[str] = frozenset()  #: What lies in one memory for both sides (`memory_costs`)
    managed: frozenset[str] = frozenset()
    prefetches: Mapping[bool, Points] = field(default_factory=dict)  #: up -> of a prefetch, where something is managed

    def message_us(self, up: bool, memory: Memory, size_bytes: int) -> float:
        """A message: interpolated between what was measured, extended beyond both ends."""
        return interpolated_us(self.messages[up, memory], size_bytes)

    def startup_us(self, up: bool, memory: Memory) -> float:
        """What the smallest measured message costs beyond its bytes."""
        return self.message_us(up, memory, 0)


# --- what was measured, by the keys of its probes --------------------------------------------------------


def copy_key(up: bool, memory: Memory, size_bytes: int) -> str:
    return f"transfer: {'up' if up else 'down'} {memory.value} {size_bytes} bytes"


def kernel_key(graph: Graph, kernel: GraphKernel) -> str:
    """Equal kernels on equal data have one key: what they compute and their operands, without names."""
    passed = (*kernel.read_operands, *kernel.write_operands)
    vectors = [graph.operand(name) for name in passed]
    operands = tuple((each.dtype, int(each.elements), each.fill) for each in vectors)
    renamed = {name: f"p{position}" for position, name in enumerate(passed)}
    names = tuple(sorted(renamed.items())) if isinstance(kernel.body, Formula) else ()
    return _key(kernel.on, kernel.body, operands, names, len(kernel.read_operands))


@functools.lru_cache(maxsize=4096)
def _key(on: str, body: Body, operands: tuple[object, ...], names: tuple[object, ...], reads: int) -> str:
    """A graph of ten thousand kernels has few different ones."""
    key = content_key([on, type(body).__name__, body, operands, names, reads])[:24]
    return f"transfer: kernel {key}"


def measured_points(key: Callable[[int], str], answers: Answers) -> Points:
    """(bytes, us) of the sizes that were measured, in ascending order; `key`: bytes -> the probe's."""
    asked = ((size, answers.get(key(size))) for size in SIZES)
    return tuple((size, float(time_us)) for size, time_us in asked if isinstance(time_us, float | int))


def interpolated_us(points: Points, size_bytes: int) -> float:
    """Between two points (bytes, us), and beyond both ends along the nearest line, but never below 0."""
    right = min(max(bisect.bisect_left(points, size_bytes, key=lambda each: each[0]), 1), len(points) - 1)
    (size, time_us), (other_size, other_us) = points[right - 1], points[right]
    return max(0.0, time_us + (other_us - time_us) / (other_size - size) * (size_bytes - size))


def costs(graph: Graph, answers: Answers) -> GraphCosts:
    """What is known of this device; ASSUMED where it is not."""
    missing = wanted = 0
    messages: dict[tuple[bool, Memory], Points] = {}
    for up, memory in itertools.product((True, False), KINDS):
        points = measured_points(functools.partial(copy_key, up, memory), answers)
        wanted += len(SIZES)
        missing += len(SIZES) - len(points)
        if len(points) < 2:
            startup, speed = ASSUMED_STARTUP_US[memory], ASSUMED_BYTES_PER_US[memory]
            points = tuple((size, startup + size / speed) for size in SIZES)
        messages[up, memory] = points
    kernels: dict[str, float] = {}
    keys: dict[str, float | None] = {}
    for kernel in graph.kernels:
        key = kernel_key(graph, kernel)
        if key not in keys:
            time_us = answers.get(key)
            keys[key] = float(time_us) if isinstance(time_us, float | int) else None
            if len(keys) <= MOST_KERNELS:
                wanted += 1
                missing += keys[key] is None
        measured = keys[key]
        if measured is None:
            size = sum(graph.vector(name).size_bytes for name in (*kernel.reads, *kernel.writes))
            on_device = ASSUMED_LAUNCH_US + size / ASSUMED_DEVICE_BYTES_PER_US
            measured = on_device if kernel.device else size / ASSUMED_HOST_BYTES_PER_US
        kernels[kernel.name] = measured
    return GraphCosts(messages=messages, kernels=kernels, missing=missing, wanted=wanted)


# --- a schedule's time ----------------------------------------------------------------------------------


def estimate_us(schedule: Schedule, costs: GraphCosts, *, memory: Memory, overlapped: bool) -> float:
    """The time of a schedule (of one iteration, in a loop), by the costs. One stream: the sum. Overlapped: uploads,
    downloads and kernels each have an engine, host work and copies of pageable memory hold up whoever issues. Of what
    lies in one memory nothing is copied: a message is what is left of it, and a prefetch of what is managed."""
    graph = schedule.graph
    before: _Messages = {}
    behind: _Messages = {}
    total = sum(costs.kernels[kernel.name] for kernel in graph.kernels)
    for message in schedule.messages:
        vectors = tuple(name for name in message.vectors if name not in costs.mapped)
        if vectors:
            time_us = _message_us(graph, message, vectors, costs, memory)
            total += time_us
            (before if message.up else behind).setdefault(message.slot, []).append((vectors, time_us))
    return _overlapped_us(graph, costs, before, behind, blocks=memory is Memory.PAGEABLE) if overlapped else total


_Messages: TypeAlias = "dict[int, list[tuple[tuple[str, ...], float]]]"  #: Slot -> (vectors, us) of its messages


def _message_us(graph: Graph, message: Message, vectors: Sequence[str], costs: GraphCosts, memory: Memory) -> float:
    """What is left of a message: the copy of these vectors, but for a prefetch of those that are managed."""
    sizes = {name: graph.vector(name).size_bytes for name in vectors}
    pages = sum(size for name, size in sizes.items() if name in costs.managed)
    copied = [size for name, size in sizes.items() if name not in costs.managed]
    time_us = interpolated_us(costs.prefetches[message.up], pages) if pages else 0.0
    if copied:
        filler = sum(graph.members[cell][0].size_bytes for cell in message.filler)
        time_us += costs.message_us(message.up, memory, sum(copied) + filler)
    return time_us


def _overlapped_us(graph: Graph, costs: GraphCosts, before: _Messages, behind: _Messages, *, blocks: bool) -> float:
    at_host: dict[str, float] = {}
    at_device: dict[str, float] = {}
    issuing = uploads = downloads = kernels = 0.0
    for k in range(-1, len(graph.kernels)):
        for vectors, time_us in before.get(k, ()):
            uploads = max(issuing, uploads, *(at_host.get(name, 0.0) for name in vectors)) + time_us
            at_device.update(dict.fromkeys(vectors, uploads))
            issuing = uploads if blocks else issuing
        if k >= 0:
            kernel = graph.kernels[k]
            ready = at_device if kernel.device else at_host
            begin = max([issuing, kernels if kernel.device else 0.0, *(ready.get(name, 0.0) for name in kernel.reads)])
            end = begin + costs.kernels[kernel.name]
            if kernel.device:
                kernels = end
            else:
                issuing = end
            ready.update(dict.fromkeys(kernel.writes, end))
            for name in costs.mapped.intersection(kernel.writes):  # mapped: both sides see it
                at_host[name] = at_device[name] = end
        for vectors, time_us in behind.get(k, ()):
            downloads = max(issuing, downloads, *(at_device.get(name, 0.0) for name in vectors)) + time_us
            at_host.update(dict.fromkeys(vectors, downloads))
            issuing = downloads if blocks else issuing
    return max(issuing, uploads, downloads, kernels)
