"""The forms of a module that a config may ask for: the same work, in other instructions.

reductions   whole | split        large ones in two steps, and a long row's maximum and sum of exponentials in one
scatters     updates | elements   each update goes to its element; or each element looks at all updates (those that
                                  would look too often go by updates in either form)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusiond_stitching.analysis import online_reductions, split_reductions
from fusiond_stitching.frontend import scatter_updates
from fusiond_stitching.frontend.graph import Module

FEW_LOOKS = 1 << 22
"""Updates that all elements together look at in a microsecond or two."""
SPLIT, WHOLE, UPDATES, ELEMENTS = "split", "whole", "updates", "elements"


@dataclass(frozen=True, slots=True)
class Forms:
    """Every form; two that do not differ are the very same module."""

    of: Mapping[tuple[str, str], Module]
    few_looks: bool = False
    """Whether the scatters are so small that a loop over all updates is likely to cost less than a launch."""

    @property
    def split(self) -> bool:
        """Whether there are reductions that may be split."""
        return self.of[SPLIT, UPDATES] is not self.of[WHOLE, UPDATES]

    @property
    def scatters(self) -> tuple[str, ...]:
        """How scatters may be computed, where there are some that can be either way: the likelier one first."""
        if self.of[WHOLE, UPDATES] is self.of[WHOLE, ELEMENTS]:
            return ()
        return (ELEMENTS, UPDATES) if self.few_looks else (UPDATES, ELEMENTS)

    def __call__(self, reductions: object = WHOLE, scatters: object = UPDATES) -> Module:
        """The module in one form; KeyError where there is no such form."""
        return self.of[str(reductions), str(scatters)]


def forms(module: Module, multiprocessors: int) -> Forms:
    """All forms of a module, for a device with so many multiprocessors."""
    found: dict[tuple[str, str], Module] = {}
    for scatters in (UPDATES, ELEMENTS):
        whole = scatter_updates.rewritten(module, all_of_them=scatters == UPDATES)
        if scatters == ELEMENTS and len(whole.in_place) == len(found[WHOLE, UPDATES].in_place):
            whole = found[WHOLE, UPDATES]
        found[WHOLE, scatters] = whole
        if whole is found[WHOLE, UPDATES] and scatters == ELEMENTS:
            found[SPLIT, scatters] = found[SPLIT, UPDATES]
            continue
        found[SPLIT, scatters] = split_reductions.reductions(
            online_reductions.rewritten(whole), max(1, multiprocessors)
        )
    changed = [found[WHOLE, UPDATES][name] for name in found[WHOLE, UPDATES].in_place]
    looks = [scatter_updates.looks(each, found[WHOLE, UPDATES][each.operands[2]]) for each in changed]
    return Forms(found, few_looks=sum(looks) <= FEW_LOOKS)
