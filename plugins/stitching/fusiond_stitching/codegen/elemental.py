"""One element of an instruction as C++: thread composition (section 4.3; section 5.2 calls it ElementalIrEmitter).

`Elemental.value(scope, name, indices)` gives the text of the instruction's element at `indices` and writes the
statements it needs into the scope: of the instruction itself, and of all that is inlined into it. What a `ValueReader`
has in memory is loaded. Movement (reshape, broadcast, transpose, slice, reverse) is index algebra and costs no
statement; a window costs the condition that a pad costs.
"""

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias

from fusiond.model.codegen.code import Code, cpp
from fusiond_stitching.analysis.indexing import Index, delinear, linear, number, operand_index
from fusiond_stitching.codegen import semantics
from fusiond_stitching.codegen.scope import Scope
from fusiond_stitching.codegen.semantics import TYPES, NoCode, Type, literal
from fusiond_stitching.frontend.graph import BINARY, UNARY, Computation, HloInstruction, HloModule

Indices: TypeAlias = tuple[Index, ...]
Request: TypeAlias = tuple[Scope, str, Indices]
Step: TypeAlias = Generator[Request, Code, Code]  #: Asks for operands, is sent their values, returns its own
Write: TypeAlias = "Callable[[Elemental, Scope, HloInstruction, Indices], Step]"
"""How the element of an opcode is written."""


class ValueReader(Protocol):
    """Where values are found in memory."""

    def place(self, scope: Scope, name: str, indices: Indices) -> Code | None:
        """The place in memory of an element (`in_0[i]`), or None for what must be computed."""


class Elemental:
    """See the module's docstring. `steps`: how opcodes are written that are more than an expression of scalars. Raises
    NoCode for what cannot be written."""

    def __init__(self, module: HloModule, reader: ValueReader, steps: Mapping[str, Write]) -> None:
        self.module = module
        self._reader = reader
        self._steps = steps

    def start(self, start: str, most: int) -> Index | None:
        """A start index of a slice, where it is known to be in 0 .. most."""
        return None

    def value(self, scope: Scope, name: str, indices: Indices) -> Code:
        """The value of an element; statements go to `scope` or to blocks round it. No recursion: chains are long."""
        stack: list[tuple[Step, Scope, str, Indices]] = []
        request: Request | None = (scope, name, indices)
        answer = Code("")
        while True:
            if request is not None:
                at, wanted, place = request
                known = at.recall(wanted, place)
                if known is None:
                    home = at.home(frozenset().union(*(each.symbols for each in place)))
                    stack.append((self._element(home, wanted, place), home, wanted, place))
                    request, answer = self._advance(stack, None)
                    continue
                request, answer = None, known
            if not stack:
                return answer
            request, answer = self._advance(stack, answer)

    def _advance(self, stack: list[tuple[Step, Scope, str, Indices]], send: Code | None) -> tuple[Request | None, Code]:
        step, home, name, indices = stack[-1]
        try:
            return (next(step) if send is None else step.send(send)), Code("")
        except StopIteration as done:
            stack.pop()
            home.remember(name, indices, done.value)
            return None, done.value

    def _element(self, scope: Scope, name: str, indices: Indices) -> Step:
        instruction = self.module[name]
        kind = type_of(instruction)
        place = self._reader.place(scope, name, indices)
        if place is not None:
            return scope.declare(kind, instruction.opcode, semantics.loaded(kind, place))
        if name in self.module.foreign:
            raise NoCode(f"{self.module.foreign[name]}")
        if instruction.opcode in self._steps:
            return (yield from self._steps[instruction.opcode](self, scope, instruction, indices))
        if instruction.opcode in UNARY or instruction.opcode in BINARY or instruction.opcode in ("select", "clamp"):
            values = []
            for operand in self.module.operands(instruction):
                values.append((yield scope, operand.name, indices if operand.dims else ()))
            operands = [type_of(each) for each in self.module.operands(instruction)]
            return scope.declare(kind, instruction.opcode, scalar(scope, instruction, operands, values))
        raise NoCode(f"there is no code for {instruction.opcode} ({instruction.name})")

    def applied(
        self, scope: Scope, computation: Computation, arguments: Sequence[Code], kinds: Sequence[Type]
    ) -> list[Code]:
        """A computation of scalars on values: the text of its results."""
        found: dict[str, tuple[Code, Type]] = {
            each.name: (argument, kind)
            for each, argument, kind in zip(computation.parameters, arguments, kinds, strict=True)
        }
        for each in computation.instructions:
            kind = type_of(each)
            if each.opcode == "constant":
                found[each.name] = (literal(kind, each.attributes["values"][0]), kind)
                continue
            values, operands = zip(*(found[name] for name in each.operands), strict=True)
            found[each.name] = (scope.declare(kind, each.opcode, scalar(scope, each, operands, values)), kind)
        return [found[name][0] for name in computation.results]


def type_of(instruction: HloInstruction) -> Type:
    """Raises NoCode for a type that no code can be written for."""
    if instruction.dtype not in TYPES:
        raise NoCode(f"{instruction.name}: the type {instruction.dtype} is not known")
    return TYPES[instruction.dtype]


def scalar(scope: Scope, instruction: HloInstruction, operands: Sequence[Type], values: Sequence[Code]) -> Code:
    """The expression of an element-wise instruction on the values of its operands."""
    functions = scope.function.functions
    opcode, kind = instruction.opcode, type_of(instruction)
    if opcode == "convert":
        return semantics.convert(functions, operands[0], kind, values[0])
    if opcode == "bitcast-convert":
        return semantics.bitcast_convert(functions, operands[0], kind, values[0])
    if opcode == "reduce-precision":
        bits = instruction.attributes
        return semantics.reduce_precision(functions, kind, bits["exponent_bits"], bits["mantissa_bits"], values[0])
    if opcode == "compare":
        order = instruction.attributes
        return semantics.compare(functions, order["direction"], operands[0], *values, total_order=order["total"])
    if opcode == "select":
        return cpp("{} ? {} : {}", values[0], values[1], values[2])
    if opcode == "clamp":
        return semantics.clamp(functions, kind, *values)
    if opcode in BINARY:
        return semantics.binary(functions, opcode, kind, *values)
    return semantics.unary(functions, opcode, operands[0], values[0])


# --- sources and movement -------------------------------------------------------------------------------


def _constant(self: Elemental, scope: Scope, instruction: HloInstruction, indices: Indices) -> Step:
    values = instruction.attributes["values"]
    kind = type_of(instruction)
    first = literal(kind, values[0])
    if all(each is values[0] or literal(kind, each) == first for each in values):
        return first
    written = ", ".join(literal(kind, each) for each in values)
    table = scope.function.unit.table(kind, f"{{{written}}}")
    return scope.declare(kind, "constant", cpp("{}[{}]", table, scope.index(linear(indices, instruction.dims))))
    yield  # a generator, as all steps are


def _iota(self: Elemental, scope: Scope, instruction: HloInstruction, indices: Indices) -> Step:
    kind = type_of(instruction)
    index = indices[instruction.attributes["dimension"]]
    if index.fixed is not None:
        return literal(kind, index.fixed)
    source = TYPES["s64" if scope.function.index_type == "long long" else "s32"]
    written = scope.index(index)
    inside = written if written.isidentifier() else cpp("({})", written)
    return scope.declare(kind, "iota", semantics.convert(scope.function.functions, source, kind, inside))
    yield


def _moved(self: Elemental, scope: Scope, instruction: HloInstruction, indices: Indices) -> Step:
    (operand,) = self.module.operands(instruction)
    place = operand_index(instruction, operand, indices)
    assert place is not None
    return (yield scope, operand.name, place)


# --- conditions on the index ----------------------------------------------------------------------------


def _concatenate(self: Elemental, scope: Scope, instruction: HloInstruction, indices: Indices) -> Step:
    dimension = instruction.attributes["dimension"]
    index = indices[dimension]
    pieces = []  # (operand, where it begins), of those that the index can be in
    begin = 0
    for operand in self.module.operands(instruction):
        end = begin + operand.dims[dimension]
        if begin <= index.high and end > index.low and end > begin:
            pieces.append((operand, begin))
        begin = end
    if len(pieces) == 1:
        operand, begin = pieces[0]
        return (yield scope, operand.name, _with(indices, dimension, index - begin))
    kind = type_of(instruction)
    name = scope.function.fresh("concatenate")
    scope.line(cpp("{} {};", kind.value, name))
    written = scope.index(index)
    for place, (operand, begin) in enumerate(pieces):
        size = operand.dims[dimension]
        last = place == len(pieces) - 1
        header = Code("else") if last else cpp("if ({} < {})", written, begin + size)
        header = header if place == 0 else cpp("}} {}", header) if last else cpp("}} else {}", header)
        with scope.block(header, end="}" if last else None) as inner:
            moved = inner.variable("row", cpp("{} - {}", written, begin) if begin else written, size)
            value = yield inner, operand.name, _with(indices, dimension, moved)
            inner.line(cpp("{} = {};", name, value))
    return name


def _window(self: Elemental, scope: Scope, instruction: HloInstruction, indices: Indices) -> Step:
    """A pad, at the place that the window's index and the index inside it come to."""
    attributes = instruction.attributes
    rank = len(attributes["sizes"])
    inside = iter(indices[rank:])
    places = [
        index * stride if size == 1 else index * stride + next(inside) * dilation
        for index, size, stride, dilation in zip(
            indices[:rank], attributes["sizes"], attributes["strides"], attributes["dilation"], strict=True
        )
    ]
    return (yield from _padded(self, scope, instruction, places))


def _padded(self: Elemental, scope: Scope, instruction: HloInstruction, indices: Sequence[Index]) -> Step:
    """The operand's element at `indices` less what was padded in front of it, or the value outside of it."""
    operand, padding = self.module.operands(instruction)
    attributes = instruction.attributes
    conditions: list[Code] = []
    moved: list[Callable[[Scope], Index]] = []
    for index, size, low, interior in zip(
        indices, operand.dims, attributes["low"], attributes["interior"], strict=True
    ):
        shifted = index - low
        if size == 0:
            return (yield scope, padding.name, ())
        last = (size - 1) * (interior + 1)
        written = scope.index(shifted)
        if shifted.low < 0:
            conditions.append(cpp("{} >= 0", written))
        if shifted.high > last:
            conditions.append(cpp("{} <= {}", written, last))
        if interior and shifted.fixed is None:
            conditions.append(cpp("({}) % {} == 0", written, interior + 1))
        elif interior and shifted.constant % (interior + 1):
            return (yield scope, padding.name, ())
        if shifted.fixed is not None and not 0 <= shifted.fixed <= last:
            return (yield scope, padding.name, ())
        moved.append(_shifted(shifted, written, size, interior))
    if not conditions:
        return (yield scope, operand.name, tuple(each(scope) for each in moved))
    outside = yield scope, padding.name, ()
    name = scope.mutable(type_of(instruction), instruction.opcode, outside)
    with scope.when(conditions) as inner:
        value = yield inner, operand.name, tuple(each(inner) for each in moved)
        inner.line(cpp("{} = {};", name, value))
    return name


def _shifted(index: Index, written: Code, size: int, interior: int) -> Callable[[Scope], Index]:
    """The operand's index behind the conditions."""
    if not interior and index.low >= 0 and index.high < size:
        return lambda scope: index
    expression = cpp("({}) / {}", written, interior + 1) if interior else written
    return lambda scope: scope.variable("row", expression, size)


def _with(indices: Indices, place: int, index: Index) -> Indices:
    return (*indices[:place], index, *indices[place + 1 :])


# --- reductions in one thread ---------------------------------------------------------------------------


def _reduce(self: Elemental, scope: Scope, instruction: HloInstruction, indices: Indices) -> Step:
    """A serial loop over the reduced dimensions."""
    dimensions, computation = instruction.attributes["dimensions"], instruction.attributes["computation"]
    operands = self.module.operands(instruction)
    count = len(operands) // 2
    kinds = [type_of(each) for each in operands[:count]]
    totals = []
    for kind, init in zip(kinds, operands[count:], strict=True):
        start = yield scope, init.name, ()
        totals.append(scope.mutable(kind, "total", start))
    reduced = tuple(operands[0].dims[at] for at in dimensions)
    result: int = instruction.attributes["result"]
    if math.prod(reduced) == 0:
        return totals[result]
    with loop(scope, math.prod(reduced), "r") as (inner, step):
        place = merged(indices, dimensions, delinear(step, reduced))
        values = []
        for each in operands[:count]:
            values.append((yield inner, each.name, place))
        combine(self, inner, computation, totals, values, kinds)
    return totals[result]


def _dot(self: Elemental, scope: Scope, instruction: HloInstruction, indices: Indices) -> Step:
    """A serial loop over the contracted dimensions; sums in the result's own type (float for narrow ones)."""
    lhs, rhs = self.module.operands(instruction)
    kind = type_of(instruction)
    reduced = tuple(lhs.dims[at] for at in instruction.attributes["lhs_contracting"])
    if math.prod(reduced) == 0:
        return literal(kind, 0)
    total = scope.mutable(kind, "sum", literal(kind, 0))
    with loop(scope, math.prod(reduced), "k") as (inner, step):
        values = []
        places = contracted(instruction, (lhs, rhs), indices, delinear(step, reduced))
        for operand, place in zip((lhs, rhs), places, strict=True):
            value = yield inner, operand.name, place
            values.append(semantics.convert(inner.function.functions, type_of(operand), exact(kind), value))
        inner.line(cpp("{} {};", total, added(kind, total, *values)))
    result = semantics.rounded(scope.function.functions, kind, total)
    return result if result == total else scope.declare(kind, "dot", result)


def contracted(
    dot: HloInstruction, operands: Sequence[HloInstruction], indices: Indices, summed: Sequence[Index]
) -> tuple[Indices, Indices]:
    """Where both operands of a dot are read for an element of it, and an index of the contracted dimensions."""
    attributes = dot.attributes
    free = batch = len(attributes["lhs_batch"])
    found: list[Indices] = []
    for side, operand in zip(("lhs", "rhs"), operands, strict=True):
        place: dict[int, Index] = {}
        place.update(zip(attributes[f"{side}_batch"], indices[:batch], strict=True))
        place.update(zip(attributes[f"{side}_contracting"], summed, strict=True))
        for at in range(len(operand.dims)):
            if at not in place:
                place[at] = indices[free]
                free += 1
        found.append(tuple(place[at] for at in range(len(operand.dims))))
    return found[0], found[1]


def exact(kind: Type) -> Type:
    """The type in which products of narrow floats are exact."""
    return TYPES["f32"] if kind.narrow_float else kind


def added(kind: Type, total: Code, a: Code, b: Code) -> Code:
    """What follows `total`, where a product is added to it."""
    if kind.kind == "pred":
        return cpp("= {} || ({} && {})", total, a, b)
    if kind.integral:
        wide = "unsigned long long" if kind.bits == 64 else "unsigned int"
        return cpp("= ({})(({}){} + ({}){} * ({}){})", kind.value, wide, total, wide, a, wide, b)
    return cpp("+= {} * {}", a, b)


@contextmanager
def loop(scope: Scope, count: int, hint: str, *, first: str = "0", step: int = 1) -> Iterator[tuple[Scope, Index]]:
    """`for (int r = first; r < count; r += step)`: the block and its index (a number where count is 1). What does not
    depend on the variable may stand before it."""
    name = scope.function.fresh(hint)
    advance = cpp("++{}", name) if step == 1 else cpp("{} += {}", name, step)
    header = cpp("for ({} {} = {}; {} < {}; {})", scope.function.index_type, name, first, name, count, advance)
    if count <= scope.function.unrolled:
        header = cpp('_Pragma("unroll") {}', header)
    with scope.block(header, conditional=False) as inner:
        inner.symbols.add(name)
        yield inner, inner.known(name, count) if count > 1 else number(0)


def merged(indices: Sequence[Index], dimensions: Sequence[int], reduced: Sequence[Index]) -> Indices:
    """The index of a reduced operand: `reduced` at `dimensions`, the result's indices elsewhere."""
    kept, inner = iter(indices), iter(reduced)
    return tuple(next(inner) if at in dimensions else next(kept) for at in range(len(indices) + len(dimensions)))


def combine(
    elemental: Elemental,
    scope: Scope,
    computation: Computation,
    totals: Sequence[Code],
    values: Sequence[Code],
    kinds: Sequence[Type],
) -> None:
    """`totals = computation(totals, values)`."""
    results = elemental.applied(scope, computation, [*totals, *values], [*kinds, *kinds])
    if len(results) > 1:  # one may be read while another is written
        results = [
            each if each.isidentifier() and each not in totals else scope.declare(kind, "next", each)
            for each, kind in zip(results, kinds, strict=True)
        ]
    for total, result in zip(totals, results, strict=True):
        if total != result:
            scope.line(cpp("{} = {};", total, result))


STEPS: Mapping[str, Write] = {
    "constant": _constant, "iota": _iota, "concatenate": _concatenate, "pad": _padded, "window": _window,
    "reduce": _reduce, "dot": _dot,
    **dict.fromkeys(("reshape", "broadcast", "transpose", "slice", "reverse"), _moved),
}  # fmt: skip
