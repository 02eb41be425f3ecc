"""Random HLO modules of small tensors. Whole numbers mostly: their sums are equal in any order, so that results can be
compared exactly."""

import math
from dataclasses import dataclass, field

from hypothesis import strategies as st

DIMS = st.lists(st.sampled_from([1, 2, 3, 5, 7, 8, 33]), min_size=0, max_size=3).filter(
    lambda dims: math.prod(dims) <= 400
)
BINARY = ("add", "subtract", "multiply", "maximum", "minimum")
WHOLE = ("and", "or", "xor")


@dataclass
class Value:
    name: str
    dims: tuple[int, ...]


@dataclass
class Builder:
    """Writes instructions; all tensors have one type."""

    dtype: str
    draw: st.DrawFn
    lines: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def add(self, dims: tuple[int, ...], text: str, *operands: Value, dtype: str = "") -> Value:
        name = f"v{len(self.lines)}"
        shape = f"{dtype or self.dtype}[{','.join(map(str, dims))}]"
        self.lines.append(f"  {name} = {shape} {text}")
        self.used |= {each.name for each in operands}
        value = Value(name, dims)
        if not dtype:
            self.values.append(value)
        return value

    def pick(self, *, rank: int = 0) -> Value:
        """Any value, the latest ones more often."""
        fitting = [each for each in self.values if len(each.dims) >= rank]
        if not fitting:
            return self.parameter((3, 7, 2)[: max(rank, 1)])
        latest = fitting[-6:]
        return self.draw(st.sampled_from(latest if self.draw(st.booleans()) else fitting))

    def like(self, other: Value) -> Value:
        """A value of the same dims: one that is there, or a broadcast."""
        fitting = [each for each in self.values if each.dims == other.dims]
        if fitting and self.draw(st.integers(0, 3)):
            return self.draw(st.sampled_from(fitting))
        for each in reversed(self.values):
            place = subsequence(each.dims, other.dims)
            if place is not None and each.dims != other.dims:
                return self.add(other.dims, f"broadcast({each.name}), dimensions={{{commas(place)}}}", each)
        return other

    def constant(self) -> Value:
        return self.add((), f"constant({self.draw(st.integers(-3, 3))})")

    def parameter(self, dims: tuple[int, ...]) -> Value:
        number = sum("parameter(" in line for line in self.lines)
        return self.add(dims, f"parameter({number})")


def commas(numbers: object) -> str:
    return ",".join(map(str, numbers))  # type: ignore[call-overload]


def subsequence(inner: tuple[int, ...], outer: tuple[int, ...]) -> list[int] | None:
    """Dimensions of `outer` that `inner` can be broadcast to, in order."""
    found: list[int] = []
    at = 0
    for size in inner:
        while at < len(outer) and outer[at] != size:
            at += 1
        if at == len(outer):
            return None
        found.append(at)
        at += 1
    return found


@st.composite
def modules(draw: st.DrawFn, *, dtype: str = "s32", most: int = 24) -> str:
    """The text of a module with up to `most` instructions drawn, and several results."""
    build = Builder(dtype, draw)
    for _ in range(draw(st.integers(1, 3))):
        build.parameter(tuple(draw(DIMS)))
    kinds = list(STEPS)
    for _ in range(draw(st.integers(3, most))):
        STEPS[draw(st.sampled_from(kinds))](build)
    unused = [each for each in build.values if each.name not in build.used]
    extra = draw(st.lists(st.sampled_from(build.values), max_size=2))
    results = list({each.name: each for each in [*unused, *extra]}.values())
    shapes = ", ".join(f"{dtype}[{commas(each.dims)}]" for each in results)
    names = ", ".join(each.name for each in results)
    computations = []
    for name in ("add", "maximum", "minimum"):
        computations += [
            f"{name}_of {{", f"  a = {dtype}[] parameter(0)", f"  b = {dtype}[] parameter(1)",
            f"  ROOT c = {dtype}[] {name}(a, b)", "}", "",
        ]  # fmt: skip
    body = [*build.lines, f"  ROOT results = ({shapes}) tuple({names})"]
    return "\n".join(["HloModule random", "", *computations, "ENTRY main {", *body, "}", ""])


# --- steps ----------------------------------------------------------------------------------------------


def unary(build: Builder) -> None:
    value = build.pick()
    choices = ("negate", "abs", "not") if build.dtype == "s32" else ("negate", "abs", "tanh", "cosine")
    build.add(value.dims, f"{build.draw(st.sampled_from(choices))}({value.name})", value)


def binary(build: Builder) -> None:
    a = build.pick()
    b = build.like(a)
    opcode = build.draw(st.sampled_from(BINARY + WHOLE if build.dtype == "s32" else BINARY))
    build.add(a.dims, f"{opcode}({a.name}, {b.name})", a, b)


def choose(build: Builder) -> None:
    """Comparisons of floats may turn out otherwise after a sum in another order; so only on what is exact."""
    a = build.pick() if build.dtype == "s32" else build.values[0]
    b = build.like(a) if build.dtype == "s32" else a
    test = build.add(a.dims, f"compare({a.name}, {b.name}), direction=LT", a, b, dtype="pred")
    c = build.like(a)
    build.add(a.dims, f"select({test.name}, {a.name}, {c.name})", test, c)


def reduce(build: Builder) -> None:
    value = build.pick(rank=1)
    over = build.draw(st.sets(st.integers(0, len(value.dims) - 1), min_size=1))
    kept = tuple(size for at, size in enumerate(value.dims) if at not in over)
    start = {"add": "0", "maximum": "-1000000000", "minimum": "1000000000"}
    opcode = build.draw(st.sampled_from(list(start)))
    init = build.add((), f"constant({start[opcode]})")
    build.values.pop()
    build.add(
        kept, f"reduce({value.name}, {init.name}), dimensions={{{commas(sorted(over))}}}, to_apply={opcode}_of", value
    )


def broadcast(build: Builder) -> None:
    value = build.pick()
    if math.prod(value.dims) > 60 or len(value.dims) > 2:
        return
    at = build.draw(st.integers(0, len(value.dims)))
    size = build.draw(st.sampled_from([1, 2, 3, 5, 7]))
    dims = (*value.dims[:at], size, *value.dims[at:])
    places = [place for place in range(len(dims)) if place != at]
    build.add(dims, f"broadcast({value.name}), dimensions={{{commas(places)}}}", value)


def reshape(build: Builder) -> None:
    value = build.pick()
    total = math.prod(value.dims)
    divisors = [each for each in range(1, total + 1) if total % each == 0]
    first = build.draw(st.sampled_from(divisors))
    dims = build.draw(st.sampled_from([(total,), (first, total // first), (first, 1, total // first)]))
    build.add(dims, f"reshape({value.name})", value)


def transpose(build: Builder) -> None:
    value = build.pick(rank=2)
    order = build.draw(st.permutations(range(len(value.dims))))
    dims = tuple(value.dims[at] for at in order)
    build.add(dims, f"transpose({value.name}), dimensions={{{commas(order)}}}", value)


def slice_(build: Builder) -> None:
    value = build.pick(rank=1)
    parts, dims = [], []
    for size in value.dims:
        start = build.draw(st.integers(0, size - 1))
        limit = build.draw(st.integers(start + 1, size))
        stride = build.draw(st.sampled_from([1, 1, 2, 3]))
        parts.append(f"[{start}:{limit}:{stride}]")
        dims.append(-(-(limit - start) // stride))
    build.add(tuple(dims), f"slice({value.name}), slice={{{', '.join(parts)}}}", value)


def concatenate(build: Builder) -> None:
    a = build.pick(rank=1)
    b = build.like(a)
    at = build.draw(st.integers(0, len(a.dims) - 1))
    dims = tuple(2 * size if place == at else size for place, size in enumerate(a.dims))
    if math.prod(dims) <= 600:
        build.add(dims, f"concatenate({a.name}, {b.name}), dimensions={{{at}}}", a, b)


def pad(build: Builder) -> None:
    value = build.pick(rank=1)
    filler = build.constant()
    parts, dims = [], []
    for size in value.dims:
        low, high = build.draw(st.integers(-1, 2)), build.draw(st.integers(-1, 2))
        between = build.draw(st.sampled_from([0, 0, 1, 2]))
        wide = size + low + high + (size - 1) * between
        if wide < 1:
            low, high, between, wide = 0, 0, 0, size
        parts.append(f"{low}_{high}_{between}")
        dims.append(wide)
    if math.prod(dims) <= 600:
        build.add(tuple(dims), f"pad({value.name}, {filler.name}), padding={'x'.join(parts)}", value, filler)


def reverse(build: Builder) -> None:
    value = build.pick(rank=1)
    at = build.draw(st.sets(st.integers(0, len(value.dims) - 1), min_size=1))
    build.add(value.dims, f"reverse({value.name}), dimensions={{{commas(sorted(at))}}}", value)


def dot(build: Builder) -> None:
    a = build.pick(rank=2)
    if len(a.dims) != 2:
        return
    fitting = [each for each in build.values if len(each.dims) == 2 and each.dims[0] == a.dims[1]]
    if fitting:
        b = build.draw(st.sampled_from(fitting))
        numbers = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
        build.add((a.dims[0], b.dims[1]), f"dot({a.name}, {b.name}), {numbers}", a, b)


def iota(build: Builder) -> None:
    value = build.pick(rank=1)
    at = build.draw(st.integers(0, len(value.dims) - 1))
    build.add(value.dims, f"iota(), iota_dimension={at}")


def window(build: Builder) -> None:
    """A dynamic slice, or its update, at a start that is data."""
    value = build.pick(rank=1)
    starts = []
    for _ in value.dims:
        source = build.constant()
        build.values.pop()
        if build.dtype != "s32":
            source = build.add((), f"convert({source.name})", source, dtype="s32")
        starts.append(source)
    sizes = tuple(build.draw(st.integers(1, size)) for size in value.dims)
    names = ", ".join(each.name for each in starts)
    part = build.add(
        sizes, f"dynamic-slice({value.name}, {names}), dynamic_slice_sizes={{{commas(sizes)}}}", value, *starts
    )
    if build.draw(st.booleans()):
        build.add(value.dims, f"dynamic-update-slice({value.name}, {part.name}, {names})", value, part, *starts)


def rows(build: Builder) -> None:
    """A gather of rows by indices that are data (and clamped), perhaps scattered back (where they fit)."""
    if build.dtype != "s32":
        return
    value = build.pick(rank=1)
    index = build.pick(rank=1)
    rest = value.dims[1:]
    if len(index.dims) != 1 or index.dims[0] * math.prod(rest) > 300:
        return
    numbers = f"index_vector_dim=1, slice_sizes={{{commas((1, *rest))}}}"
    offsets = commas(range(1, 1 + len(rest)))
    found = build.add(
        (index.dims[0], *rest),
        f"gather({value.name}, {index.name}), offset_dims={{{offsets}}}, collapsed_slice_dims={{0}}, "
        f"start_index_map={{0}}, {numbers}",
        value,
        index,
    )
    if build.draw(st.booleans()):
        update = build.like(found)
        build.add(
            value.dims,
            f"scatter({value.name}, {index.name}, {update.name}), update_window_dims={{{offsets}}}, "
            "inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add_of",
            value,
            index,
            update,
        )


STEPS = {
    "unary": unary, "binary": binary, "binary again": binary, "choose": choose, "reduce": reduce,
    "reduce again": reduce, "broadcast": broadcast, "reshape": reshape, "transpose": transpose, "slice": slice_,
    "concatenate": concatenate, "pad": pad, "reverse": reverse, "dot": dot, "iota": iota, "window": window,
    "rows": rows, "rows again": rows,
}  # fmt: skip
