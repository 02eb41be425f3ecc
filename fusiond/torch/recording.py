"""FX to an `FxGraph`. An operator that is not in the table is recorded as torch's own decomposition, Inductor's first,
so it rounds where Inductor's kernels do."""

import dataclasses
import functools
import logging
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes

from fusiond.service.frameworks import DTYPES
from fusiond.torch.graphs import FxGraph, FxLoop, FxNode, Ref, Tensor
from fusiond.torch.operators import TABLE
from fusiond.torch.operators.movement import runs

log = logging.getLogger("fusiond.torch")

SMALL = 256  #: Elements of a constant that is written out: a filter of up to 15 x 15
RUNS, LONG = 8, 2**16  #: Of an index that is written as slices: parts with a fixed step, elements


def folded(module: Any) -> None:
    """What depends on no input and is small becomes constants of the graph, each with one reader: filters that a
    function computes or holds, and the indices that borders of images are decomposed into."""
    values: dict[Any, Any] = {}

    def value(of: Any) -> Any:
        if of not in values:
            given = map_arg((of.args, of.kwargs), value)
            values[of] = (
                operator.attrgetter(of.target)(module) if of.op == "get_attr" else of.target(*given[0], **given[1])
            )
        return values[of]

    fixed = _fixed(module.graph)
    with _disable_current_modes(), torch.no_grad():
        for node in list(module.graph.nodes):
            if str(node.target) == "aten._assert_async.msg" and node.args[0] in fixed and bool(value(node.args[0])):
                module.graph.erase_node(node)
            for read in () if node in fixed else [each for each in node.all_input_nodes if each in fixed]:
                if _written_out(node, read, value):
                    name = f"_fusiond_constant_{len(module.graph.nodes)}"
                    module.register_buffer(name, value(read).detach().clone(), persistent=False)
                    with module.graph.inserting_before(node):
                        constant = module.graph.get_attr(name)
                    constant.meta |= {"val": read.meta["val"], "numbers": tuple(value(read).flatten().tolist())}
                    node.replace_input_with(read, constant)
    module.graph.eliminate_dead_code()
    module.recompile()


def _fixed(graph: Any) -> set[Any]:
    """Nodes that depend on no input, and are small."""
    found: set[Any] = set()
    for node in graph.nodes:
        pure = node.op == "get_attr" or (node.op == "call_function" and not _effect(node.target))
        if pure and "empty" not in str(node.target) and found.issuperset(node.all_input_nodes):
            made = node.meta.get("val")
            if all(_size(each) <= LONG for each in (made if isinstance(made, tuple | list) else [made])):
                found.add(node)
    return found


def _written_out(node: Any, read: Any, value: Callable[[Any], Any]) -> bool:
    """Whether what a node reads becomes a constant: an index of few runs, or little that something was computed for."""
    size = _size(read.meta.get("val"))
    if "index.Tensor" in str(node.target) and read in (node.args[1] or ()):
        return size <= LONG and value(read).dim() == 1 and len(runs(value(read).tolist())) <= RUNS
    return size <= SMALL and (read.op == "get_attr" or bool(read.all_input_nodes))


def _size(value: Any) -> float:
    """Elements of a tensor that can be a constant."""
    found = _tensor(value)
    return math.inf if found is None else found.elements


LOOPS = ("scan", "while_loop", "associative_scan")
_PURE = (*LOOPS, "while_loop_stack_output", "cond")  #: Operators of higher order that write into nothing


def recorded(graph: Any, *, decompose: bool = True, numbers: bool = False) -> FxGraph:
    """A `torch.fx.Graph` whose nodes have `meta["val"]`, as AOTAutograd leaves them. Graphs that are arguments belong
    to the operator that they are for. `numbers`: those that are not fixed (counters of loops) are tensors."""
    inputs: dict[str, Tensor | None] = {}
    nodes: list[FxNode] = []
    outputs: tuple[str, ...] = ()
    known: dict[Any, tuple[FxGraph | None, Any]] = {}
    for each in graph.nodes:
        if each.op == "placeholder":
            (inputs[each.name],) = _results(each, numbers)
        elif each.op == "output":
            outputs = tuple(one.name for one in each.all_input_nodes)
        elif each.op != "get_attr" or "val" in each.meta:
            read = _node(each, numbers)
            nodes.append(_decomposed(each, read, known) if decompose else read)
    return FxGraph(inputs=inputs, nodes=tuple(nodes), outputs=outputs)


def _node(node: Any, numbers: bool = False) -> FxNode:
    effect, loop = "", None
    results, arguments = _results(node, numbers), tuple(_argument(each) for each in node.args)
    if "numbers" in node.meta and results[0] is not None:
        name, arguments, (reader,) = "constant", (node.meta["numbers"],), node.users
        made = next((each for each in _results(reader) if each is not None), results[0])
        results = (dataclasses.replace(results[0], strides=None, device=made.device),)
    elif node.op == "call_function" and node.target is operator.getitem:
        name = "getitem"
    elif node.op == "call_function" and str(node.target) in LOOPS:
        name, (loop, arguments) = str(node.target), _loop(node)
    elif node.op == "call_function":
        name = str(node.target)
        name = name if name in TABLE else name.replace("_copy.", ".")  # a view's copy, as the bodies of loops have it
        effect = _effect(node.target)
        if str(getattr(node.target, "__module__", "")) == "_operator":
            name = f"aten.{getattr(node.target, '__name__', '')}.Tensor"  # of numbers that a loop counts
    else:
        name = f"{node.op} {node.target}"
        effect = "" if node.op == "get_attr" else "mutation"
    named = {key: _argument(value) for key, value in node.kwargs.items()}
    return FxNode(
        name=node.name, operator=name, arguments=arguments, named=named, results=results, effect=effect, loop=loop
    )


def _loop(node: Any) -> tuple[FxLoop, tuple[Any, ...]]:
    """(what it does, of which arguments)"""
    graphs: list[tuple[FxGraph, Any]] = []
    for each in node.args:
        if getattr(each, "op", "") == "get_attr":
            graph = operator.attrgetter(each.target)(node.graph.owning_module).graph
            graphs.append((recorded(graph, numbers=True), _argument(graph.output_node().args[0])))
    (body, given), *first = reversed(graphs)
    parts = [_argument(part) for part in node.args[len(graphs) :]]
    arguments, gives = tuple(each for part in parts for each in part), given if isinstance(given, tuple) else (given,)
    several = len(parts[1]) if str(node.target) == "scan" else 0
    loop = FxLoop(body=body, gives=gives, states=len(parts[0]), rows=several)
    if str(node.target) == "associative_scan":
        loop = dataclasses.replace(loop, rows=len(gives), associative=True)
    for condition, holds in first:
        loop = dataclasses.replace(loop, condition=condition, holds=holds)
    return loop, arguments


def _decomposed(node: Any, read: FxNode, known: dict[Any, tuple[FxGraph | None, Any]]) -> FxNode:
    """With what torch makes of it, where the table does not have it. `known`: of a call -> that."""
    if node.op != "call_function" or read.effect or read.operator in TABLE or not hasattr(node.target, "_schema"):
        return read
    places = {name: place for place, name in enumerate(read.reads)}
    values = [each.meta.get("val") for each in node.all_input_nodes]
    if [each.name for each in node.all_input_nodes] != list(places) or any(_tensor(each) is None for each in values):
        return read

    def numbered(each: Any) -> Any:
        return places[each.name]

    key = (read.operator, map_arg(node.args, numbered), map_arg(node.kwargs, numbered), *map(_tensor, values))
    key = (repr(key), read.results)
    if key not in known:
        try:
            known[key] = _traced(node, values)
        except Exception:  # torch has none for such arguments
            log.debug("%s is not decomposed", read.operator, exc_info=True)
            known[key] = (None, None)
    graph, gives = known[key]
    return dataclasses.replace(read, decomposed=graph, gives=gives)


def _traced(node: Any, values: list[Any]) -> tuple[FxGraph | None, Any]:
    def called(*tensors: Any) -> Any:
        given = dict(zip(node.all_input_nodes, tensors, strict=True))
        arguments, named = map_arg(node.args, given.__getitem__), map_arg(node.kwargs, given.__getitem__)
        name = node.target._schema.name
        return _foreach(name, *arguments, **named) if "_foreach_" in name else node.target(*arguments, **named)

    made = node.meta["val"]
    first = next(each for each in (made if isinstance(made, tuple | list) else [made]) if each is not None)
    with first.fake_mode, torch.no_grad():
        module = make_fx(called, decomposition_table=_decompositions())(*values)
    folded(module)
    graph = recorded(module.graph, decompose=False)  # the table of decompositions went all the way
    if any(each.operator == str(node.target) for each in graph.nodes):
        return None, None
    return graph, _argument(module.graph.output_node().args[0])


def _foreach(name: str, first: Sequence[Any], *rest: Any, **named: Any) -> list[Any]:
    """One operator of each: `_foreach_add.List(xs, ys)` is `add(x, y)` of every pair."""
    one = name.partition("_foreach_")[2]
    function = torch.ops.aten.linalg_vector_norm if one == "norm" else getattr(torch.ops.aten, one)
    if one.startswith("addc") and len(rest) == 3:
        *rest, named["value"] = rest  # type: ignore[assignment]

    def of(value: Any, at: int) -> Any:
        return value[at] if isinstance(value, list | tuple) else value

    return [
        function(each, *(of(more, at) for more in rest), **{key: of(value, at) for key, value in named.items()})
        for at, each in enumerate(first)
    ]


@functools.cache
def _decompositions() -> dict[Any, Any]:
    from torch._decomp import decomposition_table

    try:
        from torch._inductor.decomposition import select_decomp_table
    except ImportError:
        preferred: dict[Any, Any] = {}
    else:
        preferred = select_decomp_table()
    return {each: how for each, how in {**decomposition_table, **preferred}.items() if str(each) not in TABLE}


def _effect(target: Any) -> str:
    schema = getattr(target, "_schema", None)
    if schema is None:
        if str(target) in _PURE:
            return ""
        return "" if str(getattr(target, "__module__", "")).startswith(("_operator", "math")) else "mutation"
    if schema.is_mutable:
        return "mutation"
    return "random" if any("nondeterministic_seeded" in str(each) for each in getattr(target, "tags", ())) else ""


def _argument(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        return Ref(value.name)
    if isinstance(value, tuple | list):
        return tuple(_argument(each) for each in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value).removeprefix("torch.")


def _results(node: Any, numbers: bool = False) -> tuple[Tensor | None, ...]:
    value = node.meta.get("val")
    if numbers and isinstance(value, torch.SymInt | torch.SymBool):
        return (Tensor((), "s64" if isinstance(value, torch.SymInt) else "pred"),)
    return tuple(map(_tensor, value if isinstance(value, tuple | list) else (value,)))


def _tensor(value: Any) -> Tensor | None:
    """What a (fake) tensor says of itself; None where its shape is not fixed or its type is not known."""
    dtype = DTYPES.get(str(getattr(value, "dtype", "")).removeprefix("torch."))
    if dtype is None or str(getattr(value, "layout", "")) != "torch.strided":
        return None
    dims, strides = tuple(value.shape), tuple(value.stride())
    if not all(type(each) is int for each in (*dims, *strides)):
        return None
    return Tensor(dims, dtype, strides, str(value.device))
