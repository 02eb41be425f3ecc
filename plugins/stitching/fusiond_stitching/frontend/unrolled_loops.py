"""Counted loops over whole numbers, written out, as jax writes its random bits (threefry: five rounds).

Everything else that loops is a boundary, its body a module of its own (section 3.1). Here the body is element-wise work
on integers alone, the condition compares a counter with a constant, and the whole is short: it is written out when
it is read, and then stitched like anything else. Otherwise every dropout would be a library call that nobody has.
"""

from fusiond_stitching.frontend import hlo
from fusiond_stitching.frontend.constant_numbers import BITS
from fusiond_stitching.frontend.graph import ELEMENTWISE, MOVEMENT
from fusiond_stitching.frontend.hlo import Raw, RawComputation, RawModule, Several, arrays

MOST_TRIPS = 16
MOST_INSTRUCTIONS = 1024  #: How often a body may be written out, and how many instructions may come of it
_PLAIN = ELEMENTWISE | MOVEMENT | {"parameter", "constant", "tuple", "get-tuple-element", "call", "concatenate"}


def counter(module: RawModule, loop: Raw) -> int | None:
    """The place in the loop's state of what its condition compares with a constant; None for any other loop."""
    found = _condition(module, loop)
    return None if found is None else found[0]


def trips(module: RawModule, loop: Raw, first: int) -> int | None:
    """How often the body of a `while` runs whose counter begins at `first`; None for a loop that stays one."""
    found = _condition(module, loop)
    body = module.computations.get(loop.called("body"))
    if found is None or body is None or not isinstance(loop.shape, Several):
        return None
    place, limit = found
    if not _advances(body, place):
        return None
    inside = [each for _, each in module.inside(body, MOST_INSTRUCTIONS + 1)]
    count = max(0, limit - first)
    if count > MOST_TRIPS or count * len(inside) > MOST_INSTRUCTIONS:
        return None
    plain = all(each.opcode in _PLAIN and all(one.dtype in BITS for one in arrays(each.shape)) for each in inside)
    return count if plain else None


def _condition(module: RawModule, loop: Raw) -> tuple[int, int] | None:
    """(place in the state, limit) of `state[place] < limit`."""
    condition = module.computations.get(loop.called("condition"))
    if condition is None:
        return None
    by_name = {each.name: each for each in condition.instructions}
    test = by_name[condition.root]
    if test.opcode != "compare" or test.attributes.get("direction", "").strip() != "LT":
        return None
    left, right = (by_name.get(each) for each in test.operands)
    if left is None or right is None or left.opcode != "get-tuple-element" or right.opcode != "constant":
        return None
    (limit,) = hlo.literal(right)
    return left.integer("index"), int(limit)


def _advances(body: RawComputation, place: int) -> bool:
    """Whether the body adds 1 to the state's member `place`."""
    by_name = {each.name: each for each in body.instructions}
    root = by_name[body.root]
    if root.opcode != "tuple" or place >= len(root.operands):
        return False
    step = by_name[root.operands[place]]
    if step.opcode != "add":
        return False
    left, right = (by_name[each] for each in step.operands)
    if right.opcode != "constant" or left.opcode != "get-tuple-element" or hlo.literal(right) != (1,):
        return False
    return left.integer("index") == place and by_name[left.operands[0]].opcode == "parameter"
