"""The space of a graph, its seeds, and its unfused ways.

grouping     separate | paper_greedy | paper_tight | interval_stabbing | min_residency | local_search
when         late | early                       (separate: at the last slot, or the first)
send         message | batch                    (a group: one copy of neighbours, or one batch of the driver's)
memory       pageable | pinned                  (on the host)
allocation   each | group | one | pooled        (where allocations are counted)
issue        one_stream | overlapped | graph    (graph: no host kernels, nothing allocated, no batches, pinned memory)
order        given | reordered                  (where another order of the kernels needs fewer messages)
together     apart | a strategy | answers | everything   (kernels that other strategies make one launch of)
mapped       none | once | all                  (what may lie in mapped memory; a grouping that is exact or searched
                                                 for, interval_stabbing or local_search, and pinned)
managed      none | once | all                  (what may lie in managed memory; likewise, and no graph)
chunks       1 | 2 | 4 ... 64                   (row-wise kernels, large vectors, pinned, not one_stream)
streams      engines | 2 | 3 | 4                (of chunks: one for each engine, or so many that chunks take in turn)
chunk_order  depth_first | breadth_first        (of chunks: one after the other, or op by op)

Every kind of memory and every allocation that is offered has a `separate` baseline with the same one, which is tuned in
issue, order and moment: what a candidate gains over the fastest of them it gains by its messages.
"""

import itertools
from collections.abc import Mapping, Sequence
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
        parameters += _chunks(offer)
    if offer.graph:
        restrictions.append("issue != 'graph' or memory == 'pinned'")
        # A CUDA graph has no node for a batch: the driver answers with error 900.
        restrictions.append("issue != 'graph' or grouping == 'separate' or send == 'message'")
    return Space(parameters=tuple(parameters), restrictions=tuple(restrictions))


def _chunks(offer: Offer) -> list[Parameter]:
    """Copies of pageable memory, and steps of one stream, do not overlap; the other groupings differ in what chunks do
    away with."""
    grouped = "(grouping == 'interval_stabbing' or grouping == 'min_residency')"
    return [
        Parameter(
            name="chunks", values=offer.chunks, when=f"{grouped} and memory == 'pinned' and issue != 'one_stream'"
        ),
        Parameter(name="streams", values=STREAMS, when="chunks > 1"),
        Parameter(name="chunk_order", values=ORDERS, when="chunks > 1"),
    ]


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
    `memories`: points of the space only, each once."""
    grouped = {"_".join(each): _grouped(offer, *each) for each in _GROUPED}
    first, *others = grouped.items()
    pinned = grouped["interval_stabbing_pinned_overlapped"]
    wanted = [first, *_in_chunks(pinned, chunks), *others]
    if memories:
        wanted.append(("one_memory", {**grouped["local_search_pinned_overlapped"], **memories}))
    for kind, values in _one_memory(offer).items():
        wanted.append((f"{kind}_{values[1]}", {**pinned, kind: values[1]}))
    if offer.reordered:
        wanted.append(("reordered", {**first[1], "order": "reordered"}))
    wanted.append(("batch", {**grouped["interval_stabbing_pinned_one_stream"], "send": "batch"}))
    wanted.append(("separate", _plain(offer)))
    if offer.large:
        wanted = [each for each in wanted if each[0] in LARGE]
    if offer.together:
        wanted = _together(offer, wanted)
    return _valid(
        [(name, {"order": "given", **values} if offer.reordered else values) for name, values in wanted], space
    )


def _one_memory(offer: Offer) -> Mapping[str, tuple[str, ...]]:
    """The kinds of memory that are for both sides, and what may lie in each."""
    return {kind: each for kind, each in (("mapped", offer.mapped), ("managed", offer.managed)) if each}


def _grouped(offer: Offer, grouping: str, memory: str, issue: str) -> dict[str, Value]:
    """A point with messages, whole, and all vectors copied."""
    values: dict[str, Value] = {"grouping": grouping, "memory": memory, "issue": issue, "send": "message"}
    if offer.counted:
        joined = (each for each in offer.allocations if each != "each")
        first = next(joined, offer.allocations[0])
        values["allocation"] = "group" if "group" in offer.allocations else first
    if _cut(offer, values):
        values["chunks"] = 1
    if grouping in ("interval_stabbing", "local_search") and memory == "pinned":
        values |= dict.fromkeys(_one_memory(offer), "none")
    return values


def _in_chunks(pinned: Mapping[str, Value], chunks: int) -> list[tuple[str, dict[str, Value]]]:
    if chunks < 2:
        return []
    return [
        (name, {**pinned, "chunks": chunks, "streams": streams, "chunk_order": order})
        for name, streams, order in (("chunks_in_turn", "3", "breadth_first"), ("chunks", "engines", "depth_first"))
    ]


def _plain(offer: Offer) -> dict[str, Value]:
    """Every vector by itself, as a program begins."""
    plain: dict[str, Value] = {"grouping": "separate", "when": "late", "memory": "pageable", "issue": "one_stream"}
    return {**plain, "allocation": offer.allocations[0]} if offer.counted else plain


def _together(offer: Offer, wanted: list[tuple[str, dict[str, Value]]]) -> list[tuple[str, dict[str, Value]]]:
    """All of them with every kernel apart, and the first, pinned and overlapped, with each way of fusing kernels."""
    apart, *others = offer.together
    found = [(name, {**values, "together": apart}) for name, values in wanted]
    for name in (wanted[0][0], "interval_stabbing_pinned_overlapped"):
        values = dict(wanted).get(name)
        if values is not None:
            found += [(f"{name}_{label}", {**values, "together": label}) for label in others]
    return found


def _cut(offer: Offer, values: Mapping[str, Value]) -> bool:
    """Whether the number of chunks is a part of a point."""
    grouped = values["grouping"] in ("interval_stabbing", "min_residency")
    return len(offer.chunks) > 1 and grouped and values["memory"] == "pinned" and values["issue"] != "one_stream"


def _valid(wanted: Sequence[tuple[str, dict[str, Value]]], space: Space) -> tuple[tuple[str, Config], ...]:
    found: dict[Config, str] = {}
    for name, values in wanted:
        config = Config.of(values)
        if not space.problems(config):
            found.setdefault(config, name)
    return tuple((name, config) for config, name in found.items())
