"""A fused launch for people: which kernel has which threads of a block, with its barrier and registers, and which of
the launch's blocks."""

from __future__ import annotations

from collections.abc import Mapping

from fusiond.model.drawing import Drawing, LaneDrawing, TimelineLane, TimelineSpan
from fusiond_hfuse.analysis.fusion_schedule import FusedSide, FusionSchedule
from fusiond_hfuse.frontend.fusion_group import LaunchShape


def of_schedule(schedule: FusionSchedule, shapes: Mapping[str, LaunchShape]) -> tuple[Drawing, ...]:
    """`shapes`: of each side, by its letter."""
    return _threads(schedule), _blocks(schedule, shapes)


def _threads(schedule: FusionSchedule) -> LaneDrawing:
    lanes = []
    for number, side in enumerate(schedule.sides):
        first = side.first if schedule.kind == "horizontal" and schedule.level == "warp" else 0
        spans = [
            TimelineSpan(start=begin, end=begin + side.threads, text=_said(side, each), kind=number)
            for each, begin in enumerate(range(first, first + side.threads * side.virtual, side.threads))
        ]
        lanes.append(TimelineLane(name=f"{side.slot.letter}: {side.slot.kernel.name}", spans=tuple(spans)))
    if schedule.kind == "vertical":
        title = f"Threads of a block of {schedule.threads}: all run one kernel after the other"
    elif schedule.level == "block":
        title = f"Threads of a block of {schedule.threads}: each block is of one kernel"
    else:
        title = f"Threads of a block of {schedule.threads}: the kernels lie side by side"
    return LaneDrawing(title=title, unit="thread", lanes=tuple(lanes))


def _said(side: FusedSide, number: int) -> str:
    barrier = f"barrier {side.barrier + number}" if side.barrier else "the block's own barrier"
    registers = f", {side.registers} registers" if side.registers else ""
    virtual = f", virtual block {number}" if side.virtual > 1 else ""
    return f"{side.threads} threads, {barrier}{registers}{virtual}"


def _blocks(schedule: FusionSchedule, shapes: Mapping[str, LaunchShape]) -> LaneDrawing:
    counts = [-(-int(shapes[side.slot.letter].blocks) // side.virtual) for side in schedule.sides]
    apart = schedule.level == "block" and schedule.assign == "sequential"
    total, first, lanes = sum(counts), 0, []
    for number, (side, count) in enumerate(zip(schedule.sides, counts, strict=True)):
        if schedule.level == "block" and not apart:
            span = TimelineSpan(start=0, end=total, text=f"{count} of {total} blocks, in proportion", kind=number)
        elif schedule.map == "stride":
            span = TimelineSpan(start=0, end=schedule.blocks, text=f"{count} blocks, in turns", kind=number)
        else:
            span = TimelineSpan(start=first, end=first + count, text=f"{count} blocks", kind=number)
        first += count if apart else 0
        lanes.append(TimelineLane(name=f"{side.slot.letter}: {side.slot.kernel.name}", spans=(span,)))
    how = f", assigned: {schedule.assign}" if schedule.level == "block" else ""
    return LaneDrawing(title=f"Blocks of the launch{how}", unit="block", lanes=tuple(lanes))
