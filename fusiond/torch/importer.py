"""Nodes of a `Graph` as an HLO module: parameters in the order of the inputs, results in that of the outputs.

A tensor whose dimensions lie in another order in memory is a parameter (a result) in that order, with a transpose
behind (before) it: the launcher passes the memory as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusiond.torch.graphs import FxNode, Tensor
from fusiond.torch.instructions import HloValue, HloWriter
from fusiond.torch.operators import TABLE, OperatorCall, Unsupported
from fusiond.torch.operators.table import Written

LARGEST = 2**31 - 1
"""Elements of a tensor, of which one can be counted in 32 bits."""


def text(name: str, nodes: Sequence[FxNode], inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> str:
    """The module of nodes in topological order. Unsupported where one cannot be written; KeyError never: what a node
    reads is an input or another node."""
    writer = HloWriter()
    values: dict[str, Written] = {}
    for given, tensor in inputs.items():
        stored = writer.parameter(tensor.dtype, [tensor.dims[each] for each in tensor.order])
        values[given] = writer.transpose(stored, _inverse(tensor.order))
    for node in nodes:
        values[node.name] = _written(writer, node, values)
    results = []
    shapes = {each.name: each.results[0] for each in nodes}
    for output in outputs:
        value, shape = values[output], shapes[output]
        if not isinstance(value, HloValue) or shape is None:
            raise Unsupported(f"{output} is not a tensor")
        results.append(writer.transpose(value, shape.order))
    return writer.module(name, results)


def _written(writer: HloWriter, node: FxNode, values: Mapping[str, Written]) -> Written:
    call = OperatorCall(writer, node, values)
    if node.operator == "getitem":
        several = values[node.reads[0]]
        index = node.arguments[1]
        if not isinstance(several, tuple) or not isinstance(index, int):
            raise Unsupported("it picks from what is not a tuple")
        return several[index]
    if node.operator in TABLE:
        found = TABLE[node.operator](call)
    elif node.decomposed is not None:
        inner = dict(zip(node.decomposed.inputs, (values[each] for each in node.reads), strict=True))
        for part in node.decomposed.nodes:
            inner[part.name] = _written(writer, part, inner)
        found = OperatorCall(writer, FxNode(name="", operator="", arguments=(node.gives,), results=()), inner).argument(
            0
        )
    else:
        raise Unsupported(f"{node.operator} is not known")
    for place, each in enumerate(found if isinstance(found, tuple) else (found,)):
        if each is not None and (each.dims, each.dtype) != (call.result_of(place).dims, call.result_of(place).dtype):
            raise Unsupported(f"{node.operator} would give {each.dtype}{list(each.dims)}")
    return found


def problem(node: FxNode, tensors: Mapping[str, Sequence[Tensor | None]]) -> str:
    """Why a node is left to torch; empty where it can be computed here."""
    if node.effect:
        return "it writes into what it is given" if node.effect == "mutation" else "it draws random numbers"
    if node.operator in TABLE:
        return _tensor_problem(node, tensors) or _argument_problem(node, tensors)
    if node.decomposed is None:
        return "a library's"
    inner = node.decomposed.tensors()
    found = (problem(each, inner) for each in node.decomposed.nodes if each.operator != "getitem")
    return _tensor_problem(node, tensors) or next(filter(None, found), "") or _argument_problem(node, tensors)


def _tensor_problem(node: FxNode, tensors: Mapping[str, Sequence[Tensor | None]]) -> str:
    if not node.results or (node.results[0] is None and len(node.results) == 1):
        return "its result is not a tensor of a fixed shape and a known type"
    shapes = [each for name in node.reads for each in tensors[name]]
    if any(each is None for each in shapes):
        return "it reads what is not a tensor of a fixed shape and a known type"
    known = [each for each in (*shapes, *node.results) if each is not None]
    if any(not 0 < each.elements <= LARGEST for each in known):
        return "a tensor is empty, or too large"
    if len({each.device for each in known}) > 1:
        return "its tensors lie on several devices"
    return ""


def _argument_problem(node: FxNode, tensors: Mapping[str, Sequence[Tensor | None]]) -> str:
    """What is wrong with its arguments, which writing it finds out."""
    writer = HloWriter()
    values: dict[str, Written] = {}
    for name in node.reads:
        written = [writer.parameter(each.dtype, each.dims) for each in tensors[name] if each is not None]
        values[name] = written[0] if len(written) == 1 else tuple(written)
    try:
        _written(writer, node, values)
    except Unsupported as why:
        return str(why)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # arguments that no schema here foresees
        return "its arguments are not understood"
    return ""


def _inverse(order: Sequence[int]) -> list[int]:
    return [order.index(each) for each in range(len(order))]
