"""The graph that the strategy works on: an HLO module with calls inlined, tuples resolved, and one result per
instruction.

Grammar
    module       := parameters, instructions in topological order, outputs (names, in the order of the result tuple)
    instruction  := name, opcode, dtype, dims, operands (names), attributes
    sources      := parameter | constant                      no operands; iota is an ordinary instruction
    boundaries   := dot | what `Module.foreign` names         library calls: nothing is fused across them

All tensors are row-major, whatever layout the text gave them: a layout says where an element lies, never what it is.
The buffers of a Program (`in_0`, `out_0`, ...) are row-major too. Each output is an instruction of its own that is
neither a parameter nor a constant nor another output (a `copy` stands in where the module said so).

Attributes by opcode (everything else has none)
    constant        values: numbers, row-major
    parameter       number
    iota            dimension
    broadcast       dimensions: operand dimension -> output dimension
    transpose       dimensions: output dimension -> operand dimension
    slice           starts, limits, strides (per dimension)
    pad             low, high, interior (per dimension); operands x, padding value; low and high may be negative
    reverse         dimensions
    concatenate     dimension
    compare         direction (EQ NE LT LE GT GE), total (bool: TOTALORDER)
    convert         none; from the operand's dtype to its own (float to integer truncates, and saturates as XLA does)
    reduce          dimensions, computation, result (which result of a variadic one); operands x..., inits...
    dot             lhs_batch, rhs_batch, lhs_contracting, rhs_contracting; output: batch, lhs rest, rhs rest
    gather          offset_dims, collapsed_slice_dims, start_index_map, index_vector_dim, slice_sizes,
                    operand_batching_dims, start_indices_batching_dims; operands x, indices; starts are clamped
    scatter         update_window_dims, inserted_window_dims, scatter_dims_to_operand_dims, index_vector_dim,
                    input_batching_dims, scatter_indices_batching_dims, computation; operands x, indices, updates;
                    a window that does not fit is dropped whole
    dynamic-slice   sizes; operands x, one scalar index per dimension; starts are clamped
    dynamic-update-slice   operands x, update, one scalar index per dimension; starts are clamped
    reduce-precision       exponent_bits, mantissa_bits

Element-wise instructions have operands of their own dims, except that `select`'s predicate and `clamp`'s bounds may be
scalars.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fusiond.model import frozen

DTYPES: Mapping[str, str] = {
    "pred": "bool",
    "s8": "int8",
    "u8": "uint8",
    "s16": "int16",
    "u16": "uint16",
    "s32": "int32",
    "u32": "uint32",
    "s64": "int64",
    "u64": "uint64",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
}
"""HLO's element types -> a Program's."""

BYTES: Mapping[str, int] = {
    "pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2, "s32": 4, "u32": 4, "f32": 4,
    "s64": 8, "u64": 8, "f64": 8,
}  # fmt: skip

UNARY = frozenset({
    "abs", "negate", "exponential", "exponential-minus-one", "log", "log-plus-one", "sqrt", "rsqrt", "cbrt", "tanh",
    "sine", "cosine", "tan", "logistic", "floor", "ceil", "round-nearest-afz", "round-nearest-even", "sign", "not",
    "is-finite", "convert", "acos", "acosh", "asin", "asinh", "atanh", "cosh", "sinh", "bitcast-convert", "popcnt",
    "count-leading-zeros", "erf", "copy", "reduce-precision",
})  # fmt: skip
BINARY = frozenset({
    "add", "subtract", "multiply", "divide", "remainder", "power", "maximum", "minimum", "and", "or", "xor",
    "shift-left", "shift-right-arithmetic", "shift-right-logical", "atan2", "compare",
})  # fmt: skip
TERNARY = frozenset({"select", "clamp"})
ELEMENTWISE = UNARY | BINARY | TERNARY

EXPENSIVE = frozenset({
    "exponential", "exponential-minus-one", "log", "log-plus-one", "sqrt", "rsqrt", "cbrt", "tanh", "sine", "cosine",
    "tan", "logistic", "divide", "remainder", "power", "atan2", "erf", "acos", "acosh", "asin", "asinh", "atanh",
    "cosh", "sinh",
})  # fmt: skip
"""The element-wise ones that cost many instructions (section 5.1.1 names exp, divide and log)."""

MOVEMENT = frozenset({"reshape", "broadcast", "transpose", "slice", "reverse", "iota"})
"""What only changes where an element is found: inlined by thread composition wherever it is read (section 4.3)."""

SOURCES = frozenset({"parameter", "constant"})
OTHERS = frozenset({
    "concatenate", "pad", "reduce", "dot", "gather", "scatter", "dynamic-slice", "dynamic-update-slice",
})  # fmt: skip
KNOWN = ELEMENTWISE | MOVEMENT | SOURCES | OTHERS


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One tensor and how it comes about. `attributes` as the module's docstring lists them."""

    name: str
    opcode: str
    dtype: str
    dims: tuple[int, ...]
    operands: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=frozen)
    where: str = field(default="", compare=False)
    """`file:line`, for messages."""

    @functools.cached_property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def size_bytes(self) -> int:
        return self.elements * BYTES.get(self.dtype, 0)

    @functools.cached_property
    def elementwise(self) -> bool:
        return self.opcode in ELEMENTWISE

    def __str__(self) -> str:
        return f"{self.name} = {self.dtype}[{','.join(map(str, self.dims))}] {self.opcode}({', '.join(self.operands)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """A function of scalars, as `reduce` and `scatter` apply it: for n values, parameters 0..n-1 are what was
    accumulated and n..2n-1 what is new; `results` name one instruction (or parameter) per value."""

    parameters: tuple[Instruction, ...]
    instructions: tuple[Instruction, ...]
    """In topological order, without the parameters."""
    results: tuple[str, ...]

    @property
    def simple(self) -> str | None:
        """The opcode, when it is nothing but one commutative operation on its two parameters (`add`, `maximum`)."""
        if len(self.parameters) != 2 or len(self.instructions) != 1:
            return None
        only = self.instructions[0]
        names = {each.name for each in self.parameters}
        commutes = only.opcode in ("add", "multiply", "maximum", "minimum", "and", "or", "xor")
        return only.opcode if commutes and set(only.operands) == names and self.results == (only.name,) else None


@dataclass(frozen=True, kw_only=True)
class Module:
    """See the module's docstring. `foreign` are instructions that this strategy cannot emit (name -> why): boundaries
    like library calls; `frames` the bodies of while and conditional, modules of their own (section 3.1)."""

    name: str
    instructions: tuple[Instruction, ...]
    """In topological order: operands before users."""
    parameters: tuple[str, ...]
    outputs: tuple[str, ...]
    foreign: Mapping[str, str] = field(default_factory=frozen)
    frames: tuple[Module, ...] = ()

    @functools.cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        return {each.name: each for each in self.instructions}

    @functools.cached_property
    def kept(self) -> dict[object, Any]:
        """What others have made of this module, and keep with it. No part of what it is."""
        return {}

    @functools.cached_property
    def largest(self) -> int:
        """Elements of the largest tensor."""
        return max((each.elements for each in self.instructions), default=0)

    @functools.cached_property
    def all_frames(self) -> tuple[Module, ...]:
        """The frames, and those inside them."""
        return tuple(found for each in self.frames for found in (each, *each.all_frames))

    @functools.cached_property
    def number(self) -> Mapping[str, int]:
        """Name -> place in the topological order: a short name for generated code."""
        return {each.name: place for place, each in enumerate(self.instructions)}

    @functools.cached_property
    def users(self) -> Mapping[str, tuple[str, ...]]:
        """Name -> who reads it, each once, in topological order."""
        found: dict[str, dict[str, None]] = {each.name: {} for each in self.instructions}
        for each in self.instructions:
            for operand in each.operands:
                found[operand][each.name] = None
        return {name: tuple(users) for name, users in found.items()}

    @functools.cached_property
    def is_output(self) -> frozenset[str]:
        return frozenset(self.outputs)

    def __getitem__(self, name: str) -> Instruction:
        return self.by_name[name]

    def operands(self, instruction: Instruction) -> tuple[Instruction, ...]:
        return tuple(self.by_name[name] for name in instruction.operands)

    def library(self, instruction: Instruction) -> bool:
        """A boundary: a dot, or something that this strategy does not know."""
        return instruction.opcode == "dot" or instruction.name in self.foreign

    def fusable(self, instruction: Instruction) -> bool:
        return instruction.opcode not in SOURCES and not self.library(instruction)

    def buffer_of(self, name: str) -> str:
        """What the buffer of a value is called where it has one: `in_2`, `out_0`, or `t17` for a scratch buffer."""
        instruction = self.by_name[name]
        if instruction.opcode == "parameter":
            return f"in_{instruction.attributes['number']}"
        if name in self.is_output:
            return f"out_{self.outputs.index(name)}"
        return f"t{self.number[name]}"


def topological(instructions: Iterable[Instruction]) -> tuple[Instruction, ...]:
    """Operands before users, otherwise in the order given. ValueError for a cycle or an unknown operand."""
    given = {each.name: each for each in instructions}
    done: dict[str, Instruction] = {}
    begun: set[str] = set()
    for first in given:
        stack = [first]
        while stack:
            name = stack[-1]
            if name in done:
                stack.pop()
                continue
            if name not in given:
                raise ValueError(f"there is no instruction {name!r}")
            waiting = [each for each in given[name].operands if each not in done]
            if not waiting:
                done[name] = given[name]
                stack.pop()
            elif name in begun:
                raise ValueError(f"{name!r} depends on itself")
            else:
                begun.add(name)
                stack += reversed(waiting)
    return tuple(done.values())


def replaced(instruction: Instruction, **changes: Any) -> Instruction:
    """The same instruction with some fields changed."""
    return dataclasses.replace(instruction, **changes)
