"""Work and span (section 3.1): the layers of a graph, its library-call layers, and the frames between them."""

import bisect
from collections.abc import Mapping
from dataclasses import dataclass

from fusiond_stitching.frontend.graph import HloModule


@dataclass(frozen=True)
class LayerSpans:
    """`of`: instruction -> span. Outputs have 0, everything else one more than the largest of its users; what nobody
    reads (an unused parameter) has 0."""

    of: Mapping[str, int]
    library: tuple[int, ...]  #: The spans of the library-call layers, from the outputs up

    @property
    def length(self) -> int:
        """The critical path: the largest span."""
        return max(self.of.values(), default=0)

    def between(self, name: str) -> int:
        """The number of library-call layers below: instructions with the same number may be fused."""
        return bisect.bisect_right(self.library, self.of[name])


def analyse(module: HloModule) -> LayerSpans:
    """The spans of a module; while and conditional bodies are modules of their own and are analysed apart."""
    spans: dict[str, int] = {}
    for instruction in reversed(module.instructions):
        users = module.users[instruction.name]
        spans[instruction.name] = 1 + max((spans[each] for each in users), default=-1)
    library = sorted({spans[each.name] for each in module.instructions if module.library(each)})
    return LayerSpans(of={each.name: spans[each.name] for each in module.instructions}, library=tuple(library))
