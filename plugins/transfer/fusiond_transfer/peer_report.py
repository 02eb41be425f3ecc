"""What `plan` says of a graph over several devices."""

from __future__ import annotations

from fusiond.model import Rejection
from fusiond.words import counted
from fusiond_transfer.analysis.peer_script import PeerSchedules
from fusiond_transfer.analysis.peers import DOWNLOAD, KINDS, DeviceLink
from fusiond_transfer.frontend.graph import Graph

MOST_ROWS = 60


def report(schedules: PeerSchedules, refused: Rejection | None) -> dict[str, object]:
    """The JSON of `plan --json`."""
    links, found = schedules.links, schedules.fewest()
    transfers = {kind: sum(len(each.crossings) for each in links if each.kind == kind) for kind in KINDS}
    return {
        "transfers": sum(transfers.values()),
        "startups": found.startups,
        "lower_bound": schedules.lower_bound,
        "saved": sum(transfers.values()) - found.startups,
        "optimal": found.startups == schedules.lower_bound,
        "order": list(found.order),
        "transfers_by_kind": transfers,
        "startups_by_kind": {kind: sum(each.link.kind == kind for each in found.messages) for kind in KINDS},
        "links": [
            {
                "from": each.source,
                "to": each.target,
                "kind": each.kind,
                "schedule": [
                    {"slot": one.slot, "vectors": list(one.vectors)} for one in found.messages if one.link is each
                ],
                "proof": [{"vector": one.vector, "slots": [one.earliest, one.latest]} for one in each.witnesses],
            }
            for each in links
        ],
        "claims": _claims(schedules, refused),
    }


def text(schedules: PeerSchedules, refused: Rejection | None) -> str:
    """For people: each link with its messages."""
    lines = []
    for link in schedules.links:
        own = [each for each in schedules.fewest().messages if each.link is link]
        messages = counted(len(own), f"{link.kind} message")
        lines.append(f"{link.source} to {link.target}: {messages} for {counted(len(link.crossings), 'vector')}")
        lines += [f"  {_when(schedules.graph, link, each.slot)}: {' '.join(each.vectors)}" for each in own[:MOST_ROWS]]
        if len(own) > MOST_ROWS:
            lines.append(f"  ... and {len(own) - MOST_ROWS} more")
    return "\n".join([*lines, "", *_claims(schedules, refused), ""])


def _claims(schedules: PeerSchedules, refused: Rejection | None) -> list[str]:
    found, least = schedules.fewest().startups, schedules.lower_bound
    messages = counted(found, "message")
    if found == least:
        said = (
            f"{messages}: proven to be the fewest of each link, where every vector comes straight from where it is made"
        )
    else:
        said = f"{messages}: at least {least} are needed, and no one layout was found that has as few on all links"
    return [*([refused.detail] if refused is not None else []), said]


def _when(graph: Graph, link: DeviceLink, slot: int) -> str:
    if slot < 0:
        return "at the start"
    return f"{'after' if link.kind == DOWNLOAD else 'before'} {graph.kernels[slot].name}"
