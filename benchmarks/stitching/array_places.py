"""Where gathers, scatters and dynamic slices find their elements: one array of indices for each dimension of the
operand, of shapes that broadcast to the window (`x[places]`). Starts are clamped, as HLO says; a scatter's window that
does not fit is dropped whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.stitching.array_names import Names
from fusiond_stitching.frontend.graph import HloInstruction

Dims = Sequence[int]


def started_places(names: Names, dims: Dims, sizes: Dims, starts: Sequence[Any]) -> tuple[Any, ...]:
    """A window of these sizes whose first element is at `starts` (scalars)."""
    return tuple(
        _clamped(names, start, dim - size) + _along(names, sizes, at)
        for at, (dim, size, start) in enumerate(zip(dims, sizes, starts, strict=True))
    )


def gathered_places(names: Names, of: HloInstruction, dims: Dims, start_dims: Dims, starts: Any) -> tuple[Any, ...]:
    """For a gather from an operand of shape `dims`; broadcast, they are of the gather's shape."""
    numbers = of.attributes
    windows = _Windows(
        names,
        of.dims,
        offset_dims=numbers["offset_dims"],
        inserted=numbers["collapsed_slice_dims"],
        batching=dict(zip(numbers["operand_batching_dims"], numbers["start_indices_batching_dims"], strict=True)),
        mapped=numbers["start_index_map"],
        vector=numbers["index_vector_dim"],
    )
    found = []
    for at, (dim, size) in enumerate(zip(dims, numbers["slice_sizes"], strict=True)):
        start = windows.start(at, start_dims, starts)
        place = windows.inside(at)
        found.append(place if start is None else _clamped(names, start, dim - size) + place)
    return tuple(found)


def scattered_places(
    names: Names, of: HloInstruction, dims: Dims, start_dims: Dims, update_dims: Dims, starts: Any
) -> tuple[tuple[Any, ...], Any]:
    """For a scatter into an operand of shape `dims`: the places, and whether the window of an update fits. Broadcast,
    both are of the updates' shape."""
    numbers = of.attributes
    windows = _Windows(
        names,
        update_dims,
        offset_dims=numbers["update_window_dims"],
        inserted=numbers["inserted_window_dims"],
        batching=dict(zip(numbers["input_batching_dims"], numbers["scatter_indices_batching_dims"], strict=True)),
        mapped=numbers["scatter_dims_to_operand_dims"],
        vector=numbers["index_vector_dim"],
    )
    found, fits = [], names.full((), True, "pred")
    for at, dim in enumerate(dims):
        start, place = windows.start(at, start_dims, starts), windows.inside(at)
        if start is not None:
            most = dim - windows.size(at)
            fits = fits & (start >= 0) & (start <= most)
            place = _clamped(names, start, most) + place
        found.append(place)
    return tuple(found), fits


class _Windows:
    """Windows in an array of shape `dims`: `offset_dims` are the dimensions inside a window, the others are those of
    the starts, in their order. `batching`: dimension of the operand -> of the starts."""

    def __init__(
        self, names: Names, dims: Dims, *, offset_dims: Dims, inserted: Dims, batching: dict[int, int], mapped: Dims,
        vector: int,
    ) -> None:  # fmt: skip
        self.names, self.dims, self.offset_dims = names, dims, offset_dims
        self.outside = [at for at in range(len(dims)) if at not in offset_dims]
        self.inserted, self.batching, self.mapped, self.vector = inserted, batching, mapped, vector

    def inside(self, at: int) -> Any:
        """The offset in the operand's dimension `at`."""
        if at in self.batching:
            column = self.batching[at]
            return _along(self.names, self.dims, self.outside[column - (column > self.vector)])
        dimension = self._dimension(at)
        return _nothing(self.names, self.dims) if dimension is None else _along(self.names, self.dims, dimension)

    def size(self, at: int) -> int:
        dimension = self._dimension(at)
        return 1 if dimension is None else self.dims[dimension]

    def start(self, at: int, start_dims: Dims, starts: Any) -> Any:
        """Of the windows in the operand's dimension `at`; None where they begin at 0."""
        if at not in self.mapped:
            return None
        component = list(self.mapped).index(at)
        if self.vector < len(start_dims):
            starts = starts[(slice(None),) * self.vector + (component,)]
        shape = [size if each in self.outside else 1 for each, size in enumerate(self.dims)]
        return self.names.converted(starts, "s64").reshape(tuple(shape))

    def _dimension(self, at: int) -> int | None:
        """The dimension of the windows' array that runs through the operand's dimension `at`."""
        if at in self.inserted or at in self.batching:
            return None
        skipped = sum(each < at for each in (*self.inserted, *self.batching))
        return self.offset_dims[at - skipped]


def _clamped(names: Names, start: Any, most: int) -> Any:
    return names.clipped(names.converted(start, "s64"), 0, most)


def _along(names: Names, dims: Dims, at: int) -> Any:
    """0, 1, 2, ... along one dimension of an array of this shape."""
    return names.counted(dims[at], "s64").reshape(tuple(size if each == at else 1 for each, size in enumerate(dims)))


def _nothing(names: Names, dims: Dims) -> Any:
    return names.full((1,) * len(dims), 0, "s64")
