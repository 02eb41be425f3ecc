"""The same launches on several streams, so that kernels which wait for nothing of each other may overlap."""

from __future__ import annotations

import dataclasses

from fusiond.model.program import Launch, Pointer, Program, Role


def concurrent(program: Program, *, issue: str = "streams") -> Program:
    """A program whose launches wait for the writers of what they read, and for no other launch.

    An image is written by the first launch that names it, and by those behind it that are of the same source. A launch
    goes on in the stream of the first launch that it waits for and that no other launch has followed yet; otherwise it
    takes a stream of its own."""
    given = {each.name for each in program.buffers if each.role is Role.INPUT}
    writer: dict[str, Launch] = {}
    tails: dict[int, str] = {}  #: Stream -> its last step
    steps = []
    for step in program.steps:
        assert isinstance(step, Launch)
        named = [each.buffer for each in step.arguments if isinstance(each, Pointer) and each.buffer not in given]
        waits = list(dict.fromkeys(writer[name].name for name in named if name in writer))
        by_name = {each.name: each for each in writer.values()}
        stream = next((by_name[name].stream for name in waits if tails[by_name[name].stream] == name), len(tails))
        placed = dataclasses.replace(
            step, stream=stream, after=tuple(name for name in waits if by_name[name].stream != stream)
        )
        tails[stream] = step.name
        for name in named:
            if name not in writer or writer[name].source == step.source:
                writer[name] = placed
        steps.append(placed)
    return dataclasses.replace(program, steps=tuple(steps), issue=issue)
