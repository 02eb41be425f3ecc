"""Groups that do not depend on each other put into one, after all instructions have theirs."""

from __future__ import annotations

from collections.abc import Container, Iterable

from fusiond_stitching.analysis import fusion
from fusiond_stitching.analysis.open_groups import OpenGroup, OpenGroups
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.frontend.graph import BYTES, HloModule


def siblings(
    module: HloModule, policy: FusionPolicy, groups: OpenGroups, apart: Container[str], calls: Iterable[str]
) -> None:
    """`xla`: multi-output fusion. Groups of one place that read a common buffer share a kernel: reduces over equal
    dims, and loops over equal dims."""
    owner = {name for group in groups for name in group.members} | set(calls)
    open_: dict[tuple[object, ...], list[tuple[OpenGroup, set[str]]]] = {}
    for group in groups:
        root = module[group.root]
        if root.opcode in ("scatter", "dot"):
            continue
        key: tuple[object, ...] = (group.place, root.dims)
        if root.opcode == "reduce":
            key = (group.place, module[root.operands[0]].dims, root.attributes["dimensions"])
        read = fusion.read(module, group.members, owner)
        for into, theirs in open_.setdefault(key, []):
            room = group.root not in apart and _room_beside(module, policy, into, group)
            if read & theirs and room and groups.put_beside(into, group):
                theirs |= read
                break
        else:
            open_[key].append((group, read))


def _room_beside(module: HloModule, policy: FusionPolicy, into: OpenGroup, group: OpenGroup) -> bool:
    """Whether shared memory is not bound to set them apart: reduces exchange an accumulator of every thread."""
    reduces = [module[each] for one in (into, group) for each in one.members]
    each = [BYTES[one.dtype] * policy.threads for one in reduces if one.opcode == "reduce"]
    return len(each) <= 1 or sum(each) <= policy.shared_limit


def layers(module: HloModule, policy: FusionPolicy, groups: OpenGroups) -> None:
    """ElementwiseFusion (section 3.2): element-wise groups of one layer with equal output shapes become one, while what
    they read and write stays below the footprint."""
    open_: dict[tuple[object, ...], tuple[OpenGroup, int]] = {}
    for group in groups:
        if not group.elementwise:
            continue
        key = (group.place, group.layer if policy.layers else 0, module[group.root].dims)
        size = _footprint(module, group.members)
        held = open_.get(key)
        if held is None or held[1] + size > policy.footprint_bytes:
            open_[key] = (group, size)
            continue
        into = held[0]
        if groups.put_beside(into, group):
            open_[key] = (into, held[1] + size)


def _footprint(module: HloModule, members: Iterable[str]) -> int:
    own = set(members)
    names = {each for member in members for each in module[member].operands} | own
    return sum(module[each].size_bytes for each in names)
