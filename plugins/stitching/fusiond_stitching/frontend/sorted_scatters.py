"""Scatters with ordered updates: sorted by target, and summed run by run.

    y = scatter(x, indices, u)
      -->  order = the updates' numbers, sorted by the row that each falls on; equal rows keep their order
           y = scatter(x, indices[order], u[order]), sorted

Of a run of updates that fall on one row the first one's thread applies all, in the module's order: so sums are the same
bit by bit in every run and on every device, and where updates replace each other the last one wins. It is as much work
as there are updates.

Few rows are sorted by counting: a row's place is how many come before it. More are sorted by digits of eight bits, the
lowest first (a radix sort): how often each digit occurs in each tile of 256 rows, where its rows begin, and how many
before it in the tile have it.
"""

import math

from fusiond_stitching.frontend.building import Rewriting
from fusiond_stitching.frontend.graph import BYTES, Computation, HloInstruction, HloModule

FEW = 4096  #: Rows that are sorted by comparing all pairs
TILE = 256  #: Rows of a tile, and values of a digit
_DIGIT = 8
_MOST = 1 << 30
_ORDER_FREE = ("add", "multiply", "and", "or", "xor")


def order_free(scatter: HloInstruction) -> bool:
    """Whether its updates give the same, bit by bit, in any order."""
    simple = scatter.attributes["computation"].simple
    if scatter.attributes.get("unique", False) or simple in ("maximum", "minimum"):
        return True
    return scatter.dtype not in _FLOATS and simple in _ORDER_FREE


_FLOATS = frozenset({"f8e4m3fn", "f8e5m2", "f16", "bf16", "f32", "f64"})


def possible(scatter: HloInstruction, indices: HloInstruction, updates: HloInstruction) -> bool:
    """Whether two updates fall on the same elements or on none in common: windows do not move along what they cover."""
    numbers = scatter.attributes
    gone = {*numbers["inserted_window_dims"], *numbers["input_batching_dims"]}
    windows = iter(numbers["update_window_dims"])
    for at in range(len(scatter.dims)):
        if at in gone:
            continue
        size = updates.dims[next(windows)]
        if at in numbers["scatter_dims_to_operand_dims"] and size != 1:
            return False
    named = [*numbers["scatter_dims_to_operand_dims"], *numbers["input_batching_dims"]]
    rows = math.prod(scatter.dims[at] for at in named)
    return bool(named) and rows < _MOST and indices.elements < _MOST and scatter.dtype in BYTES


def expanded(module: HloModule, scatter: HloInstruction, base: str) -> list[HloInstruction]:
    """The scatter, sorted and in place of `base`, behind all that it is made of."""
    return _Sorted(module, scatter, base).found()


class _Sorted(Rewriting):
    def __init__(self, module: HloModule, scatter: HloInstruction, base: str) -> None:
        super().__init__(scatter, "order")
        self.scatter = scatter
        self.base = base
        self.numbers = scatter.attributes
        _, self.indices, self.updates = module.operands(scatter)
        windows = self.numbers["update_window_dims"]
        self.batch = [at for at in range(len(self.updates.dims)) if at not in windows]
        self.count = math.prod(self.updates.dims[at] for at in self.batch)
        self.targets = (*self.numbers["scatter_dims_to_operand_dims"], *self.numbers["input_batching_dims"])

    def found(self) -> list[HloInstruction]:
        numbers = self.numbers
        columns = self._columns()
        rows = math.prod(self.scatter.dims[at] for at in self.targets)
        keys = self._keys(columns, rows)
        order = self._by_pairs(keys) if self.count <= FEW else self._by_digits(keys, rows)
        dims = (self.count, *(self.updates.dims[at] for at in numbers["update_window_dims"]))
        turned = (*self.batch, *numbers["update_window_dims"])
        updates = self.add("transpose", self.updates.dtype, tuple(self.updates.dims[at] for at in turned),
                            self.updates.name, dimensions=turned)  # fmt: skip
        updates = self.add("reshape", self.updates.dtype, dims, updates)
        gone = sorted({*numbers["inserted_window_dims"], *numbers["input_batching_dims"]})
        attributes = {
            **numbers,
            "update_window_dims": tuple(range(1, len(dims))),
            "inserted_window_dims": tuple(gone),
            "input_batching_dims": (),
            "scatter_indices_batching_dims": (),
            "scatter_dims_to_operand_dims": self.targets,
            "index_vector_dim": 1,
            "in_place": True,
            "sorted": True,
        }
        operands = (
            self.base,
            self._taken(columns, "s64", (self.count, len(self.targets)), order),
            self._taken(updates, self.updates.dtype, dims, order),
        )
        return [*self.made, self.scatter.becoming("scatter", *operands, **attributes)]

    def _columns(self) -> str:
        """The updates' indices: s64[updates, dimensions that they name]."""
        vector, dims = self.numbers["index_vector_dim"], self.indices.dims
        name, kind, shape = self.indices.name, self.indices.dtype, dims
        if vector < len(dims):
            turned = (*(at for at in range(len(dims)) if at != vector), vector)
            shape = tuple(dims[at] for at in turned)
            name = self.add("transpose", kind, shape, name, dimensions=turned)
        else:
            shape = (*dims, 1)
        width = shape[-1]
        found = [self.add("convert", "s64", (self.count, width), self.add("reshape", kind, (self.count, width), name))]
        for at in self.numbers["scatter_indices_batching_dims"]:
            along = self.add("iota", "s64", shape[:-1], dimension=at - (at > vector))
            found.append(self.add("reshape", "s64", (self.count, 1), along))
        if len(found) == 1:
            return found[0]
        return self.add("concatenate", "s64", (self.count, len(self.targets)), *found, dimension=1)

    def _keys(self, columns: str, rows: int) -> str:
        """Which row of the operand each update falls on; `rows` where it falls on none."""
        shape = (self.count,)
        total, valid = self.number(0, "s64", shape), None
        for at, dimension in enumerate(self.targets):
            size = self.scatter.dims[dimension]
            own = self.add("reshape", "s64", shape, self.cut(columns, "s64", (0, at), (self.count, 1)))
            inside = self.add(
                "and", "pred", shape,
                self.compared(own, self.number(0, "s64", shape), shape, "GE"),
                self.compared(own, self.number(size, "s64", shape), shape, "LT"),
            )  # fmt: skip
            valid = inside if valid is None else self.add("and", "pred", shape, valid, inside)
            total = self.add("multiply", "s64", shape, total, self.number(size, "s64", shape))
            total = self.add("add", "s64", shape, total, own)
        assert valid is not None
        found = self.add("select", "s64", shape, valid, total, self.number(rows, "s64", shape))
        return self.add("convert", "s32", shape, found)

    def _taken(self, values: str, kind: str, dims: tuple[int, ...], order: str) -> str:
        """Rows of a value, in another order."""
        return self.add(
            "gather", kind, dims, values, order,
            offset_dims=tuple(range(1, len(dims))), collapsed_slice_dims=(0,), start_index_map=(0,),
            index_vector_dim=1, slice_sizes=(1, *dims[1:]), operand_batching_dims=(), start_indices_batching_dims=(),
        )  # fmt: skip

    # --- the order ---

    def _by_pairs(self, keys: str) -> str:
        """A key comes behind all smaller ones, and equal ones that stand before it."""
        shape, square = (self.count,), (self.count, self.count)
        own = self.add("broadcast", "s32", square, keys, dimensions=(0,))
        other = self.add("broadcast", "s32", square, keys, dimensions=(1,))
        earlier = self.compared(self.iota(square, 1), self.iota(square, 0), square, "LT")
        equal = self.add("and", "pred", square, self.compared(other, own, square, "EQ"), earlier)
        smaller = self.compared(other, own, square, "LT")
        place = self._counted(self.add("or", "pred", square, smaller, equal), square, 1)
        return self._put(self.iota(shape, 0), place, self.count)

    def _by_digits(self, keys: str, rows: int) -> str:
        tiles = -(-self.count // TILE)
        whole = tiles * TILE
        order = self.iota((whole,), 0)
        behind = self.add("constant", "s32", (), values=(rows,))  # they come behind all others, which are earlier
        if whole > self.count:
            keys = self.add("pad", "s32", (whole,), keys, behind, low=(0,), high=(whole - self.count,), interior=(0,))
        for shift in range(0, rows.bit_length(), _DIGIT):
            sorted_ = self._taken(keys, "s32", (whole,), order) if shift else keys
            order = self._put(order, self._places(sorted_, shift, tiles), whole)
        return self.cut(order, "s32", (0,), (self.count,))

    def _places(self, keys: str, shift: int, tiles: int) -> str:
        """Where each row comes to lie when it is sorted by one digit."""
        whole, grid, cube = tiles * TILE, (tiles, TILE), (tiles, TILE, TILE)
        moved = self.add("shift-right-logical", "s32", (whole,), keys, self.number(shift, "s32", (whole,)))
        digit = self.add("and", "s32", (whole,), moved, self.number(TILE - 1, "s32", (whole,)))
        digits = self.add("reshape", "s32", grid, digit)
        spread = self.add("broadcast", "s32", cube, digits, dimensions=(0, 1))
        hits = self.compared(spread, self.iota(cube, 2), cube, "EQ")
        counts = self._counted(hits, cube, 1)  # of each tile, how often each digit
        by_digit = self.add("transpose", "s32", (TILE, tiles), counts, dimensions=(1, 0))
        starts = self._sums_before(self.add("reshape", "s32", (whole,), by_digit), whole)
        tile = self.iota(grid, 0)
        row = self.add("multiply", "s32", grid, digits, self.number(tiles, "s32", grid))
        at = self.add("reshape", "s32", (whole,), self.add("add", "s32", grid, row, tile))
        begin = self._taken(starts, "s32", (whole,), at)
        within = self.add("reshape", "s32", (whole,), self._equal_before(digits, cube))
        return self.add("add", "s32", (whole,), begin, within)

    def _sums_before(self, values: str, size: int) -> str:
        """The sum of all values before each one: inside runs, and of the runs before."""
        runs = size // TILE
        grid = (runs, TILE)
        values = self.add("reshape", "s32", grid, values)
        inside = self._earlier_summed(values, grid)
        whole = self.reduced(values, "s32", grid, 1, "add", 0)
        before = self._earlier_summed(self.add("reshape", "s32", (1, runs), whole), (1, runs))
        spread = self.add("broadcast", "s32", grid, self.add("reshape", "s32", (runs,), before), dimensions=(0,))
        return self.add("reshape", "s32", (size,), self.add("add", "s32", grid, inside, spread))

    def _earlier_summed(self, values: str, grid: tuple[int, int]) -> str:
        """Of each row, the sum of what stands before each of its values."""
        cube = (*grid, grid[1])
        earlier = self.compared(self.iota(cube, 2), self.iota(cube, 1), cube, "LT")
        spread = self.add("broadcast", "s32", cube, values, dimensions=(0, 2))
        chosen = self.add("select", "s32", cube, earlier, spread, self.number(0, "s32", cube))
        return self.reduced(chosen, "s32", cube, 2, "add", 0)

    def _equal_before(self, digits: str, cube: tuple[int, int, int]) -> str:
        """Of each row of digits, how many before each one are equal to it."""
        own = self.add("broadcast", "s32", cube, digits, dimensions=(0, 1))
        other = self.add("broadcast", "s32", cube, digits, dimensions=(0, 2))
        earlier = self.compared(self.iota(cube, 2), self.iota(cube, 1), cube, "LT")
        hits = self.add("and", "pred", cube, self.compared(own, other, cube, "EQ"), earlier)
        return self._counted(hits, cube, 2)

    def _put(self, values: str, place: str, size: int) -> str:
        """Each value at its place; no two places are equal."""
        base = self.add("copy", "s32", (size,), self.number(0, "s32", (size,)))
        return self.add(
            "scatter", "s32", (size,), base, place, values,
            update_window_dims=(), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), index_vector_dim=1,
            input_batching_dims=(), scatter_indices_batching_dims=(), unique=True, in_place=True,
            computation=Computation.of_two("add", "s32"),
        )  # fmt: skip

    def _counted(self, hits: str, dims: tuple[int, ...], at: int) -> str:
        return self.reduced(self.add("convert", "s32", dims, hits), "s32", dims, at, "add", 0)
