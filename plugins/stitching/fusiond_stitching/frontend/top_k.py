"""`topk` of few elements as a sequence of reductions.

    order    a before b  :=  a > b, or a is NaN and b is not; of equals, the one with the lower index
    step t   (value, index) of the first, in this order, of those elements that the last step's element is before

No element is marked or moved, so a row that is held in registers is read once. XLA sorts the row or keeps heaps; a
router's two of 64, or a beam's eight, are k reductions over what is at hand.
"""

from dataclasses import replace

from fusiond.model.language.dtypes import is_float
from fusiond_stitching.frontend.building import Add, Expansion
from fusiond_stitching.frontend.graph import DTYPES, Computation, HloInstruction, least, scalar
from fusiond_stitching.frontend.hlo import Raw

MOST = 8  #: Values asked for: each is one more sweep over the row
_LAST = 2**31 - 1  #: An index that no element has


def possible(raw: Raw, source: HloInstruction) -> bool:
    """Whether it is the few largest of values of a type that code is written for."""
    largest = raw.attributes.get("largest", "true").strip() == "true"
    known = source.dtype in DTYPES and source.dtype != "pred"
    return largest and known and bool(source.dims) and 0 < raw.integer("k") <= min(MOST, source.dims[-1])


def expanded(raw: Raw, name: str, source: HloInstruction, put: Add) -> tuple[str, str]:
    """The names of the values and of their indices, both [..., k]."""
    kind, dims, k = source.dtype, source.dims, raw.integer("k")
    row, build = dims[:-1], Expansion(name, put)
    index = build.iota(dims, len(row))
    lowest, last = build.constant(least(kind), kind), build.constant(_LAST, "s32")
    given = {"dimensions": (len(row),), "computation": _computation(kind)}
    values, indices = source.name, index
    found: dict[str, list[str]] = {"value": [], "index": []}
    for step in range(k):
        operands = (values, indices, lowest, last)
        best = build.add("reduce", kind, row, *operands, **given, result=0)
        where = build.add("reduce", "s32", row, *operands, **given, result=1)
        found["value"].append(build.add("reshape", kind, (*row, 1), best))
        found["index"].append(build.add("reshape", "s32", (*row, 1), where))
        if step + 1 < k:
            along = tuple(range(len(row)))
            best = build.add("broadcast", kind, dims, best, dimensions=along)
            where = build.add("broadcast", "s32", dims, where, dimensions=along)
            behind = build.applied(_before(kind), dims, best, where, source.name, index)
            lows = build.add("broadcast", kind, dims, lowest, dimensions=())
            values = build.add("select", kind, dims, behind, source.name, lows)
            lasts = build.add("broadcast", "s32", dims, last, dimensions=())
            indices = build.add("select", "s32", dims, behind, index, lasts)
    values = build.add("concatenate", kind, (*row, k), *found["value"], dimension=len(row))
    return values, build.add("concatenate", "s32", (*row, k), *found["index"], dimension=len(row))


def _computation(kind: str) -> Computation:
    """Of two pairs (value, index), the one that is before the other."""
    chosen = [
        scalar("value", "select", kind, "before", "v1", "v2"),
        scalar("index", "select", "s32", "before", "i1", "i2"),
    ]
    before = _before(kind)
    return replace(before, instructions=(*before.instructions, *chosen), results=("value", "index"))


def _before(kind: str) -> Computation:
    """Whether (v1, i1) is before (v2, i2)."""

    def compared(name: str, one: str, other: str, direction: str) -> HloInstruction:
        return scalar(name, "compare", "pred", one, other, direction=direction, total=False)

    floats = is_float(DTYPES[kind])
    steps = [
        compared("larger", "v1", "v2", "GT"),
        compared("same", "v1", "v2", "EQ"),
        compared("earlier", "i1", "i2", "LT"),
    ]
    if floats:
        steps += [
            compared("none1", "v1", "v1", "NE"),
            compared("none2", "v2", "v2", "NE"),
            scalar("one2", "not", "pred", "none2"),
            scalar("above", "and", "pred", "none1", "one2"),
            scalar("none", "and", "pred", "none1", "none2"),
            scalar("first", "or", "pred", "larger", "above"),
            scalar("equal", "or", "pred", "same", "none"),
        ]
    first, equal = ("first", "equal") if floats else ("larger", "same")
    steps += [scalar("tied", "and", "pred", equal, "earlier"), scalar("before", "or", "pred", first, "tied")]
    return Computation.of({"v1": kind, "i1": "s32", "v2": kind, "i2": "s32"}, steps, "before")
