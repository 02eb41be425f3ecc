"""XLA's limit to what one kernel's code repeats: at how many different indices it computes a value."""

from __future__ import annotations

from fusiond_stitching.analysis.open_groups import OpenGroup
from fusiond_stitching.frontend.graph import HloInstruction, HloModule

EVALUATIONS = 64
"""At how many indices the code of one kernel may compute a value. XLA has such a limit too: the code of a stencil that
is applied n times grows exponentially, and no compiler would come to its end."""


class Evaluations:
    def __init__(self, module: HloModule) -> None:
        self.module = module
        self.indices: dict[tuple[int, str], frozenset[int]] = {}
        """(group, value) -> indices at which the value is computed."""
        self.derived: dict[tuple[int, str, int], int] = {}
        """(index, reader, operand) -> index."""

    def begin(self, group: OpenGroup) -> None:
        """The root of a group is computed at one index."""
        self.indices[group.number, group.root] = frozenset({0})

    def add(self, group: OpenGroup, instruction: HloInstruction) -> None:
        """An instruction stands in the code of a group's kernel from now on."""
        self.indices[group.number, instruction.name] = self.of(group, instruction)

    def of(self, group: OpenGroup, instruction: HloInstruction) -> frozenset[int]:
        """At how many different indices a kernel would compute this value, each standing in its code (known up
        to one more than is allowed). Element-wise users share their index with it; all others have one of their own."""
        found: set[int] = set()
        for user in self.module.users[instruction.name]:
            own = self.indices.get((group.number, user), frozenset())
            if self.module[user].elementwise:
                found |= own
                continue
            places = [at for at, each in enumerate(self.module[user].operands) if each == instruction.name]
            for index in sorted(own):
                for at in places:
                    found.add(self.derived.setdefault((index, user, at), len(self.derived) + 1))
            if len(found) > EVALUATIONS:
                break
        return frozenset(sorted(found)[: EVALUATIONS + 1])
