"""A graph of torch's operators as plain data: FX is read into it, and regions are cut from it.

    FxGraph := inputs, nodes in topological order, outputs
    FxNode  := name, operator (`aten.add.Tensor`, `getitem`), arguments (numbers, texts, tuples, Refs), results

torch is not needed to make one, so tests have graphs as Python data. dtypes are HLO's words, shapes are numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusiond.service.frameworks import DTYPES

BYTES: Mapping[str, int] = {
    each: 1 if each[:4] in ("pred", "f8e4", "f8e5") else int(each.lstrip("csubf")) // 8 for each in DTYPES.values()
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor with a fixed shape."""

    dims: tuple[int, ...]
    dtype: str  #: HLO's word
    strides: tuple[int, ...] | None = None  #: In elements; None: row-major
    device: str = "cpu"

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def size_bytes(self) -> int:
        return self.elements * BYTES[self.dtype]

    @property
    def order(self) -> tuple[int, ...]:
        """The dimensions from the slowest to the fastest, where they fill memory without gaps; else as they stand,
        which means that a row-major copy is what is read and written."""
        plain = tuple(range(len(self.dims)))
        if self.strides is None:
            return plain
        strides = self.strides
        # Of a dimension of size 1 the stride says nothing: it stays where it is among the others.
        order = sorted((each for each in plain if self.dims[each] != 1), key=lambda each: (-strides[each], each))
        expected = 1
        for each in reversed(order):
            if strides[each] != expected:
                return plain
            expected *= self.dims[each]
        return (*(each for each in plain if self.dims[each] == 1), *order) if order != sorted(order) else plain


@dataclass(frozen=True, slots=True)
class Ref:
    """The result of a node, or an input, as an argument."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FxNode:
    """One operator."""

    name: str
    operator: str
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    results: tuple[Tensor | None, ...]
    """None: nothing that can be computed here (a number that is not fixed, a type that is not known)."""
    effect: str = ""  #: `random` or `mutation`: it keeps its place among others of its kind
    decomposed: FxGraph | None = None
    """What torch says that it comes to, of its `reads` in their order; None: nothing, or it needs not be known."""
    gives: Any = None  #: A decomposed operator's result: a Ref, or a tuple of them (None where there is no such result)
    loop: FxLoop | None = None
    """What it does again and again; its arguments are then the state, the tensors of rows, and the others."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of what it reads, each once."""
        return tuple(dict.fromkeys(refs((self.arguments, tuple(self.named.values())))))


@dataclass(frozen=True, slots=True, kw_only=True)
class FxLoop:
    """`state, stored rows = body(state, a row of each tensor of rows, others)`, of which the results are the last state
    and, along a first dimension, what was stored; or `state = body(state, others)` while a condition holds."""

    body: FxGraph
    gives: tuple[Any, ...]  #: The body's results
    states: int
    rows: int = 0  #: Tensors of which a trip gets a row each
    associative: bool = False  #: The first row is the first state, each state is stored, and only that is a result
    condition: FxGraph | None = None
    holds: Any = None  #: The condition's result


@dataclass(frozen=True, slots=True, kw_only=True)
class FxGraph:
    """Operators between inputs and outputs."""

    inputs: Mapping[str, Tensor | None]
    nodes: tuple[FxNode, ...]
    outputs: tuple[str, ...]  #: Names of inputs and nodes

    def tensors(self) -> dict[str, tuple[Tensor | None, ...]]:
        """Name -> what it holds."""
        return {name: (each,) for name, each in self.inputs.items()} | {each.name: each.results for each in self.nodes}


def inverse(order: Sequence[int]) -> list[int]:
    return [order.index(each) for each in range(len(order))]


def refs(value: Any) -> Iterator[str]:
    """The names in an argument, at any depth."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, tuple | list):
        for each in value:
            yield from refs(each)
