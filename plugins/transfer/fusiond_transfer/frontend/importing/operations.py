"""Operations of a tensor program as kernels: element-wise ones become formulas, others ask for their body.

    t = a * b; u = t + 1 (t is used once)   -->   one kernel: u = (a * b) + 1

A value that is used once, by an element-wise operation of its type and length on its side, is a part of that formula.
Whatever only moves or reshapes a value is that value. Shapes are forgotten: a vector has elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fusiond.errors import RequestError
from fusiond.language.dtypes import DTYPES
from fusiond_transfer.frontend.graph import HOST
from fusiond_transfer.frontend.importing.draft import DraftGraph, DraftKernel, DraftNames, DraftVector

TEMPLATES = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "neg": "-{0}",
    "abs": "abs({0})", "sqrt": "sqrt({0})", "max": "max({0}, {1})", "min": "min({0}, {1})", "square": "{0} * {0}",
    "relu": "max({0}, 0)",
    "sum": "sum({0})", "same": "{0}",
}  # fmt: skip
"""What there is a formula for, by the names that importers translate to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """`text`: a vector's name, or the formula of a value that is not stored."""

    text: str
    dtype: str
    elements: int
    """0: not known."""
    on: str
    reads: tuple[str, ...] = ()
    called: str = ""
    """What the kernel that stores it would be called; empty when it is stored."""

    @property
    def stored(self) -> bool:
        return not self.called


Operand = Value | float | int


class Building:
    """A draft that grows by operations in their order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._names = DraftNames()
        self._vectors: list[DraftVector] = []
        self._kernels: list[DraftKernel] = []
        self._inputs: list[str] = []
        self._outputs: list[str] = []
        self._effects: list[str] = []
        self._made: set[str] = set()

    def input(self, called: str, dtype: str, elements: int, on: str) -> Value:
        """What comes in, from the host."""
        name = self._vector(called, dtype, elements)
        self._inputs.append(name)
        return Value(text=name, dtype=dtype, elements=elements, on=on, reads=(name,))

    def element_wise(self, kind: str, operands: Sequence[Operand], like: Value, *, shared: bool) -> Value:
        """An operation of TEMPLATES; `like` has the type, length and side of what comes out, and its kernel's name.
        `shared`: it is used more than once, or comes out. There is no formula with a number that is not finite, but the
        greater of anything and -inf is that thing."""
        least = {"max": -math.inf, "min": math.inf}.get(kind)
        kept = [each for each in operands if isinstance(each, Value) or each != least]
        if len(kept) < len(operands) and kept:
            kind, operands = "same", kept[:1]
        if any(not isinstance(each, Value) and not math.isfinite(each) for each in operands):
            return self.unknown(operands, [like])[0]
        if kind == "sum":
            operands = [each if isinstance(each, float | int) else self.stored(each) for each in operands]
        texts: list[str] = []
        reads: list[str] = []
        for each in operands:
            if isinstance(each, float | int):
                texts.append(repr(each) if each >= 0 else f"({each!r})")
                continue
            fits = (each.dtype, each.elements, each.on) == (like.dtype, like.elements, like.on)
            value = each if fits or each.stored else self.stored(each)
            texts.append(value.text if value.stored else f"({value.text})")
            reads += value.reads
        text = TEMPLATES[kind].format(*texts)
        value = replace(like, text=text, reads=tuple(dict.fromkeys(reads)))
        return self.stored(value) if shared or kind == "sum" else value

    def unknown(self, operands: Sequence[Operand], results: Sequence[Value]) -> tuple[Value, ...]:
        """An operation that there is no formula for: one kernel that asks for its body."""
        reads = [self.stored(each).text for each in operands if isinstance(each, Value)]
        names = [self._vector(f"{each.called}_result", each.dtype, each.elements) for each in results]
        kernel = self._names.of(results[0].called)
        self._kernels.append(
            DraftKernel(
                name=kernel, on=results[0].on, reads=tuple(dict.fromkeys(reads)), writes=tuple(names), body=None
            )
        )
        self._made.update(names)
        return tuple(
            replace(each, text=name, reads=(name,), called="") for each, name in zip(results, names, strict=True)
        )

    def effect(self, operands: Sequence[Operand], called: str, on: str) -> None:
        """An operation for its effect alone: a kernel, with one byte that says that it was done."""
        (done,) = self.unknown(operands, [result(called, "uint8", 1, on)])
        self._effects.append(done.text)

    def stored(self, value: Value) -> Value:
        """The value as a vector, by a kernel where it is none yet."""
        if value.stored:
            return value
        name = self._vector(f"{value.called}_result", value.dtype, value.elements)
        kernel = self._names.of(value.called)
        self._kernels.append(
            DraftKernel(name=kernel, on=value.on, reads=value.reads, writes=(name,), body=(value.text,))
        )
        self._made.add(name)
        return replace(value, text=name, reads=(name,), called="")

    def output(self, value: Value) -> None:
        """What comes out, to the host."""
        found = self.stored(value)
        if found.text not in self._made or found.text in self._outputs:
            found = self.stored(replace(found, called="pass_on"))
        self._outputs.append(found.text)

    def draft(self, notes: Sequence[str] = ()) -> DraftGraph:
        return DraftGraph(
            name=self._name,
            vectors=tuple(self._vectors),
            kernels=tuple(self._kernels),
            inputs=tuple(self._inputs),
            outputs=(*self._outputs, *self._effects),
            notes=tuple(notes),
        )

    def _vector(self, called: str, dtype: str, elements: int) -> str:
        if dtype and dtype not in DTYPES:
            raise RequestError(f"{called} is of {dtype}; a vector can be of {', '.join(DTYPES)}", where=self._name)
        name = self._names.of(called)
        self._vectors.append(DraftVector(name=name, dtype=dtype, elements=elements))
        return name


def result(called: str, dtype: str, elements: int, on: str = HOST) -> Value:
    """What an operation gives, before there is a text for it."""
    return Value(text="", dtype=dtype, elements=elements, on=on, called=called)
