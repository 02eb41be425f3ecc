"""The placements of a graph's kernels as graphs of their own: each has its schedules, and its own choices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from fusiond.keys import content_key
from fusiond.model import Config
from fusiond.strategy import NO_ANSWERS, Answers
from fusiond_transfer import space
from fusiond_transfer.analysis import cost, eviction, placement
from fusiond_transfer.analysis.placement import Placement
from fusiond_transfer.analysis.schedules import Schedules, reordered
from fusiond_transfer.frontend.graph import Graph
from fusiond_transfer.request import TransferAnalysis, TransferRequest

MOST_LISTED = 6
Offering = Callable[[TransferRequest, Schedules, Schedules | None], space.Offer]


def offered(about: TransferAnalysis, answers: Answers) -> Mapping[str, TransferAnalysis]:
    """Label -> what is known of the graph in that placement, the graph as it stands first; empty where no kernel has a
    choice, or only one placement fits on the device."""
    if not about.asked.graph.on_either or about.offering is None:
        return {}
    found = dict(_found(about, answers)[1])
    return found if len(found) > 1 else {}


def of(about: TransferAnalysis, config: Config, answers: Answers) -> TransferAnalysis:
    """What is known of the graph in a config's placement."""
    return offered(about, answers).get(str(config.get("placement")), about)


def offer(about: TransferAnalysis, answers: Answers) -> space.Offer:
    """What there is to choose over all placements."""
    known = offered(about, answers)
    if not known:
        return about.offer
    plain = next(iter(known))
    return space.joined({label: about.offer if label == plain else each.offer for label, each in known.items()})


def fastest(about: TransferAnalysis, answers: Answers) -> str | None:
    """The placement that is fastest by estimate, with its messages: where the search begins."""
    known = offered(about, answers)
    return min(known, key=lambda label: _messages_us(known[label], answers)) if known else None


def named(about: TransferAnalysis, config: Config) -> dict[str, str]:
    """A config's placement in full, where its label counts kernels."""
    label, graph = config.get("placement"), about.asked.graph
    if label is None or "kernels" not in str(label):
        return {}
    return {"placement": f"host:{'+'.join(name for name in graph.on_either if name in _on_host(graph))}"}


def first_that_fits(graph: Graph) -> Graph:
    """All on the device, or all on the host where that does not fit there. KernelTooLarge where neither does."""
    try:
        Schedules(graph)
    except eviction.KernelTooLarge:
        other = placement.placed(graph, frozenset(graph.on_either))
        if other is graph:
            raise
        Schedules(other)
        return other
    return graph


def _found(
    about: TransferAnalysis, answers: Answers
) -> tuple[tuple[Placement, ...], tuple[tuple[str, TransferAnalysis], ...]]:
    """The placements by these answers, and what is known of those that fit."""
    answers = {key: value for key, value in answers.items() if isinstance(value, int | float)}
    key = content_key(answers)
    if key not in about.placements:
        candidates = placement.candidates(about.asked.graph, answers)
        here = placement.label(about.asked.graph, _on_host(about.asked.graph))
        ranked = sorted(candidates, key=lambda each: each.label != here)
        known = ((each.label, _there(about, each)) for each in ranked)
        about.placements[key] = candidates, tuple((label, each) for label, each in known if each is not None)
    found: tuple[tuple[Placement, ...], tuple[tuple[str, TransferAnalysis], ...]] = about.placements[key]
    return found


def _on_host(graph: Graph) -> placement.OnHost:
    return frozenset(each.name for each in graph.kernels if each.elsewhere is not None and not each.device)


def _there(about: TransferAnalysis, candidate: Placement) -> TransferAnalysis | None:
    """What is known of the graph in a placement; None where that does not fit on the device."""
    assert about.offering is not None
    graph = placement.placed(about.asked.graph, candidate.host)
    if graph is about.asked.graph:
        return about
    if candidate.host not in about.moved:
        asked = dataclasses.replace(about.asked, graph=graph)
        found: TransferAnalysis | None = None
        try:
            schedules = Schedules(graph, tries=asked.tries)
        except eviction.KernelTooLarge:
            pass
        else:
            other = reordered(schedules)
            own = about.offering(asked, schedules, other)
            if not own.counted or own.allocations:
                found = TransferAnalysis(asked=asked, schedules=schedules, other=other, offer=own)
        about.moved[candidate.host] = found
    return about.moved[candidate.host]


def _messages_us(about: TransferAnalysis, answers: Answers) -> float:
    known = cost.costs(about.asked.graph, answers)
    return cost.estimate_us(about.schedules.least().schedule, known, memory=placement.MEMORY, overlapped=False)


# --- for people -----------------------------------------------------------------------------------------


def report(about: TransferAnalysis, answers: Answers = NO_ANSWERS) -> list[dict[str, object]]:
    """For `plan --json`, by assumed costs; and by what is known of a device."""
    if not about.asked.graph.on_either:
        return []
    candidates, known = _found(about, answers)
    costs = placement.model(about.asked.graph, answers)
    there = dict(known)
    said = []
    for each in candidates:
        line: dict[str, object] = {
            "placement": each.label,
            "host": [name for name in about.asked.graph.on_either if name in each.host],
            "why": list(each.why),
            "run_us": round(each.run_us, 1),
            "crossing_us": round(each.crossing_us, 1),
            "crosses": [f"{name} {'up' if up else 'down'}" for name, up, _ in costs.crossing(each.host)],
            "fits": each.label in there,
        }
        if each.label in there:
            line["messages"] = there[each.label].schedules.least().schedule.startups
            line["estimate_us"] = round(_messages_us(there[each.label], answers), 1)
        said.append(line)
    return said


def text(about: TransferAnalysis, answers: Answers) -> str:
    """The same as lines of `plan`; empty where no kernel has a choice."""
    said = report(about, answers)
    if not said:
        return ""
    lines = [
        "",
        f"placements of the kernels that can run on either side, {_basis(about, answers)} (what is above: the first):",
    ]
    for each in said:
        why = f" ({'; '.join(map(str, _list(each['why'])))})" if each["why"] else ""
        crosses = _list(each["crosses"])
        names = ", ".join(map(str, crosses[:MOST_LISTED])) + (
            f" and {len(crosses) - MOST_LISTED} more" if len(crosses) > MOST_LISTED else ""
        )
        cost_of = f"kernels {each['run_us']} us, crossing one by one {each['crossing_us']} us"
        if each["fits"]:
            cost_of += f"; {each['estimate_us']} us with {each['messages']} messages"
        else:
            cost_of += "; it does not fit on the device"
        lines.append(f"  {each['placement']}{why}: {cost_of}; crosses: {names or 'nothing'}")
    return "\n".join(lines) + "\n"


def _basis(about: TransferAnalysis, answers: Answers) -> str:
    """Whether the costs of kernels on both sides, and of messages, were measured."""
    graph = about.asked.graph
    hosts: tuple[placement.OnHost, ...] = (frozenset(), frozenset(graph.on_either))
    both = [cost.costs(placement.placed(graph, host), answers) for host in hosts]
    if not any(each.missing for each in both):
        return "by measured costs"
    return "by assumed costs" if all(each.missing == each.wanted for each in both) else "by partly measured costs"


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value
