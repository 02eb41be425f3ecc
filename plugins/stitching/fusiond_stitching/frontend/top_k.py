"""`topk` of few elements as a sequence of reductions.

    order    a before b  :=  a > b, or a is NaN and b is not; of equals, the one with the lower index
    step t   (value, index) of the first, in this order, of those elements that the last step's element is before

No element is marked or moved, so a row that is held in registers is read once. XLA sorts the row or keeps heaps; a
router's two of 64, or a beam's eight, are k reductions over what is at hand.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusiond.model.language.dtypes import is_float
from fusiond.model.nouns import frozen
from fusiond_stitching.frontend.graph import DTYPES, Computation, HloInstruction, least
from fusiond_stitching.frontend.hlo import ArrayShape, Raw
from fusiond_stitching.frontend.windows import Add

MOST = 8  #: Values asked for: each is one more sweep over the row
_LAST = 2**31 - 1  #: An index that no element has


def possible(raw: Raw, source: HloInstruction) -> bool:
    """Whether it is the few largest of values of a type that code is written for."""
    largest = raw.attributes.get("largest", "true").strip() == "true"
    known = source.dtype in DTYPES and source.dtype != "pred"
    return largest and known and bool(source.dims) and 0 < raw.integer("k") <= min(MOST, source.dims[-1])


def expanded(raw: Raw, name: str, source: HloInstruction, add: Add) -> tuple[str, str]:
    """The names of the values and of their indices, both [..., k]."""
    return _TopK(name, source, add).found(raw.integer("k"))


class _TopK:
    def __init__(self, name: str, source: HloInstruction, add: Add) -> None:
        self.name = name
        self.source = source
        self.add = add
        self.count = 0
        self.computation = _computation(source.dtype)

    def found(self, k: int) -> tuple[str, str]:
        kind, dims = self.source.dtype, self.source.dims
        row = dims[:-1]
        index = self._add("iota", "s32", dims, dimension=len(dims) - 1)
        lowest = self._add("constant", kind, (), values=(least(kind),))
        last = self._add("constant", "s32", (), values=(_LAST,))
        values, indices = self.source.name, index
        found: tuple[list[str], list[str]] = ([], [])
        for step in range(k):
            given = {"dimensions": (len(dims) - 1,), "computation": self.computation}
            operands = (values, indices, lowest, last)
            best = self._add("reduce", kind, row, *operands, **given, result=0)
            where = self._add("reduce", "s32", row, *operands, **given, result=1)
            for own, each, dtype in zip(found, (best, where), (kind, "s32"), strict=True):
                own.append(self._add("reshape", dtype, (*row, 1), each))
            if step + 1 < k:
                along = tuple(range(len(row)))
                wide = [
                    self._add("broadcast", dtype, dims, each, dimensions=along)
                    for each, dtype in ((best, kind), (where, "s32"))
                ]
                behind = self._before(*wide, self.source.name, index)
                values = self._add("select", kind, dims, behind, self.source.name, self._spread(lowest, kind))
                indices = self._add("select", "s32", dims, behind, index, self._spread(last, "s32"))
        values, indices = (
            self._add("concatenate", dtype, (*row, k), *own, dimension=len(row))
            for own, dtype in zip(found, (kind, "s32"), strict=True)
        )
        return values, indices

    def _spread(self, scalar: str, dtype: str) -> str:
        return self._add("broadcast", dtype, self.source.dims, scalar, dimensions=())

    def _before(self, *pairs: str) -> str:
        """Whether the first pair (value, index) is before the second, for each element."""
        dims = self.source.dims
        names: dict[str, str] = dict(zip(("v1", "i1", "v2", "i2"), pairs, strict=True))
        for name, opcode, operands, direction in _order(self.source.dtype):
            given = {"direction": direction, "total": False} if direction else {}
            names[name] = self._add(opcode, "pred", dims, *(names[each] for each in operands), **given)
        return names["before"]

    def _add(self, opcode: str, dtype: str, dims: Sequence[int], *operands: str, **given: object) -> str:
        self.count += 1
        return self.add(f"{self.name}.{opcode}{self.count}", opcode, ArrayShape(dtype, tuple(dims)), operands, given)


def _order(kind: str) -> list[tuple[str, str, tuple[str, ...], str]]:
    """`before` of (v1, i1) and (v2, i2): name, opcode, operands and direction of each step."""
    floats = is_float(DTYPES[kind])
    steps: list[tuple[str, str, tuple[str, ...], str]] = [
        ("larger", "compare", ("v1", "v2"), "GT"),
        ("same", "compare", ("v1", "v2"), "EQ"),
        ("earlier", "compare", ("i1", "i2"), "LT"),
    ]
    if floats:
        steps += [
            ("none1", "compare", ("v1", "v1"), "NE"),
            ("none2", "compare", ("v2", "v2"), "NE"),
            ("one2", "not", ("none2",), ""),
            ("above", "and", ("none1", "one2"), ""),
            ("none", "and", ("none1", "none2"), ""),
            ("first", "or", ("larger", "above"), ""),
            ("equal", "or", ("same", "none"), ""),
        ]
    first, equal = ("first", "equal") if floats else ("larger", "same")
    return [*steps, ("tied", "and", (equal, "earlier"), ""), ("before", "or", (first, "tied"), "")]


def _computation(kind: str) -> Computation:
    """Of two pairs (value, index), the one that is before the other."""

    def scalar(name: str, opcode: str, dtype: str, *operands: str, **attributes: object) -> HloInstruction:
        return HloInstruction(
            name=name, opcode=opcode, dtype=dtype, dims=(), operands=operands, attributes=frozen(attributes)
        )

    pairs = (("v1", kind), ("i1", "s32"), ("v2", kind), ("i2", "s32"))
    steps = [
        scalar(name, opcode, "pred", *operands, **({"direction": direction, "total": False} if direction else {}))
        for name, opcode, operands, direction in _order(kind)
    ]
    steps += [
        scalar("value", "select", kind, "before", "v1", "v2"),
        scalar("index", "select", "s32", "before", "i1", "i2"),
    ]
    return Computation(
        parameters=tuple(scalar(name, "parameter", dtype, number=at) for at, (name, dtype) in enumerate(pairs)),
        instructions=tuple(steps),
        results=("value", "index"),
    )
