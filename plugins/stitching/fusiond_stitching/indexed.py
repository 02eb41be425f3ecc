"""Elements found through indices that are data: dynamic-slice, dynamic-update-slice, gather and scatter."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fusiond_stitching.elemental import Elemental, Indices, Step, Write, combine, loop, type_of
from fusiond_stitching.graph import Instruction
from fusiond_stitching.indexing import Index, delinear, number
from fusiond_stitching.scope import Scope
from fusiond_stitching.semantics import Type, Unsupported


def _clamped(scope: Scope, kind: Type, value: str, most: int) -> Index:
    """A start index brought into 0 .. most."""
    if not kind.integral:
        raise Unsupported(f"an index of type {kind.name}")
    low = f"{value} < 0 ? 0 : " if kind.kind == "signed" else ""
    limit = f"{most}ull" if kind.kind == "unsigned" and kind.bits == 64 else str(most)
    whole = scope.function.index_type
    return scope.variable("start", f"{low}{value} > {limit} ? {most} : ({whole}){value}", most + 1)


def _dynamic_slice(self: Elemental, scope: Scope, instruction: Instruction, indices: Indices) -> Step:
    operand, *starts = self.module.operands(instruction)
    place = []
    for index, dim, size, start in zip(indices, operand.dims, instruction.dims, starts, strict=True):
        if dim == size:
            place.append(index)
            continue
        value = yield scope, start.name, ()
        place.append(_clamped(scope, type_of(start), value, dim - size) + index)
    return (yield scope, operand.name, tuple(place))


def _dynamic_update_slice(self: Elemental, scope: Scope, instruction: Instruction, indices: Indices) -> Step:
    operand, update, *starts = self.module.operands(instruction)
    if update.elements == 0:
        return (yield scope, operand.name, indices)
    conditions, shifted = [], []
    for index, dim, size, start in zip(indices, operand.dims, update.dims, starts, strict=True):
        if dim == size:
            shifted.append(index)
            continue
        value = yield scope, start.name, ()
        moved = index - _clamped(scope, type_of(start), value, dim - size)
        written = scope.index(moved)
        conditions += [f"{written} >= 0"] if moved.low < 0 else []
        conditions += [f"{written} < {size}"] if moved.high >= size else []
        shifted.append(moved)
    if not conditions:
        return (yield scope, update.name, tuple(shifted))
    name = scope.function.fresh("updated")
    scope.line(f"{type_of(instruction).value} {name};")
    with scope.block(f"if ({' && '.join(conditions)})", end=None) as inner:
        place = tuple(
            inner.variable("row", inner.index(each), size) if dim != size else each
            for each, size, dim in zip(shifted, update.dims, operand.dims, strict=True)
        )
        value = yield inner, update.name, place
        inner.line(f"{name} = {value};")
    with scope.block("} else") as inner:
        value = yield inner, operand.name, indices
        inner.line(f"{name} = {value};")
    return name


def _gather(self: Elemental, scope: Scope, instruction: Instruction, indices: Indices) -> Step:
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
            component = number(numbers["start_index_map"].index(at))
            where = (*batch[:vector], component, *batch[vector:]) if vector < len(starts.dims) else tuple(batch)
            value = yield scope, starts.name, where
            index = index + _clamped(scope, type_of(starts), value, dim - size)
        place.append(index)
    return (yield scope, operand.name, tuple(place))


def _scatter(self: Elemental, scope: Scope, instruction: Instruction, indices: Indices) -> Step:
    """The operand's element, and every update that falls on it, in the order of the indices: a loop over all of them.

    Each element looks at all updates, so nothing is atomic and the order is always the same."""
    operand, starts, updates = self.module.operands(instruction)
    numbers, computation = instruction.attributes, instruction.attributes["computation"]
    kind = type_of(instruction)
    vector = numbers["index_vector_dim"]
    window_dims, inserted = numbers["update_window_dims"], numbers["inserted_window_dims"]
    batching = dict(zip(numbers["input_batching_dims"], numbers["scatter_indices_batching_dims"], strict=True))
    original = yield scope, operand.name, indices
    name = scope.function.fresh("scattered")
    scope.line(f"{kind.value} {name} = {original};")
    batch_dims = tuple(size for at, size in enumerate(updates.dims) if at not in window_dims)
    if updates.elements == 0:
        return name
    with loop(scope, math.prod(batch_dims), "u") as (inner, step):
        batch = list(delinear(step, batch_dims))
        windows = iter(window_dims)
        conditions: list[str] = []
        place: list[Index | str] = []  # of the window: an index, or text that is one behind the conditions
        for at, (index, dim) in enumerate(zip(indices, operand.dims, strict=True)):
            if at in batching:
                column = batching[at]
                conditions.append(f"{inner.index(batch[column - (column > vector)])} == {inner.index(index)}")
                continue
            size = 1 if at in inserted else updates.dims[next(windows)]
            if at not in numbers["scatter_dims_to_operand_dims"]:
                conditions += [f"{inner.index(index)} < {size}"] if index.high >= size else []
                place += [] if at in inserted else [inner.index(index) if index.high >= size else index]
                continue
            component = number(numbers["scatter_dims_to_operand_dims"].index(at))
            where = (*batch[:vector], component, *batch[vector:]) if vector < len(starts.dims) else tuple(batch)
            value = yield inner, starts.name, where
            start = _signed(inner, type_of(starts), value)
            offset = inner.function.fresh("offset")
            inner.line(f"const {_index_type(type_of(starts))} {offset} = {inner.index(index)} - {start};")
            if size == 1:
                conditions.append(f"{offset} == 0")
            else:  # a window that does not fit into the operand is dropped whole
                conditions += [f"{offset} >= 0", f"{offset} < {size}", f"{start} >= 0", f"{start} <= {dim - size}"]
            place += [] if at in inserted else [f"({inner.function.index_type}){offset}"]
        with inner.block(f"if ({' && '.join(conditions) or 'true'})") as hit:
            moved = iter(place)
            coordinates: list[Index] = []
            rest = iter(batch)
            for at, size in enumerate(updates.dims):
                if at in window_dims:
                    each = next(moved)
                    coordinates.append(hit.variable("row", each, size) if isinstance(each, str) else each)
                else:
                    coordinates.append(next(rest))
            value = yield hit, updates.name, tuple(coordinates)
            combine(self, hit, computation, [name], [value], [kind])
    return name


def _index_type(kind: Type) -> str:
    return "int" if kind.bits < 32 else "long long"


def _signed(scope: Scope, kind: Type, value: str) -> str:
    """A start index as a signed number; one that fits no tensor stays negative or large."""
    if not kind.integral:
        raise Unsupported(f"an index of type {kind.name}")
    name = scope.function.fresh("start")
    scope.line(f"const {_index_type(kind)} {name} = {value};")
    return name


STEPS: Mapping[str, Write] = {
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter,
}
