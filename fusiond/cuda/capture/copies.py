"""The host-device copies of a captured program as a kernel graph for the strategy `transfer`.

A vector is an allocation of the device's, or a part of one (`regions`). What the host does between a download and the
uploads that come next is one kernel of the host's: it reads what came down, and writes what goes up.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusiond.cuda.capture.documents import flow, plain_name
from fusiond.cuda.capture.reads_and_writes import CapturedMemory
from fusiond.cuda.capture.trace import (
    CapturedCopy,
    CapturedEvent,
    CapturedFill,
    CapturedLaunch,
    CapturedTrace,
    CapturedWait,
    Direction,
    MemoryKind,
)
from fusiond.model.errors import RequestError

MOST_STEPS = 200  #: Copies and launches that become the graph, from the first one on
Spot = tuple[int, int]  #: (allocation, where in it): a vector


@dataclass
class _Graph:
    """What is known after some events."""

    defined: set[Spot] = field(default_factory=set)  #: Vectors that hold something
    inputs: list[Spot] = field(default_factory=list)
    placed: list[Spot] = field(default_factory=list)
    down: list[Spot] = field(default_factory=list)  #: What came down, and the host has not used yet
    up: list[Spot] = field(default_factory=list)  #: What goes up behind that
    kernels: list[dict[str, Any]] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)  #: Vectors of one byte: of kernels of the host that send nothing up

    def host(self) -> None:
        """The host's kernel, where something came down or goes up."""
        if not self.up and not self.down:
            return
        number = 1 + sum(each["on"] == "host" for each in self.kernels)
        writes = _named(self.up)
        if not writes:
            self.seen.append(f"seen_{number}")
            writes = self.seen[-1:]
        self._add(f"host_{number}", "host", _named(self.down), writes)
        self.defined.update(self.up)
        self.up, self.down = [], []

    def upload(self, vector: Spot) -> None:
        if vector in self.defined or self.down or self.up:
            self.up += [vector] if vector not in self.up else []
        else:
            self.inputs.append(vector)
            self.defined.add(vector)

    def download(self, vector: Spot) -> None:
        self._hold(vector)
        if self.up:
            self.host()
        self.down += [vector] if vector not in self.down else []

    def device(self, name: str, uses: Sequence[tuple[Spot, bool, bool]]) -> None:
        """A kernel of the device's; (vector, whether it is read, whether it is written)."""
        if self.up or any(written and vector in self.down for vector, _, written in uses):
            self.host()
        for vector, read, _ in uses:
            if read:
                self._hold(vector)
        reads = [vector for vector, _, _ in uses if vector in self.defined]
        writes = [vector for vector, _, written in uses if written]
        if writes:
            again = 1 + sum(each["name"].rpartition("_")[0] == name for each in self.kernels)
            self._add(f"{name}_{again}", "device", _named(reads), _named(writes))
            self.defined.update(writes)

    def _hold(self, vector: Spot) -> None:
        """Something was there before the first event that is known."""
        if vector not in self.defined:
            self.inputs.append(vector)
            self.placed.append(vector)
            self.defined.add(vector)

    def _add(self, name: str, on: str, reads: list[str], writes: list[str]) -> None:
        self.kernels.append({"name": name, "on": on, "reads": reads, "writes": writes})


def _named(vectors: Iterable[Spot]) -> list[str]:
    return [f"v{number}" if not low else f"v{number}_at_{low}" for number, low in dict.fromkeys(vectors)]


def graph(trace: CapturedTrace, name: str) -> str:
    """The YAML of a kernel graph. RequestError where nothing crosses."""
    found, sizes = _Graph(), dict[Spot, int]()
    steps = [each for each in trace.events if not isinstance(each, CapturedWait)]
    copied = _followed(trace, steps[:MOST_STEPS], found, sizes)
    outputs = [*_named(found.down), *found.seen]
    if not outputs or not found.kernels:
        raise RequestError("nothing comes back to the host, so there is no graph of copies", where=str(trace.file))
    vectors = {_named([each])[0]: {"elements": copied.get(each, size)} for each, size in sizes.items()}
    vectors |= {each: {"elements": 1} for each in found.seen}
    used = {each for kernel in found.kernels for key in ("reads", "writes") for each in kernel[key]}
    lines = ["# Captured: the bytes that cross, and what reads and writes them; no arithmetic."]
    lines += [f"# The first {MOST_STEPS} of {len(steps)} copies and launches."] if len(steps) > MOST_STEPS else []
    keys: dict[str, Any] = {"graph": name, "dtype": "uint8", "inputs": _kept(_named(found.inputs), used)}
    keys |= {"placed": _kept(_named(found.placed), used)} if found.placed else {}
    keys["outputs"] = _kept(outputs, used)
    lines += [f"{key}: {flow(value)}" for key, value in keys.items()]
    lines += ["vectors:", *(f"  {each}: {flow(size)}" for each, size in vectors.items() if each in used)]
    return "\n".join([*lines, "kernels:", *(f"  - {flow(each)}" for each in found.kernels), ""])


def _followed(
    trace: CapturedTrace,
    steps: Iterable[CapturedLaunch | CapturedCopy | CapturedFill],
    found: _Graph,
    sizes: dict[Spot, int],
) -> dict[Spot, int]:
    """Grow a graph by what is launched and copied: the most bytes that each vector was copied with."""
    memory, copied = CapturedMemory(trace), dict[Spot, int]()
    for event in steps:
        uses = _uses(trace, memory, event, sizes)
        if isinstance(event, CapturedLaunch):
            found.device(plain_name(event.kernel.name), uses)
        elif isinstance(event, CapturedFill):
            found.device("fill", uses)
        elif event.direction is Direction.ON_DEVICE:
            found.device("copy", uses)
        else:
            for vector, _, _ in uses:
                copied[vector] = max(copied.get(vector, 0), event.size_bytes)
                (found.upload if event.direction is Direction.TO_DEVICE else found.download)(vector)
    if found.up:
        found.host()
    return copied


def _kept(names: Iterable[str], used: set[str]) -> list[str]:
    return [each for each in names if each in used]


def _uses(
    trace: CapturedTrace, memory: CapturedMemory, event: CapturedEvent, sizes: dict[Spot, int]
) -> list[tuple[Spot, bool, bool]]:
    """The vectors of the device's that an event touches: whether it reads and writes them."""
    touched = memory.by(event) if isinstance(event, CapturedLaunch) else memory.touched(event) or ()
    merged: dict[Spot, tuple[bool, bool]] = {}
    for each in touched:
        if not isinstance(each.where, int) or trace.allocations[each.where - 1].kind is MemoryKind.PINNED:
            continue
        region = memory.region(each)
        vector = region.allocation, region.low
        sizes.setdefault(vector, region.high - region.low)
        read, written = merged.get(vector, (False, False))
        merged[vector] = read or each.read, written or each.written
    return [(vector, read, written) for vector, (read, written) in merged.items()]
