"""A captured CUDA graph, from what the driver prints of it: `cuGraphDebugDotPrint(graph, path, flags)`, with
CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE for the sizes of copies (`cudaGraphDebugDotPrint`, torch's `debug_dump` and CuPy's
`debug_dot_str` print the same).

    dot    :=  ... node | edge ...          in one `subgraph` for each graph
    node   :=  "graph_G_node_N" [ ... label="..." ... ]
    edge   :=  "graph_G_node_N" -> "graph_G_node_N"

The first word of a label is the node's type: KERNEL, MEMCPY, MEMSET, HOST, EMPTY, MEM_ALLOC, MEM_FREE, EVENT_... .
A label of shape "record" is nested fields in braces, with `|` between them: a group of names beside a group of values
in the same order. Of a copy the direction is one of HtoD, DtoH, DtoD, HtoH; its size is Width x Height x Depth, or a
number behind the direction. What a release prints otherwise is asked for.

The driver prints no parameters of kernels: what they read and write is asked for.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fusiond.errors import RequestError
from fusiond_transfer.frontend.graph import DEVICE, HOST
from fusiond_transfer.frontend.importing.draft import DraftGraph, DraftKernel, DraftNames, DraftVector
from fusiond_transfer.frontend.importing.order import topological

MOST_NODES = 20_000
_STRING = r'"((?:[^"\\]|\\.)*)"'
_ID = re.compile(_STRING, re.DOTALL)
_STATEMENT = re.compile(rf"{_STRING}\s*(?:->\s*{_STRING}|\[((?:{_STRING}|[^\]\"])*)\])", re.DOTALL)
_LABEL = re.compile(rf"\blabel\s*=\s*{_STRING}", re.DOTALL)
_TYPE = re.compile(r"\b(KERNEL|MEMCPY|MEMSET|HOST|EMPTY|GRAPH|CONDITIONAL|MEM_ALLOC|MEM_FREE|EVENT_RECORD|WAIT_EVENT"
                   r"|EVENT_WAIT|EXT_SEMAS_SIGNAL|EXT_SEMAS_WAIT|BATCH_MEM_OP)\b")  # fmt: skip
_WAY = re.compile(r"\b([HD]to[HD])\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class DotNode:
    """One node; `kind` as the driver calls its type, `name` of a kernel, `way` and `bytes` of a copy (0: not said)."""

    id: str
    kind: str
    name: str = ""
    way: str = ""
    bytes: int = 0
    grid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """The nodes, each behind those that it waits for; `before`: node -> those."""

    nodes: tuple[DotNode, ...]
    before: Mapping[str, tuple[str, ...]]


def read(text: str, path: str) -> Captured:
    """The graph in a text of the driver's. RequestError for what is none."""
    if not re.match(r"\s*digraph\b", text):
        raise RequestError("was not printed by cuGraphDebugDotPrint: such a file begins with `digraph`", where=path)
    nodes: dict[str, DotNode] = {}
    edges: list[tuple[str, str]] = []
    for match in _STATEMENT.finditer(text):
        one, other, attributes = match.group(1), match.group(2), match.group(3)
        if other is not None:
            edges.append((one, other))
        elif (label := _LABEL.search(attributes or "")) is not None:
            nodes[one] = _node(one, label.group(1))
    if not nodes:
        raise RequestError("has no node", where=path)
    if len(nodes) > MOST_NODES:
        raise RequestError(f"{len(nodes)} nodes are in it; there may be {MOST_NODES}", where=path)
    for one, other in edges:
        for each in (one, other):
            if each not in nodes:
                raise RequestError(f"an edge names {each[:80]!r}, which is not a node", where=path)
    before: dict[str, list[str]] = {each: [] for each in nodes}
    for one, other in edges:
        before[other].append(one)
    order = topological(list(nodes), edges)
    if order is None:
        raise RequestError("its nodes form a cycle", where=path)
    return Captured(
        nodes=tuple(nodes[each] for each in order), before={each: tuple(found) for each, found in before.items()}
    )


def _node(name: str, label: str) -> DotNode:
    plain = label.replace("\\n", "\n").replace("\\l", "\n").replace("\\r", "\n")
    kind = _TYPE.search(plain)
    if "<<<" in plain.replace("\\", "") or (kind is not None and kind.group(1) == "KERNEL"):
        return _kernel(name, plain)
    if kind is None:
        return DotNode(id=name, kind=" ".join(plain.split())[:40] or "unknown")
    if kind.group(1) == "MEMCPY":
        way = _WAY.search(plain)
        return DotNode(id=name, kind="MEMCPY", way=way.group(1) if way else "", bytes=_bytes(plain))
    return DotNode(id=name, kind=kind.group(1))


def _kernel(name: str, plain: str) -> DotNode:
    """The kernel's name stands ahead of its launch: `scan\\<\\<\\<4,128,0\\>\\>\\>`."""
    text = re.sub(r"\\(.)", r"\1", plain)
    launch = re.search(r"([\w$:~.]+(?:<(?!<<)[^|\n]*?>)?(?:\([^|\n]*?\))?)\s*<<<([^|\n]*?)>>>", text)
    if launch is not None:
        return DotNode(id=name, kind="KERNEL", name=launch.group(1), grid=launch.group(2).strip())
    words = [each for each in re.findall(r"[A-Za-z_][\w$:]*", text) if each not in ("KERNEL", "ID", "node", "topoId")]
    return DotNode(id=name, kind="KERNEL", name=words[0] if words else "")


def _bytes(label: str) -> int:
    """Of a copy: the product of Width, Height and Depth, or the number behind the direction; 0 where neither is."""
    found = _pairs(_record(label)) if "{" in label else {}
    extent = [found[key] for key in ("width", "height", "depth") if key in found and found[key].isdigit()]
    if "width" in found and extent:
        size = 1
        for each in extent:
            size *= max(int(each), 1)
        return size
    behind = re.search(r"[HD]to[HD]\s*,\s*(\d+)", label)
    return int(behind.group(1)) if behind else 0


Field: TypeAlias = "str | list[Field]"


def _record(label: str) -> list[Field]:
    """The nested fields of a record: `{a | {b | c}}`."""
    stack: list[list[Field]] = [[]]
    for token in re.findall(r"\\.|[{}|]|[^{}|\\]+", label):
        if token == "{":
            stack.append([])
        elif token == "}" and len(stack) > 1:
            done = stack.pop()
            stack[-1].append(done)
        elif token not in ("|", "}") and token.strip():
            stack[-1].append(token.strip())
    while len(stack) > 1:
        done = stack.pop()
        stack[-1].append(done)
    return stack[0]


def _pairs(fields: list[Field]) -> dict[str, str]:
    """Name -> value: of two groups of one length side by side, of a name beside a value."""
    found: dict[str, str] = {}
    for one, other in itertools.pairwise(fields):
        if isinstance(one, str) and isinstance(other, str):
            found.setdefault(one.lower(), other)
        elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            for name, value in zip(one, other, strict=True):
                if isinstance(name, str) and isinstance(value, str) and not (name.isdigit() or value.isalpha()):
                    found.setdefault(name.lower(), value)
    for each in fields:
        if isinstance(each, list):
            found |= {name: value for name, value in _pairs(each).items() if name not in found}
    return found


# --- as a graph -----------------------------------------------------------------------------------------


def draft(captured: Captured, name: str) -> DraftGraph:
    """Copies up are inputs, copies down outputs; kernels and host functions ask for what they read and write."""
    names = DraftNames()
    said = {node.id: names.of(_called(node)) for node in captured.nodes}
    vectors: list[DraftVector] = []
    kernels: list[DraftKernel] = []
    inputs: list[str] = []
    outputs: list[str] = []
    others: list[str] = []
    for node in captured.nodes:
        behind = ", ".join(said[each] for each in captured.before[node.id])
        waits = f"behind {behind}" if behind else ""
        if node.kind in ("KERNEL", "HOST", "MEMSET") or node.way in ("DtoD", "HtoH"):
            on = HOST if node.kind == "HOST" or node.way == "HtoH" else DEVICE
            note = ", ".join(each for each in (node.grid and f"<<<{node.grid}>>>", waits) if each)
            kernels.append(DraftKernel(name=said[node.id], on=on, note=note))
        elif node.way:
            (inputs if node.way == "HtoD" else outputs).append(said[node.id])
            vectors.append(DraftVector(name=said[node.id], dtype="uint8", elements=node.bytes, note=waits))
        else:
            others.append(f"{said[node.id]} ({node.kind.lower()})")
    notes = ["Vectors are bytes: give them their type, and fewer elements. A vector that only kernels of the device",
             "touch stands in no copy: name it where it is written and read."]  # fmt: skip
    if others:
        notes.append(f"Not taken over: {', '.join(others[:20])}{' ...' if len(others) > 20 else ''}")
    return DraftGraph(
        name=name,
        vectors=tuple(vectors),
        kernels=tuple(kernels),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        notes=tuple(notes),
    )


def _called(node: DotNode) -> str:
    if node.kind == "MEMCPY":
        return {"HtoD": "up", "DtoH": "down", "DtoD": "copy_on_device", "HtoH": "copy_on_host"}.get(node.way, "copy")
    return node.name or node.kind.lower()
