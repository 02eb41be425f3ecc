"""The result of fusion (section 3.2): groups of instructions, their order, and instructions without a group.

`deep_fusion` makes it. A place is (level, phase), compared as pairs. Without grid barriers each step up is a level, and
levels are launches. With them a step up is a phase inside the level, and only a library call between begins a new
level.
"""

import functools
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fusiond.model.nouns import frozen
from fusiond_stitching.analysis.plan import Chunk, ChunkSchedule
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.frontend.graph import MOVEMENT, SOURCES, HloInstruction, HloModule, reached

LaunchPlace: TypeAlias = tuple[int, int]  #: (level, phase), counted from the end

END: LaunchPlace = (-1, 0)
CHAIN = 6  #: The longest chain of cheap instructions that is computed again
_FREE = frozenset({"reshape", "broadcast", "iota", "window"})  #: What costs no kernel even where nothing is fused


@dataclass(frozen=True, slots=True)
class FusionCandidate:
    """A schedule of the root, and what it means for every member."""

    schedule: ChunkSchedule
    blocks: int
    chunks: Mapping[str, Chunk]


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionGroup:
    """Instructions that one block program computes, in topological order. `root` is the one it began with."""

    place: LaunchPlace
    root: str
    members: tuple[str, ...]
    candidates: tuple[FusionCandidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """`groups` in the order of execution: descending places. `calls`: library call or scatter in place -> the place of
    the kernel before which it must be done. `read`: call -> what it reads from buffers. `reasons`: root -> why it is
    not part of its readers' group."""

    groups: tuple[FusionGroup, ...]
    calls: Mapping[str, LaunchPlace]
    read: Mapping[str, frozenset[str]] = field(default_factory=frozen)
    reasons: Mapping[str, str] = field(default_factory=frozen)


def members_of(module: HloModule, policy: FusionPolicy) -> Callable[[HloInstruction], bool]:
    """Whether an instruction is computed by a group (and not a source, a library call, or inlined everywhere)."""
    read_by_library = {
        module.base(operand).name
        for each in module.instructions
        if library(module, each, policy) and each.name not in module.launches
        for operand in each.operands
    }

    def is_member(instruction: HloInstruction) -> bool:
        if instruction.opcode in SOURCES:
            return False
        if library(module, instruction, policy):
            return False
        if instruction.opcode in MOVEMENT and (policy.rules != "none" or instruction.opcode in _FREE):
            return instruction.name in module.is_output or instruction.name in read_by_library
        return True

    return is_member


def library(module: HloModule, instruction: HloInstruction, policy: FusionPolicy) -> bool:
    """A library call under this policy: a batched dot may be stitched."""
    batched = instruction.opcode == "dot" and instruction.attributes.get("lhs_batch")
    if policy.stitch_dots and batched and instruction.name not in module.foreign:
        return False
    return module.library(instruction)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What has a buffer that others fill, seen from one group: a container of names."""

    filled: Container[str]  #: What has a buffer
    own: Container[str]  #: The group's members

    def __contains__(self, name: object) -> bool:
        return name in self.filled and name not in self.own


@dataclass(frozen=True)
class GroupContext:
    """A group among the others of a fusion."""

    module: HloModule
    policy: FusionPolicy
    group: FusionGroup
    stored: frozenset[str]  #: The members that must reach global memory
    elsewhere: Container[str]  #: What has a buffer that others fill

    @functools.cached_property
    def nodes(self) -> list[HloInstruction]:
        """Members and what is inlined into them, in topological order."""
        module = self.module

        def inlined(name: str) -> bool:
            return name not in self.elsewhere and module[name].opcode not in SOURCES

        found = reached(self.group.members, lambda name: filter(inlined, module[name].operands))
        return [module[name] for name in sorted(found, key=module.number.__getitem__)]


def in_order(module: HloModule, groups: Iterable[FusionGroup]) -> tuple[FusionGroup, ...]:
    """Groups in the order of execution."""

    def place(each: FusionGroup) -> tuple[int, int, int]:
        return -each.place[0], -each.place[1], min(module.number[name] for name in each.members)

    return tuple(sorted(groups, key=place))


def read(module: HloModule, members: Iterable[str], buffered: Container[str]) -> set[str]:
    """What instructions read from buffers, through what is inlined: parameters, and names in `buffered`."""

    def has_buffer(name: str) -> bool:
        return name in buffered or module[name].opcode == "parameter"

    own = set(members)
    found = reached(own, lambda name: () if name not in own and has_buffer(name) else module[name].operands)
    return {name for name in found - own if has_buffer(name)}
