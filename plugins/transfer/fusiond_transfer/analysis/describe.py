"""A schedule for people: the paper's time line, the messages, the layout and the proof."""

from collections.abc import Mapping
from typing import Any

from fusiond.model.english import counted
from fusiond_transfer.analysis import layout
from fusiond_transfer.analysis.intervals import Crossing
from fusiond_transfer.analysis.schedule import Schedule
from fusiond_transfer.analysis.schedules import Schedules, claims
from fusiond_transfer.frontend.graph import Graph

MOST_COLUMNS = 110
MOST_ROWS = 60


def text(schedules: Schedules) -> str:
    """Everything that `plan` prints of a graph."""
    least = schedules.least.schedule
    parts = [timeline(least), _messages(least), _layout(least), _proof(schedules)]
    return "\n\n".join(part for part in parts if part) + "\n"


def chunks(report: Mapping[str, Any]) -> str:
    """What can be cut into chunks, and what that comes to: `plan`'s key `chunks` as a few lines."""
    count = len(report["row_wise"]) + len(report["not_row_wise"])
    lines = [f"chunks: {len(report['row_wise'])} of {counted(count, 'kernel')} work row by row"]
    lines += [f"  {name} does not: {why}" for name, why in list(report["not_row_wise"].items())[:MOST_ROWS]]
    if len(report["counts"]) < 2:
        lines.append("  nothing is cut: what crosses is too small, or made by kernels that need all of it")
    elif "chosen" in report:
        slowest = max(report["busy_us"], key=report["busy_us"].get)
        lines.append(
            f"  {report['chosen']} by assumed costs: {report['estimate_us']} us, whole {report['whole_us']} us; ideal "
            f"{report['ideal_us']} us ({slowest} alone, and one chunk of the others)"
        )
    return "\n" + "\n".join(lines) + "\n"


def timeline(schedule: Schedule) -> str:
    """Vectors across, slots down, as in the paper's section 4: a name where a vector may cross, in brackets where it
    does. A slot beyond the last kernel is in the next iteration of the loop."""
    graph = schedule.graph
    placed = list(zip(schedule.crossings, schedule.slots, strict=True))
    columns = [[each for each in placed if each[0].up is up] for up in (True, False)]
    last = max([len(graph.kernels) - 1, *(each.latest for each in schedule.crossings)])
    first = min([0, *(each.earliest for each in schedule.crossings)])
    width = sum(len(each.vector) + 2 for each in schedule.crossings) + 2 + _label_width(graph)
    if width > MOST_COLUMNS or last - first >= MOST_ROWS:
        slots_there = counted(last - first + 1, "slot")
        return f"time line: {counted(len(schedule.crossings), 'vector')} over {slots_there}, too many to draw"
    lines = ["time line: uploads before a kernel | downloads behind it; a name: may cross, [name]: does"]
    for slot in range(first, last + 1):
        cells = [" ".join(_place(each, slot, at) for each, at in column) for column in columns]
        lines.append(f"{_label(graph, slot):{_label_width(graph)}} {cells[0]} | {cells[1]}".rstrip())
    return "\n".join(lines)


def _place(each: Crossing, slot: int, chosen: int) -> str:
    if slot == chosen:
        return f"[{each.vector}]"
    inside = each.earliest <= slot <= each.latest
    return f" {each.vector} " if inside else f" {'.':{len(each.vector)}} "


def _label(graph: Graph, slot: int) -> str:
    count = len(graph.kernels)
    if slot < 0:
        return f"{slot:>3} start"
    turn, k = divmod(slot, count)
    kernel = graph.kernels[k]
    return f"{slot:>3} {kernel.name} ({kernel.on}{', next turn' if turn else ''})"


def _label_width(graph: Graph) -> int:
    return max(len(_label(graph, k)) for k in range(len(graph.kernels))) + (len(", next turn") if graph.loop else 0)


def _messages(schedule: Schedule) -> str:
    names = [kernel.name for kernel in schedule.graph.kernels]
    graph = schedule.graph
    size = {graph.cell[each.name]: each.size_bytes for each in graph.vectors}
    places, _ = layout.offsets(schedule.order, size, graph.glued)
    vectors = counted(len(schedule.crossings), "vector")
    lines = [f"messages: {schedule.startups} for {vectors} to carry, {schedule.saved} saved"]
    for message in schedule.messages[:MOST_ROWS]:
        where = "at the start" if message.slot < 0 else f"{'before' if message.up else 'after'} {names[message.slot]}"
        cells = [graph.cell[name] for name in message.vectors]
        copied = max(places[cell] + size[cell] for cell in cells) - min(places[cell] for cell in cells)
        between = f" (and {', '.join(message.filler)}, which lie between)" if message.filler else ""
        direction = "upload" if message.up else "download"
        lines.append(f"  {where}: {direction} {' '.join(message.vectors)}: {copied} bytes{between}")
    if schedule.startups > MOST_ROWS:
        lines.append(f"  ... and {schedule.startups - MOST_ROWS} more")
    return "\n".join(lines)


def _layout(schedule: Schedule) -> str:
    sizes = {schedule.graph.cell[each.name]: each.size_bytes for each in schedule.graph.vectors}
    places, end = layout.offsets(schedule.order, sizes, schedule.graph.glued)
    lines = [f"layout, alike in both memories: {end} bytes"]
    row = ""
    for name, offset in list(places.items())[: 4 * MOST_ROWS]:
        item = f"{name} at {offset}"
        if len(row) + len(item) + 4 > MOST_COLUMNS:
            lines.append(f"  {row}")
            row = ""
        row = f"{row}, {item}" if row else item
    lines.append(f"  {row}")
    if len(places) > 4 * MOST_ROWS:
        lines.append(f"  ... and {len(places) - 4 * MOST_ROWS} more")
    return "\n".join(lines)


def _proof(schedules: Schedules) -> str:
    lines = list(claims(schedules))
    for name, found in (("uploads", schedules.bound.up), ("downloads", schedules.bound.down)):
        shown = [f"{each.vector} [{each.earliest}..{each.latest}]" for each in found.witnesses[:12]]
        if len(found.witnesses) > 12:
            shown.append(f"and {len(found.witnesses) - 12} more")
        if shown:
            lines.append(f"{name} that no slot has in common: {', '.join(shown)}")
    return "\n".join(lines)
