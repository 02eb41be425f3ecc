"""Checks an instruction's shape against its operands, with one line for a mistake.

`importer` asks this of everything that it puts into a graph, and `passes` of all that each pass gives, so that planning
and code generation meet only graphs whose shapes are right.
"""

from collections.abc import Callable, Sequence
from typing import Any

from fusiond_stitching.frontend import windows
from fusiond_stitching.frontend.graph import BINARY, ELEMENTWISE, TERNARY, UNARY, Computation, HloInstruction

_WHOLE = ("s", "u")
_LOGICAL = frozenset({"and", "or", "xor", "not"})
_SHIFTS = frozenset({"shift-left", "shift-right-arithmetic", "shift-right-logical", "popcnt", "count-leading-zeros"})


def problem(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> str:
    """Why this cannot be; empty when all is well."""
    check = _CHECKS.get(instruction.opcode)
    try:
        found = _arity(instruction, operands) or (_elementwise(instruction, operands) if check is None else "")
        return found or (check(instruction, operands) if check is not None else "")
    except (IndexError, KeyError, ValueError, StopIteration):
        return f"its dimension numbers do not fit {_dims(operands)} and {list(instruction.dims)}"


_ARITY = {
    "constant": 0, "parameter": 0, "iota": 0, "broadcast": 1, "reshape": 1, "transpose": 1, "reverse": 1, "slice": 1,
    "pad": 2, "window": 2, "dot": 2, "gather": 2, "scatter": 3,
}  # fmt: skip


def _arity(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> str:
    wanted = _ARITY.get(instruction.opcode)
    for count, opcodes in ((1, UNARY), (2, BINARY), (3, TERNARY)):
        if instruction.opcode in opcodes:
            wanted = count
    if wanted is not None and len(operands) != wanted:
        return f"has {len(operands)} operands; expected {wanted}"
    return "" if operands or wanted == 0 else "has no operands"


def _dims(operands: Sequence[HloInstruction]) -> str:
    return ", ".join(str(list(each.dims)) for each in operands)


def _same_type(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> str:
    odd = next((each for each in operands if each.dtype != instruction.dtype), None)
    return f"the operand {odd.name!r} is {odd.dtype}, the result {instruction.dtype}" if odd is not None else ""


def _wanted(instruction: HloInstruction, dims: Sequence[int]) -> str:
    return "" if tuple(dims) == instruction.dims else f"gives {list(dims)}, and {list(instruction.dims)} is written"


def _elementwise(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> str:
    if instruction.opcode not in ELEMENTWISE:
        return ""
    for each in operands:
        free = (instruction.opcode == "select" and each is operands[0]) or (
            instruction.opcode == "clamp" and each is not operands[1]
        )
        if each.dims != instruction.dims and not (free and not each.dims):
            return f"the operand {each.name!r} is {list(each.dims)}, the result {list(instruction.dims)}"
    return _elementwise_types(instruction, operands)


def _elementwise_types(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> str:
    opcode = instruction.opcode
    if opcode in ("convert", "bitcast-convert"):
        return ""
    if opcode in ("compare", "is-finite"):
        if instruction.dtype != "pred":
            return f"gives pred, but the text says {instruction.dtype}"
        return "" if operands[0].dtype == operands[-1].dtype else "compares two types"
    if opcode == "select":
        if operands[0].dtype != "pred":
            return f"its first operand is {operands[0].dtype}; expected pred"
        return _same_type(instruction, operands[1:])
    if opcode in _LOGICAL and instruction.dtype != "pred" and not instruction.dtype.startswith(_WHOLE):
        return f"is for whole numbers and pred, not {instruction.dtype}"
    if opcode in _SHIFTS and not instruction.dtype.startswith(_WHOLE):
        return f"is for whole numbers, not {instruction.dtype}"
    return _same_type(instruction, operands)


def _iota(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> str:
    at = instruction.attributes["dimension"]
    return "" if 0 <= at < len(instruction.dims) else f"iota_dimension={at} of {len(instruction.dims)} dimensions"


def _reshape(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> str:
    if operands[0].elements != instruction.elements:
        return f"{operands[0].elements} elements cannot be {list(instruction.dims)}"
    return _same_type(instruction, operands)


def _broadcast(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> str:
    at = instruction.attributes["dimensions"]
    dims = operands[0].dims
    fits = len(at) == len(dims) == len(set(at)) and all(0 <= each < len(instruction.dims) for each in at)
    if not fits or any(instruction.dims[each] != dim for each, dim in zip(at, dims, strict=True)):
        return f"{list(dims)} with dimensions={list(at)} does not give {list(instruction.dims)}"
    return _same_type(instruction, operands)


def _transpose(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> str:
    at, dims = instruction.attributes["dimensions"], operands[0].dims
    if sorted(at) != list(range(len(dims))):
        return f"dimensions={list(at)} is not a permutation of {len(dims)} dimensions"
    return _wanted(instruction, [dims[each] for each in at]) or _same_type(instruction, operands)


def _reverse(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> str:
    at = instruction.attributes["dimensions"]
    if any(not 0 <= each < len(instruction.dims) for each in at) or len(set(at)) != len(at):
        return f"dimensions={list(at)} do not fit {list(instruction.dims)}"
    return _wanted(instruction, operands[0].dims) or _same_type(instruction, operands)


def _slice(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> str:
    starts, limits = instruction.attributes["starts"], instruction.attributes["limits"]
    strides, dims = instruction.attributes["strides"], operands[0].dims
    if not len(starts) == len(dims) == len(instruction.dims):
        return f"{len(starts)} slices for {list(dims)}"
    for start, limit, stride, dim in zip(starts, limits, strides, dims, strict=True):
        if not (0 <= start <= limit <= dim and stride > 0):
            return f"[{start}:{limit}:{stride}] does not fit {dim}"
    sizes = [-(-(limit - start) // stride) for start, limit, stride in zip(starts, limits, strides, strict=True)]
    return _wanted(instruction, sizes) or _same_type(instruction, operands)


def _pad(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> str:
    attributes, dims = instruction.attributes, operands[0].dims
    if operands[1].dims:
        return "the padding value is not a scalar"
    edges = list(zip(attributes["low"], attributes["high"], attributes["interior"], strict=True))
    if len(edges) != len(dims):
        return f"padding of {len(edges)} dimensions for {list(dims)}"
    if any(between < 0 for _, _, between in edges):
        return "padding inside is negative"
    sizes = [
        low + high + dim + max(dim - 1, 0) * between for dim, (low, high, between) in zip(dims, edges, strict=True)
    ]
    return _wanted(instruction, sizes) or _same_type(instruction, operands)


def _window(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> str:
    if operands[1].dims:
        return "the value outside is not a scalar"
    return _wanted(instruction, windows.dims_of(instruction.attributes, operands[0].dims)) or _same_type(
        instruction, operands
    )


def _concatenate(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> str:
    at, dims = instruction.attributes["dimension"], instruction.dims
    if not 0 <= at < len(dims):
        return f"dimensions={{{at}}} of {len(dims)} dimensions"
    for each in operands:
        if len(each.dims) != len(dims) or any(
            mine != whole for place, (mine, whole) in enumerate(zip(each.dims, dims, strict=True)) if place != at
        ):
            return f"the operand {each.name!r} is {list(each.dims)}, the result {list(dims)}"
    if sum(each.dims[at] for each in operands) != dims[at]:
        return f"the operands do not add up to {dims[at]}"
    return _same_type(instruction, operands)


def _applied(computation: Computation, values: Sequence[HloInstruction]) -> str:
    """Why a computation cannot combine values of these types."""
    dtypes = [each.dtype for each in values]
    if [each.dtype for each in computation.parameters] != dtypes * 2:
        return f"its computation has {len(computation.parameters)} parameters; expected {2 * len(dtypes)} of {dtypes}"
    by_name = {each.name: each for each in (*computation.parameters, *computation.instructions)}
    for each in computation.instructions:
        if each.dims:
            return "its computation works on arrays"
        found = problem(each, [by_name[name] for name in each.operands])
        if found:
            return f"its computation: {each.opcode} {each.name!r}: {found}"
    if [by_name[name].dtype for name in computation.results] != dtypes:
        return "its computation gives other types than it takes"
    return ""


def _reduce(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> str:
    count, odd = divmod(len(operands), 2)
    at, result = instruction.attributes["dimensions"], instruction.attributes["result"]
    if odd or not 0 <= result < count:
        return f"has {len(operands)} operands; expected as many arrays as init values"
    values, inits = operands[:count], operands[count:]
    if any(each.dims for each in inits):
        return "an init is not a scalar"
    if any(each.dims != values[0].dims for each in values):
        return f"its arrays differ: {_dims(values)}"
    if any(one.dtype != other.dtype for one, other in zip(values, inits, strict=True)):
        return "an init has another type than its array"
    dims = values[0].dims
    if any(not 0 <= each < len(dims) for each in at) or len(set(at)) != len(at):
        return f"dimensions={list(at)} do not fit {list(dims)}"
    if values[result].dtype != instruction.dtype:
        return f"gives {values[result].dtype}, but the text says {instruction.dtype}"
    kept = [dim for place, dim in enumerate(dims) if place not in at]
    return _wanted(instruction, kept) or _applied(instruction.attributes["computation"], values)


def _dot(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> str:
    attributes = instruction.attributes
    rest: list[int] = []
    for side, each in zip(("lhs", "rhs"), operands, strict=True):
        used = attributes[f"{side}_batch"] + attributes[f"{side}_contracting"]
        if any(not 0 <= at < len(each.dims) for at in used) or len(set(used)) != len(used):
            return f"the {side} dimension numbers do not fit {list(each.dims)}"
        rest += [dim for at, dim in enumerate(each.dims) if at not in used]
    lhs, rhs = operands
    batch = [lhs.dims[at] for at in attributes["lhs_batch"]]
    sums = [lhs.dims[at] for at in attributes["lhs_contracting"]]
    if batch != [rhs.dims[at] for at in attributes["rhs_batch"]] or sums != [
        rhs.dims[at] for at in attributes["rhs_contracting"]
    ]:
        return f"{list(lhs.dims)} by {list(rhs.dims)} do not match"
    return _wanted(instruction, [*batch, *rest])


def _gather(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> str:
    attributes = instruction.attributes
    source, indices = operands
    sizes, gone = attributes["slice_sizes"], attributes["collapsed_slice_dims"] + attributes["operand_batching_dims"]
    if len(sizes) != len(source.dims) or any(not 0 <= s <= d for s, d in zip(sizes, source.dims, strict=True)):
        return f"slice_sizes={list(sizes)} do not fit {list(source.dims)}"
    window = iter([size for at, size in enumerate(sizes) if at not in gone])
    found = _indexing(instruction, source, indices, "start_index_map", "start_indices_batching_dims")
    if found:
        return found
    vector = attributes["index_vector_dim"]
    batch = iter([dim for at, dim in enumerate(indices.dims) if at != vector])
    dims = [next(window) if at in attributes["offset_dims"] else next(batch) for at in range(len(instruction.dims))]
    if next(window, None) is not None or next(batch, None) is not None:
        return f"its dimension numbers do not fit {_dims(operands)} and {list(instruction.dims)}"
    return _wanted(instruction, dims) or _same_type(instruction, operands[:1])


def _indexing(
    instruction: HloInstruction, source: HloInstruction, indices: HloInstruction, map_: str, batching: str
) -> str:
    """What gather and scatter have in common: an index vector with one entry for each mapped dimension."""
    attributes: Any = instruction.attributes
    vector, mapped = attributes["index_vector_dim"], attributes[map_]
    if not indices.dtype.startswith(_WHOLE):
        return f"its indices are {indices.dtype}; whole numbers are wanted"
    if not 0 <= vector <= len(indices.dims):
        return f"index_vector_dim={vector} of {len(indices.dims)} dimensions"
    length = indices.dims[vector] if vector < len(indices.dims) else 1
    if length != len(mapped) or any(not 0 <= at < len(source.dims) for at in mapped):
        return f"indices of length {length} for the dimensions {list(mapped)}"
    if any(not 0 <= at < len(indices.dims) for at in attributes[batching]):
        return f"{batching}={list(attributes[batching])} do not fit {list(indices.dims)}"
    return ""


def _scatter(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> str:
    attributes = instruction.attributes
    source, indices, updates = operands
    found = _indexing(
        instruction, source, indices, "scatter_dims_to_operand_dims", "scatter_indices_batching_dims"
    ) or _wanted(instruction, source.dims)
    if found:
        return found
    gone = attributes["inserted_window_dims"] + attributes["input_batching_dims"]
    kept = [dim for at, dim in enumerate(source.dims) if at not in gone]
    windows = attributes["update_window_dims"]
    if len(windows) != len(kept) or any(updates.dims[at] > dim for at, dim in zip(windows, kept, strict=True)):
        return f"update_window_dims={list(windows)} of {list(updates.dims)} do not fit {list(source.dims)}"
    vector = attributes["index_vector_dim"]
    batch = [dim for at, dim in enumerate(indices.dims) if at != vector]
    if batch != [dim for at, dim in enumerate(updates.dims) if at not in windows]:
        return f"updates of {list(updates.dims)} for indices of {list(indices.dims)}"
    return _same_type(instruction, (source, updates)) or _applied(attributes["computation"], (source,))


def _starts(instruction: HloInstruction, starts: Sequence[HloInstruction], rank: int) -> str:
    if len(starts) != rank:
        return f"{len(starts)} start indices for {rank} dimensions"
    if any(each.dims or not each.dtype.startswith(_WHOLE) for each in starts):
        return "a start index is not a whole number"
    return ""


def _dynamic_slice(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> str:
    sizes, dims = instruction.attributes["sizes"], operands[0].dims
    if len(sizes) != len(dims) or any(not 0 <= size <= dim for size, dim in zip(sizes, dims, strict=True)):
        return f"dynamic_slice_sizes={list(sizes)} do not fit {list(dims)}"
    found = _starts(instruction, operands[1:], len(dims))
    return found or _wanted(instruction, sizes) or _same_type(instruction, operands[:1])


def _dynamic_update(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> str:
    if len(operands) < 2:
        return "has no update"
    dims, update = operands[0].dims, operands[1].dims
    if len(update) != len(dims) or any(size > dim for size, dim in zip(update, dims, strict=True)):
        return f"an update of {list(update)} does not fit {list(dims)}"
    found = _starts(instruction, operands[2:], len(dims))
    return found or _wanted(instruction, dims) or _same_type(instruction, operands[:2])


_CHECKS: dict[str, Callable[[HloInstruction, Sequence[HloInstruction]], str]] = {
    "iota": _iota, "reshape": _reshape, "broadcast": _broadcast, "transpose": _transpose, "reverse": _reverse,
    "slice": _slice, "pad": _pad, "window": _window, "concatenate": _concatenate, "reduce": _reduce, "dot": _dot,
    "gather": _gather, "scatter": _scatter, "dynamic-slice": _dynamic_slice, "dynamic-update-slice": _dynamic_update,
}  # fmt: skip
