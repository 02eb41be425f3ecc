"""Decides who provides each allocation of an exported Program, and which steps the host performs."""

import enum
from collections.abc import Iterable, Mapping

from fusiond.model.program import Buffer, Memory, Program, Role, Seam, Step, blocking_steps, homes


class Giver(enum.Enum):
    """Where an allocation comes from."""

    CALLER = enum.auto()  #: An argument of every call
    WORKSPACE = enum.auto()  #: A part of one device allocation that the caller gives
    HOST_WORKSPACE = enum.auto()  #: The same in pinned host memory
    MANAGED_WORKSPACE = enum.auto()  #: The same in managed memory
    PLAN = enum.auto()  #: A step allocates it


def wholes(members: Iterable[Buffer]) -> tuple[Buffer, ...]:
    """Those that are not part of another: what an allocation is divided among."""
    return tuple(each for each in members if each.part_of is None)


def giver(program: Program, home: str) -> Giver:
    """ValueError where a step allocates what the caller gives: such a plan cannot be called."""
    members = homes(program)[home]
    given = [each.name for each in members if is_argument(each)]
    if any(step.allocates == home for step in program.steps):
        if given:
            raise ValueError(f"the plan itself allocates {home!r}, which holds the argument {given[0]!r}")
        return Giver.PLAN
    if given:
        return Giver.CALLER
    return workspace_of(members[0].memory)


def workspace_of(memory: Memory) -> Giver:
    """Where scratch memory of a kind lies."""
    if memory is Memory.MANAGED:
        return Giver.MANAGED_WORKSPACE
    return Giver.WORKSPACE if memory is Memory.DEVICE else Giver.HOST_WORKSPACE


def workspaces(program: Program) -> Mapping[str, Giver]:
    """The scratch memory that the caller gives: name -> its kind. That on the device is always one of them."""
    needed = {giver(program, home) for home in homes(program)}
    others = {"host_workspace": Giver.HOST_WORKSPACE, "managed_workspace": Giver.MANAGED_WORKSPACE}
    return {"workspace": Giver.WORKSPACE, **{name: each for name, each in others.items() if each in needed}}


def is_argument(buffer: Buffer) -> bool:
    """Whether the caller gives this buffer (inputs and outputs)."""
    return buffer.role is not Role.SCRATCH


def optional(program: Program) -> frozenset[str]:
    """Arguments that may be left out: what a seam hands to the kernels, and they to it, lies in scratch memory then."""
    alone = {each.name: each.role for each in program.buffers if each.arena is None and each.symbol is None}
    handed = {name for seam in program.seams for name in seam.writes if alone.get(name) is Role.INPUT}
    taken = {name for seam in program.seams for name in seam.reads if alone.get(name) is Role.OUTPUT}
    return frozenset(handed | taken)


def seams_before(program: Program, step: Step | None) -> tuple[Seam, ...]:
    """The seams that are due before a step (None: after the last), where no launch stands in for them."""
    name = None if step is None else step.name
    return tuple(each for each in program.seams if each.stand_in is None and each.before == name)


def in_graph(program: Program) -> bool:
    """Whether the program is launched as one graph: `issue` says so, and no step of it keeps the host busy."""
    return program.issue == "graph" and not blocking_steps(program)
