"""Replaces segments of a graph module by launched kernels and leaves the rest to torch."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from fusiond.service.frameworks.region_answers import line
from fusiond.torch.regions import FxSegment

log = logging.getLogger("fusiond.torch")

Strides: TypeAlias = Sequence["tuple[int, ...] | None"]  #: In elements, of one tensor after the other; None: any


class SplicedRegion(torch.nn.Module):  # type: ignore[misc] # without torch it is anything
    """A region: its kernels, or what it was where they fail."""

    def __init__(self, code: Any, original: Any) -> None:
        super().__init__()
        self.code, self.original = code, original

    def forward(self, *tensors: Any) -> Any:
        if not self.code.problem:
            try:
                return self.code(tensors)
            except Exception as problem:  # the model goes on as torch has it
                self.code.problem = line(problem) or type(problem).__name__
                log.warning("a region is torch's again: %s", self.code.problem)
        return self.original(*tensors)


class Rest(torch.nn.Module):  # type: ignore[misc]
    """What lies between regions, as Inductor compiles it: its code is for inputs with certain strides, and gives
    results with such as it likes."""

    def __init__(self, compiled: Callable[[list[Any]], Any], inputs: Strides, outputs: Strides) -> None:
        super().__init__()
        self.compiled, self.inputs, self.outputs = compiled, inputs, outputs

    def forward(self, *tensors: Any) -> Any:
        return fitted(self.compiled(fitted(tensors, self.inputs)), self.outputs)


def fitted(tensors: Sequence[Any], strides: Strides) -> list[Any]:
    """Tensors with such strides: as they are where they have them, else copies."""
    found = []
    for tensor, wanted in zip(tensors, strides, strict=True):
        if wanted is not None and isinstance(tensor, torch.Tensor) and tensor.stride() != wanted:
            copy = torch.empty_strided(tensor.shape, wanted, dtype=tensor.dtype, device=tensor.device)
            tensor = copy.copy_(tensor)
        found.append(tensor)
    return found


def _strides(nodes: Iterable[Any]) -> Strides:
    """Of an expanded tensor (0: it has more elements than memory) none are demanded: they are never made."""
    values = [each.meta.get("val") if isinstance(each, fx.Node) else None for each in nodes]
    found = [tuple(each.stride()) if isinstance(each, torch.Tensor) else None for each in values]
    return [each if each is not None and all(type(at) is int and at for at in each) else None for each in found]


def reported() -> list[Any] | None:
    """What torch is told of the strides of a graph's outputs while that is compiled: a list to be filled, or None."""
    context = torch._guards.TracingContext.try_get()
    return None if context is None else context.output_strides


def _unreported(function: Callable[[], Any]) -> Any:
    """Compiles a part, of which torch is told nothing."""
    context = torch._guards.TracingContext.try_get()
    if context is None:
        return function()
    kept, context.output_strides = context.output_strides, None
    try:
        return function()
    finally:
        context.output_strides = kept


def spliced(
    module: Any, segments: Sequence[FxSegment], codes: Mapping[int, Any], inner: Any, strides: Strides | None = None
) -> Any:
    """Something to call with a list of inputs. `codes`: place of a segment -> its code; `inner`: Inductor's compiler of
    graphs, or None; `strides`: of the outputs, where others count on them; else those of the graph."""
    root = torch.nn.Module()
    by_name = {each.name: each for each in module.graph.nodes}
    graph = fx.Graph()
    made: dict[str, Any] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            made[node.name] = graph.node_copy(node)
    output = module.graph.output_node()
    needed = {each.name for each in output.all_input_nodes}
    for number, (nodes, inputs, outputs, code) in enumerate(_runs(segments, codes, needed)):
        own = _part(module, [by_name[each] for each in nodes], inputs, outputs, by_name)
        part = SplicedRegion(code, own) if code is not None else own
        if code is None and inner is not None:
            part = _rest(own, inner)
        name = f"region_{number}" if code is not None else f"rest_{number}"
        root.add_module(name, part)
        called = graph.call_module(name, tuple(made[each] for each in inputs))
        for place, each in enumerate(outputs):
            made[each] = graph.call_function(operator.getitem, (called, place))
    graph.output(fx.map_arg(output.args[0], lambda each: made[each.name]))
    found = fx.GraphModule(root, graph)
    told = reported()
    wanted = strides or _strides(output.args[0])
    if told is not None and not told:
        told += wanted

    def run(inputs: list[Any]) -> Any:
        given = list(inputs)
        inputs.clear()
        return fitted(found(*given), wanted)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _runs(
    segments: Sequence[FxSegment], codes: Mapping[int, Any], needed: set[str]
) -> Iterable[tuple[list[str], list[str], list[str], Any]]:
    """(nodes, inputs, outputs, code) of what is one call: a region, or all that lies between two. `needed`: of all."""
    nodes: list[str] = []
    for place, segment in enumerate(segments):
        if place in codes:
            yield [each.name for each in segment.nodes], list(segment.inputs), list(segment.outputs), codes[place]
            continue
        nodes += [each.name for each in segment.nodes if each.name not in nodes]
        if place + 1 == len(segments) or place + 1 in codes:
            inside = set(nodes)
            read = [name for each in segments[: place + 1] for node in each.nodes if node.name in inside
                    for name in node.reads if name not in inside]  # fmt: skip
            after = needed.union(*(each.inputs for each in segments[place + 1 :]))
            yield nodes, list(dict.fromkeys(read)), [each for each in nodes if each in after], None
            nodes = []


def _part(
    module: Any, nodes: Sequence[Any], inputs: Sequence[str], outputs: Sequence[str], by_name: Mapping[str, Any]
) -> Any:
    graph = fx.Graph()
    made: dict[str, Any] = {}
    for each in inputs:
        made[each] = graph.placeholder(each)
        made[each].meta = dict(by_name[each].meta)
    for node in nodes:
        for each in node.all_input_nodes:
            if each.op == "get_attr" and each.name not in made:  # the body of a loop
                made[each.name] = graph.node_copy(each)
        made[node.name] = graph.node_copy(node, lambda each: made[each.name])
    graph.output(tuple(made[each] for each in outputs))
    return fx.GraphModule(module, graph)


def _rest(part: Any, inner: Any) -> Any:
    """Compiled by Inductor; as it is where there is nothing to compute, or Inductor refuses."""
    if all(each.op != "call_function" for each in part.graph.nodes):
        return part
    inputs = [each for each in part.graph.nodes if each.op == "placeholder"]
    own = copied(part)
    output = own.graph.output_node()
    outputs = _strides(output.args[0])
    output.meta |= {"user_visible_output_idxs": list(range(len(outputs))), "original_output_strides": outputs}
    try:
        compiled = _unreported(lambda: inner(own, [each.meta["val"] for each in inputs]))
        return Rest(compiled, _strides(inputs), outputs)
    except Exception:
        log.info("Inductor did not compile what lies between two regions", exc_info=True)
        return part


def copied(module: Any) -> Any:
    """A graph module with nodes of its own."""
    graph = fx.Graph()
    made: dict[str, Any] = {}
    for node in module.graph.nodes:
        made[node.name] = graph.node_copy(node, lambda each: made[each.name])
    return fx.GraphModule(module, graph)
