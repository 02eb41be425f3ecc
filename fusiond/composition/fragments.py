"""A Program of one launch, as a launch over somebody else's names.

a Program: fused(a.x, a.y, b.z, 5000)   -->   fused(photo, light, bins, 5000), which reads photo and writes two
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fusiond.program import Argument, Buffer, Bytes, Dim3, Launch, Memory, Pointer, Program, Role, Scalar, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """A launch. Its pointers name what the caller names so; its numbers are plain."""

    source: Source
    launch: Launch
    reads: tuple[str, ...]
    """In the order in which they are first passed."""
    writes: tuple[str, ...]


class Unfit(ValueError):
    """A Program cannot stand in the place of nodes; the text is why, in a few words."""


def fragment(program: Program, names: Mapping[str, str], bytes_of: Mapping[str, int]) -> Fragment:
    """The launch of a Program whose buffers `names` says in the caller's words: a buffer's name, or what stands behind
    its last point (`a.x` is `x` too). `bytes_of`: the length of what the caller names. Unfit."""
    if program.seams:
        raise Unfit(f"it leaves {program.seams[0].name} to a library")
    if len(program.steps) != 1 or not isinstance(program.steps[0], Launch):
        raise Unfit(f"its answer is {len(program.steps)} steps; one launch can stand in the place of the kernels")
    (launch,) = program.launches
    buffers = {each.name: each for each in program.buffers}
    arguments = tuple(_argument(each, buffers, names, bytes_of) for each in launch.arguments)
    passed = dict.fromkeys(each.buffer for each in launch.arguments if isinstance(each, Pointer))
    found: dict[Role, list[str]] = {Role.INPUT: [], Role.OUTPUT: []}
    for name in passed:
        own = _name(name, names)
        if own not in found[buffers[name].role]:
            found[buffers[name].role].append(own)
    both = set(found[Role.INPUT]) & set(found[Role.OUTPUT])
    if both:
        raise Unfit(f"it reads and writes {min(both)} in one launch")
    bare = replace(
        launch,
        name="fused",
        arguments=arguments,
        grid=_plain(launch.grid),
        block=_plain(launch.block),
        shared_bytes=int(launch.shared_bytes),
        stream=0,
        after=(),
    )
    return Fragment(
        source=program.source(launch.source),
        launch=bare,
        reads=tuple(found[Role.INPUT]),
        writes=tuple(found[Role.OUTPUT]),
    )


def _argument(
    argument: Argument, buffers: Mapping[str, Buffer], names: Mapping[str, str], bytes_of: Mapping[str, int]
) -> Argument:
    if isinstance(argument, Bytes):
        raise Unfit("it passes a struct")
    if isinstance(argument, Scalar):
        value = argument.value if isinstance(argument.value, float) else int(argument.value)
        return Scalar(dtype=argument.dtype, value=value)
    buffer, own = buffers[argument.buffer], _name(argument.buffer, names)
    if buffer.role not in (Role.INPUT, Role.OUTPUT):
        raise Unfit(f"it uses {buffer.name} as {buffer.role.value}")
    if buffer.memory is not Memory.DEVICE or buffer.symbol is not None:
        raise Unfit(f"{buffer.name} is no plain device memory")
    if int(buffer.size_bytes) != bytes_of[own]:
        raise Unfit(f"{buffer.name} has {int(buffer.size_bytes)} bytes, and {own} {bytes_of[own]}")
    return Pointer(buffer=own)


def _name(buffer: str, names: Mapping[str, str]) -> str:
    for each in (buffer, buffer.rpartition(".")[2]):
        if each in names:
            return names[each]
    raise Unfit(f"it uses {buffer}, which stands for nothing here")


def _plain(shape: Dim3) -> Dim3:
    return int(shape[0]), int(shape[1]), int(shape[2])
