"""A captured CUDA graph with addresses as the draft of a kernel graph.

Copies between the sides are not kept: which there are follows from who reads and writes what, and is what fusiond
plans. Copies on one side and memsets are kernels with formulas. No node says which of a kernel's vectors it reads and
which it writes: both are asked for, with the candidates in a comment.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence

from fusiond_transfer.frontend.graph import DEVICE, HOST
from fusiond_transfer.frontend.importing.captured import Allocation, CapturedGraph, CapturedNode
from fusiond_transfer.frontend.importing.draft import DraftGraph, DraftKernel, DraftNames, DraftVector
from fusiond_transfer.frontend.importing.vectors import StoredVector, Use, longest, part, uses

_CALLED = {"up": "up", "down": "down", "to": "made", "from": "source", "points": "buffer"}
"""What a vector is called by the first thing that happens to it."""
_MOST_LISTED = 20


def draft(captured: CapturedGraph, name: str) -> DraftGraph:
    """The graph: what comes up first is an input, what goes down an output."""
    return _Drafting(captured, name).draft()


class _Drafting:
    def __init__(self, captured: CapturedGraph, name: str) -> None:
        self._captured, self._name = captured, name
        self._uses = uses(captured)
        self._names = DraftNames()
        self._of: dict[StoredVector, list[Use]] = {}
        self._at: dict[int, list[Use]] = {}
        for use in self._uses:
            self._of.setdefault(use.vector, []).append(use)
            self._at.setdefault(use.node, []).append(use)
        self._called = {vector: self._names.of(_CALLED[found[0].way]) for vector, found in self._of.items()}
        self._allocations = sorted(captured.allocations, key=lambda each: each.start)
        self._starts = sorted(each.start for each in self._of)
        self._to_host = [
            (use, target)
            for use in self._uses
            if (target := captured.nodes[use.node].target) and target.host and use.way in ("down", "to")
        ]
        self._nodes = {number: self._node_name(number, node) for number, node in enumerate(captured.nodes)}

    def draft(self) -> DraftGraph:
        kernels = [each for number, node in enumerate(self._captured.nodes) for each in self._kernels(number, node)]
        return DraftGraph(
            name=self._name,
            vectors=tuple(self._vector(vector) for vector in self._of),
            kernels=tuple(kernels),
            inputs=tuple(self._called[each] for each in self._of if self._comes_in(each)),
            outputs=tuple(
                self._called[each] for each, found in self._of.items() if any(use.way == "down" for use in found)
            ),
            notes=tuple(self._notes()),
        )

    # --- vectors ----------------------------------------------------------------------------------------

    def _comes_in(self, vector: StoredVector) -> bool:
        """Whether it begins with an upload of what the graph did not bring to the host itself, or is read there."""
        first = self._of[vector][0]
        if first.way == "from" and self._captured.nodes[first.node].kind == "MEMCPY":
            source = self._captured.nodes[first.node].source
            return source is not None and source.host
        return first.way == "up" and self._came(first) is None

    def _came(self, upload: Use) -> str | None:
        """The vector that the graph brought, before an upload, to the host's memory that it is from."""
        source = self._captured.nodes[upload.node].source
        if source is None:
            return None
        for use, region in reversed(self._to_host):
            if use.node < upload.node and region.start < source.end and source.start < region.end:
                return self._called[use.vector]
        return None

    def _vector(self, vector: StoredVector) -> DraftVector:
        lies = self._allocation(vector.start)
        size, known = longest(vector, self._starts, lies)
        found = self._of[vector]
        said = [f"0x{vector.start:x}", known, _memory(lies)]
        said += [f"{use.way} {part(use)}" for use in found if use.way in ("up", "down") and part(use)]
        if found[0].way == "up" and (before := self._came(found[0])) is not None:
            said.append(f"made on the host, where {before} came")
        elif found[0].way == "points":
            said.append("nothing comes up: a `placed` input, or written first")
        return DraftVector(
            name=self._called[vector], dtype="uint8", elements=size, note=", ".join(each for each in said if each)
        )

    def _allocation(self, address: int) -> Allocation | None:
        at = bisect.bisect_right(self._allocations, address, key=lambda each: each.start) - 1
        return self._allocations[at] if at >= 0 and address < self._allocations[at].end else None

    # --- nodes ------------------------------------------------------------------------------------------

    def _node_name(self, number: int, node: CapturedNode) -> str:
        if node.kind == "MEMCPY":
            if node.source is None or node.target is None:
                return self._names.of("copy_of_an_array")
            if node.source.host != node.target.host:
                (use,) = self._at[number]
                return f"the copy of {self._called[use.vector]}"
            return self._names.of("copy_on_host" if node.source.host else "copy_on_device")
        return self._names.of(node.name or node.kind.lower())

    def _kernels(self, number: int, node: CapturedNode) -> Iterator[DraftKernel]:
        name, waits = self._nodes[number], self._waits(node)
        if node.kind == "KERNEL":
            shape = ", ".join(str(each) for each in (_dimensions(node.grid), _dimensions(node.block)))
            shared = f", {node.shared_bytes}" if node.shared_bytes else ""
            said = [f"<<<{shape}{shared}>>>", self._candidates(number, node), waits]
            yield DraftKernel(name=name, on=DEVICE, note="; ".join(each for each in said if each))
        elif node.kind == "HOST":
            said = [self._of_host(number), waits]
            yield DraftKernel(name=name, on=HOST, note="; ".join(each for each in said if each))
        elif node.kind == "MEMSET":
            (use,) = self._at[number]
            body = None if node.value is None or _gaps(node) else (str(node.value),)
            yield DraftKernel(
                name=name, on=DEVICE, reads=(), writes=(self._operand(use),), body=body, note=_rows(node, waits)
            )
        elif node.kind == "MEMCPY" and node.source and node.target and node.source.host == node.target.host:
            read, written = self._at[number]
            body = None if read.vector is written.vector or _gaps(node) else (self._called[read.vector],)
            yield DraftKernel(
                name=name, on=HOST if node.source.host else DEVICE, reads=(self._operand(read),),
                writes=(self._operand(written),), body=body, note=_rows(node, waits),
            )  # fmt: skip

    def _operand(self, use: Use) -> str:
        return f"{self._called[use.vector]}{part(use)}"

    def _candidates(self, number: int, node: CapturedNode) -> str:
        """What a kernel's arguments point to; those that nothing has written before are what it may write."""
        if node.pointers is None:
            return "which vectors it gets this driver does not say (CUDA 12.4 does)"
        found = self._at.get(number, [])
        if not found:
            return "points to nothing"
        said = [
            self._operand(use) + (" (used first here)" if self._of[use.vector][0] is use else "")
            for use in found[:_MOST_LISTED]
        ]
        return f"points to {', '.join(said)}{' ...' if len(found) > _MOST_LISTED else ''}"

    def _of_host(self, number: int) -> str:
        """What a host function may read and write: what came down before it, and what goes up behind it."""
        ahead, behind = self._reached(number)
        reads = [self._operand(use) for use in self._uses if use.way == "down" and use.node in ahead]
        writes = [self._operand(use) for use in self._uses if use.way == "up" and use.node in behind]
        said = [f"may {word} {', '.join(dict.fromkeys(names))}" for word, names in (("read", reads), ("write", writes))
                if names]  # fmt: skip
        return ", ".join(said)

    def _reached(self, number: int) -> tuple[set[int], set[int]]:
        """The nodes that a node waits for, and those that wait for it, directly or not."""
        ahead, behind = {number}, {number}
        for each in range(number, -1, -1):
            if each in ahead:
                ahead.update(self._captured.nodes[each].before)
        for each in range(number + 1, len(self._captured.nodes)):
            if not behind.isdisjoint(self._captured.nodes[each].before):
                behind.add(each)
        return ahead - {number}, behind - {number}

    def _waits(self, node: CapturedNode) -> str:
        names = dict.fromkeys(self._nodes[each] for each in node.before)
        return f"behind {', '.join(names)}" if names else ""

    # --- the head ---------------------------------------------------------------------------------------

    def _notes(self) -> Iterator[str]:
        yield "From a CUDA graph. Vectors are bytes, and parts of them count bytes: give them their type, and fewer"
        yield "elements. No node says what a kernel reads and what it writes: sort what its arguments point to."
        yield "A vector that is written again keeps its name."
        taken = ("KERNEL", "HOST", "MEMSET", "MEMCPY", "MEM_ALLOC", "MEM_FREE")
        others = [
            f"{self._nodes[number]} ({node.kind.lower()})"
            for number, node in enumerate(self._captured.nodes)
            if node.kind not in taken or (node.kind == "MEMCPY" and (node.source is None or node.target is None))
        ]
        if others:
            yield f"Not taken over: {', '.join(others[:_MOST_LISTED])}{' ...' if len(others) > _MOST_LISTED else ''}"
        if any(node.kind == "KERNEL" and not node.name for node in self._captured.nodes):
            yield "This driver does not name kernels (CUDA 12.3 does)."
        devices = sorted({each.device for each in self._captured.allocations if not each.host})
        if len(devices) > 1:
            said = ", ".join(map(str, devices))
            yield f"Memory of several devices is used ({said}): its kernels are drafted on one."


def _memory(lies: Allocation | None) -> str:
    """What to know of the memory that a vector lies in."""
    if lies is None:
        return ""
    if lies.managed:
        return "managed memory"
    if lies.host:
        return "pinned memory of the host (`memory: mapped`)"
    return f"on device {lies.device}" if lies.device else ""


def _dimensions(shape: Sequence[int]) -> str:
    """`{16,10,4}`, as the driver prints it; `16` where the others are 1."""
    return str(shape[0]) if set(shape[1:]) == {1} else "{" + ",".join(map(str, shape)) + "}"


def _gaps(node: CapturedNode) -> bool:
    return any(each is not None and not each.dense for each in (node.source, node.target))


def _rows(node: CapturedNode, waits: str) -> str:
    return "; ".join(each for each in (f"{node.bytes} bytes in rows" if _gaps(node) else "", waits) if each)
