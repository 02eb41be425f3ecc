"""Joins groups that fusion kept apart where their rows fit into registers side by side.

Fusion (section 3.2) joins an instruction to its readers when one schedule suits everybody. Rows in registers ask for
less: groups over the same rows can be one whatever schedules they had, as long as nothing outside stands between them.
Statistics and what uses them, a gradient and the sums of its weights, two reductions of one input: each pair that
shares a tensor as wide as the rows reads it once from then on.

Places are given anew afterwards, by the rules of `fusion`.
"""

import dataclasses
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

from fusiond.model.nouns import frozen
from fusiond_stitching.analysis import row_shapes, rows
from fusiond_stitching.analysis.fusion import (
    CHAIN,
    END,
    Elsewhere,
    Fusion,
    FusionGroup,
    GroupContext,
    LaunchPlace,
    in_order,
    read,
)
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.frontend.graph import BYTES, EXPENSIVE, MOVEMENT, SOURCES, HloModule, reached

MOST_MEMBERS = 400  #: Of a group that is looked at
FAR_LESS = 64  #: How much smaller a reduction is that has a launch of its own
LARGE_BYTES = 1 << 22  #: What is read to be summed over rows: less is not worth a launch
LEAST_BYTES = 1 << 12  #: A shared tensor that is smaller is not worth it


def merged(module: HloModule, policy: FusionPolicy, fusion: Fusion, lifted: Mapping[str, LaunchPlace]) -> Fusion:
    """The fusion with groups put together; the same one where there are none."""
    if not policy.registers or policy.rules != "stitch":
        return fusion
    graph = _Graph(module, policy, fusion)
    changed = graph.cut_sums()
    while graph.recompute():
        changed = True
    while pair := graph.next():
        graph.unite(*pair)
        changed = True
    return graph.fusion(lifted) if changed else fusion


@dataclass(slots=True)
class _Node:
    """A group while it is looked at. `reads`: values from elsewhere, through what is inlined."""

    group: FusionGroup
    reads: frozenset[str]


class _Graph:
    def __init__(self, module: HloModule, policy: FusionPolicy, fusion: Fusion) -> None:
        self.module = module
        self.policy = policy
        self.before = fusion
        self.owner = {name: at for at, group in enumerate(fusion.groups) for name in group.members}
        self.filled: ChainMap[str, Any] = ChainMap(self.owner, dict(fusion.calls))  #: What has a buffer
        self.nodes = {at: _Node(group, self._reads(group.members)) for at, group in enumerate(fusion.groups)}
        self.tried: set[tuple[int, int]] = set()

    def _reads(self, members: Iterable[str]) -> frozenset[str]:
        """Parameters, results of library calls, and members of other groups."""
        return frozenset(read(self.module, members, self.filled))

    # --- sums of columns ---

    def cut_sums(self) -> bool:
        """Groups that sum columns in two steps become two, so that the first step goes with what computes the rows."""
        changed = [self._cut_partial_sums(at) for at in self._large()]
        changed += [self._cut_small_reductions(at) for at in self._large()]
        for at, node in self.nodes.items():
            self.nodes[at] = _Node(node.group, self._reads(node.group.members))
        return any(changed)

    def _large(self) -> Iterator[int]:
        """The groups that read something large, one after the other."""
        for at, node in list(self.nodes.items()):
            if max((self.module[name].size_bytes for name in node.reads), default=0) >= LARGE_BYTES:
                yield at

    def _cut_partial_sums(self, at: int) -> bool:
        """What depends on partial sums becomes a group of its own."""
        group = self.nodes[at].group
        behind = self._behind_partial_sums(group)
        first = tuple(name for name in group.members if name not in behind)
        return bool(behind and first) and self._cut(at, first, check=first)

    def _cut_small_reductions(self, at: int) -> bool:
        """Reductions of far less than the rest become a group of their own, where the rest has its rows in registers
        without them only."""
        group = self.nodes[at].group
        small = self._small_reductions(group)
        first = tuple(name for name in group.members if name in small)
        rest = tuple(name for name in group.members if name not in small)
        if not first or not rest or self._in_rows(group) or self._goes_with_what_it_reads(at):
            return False
        return self._cut(at, first, check=rest)

    def _goes_with_what_it_reads(self, at: int) -> bool:
        """Whether a group has its rows in registers together with one that it reads: sums of channels there, sums of
        these here."""
        group = self.nodes[at].group
        before = {self.owner[name] for name in self.nodes[at].reads if name in self.owner}
        return any(self._in_rows(self._united(group, self.nodes[other].group)) for other in sorted(before))

    def _cut(self, at: int, first: tuple[str, ...], check: tuple[str, ...]) -> bool:
        """Makes two groups of one, if that one of them whose members are `check` has its rows in registers then."""
        group = self.nodes[at].group
        last = tuple(name for name in group.members if name not in first)
        new = max(self.nodes) + 1
        self._put(at, _part_of(group, last))
        self._put(new, _part_of(group, first))
        if self._in_rows(self.nodes[new if check == first else at].group):
            return True
        del self.nodes[new]
        self._put(at, group)
        return False

    def _in_rows(self, group: FusionGroup) -> bool:
        elsewhere = Elsewhere(self.filled, frozenset(group.members))
        context = GroupContext(self.module, self.policy, group, self._stored(group), elsewhere)
        return rows.block_program(context, "") is not None

    def _small_reductions(self, group: FusionGroup) -> set[str]:
        """Reductions of far less than the group's widest tensor, what they need, and what is as small and needs no
        more: a mean of partial sums, say. Empty where they need what is wide."""
        read = {name: self.module[name].operands[0] for name in group.members if self.module[name].opcode == "reduce"}
        sizes = [self.module[name].elements for name in (*group.members, *read.values())]
        small = {name for name, source in read.items() if self.module[source].elements * FAR_LESS < max(sizes)}
        most = max((self.module[name].elements for name in small), default=0)
        found: set[str] = set()
        for name in reversed(group.members):
            if name in small or any(name in self._needs(each, group) for each in found):
                found.add(name)
        if any(self.module[name].elements * FAR_LESS >= max(sizes) for name in found):
            return set()
        for name in group.members:
            besides = [each for each in self._reads((name,)) if each not in self.owner]
            small_too = all(self.module[each].elements <= most for each in (name, *besides))
            if small_too and self._needs(name, group) <= found:
                found.add(name)
        return found

    def _needs(self, name: str, group: FusionGroup) -> set[str]:
        """The members that a member reads, through what is inlined."""
        return read(self.module, (name,), self.filled).intersection(group.members)

    def _put(self, at: int, group: FusionGroup) -> None:
        self.owner.update(dict.fromkeys(group.members, at))
        self.nodes[at] = _Node(group, self._reads(group.members))

    def _behind_partial_sums(self, group: FusionGroup) -> set[str]:
        """What depends on sums over some of the rows that are summed again."""
        members = set(group.members)
        partial = {
            name for name in members
            if self.module[name].opcode == "reduce" and row_shapes.sums_runs(self.module, self.module[name])
        }  # fmt: skip
        behind: set[str] = set()
        for name in group.members:
            if self._needs(name, group) & (partial | behind):
                behind.add(name)
        return behind if any(self.module[name].opcode == "reduce" for name in behind) else set()

    # --- what is cheaper computed again ---

    def recompute(self) -> bool:
        """Takes from their groups wide values that another group reads, where one wide buffer gives them by a few cheap
        instructions: they are computed where they are read, and stored no more. What these instructions read in their
        group is then read by the others, and looked at next time. Whether there were any."""
        changed = False
        for at, node in list(self.nodes.items()):
            dropped = {name for name in node.group.members if self._read_outside(name, at) and self._cheap(name, at)}
            left = tuple(name for name in node.group.members if name not in dropped)
            if dropped and left:
                for name in dropped:
                    del self.owner[name]
                self._put(at, _part_of(node.group, left))
                changed = True
        for at, node in self.nodes.items() if changed else ():
            self.nodes[at] = _Node(node.group, self._reads(node.group.members))
        return changed

    def _read_outside(self, name: str, at: int) -> bool:
        """By other groups, and by nobody who needs it in memory."""
        if name in self.module.is_output or any(name in names for names in self.before.read.values()):
            return False
        return any(name in node.reads for other, node in self.nodes.items() if other != at)

    def _cheap(self, name: str, at: int) -> bool:
        """A chain of cheap element-wise instructions over one wide buffer, and over what is small."""
        elements = self.module[name].elements
        wide: set[str] = set()
        steps = 0
        stack, seen = [name], {name}
        while stack:
            each = self.module[stack.pop()]
            inside = each.opcode in MOVEMENT or (each.elementwise and each.opcode not in EXPENSIVE)
            own = self.owner.get(each.name)
            if each.opcode in SOURCES or each.name in self.before.calls or (own is not None and own != at):
                wide |= {each.name} if each.elements * FAR_LESS > elements and each.opcode != "constant" else set()
            elif not inside:
                if each.elements * FAR_LESS > elements:
                    return False
            else:
                steps += each.elementwise and each.elements * FAR_LESS > elements
                new = [operand for operand in each.operands if operand not in seen]
                seen.update(new)
                stack += new if each.elements * FAR_LESS > elements else []
        return len(wide) <= 1 and steps <= CHAIN and elements * BYTES[self.module[name].dtype] >= LEAST_BYTES

    # --- pairs ---

    def next(self) -> tuple[int, int] | None:
        """Two groups that can be one, those that share most first."""
        found = sorted(self._sharing(), key=lambda each: (-each[0], each[1:]))
        for _, first, second in found:
            self.tried.add((first, second))
            if self._can_be_one(first, second):
                return first, second
        return None

    def _sharing(self) -> Iterator[tuple[int, int, int]]:
        """(bytes that both touch, one group, the other), of those not yet tried."""
        readers: dict[str, list[int]] = {}
        for at, node in self.nodes.items():
            for name in node.reads:
                readers.setdefault(name, []).append(at)
        shared: dict[tuple[int, int], int] = {}
        for name, those in readers.items():
            size = self.module[name].size_bytes
            owner = self.owner.get(name)
            together = sorted({*those, *([owner] if owner is not None else [])})
            if size < LEAST_BYTES or len(together) > 16:
                continue
            for place, first in enumerate(together):
                for second in together[place + 1 :]:
                    shared[first, second] = shared.get((first, second), 0) + size
        for (first, second), size in shared.items():
            if (first, second) not in self.tried:
                yield size, first, second

    def _can_be_one(self, first: int, second: int) -> bool:
        a, b = self.nodes[first], self.nodes[second]
        between = self._leads(first, second) or self._leads(second, first)
        small = len(a.group.members) + len(b.group.members) <= MOST_MEMBERS
        return small and not between and self._in_rows(self._united(a.group, b.group))

    def _united(self, first: FusionGroup, second: FusionGroup) -> FusionGroup:
        members = tuple(sorted((*first.members, *second.members), key=self.module.number.__getitem__))
        root = first.root if self.module.number[first.root] > self.module.number[second.root] else second.root
        return dataclasses.replace(first, root=root, members=members, candidates=())

    def _stored(self, group: FusionGroup) -> frozenset[str]:
        """The members that others, library calls or the caller need."""
        own = set(group.members)
        outside = {name for node in self.nodes.values() if node.group.members[0] not in own for name in node.reads}
        for names in self.before.read.values():
            outside |= names
        return frozenset(name for name in own if name in self.module.is_output or name in outside)

    def _leads(self, source: int, target: int) -> bool:
        """A path from `source` over another group or call to `target`."""
        feeds = self._feeds()
        others = feeds.get(source, set()) - {target}
        return target in reached(others, lambda each: () if each == target else feeds.get(each, ()))

    def _feeds(self) -> dict[object, set[object]]:
        """Group number or call -> those that read it."""
        found: dict[object, set[object]] = {}
        reads: list[tuple[object, frozenset[str]]] = [(at, node.reads) for at, node in self.nodes.items()]
        for reader, names in (*reads, *self.before.read.items()):
            for name in names:
                if name in self.filled:
                    found.setdefault(self.owner.get(name, name), set()).add(reader)
        return found

    def unite(self, first: int, second: int) -> None:
        group = self._united(self.nodes[first].group, self.nodes[second].group)
        del self.nodes[second]
        self._put(first, group)
        self.tried = {pair for pair in self.tried if first not in pair and second not in pair}

    # --- places ---

    def fusion(self, lifted: Mapping[str, LaunchPlace]) -> Fusion:
        """The groups at the places that their readers leave them."""
        places: dict[object, LaunchPlace] = {}
        feeds = self._feeds()
        everything: list[object] = [*self.nodes, *self.before.calls]
        for each in TopologicalSorter({each: feeds.get(each, ()) for each in everything}).static_order():
            places[each] = self._place(each, feeds.get(each, ()), places, lifted)
        groups = [dataclasses.replace(node.group, place=places[at]) for at, node in self.nodes.items()]
        calls = {call: places.get(call, END) for call in self.before.calls}
        reasons = {name: why for name, why in self.before.reasons.items() if any(name == each.root for each in groups)}
        return Fusion(
            groups=in_order(self.module, groups), calls=frozen(calls), read=self.before.read, reasons=frozen(reasons)
        )

    def _place(
        self,
        each: object,
        readers: Iterable[object],
        places: Mapping[object, LaunchPlace],
        lifted: Mapping[str, LaunchPlace],
    ) -> LaunchPlace:
        is_call = isinstance(each, str)
        place = END if is_call else (0, 0)
        if isinstance(each, int):
            place = max([place, *(lifted[name] for name in self.nodes[each].group.members if name in lifted)])
        for reader in readers:
            theirs = places[reader]
            if is_call:
                above = theirs
            elif isinstance(reader, str) or not self.policy.barriers:
                above = (theirs[0] + 1, 0)
            else:
                above = (theirs[0], theirs[1] + 1)
            place = max(place, above)
        return place


def _part_of(group: FusionGroup, members: tuple[str, ...]) -> FusionGroup:
    return dataclasses.replace(group, members=members, root=members[-1])
