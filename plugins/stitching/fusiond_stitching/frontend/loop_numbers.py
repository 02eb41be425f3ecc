"""Evaluates the whole numbers of a loop: trip count, and the places of reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fusiond_stitching.frontend.constant_numbers import BITS, OPERATIONS, wrapped
from fusiond_stitching.frontend.graph import HloModule

MOST_TRIPS = 1 << 16  #: How long a loop is followed


def run(
    body: HloModule, condition: HloModule, begin: Mapping[str, int]
) -> tuple[int, Mapping[str, Sequence[int]]] | None:
    """(how often the body runs, what its whole scalars are in each trip); None where that is not known before."""
    known = dict(begin)
    while True:
        followed = _whole(body, known)
        lost = [name for name, last in zip(body.parameters, body.outputs, strict=True)
                if name in known and last not in followed]  # fmt: skip
        if not lost:
            break
        for name in lost:
            known.pop(name)
    same = dict(zip(body.parameters, condition.parameters, strict=True))
    tested = _whole(condition, {same[name]: value for name, value in known.items()})
    if condition.outputs[0] not in tested:
        return None
    last = dict(zip(body.parameters, body.outputs, strict=True))
    found: dict[str, list[int]] = {name: [] for name in followed}
    for trip in range(MOST_TRIPS + 1):
        if not _values(condition, tested, {same[name]: value for name, value in known.items()})[condition.outputs[0]]:
            return (trip, found) if trip else None
        values = _values(body, followed, known)
        for name, value in values.items():
            found[name].append(value)
        known = {name: values[last[name]] for name in known}
    return None


def _whole(module: HloModule, known: Mapping[str, int]) -> list[str]:
    """The scalars that follow from the known ones, in order."""
    found = dict.fromkeys(known)
    for each in module.instructions:
        if each.name in found or each.elements != 1 or each.dtype not in BITS:
            continue
        if each.opcode == "constant" or (each.opcode in OPERATIONS and all(name in found for name in each.operands)):
            found[each.name] = None
    return [each.name for each in module.instructions if each.name in found]


def _values(module: HloModule, names: Iterable[str], known: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        each = module[name]
        if name in known:
            found[name] = known[name]
        elif each.opcode == "constant":
            found[name] = int(each.attributes["values"][0])
        else:
            found[name] = wrapped(OPERATIONS[each.opcode](each, *(found[one] for one in each.operands)), each.dtype)
    return found
