"""Estimates for vectors that are copied, mapped or managed, and the order in which the search tries them."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusiond.model.program import Memory
from fusiond.strategy import Answers
from fusiond_transfer.analysis import cost, mapped_or_managed, memory_costs
from fusiond_transfer.frontend.graph import MANAGED, MAPPED
from fusiond_transfer.request import TransferAnalysis


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Of one choice: what lies in one memory, and the time of the fewest messages with that, pinned and overlapped."""

    mapped: str
    managed: str
    vectors: Mapping[str, tuple[str, ...]]  #: Kind -> the vectors
    time_us: float
    basis: str  #: measured, partly measured, or assumed


def estimates(about: TransferAnalysis, answers: Answers) -> tuple[MemoryEstimate, ...]:
    """Every choice, all copied first; nothing where there is none, or the graph is too large to be planned twice."""
    offer, graph = about.offer, about.asked.graph
    if offer.large or not (offer.mapped or offer.managed):
        return ()
    costs = cost.costs(graph, answers)
    schedule = about.schedules.grouping("interval_stabbing")
    found = []
    for mapped, managed in itertools.product(
        offer.mapped or (mapped_or_managed.NONE,), offer.managed or (mapped_or_managed.NONE,)
    ):
        shared = memory_costs.shared(graph, costs, answers, mapped=mapped, managed=managed)
        time_us = cost.estimate_us(schedule, costs, memory=Memory.PINNED, overlapped=True, shared=shared)
        wanted, missing = costs.wanted, costs.missing
        vectors: dict[str, tuple[str, ...]] = {}
        if shared is not None:
            wanted, missing = wanted + shared.wanted, missing + shared.missing
            there = ((MAPPED, shared.mapped), (MANAGED, shared.managed))
            vectors = {kind: tuple(sorted(names)) for kind, names in there if names}
        basis = "measured" if not missing else "assumed" if missing == wanted else "partly measured"
        found.append(MemoryEstimate(mapped=mapped, managed=managed, vectors=vectors, time_us=time_us, basis=basis))
    return tuple(found)


def best(about: TransferAnalysis, answers: Answers) -> dict[str, str]:
    """The values of `mapped` and `managed` that are fastest by estimate; empty where that is to copy everything."""
    found = estimates(about, answers)
    if not found:
        return {}
    first = min(found, key=lambda each: each.time_us)
    chosen = {MAPPED: first.mapped, MANAGED: first.managed}
    offered = {MAPPED: about.offer.mapped, MANAGED: about.offer.managed}
    return {} if not first.vectors else {kind: value for kind, value in chosen.items() if offered[kind]}


def figures(about: TransferAnalysis, answers: Answers) -> dict[str, float]:
    """The estimates whose costs are all measured: `estimated_copied_us`, `estimated_mapped_once_us`."""
    return {
        f"estimated_{'_'.join(_words(each.mapped, each.managed)) or 'copied'}_us": round(each.time_us, 3)
        for each in estimates(about, answers)
        if each.basis == "measured"
    }


def _words(mapped: str, managed: str) -> list[str]:
    chosen = ((MAPPED, mapped), (MANAGED, managed))
    return [f"{kind}_{value}" for kind, value in chosen if value != mapped_or_managed.NONE]


# --- for people -----------------------------------------------------------------------------------------


def report(about: TransferAnalysis) -> list[dict[str, Any]]:
    """For `plan --json`, by assumed costs."""
    return [
        {
            "mapped": each.mapped,
            "managed": each.managed,
            "vectors": {kind: list(names) for kind, names in each.vectors.items()},
            "estimate_us": round(each.time_us, 1),
            "basis": each.basis,
        }
        for each in estimates(about, {})
    ]


def text(about: TransferAnalysis, answers: Answers) -> str:
    """Lines of `plan`, by what is known of the device: each choice, and which is tried first; empty where there is no
    choice."""
    found = estimates(about, answers)
    if not found:
        return ""
    first = min(found, key=lambda each: each.time_us)
    lines = ["where vectors lie, by estimate (pinned and overlapped):"]
    lines += [f"  {_named(each)}: {each.time_us:.1f} us, {each.basis}" for each in found]
    lines.append(f"  tried first: {_named(first)}, the least of these; what is fastest is measured")
    return "\n" + "\n".join(lines) + "\n"


def _named(each: MemoryEstimate) -> str:
    """`a, b mapped (once)`."""
    chosen = {MAPPED: each.mapped, MANAGED: each.managed}
    parts = (f"{', '.join(names)} {kind} ({chosen[kind]})" for kind, names in each.vectors.items())
    return " and ".join(parts) or "all copied"
