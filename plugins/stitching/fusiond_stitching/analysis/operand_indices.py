"""The operand indices that one element of an instruction reads, in the algebra of `indexing`."""

from __future__ import annotations

from collections.abc import Iterator

from fusiond_stitching.analysis.indexing import Index, delinear, linear
from fusiond_stitching.frontend.graph import HloInstruction, HloModule


def read_at(
    module: HloModule, node: HloInstruction, indices: tuple[Index, ...]
) -> Iterator[tuple[str, tuple[Index, ...] | None]]:
    """What an instruction reads for its own element at `indices`, and where: of a concatenation whose part is known,
    that part alone. None for a place that is more than index arithmetic."""
    if node.opcode != "concatenate":
        for operand in module.operands(node):
            yield operand.name, operand_index(node, operand, indices)
        return
    at, begin = node.attributes["dimension"], 0
    for operand in module.operands(node):
        end = begin + operand.dims[at]
        if indices[at].low >= begin and indices[at].high < end:
            yield operand.name, (*indices[:at], indices[at] - begin, *indices[at + 1 :])
        elif indices[at].high >= begin and indices[at].low < end:
            yield operand.name, None
        begin = end


def operand_index(
    node: HloInstruction, operand: HloInstruction, indices: tuple[Index, ...]
) -> tuple[Index, ...] | None:
    """Where an instruction reads its operand for its own element at `indices`; None for what is more than index
    arithmetic."""
    attributes = node.attributes
    if node.elementwise:
        return indices if operand.dims else ()
    match node.opcode:
        case "reshape":
            return delinear(linear(indices, node.dims), operand.dims)
        case "broadcast":
            return tuple(indices[at] for at in attributes["dimensions"])
        case "transpose":
            order = attributes["dimensions"]
            return tuple(indices[order.index(at)] for at in range(len(order)))
        case "slice":
            runs = zip(indices, attributes["starts"], attributes["strides"], strict=True)
            return tuple(index * step + start for index, start, step in runs)
        case "reverse":
            turned = attributes["dimensions"]
            return tuple(
                index * -1 + (size - 1) if at in turned else index
                for at, (index, size) in enumerate(zip(indices, node.dims, strict=True))
            )
    return None
