"""FX to an `FxGraph`. Nothing of torch is imported: nodes say all that is needed."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from fusiond.torch.graphs import DTYPES, FxGraph, FxNode, Ref, Tensor


def recorded(graph: Any) -> FxGraph:
    """A `torch.fx.Graph` whose nodes have `meta["val"]`, as AOTAutograd leaves them."""
    inputs: dict[str, Tensor | None] = {}
    nodes: list[FxNode] = []
    outputs: tuple[str, ...] = ()
    for each in graph.nodes:
        if each.op == "placeholder":
            (inputs[each.name],) = _results(each)
        elif each.op == "output":
            outputs = tuple(dict.fromkeys(_names(each.args)))
        else:
            nodes.append(_node(each))
    return FxGraph(inputs=inputs, nodes=tuple(nodes), outputs=outputs)


def _node(node: Any) -> FxNode:
    effect = ""
    if node.op == "call_function" and node.target is operator.getitem:
        name = "getitem"
    elif node.op == "call_function":
        name = str(node.target)
        effect = _effect(node.target)
    else:
        name = f"{node.op} {node.target}"
        effect = "" if node.op == "get_attr" else "mutation"
    named = {key: _argument(value) for key, value in node.kwargs.items()}
    return FxNode(
        name=node.name,
        operator=name,
        arguments=tuple(_argument(each) for each in node.args),
        named=named,
        results=_results(node),
        effect=effect,
    )


def _effect(target: Any) -> str:
    schema = getattr(target, "_schema", None)
    if schema is None:
        return "" if str(getattr(target, "__module__", "")).startswith(("_operator", "math")) else "mutation"
    if schema.is_mutable:
        return "mutation"
    return "random" if any("nondeterministic_seeded" in str(each) for each in getattr(target, "tags", ())) else ""


def _argument(value: Any) -> Any:
    if hasattr(value, "op") and hasattr(value, "meta"):
        return Ref(value.name)
    if isinstance(value, tuple | list):
        return tuple(_argument(each) for each in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value).removeprefix("torch.")


def _names(value: Any) -> Iterable[str]:
    if hasattr(value, "op") and hasattr(value, "meta"):
        yield value.name
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _names(each)


def _results(node: Any) -> tuple[Tensor | None, ...]:
    value = node.meta.get("val")
    if isinstance(value, tuple | list):
        return tuple(_tensor(each) for each in value)
    return (_tensor(value),)


def _tensor(value: Any) -> Tensor | None:
    """What a (fake) tensor says of itself; None where its shape is not fixed or its type is not known."""
    dtype = DTYPES.get(str(getattr(value, "dtype", "")).removeprefix("torch."))
    if dtype is None or str(getattr(value, "layout", "")) != "torch.strided":
        return None
    dims, strides = tuple(value.shape), tuple(value.stride())
    if not all(type(each) is int for each in (*dims, *strides)):
        return None
    return Tensor(dims, dtype, strides, str(value.device))
