"""A graph of torch.fx as the draft of a graph. torch itself is not imported.

A node is on the device where one of its operands is; `.cuda()` and `.to("cuda")` bring a value there, `.cpu()` and
`.to("cpu")` back. Placeholders and attributes come from the host, or from where their recorded value lies. Sizes and
types are those that torch.fx recorded (`meta["val"]` or `meta["tensor_meta"]`); what it did not record is asked for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from fusiond.errors import RequestError
from fusiond_transfer.frontend.graph import DEVICE, HOST
from fusiond_transfer.frontend.importing.draft import DraftGraph
from fusiond_transfer.frontend.importing.operations import Building, Operand, Value, result

Known: TypeAlias = "Value | tuple[Value, ...] | float | int | None"

_KINDS = {
    "add": "add", "iadd": "add", "sub": "sub", "isub": "sub", "mul": "mul", "imul": "mul", "div": "div",
    "truediv": "div", "itruediv": "div", "true_divide": "div", "neg": "neg", "abs": "abs", "sqrt": "sqrt",
    "maximum": "max", "minimum": "min", "square": "square", "sum": "sum", "clone": "same", "relu": "relu",
}  # fmt: skip
_SAME = ("contiguous", "detach", "view", "_unsafe_view", "reshape", "flatten", "squeeze", "unsqueeze", "pin_memory",
         "alias", "lift_fresh_copy", "expand")  # fmt: skip
"""Where the number of elements stays, the value is the operand."""
_VIEWS = (*_SAME, "select", "slice", "narrow", "transpose", "permute", "t", "as_strided", "getitem", "unbind", "chunk",
          "split", "diagonal", "movedim", "swapaxes")  # fmt: skip
"""What may share its operand's storage: to write there in place changes both."""
_CASTS = ("to", "_to_copy", "float", "half", "double", "bfloat16", "int", "long", "type")
_NOT_TENSORS = ("size", "dim", "ndimension", "numel", "shape", "dtype", "device", "ndim", "stride")


def draft(graph: Any, name: str) -> DraftGraph:
    """The graph of a torch.fx Graph, or of the GraphModule that has one (then parameters of its modules are inputs).
    RequestError for what is none."""
    module, graph = graph, getattr(graph, "graph", graph)
    if not hasattr(graph, "nodes"):
        raise RequestError(f"is a {type(graph).__name__}; expected a Graph or GraphModule of torch.fx", where=name)
    return _Importer(module, list(graph.nodes), name).draft()


class _Importer:
    """`known`: what a node has come to: a value, several of an operation with several results, a number, or None for
    what is not a tensor and was not recorded (a shape)."""

    def __init__(self, module: Any, nodes: list[Any], name: str) -> None:
        self._module, self._nodes = module, nodes
        self._building = Building(name)
        self._known: dict[Any, Known] = {}
        self._uses = Counter(each for node in nodes for each in _nodes((node.args, node.kwargs)))
        self._out = [each for node in nodes if node.op == "output" for each in _nodes(node.args)]
        self._attributes: dict[str, Value] = {}
        self._bases: dict[Any, Any] = {}
        """View -> the node whose storage it may share."""

    def draft(self) -> DraftGraph:
        for node in self._nodes:
            if node.op == "output":
                continue
            if node.op == "placeholder":
                self._known[node] = self._input(str(node.name), node)
            elif node.op == "get_attr":
                target = str(node.target)
                if target not in self._attributes:
                    self._attributes[target] = self._input(str(node.name), node)
                self._known[node] = self._attributes[target]
            elif self._uses[node] or _in_place(node):
                self._known[node] = self._operation(node)
        for each in self._out:
            for value in self._values(each):
                self._building.output(value)
        return self._building.draft(['From torch.fx: what stands behind .cuda() and .to("cuda") is on the device.'])

    def _input(self, called: str, node: Any) -> Value:
        value = getattr(node, "meta", {}).get("val")
        return self._building.input(called, *_kind(_recorded(node)), _side(value) or HOST)

    def _operation(self, node: Any) -> Known:
        called = _called(node)
        if _is_a_number(node, called, self._known):
            return _recorded(node) if _is_number(_recorded(node)) else None
        values = self._values((node.args, node.kwargs))
        side = _moved(node, called)
        if side is not None and len(values) == 1:
            value = self._building.stored(values[0])
            return replace(value, on=side)
        first = node.args[0] if node.args and _is_node(node.args[0]) else None
        found = self._known.get(first)
        if called == "getitem" and isinstance(found, tuple) and isinstance(node.args[1], int):
            return found[node.args[1]]
        on = _side(_recorded(node)) or (DEVICE if any(each.on == DEVICE for each in values) else HOST)
        made = self._computed(node, called, values, on)
        if called in _VIEWS and first is not None:
            self._bases[node] = self._bases.get(first, first)
        if _in_place(node) and first is not None and isinstance(made, Value):
            made = self._written(first, made, called, on)
        return made

    def _computed(self, node: Any, called: str, values: list[Value], on: str) -> Known:
        operands: list[Operand] = []
        for each in node.args:
            operands += self._values(each) if _is_node(each) and self._values(each) else []
            number = self._known.get(each) if _is_node(each) else each
            if isinstance(number, int | float) and not isinstance(number, bool):
                operands.append(number)
        recorded = _recorded(node)
        if _several(recorded):
            likes = [result(called, *_kind(each), on) for each in recorded]
            return self._building.unknown([*values, *self._parameters(node)], likes)
        like = result(called, *_kind(recorded), on)
        if called in _SAME and values and like.elements in (0, values[0].elements):
            return self._building.stored(values[0])
        plain = len(operands) == len(node.args) and not node.kwargs
        kind = _KINDS.get(called)
        if called == "pow" and plain and operands[1:] == [2]:
            kind, operands = "square", operands[:1]
        elif called == "sum" and not node.kwargs and list(node.args[1:]) in ([[]], [None]):  # over all dimensions
            plain = True
        if called in _CASTS and len(values) == 1:
            kind, plain, operands = "same", bool(like.dtype), list(values)
        if kind is not None and plain and _fits(kind, operands, values, like):
            shared = self._uses[node] > 1 or node in self._out or _in_place(node)
            return self._building.element_wise(kind, operands, like, shared=shared)
        return self._building.unknown([*values, *self._parameters(node)], [like])[0]

    def _written(self, first: Any, made: Value, called: str, on: str) -> Value:
        """What was written in place is from now on what its node is, and what it is a view of has changed with it."""
        base = self._bases.get(first)
        if base is None:
            self._known[first] = made
            return made
        (whole,) = self._values(base)[:1] or (made,)
        like = result(f"{called}_in_place", whole.dtype, whole.elements, on)
        self._known[base] = self._building.unknown([whole, made], [like])[0]
        self._known[first] = made
        return made

    def _parameters(self, node: Any) -> list[Value]:
        """Parameters and buffers of the module that a node calls, each an input once."""
        if node.op != "call_module" or not hasattr(self._module, "get_submodule"):
            return []
        inner = self._module.get_submodule(node.target)
        found = []
        for key, each in (*inner.named_parameters(), *inner.named_buffers()):
            target = f"{node.target}.{key}"
            if target not in self._attributes:
                kind = _kind(each)
                self._attributes[target] = self._building.input(target.replace(".", "_"), *kind, _side(each) or HOST)
            found.append(self._attributes[target])
        return found

    def _values(self, arguments: Any) -> list[Value]:
        """The vectors in a nest of arguments."""
        found: list[Value] = []
        for each in _nodes(arguments):
            known = self._known.get(each)
            found += known if isinstance(known, tuple) else [known] if isinstance(known, Value) else []
        return found


def _in_place(node: Any) -> bool:
    """`add_`, `aten.fill_.Scalar`, `operator.iadd`: writes what its first operand is stored in."""
    text = _target(node)
    parts = [each for each in text.removeprefix("aten.").split(".") if each]
    name = (parts[0] if node.op == "call_function" else parts[-1]) if parts else ""
    return (name.endswith("_") and not name.endswith("__")) or name in ("iadd", "isub", "imul", "itruediv", "setitem")


def _is_a_number(node: Any, called: str, known: Mapping[Any, Known]) -> bool:
    """Whether what comes out is not a tensor: recorded as a number, a shape, or computed from such things alone."""
    recorded = _recorded(node)
    if recorded is not None:
        return not hasattr(recorded, "shape") and not _several(recorded)
    if called == "getattr":
        return node.args[1] in _NOT_TENSORS
    inner = list(_nodes((node.args, node.kwargs)))
    computed = node.op == "call_function" and getattr(node.target, "__module__", "") in (
        "_operator",
        "math",
        "builtins",
    )
    return called in _NOT_TENSORS or (computed and bool(inner) and all(known.get(each) is None for each in inner))


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


def _target(node: Any) -> str:
    target = node.target
    return str(target if isinstance(target, str) else getattr(target, "__name__", str(target)))


def _called(node: Any) -> str:
    """`add` of <built-in function add>, `aten.add.Tensor`, "add_"."""
    parts = [each for each in _target(node).removeprefix("aten.").split(".") if each]
    return (parts[0] if node.op == "call_function" else parts[-1]).rstrip("_")


def _recorded(node: Any) -> Any:
    """What torch.fx recorded of a node's result: a tensor or its metadata, several, a number; None: nothing."""
    meta = getattr(node, "meta", {})
    return meta.get("val", meta.get("tensor_meta"))


def _several(recorded: Any) -> bool:
    """Whether tensors were recorded, and not one (whose metadata are a tuple with names, too)."""
    return isinstance(recorded, tuple | list) and any(hasattr(each, "shape") for each in recorded) and not hasattr(
        recorded, "shape")  # fmt: skip


def _kind(tensor: Any) -> tuple[str, int]:
    """Type and elements; empty and 0 where they are not known, as sizes that are symbols are not."""
    if tensor is None or not hasattr(tensor, "shape"):
        return "", 0
    shape = [each if isinstance(each, int) else 0 for each in tensor.shape]
    return str(tensor.dtype).removeprefix("torch."), 0 if 0 in shape else math.prod(shape)


def _side(tensor: Any) -> str | None:
    device = str(getattr(tensor, "device", ""))
    return DEVICE if device.startswith("cuda") else None


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
