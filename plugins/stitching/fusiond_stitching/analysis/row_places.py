"""Where the values of a row group lie, and in which sweep each can be computed.

A reduction ends a sweep over what a thread holds. Everything rests on places: a value is read where it was written, by
the same thread, which the algebra of indices proves for each read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fusiond_stitching.analysis import online_reductions
from fusiond_stitching.analysis.fusion import GroupContext
from fusiond_stitching.analysis.indexing import Index, delinear, linear, operand_index, read_at
from fusiond_stitching.analysis.plan import RowPlace
from fusiond_stitching.analysis.row_shapes import RowShape, cut
from fusiond_stitching.frontend.graph import HloInstruction, HloModule

MOST_FEW = 16  #: Numbers of a row that lie side by side, as the best of a row and where they are
_INLINED = ("broadcast", "reshape", "transpose", "slice", "concatenate")


@dataclass(slots=True)
class RowPlaces:
    """Filled by `placed`, and not changed afterwards."""

    module: HloModule
    shape: RowShape
    nodes: list[HloInstruction]
    stored: frozenset[str]
    place: dict[str, RowPlace] = field(default_factory=dict)
    level: dict[str, int] = field(default_factory=dict)
    """The first sweep in which a value can be computed; of what depends on no reduction, 0."""
    late: set[str] = field(default_factory=set)  #: What depends on a reduction of this group
    through: set[str] = field(default_factory=set)
    """Of these, what lies nowhere and is computed where it is read: a row's mean, spread over some of its columns. Of
    what has few numbers a row, it may be stored, by one lane."""

    @property
    def reduces(self) -> list[HloInstruction]:
        return [each for each in self.nodes if each.opcode == "reduce"]

    def reads_in_place(self, node: HloInstruction, operand: str) -> bool:
        """Whether a value as wide as the rows is read where it lies."""
        source = self.module[operand]
        if source.elements != self.shape.elements(RowPlace.WIDE) or source.opcode == "constant":
            return False
        if node.opcode == "reduce":
            return operand in node.values
        if node.elementwise or node.opcode == "reshape":  # the common case of what follows
            return source.dims == node.dims or node.opcode == "reshape"
        indices = delinear(self.shape.at(RowPlace.WIDE), node.dims)
        moved = operand_index(node, source, indices)
        return moved is not None and linear(moved, source.dims) == self.shape.at(RowPlace.WIDE)

    # --- one node after the other ---

    def put(self, node: HloInstruction) -> bool:
        """Finds the place of a node whose operands have theirs; False where it reads one elsewhere than where it
        lies."""
        late = [operand for operand in node.operands if operand in self.late]
        self.level[node.name] = max((self.level[operand] for operand in late), default=0)
        if node.opcode == "reduce":
            return self._put_reduce(node)
        sized = [
            each for each in (RowPlace.WIDE, RowPlace.ROW, RowPlace.PIECE) if node.elements == self.shape.elements(each)
        ]
        if not late:
            if sized:
                self.place[node.name] = sized[0]
            return True
        columns = any(self.place.get(operand) is RowPlace.COLUMN for operand in late)
        for place in (RowPlace.COLUMN,) if columns else sized:
            if node.elements == self.shape.elements(place) and self._aligned(node, place, late):
                self.place[node.name] = place
                self.late.add(node.name)
                return True
        if sized or columns or not (node.elementwise or node.opcode in _INLINED):
            return False
        return self._put_through(node)

    def _put_through(self, node: HloInstruction) -> bool:
        """What has no place of its own."""
        if node.name in self.stored:
            if not self._few(node):
                return False
            self.place[node.name] = RowPlace.FEW
        self.late.add(node.name)
        self.through.add(node.name)
        return True

    def _few(self, node: HloInstruction) -> bool:
        """Whether it has a few numbers for each row, and every one of them can be computed where the row is known."""
        few, rest = divmod(node.elements, self.shape.count)
        if rest or not 1 < few <= MOST_FEW:
            return False
        row = self.shape.at(RowPlace.ROW) * few
        return all(self._late_in_place(node, delinear(row + number, node.dims)) for number in range(few))

    def _put_reduce(self, node: HloInstruction) -> bool:
        values = node.values
        fold = any(self.place.get(each) is RowPlace.PIECE for each in values)
        if not self._all_at(values, RowPlace.PIECE if fold else RowPlace.WIDE):
            return False
        if any(each in self.late for each in node.operands[len(values) :]):
            return False
        dims, reduced = self.module[values[0]].dims, node.attributes["dimensions"]
        three = cut(dims, reduced)
        column = three is not None and three[2] > 1
        if (column or fold) and not self._accumulates(node, column):
            return False
        if fold:
            place = RowPlace.ROW
            sound = values[0] in self.late and three == (self.shape.count, self.shape.run, 1)
        else:
            place = RowPlace.ROW if not column else RowPlace.PIECE if self.shape.pieces else RowPlace.COLUMN
            sound = self.shape.reduces_to(place, dims, reduced)
        if not sound:
            return False
        self.place[node.name] = place
        self.late.add(node.name)
        if place is not RowPlace.COLUMN and not fold:
            self.level[node.name] += 1
        return True

    def _all_at(self, values: Iterable[str], place: RowPlace) -> bool:
        """Whether values are as many as there are at a place, and those that depend on reductions lie there."""
        size = self.shape.elements(place)
        return all(
            self.module[each].elements == size and (each not in self.late or self.place.get(each) is place)
            for each in values
        )

    def _accumulates(self, node: HloInstruction, column: bool) -> bool:
        """Whether a reduction can be done in an array of accumulators: by one operation, or of columns by a pair."""
        if node.attributes["computation"].simple is not None and len(node.values) == 1:
            return True
        return column and not self.shape.pieces and online_reductions.is_pair(node)

    def _aligned(self, node: HloInstruction, place: RowPlace, operands: Sequence[str]) -> bool:
        """Whether it reads these operands where they lie."""
        placed = not any(each in self.through for each in operands)
        if placed and node.elementwise and all(self.module[each].dims == node.dims for each in operands):
            return all(self.place[each] is place for each in operands)  # the common case of what follows
        return self._late_in_place(node, delinear(self.shape.at(place), node.dims))

    def _late_in_place(self, node: HloInstruction, at: tuple[Index, ...]) -> bool:
        """Whether an element of it reads what depends on the row's reductions where that lies, through what lies
        nowhere."""
        stack = [(node, at)]
        seen: set[tuple[str, tuple[Index, ...]]] = set()
        while stack:
            reader, indices = stack.pop()
            for name, moved in read_at(self.module, reader, indices):
                if name not in self.late:
                    continue
                source = self.module[name]
                if moved is None:
                    return False
                if name not in self.through:
                    if linear(moved, source.dims) != self.shape.at(self.place[name]):
                        return False
                elif (name, moved) not in seen:
                    seen.add((name, moved))
                    stack.append((source, moved))
        return True


def placed(group: GroupContext, shape: RowShape) -> RowPlaces | None:
    """Places and levels of all nodes; None where a value is read elsewhere than where it lies, or a member has no place
    that is stored or a reduction."""
    module, stored = group.module, group.stored
    found = RowPlaces(module, shape, group.nodes, stored)
    if not all(found.put(each) for each in group.nodes):
        return None
    needed = (name for name in group.group.members if name in stored or module[name].opcode == "reduce")
    return found if all(name in found.place for name in needed) else None
