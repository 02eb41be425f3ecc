"""Which elements of its operands an instruction reads to compute given elements: exact index sets, as boolean masks.

What `propagate` says by chunks and `symbolic_reads` by forms of the block number is held against it. A mask has the
dims of its tensor. Where an index is data (gather, scatter, dynamic-slice, dynamic-update-slice), the mask
covers every element that may be read.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fusiond_stitching.analysis.plan import Chunk, FlatChunk
from fusiond_stitching.frontend.graph import HloInstruction, HloModule

Mask: TypeAlias = NDArray[np.bool_]


def of_chunk(chunk: Chunk, dims: tuple[int, ...], block: int) -> Mask:
    """The elements of a tensor that a block computes."""
    mask = np.zeros(dims, dtype=np.bool_)
    if isinstance(chunk, FlatChunk):
        mask.reshape(-1)[block * chunk.size : (block + 1) * chunk.size] = True
        return mask
    starts = [block // each.stride % each.parts * each.size for each in chunk.splits]
    mask[tuple(slice(start, start + each.size) for start, each in zip(starts, chunk.splits, strict=True))] = True
    return mask


def read(module: HloModule, user: HloInstruction, place: int, mask: Mask) -> Mask:
    """The elements of operand number `place` that the elements `mask` of `user` need. ValueError for an opcode that is
    not known."""
    operand = module[user.operands[place]]
    if not operand.dims:
        return np.asarray(mask.any())
    if 0 in operand.dims:
        return np.zeros(operand.dims, dtype=np.bool_)
    attributes = user.attributes
    if user.elementwise:
        return mask
    match user.opcode:
        case "reshape":
            return mask.reshape(operand.dims)
        case "broadcast":
            return _broadcast(mask, attributes["dimensions"])
        case "transpose":
            return mask.transpose(_order(attributes["dimensions"]))
        case "reverse":
            return np.flip(mask, axis=tuple(attributes["dimensions"]))
        case "slice":
            found = np.zeros(operand.dims, dtype=np.bool_)
            runs = zip(attributes["starts"], attributes["strides"], user.dims, strict=True)
            found[tuple(slice(start, start + step * size, step) for start, step, size in runs)] = mask
            return found
        case "concatenate":
            return _concatenated(module, user, place, mask)
        case "pad":
            return _padded(attributes, operand, mask, user.dims)
        case "window":
            return _windows(attributes, operand, mask)
        case "reduce":
            kept = np.expand_dims(mask, tuple(attributes["dimensions"]))
            return np.broadcast_to(kept, operand.dims)
        case "dot":
            return _multiplied(attributes, place, operand, mask)
        case "gather":
            return _gathered(attributes, place, operand, mask)
        case "scatter":
            return mask if place == 0 else _scattered(user, place, operand, mask)
        case "dynamic-slice":
            return _aligned(operand.dims, mask, [mine == yours for mine, yours in _pairs(operand, user)])
        case "dynamic-update-slice":
            if place == 0:
                return mask
            return _aligned(operand.dims, mask, [mine == yours for mine, yours in _pairs(operand, user)])
    raise ValueError(f"{user.name}: what {user.opcode} reads is not known")


def _order(values: Sequence[int]) -> tuple[int, ...]:
    """The places of the values, smallest value first."""
    return tuple(sorted(range(len(values)), key=lambda at: values[at]))


def _rank(values: Sequence[int]) -> tuple[int, ...]:
    """For each value, how many are smaller."""
    return _order(_order(values))


def _pairs(operand: HloInstruction, user: HloInstruction) -> list[tuple[int, int]]:
    return list(zip(operand.dims, user.dims, strict=True))


def _aligned(dims: tuple[int, ...], mask: Mask, same: list[bool]) -> Mask:
    """Dimensions that are the `same` pass; of the others any element may be meant."""
    other = tuple(at for at, each in enumerate(same) if not each)
    return np.broadcast_to(mask.any(axis=other, keepdims=True), dims) if other else mask


def _broadcast(mask: Mask, dimensions: tuple[int, ...]) -> Mask:
    others = tuple(at for at in range(mask.ndim) if at not in dimensions)
    found: Mask = np.asarray(mask.any(axis=others))
    return found.transpose(_rank(dimensions))


def _concatenated(module: HloModule, user: HloInstruction, place: int, mask: Mask) -> Mask:
    dimension = user.attributes["dimension"]
    sizes = [module[name].dims[dimension] for name in user.operands[: place + 1]]
    window = [slice(None)] * mask.ndim
    window[dimension] = slice(sum(sizes[:-1]), sum(sizes))
    return mask[tuple(window)]


def _padded(attributes: Any, operand: HloInstruction, mask: Mask, dims: tuple[int, ...]) -> Mask:
    found = np.zeros(operand.dims, dtype=np.bool_)
    inside, places = [], []
    for low, interior, dim, size in zip(attributes["low"], attributes["interior"], operand.dims, dims, strict=True):
        place = low + np.arange(dim) * (interior + 1)
        fits = np.flatnonzero((place >= 0) & (place < size))
        inside.append(fits)
        places.append(place[fits])
    found[np.ix_(*inside)] = mask[np.ix_(*places)]
    return found


def _windows(attributes: Any, operand: HloInstruction, mask: Mask) -> Mask:
    """One offset inside the windows after the other: where each window's element lies, if it lies in the operand."""
    found = np.zeros(operand.dims, dtype=np.bool_)
    rank = len(operand.dims)
    for offset in np.ndindex(*mask.shape[rank:]):
        inside = iter(offset)
        taken, places = [], []
        for at, dim in enumerate(operand.dims):
            step = attributes["interior"][at] + 1
            shift = (next(inside) if attributes["sizes"][at] != 1 else 0) * attributes["dilation"][at]
            place = np.arange(mask.shape[at]) * attributes["strides"][at] + shift - attributes["low"][at]
            fits = np.flatnonzero((place >= 0) & (place <= (dim - 1) * step) & (place % step == 0))
            taken.append(fits)
            places.append(place[fits] // step)
        here = np.zeros(operand.dims, dtype=np.bool_)
        here[np.ix_(*places)] = mask[(..., *offset)][np.ix_(*taken)]
        found |= here
    return found


def _multiplied(attributes: Any, place: int, operand: HloInstruction, mask: Mask) -> Mask:
    side = ("lhs", "rhs")[place]
    batch, sums = attributes[f"{side}_batch"], attributes[f"{side}_contracting"]
    free = [at for at in range(len(operand.dims)) if at not in batch + sums]
    first = len(batch) if side == "lhs" else mask.ndim - len(free)
    kept = [*range(len(batch)), *range(first, first + len(free))]
    found: Mask = np.asarray(mask.any(axis=tuple(at for at in range(mask.ndim) if at not in kept)))
    # Its dimensions are now batch, free; the operand's order is wanted, with the contracted ones between.
    own = [*batch, *free]
    found = found.transpose(_order(own))
    return np.broadcast_to(np.expand_dims(found, tuple(sums)), operand.dims)


def _gathered(attributes: Any, place: int, operand: HloInstruction, mask: Mask) -> Mask:
    offsets = attributes["offset_dims"]
    if place == 1:
        found: Mask = np.asarray(mask.any(axis=tuple(offsets)))
        vector = attributes["index_vector_dim"]
        if vector < len(operand.dims):
            found = np.expand_dims(found, vector)
        return np.broadcast_to(found, operand.dims)
    gone = attributes["collapsed_slice_dims"] + attributes["operand_batching_dims"]
    whole = {at: size for at, size in enumerate(attributes["slice_sizes"]) if at not in gone}
    result_of = dict(zip(whole, offsets, strict=True))
    # A window as long as the dimension starts at 0: it passes. Everything else may be anywhere.
    passed = [at for at, size in whole.items() if size == operand.dims[at]]
    kept = [result_of[at] for at in passed]
    found = np.asarray(mask.any(axis=tuple(at for at in range(mask.ndim) if at not in kept)))
    found = found.transpose(_rank(kept))
    free = tuple(at for at in range(len(operand.dims)) if at not in passed)
    return np.broadcast_to(np.expand_dims(found, free), operand.dims)


def _scattered(user: HloInstruction, place: int, operand: HloInstruction, mask: Mask) -> Mask:
    """Every index may matter; of the updates those whose window covers a dimension whole pass it."""
    if place == 1:
        return np.broadcast_to(mask.any(), operand.dims)
    attributes = user.attributes
    gone = attributes["inserted_window_dims"] + attributes["input_batching_dims"]
    targets = [at for at in range(len(user.dims)) if at not in gone]
    pairs = dict(zip(attributes["update_window_dims"], targets, strict=True))
    passed = {own: target for own, target in pairs.items() if operand.dims[own] == user.dims[target]}
    others = tuple(at for at in range(mask.ndim) if at not in passed.values())
    found: Mask = np.asarray(mask.any(axis=others))
    # update_window_dims ascend, and so do their targets.
    free = tuple(at for at in range(len(operand.dims)) if at not in passed)
    return np.broadcast_to(np.expand_dims(found, free), operand.dims)
