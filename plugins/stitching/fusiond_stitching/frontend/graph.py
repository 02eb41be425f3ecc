"""The graph that the strategy works on: an HLO module with calls inlined, tuples resolved, and one result per
instruction.

Grammar
    module       := parameters, instructions in topological order, outputs (names, in the order of the result tuple)
    instruction  := name, opcode, dtype, dims, operands (names), attributes
    sources      := parameter | constant                      no operands; iota is an ordinary instruction
    boundaries   := dot | what `HloModule.foreign` names         library calls: nothing is fused across them

A foreign instruction (sort, while, custom-call, ...) is a boundary whose results nobody here can compute. In a Program
they are stand-ins, inputs that are filled; what it reads is kept and compared like an output. A boundary with a tuple
for a result is one instruction for each of its arrays, all with the same operands.

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
                    input_batching_dims, scatter_indices_batching_dims, computation, unique (no two updates meet; only
                    where it is so), in_place (see scatter_updates.py); operands x, indices, updates;
                    a window that does not fit is dropped whole
    dynamic-slice   sizes; operands x, one scalar index per dimension; starts are clamped
    dynamic-update-slice   operands x, update, one scalar index per dimension; starts are clamped
    reduce-precision       exponent_bits, mantissa_bits
    scan                   loop, result: one result of a loop that is one launch of ours; see scans.py
    window          sizes, strides, dilation, interior, low, high (per dimension of the operand); operands x, value:
                    what windows.py makes of reduce-window; output: windows, then what is inside of them

Element-wise instructions have operands of their own dims, except that `select`'s predicate and `clamp`'s bounds may be
scalars.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fusiond.model.language import dtypes
from fusiond.model.nouns import frozen

DTYPES: Mapping[str, str] = {
    "pred": "bool", "s8": "int8", "u8": "uint8", "s16": "int16", "u16": "uint16", "s32": "int32", "u32": "uint32",
    "s64": "int64", "u64": "uint64", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f16": "float16",
    "bf16": "bfloat16", "f32": "float32", "f64": "float64",
}  # fmt: skip
"""HLO's element types -> a Program's."""

BYTES: Mapping[str, int] = {name: dtypes.DTYPES[each].bytes for name, each in DTYPES.items()}


def least(dtype: str) -> float | int:
    """The least value of an element type but pred: minus infinity, of floats."""
    of = DTYPES[dtype]
    return -math.inf if dtypes.is_float(of) else dtypes.whole_numbers(of)[0]


def neutral(operation: str | None, dtype: str) -> float | int | None:
    """What an operation changes nothing with: -0 of a sum of floats, so that a sum of -0 stays -0. None: not known."""
    floats = dtypes.is_float(DTYPES[dtype])
    if operation in ("maximum", "minimum"):
        low, high = (-math.inf, math.inf) if floats else dtypes.whole_numbers(DTYPES[dtype])
        return low if operation == "maximum" else high
    if operation == "and" and not floats:
        return 1 if dtype == "pred" else -1
    if operation in ("or", "xor"):
        return None if floats else 0
    return {"add": -0.0 if floats else 0, "multiply": 1.0 if floats else 1}.get(operation or "")


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

MOVEMENT = frozenset({"reshape", "broadcast", "transpose", "slice", "reverse", "iota", "window"})
"""What only changes where an element is found: inlined by thread composition wherever it is read (section 4.3)."""

SOURCES = frozenset({"parameter", "constant"})
OTHERS = frozenset({
    "concatenate", "pad", "reduce", "dot", "gather", "scatter", "dynamic-slice", "dynamic-update-slice",
})  # fmt: skip
_CHOOSING = frozenset({"maximum", "minimum", "compare", "select", "clamp", "and", "or", "xor", "not", "constant"})
KNOWN = ELEMENTWISE | MOVEMENT | SOURCES | OTHERS


@dataclass(frozen=True, kw_only=True)
class HloInstruction:
    """One tensor and how it comes about. `attributes` as the module's docstring lists them."""

    name: str
    opcode: str
    dtype: str
    dims: tuple[int, ...]
    operands: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=frozen)
    where: str = field(default="", compare=False)  #: `file:line`, for messages

    @functools.cached_property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def size_bytes(self) -> int:
        return self.elements * BYTES.get(self.dtype, 0)

    @functools.cached_property
    def elementwise(self) -> bool:
        return self.opcode in ELEMENTWISE

    def becoming(
        self,
        opcode: str,
        *operands: str,
        name: str = "",
        dtype: str = "",
        dims: tuple[int, ...] | None = None,
        **attributes: Any,
    ) -> HloInstruction:
        """Another operation in its place, with the same name, type and dims where no others are given."""
        return HloInstruction(
            name=name or self.name,
            opcode=opcode,
            dtype=dtype or self.dtype,
            dims=self.dims if dims is None else dims,
            operands=operands,
            attributes=frozen(attributes),
            where=self.where,
        )

    @property
    def values(self) -> tuple[str, ...]:
        """The operands that are gone through: of a reduce, not the init values."""
        return self.operands[: len(self.operands) // 2] if self.opcode == "reduce" else self.operands

    @property
    def shape(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"

    def __str__(self) -> str:
        return f"{self.name} = {self.shape} {self.opcode}({', '.join(self.operands)})"


def scalar(name: str, opcode: str, dtype: str, *operands: str, **attributes: Any) -> HloInstruction:
    """An instruction of a computation."""
    return HloInstruction(
        name=name, opcode=opcode, dtype=dtype, dims=(), operands=operands, attributes=frozen(attributes)
    )


@dataclass(frozen=True, kw_only=True)
class Computation:
    """A function of scalars, as `reduce` and `scatter` apply it: for n values, parameters 0..n-1 are what was
    accumulated and n..2n-1 what is new; `results` name one instruction (or parameter) per value."""

    parameters: tuple[HloInstruction, ...]
    instructions: tuple[HloInstruction, ...]  #: In topological order, without the parameters
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

    @functools.cached_property
    def text(self) -> str:
        """The computation with numbers for names: equal texts compute the same."""
        number = {each.name: str(at) for at, each in enumerate((*self.parameters, *self.instructions))}
        lines = [
            f"{each.opcode} {each.dtype} {[number[o] for o in each.operands]} {dict(each.attributes)}"
            for each in (*self.parameters, *self.instructions)
        ]
        return "\n".join([*lines, str([number[each] for each in self.results])])

    @staticmethod
    def of_two(operation: str, dtype: str) -> Computation:
        """One operation on two values of a type."""
        return Computation.of({"a": dtype, "b": dtype}, [scalar("c", operation, dtype, "a", "b")], "c")

    @staticmethod
    def of(parameters: Mapping[str, str], instructions: Iterable[HloInstruction], *results: str) -> Computation:
        """`parameters`: name -> type."""
        given = (scalar(name, "parameter", dtype, number=at) for at, (name, dtype) in enumerate(parameters.items()))
        return Computation(parameters=tuple(given), instructions=tuple(instructions), results=results)

    @property
    def chooses(self) -> bool:
        """Whether it only picks among its parameters, and rounds nothing: a maximum, an argmax."""
        return all(each.opcode in _CHOOSING for each in self.instructions)


@dataclass(frozen=True, kw_only=True)
class HloModule:
    """See the module's docstring. `foreign` are instructions that this strategy cannot emit (name -> why): boundaries
    like library calls; `frames` the bodies of while and conditional, modules of their own (section 3.1). In the body of
    a while, an output may be the parameter of the same number: it stays where it is and has no buffer `out_i`."""

    name: str
    instructions: tuple[HloInstruction, ...]  #: In topological order: operands before users
    parameters: tuple[str, ...]
    outputs: tuple[str, ...]
    foreign: Mapping[str, str] = field(default_factory=frozen)
    frames: tuple[HloModule, ...] = ()

    @functools.cached_property
    def by_name(self) -> Mapping[str, HloInstruction]:
        return {each.name: each for each in self.instructions}

    @functools.cached_property
    def kept(self) -> dict[object, Any]:
        """What others have made of this module, and keep with it. No part of what it is."""
        return {}

    @functools.cached_property
    def all_frames(self) -> tuple[HloModule, ...]:
        """The frames, and those inside them; each once."""
        found = {each.name: each for frame in self.frames for each in (frame, *frame.all_frames)}
        return tuple(found.values())

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

    def __getitem__(self, name: str) -> HloInstruction:
        return self.by_name[name]

    def operands(self, instruction: HloInstruction) -> tuple[HloInstruction, ...]:
        return tuple(self.by_name[name] for name in instruction.operands)

    def library(self, instruction: HloInstruction) -> bool:
        """A boundary: a dot, something that this strategy does not know, or a launch of its own."""
        return instruction.opcode == "dot" or instruction.name in self.foreign or instruction.name in self.launches

    @functools.cached_property
    def in_place(self) -> Mapping[str, str]:
        """Scatters that change their first operand where it lies (`scatter_updates`) -> that operand, which nobody else
        reads. Launches of their own, and no library's."""
        scatters = (each for each in self.instructions if each.opcode == "scatter")
        return {each.name: each.operands[0] for each in scatters if each.attributes.get("in_place", False)}

    @functools.cached_property
    def scans(self) -> Mapping[str, tuple[str, ...]]:
        """A loop that is one launch -> its results (`scans`)."""
        found: dict[str, tuple[str, ...]] = {}
        for each in self.instructions:
            if each.opcode == "scan":
                loop = each.attributes["loop"].name
                found[loop] = (*found.get(loop, ()), each.name)
        return found

    @functools.cached_property
    def launches(self) -> frozenset[str]:
        """What is a boundary and no library's: scatters in place and scans."""
        return frozenset((*self.in_place, *(name for names in self.scans.values() for name in names)))

    @functools.cached_property
    def _changed_in_place(self) -> Mapping[str, str]:
        return {operand: scatter for scatter, operand in self.in_place.items()}

    @functools.cached_property
    def library_calls(self) -> int:
        """How many calls the boundaries are: one with several results is one, and a parameter of a type that no code
        is written for is none."""
        boundaries = (
            each
            for each in self.instructions
            if self.library(each) and each.opcode != "input" and each.name not in self.launches
        )
        return len({each.attributes.get("call", each.name) for each in boundaries})

    def fusable(self, instruction: HloInstruction) -> bool:
        return instruction.opcode not in SOURCES and not self.library(instruction)

    def inputs(self, instruction: HloInstruction) -> int:
        """Elements that are read for one of the result: several by a reduce and a dot."""
        summed = {"reduce": "dimensions", "dot": "lhs_contracting"}.get(instruction.opcode)
        if summed is None:
            return 1
        dims = self.by_name[instruction.operands[0]].dims
        return math.prod(dims[at] for at in instruction.attributes[summed])

    def base(self, name: str) -> HloInstruction:
        """The instruction whose buffer holds the value of `name`: reshapes cost nothing in row-major order. Stops at an
        output (it has a buffer of its own)."""
        instruction = self.by_name[name]
        while instruction.opcode == "reshape" and not self.library(instruction):
            if instruction.name in self.is_output:
                break
            instruction = self.by_name[instruction.operands[0]]
        return instruction

    @functools.cached_property
    def stand_ins(self) -> Mapping[str, str]:
        """Foreign results that somebody here reads -> the buffer that is filled in their stead (`boundary_0`)."""
        read = {
            self.base(operand).name
            for each in self.instructions
            if each.name not in self.foreign and (each.opcode != "reshape" or each.name in self.is_output)
            for operand in each.operands
        }
        return {name: f"boundary_{place}" for place, name in enumerate(name for name in self.foreign if name in read)}

    @functools.cached_property
    def handed(self) -> Mapping[str, str]:
        """Values that foreign instructions read, when they are neither sources nor outputs nor foreign -> the buffer in
        which they are found (`operand_0`)."""
        users = (self.by_name[name] for name in self.foreign)
        read = dict.fromkeys(self.base(operand).name for user in users for operand in user.operands)
        mine = (
            name
            for name in read
            if name not in self.foreign and name not in self.is_output and self.by_name[name].opcode not in SOURCES
        )
        return {name: f"operand_{place}" for place, name in enumerate(mine)}

    @functools.cached_property
    def computed(self) -> Mapping[str, str]:
        """What a Program has to compute -> its buffer: outputs, in their order, and what foreign instructions read. An
        output that is foreign itself, or stays a parameter, is not among them."""
        own = (name for name in self.outputs if name not in self.foreign and self.by_name[name].opcode != "parameter")
        return {name: self.buffer_of(name) for name in (*own, *self.handed)}

    def buffer_of(self, name: str) -> str:
        """What the buffer of a value is called where it has one: `in_2`, `out_0`, `boundary_0` and `operand_0` (see
        `stand_ins` and `handed`), or `t17` for a scratch buffer."""
        name = self._changed_in_place.get(name, name)
        instruction = self.by_name[name]
        if instruction.opcode == "parameter":
            return f"in_{instruction.attributes['number']}"
        named = self.stand_ins.get(name) or self.handed.get(name)
        if named is not None:
            return named
        if name in self.is_output:
            return f"out_{self.outputs.index(name)}"
        return f"t{self.number[name]}"

    @functools.cached_property
    def buffers(self) -> Mapping[str, str]:
        """Buffer -> the instruction whose value it holds, for every value: the inverse of `buffer_of`, in the order of
        a kernel's arguments."""
        read = (*sorted(self.parameters, key=lambda name: self.by_name[name].attributes["number"]), *self.stand_ins)
        kept = (*self.handed, *self.outputs)
        named = {*read, *kept, *self._changed_in_place}
        scratch = (each.name for each in self.instructions if each.name not in named)
        return {self.buffer_of(name): name for name in (*read, *scratch, *kept)}

    @functools.cached_property
    def argument_order(self) -> Mapping[str, int]:
        """Buffer -> its place among a kernel's arguments."""
        return {buffer: place for place, buffer in enumerate(self.buffers)}


def topological(instructions: Iterable[HloInstruction]) -> tuple[HloInstruction, ...]:
    """Operands before users, otherwise in the order given. ValueError for a cycle or an unknown operand."""
    given = {each.name: each for each in instructions}
    done: dict[str, HloInstruction] = {}
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


Node = TypeVar("Node", bound=Hashable)


def reached(roots: Iterable[Node], following: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """The roots, and all that they lead to."""
    found: set[Node] = set()
    stack = list(roots)
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack += following(name)
    return found


def behind(given: Mapping[str, HloInstruction] | HloModule, name: str, *opcodes: str) -> HloInstruction:
    """What a value is before instructions of these opcodes."""
    each = given[name]
    while each.opcode in opcodes:
        each = given[each.operands[0]]
    return each


def matched(one: Sequence[int], other: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """The shortest runs of dimensions of both with equal products, in order: [6,4] and [2,3,4] give ([0],[0,1]) and
    ([1],[2])."""
    a = b = 0
    while a < len(one) or b < len(other):
        mine: list[int] = []
        its: list[int] = []
        left = right = 1
        while True:
            if left <= right and a < len(one) and (left < right or not mine):
                left *= one[a]
                mine.append(a)
                a += 1
            elif b < len(other) and (right < left or not its):
                right *= other[b]
                its.append(b)
                b += 1
            else:
                break
        yield mine, its
