"""A graph of torch.fx as the draft of a graph. torch itself is not imported.

A node is on the device where one of its operands is; `.cuda()` and `.to("cuda")` bring a value there, `.cpu()` and
`.to("cpu")` back. Placeholders and attributes come from the host, or from where their recorded value lies. Sizes and
types are those that torch.fx recorded (`meta["val"]` or `meta["tensor_meta"]`); what it did not record is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from fusiond.errors import RequestError
from fusiond_transfer.frontend.graph import DEVICE, HOST
from fusiond_transfer.frontend.importing.draft import DraftGraph
from fusiond_transfer.frontend.importing.operations import Building, Operand, Value, result

_KINDS = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "div", "truediv": "div", "true_divide": "div", "neg": "neg",
    "abs": "abs", "sqrt": "sqrt", "maximum": "max", "minimum": "min", "square": "square", "sum": "sum", "clone": "same",
}  # fmt: skip
_SAME = ("contiguous", "detach", "view", "reshape", "flatten", "squeeze", "unsqueeze", "pin_memory")


def draft(graph: Any, name: str) -> DraftGraph:
    """The graph of a torch.fx Graph, or of the GraphModule that has one. RequestError for what is none."""
    graph = getattr(graph, "graph", graph)
    if not hasattr(graph, "nodes"):
        raise RequestError(f"is a {type(graph).__name__}; expected a Graph or GraphModule of torch.fx", where=name)
    building, known = Building(name), dict[Any, Value]()
    nodes = list(graph.nodes)
    uses = [each for node in nodes for each in _nodes((node.args, node.kwargs))]
    out = [each for node in nodes if node.op == "output" for each in _nodes(node.args)]
    for node in nodes:
        if node.op == "output":
            for each in out:
                building.output(known[each])
        elif node.op in ("placeholder", "get_attr"):
            value = getattr(node, "meta", {}).get("val")
            on = DEVICE if str(getattr(value, "device", "")).startswith("cuda") else HOST
            known[node] = building.input(str(node.name), *_kind(node), on)
        else:
            shared = uses.count(node) > 1 or node in out
            known[node] = _operation(building, node, known, shared=shared)
    return building.draft(['From torch.fx: what stands behind .cuda() and .to("cuda") is on the device.'])


def _operation(building: Building, node: Any, known: dict[Any, Value], *, shared: bool) -> Value:
    called = _called(node)
    operands: list[Operand] = [known[each] if _is_node(each) else each for each in node.args
                               if _is_node(each) or _is_number(each)]  # fmt: skip
    values = [each for each in operands if isinstance(each, Value)]
    side = _moved(node, called)
    if side is not None and len(values) == 1:
        value = building.stored(values[0])
        return Value(text=value.text, dtype=value.dtype, elements=value.elements, on=side, reads=value.reads)
    if called in _SAME and values:
        return building.stored(values[0])
    on = DEVICE if any(each.on == DEVICE for each in values) else HOST
    like = result(called, *_kind(node), on)
    kind = _KINDS.get(called)
    plain = len(operands) == len(node.args) and not node.kwargs
    if kind is not None and plain and _fits(kind, operands, values, like):
        return building.element_wise(kind, operands, like, shared=shared)
    everything: list[Operand] = [known[each] for each in _nodes((node.args, node.kwargs))]
    return building.unknown(everything, [like])[0]


def _fits(kind: str, operands: Sequence[Operand], values: Sequence[Value], like: Value) -> bool:
    """Whether lengths allow a formula: a sum of one vector, or element by element."""
    if kind == "sum":
        return len(operands) == 1 and like.elements == 1
    lengths = {each.elements for each in values} - {1}
    return bool(values) and lengths <= {like.elements} and 0 not in lengths


def _moved(node: Any, called: str) -> str | None:
    """The side that a node brings its operand to; None for any other node."""
    if called in ("cuda", "cpu"):
        return DEVICE if called == "cuda" else HOST
    if called in ("to", "_to_copy"):
        for each in (*node.args[1:], node.kwargs.get("device")):
            if str(each).split(":")[0] in ("cuda", "cpu") and not _is_node(each):
                return DEVICE if str(each).startswith("cuda") else HOST
    return None


def _called(node: Any) -> str:
    """`add` of <built-in function add>, `aten.add.Tensor`, "add_"."""
    text = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    parts = [each for each in str(text).removeprefix("aten.").split(".") if each]
    return (parts[0] if node.op == "call_function" else parts[-1]).rstrip("_")


def _kind(node: Any) -> tuple[str, int]:
    meta = getattr(node, "meta", {})
    tensor = meta.get("val", meta.get("tensor_meta"))
    if tensor is None or not hasattr(tensor, "shape"):
        return "", 0
    return str(tensor.dtype).removeprefix("torch."), max(1, math.prod(int(each) for each in tensor.shape))


def _is_node(value: Any) -> bool:
    return hasattr(value, "op") and hasattr(value, "target")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _nodes(value: Any) -> Iterator[Any]:
    """The nodes in a nest of arguments, in their order."""
    if _is_node(value):
        yield value
    elif isinstance(value, dict):
        yield from _nodes(tuple(value.values()))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from _nodes(each)
