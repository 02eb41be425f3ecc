"""Turns a `conditional` with cheap branches into selects: all branches are computed.

    y = conditional(p, a, b), true_computation=f, false_computation=g   -->   y = select(p, f(a), g(b))
    y = conditional(i, a, b, c), branch_computations={f, g, h}          -->   f where i is 0, g where it is 1, else h

As a boundary it costs the launches round it, and a copy to the host that decides. Nothing in a branch can do harm when
it is computed for nothing: an index is clamped, a division by zero has a value, and a NaN is not taken.
"""

from collections.abc import Mapping, Sequence

from fusiond_stitching.frontend.graph import BYTES, DTYPES, ELEMENTWISE, MOVEMENT
from fusiond_stitching.frontend.hlo import ArrayShape, Raw, RawComputation, RawModule, RawShape, arrays

SMALL_BYTES = 1 << 20  #: What moves in less time than a launch takes
MOST_INSTRUCTIONS = 256
SMALL_REDUCTION = 1 << 16  #: Elements that a branch may reduce
_FREE = frozenset({"parameter", "tuple", "get-tuple-element", "call", "conditional"})
_ALLOWED = (
    ELEMENTWISE
    | MOVEMENT
    | _FREE
    | {"constant", "concatenate", "pad", "gather", "dynamic-slice", "dynamic-update-slice", "reduce"}
)


def cheap(module: RawModule, conditional: Raw, operands: Sequence[object]) -> bool:
    """Whether all branches together touch at most twice what the cheapest of them does, or next to nothing, and do
    nothing that is left to a library. `operands`: which values the branches get, by their names."""
    branches = [module.computations.get(name) for name in conditional.branches()]
    if any(each is None or not _plain(module, each) for each in branches):
        return False
    written = _bytes(conditional.shape)
    read: list[Mapping[object, int]] = [
        _read(each, operand) for each, operand in zip(branches, operands[1:], strict=True) if each is not None
    ]
    together = written + sum({name: size for each in read for name, size in each.items()}.values())
    least = written + min(sum(each.values()) for each in read)
    return together <= max(SMALL_BYTES, 2 * least)


def _plain(module: RawModule, branch: RawComputation) -> bool:
    inside = module.inside(branch, MOST_INSTRUCTIONS + 1)
    if len(inside) > MOST_INSTRUCTIONS:
        return False
    for computation, each in inside:
        known = each.opcode in _ALLOWED and all(array.dtype in DTYPES for array in arrays(each.shape))
        if not known or (each.opcode not in _FREE and not isinstance(each.shape, ArrayShape)):
            return False
        if each.opcode == "reduce":
            sources = {one.name: one for one in computation.instructions}
            if any(array.elements > SMALL_REDUCTION for array in arrays(sources[each.operands[0]].shape)):
                return False
    return True


def _read(branch: RawComputation, operand: object) -> dict[object, int]:
    """Bytes of what a branch reads of its operand, by value."""
    (parameter,) = (each for each in branch.instructions if each.opcode == "parameter")
    if not isinstance(operand, tuple):
        return {operand: _bytes(parameter.shape)}
    found: dict[object, int] = {}
    for each in branch.instructions:
        if each.operands != (parameter.name,):
            continue
        if each.opcode != "get-tuple-element":  # handed on as a whole
            return {operand: _bytes(parameter.shape)}
        found[operand[each.integer("index")]] = _bytes(each.shape)
    return found


def _bytes(shape: RawShape) -> int:
    return sum(each.elements * BYTES.get(each.dtype, 0) for each in arrays(shape))
