"""The report of a graph for `plan --json`."""

from fusiond_transfer import delegation, memory_estimates
from fusiond_transfer.analysis import cost, min_residency, row_lines
from fusiond_transfer.analysis.schedule import Schedule
from fusiond_transfer.analysis.schedules import Schedules, bound_of_any_order, claims
from fusiond_transfer.analysis.script import script
from fusiond_transfer.codegen import chunk_costs
from fusiond_transfer.codegen.buffers import Execution
from fusiond_transfer.request import TransferAnalysis


def report(about: TransferAnalysis) -> dict[str, object]:
    """The JSON of `plan --json`."""
    schedules = about.schedules
    least = schedules.least
    found = least.schedule
    tightest = schedules.min_residency.schedule
    paper = {
        name: schedules.grouping(f"paper_{name}").saved if schedules.has_paper else None for name in ("greedy", "tight")
    }
    graph = about.asked.graph
    bound = {"uploads": schedules.bound.up, "downloads": schedules.bound.down}
    assumed = cost.costs(graph, {})
    said: dict[str, object] = {
        "transfers": len(schedules.crossings),
        "startups": found.startups,
        "lower_bound": schedules.bound.points,
        "saved": found.saved,
        "optimal": least.proven,
        "order": list(found.order),
        "schedule": _listed(found),
        "paper": paper,
        "proof": {
            name: [{"vector": each.vector, "slots": [each.earliest, each.latest]} for each in way.witnesses]
            for name, way in bound.items()
        },
        "points": {name: list(way.points) for name, way in bound.items()},
        "min_residency": {
            "byte_slots": min_residency.byte_slots(tightest.crossings, tightest.slots),
            "fewest_byte_slots": min_residency.byte_slots(found.crossings, found.slots),
            "optimal": schedules.min_residency.proven,
            "schedule": _listed(tightest),
        },
        "costs": "not measured",
        "assumed_startup_us": {
            f"{'up' if up else 'down'} {memory.value}": round(assumed.startup_us(up, memory), 3)
            for up in (True, False)
            for memory in cost.KINDS
        },
        "claims": list(claims(schedules)),
    }
    said["chunks"] = _chunks(about, assumed)
    said["memories"] = memory_estimates.report(about)
    if about.other_strategies is not None:
        said["together"] = delegation.report(about.other_strategies)
    if graph.limit_bytes is not None:
        said["limit"] = {"device_bytes": graph.limit_bytes, "peak_bytes": schedules.peak_bytes, **_evictions(schedules)}
    if about.other is not None:
        other = about.other.least
        said["reordered"] = {
            "startups": other.schedule.startups,
            "lower_bound": bound_of_any_order(graph),
            "kernels": [kernel.name for kernel in about.other.graph.kernels],
            "optimal": other.schedule.startups == bound_of_any_order(graph),
        }
    return said


def _evictions(schedules: Schedules) -> dict[str, object]:
    """Who leaves behind which kernel, and what that costs."""
    found, kernels = schedules.evictions, schedules.graph.kernels
    return {
        "evictions": [
            {"vector": name, "after": kernels[k].name if k >= 0 else None}
            for name, k in schedules.least.schedule.leaves
            if k < 0 or kernels[k].device  # what the host stores something else in the place of is not there any more
        ],
        "more_transfers": 0 if found is None else found.more,
        "more_proven": found is None or found.least,
    }


def estimate(about: TransferAnalysis, known: cost.GraphCosts) -> chunk_costs.Estimate | None:
    """The best number of chunks by the costs; None where nothing can be cut, or there is too much to be estimated."""
    if len(about.offer.chunks) < 2:
        return None
    plan = script(about.schedules.least.schedule)
    allocation = "group" if about.offer.counted else "ahead"
    execution = Execution(memory="pinned", issue="overlapped", allocation=allocation)
    return chunk_costs.best(plan, known, about.offer.chunks, execution)


def _chunks(about: TransferAnalysis, assumed: cost.GraphCosts) -> dict[str, object]:
    """What can be cut into chunks, what cannot and why, and what it comes to by the costs that are assumed."""
    graph = about.asked.graph
    ways = dict(row_lines.row_wise_kernels(graph))
    if graph.cut:  # rows of parts may not meet
        ways |= row_lines.lines(script(about.schedules.least.schedule))[1]
    said: dict[str, object] = {
        "row_wise": [name for name, how in ways.items() if not isinstance(how, str)],
        "not_row_wise": {name: how for name, how in ways.items() if isinstance(how, str)},
        "counts": list(about.offer.chunks),
    }
    best = estimate(about, assumed)
    if best is not None:
        said |= {
            "chosen": best.count,
            "whole_us": round(best.whole_us, 1),
            "estimate_us": round(best.span_us, 1),
            "ideal_us": round(best.ideal_us, 1),
            "busy_us": {engine: round(us, 1) for engine, us in best.busy_us.items()},
        }
    return said


def _listed(schedule: Schedule) -> list[dict[str, object]]:
    return [
        {
            "slot": each.slot,
            "direction": "up" if each.up else "down",
            "vectors": list(each.vectors),
            **({"filler": list(each.filler)} if each.filler else {}),
        }
        for each in schedule.messages
    ]
