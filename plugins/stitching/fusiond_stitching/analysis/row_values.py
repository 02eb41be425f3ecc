"""Which values of rows in registers are kept from sweep to sweep, and how many registers that takes.

A value that several sweeps need is kept, or computed again where that is cheap and needs one kept value at most.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fusiond_stitching.analysis.plan import RowPlace
from fusiond_stitching.analysis.row_places import RowPlaces
from fusiond_stitching.frontend.graph import BYTES, EXPENSIVE


@dataclass(frozen=True, slots=True)
class KeptValues:
    uses: Mapping[str, set[int]]  #: The sweeps that need a value, where it is kept or computed anew in each
    kept: tuple[str, ...]  #: What one sweep computes and a later one reads
    held: tuple[str, ...]  #: What is read from memory once, and stays

    def words(self, places: RowPlaces, per_thread: int) -> int:
        """Registers (32 bits) for what is kept between two sweeps, at most, and for the sums of columns."""
        alive: dict[int, int] = {}
        for name in (*self.kept, *self.held):
            size = -(-per_thread * max(2, BYTES[places.module[name].dtype]) // 4)
            for sweep in range(min(self.uses[name]), max(self.uses[name])):
                alive[sweep] = alive.get(sweep, 0) + size
        columns = sum(
            -(-per_thread * BYTES[each.dtype] // 4)
            for each in places.reduces
            if places.place[each.name] is RowPlace.COLUMN
        )
        return max(alive.values(), default=per_thread) + columns


def kept_values(places: RowPlaces) -> KeptValues:
    """From the results up: what each sweep needs, and what of it is kept."""
    leaves = _leaves(places)
    uses: dict[str, set[int]] = {}
    for each in places.nodes:
        if each.opcode == "reduce":
            sweep = places.level[each.name] - (places.place[each.name] is not RowPlace.COLUMN)
            for value in each.values:
                uses.setdefault(value, set()).add(sweep)
        if each.name in places.stored and places.place[each.name] is RowPlace.WIDE:
            uses.setdefault(each.name, set()).add(places.level[each.name])
    kept = []
    for each in reversed(places.nodes):
        used = uses.get(each.name)
        if not used or places.place.get(each.name) is not RowPlace.WIDE:
            continue
        if len(used) > 1 and leaves[each.name] == {each.name}:
            kept.append(each.name)
            used = {min(used)}
        for operand in each.operands:
            if places.reads_in_place(each, operand):
                uses.setdefault(operand, set()).update(used)
    inside = {each.name for each in places.nodes}
    held = (
        name
        for name, used in uses.items()
        if name not in inside and len(used) > 1 and places.module[name].opcode != "constant"
    )
    return KeptValues(uses, tuple(kept), tuple(held))


def _leaves(places: RowPlaces) -> dict[str, set[str]]:
    """What must be at hand to compute a value again: itself where that is dear."""
    found: dict[str, set[str]] = {}
    for each in places.nodes:
        if places.place.get(each.name) is not RowPlace.WIDE:
            continue
        cheap = each.opcode in ("reshape", "iota") or (each.elementwise and each.opcode not in EXPENSIVE)
        cheap = cheap or (each.opcode == "broadcast" and not places.reads_in_place(each, each.operands[0]))
        needed: set[str] = set()
        for operand in each.operands:
            if places.reads_in_place(each, operand):
                needed |= found.get(operand, {operand})
        found[each.name] = needed if cheap and len(needed) <= 1 else {each.name}
    return found
