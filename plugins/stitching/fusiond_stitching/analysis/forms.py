"""The forms of a module that a config may ask for: the same work, in other instructions.

reductions   whole | split        large ones in two steps, and a long row's maximum and sum of exponentials in one
scatters     updates | tiles | elements     each update goes to its element (tiles: the same, in another order; sorted
             before, where the order matters); or each element looks at all updates (those that would look too often
             go by updates in either form)
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from fusiond_stitching.analysis import online_reductions, split_reductions
from fusiond_stitching.frontend import scatter_updates
from fusiond_stitching.frontend.graph import HloInstruction, HloModule

FEW_LOOKS = 1 << 22  #: Updates that all elements together look at in a microsecond or two
MANY_HITS = 4
"""Updates for an element of the result, in the mean, from which on rows are worth keeping in the second-level cache."""
CACHED_BYTES = 16 << 20  #: What surely stays there anyway
SPLIT, WHOLE, UPDATES, TILES, ELEMENTS = "split", "whole", "updates", "tiles", "elements"


@dataclass(frozen=True, slots=True)
class Forms:
    """Every form; two that do not differ are the very same module. `fused`: the same for what is fused, where numbers
    that are outputs are computed once more for them (`_numbers_apart`)."""

    of: Mapping[tuple[str, str], HloModule]
    fused: Mapping[tuple[str, str], HloModule]
    few_looks: bool = False
    """Whether the scatters are so small that a loop over all updates is likely to cost less than a launch."""
    many_hits: bool = False  #: Whether the largest scatter's rows are hit many times, and are too large for a cache

    @property
    def split(self) -> bool:
        """Whether there are reductions that may be split."""
        return self.of[SPLIT, UPDATES] is not self.of[WHOLE, UPDATES]

    @property
    def scatters(self) -> tuple[str, ...]:
        """How scatters may be computed, where there are some that go by their updates: the likeliest way first."""
        if not self.of[WHOLE, UPDATES].in_place:
            return ()
        if self.of[WHOLE, UPDATES] is self.of[WHOLE, ELEMENTS]:  # as they are, they would not come to an end
            return (TILES, UPDATES) if self.many_hits else (UPDATES, TILES)
        if self.few_looks:
            return (ELEMENTS, UPDATES, TILES)
        return (TILES, UPDATES, ELEMENTS) if self.many_hits else (UPDATES, TILES, ELEMENTS)

    def __call__(self, reductions: object = WHOLE, scatters: object = UPDATES) -> HloModule:
        """The module in one form, to be fused; KeyError where there is no such form."""
        return self.fused[str(reductions), UPDATES if scatters == TILES else str(scatters)]

    def plain(self, reductions: object = WHOLE, scatters: object = UPDATES) -> HloModule:
        """The same where nothing is fused, or as others fuse."""
        return self.of[str(reductions), UPDATES if scatters == TILES else str(scatters)]


def forms(module: HloModule, multiprocessors: int, *, deterministic: bool = False) -> Forms:
    """All forms of a module, for a device with so many multiprocessors. `deterministic`: scatters whose sums depend on
    the order of their updates are sorted."""
    found: dict[tuple[str, str], HloModule] = {}
    for scatters in (UPDATES, ELEMENTS):
        whole = scatter_updates.rewritten(module, all_of_them=scatters == UPDATES, deterministic=deterministic)
        if scatters == ELEMENTS and len(whole.in_place) == len(found[WHOLE, UPDATES].in_place):
            whole = found[WHOLE, UPDATES]
        found[WHOLE, scatters] = whole
        if whole is found[WHOLE, UPDATES] and scatters == ELEMENTS:
            found[SPLIT, scatters] = found[SPLIT, UPDATES]
            continue
        found[SPLIT, scatters] = split_reductions.reductions(
            online_reductions.rewritten(whole), max(1, multiprocessors)
        )
    by_updates = found[WHOLE, UPDATES]
    changed = [(by_updates[name], by_updates[by_updates[name].operands[2]]) for name in by_updates.in_place]
    looks = sum(scatter_updates.looks(each, updates) for each, updates in changed)
    hits = [
        updates.elements / each.elements
        for each, updates in changed
        if each.size_bytes > CACHED_BYTES and updates.dims[-1:] == each.dims[-1:]
    ]
    fused: dict[int, HloModule] = {}
    for each in found.values():
        fused.setdefault(id(each), _numbers_apart(each))
    for_fusion = {key: fused[id(each)] for key, each in found.items()}
    return Forms(found, for_fusion, few_looks=looks <= FEW_LOOKS, many_hits=max(hits, default=0) >= MANY_HITS)


def _numbers_apart(module: HloModule) -> HloModule:
    """Numbers that are outputs and are read by others, too: the output is computed by itself, so that whoever reads the
    number can compute it again, and need not wait for it (the step of an optimizer, read by all leaves). The very same
    module where there are none."""
    found: list[HloInstruction] = []
    outputs = list(module.outputs)
    for each in module.instructions:
        found.append(each)
        if each.name in module.is_output and each.elements == 1 and each.elementwise and module.users[each.name]:
            own = f"{each.name}~number"
            found.append(dataclasses.replace(each, name=own))
            outputs[outputs.index(each.name)] = own
    if len(found) == len(module.instructions):
        return module
    return dataclasses.replace(module, instructions=tuple(found), outputs=tuple(outputs))
