"""A graph module in which segments are launched as kernels, and what lies between them is torch's."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from fusiond.torch.regions import Segment

log = logging.getLogger("fusiond.torch")


class Launched(torch.nn.Module):  # type: ignore[misc] # without torch it is anything
    """A region: its kernels, or what it was where they fail."""

    def __init__(self, code: Any, original: Any) -> None:
        super().__init__()
        self.code, self.original = code, original

    def forward(self, *tensors: Any) -> Any:
        if not self.code.problem:
            try:
                return self.code(tensors)
            except Exception as problem:  # the model goes on as torch has it
                self.code.problem = " ".join(str(problem).split())[:300] or type(problem).__name__
                log.warning("a region is torch's again: %s", self.code.problem)
        return self.original(*tensors)


class Rest(torch.nn.Module):  # type: ignore[misc]
    """What lies between regions, as Inductor compiles it."""

    def __init__(self, compiled: Callable[[list[Any]], Any]) -> None:
        super().__init__()
        self.compiled = compiled

    def forward(self, *tensors: Any) -> Any:
        return self.compiled(list(tensors))


def spliced(module: Any, segments: Sequence[Segment], codes: Mapping[int, Any], inner: Any) -> Any:
    """Something to call with a list of inputs. `codes`: place of a segment -> its code; `inner`: Inductor's compiler of
    graphs, or None."""
    root = torch.nn.Module()
    by_name = {each.name: each for each in module.graph.nodes}
    graph = fx.Graph()
    made: dict[str, Any] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            made[node.name] = graph.node_copy(node)
    (output,) = (each for each in module.graph.nodes if each.op == "output")
    needed = _needed_after(segments, {each.name for each in output.all_input_nodes})
    for number, (nodes, inputs, outputs, code) in enumerate(_runs(segments, codes, needed)):
        own = _part(module, [by_name[each] for each in nodes], inputs, outputs, by_name)
        part = Launched(code, own) if code is not None else own
        if code is None and inner is not None:
            part = _rest(own, inner)
        name = f"region_{number}" if code is not None else f"rest_{number}"
        root.add_module(name, part)
        called = graph.call_module(name, tuple(made[each] for each in inputs))
        for place, each in enumerate(outputs):
            made[each] = graph.call_function(operator.getitem, (called, place))
    graph.output(fx.map_arg(output.args[0], lambda each: made[each.name]))
    found = fx.GraphModule(root, graph)

    def run(inputs: list[Any]) -> Any:
        given = list(inputs)
        inputs.clear()
        return found(*given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _needed_after(segments: Sequence[Segment], outputs: set[str]) -> list[set[str]]:
    found: list[set[str]] = []
    needed = set(outputs)
    for segment in reversed(segments):
        found.append(set(needed))
        needed |= set(segment.inputs)
    return found[::-1]


def _runs(
    segments: Sequence[Segment], codes: Mapping[int, Any], needed: Sequence[set[str]]
) -> Iterable[tuple[list[str], list[str], list[str], Any]]:
    """(nodes, inputs, outputs, code) of what is one call: a region, or all that lies between two."""
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
            yield nodes, list(dict.fromkeys(read)), [each for each in nodes if each in needed[place]], None
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
        made[node.name] = graph.node_copy(node, lambda each: made[each.name])
    graph.output(tuple(made[each] for each in outputs))
    return fx.GraphModule(module, graph)


def _rest(part: Any, inner: Any) -> Any:
    """Compiled by Inductor; as it is where there is nothing to compute, or Inductor refuses."""
    if all(each.op != "call_function" for each in part.graph.nodes):
        return part
    examples = [each.meta["val"] for each in part.graph.nodes if each.op == "placeholder"]
    try:
        return Rest(inner(copied(part), examples))
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
