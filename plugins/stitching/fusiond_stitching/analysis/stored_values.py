"""Decides which values of a group are stored (size requirements, section 5.1.1); others are computed where they are
read.

Stored is what others read through global memory, every reduce, scatter and dot, and every element-wise value whose
recomputation would cost more than a buffer and a barrier: with several readers, or read once by something that reads it
many times, as the paper's Divide in front of a dot.
"""

import functools
from collections.abc import Container, Mapping
from dataclasses import dataclass

from fusiond_stitching.analysis.fusion import GroupContext
from fusiond_stitching.analysis.plan import Chunk
from fusiond_stitching.frontend.graph import EXPENSIVE, HloInstruction, HloModule

SMALL_REDUCE = 8  #: A reduce over this many elements or fewer may be inlined
WEIGHT_EXPENSIVE = 20
WEIGHT_READ = 4
WEIGHT_MOST = 400
BARRIER = 40
"""Weights in the cost of a cheap instruction, per thread: rough, and only used to decide who gets a buffer."""
SITES = 12  #: A value that stands in more different places of the generated code than this is stored, whatever it costs


@dataclass
class StoredValues:
    context: GroupContext
    chunks: Mapping[str, Chunk]

    def __post_init__(self) -> None:
        self.module = self.context.module
        self.policy = self.context.policy

    @functools.cached_property
    def weight(self) -> dict[str, int]:
        """What it costs to compute one element on the spot, everything inlined down to reduces and buffers."""
        found: dict[str, int] = {}
        for each in self.context.nodes:
            own = WEIGHT_EXPENSIVE if each.opcode in EXPENSIVE else 1
            for operand in each.operands:
                source = self.module[operand]
                heavy = source.opcode in ("reduce", "dot", "scatter")
                own += WEIGHT_READ if heavy or operand not in found else found[operand]
            found[each.name] = min(own, WEIGHT_MOST)
        return found

    def must(self, instruction: HloInstruction) -> bool:
        if instruction.name in self.context.stored:
            return True
        if instruction.opcode == "reduce":
            return self.module.inputs(instruction) > SMALL_REDUCE
        return instruction.opcode in ("scatter", "dot")

    def chosen(self, dropped: Container[str]) -> list[str]:
        """Everything that is stored, in topological order. `dropped` shall not be, unless it must."""
        kept: set[str] = set()
        sites: dict[str, dict[tuple[object, ...], int]] = {}
        members = frozenset(self.context.group.members)
        for each in reversed(self.context.nodes):
            own = sites.pop(each.name, {})
            member = each.name in members
            keep = member and self.must(each)
            if member and not keep and own and each.name not in dropped and self.policy.rules == "stitch":
                keep = self._worth(each, own)
            if keep:
                kept.add(each.name)
                chunk = self.chunks[each.name]  # loop nests are told apart by it, their dims, and what they reduce
                own = {((chunk, each.dims, reduce_key(self.module, each)),): chunk.size * self.module.inputs(each)}
            for place, operand in enumerate(each.operands):
                if operand not in self.weight:
                    continue
                into = sites.setdefault(operand, {})
                for site, count in own.items():
                    same = each.elementwise or (keep and each.opcode == "reduce")
                    where = site if same else (*site, each.name, place)
                    more = self.module.inputs(each) if not keep and each.opcode == "reduce" else 1
                    into[where] = max(into.get(where, 0), count * more)
                    if len(into) > 2 * SITES:
                        break
        return [each.name for each in self.context.nodes if each.name in kept]

    def _worth(self, instruction: HloInstruction, sites: Mapping[tuple[object, ...], int]) -> bool:
        count = sum(sites.values())
        local = self.chunks[instruction.name].size
        if len(sites) > SITES:
            return True
        if not self.policy.merge:  # the paper's rule (section 5.1.1)
            reused = instruction.opcode in EXPENSIVE and count > 2 * local
            return len(sites) > 1 or reused
        saved = self.weight[instruction.name] * (count - local)
        return saved > WEIGHT_READ * local + 2 * count + BARRIER * self.policy.threads


def reduce_key(module: HloModule, instruction: HloInstruction) -> tuple[object, ...] | None:
    """What the loops of reduces are told apart by; None for everything else."""
    if instruction.opcode != "reduce":
        return None
    return (module[instruction.operands[0]].dims, instruction.attributes["dimensions"])
