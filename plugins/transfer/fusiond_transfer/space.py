"""The space of a graph, its seeds, and its unfused ways; docs/transfer.md lists the parameters.

Every kind of memory and every allocation that is offered has a `separate` baseline with the same one, which is tuned in
issue, order and moment: what a candidate gains over the fastest of them it gains by its messages.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from fusiond.model.nouns import Config, Value
from fusiond.strategy.space import Parameter, Space
from fusiond_transfer.analysis.schedule import GROUPINGS
from fusiond_transfer.codegen.emit import ALLOCATIONS, STREAMS
from fusiond_transfer.codegen.pipeline import ORDERS

LARGE = ("interval_stabbing_pageable_one_stream", "separate")
"""The seeds of a graph that is large: `plan` makes the Program of each."""
MEMORIES = ("pageable", "pinned")


_GROUPED = (
    ("interval_stabbing", "pageable", "one_stream"),
    ("min_residency", "pageable", "one_stream"),
    ("paper_greedy", "pageable", "one_stream"),
    ("paper_tight", "pageable", "one_stream"),
    ("interval_stabbing", "pinned", "one_stream"),
    ("interval_stabbing", "pinned", "overlapped"),
    ("local_search", "pinned", "overlapped"),
    ("local_search", "pageable", "overlapped"),
    ("interval_stabbing", "pinned", "graph"),
)
"""(grouping, memory, issue) of the seeds whose messages are whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What there is to choose for a graph."""

    paper: bool  #: The paper's heuristic is run
    reordered: bool
    counted: bool  #: Allocations are counted
    graph: bool  #: A CUDA graph can hold it
    allocations: tuple[str, ...] = ALLOCATIONS
    moments: tuple[str, ...] = ("late", "early")
    large: bool = False  #: Each Program takes seconds to make
    mapped: tuple[str, ...] = ()
    """Which vectors may lie in mapped memory (`analysis.mapped_or_managed`); empty: none may."""
    managed: tuple[str, ...] = ()  #: Likewise in managed memory
    chunks: tuple[int, ...] = (1,)  #: Numbers of chunks; 1: nothing is cut
    together: tuple[str, ...] = ()  #: Which kernels other strategies make one launch of; empty where nobody is asked


def fused(offer: Offer) -> Space:
    """All ways to transfer, the separate ones among them."""
    groupings = tuple(each for each in GROUPINGS if offer.paper or not each.startswith("paper"))
    parameters = [
        Parameter(name="grouping", values=groupings),
        Parameter(name="when", values=offer.moments, when="grouping == 'separate'"),
        Parameter(name="send", values=("message", "batch"), when="grouping != 'separate'"),
        Parameter(name="memory", values=MEMORIES),
    ]
    restrictions = []
    if offer.counted:
        parameters.append(Parameter(name="allocation", values=offer.allocations))
        if "each" in offer.allocations:
            # Neighbours in one message have to be in one allocation.
            restrictions.append("grouping == 'separate' or send == 'batch' or allocation != 'each'")
    parameters += _schedule(offer)
    if offer.together:
        parameters.append(Parameter(name="together", values=offer.together))
    for kind, values in _one_memory(offer).items():
        when = "(grouping == 'interval_stabbing' or grouping == 'local_search') and memory == 'pinned'"
        parameters.append(Parameter(name=kind, values=values, when=when))
        if len(offer.chunks) > 1:
            restrictions.append(f"chunks == 1 or {kind} == 'none'")
    if offer.managed:  # nor a node for a prefetch
        restrictions.append("issue != 'graph' or managed == 'none'")
    if len(offer.chunks) > 1:
        # Copies of pageable memory, and steps of one stream, do not overlap; the other groupings differ in what chunks
        # do away with.
        grouped = "(grouping == 'interval_stabbing' or grouping == 'min_residency')"
        when = f"{grouped} and memory == 'pinned' and issue != 'one_stream'"
        parameters.append(Parameter(name="chunks", values=offer.chunks, when=when))
        parameters.append(Parameter(name="streams", values=STREAMS, when="chunks > 1"))
        parameters.append(Parameter(name="chunk_order", values=ORDERS, when="chunks > 1"))
    if offer.graph:
        restrictions.append("issue != 'graph' or memory == 'pinned'")
        # A CUDA graph has no node for a batch: the driver answers with error 900.
        restrictions.append("issue != 'graph' or grouping == 'separate' or send == 'message'")
    return Space(parameters=tuple(parameters), restrictions=tuple(restrictions))


def unfused(offer: Offer, memory: str) -> Space:
    """The knobs of a separate baseline, whose memory is fixed, and its allocation."""
    restrictions = ("issue != 'graph'",) if offer.graph and memory != "pinned" else ()
    return Space(
        parameters=(Parameter(name="when", values=offer.moments), *_schedule(offer)), restrictions=restrictions
    )


def _schedule(offer: Offer) -> list[Parameter]:
    issues = ("one_stream", "overlapped", "graph") if offer.graph else ("one_stream", "overlapped")
    found = [Parameter(name="issue", values=issues)]
    if offer.reordered:
        found.append(Parameter(name="order", values=("given", "reordered")))
    return found


def baselines(offer: Offer) -> list[tuple[str, str, str]]:
    """(name, memory, allocation) of every separate baseline; a group of one is `each`."""
    if not offer.counted:
        return [(f"separate_{memory}", memory, "ahead") for memory in MEMORIES]
    allocations = list(dict.fromkeys("each" if each == "group" else each for each in offer.allocations))
    return [
        (f"separate_{memory}_{allocation}", memory, allocation)
        for memory, allocation in itertools.product(MEMORIES, allocations)
    ]


def seeds(
    offer: Offer, space: Space, chunks: int = 1, memories: Mapping[str, str] | None = None
) -> tuple[tuple[str, Config], ...]:
    """What the paper would choose, the fewest, the fastest, the plain way, so many chunks, and vectors in these
    `memories`: points of the space only, each once. What is not said of them is the first of its values."""
    joined = [each for each in offer.allocations if each != "each"]
    allocation = "group" if "group" in joined else (*joined, *offer.allocations)[0]
    counted = {"allocation": allocation} if offer.counted else {}
    grouped: dict[str, Mapping[str, Value]] = {
        "_".join(each): dict(zip(("grouping", "memory", "issue"), each, strict=True)) | counted for each in _GROUPED
    }
    first, *others = grouped
    pinned = grouped["interval_stabbing_pinned_overlapped"]
    wanted = {first: grouped[first]}
    if chunks > 1:
        cut = {**pinned, "chunks": chunks}
        wanted["chunks_in_turn"] = {**cut, "streams": "3", "chunk_order": "breadth_first"}
        wanted["chunks"] = {**cut, "streams": "engines", "chunk_order": "depth_first"}
    wanted |= {name: grouped[name] for name in others}
    if memories:
        wanted["one_memory"] = {**grouped["local_search_pinned_overlapped"], **memories}
    wanted |= {f"{kind}_{values[1]}": {**pinned, kind: values[1]} for kind, values in _one_memory(offer).items()}
    if offer.reordered:
        wanted["reordered"] = {**grouped[first], "order": "reordered"}
    wanted["batch"] = {**grouped["interval_stabbing_pinned_one_stream"], "send": "batch"}
    wanted["separate"] = {"grouping": "separate", "memory": "pageable", "issue": "one_stream"}
    if offer.large:
        wanted = {name: wanted[name] for name in LARGE}
    for name in (first, "interval_stabbing_pinned_overlapped"):
        for label in offer.together[1:] if name in wanted else ():
            wanted[f"{name}_{label}"] = {**wanted[name], "together": label}
    return _points(space, wanted)


def _points(space: Space, wanted: Mapping[str, Mapping[str, Value]]) -> tuple[tuple[str, Config], ...]:
    found: dict[Config, str] = {}
    for name, said in wanted.items():
        values = dict(said)
        for each in space.parameters:
            if each.name not in values and space.active(values, each):
                values[each.name] = each.values[0]
        config = Config.of(values)
        if not space.problems(config):
            found.setdefault(config, name)
    return tuple((name, config) for config, name in found.items())


def _one_memory(offer: Offer) -> Mapping[str, tuple[str, ...]]:
    """The kinds of memory that are for both sides, and what may lie in each."""
    return {kind: each for kind, each in (("mapped", offer.mapped), ("managed", offer.managed)) if each}
