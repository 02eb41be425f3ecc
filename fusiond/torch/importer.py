"""Nodes of a `Graph` as an HLO module: parameters in the order of the inputs, results in that of the outputs.

A tensor whose dimensions lie in another order in memory is a parameter (a result) in that order, with a transpose
behind (before) it: the launcher passes the memory as it is.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, cast

from fusiond.torch.graphs import FxGraph, FxLoop, FxNode, Tensor, inverse
from fusiond.torch.instructions import HloValue, HloWriter
from fusiond.torch.operators import COMPLEX, PRODUCTS, TABLE, OperatorCall, Unsupported
from fusiond.torch.operators.table import Written

LARGEST = 2**31 - 1  #: Elements of a tensor, of which one can be counted in 32 bits


def text(name: str, nodes: Sequence[FxNode], inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> str:
    """The module of nodes in topological order. Unsupported where one cannot be written; KeyError never: what a node
    reads is an input or another node."""
    writer = HloWriter()
    values: dict[str, Written] = {}
    for given, tensor in inputs.items():
        stored = writer.parameter(tensor.dtype, [tensor.dims[each] for each in tensor.order])
        values[given] = writer.transpose(stored, inverse(tensor.order))
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
    elif node.loop is not None:
        return _looped(call, node.loop)
    elif node.decomposed is not None:
        found = _evaluated(writer, node.decomposed, node.gives, [values[each] for each in node.reads])
    else:
        raise Unsupported(f"{node.operator} is not known")
    for place, each in enumerate(found if isinstance(found, tuple) else (found,)):
        if each is not None and (each.dims, each.dtype) != (call.result_of(place).dims, call.result_of(place).dtype):
            raise Unsupported(f"{node.operator} would give {each.dtype}{list(each.dims)}")
    return found


def _evaluated(writer: HloWriter, graph: FxGraph, gives: Any, inputs: Sequence[Written]) -> Any:
    """What a graph gives for such inputs."""
    values: dict[str, Written] = dict(zip(graph.inputs, inputs, strict=True))
    for each in graph.nodes:
        values[each.name] = _written(writer, each, values)
    return OperatorCall(writer, FxNode(name="", operator="", arguments=(gives,), results=()), values).argument(0)


def _looped(call: OperatorCall, loop: FxLoop) -> tuple[HloValue, ...]:
    """A `while`: its state are a counter of trips, the loop's state, what is stored, and all that the trips read."""
    given: list[Any] = [call.argument(at) for at in range(len(call.node.arguments))]
    given = [call.writer.constant(each, "s64") if isinstance(each, int) else each for each in given]
    if not all(isinstance(each, HloValue) for each in given):
        raise Unsupported("a loop over what is not a tensor")
    if loop.associative:
        zero = call.writer.constant(0, "s32")
        given = [*(call.writer.row(each, zero) for each in given[: loop.rows]), *given]
    kept = () if loop.condition else call.node.results[0 if loop.associative else loop.states :]
    stored = [call.writer.constant(0, each.dtype, each.dims) for each in kept if each is not None]
    ends = list(itertools.accumulate((loop.states, len(stored), loop.rows)))
    state = [*given[: ends[0]], *stored, *given[ends[0] :]]

    def again(w: HloWriter, state: list[HloValue]) -> HloValue:
        if loop.condition is not None:
            return cast(HloValue, _evaluated(w, loop.condition, loop.holds, state))
        return w.compare("LT", state[-1], w.constant(trips, "s32"))

    def body(w: HloWriter, state: list[HloValue]) -> list[HloValue]:
        states, stores, rows, rest = (state[a:b] for a, b in itertools.pairwise((0, *ends, len(state))))
        if loop.condition is not None:
            made = _evaluated(w, loop.body, loop.gives, state)
            return [*_as_before(w, made, states), *rest]
        at, rows = state[-1], [w.row(each, state[-1]) for each in rows]
        made = list(_evaluated(w, loop.body, loop.gives, [*states, *rows, *rest[:-1]]))
        if loop.associative:
            first = w.compare("EQ", at, w.constant(0, "s32"))
            made = [w.select(w.expand(first, one.dims), row, one) for one, row in zip(made, rows, strict=True)] * 2
        last = [w.with_row(*each, at) for each in zip(stores, made[loop.states :], strict=True)]
        counted = w.binary("add", at, w.constant(1, "s32"))
        return [*_as_before(w, made[: loop.states], states), *last, *state[ends[1] : -1], counted]

    if loop.condition is None:
        if not loop.rows:
            raise Unsupported("a loop over no rows")
        trips = state[ends[1]].dims[0]
        state.append(call.writer.constant(0, "s32"))
    found = call.writer.loop(state, again, body)
    return tuple(found[loop.states if loop.associative else 0 : ends[1]])


def _as_before(w: HloWriter, made: Sequence[Any], states: Sequence[HloValue]) -> list[HloValue]:
    """The state that a trip leaves, which has the types and shapes that it found."""
    found = [w.constant(one, was.dtype, was.dims) if isinstance(one, int | float) else one
             for one, was in zip(made, states, strict=True)]  # fmt: skip
    if [(one.dims, one.dtype) for one in found] != [(was.dims, was.dtype) for was in states]:
        raise Unsupported("a loop whose state changes its shape or its type")
    return found


def problem(node: FxNode, tensors: Mapping[str, Sequence[Tensor | None]]) -> str:
    """Why a node is left to torch; empty where it can be computed here."""
    if node.effect:
        return "it writes into what it is given" if node.effect == "mutation" else "it draws random numbers"
    loop = node.loop
    graphs = [node.decomposed] if loop is None else [loop.body, loop.condition]
    if node.operator in PRODUCTS or (node.operator not in TABLE and graphs == [None]):
        return "a library's"
    for graph in filter(None, graphs):
        inner = graph.tensors()
        for each in graph.nodes:
            if each.operator == "getitem" or (loop is not None and each.operator in PRODUCTS):
                continue
            if why := problem(each, inner):
                return why if loop is None else f"{node.operator}: {each.operator} is {why}"
    return _tensor_problem(node, tensors) or _argument_problem(node, tensors)


def _tensor_problem(node: FxNode, tensors: Mapping[str, Sequence[Tensor | None]]) -> str:
    if not node.results or (node.results[0] is None and len(node.results) == 1):
        return "its result is not a tensor of a fixed shape and a known type"
    shapes = [each for name in node.reads for each in tensors[name]]
    if any(each is None for each in shapes):
        return "it reads what is not a tensor of a fixed shape and a known type"
    known = [each for each in (*shapes, *node.results) if each is not None]
    if node.operator in TABLE and node.operator not in COMPLEX and any(each.dtype == "c64" for each in known):
        return "complex numbers"
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
