"""Estimates for vectors that are copied, mapped or managed, and the order in which the search tries them."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusiond.model.program import Memory
from fusiond.strategy import Answers
from fusiond_transfer.analysis import cost, memory_costs
from fusiond_transfer.analysis.mapped_or_managed import NONE
from fusiond_transfer.frontend.graph import MANAGED, MAPPED
from fusiond_transfer.request import TransferAnalysis


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Of one choice: what lies in one memory, and the time of the fewest messages with that, pinned and overlapped."""

    chosen: Mapping[str, str]  #: Kind -> none, once, all
    vectors: Mapping[str, tuple[str, ...]]  #: Kind -> the vectors
    time_us: float
    basis: str  #: measured, partly measured, or assumed


def estimates(about: TransferAnalysis, answers: Answers) -> tuple[MemoryEstimate, ...]:
    """Every choice, all copied first; nothing where there is none, or the graph is too large to be planned twice."""
    offer, graph = about.offer, about.asked.graph
    if offer.large or not (offer.mapped or offer.managed):
        return ()
    costs = cost.costs(graph, answers)
    found = []
    for mapped, managed in itertools.product(offer.mapped or (NONE,), offer.managed or (NONE,)):
        shared = memory_costs.shared(graph, costs, answers, mapped=mapped, managed=managed)
        basis = "partly measured" if 0 < shared.missing < shared.wanted else "assumed" if shared.missing else "measured"
        there = {MAPPED: shared.mapped, MANAGED: shared.managed}
        found.append(
            MemoryEstimate(
                chosen={MAPPED: mapped, MANAGED: managed},
                vectors={kind: tuple(sorted(names)) for kind, names in there.items() if names},
                time_us=cost.estimate_us(about.schedules.least.schedule, shared, memory=Memory.PINNED, overlapped=True),
                basis=basis,
            )
        )
    return tuple(found)


def _first(found: Sequence[MemoryEstimate]) -> MemoryEstimate:
    return min(found, key=lambda each: each.time_us)


def best(about: TransferAnalysis, answers: Answers) -> dict[str, str]:
    """The values of `mapped` and `managed` that are fastest by estimate; empty where that is to copy everything."""
    found = estimates(about, answers)
    offered = {MAPPED: about.offer.mapped, MANAGED: about.offer.managed}
    if not found or not _first(found).vectors:
        return {}
    return {kind: value for kind, value in _first(found).chosen.items() if offered[kind]}


def figures(about: TransferAnalysis, answers: Answers) -> dict[str, float]:
    """The estimates whose costs are all measured: `estimated_copied_us`, `estimated_mapped_once_us`."""
    measured = (each for each in estimates(about, answers) if each.basis == "measured")
    words = ((each, [f"{kind}_{value}" for kind, value in each.chosen.items() if value != NONE]) for each in measured)
    return {f"estimated_{'_'.join(said) or 'copied'}_us": round(each.time_us, 3) for each, said in words}


def report(about: TransferAnalysis) -> list[dict[str, Any]]:
    """For `plan --json`, by assumed costs."""
    return [
        {
            **each.chosen,
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
    lines = ["where vectors lie, by estimate (pinned and overlapped):"]
    lines += [f"  {_named(each)}: {each.time_us:.1f} us, {each.basis}" for each in found]
    lines.append(f"  tried first: {_named(_first(found))}, the least of these; what is fastest is measured")
    return "\n" + "\n".join(lines) + "\n"


def _named(each: MemoryEstimate) -> str:
    """`a, b mapped (once)`."""
    parts = (f"{', '.join(names)} {kind} ({each.chosen[kind]})" for kind, names in each.vectors.items())
    return " and ".join(parts) or "all copied"
