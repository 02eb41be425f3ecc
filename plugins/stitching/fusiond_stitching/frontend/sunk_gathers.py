"""Moves look-ups below computation: of a row's log-probabilities only the label's is computed.

    gather(x - broadcast(m), labels)   -->   gather(x, labels) - broadcast(m)

What is looked up is then a number for each row, made of a number of x and of the row's statistics, whatever x's rows
need. A broadcast is looked through where the look-up's own numbers say which of its elements is meant.
"""

import dataclasses
from collections.abc import Mapping

from fusiond_stitching.frontend import constant_numbers
from fusiond_stitching.frontend.graph import HloInstruction, topological

FAR_LESS = 8  #: How many times fewer elements are looked up than there are


def sunk(given: Mapping[str, HloInstruction], foreign: Mapping[str, str]) -> dict[str, HloInstruction]:
    """The same instructions, with such look-ups as near to the inputs as they come."""
    found = dict(given)
    waiting = [each for each in topological(given.values()) if each.opcode == "gather" and each.name not in foreign]
    count = 0
    while waiting:
        gather = waiting.pop()
        source = found[gather.operands[0]]
        if not source.elementwise or source.name in foreign or FAR_LESS * gather.elements > source.elements:
            continue
        operands = []
        for name in source.operands:
            operand = found[name]
            if not operand.dims and source.dims:
                operands.append(name)  # a scalar, as `select` and `clamp` may have
                continue
            own = dataclasses.replace(
                gather, name=f"{gather.name}~of{count}", dtype=operand.dtype, operands=(name, gather.operands[1])
            )
            count += 1
            spread = _spread(found, gather, operand) if operand.opcode == "broadcast" and name not in foreign else None
            if spread is None:
                waiting.append(own)
            else:
                own = own.becoming("broadcast", *operand.operands, dimensions=spread)
            found[own.name] = own
            operands.append(own.name)
        found[gather.name] = dataclasses.replace(
            source, name=gather.name, dims=gather.dims, operands=tuple(operands), where=gather.where
        )
    return {each.name: each for each in topological(found.values())}


def _spread(
    given: Mapping[str, HloInstruction], gather: HloInstruction, broadcast: HloInstruction
) -> tuple[int, ...] | None:
    """The dimensions of the result along which the broadcast's operand lies; None where another element is read."""
    counted = _counted(given, gather, broadcast)
    found = [counted.get(at) for at in broadcast.attributes["dimensions"]]
    known = [at for at in found if at is not None]
    sizes = given[broadcast.operands[0]].dims
    fits = len(known) == len(found) and all(gather.dims[at] == size for at, size in zip(known, sizes, strict=True))
    return tuple(known) if fits and known == sorted(set(known)) else None


def _counted(given: Mapping[str, HloInstruction], gather: HloInstruction, operand: HloInstruction) -> dict[int, int]:
    """Dimension of what is looked up in -> the dimension of the result whose index it has there."""
    numbers = gather.attributes
    vector: int = numbers["index_vector_dim"]
    starts = given[gather.operands[1]]
    batch: list[int] = [at for at in range(len(gather.dims)) if at not in numbers["offset_dims"]]

    def of_indices(column: int) -> int:
        return batch[column - (column > vector)]

    found = {
        at: of_indices(column)
        for at, column in zip(
            numbers["operand_batching_dims"], numbers["start_indices_batching_dims"], strict=True
        )
    }  # fmt: skip
    gone = {*numbers["collapsed_slice_dims"], *numbers["operand_batching_dims"]}
    windows = (at for at in range(len(operand.dims)) if at not in gone)
    for at, own in zip(windows, numbers["offset_dims"], strict=True):
        if numbers["slice_sizes"][at] == operand.dims[at]:
            found[at] = own
    for component, at in enumerate(numbers["start_index_map"]):
        part = constant_numbers.part(given, starts.name, vector, component)
        column = constant_numbers.counts_along(given, part) if part is not None else None
        if at in numbers["collapsed_slice_dims"] and column is not None and column != vector:
            own = of_indices(column)
            if gather.dims[own] == operand.dims[at]:
                found[at] = own
    return found
