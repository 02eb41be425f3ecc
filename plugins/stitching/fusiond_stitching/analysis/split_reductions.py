"""Large reductions in two steps, so that more than a few blocks can work on them.

Table 1 keeps all of what is reduced in one block. A column sum of f32[8192,1024], or a sum of everything, then has
too few blocks or reads across columns. Split, `x -> f32[64,128,1024] -> f32[64,1024] -> f32[1024]`: the first step
goes with whatever computes the rows (64 blocks of 128 rows), the second is small. Beyond the paper, and only for one
associative and commutative operation; the order of the sum changes, as it does between any two schedules.
"""

import dataclasses
import math
from collections.abc import Collection, Iterable, Sequence

from fusiond_stitching.analysis import online_reductions
from fusiond_stitching.analysis.row_shapes import cut, interleaving
from fusiond_stitching.analysis.schedule import divisors
from fusiond_stitching.frontend.building import rewritten
from fusiond_stitching.frontend.graph import BYTES, HloInstruction, HloModule, neutral, topological
from fusiond_stitching.frontend.hlo import Number

LEAST_ELEMENTS = 1 << 16  #: What is smaller is reduced in one step
HELD_BYTES = 200 << 10
"""A row that one block can hold is read once, whatever depends on what it is reduced to. One multiprocessor reads so
much in less time than another launch takes, so that such rows stay whole, however few there are."""
WIDE = 2048
"""Numbers that the first step makes for each part: so many are worth fewer parts, since they are written and read."""
SLAB = 128  #: Columns that a block sums up, where it only does that
LEAST_RUN = 16  #: Elements that the first step reduces to one, at least


def reductions(module: HloModule, multiprocessors: int) -> HloModule:
    """The module with every reduce split that leaves most of the device idle otherwise; itself when there is none."""
    groups = _groups_of_columns(module, multiprocessors)
    found = rewritten(module.by_name, module.foreign, lambda each: _steps(module, each, multiprocessors, groups))
    if len(found) == len(module.instructions):
        return module
    return dataclasses.replace(module, instructions=topological(found.values()))


def _groups_of_columns(module: HloModule, multiprocessors: int) -> set[tuple[int, int, int]]:
    """(images, rows, columns) of all reductions of groups of columns that go in one step, as a group norm has: what
    else sums these columns does so image by image, and goes with them."""
    found = set()
    for each in module.instructions:
        if each.opcode != "reduce" or each.name in module.foreign or _leaves_idle(module, each, multiprocessors):
            continue
        lie = interleaving(module[each.operands[0]].dims, each.attributes["dimensions"])
        if lie is not None and lie[0] > 1:
            outer, long, between, run = lie
            found.add((outer, long, between * run))
    return found


def _leaves_idle(module: HloModule, reduce: HloInstruction, multiprocessors: int) -> bool:
    """Whether most of the device has nothing to do."""
    source = module[reduce.operands[0]]
    if source.elements < LEAST_ELEMENTS or reduce.elements == 0:
        return False
    dims, reduced = source.dims, reduce.attributes["dimensions"]
    inner = max(at for at, dim in enumerate(dims) if dim > 1) in reduced
    if inner and math.prod(dims[at] for at in reduced) * BYTES[source.dtype] <= HELD_BYTES:
        return False
    parallel = reduce.elements if inner else max(1, reduce.elements // 32)
    return parallel < 2 * multiprocessors


def _images(dims: tuple[int, ...], reduced: Iterable[int], groups: Collection[tuple[int, int, int]]) -> int | None:
    """How many images a sum of columns is over, where there are groups of the same columns; None for any other."""
    three = cut(dims, reduced)
    if three is None:
        return None
    before, rows, behind = three
    first = next(dims[at] for at in sorted(reduced) if dims[at] > 1)
    for outer, long, columns in groups:
        if columns != behind or before * rows != outer * long:
            continue
        if before == outer:
            return 1
        if before == 1 and first % outer == 0:
            return outer
    return None


def _steps(
    module: HloModule, reduce: HloInstruction, multiprocessors: int, groups: Collection[tuple[int, int, int]]
) -> list[HloInstruction] | None:
    """The instructions that stand for a reduce; None where it stays as it is."""
    neutral = _neutral_values(reduce) if reduce.opcode == "reduce" else None
    parts = _cut(module, reduce, multiprocessors, groups) if neutral is not None else None
    return None if neutral is None or parts is None else _two_steps(module, reduce, neutral, *parts)


def _cut(
    module: HloModule, reduce: HloInstruction, multiprocessors: int, groups: Collection[tuple[int, int, int]]
) -> tuple[int, int] | None:
    """(the dimension that is cut, into how many parts); None where one step is as good."""
    source = module[reduce.operands[0]]
    if source.elements < LEAST_ELEMENTS or reduce.elements == 0:
        return None
    dims, reduced = source.dims, reduce.attributes["dimensions"]
    images = _images(dims, reduced, groups)
    if images is not None:
        return (min(at for at in reduced if dims[at] > 1), images) if images > 1 else None
    if not _leaves_idle(module, reduce, multiprocessors):
        return None
    axis = max(reduced, key=lambda at: (dims[at], -at))
    run = math.prod(dims[at] for at in reduced)
    wanted = _parts_wanted(module, reduce, multiprocessors)
    fits = [each for each in divisors(dims[axis]) if each > 1 and run // each >= LEAST_RUN]
    return (axis, min(fits, key=lambda each: (abs(math.log2(each / wanted)), each))) if fits else None


def _two_steps(
    module: HloModule, reduce: HloInstruction, neutral: Sequence[Number], axis: int, parts: int
) -> list[HloInstruction]:
    """A reduce of each part, and one of what these give."""
    count = len(neutral)
    dims, reduced = module[reduce.operands[0]].dims, reduce.attributes["dimensions"]
    cut_dims = (*dims[:axis], parts, dims[axis] // parts, *dims[axis + 1 :])
    kinds = [module[operand].dtype for operand in reduce.operands[:count]]
    cuts = [
        reduce.becoming("reshape", operand, name=f"{operand}~cut{axis}_{parts}", dtype=kind, dims=cut_dims)
        for operand, kind in zip(reduce.operands, kinds, strict=False)
    ]
    neutrals = [
        reduce.becoming("constant", name=f"{reduce.name}~neutral{at}", dtype=kind, dims=(), values=(value,))
        for at, (kind, value) in enumerate(zip(kinds, neutral, strict=True))
    ]
    rest = tuple(at if at < axis else at + 1 for at in reduced)
    kept = [at for at in range(len(cut_dims)) if at not in rest]
    partial = reduce.becoming(
        "reduce", *(each.name for each in (*cuts, *neutrals)), name=f"{reduce.name}~partial",
        dims=tuple(cut_dims[at] for at in kept), **{**reduce.attributes, "dimensions": rest},
    )  # fmt: skip
    partials = (f"{name}~partial" for name in _results(module, reduce, count))
    along = {**reduce.attributes, "dimensions": (kept.index(axis),)}
    return [*cuts, *neutrals, partial, reduce.becoming("reduce", *partials, *reduce.operands[count:], **along)]


def _parts_wanted(module: HloModule, reduce: HloInstruction, multiprocessors: int) -> int:
    """Parts of a first step, which are written and read: as many as rows are likely to be cut into, so that it joins
    what computes the rows; where nobody reduces rows, as many as keep the device busy beside the blocks that share the
    columns."""
    if reduce.elements < WIDE:
        return 4 * multiprocessors
    rows = (module[each.operands[0]] for each in module.instructions if each.opcode == "reduce" and each is not reduce)
    source = module[reduce.operands[0]]
    if any(each.elements == source.elements and each.dims[-1] == source.dims[-1] for each in rows if each.dims):
        return 2 * multiprocessors
    return max(LEAST_RUN, 8 * multiprocessors * SLAB // reduce.elements)


def _neutral_values(reduce: HloInstruction) -> tuple[Number, ...] | None:
    """For each value, what changes nothing; None for computations that are not known to be associative."""
    operation = reduce.attributes["computation"].simple
    if operation in ("add", "multiply", "maximum", "minimum") and len(reduce.operands) == 2:
        value = neutral(operation, reduce.dtype)
        return None if value is None else (value,)
    return online_reductions.NEUTRAL if online_reductions.is_pair(reduce) else None


def _results(module: HloModule, reduce: HloInstruction, count: int) -> tuple[str, ...]:
    """The instructions that are the results of the reduce that this one is a result of, in their order."""
    if count == 1:
        return (reduce.name,)
    users = (module[name] for name in module.users[reduce.operands[0]])
    same = (each for each in users if each.opcode == "reduce" and each.operands == reduce.operands)
    found = {each.attributes["result"]: each.name for each in same}
    return tuple(found[at] for at in range(count))
