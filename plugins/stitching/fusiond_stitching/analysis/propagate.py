"""Schedule constraints and their propagation (section 4.2, table 1), for every operation.

`required` says which part of an operand a block needs, given the part of the result that it computes. It is exact, or a
superset: where a dimension cannot be cut (a reduced one, a sliced one, a concatenated one), the block needs all of it.
Table 1 follows from it: a reduce passes Row where split_dim is left of the reduced dimensions and Column where it is
right of them, a transpose likewise, a dot passes Row while split_dim is a batch dimension, element-wise instructions
pass everything, reshape and broadcast carry split_dim and sword over to the operand's dims. What the table calls not
satisfiable is a requirement that comes out larger than the block's share, and fusion then says no.
"""

from collections.abc import Iterable, Sequence

from fusiond_stitching.analysis.plan import (
    BoxChunk,
    Chunk,
    ChunkSchedule,
    FlatChunk,
    ScheduleKind,
    Split,
    numbered,
    whole,
)
from fusiond_stitching.frontend import windows
from fusiond_stitching.frontend.graph import HloInstruction, HloModule, matched


def required(user: HloInstruction, place: int, operand: HloInstruction, chunk: Chunk) -> Chunk:
    """What a block that computes `chunk` of `user` needs of its operand number `place`."""
    if not operand.dims or operand.elements <= 1:
        return whole(operand.dims)
    if isinstance(chunk, FlatChunk):
        same = user.elementwise or user.opcode == "reshape" or (user.opcode == "scatter" and place == 0)
        return chunk if same and operand.elements == user.elements else whole(operand.dims)
    if user.elementwise:
        return chunk
    return BoxChunk(tuple(_required(user, place, operand, chunk.splits)))


def _required(user: HloInstruction, place: int, operand: HloInstruction, splits: Sequence[Split]) -> Iterable[Split]:
    whole, numbers = [Split(dim) for dim in operand.dims], user.attributes.get("dimensions", ())
    match user.opcode:
        case "broadcast":
            return [splits[at] for at in numbers]
        case "transpose":
            own = dict(zip(numbers, splits, strict=True))
            return [own[at] for at in range(len(whole))]
        case "reduce":
            kept = iter(splits)
            return [each if at in numbers else next(kept) for at, each in enumerate(whole)]
        case "window":
            passed = windows.passed(user.attributes)
            return [splits[at] if passed[at] else each for at, each in enumerate(whole)]
        case "reshape":
            return _reshaped(user, operand, splits)
        case "dot":
            return _of_dot(user, place, operand, splits)
        case "gather":
            return _gathered(user, place, operand, splits)
        case "scatter":
            return _scattered(user, place, operand, splits)
    return _passed(user, operand, splits)


def _passed(user: HloInstruction, operand: HloInstruction, splits: Sequence[Split]) -> list[Split]:
    """Operations with one operand dimension per result dimension: cut where nothing shifts, whole elsewhere."""
    attributes = user.attributes
    opcode = user.opcode
    if len(operand.dims) != len(splits):
        return [Split(dim) for dim in operand.dims]
    shifted: Sequence[bool]
    if opcode == "concatenate":
        shifted = [at == attributes["dimension"] for at in range(len(splits))]
    elif opcode == "reverse":
        shifted = [at in attributes["dimensions"] for at in range(len(splits))]
    elif opcode == "pad":
        edges = zip(attributes["low"], attributes["high"], attributes["interior"], strict=True)
        shifted = [any(each) for each in edges]
    elif opcode in ("slice", "dynamic-slice", "dynamic-update-slice"):
        # A dimension that is taken whole cannot be shifted: the start must be 0.
        shifted = [operand.dims[at] != user.dims[at] for at in range(len(splits))]
    else:
        shifted = [True] * len(splits)
    return [
        Split(dim) if moved or dim != user.dims[at] else splits[at]
        for at, (dim, moved) in enumerate(zip(operand.dims, shifted, strict=True))
    ]


def _of_dot(user: HloInstruction, place: int, operand: HloInstruction, splits: Sequence[Split]) -> list[Split]:
    side = ("lhs", "rhs")[place]
    batch = user.attributes[f"{side}_batch"]
    sums = user.attributes[f"{side}_contracting"]
    free = [at for at in range(len(operand.dims)) if at not in batch + sums]
    first = len(batch) if side == "lhs" else len(splits) - len(free)
    found = [Split(dim) for dim in operand.dims]
    for at, own in enumerate(batch):
        found[own] = splits[at]
    for at, own in enumerate(free):
        found[own] = splits[first + at]
    return found


def _gathered(user: HloInstruction, place: int, operand: HloInstruction, splits: Sequence[Split]) -> list[Split]:
    attributes = user.attributes
    offsets = attributes["offset_dims"]
    if place == 1:
        batch = iter([each for at, each in enumerate(splits) if at not in offsets])
        vector = attributes["index_vector_dim"]
        return [Split(dim) if at == vector else next(batch) for at, dim in enumerate(operand.dims)]
    gone = attributes["collapsed_slice_dims"] + attributes["operand_batching_dims"]
    window = iter(offsets)
    found = []
    for at, dim in enumerate(operand.dims):
        if at in gone:
            found.append(Split(dim))
            continue
        result = next(window)
        found.append(splits[result] if attributes["slice_sizes"][at] == dim else Split(dim))
    return found


def _scattered(user: HloInstruction, place: int, operand: HloInstruction, splits: Sequence[Split]) -> list[Split]:
    if place == 0:
        return list(splits)
    attributes, dims = user.attributes, user.dims
    found = [Split(dim) for dim in operand.dims]
    if place == 2:
        gone = attributes["inserted_window_dims"] + attributes["input_batching_dims"]
        kept = [at for at in range(len(dims)) if at not in gone]
        for at, target in zip(attributes["update_window_dims"], kept, strict=True):
            if operand.dims[at] == dims[target]:
                found[at] = splits[target]
    return found


# --- reshape --------------------------------------------------------------------------------------------


def _reshaped(user: HloInstruction, operand: HloInstruction, splits: Sequence[Split]) -> list[Split]:
    """The operand's part: dimensions that are merged or taken apart pass a split that is a run of the merged one."""
    dims, source = user.dims, operand.dims
    found = [Split(dim) for dim in source]
    for ours, theirs in matched(dims, source):
        run = _as_run([(dims[at], splits[at]) for at in ours])
        if run is None:
            continue
        parts, stride = run
        cut = _cut([source[at] for at in theirs], parts, stride)
        for at, split in zip(theirs, cut or (), strict=False):
            found[at] = split
    return found


def _as_run(dims: Sequence[tuple[int, Split]]) -> tuple[int, int] | None:
    """(parts, stride) when the splits cut the merged dimension into equal runs, numbered in order; None otherwise."""
    parts, stride = 1, 0
    may_split = True
    for dim, split in dims:
        if split.parts == 1:
            if dim > 1:
                may_split = False
            continue
        if not may_split or split.parts * split.size != dim:
            return None
        if parts > 1 and stride != split.stride * split.parts:
            return None
        parts, stride = parts * split.parts, split.stride
        may_split = split.size == 1
    return (parts, stride) if parts > 1 else None


def _cut(dims: Sequence[int], parts: int, stride: int) -> list[Split] | None:
    """Splits that cut the merged dimension into `parts` equal runs; None when the dims do not allow it."""
    counts = []
    left = parts
    for dim in dims:
        if left == 1 or dim == 1:
            counts.append(1)
        elif left % dim == 0:
            counts.append(dim)
            left //= dim
        elif dim % left == 0:
            counts.append(left)
            left = 1
        else:
            return None
    if left != 1:
        return None
    return numbered(dims, counts, stride)


# --- putting requirements together ----------------------------------------------------------------------


def joined(first: Chunk, second: Chunk, dims: tuple[int, ...]) -> Chunk:
    """The smallest chunk that covers both: a dimension that they cut differently is taken whole."""
    if first == second:
        return first
    if isinstance(first, FlatChunk) or isinstance(second, FlatChunk):
        return whole(dims)
    pairs = zip(first.splits, second.splits, dims, strict=True)
    return BoxChunk(tuple(mine if mine == yours else Split(dim) for mine, yours, dim in pairs))


def named(dims: tuple[int, ...], chunk: Chunk) -> ChunkSchedule | None:
    """The schedule (section 4.1) that names this chunk; None when none does."""
    if isinstance(chunk, FlatChunk):
        return ChunkSchedule(0, chunk.size, ScheduleKind.FLAT)
    cut = [at for at, each in enumerate(chunk.splits) if each.parts > 1]
    if not cut:
        return ChunkSchedule(0, 1, ScheduleKind.ROW)
    for kind, split_dim in ((ScheduleKind.ROW, cut[-1]), (ScheduleKind.COLUMN, cut[0]), (ScheduleKind.MIDDLE, cut[0])):
        candidate = ChunkSchedule(split_dim, chunk.splits[split_dim].parts, kind)
        try:
            if candidate.chunk(dims) == chunk:
                return candidate
        except ValueError:
            continue
    return None


class Requirements:
    """`required`, remembered: a module asks the same again and again."""

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self.known: dict[tuple[str, int, Chunk], Chunk] = {}

    def __call__(self, user: HloInstruction, place: int, chunk: Chunk) -> Chunk:
        key = (user.name, place, chunk)
        found = self.known.get(key)
        if found is None:
            operand = self.module[user.operands[place]]
            found = self.known[key] = required(user, place, operand, chunk)
        return found
