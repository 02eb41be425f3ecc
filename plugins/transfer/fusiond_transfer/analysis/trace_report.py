"""A trace for people, and as the draft of a graph: what crossed, in what sequences, and what is to be filled in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fusiond.strategy import NO_ANSWERS, Answers
from fusiond.words import counted
from fusiond_transfer.analysis.trace_costs import Basis, CostLine, lines, savings
from fusiond_transfer.frontend.graph import DEVICE
from fusiond_transfer.frontend.importing.draft import DraftGraph, DraftKernel, DraftNames, DraftVector
from fusiond_transfer.frontend.importing.nsight import DIRECTIONS, UP, Ran, Trace, TracedCopy

MOST_SEQUENCES = 8
"""That the report lists."""
MOST_EVENTS = 200
"""Copies and kernels that the draft has: the first ones."""


def report(trace: Trace, answers: Answers = NO_ANSWERS) -> Iterator[str]:
    """Lines: sizes and kinds, what a message costs and how that is known, the sequences that could be one message."""
    on = f" on {trace.model}" if trace.model else ""
    yield f"{counted(len(trace.copies), 'copy', 'copies')}, {counted(len(trace.kernels), 'launch', 'launches')}{on}"
    yield from _kinds(trace.copies)
    known = lines(trace.copies, answers)
    for (kind, memory), line in known.items():
        yield f"  a message {_way(kind, memory)}: {_line(line)}"
    found = savings(trace, answers)
    if not found:
        yield "no two copies follow each other that could be one message"
        return
    startups, idle = (sum(getattr(each, name) for _, each in found) for name in ("startups_us", "idle_us"))
    messages = sum(each.copies for _, each in found)
    how = {each.basis for _, each in found}
    basis = how.pop() if len(how) == 1 else "partly assumed" if Basis.ASSUMED in how else "measured"
    yield f"{counted(len(found), 'sequence')} of copies with no kernel of their stream between: {messages} messages"
    yield f"  could be {len(found)}; that saves {startups:.1f} us of startups ({basis}), and up to {idle:.1f} us in"
    yield "  which their copies were waited for: whether the host needs one before it sends the next, no trace says"
    for run, each in found[:MOST_SEQUENCES]:
        at = (run[0].start - min((*(c.start for c in trace.copies), *(k.start for k in trace.kernels)))) / 1000
        yield (
            f"  at {at:.1f} us, stream {run[0].stream}: {each.copies} copies {_way(run[0].kind, run[0].memory)}, "
            f"{each.bytes} bytes: {each.startups_us:.1f} us of startups, {each.idle_us:.1f} us between them"
        )
    if len(found) > MOST_SEQUENCES:
        yield f"  and {len(found) - MOST_SEQUENCES} more"


def draft(trace: Trace, name: str, answers: Answers = NO_ANSWERS) -> DraftGraph:
    """The graph, as far as the trace tells it: copies up are inputs, copies down outputs, launches kernels. `answers`:
    what the trace's device has answered for probes."""
    events: list[TracedCopy | Ran] = [each for each in trace.copies if each.crosses]
    events = sorted([*events, *trace.kernels], key=lambda each: each.start)
    names = DraftNames()
    vectors: list[DraftVector] = []
    kernels: list[DraftKernel] = []
    inputs: list[str] = []
    outputs: list[str] = []
    for event in events[:MOST_EVENTS]:
        if isinstance(event, Ran):
            kernels.append(DraftKernel(name=names.of(event.name), on=DEVICE, note=f"stream {event.stream}"))
            continue
        up = event.kind == UP
        made = names.of("up" if up else "down")
        (inputs if up else outputs).append(made)
        note = f"{event.memory or 'unknown'} memory, stream {event.stream}, behind {len(kernels)} of the kernels"
        vectors.append(DraftVector(name=made, dtype="uint8", elements=event.bytes, note=note))
    notes = [*report(trace, answers), "", "Vectors are bytes: give them their type, and fewer elements."]
    if len(events) > MOST_EVENTS:
        notes.append(f"Of {len(events)} copies and launches the first {MOST_EVENTS} are below.")
    return DraftGraph(
        name=name,
        vectors=tuple(vectors),
        kernels=tuple(kernels),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        notes=tuple(notes),
    )


def _kinds(copies: tuple[TracedCopy, ...]) -> Iterator[str]:
    kinds = Counter((each.kind, each.memory) for each in copies)
    for (kind, memory), count in sorted(kinds.items()):
        sizes = sorted(each.bytes for each in copies if (each.kind, each.memory) == (kind, memory))
        us = sum(each.end - each.start for each in copies if (each.kind, each.memory) == (kind, memory)) / 1000
        middle = sizes[len(sizes) // 2]
        yield (
            f"  {count} {_way(kind, memory)}: {sum(sizes)} bytes in {us:.1f} us, "
            f"from {sizes[0]} to {sizes[-1]}, half of them below {middle + 1}"
        )


def _way(kind: int, memory: str) -> str:
    way = DIRECTIONS.get(kind, f"of kind {kind}")
    return f"{way}, {memory}" if memory else way


def _line(line: CostLine) -> str:
    return f"{line.startup_us:.2f} us and {line.bytes_per_us / 1000:.2f} GB/s ({line.basis})"
