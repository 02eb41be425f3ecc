"""Turns scatters into selects where at most one update can reach an element.

The gradient of `take_along_axis` (of a cross-entropy with integer labels, say) adds one number to each row:

    y = scatter(x[B,V], labels[B,1,1], u[B,1]), batch dimension 0, column labels[b]
      -->  y[b,v] = select(v == labels[b], x[b,v] + u[b], x[b,v])

That is element-wise work over the operand, which is fused like all other; as a scatter it would be a pass of its own.
It holds where every dimension of the updates that is not part of a window is tied to a dimension of the operand, by the
scatter's own numbers or because an index counts on (`x.at[arange(n), labels]`), so that two updates never meet. An
index that points nowhere equals no column: the update is dropped, as HLO says.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from fusiond_stitching.frontend import constant_numbers
from fusiond_stitching.frontend.building import Rewriting, rewritten
from fusiond_stitching.frontend.graph import HloInstruction

REACH = {"s8": 2**7, "u8": 2**8, "s16": 2**15, "u16": 2**16, "s32": 2**31, "u32": 2**32, "s64": 2**63, "u64": 2**64}


def selected(given: Mapping[str, HloInstruction], foreign: Mapping[str, str]) -> dict[str, HloInstruction]:
    """The same instructions, with selects in the place of such scatters, under their names."""

    def steps(each: HloInstruction) -> list[HloInstruction] | None:
        return _Select(each, given).steps(_counted(given, each)) if each.opcode == "scatter" else None

    return rewritten(given, foreign, steps)


class ScatterRewriting(Rewriting):
    """A scatter, and the instructions that are made to stand for it."""

    def __init__(self, scatter: HloInstruction, given: Mapping[str, HloInstruction]) -> None:
        super().__init__(scatter, "select")
        self.scatter = scatter
        self.operand, self.starts, self.updates = (given[name] for name in scatter.operands)
        self.numbers: Mapping[str, Any] = scatter.attributes


def _counted(given: Mapping[str, HloInstruction], scatter: HloInstruction) -> dict[int, int]:
    """Component of the index -> the dimension of the indices whose number it is, as in `x.at[arange(n), labels]`."""
    vector = scatter.attributes["index_vector_dim"]
    found = {}
    for component in range(len(scatter.attributes["scatter_dims_to_operand_dims"])):
        own = constant_numbers.part(given, scatter.operands[1], vector, component)
        at = constant_numbers.counts_along(given, own) if own is not None else None
        if at is not None and at != vector:
            found[component] = at - (at > vector)
    return found


class _Select(ScatterRewriting):
    def steps(self, counted: Mapping[int, int]) -> list[HloInstruction] | None:
        """The instructions that stand for the scatter; None where two updates may meet, or a window moves. `counted`:
        component of the index -> the dimension of the updates' batch whose number it is."""
        tied = self._tied(counted)
        if tied is None or self.updates.elements == 0 or self.operand.elements == 0:
            return None
        dims = self.operand.dims
        if any(dims[at] > REACH.get(self.starts.dtype, 0) for at in self.numbers["scatter_dims_to_operand_dims"]):
            return None
        conditions = list(self._conditions(tied, counted))
        large = [(at, target) for at, target in sorted(tied.items()) if self.updates.dims[at] > 1]
        update = self._spread(self.updates.name, self.updates.dtype, large)
        applied = self.applied(self.numbers["computation"], dims, self.operand.name, update)
        if not conditions:  # every element has an update, and knows which
            return [*self.made, self.scatter.becoming("copy", applied)]
        condition = conditions[0]
        for other in conditions[1:]:
            condition = self.add("and", "pred", dims, condition, other)
        return [*self.made, self.scatter.becoming("select", condition, applied, self.operand.name)]

    def _tied(self, counted: Mapping[int, int]) -> dict[int, int] | None:
        """Dimension of the updates -> the operand's, for those of more than one element."""
        numbers = self.numbers
        vector = numbers["index_vector_dim"]
        windows = list(numbers["update_window_dims"])
        batch = [at for at in range(len(self.updates.dims)) if at not in windows]
        gone = {*numbers["inserted_window_dims"], *numbers["input_batching_dims"]}
        if any(at not in gone for at in numbers["scatter_dims_to_operand_dims"]):
            return None  # a window that moves
        if not numbers["scatter_dims_to_operand_dims"]:
            return None
        found = dict(zip(windows, (at for at in range(len(self.operand.dims)) if at not in gone), strict=True))
        if any(self.updates.dims[own] != self.operand.dims[at] for own, at in found.items()):
            return None
        pairs = zip(numbers["scatter_indices_batching_dims"], numbers["input_batching_dims"], strict=True)
        for column, at in pairs:
            found[batch[column - (column > vector)]] = at
        for component, number in counted.items():
            target = numbers["scatter_dims_to_operand_dims"][component]
            own = batch[number]
            alike = self.updates.dims[own] == self.operand.dims[target]
            if own not in found and target not in found.values() and alike:
                found[own] = target
        if any(self.updates.dims[at] > 1 and at not in found for at in batch):
            return None
        fixed = {*found.values(), *numbers["scatter_dims_to_operand_dims"]}
        return found if fixed == set(range(len(self.operand.dims))) else None

    def _conditions(self, tied: Mapping[int, int], counted: Mapping[int, int]) -> Iterator[str]:
        """For each dimension that an index names: whether it names this element. Where the index counts on, it does."""
        numbers = self.numbers
        vector, dims = numbers["index_vector_dim"], self.operand.dims
        batch = [at for at in range(len(self.updates.dims)) if at not in numbers["update_window_dims"]]
        kind = self.starts.dtype
        for component, target in enumerate(numbers["scatter_dims_to_operand_dims"]):
            if component in counted and tied.get(batch[counted[component]]) == target:
                continue
            name, shape = self.starts.name, self.starts.dims
            if vector < len(shape):
                begin = [component if at == vector else 0 for at in range(len(shape))]
                name = self.cut(name, kind, begin, (*shape[:vector], 1, *shape[vector + 1 :]))
            large = [(at, tied[at]) for at in batch if at in tied and self.updates.dims[at] > 1]
            spread = self._spread(name, kind, large)
            yield self.compared(self.add("iota", kind, dims, dimension=target), spread, dims, "EQ")

    def _spread(self, name: str, kind: str, large: list[tuple[int, int]]) -> str:
        """A value over the dimensions `large` (own, operand's) of the updates, over all of the operand's."""
        shape = tuple(self.updates.dims[at] for at, _ in large)
        name = self.add("reshape", kind, shape, name)
        order = tuple(sorted(range(len(large)), key=lambda at: large[at][1]))
        if order != tuple(range(len(large))):
            name = self.add("transpose", kind, [shape[at] for at in order], name, dimensions=order)
        return self.add("broadcast", kind, self.operand.dims, name, dimensions=tuple(large[at][1] for at in order))
