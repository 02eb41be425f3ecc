"""Elements found through indices that are data: dynamic-slice, dynamic-update-slice, gather and scatter."""

import math
from collections.abc import Mapping, Sequence

from fusiond.model.codegen.code import Code, cpp, joined
from fusiond_stitching.analysis.indexing import Index, delinear, number
from fusiond_stitching.codegen.elemental import Elemental, Indices, Step, Write, combine, loop, type_of
from fusiond_stitching.codegen.scope import Scope
from fusiond_stitching.codegen.semantics import NoCode, Type
from fusiond_stitching.frontend.graph import HloInstruction


def start_index(scope: Scope, kind: Type, value: Code, most: int) -> Index:
    """A start index brought into 0 .. most."""
    if not kind.integral:
        raise NoCode(f"an index of type {kind.name} is not supported")
    low = cpp("{} < 0 ? 0 : ", value) if kind.kind == "signed" else ""
    limit = cpp("{}ull", most) if kind.kind == "unsigned" and kind.bits == 64 else str(most)
    whole = scope.function.index_type
    return scope.variable("start", cpp("{}{} > {} ? {} : ({}){}", low, value, limit, most, whole, value), most + 1)


def component_place(starts: HloInstruction, vector: int, batch: Sequence[Index], component: int) -> Indices:
    """Where a component of an index lies in the indices of a gather or scatter."""
    return (*batch[:vector], number(component), *batch[vector:]) if vector < len(starts.dims) else tuple(batch)


def _dynamic_slice(self: Elemental, scope: Scope, instruction: HloInstruction, indices: Indices) -> Step:
    operand, *starts = self.module.operands(instruction)
    place = []
    for index, dim, size, start in zip(indices, operand.dims, instruction.dims, starts, strict=True):
        first = number(0) if dim == size else self.start(start.name, dim - size)
        if first is None:
            value = yield scope, start.name, ()
            first = start_index(scope, type_of(start), value, dim - size)
        place.append(first + index)
    return (yield scope, operand.name, tuple(place))


def _dynamic_update_slice(self: Elemental, scope: Scope, instruction: HloInstruction, indices: Indices) -> Step:
    operand, update, *starts = self.module.operands(instruction)
    if update.elements == 0:
        return (yield scope, operand.name, indices)
    conditions, shifted = [], []
    for index, dim, size, start in zip(indices, operand.dims, update.dims, starts, strict=True):
        if dim == size:
            shifted.append(index)
            continue
        value = yield scope, start.name, ()
        moved = index - start_index(scope, type_of(start), value, dim - size)
        written = scope.index(moved)
        conditions += [cpp("{} >= 0", written)] if moved.low < 0 else []
        conditions += [cpp("{} < {}", written, size)] if moved.high >= size else []
        shifted.append(moved)
    if not conditions:
        return (yield scope, update.name, tuple(shifted))
    name = scope.function.fresh("updated")
    scope.line(cpp("{} {};", type_of(instruction).value, name))
    with scope.when(conditions, end=None) as inner:
        place = tuple(
            inner.variable("row", inner.index(each), size) if dim != size else each
            for each, size, dim in zip(shifted, update.dims, operand.dims, strict=True)
        )
        value = yield inner, update.name, place
        inner.line(cpp("{} = {};", name, value))
    with scope.block(Code("} else")) as inner:
        value = yield inner, operand.name, indices
        inner.line(cpp("{} = {};", name, value))
    return name


def _gather(self: Elemental, scope: Scope, instruction: HloInstruction, indices: Indices) -> Step:
    operand, starts = self.module.operands(instruction)
    numbers = instruction.attributes
    offset_dims, vector = numbers["offset_dims"], numbers["index_vector_dim"]
    batching = dict(zip(numbers["operand_batching_dims"], numbers["start_indices_batching_dims"], strict=True))
    batch = [index for at, index in enumerate(indices) if at not in offset_dims]
    windows = iter(indices[at] for at in offset_dims)
    place = []
    for at, (dim, size) in enumerate(zip(operand.dims, numbers["slice_sizes"], strict=True)):
        inside = at not in numbers["collapsed_slice_dims"] and at not in batching
        index = next(windows) if inside else number(0)
        if at in batching:
            column = batching[at]
            index = batch[column - (column > vector)]
        elif at in numbers["start_index_map"] and dim != size:
            component = numbers["start_index_map"].index(at)
            where = component_place(starts, vector, batch, component)
            home = scope.home(frozenset().union(*(each.symbols for each in where)))  # a row's for all of its columns
            value = yield home, starts.name, where
            index = index + start_index(home, type_of(starts), value, dim - size)
        place.append(index)
    return (yield scope, operand.name, tuple(place))


def _scatter(self: Elemental, scope: Scope, instruction: HloInstruction, indices: Indices) -> Step:
    """The operand's element, and every update that falls on it, in the order of the indices: a loop over all of them.

    Each element looks at all updates, so nothing is atomic and the order is always the same."""
    operand, starts, updates = self.module.operands(instruction)
    numbers, computation = instruction.attributes, instruction.attributes["computation"]
    kind = type_of(instruction)
    vector = numbers["index_vector_dim"]
    window_dims, inserted = numbers["update_window_dims"], numbers["inserted_window_dims"]
    batching = dict(zip(numbers["input_batching_dims"], numbers["scatter_indices_batching_dims"], strict=True))
    original = yield scope, operand.name, indices
    name = scope.mutable(kind, "scattered", original)
    batch_dims = tuple(size for at, size in enumerate(updates.dims) if at not in window_dims)
    if updates.elements == 0:
        return name
    with loop(scope, math.prod(batch_dims), "u") as (inner, step):
        batch = list(delinear(step, batch_dims))
        windows = iter(window_dims)
        conditions: list[Code] = []
        place: list[Index | Code] = []  # of the window: an index, or text that is one behind the conditions
        for at, (index, dim) in enumerate(zip(indices, operand.dims, strict=True)):
            if at in batching:
                column = batching[at]
                conditions.append(cpp("{} == {}", inner.index(batch[column - (column > vector)]), inner.index(index)))
                continue
            size = 1 if at in inserted else updates.dims[next(windows)]
            if at not in numbers["scatter_dims_to_operand_dims"]:
                conditions += [cpp("{} < {}", inner.index(index), size)] if index.high >= size else []
                place += [] if at in inserted else [inner.index(index) if index.high >= size else index]
                continue
            component = numbers["scatter_dims_to_operand_dims"].index(at)
            value = yield inner, starts.name, component_place(starts, vector, batch, component)
            start = signed_start(inner, type_of(starts), value)
            away = cpp("{} - {}", inner.index(index), start)
            offset = inner.constant(index_type_of(type_of(starts)), "offset", away)
            if size == 1:
                conditions.append(cpp("{} == 0", offset))
            else:  # a window that does not fit into the operand is dropped whole
                conditions += [
                    cpp("{} >= 0", offset),
                    cpp("{} < {}", offset, size),
                    cpp("{} >= 0", start),
                    cpp("{} <= {}", start, dim - size),
                ]
            place += [] if at in inserted else [cpp("({}){}", inner.function.index_type, offset)]
        with inner.block(cpp("if ({})", joined(" && ", conditions) if conditions else "true")) as hit:
            moved = iter(place)
            coordinates: list[Index] = []
            rest = iter(batch)
            for at, size in enumerate(updates.dims):
                if at in window_dims:
                    each = next(moved)
                    coordinates.append(hit.variable("row", each, size) if isinstance(each, Code) else each)
                else:
                    coordinates.append(next(rest))
            value = yield hit, updates.name, tuple(coordinates)
            combine(self, hit, computation, [name], [value], [kind])
    return name


def index_type_of(kind: Type) -> str:
    return "int" if kind.bits < 32 else "long long"


def signed_start(scope: Scope, kind: Type, value: Code) -> Code:
    """A start index as a signed number; one that fits no tensor stays negative or large."""
    if not kind.integral:
        raise NoCode(f"an index of type {kind.name} is not supported")
    return scope.constant(index_type_of(kind), "start", value)


STEPS: Mapping[str, Write] = {
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter,
}
