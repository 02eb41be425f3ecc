"""Which part of a loop's state is a thread's own, or a block's.

Dimensions of values that only ever meet element by element are one axis, and each index of it is a thread's. What is
reduced, shifted or cut on the way stays inside a thread where it is short, and inside a block where it is not.
"""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fusiond_stitching.frontend import loop_bodies
from fusiond_stitching.frontend.graph import BYTES, ELEMENTWISE, EXPENSIVE, HloInstruction, HloModule, matched, reached

MANY = 8  #: Threads that compute the same, from which on it is worth a launch of its own
MOST_SHARED = 40 << 10  #: Bytes of shared memory that one row may need: every device has them
MOST_READ = 2 << 20
"""Bytes of matrices that a block reads in each trip, from the second-level cache: of an LSTM with 256 units it is 1 MB,
some 10 us, and a library's trip is half a dozen launches. What is the faster one is measured."""
MOST_ROWS = 1024  #: Rows that are multiplied: beyond, a library's product of all rows at once is the faster one
MOST_SUMMED = 1 << 20  #: Numbers that are gone through for a row's reductions, one after the other or by a warp
_SEEN_THROUGH = frozenset({"reshape", "transpose", "broadcast", "slice", "convert", "copy"})

_SOURCES = {"pad": 1, "dynamic-slice": 1, "dynamic-update-slice": 2}
"""Of how many operands elements are moved, where not of all."""


@dataclass(frozen=True, slots=True)
class ScanPartition:
    """What is whose."""

    sizes: tuple[int, ...]  #: Of the axes
    of: Mapping[str, tuple[int | None, ...]]  #: Of each carry, update and read: dimension -> axis
    reads: list[str]  #: The slices of which there is one element for each index of the axes
    held: int  #: Numbers of the state for each index of the axes; those of an update where they are more
    work: int  #: Numbers that are gone through in a trip for what is reduced, for each index of the axes


class Axes:
    """Union of dimensions that are walked together: (instruction, dimension) -> class. A class that stays `inside` is
    no axis. Loops in the body carry and hold as the body does; what they store is held until their end. `groups`: as
    those of a `Loop`."""

    def __init__(
        self,
        body: HloModule,
        carries: Mapping[str, str],
        stacked: Sequence[HloInstruction],
        numbers: frozenset[str],
        groups: Mapping[str, tuple[str, int, int]],
    ) -> None:
        inner = loop_bodies.inner_loops(body)
        self.body = body = loop_bodies.expanded(body) if inner else body
        self.after = {name: last for loop in inner for name, last in loop.carries.items()}
        """What loops in the body carry."""
        numbers |= {name for loop in inner for name in loop.numbers}
        self.groups = groups
        self.updates = [groups[each.name][0] if each.name in groups else each.operands[1] for each in stacked]
        self.above: dict[tuple[str, int], tuple[str, int]] = {}
        self.inside: set[tuple[str, int]] = set()
        self.axes: list[tuple[str, int]] = []
        self.possible = True
        starts = (name for each in stacked for name in each.operands[2:])
        self.live = self._live([*carries.values(), *self.updates, *starts])
        self.carried = (*carries, *(each for each in self.after if each in self.live))
        self.laid = tuple(each for loop in inner for each in loop.stacked if each in self.live)
        """What loops in the body store."""
        self.updates += [body[each].operands[1] for each in self.laid]
        self.varying = self._varying(numbers)
        for each in body.instructions:
            if each.name in self.live and each.operands:
                self._instruction(each)
        for before in self.carried:
            self._same(before, {**carries, **self.after}[before])

    def found(self, slices: Sequence[str], *, by_block: bool = False) -> ScanPartition | None:
        """Where threads, or blocks, can have parts of their own. `slices`: what may be read ahead. `by_block`: the axes
        are those of the state, whatever more its results have."""
        if not self.possible:
            return None
        values = tuple(dict.fromkeys((*self.carried, *self.updates, *self.laid)))
        own = self._own(values)
        choice = [own[name] for name in self.carried] if by_block and self.carried else own.values()
        widest = max(choice, key=lambda places: sum(each is not None for each in places), default=[])
        self.axes = [each for each in widest if each is not None]
        if not by_block and not all(self._along_axes(each) for each in own.values()):
            return None
        alone = [self._class((value, dimension)) for value, dimension, _ in self.groups.values()]
        if any(by_block or self.axes[-1:] != [each] for each in alone):
            return None  # neighbours along it are no neighbouring threads
        reads = [name for name in slices if name in self.live and self._along_axes(self._classes(name))]
        sizes = tuple(self.body[name].dims[at] for name, at in self.axes)
        of = {name: self.of(name) for name in (*own, *reads)}
        state = sum(map(self.inside_elements, (*self.carried, *self.laid)))
        held = max(state, *map(self.inside_elements, self.updates), 0)
        return ScanPartition(sizes=sizes, of=of, reads=reads, held=held, work=self._work())

    def _own(self, values: Sequence[str]) -> dict[str, list[tuple[str, int] | None]]:
        """The classes of which each value has its own index, by dimension."""
        for name in (*values, *sorted(self.live & self.varying)):
            classes = [each for each in self._classes(name) if each is not None]
            # Two dimensions of one value along one axis: its elements meet crosswise.
            self.inside |= {each for each in classes if classes.count(each) > 1}
        inside = {self._class(each) for each in self.inside}
        return {name: [None if each in inside else each for each in self._classes(name)] for name in values}

    def _along_axes(self, classes: Sequence[tuple[str, int] | None]) -> bool:
        return all(each is None or each in self.axes for each in classes)

    def of(self, name: str) -> tuple[int | None, ...]:
        """Dimension of a value -> axis; None stays inside a thread or block, or is 1."""
        return tuple(self.axes.index(each) if each in self.axes else None for each in self._classes(name))

    def inside_elements(self, name: str) -> int:
        """How many elements of a value there are for an index of the axes."""
        dims = self.body[name].dims
        return math.prod(dim for dim, axis in zip(dims, self.of(name), strict=True) if axis is None)

    def _work(self) -> int:
        """Elements that are gone through in a trip for what is reduced, for an index of the axes."""
        total = 0
        for each in self.body.instructions:
            if each.name not in self.live or each.opcode not in ("reduce", "dot"):
                continue
            total += self.body.inputs(each) * self.inside_elements(each.name)
        return total

    def _live(self, roots: Sequence[str]) -> set[str]:
        after = {name: (last,) for name, last in self.after.items()}
        return reached(roots, lambda name: (*self.body[name].operands, *after.get(name, ())))

    def _varying(self, numbers: frozenset[str]) -> set[str]:
        """What depends on the state, but for what is known of it before: that is the same for all threads."""
        found = set(self.carried) - numbers
        for each in self.body.instructions:
            if any(name in found for name in each.operands):
                found.add(each.name)
        return found

    # --- classes ---

    def _class(self, key: tuple[str, int]) -> tuple[str, int]:
        while key in self.above:
            key = self.above[key]
        return key

    def _classes(self, name: str) -> list[tuple[str, int] | None]:
        """Of each dimension; None of those of size 1."""
        return [self._class((name, at)) if dim > 1 else None for at, dim in enumerate(self.body[name].dims)]

    def _join(self, one: tuple[str, int], other: tuple[str, int]) -> None:
        one, other = self._class(one), self._class(other)
        if one != other:
            self.above[one] = other

    def _same(self, one: str, other: str) -> None:
        for at in range(len(self.body[one].dims)):
            self._join((one, at), (other, at))

    def _inside(self, name: str, dimensions: Iterable[int]) -> None:
        self.inside |= {(name, at) for at in dimensions}

    # --- operations ---

    def _instruction(self, each: HloInstruction) -> None:
        varies = [name in self.varying for name in each.operands]
        operands = self.body.operands(each)
        if each.opcode in ELEMENTWISE:
            for operand in operands:
                if operand.dims:
                    self._same(operand.name, each.name)
        elif each.opcode in ("broadcast", "transpose"):
            order = each.attributes["dimensions"]
            for at, other in enumerate(order):
                mine, its = (other, at) if each.opcode == "broadcast" else (at, other)
                self._join((each.name, mine), (operands[0].name, its))
        elif each.opcode == "reduce":
            self._reduced(each, operands, varies)
        elif each.opcode == "reshape":
            self._reshaped(each, operands[0], varies[0])
        elif any(varies):
            self._moved(each, operands, varies)

    def _reduced(self, each: HloInstruction, operands: Sequence[HloInstruction], varies: Sequence[bool]) -> None:
        dimensions = each.attributes["dimensions"]
        kept = [at for at in range(len(operands[0].dims)) if at not in dimensions]
        for operand, varying in zip(operands[: len(operands) // 2], varies, strict=False):
            for at, other in enumerate(kept):
                self._join((each.name, at), (operand.name, other))
            if varying:
                self._inside(operand.name, dimensions)

    def _reshaped(self, each: HloInstruction, operand: HloInstruction, varying: bool) -> None:
        """Dimensions of equal size behind equal products are the same; all others stay inside."""
        for mine, its in matched(each.dims, operand.dims):
            large = [at for at in mine if each.dims[at] > 1]
            theirs = [at for at in its if operand.dims[at] > 1]
            if len(large) == len(theirs) == 1:
                self._join((each.name, large[0]), (operand.name, theirs[0]))
            elif varying:
                self._inside(each.name, large)
                self._inside(operand.name, theirs)

    def _moved(self, each: HloInstruction, operands: Sequence[HloInstruction], varies: Sequence[bool]) -> None:
        """What shifts, cuts or contracts: only along the dimensions that stay whole do threads keep to themselves."""
        if each.opcode == "dot":
            self._contracted(each, operands, varies)
        elif each.opcode == "gather":
            self._gathered(each, operands, varies)
        elif (cut := _cut(each, operands)) is None:
            self.possible = False
        else:
            for source in operands[: _SOURCES.get(each.opcode, len(operands))]:
                self._inside(source.name, cut)
                for at in range(len(each.dims)):
                    if at not in cut:
                        self._join((each.name, at), (source.name, at))
            self._inside(each.name, cut)

    def _gathered(self, each: HloInstruction, operands: Sequence[HloInstruction], varies: Sequence[bool]) -> None:
        """What looks up has its own index. Of what is looked up in, dimensions that are taken whole, or go along with
        the index, are walked together; along all others any element may be wanted."""
        numbers = each.attributes
        operand, indices = operands
        vector, offsets = numbers["index_vector_dim"], numbers["offset_dims"]
        batch = [at for at in range(len(each.dims)) if at not in offsets]
        columns = [at for at in range(len(indices.dims)) if at != vector]
        if varies[1]:
            self._inside(indices.name, [vector] if vector < len(indices.dims) else [])
            for mine, column in zip(batch, columns, strict=True):
                self._join((each.name, mine), (indices.name, column))
        if varies[0]:
            along = dict(zip(numbers["operand_batching_dims"], numbers["start_indices_batching_dims"], strict=True))
            windows = iter(offsets)
            for at, (dim, size) in enumerate(zip(operand.dims, numbers["slice_sizes"], strict=True)):
                if at in along:
                    self._join((each.name, batch[columns.index(along[at])]), (operand.name, at))
                    continue
                own = None if at in numbers["collapsed_slice_dims"] else next(windows)
                if own is not None and size == dim:
                    self._join((each.name, own), (operand.name, at))
                else:
                    self._inside(operand.name, [at])
                    self._inside(each.name, [] if own is None else [own])

    def _contracted(self, each: HloInstruction, operands: Sequence[HloInstruction], varies: Sequence[bool]) -> None:
        numbers = each.attributes
        batch = len(numbers["lhs_batch"])
        free = batch
        for side, operand, varying in zip(("lhs", "rhs"), operands, varies, strict=True):
            for at, own in enumerate(numbers[f"{side}_batch"]):
                self._join((each.name, at), (operand.name, own))
            used = {*numbers[f"{side}_batch"], *numbers[f"{side}_contracting"]}
            for at in range(len(operand.dims)):
                if at not in used:
                    self._join((each.name, free), (operand.name, at))
                    free += 1
            if varying:
                self._inside(operand.name, numbers[f"{side}_contracting"])


def _cut(each: HloInstruction, operands: Sequence[HloInstruction]) -> set[int] | None:
    """The dimensions along which an operation shifts or cuts; None where that is not known."""
    match each.opcode:
        case "concatenate":
            return {each.attributes["dimension"]}
        case "reverse":
            return set(each.attributes["dimensions"])
        case "slice" | "dynamic-slice":
            return _unequal(operands[0].dims, each.dims)
        case "dynamic-update-slice":
            return _unequal(operands[0].dims, operands[1].dims)
        case "pad":
            padded = (each.attributes[side] for side in ("low", "high", "interior"))
            return {at for at, amounts in enumerate(zip(*padded, strict=True)) if any(amounts)}
    return None


def _unequal(dims: Sequence[int], others: Sequence[int]) -> set[int]:
    return {at for at, dim in enumerate(dims) if dim != others[at]}


def shared_by_threads(axes: Axes, places: ScanPartition, inside: Container[str]) -> list[str]:
    """Expensive values of those `inside` that no trip changes and that `MANY` threads and more would compute alike: the
    last ones of each chain."""
    body, found = axes.body, []
    below: set[str] = set()
    for each in reversed(body.instructions):
        if each.name not in axes.live or each.name in axes.varying or each.name not in inside:
            continue
        own = {axis for axis in axes.of(each.name) if axis is not None}
        alike = math.prod(size for axis, size in enumerate(places.sizes) if axis not in own)
        if each.opcode in EXPENSIVE and each.name not in below and alike >= MANY and each.elements > 1:
            found.append(each.name)
        if each.name in found or each.name in below:
            below |= set(each.operands)
    return found


def kept_by_blocks(axes: Axes, places: ScanPartition) -> tuple[str, ...] | str:
    """What each trip stores in shared memory beside the state, in order; why a block cannot run the loop. What is
    multiplied by a matrix, or reduced, is stored whole before it is read crosswise; so is what comes of it. All else
    of a trip is element by element, and computed where it is read."""
    body = axes.body
    found: dict[str, None] = {}

    def at_hand(name: str) -> bool:
        while name not in axes.carried and name not in found and body[name].opcode in _SEEN_THROUGH:
            name = body[name].operands[0]
        return name in axes.carried or name in found

    read = 0
    for each in body.instructions:
        if each.name not in axes.live or each.opcode not in ("dot", "reduce"):
            continue
        varying = [name for name in each.values if name in axes.varying]
        if not varying:
            if each.opcode == "dot":
                return f"the product {each.name!r} could be computed before the loop"
            continue
        if each.opcode == "dot":
            read += sum(
                axes.inside_elements(name) * BYTES[body[name].dtype] for name in each.values if name not in axes.varying
            )
        elif axes.inside_elements(each.operands[0]) > MOST_SUMMED:
            return f"it reduces more than {MOST_SUMMED} numbers for a row"
        found |= dict.fromkeys(name for name in varying if not at_hand(name))
        found[each.name] = None
    if read > MOST_READ:
        return f"it would read {read >> 10} KB of matrices in each trip ({MOST_READ >> 10} at most)"
    if read and math.prod(places.sizes) > MOST_ROWS:
        return f"it multiplies {math.prod(places.sizes)} rows ({MOST_ROWS} at most)"
    needed = sum(
        axes.inside_elements(name) * BYTES[body[name].dtype] * (1 + (name in axes.carried))
        for name in (*axes.carried, *found)
    )
    if needed > MOST_SHARED:
        return f"a row of its state needs {needed >> 10} KB of shared memory ({MOST_SHARED >> 10} at most)"
    return tuple(found)
