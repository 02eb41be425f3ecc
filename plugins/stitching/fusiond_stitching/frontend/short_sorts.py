"""`sort` of short rows by counting: an element's place is how many come before it.

    place[i]  = number of j with  x[j] before x[i],  or  neither before the other and j < i
    y[r]      = x[i] where place[i] = r

All pairs are compared, which n threads do in n steps without a word to each other: of a router's 64 experts, a median
of 9, a beam. Longer rows are left to a library's sort. The order is the module's own comparison, whatever it compares;
elements that are neither before nor behind each other keep their order, as a stable sort has it.
"""

import math
from collections.abc import Sequence

from fusiond_stitching.frontend.building import Add, Expansion
from fusiond_stitching.frontend.graph import DTYPES, Computation, HloInstruction, least
from fusiond_stitching.frontend.hlo import Raw

LONGEST = 128  #: Elements of a row
MOST_PAIRS = 1 << 31  #: Comparisons in all


def possible(raw: Raw, sources: Sequence[HloInstruction]) -> bool:
    """Whether rows are short enough, and of types that code is written for."""
    if not sources or any(each.dtype not in DTYPES or each.dims != sources[0].dims for each in sources):
        return False
    at, dims = raw.integers("dimensions"), sources[0].dims
    if len(at) != 1 or not 0 <= at[0] < len(dims) or math.prod(dims) == 0:
        return False
    return dims[at[0]] <= LONGEST and math.prod(dims) * dims[at[0]] <= MOST_PAIRS


def expanded(raw: Raw, name: str, sources: Sequence[HloInstruction], before: Computation, put: Add) -> list[str]:
    """The names of the sorted values. `before`: of (x0, y0, x1, y1, ...) whether the x come before the y."""
    at, dims = raw.integers("dimensions")[0], sources[0].dims
    pairs = (*dims[: at + 1], *dims[at:])  # each element (dimension `at`) beside each other one, or place
    build = Expansion(name, put)

    def along(value: str, kind: str, new: int) -> str:
        """A value of the row's dims, the same along a new dimension."""
        return build.add("broadcast", kind, pairs, value, dimensions=tuple(at for at in range(len(pairs)) if at != new))

    def compared(xs: Sequence[str], ys: Sequence[str]) -> str:
        """The module's comparison, of all pairs at once."""
        return build.applied(before, pairs, *(value for pair in zip(xs, ys, strict=True) for value in pair))

    def chosen_of(value: str, kind: str) -> str:
        """The one that is chosen: all others count as the least there is."""
        operation, lowest = ("or", 0) if kind == "pred" else ("maximum", least(kind))
        others = build.number(lowest, kind, pairs)
        return build.reduced(
            build.add("select", kind, pairs, chosen, value, others), kind, pairs, at, operation, lowest
        )

    first = [along(each.name, each.dtype, at + 1) for each in sources]
    second = [along(each.name, each.dtype, at) for each in sources]
    behind = compared(second, first)
    equal = build.add("not", "pred", pairs, compared(first, second))
    own, other = build.iota(pairs, at), build.iota(pairs, at + 1)
    earlier = build.add("and", "pred", pairs, equal, build.compared(other, own, pairs, "LT"))
    ones = build.add("convert", "s32", pairs, build.add("or", "pred", pairs, behind, earlier))
    place = along(build.reduced(ones, "s32", pairs, at + 1, "add", 0), "s32", at + 1)
    chosen = build.compared(place, build.iota(pairs, at + 1), pairs, "EQ")
    return [chosen_of(value, each.dtype) for value, each in zip(first, sources, strict=True)]
