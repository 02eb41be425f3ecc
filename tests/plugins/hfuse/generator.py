"""Random kernels that are right: no data race, no undefined behaviour, every barrier where all threads of a block come.

    Choices --kernel--> Generated(source, yaml)            numbers from Hypothesis (which shrinks) or from a seed
    Choices --config--> Config                             a point of a space, parameter by parameter

A kernel is written statement by statement. Whatever the choices are, the text is legal, because the writer knows what
all threads of a block agree on (`_Writer.uniform`), which cells of shared memory somebody may still read
(`_Array.read`), and what has a value (`_Array.filled`). Signed integers are added as unsigned ones, floats are clamped
after each statement, atomics are of one commutative kind for each buffer; so the outputs are the same for every
schedule, bit for bit.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from hypothesis import strategies as st

from fusiond.model.nouns import Config, Value
from fusiond.strategy.space import Space

T = TypeVar("T")


class Choices(Protocol):
    """Where a generator's decisions come from."""

    def number(self, low: int, high: int) -> int:
        """Both included; `low` is the plainest."""
        ...


class Seeded:
    """The same decisions for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def number(self, low: int, high: int) -> int:
        return self._random.randint(low, high)


class Drawn:
    """Decisions of Hypothesis, which makes them plainer when something fails."""

    def __init__(self, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        self._draw = draw

    def number(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))


@dataclass(frozen=True)
class Generated:
    """A kernel as a user would write it: a `.cu` file and its YAML."""

    name: str
    source: str
    yaml: str


def pick(choices: Choices, options: Sequence[T]) -> T:
    return options[choices.number(0, len(options) - 1)]


def config(choices: Choices, space: Space) -> Config:
    """A point of a space, parameter by parameter; what cannot be completed is taken back."""
    found = _completed(choices, space, {}, 0)
    assert found is not None, "the space has no point"
    return Config.of(found)


def _completed(choices: Choices, space: Space, chosen: dict[str, Value], depth: int) -> dict[str, Value] | None:
    if depth == len(space.parameters):
        return chosen
    parameter = space.parameters[depth]
    if not space.active(chosen, parameter):
        return _completed(choices, space, chosen, depth + 1)
    values = list(parameter.values)
    while values:
        value = values.pop(choices.number(0, len(values) - 1))
        longer = {**chosen, parameter.name: value}
        found = None if space.broken(longer) else _completed(choices, space, longer, depth + 1)
        if found is not None:
            return found
    return None


def kernel(choices: Choices, name: str) -> Generated:
    """A random kernel of that name."""
    return _Writer(choices, name).write()


# --- what a kernel is made of ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Type:
    name: str
    dtype: str
    unsigned: str = ""  #: The unsigned type as wide; none for floats
    bits: int = 32

    @property
    def integral(self) -> bool:
        return bool(self.unsigned)

    def literal(self, value: int) -> str:
        suffix = {"unsigned": "u", "long long": "ll", "unsigned long long": "ull", "float": ".5f", "double": ".25"}
        return f"{value}{suffix.get(self.name, '')}"


UNSIGNED = _Type("unsigned", "uint32", "unsigned")
INT = _Type("int", "int32", "unsigned")
WIDE = _Type("unsigned long long", "uint64", "unsigned long long", 64)
LONG = _Type("long long", "int64", "unsigned long long", 64)
FLOAT = _Type("float", "float32")
DOUBLE = _Type("double", "float64", bits=64)
TYPES = (UNSIGNED, INT, WIDE, LONG, FLOAT, DOUBLE)
NARROW = (_Type("unsigned char", "uint8", "x"), _Type("short", "int16", "x"), _Type("signed char", "int8", "x"))


@dataclass(frozen=True)
class _Variable:
    name: str
    type: _Type
    uniform: bool = False  #: All threads of a block see the same value, and the text alone says so
    fixed: bool = False  #: It is not to be written to, such as a counter of a loop


@dataclass
class _Array:
    """An array in shared memory, with a cell for each thread of the block."""

    type: _Type
    cell: str  #: `tile[{}]`
    filled: bool = False  #: Each thread's cell has a value that all threads may read
    read: bool = False  #: Somebody may still read it: a barrier must come before the next write

    def at(self, index: str) -> str:
        return self.cell.format(index)


@dataclass(frozen=True)
class _Buffer:
    name: str
    type: _Type
    elements: str
    yaml: str
    operation: str = ""  #: Of a buffer of counters: the one atomic function that is used on it

    def declaration(self, restrict: str) -> str:
        const = "const " if "role: input" in self.yaml else ""
        return f"{const}{self.type.name}*{restrict} {self.name}"


HELPERS = {
    "linear": """\
{inline}unsigned linear() { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; }
""",
    "mix": """\
template <typename T> __device__ __forceinline__ T mix(T a, T b) { return a ^ (b >> 1); }
""",
    "spread": """\
{inline}unsigned spread(unsigned v, unsigned by = 7u) { return v * by + blockIdx.x * 3u + threadIdx.x; }
""",
    "settle": """\
{inline}void settle() { __syncthreads(); }
""",
    "tweak": """\
{inline}unsigned tweak(unsigned v) { return v ^ threadIdx.x; }
{inline}unsigned long long tweak(unsigned long long v) { return v + gridDim.x; }
""",
    "warp_sum": """\
template <typename T> __device__ T warp_sum(T v)
{
    for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(0xffffffffu, v, distance);
    return v;
}
""",
    "block_sum": """\
template <typename T> {inline}T block_sum(T v)
{
    __shared__ T partial[32];
    v = warp_sum(v);
    if (linear() % 32 == 0) partial[linear() / 32] = v;
    __syncthreads();
    T all = 0;
    for (unsigned w = 0; w < blockDim.x * blockDim.y * blockDim.z / 32; ++w) all += partial[w];
    __syncthreads();
    return all;
}
""",
    "scan": """\
template <typename T> __device__ T scan(T* cells, T v)
{
    const unsigned here = linear();
    cells[here] = v;
    __syncthreads();
    for (unsigned step = 1; step < blockDim.x * blockDim.y * blockDim.z; step *= 2) {
        const T other = here >= step ? cells[here - step] : T(0);
        __syncthreads();
        cells[here] += other;
        __syncthreads();
    }
    return cells[here];
}
""",
}
NEEDS = {"block_sum": ("linear", "warp_sum"), "scan": ("linear",)}
TRICKY = ("thread", "ticket", "at", "grid", "arena", "before_a", "pool_", "a_out", "number")
"""Names of variables that also stand in fused kernels."""
SHAPES = {
    32: ((32, 1, 1), (8, 4, 1), (4, 4, 2), (1, 32, 1)),
    64: ((64, 1, 1), (16, 4, 1), (4, 4, 4), (2, 32, 1)),
    96: ((96, 1, 1), (32, 3, 1), (3, 32, 1), (8, 4, 3)),
    128: ((128, 1, 1), (32, 4, 1), (8, 8, 2)),
    160: ((160, 1, 1), (5, 32, 1), (4, 8, 5)),
    256: ((256, 1, 1), (16, 16, 1), (8, 8, 4)),
    320: ((320, 1, 1), (64, 5, 1)),
}
VOLUME = "block.x * block.y * block.z"


class _Writer:
    def __init__(self, choices: Choices, name: str) -> None:
        self.choices = choices
        self.name = name
        self.lines: list[str] = []
        self.depth = 1
        self.scope: list[_Variable] = []
        self.arrays: list[_Array] = []
        self.helpers: list[str] = []
        self.macros: dict[str, str] = {}
        self.defines: dict[str, str] = {}
        self.count = 0
        self.names = list(TRICKY)
        self.shared_bytes = ""
        self.leaves_early = False
        self.outside: list[str] = []  #: Declarations at file scope
        self.inside: list[str] = []  #: Declarations at the top of the body
        self.in_macro = False  #: No helper that sees the block is called here: the front end refuses it
        self.template = pick(choices, (None, None, *TYPES[:4]))  #: What `T` is, in a kernel template

    # --- decisions ---

    def chance(self, percent: int) -> bool:
        return self.choices.number(0, 99) >= 100 - percent

    def some(self, low: int, high: int) -> int:
        return self.choices.number(low, high)

    def type(self, options: Sequence[_Type] = TYPES) -> _Type:
        return pick(self.choices, options)

    def fresh(self) -> str:
        self.count += 1
        if self.names and self.chance(15):
            return self.names.pop(self.some(0, len(self.names) - 1))
        return f"v{self.count}"

    # --- the whole ---

    def write(self) -> Generated:
        block, most = self._block()
        grid = self._grid()
        self._buffers()
        self._shared(most)
        self._body()
        arguments = [each.declaration(" __restrict__" if self.chance(30) else "") for each in self.buffers]
        values = [f"{kind.name} {name}" for name, kind, _ in self.scalars]
        entry = f"kernel_{self.name}"
        space = "ops" if self.chance(20) else ""
        bound = f"__launch_bounds__({most}) " if most < 1024 and self.tuned else ""
        head = f"__global__ void {bound}{entry}({', '.join([*arguments, *values])})"
        if self.template is not None:
            head = f"template <typename T, int K>\n{head}"
        elif not space and self.chance(20):
            head = f'extern "C" {head}'
        text = [
            "// Generated. __syncthreads() and threadIdx in a comment mean nothing.",
            *(f"#define {name} {value}" for name, value in self.macros.items()),
            *([f"namespace {space} {{"] if space else []), *self._helper_texts(), *self.outside, head, "{",
            *self.inside, *self.lines, "}", *(["}"] if space else []),
            *(["__global__ void unrelated(int* p) { p[threadIdx.x] = blockIdx.x; }"] if self.chance(10) else []),
        ]  # fmt: skip
        full = f"ops::{entry}" if space else entry
        defines = [f'{key}: "{each}"' for key, each in self.defines.items()]
        yaml = [
            f"kernel: {self.name}",
            f"source: {self.name}.cu",
            f"entry: {full}",
            *([f'instance: "{full}<{self.template.name}, {self.some(1, 5)}>"'] if self.template else []),
            *([f"defines: {{{', '.join(defines)}}}"] if defines else []),
            f"sizes: {{n: {self.some(1, 700)}, cells: {self.some(1, 2000)}, {grid[1]}}}",
            "arguments:",
            *(f"  - {{name: {each.name}, dtype: {each.type.dtype}, elements: {each.elements}, {each.yaml}}}"
              for each in self.buffers),
            *(f"  - {{name: {name}, dtype: {kind.dtype}, value: {value}}}" for name, kind, value in self.scalars),
            f"block: {block}",
            f"grid: [{', '.join(grid[0])}]",
            *([f"shared: {self.shared_bytes}"] if self.shared_bytes else []),
        ]  # fmt: skip
        return Generated(self.name, "\n".join([*text, ""]), "\n".join([*yaml, ""]))

    def _block(self) -> tuple[str, int]:
        """The YAML of the block, and the most threads that it can have."""
        self.tuned = self.chance(50)
        if self.tuned:
            shape = pick(self.choices, SHAPES[pick(self.choices, (32, 64, 96, 128, 256))])
            axes = [axis for axis in range(3) if shape[axis] > 1]
            axis = pick(self.choices, [each for each in axes if each < 2])
            return f"{{shape: [{_spelled(shape)}], tune: {'xyz'[axis]}}}", pick(self.choices, (256, 512, 1024))
        volumes = sorted({pick(self.choices, tuple(SHAPES)) for _ in range(self.some(1, 3))})
        shapes = [pick(self.choices, SHAPES[each]) for each in volumes]
        return f"{{shapes: [{', '.join(f'[{_spelled(each)}]' for each in shapes)}]}}", max(volumes)

    def _grid(self) -> tuple[list[str], str]:
        """The YAML of the grid, and the sizes that it uses."""
        self.axes = self.some(1, 3)
        lengths = [self.some(1, (17, 5, 3)[self.axes - 1]) for _ in range(self.axes)]
        grid = [f"g{axis}" for axis in "xyz"[: self.axes]]
        sizes = ", ".join(f"{name}: {length}" for name, length in zip(grid, lengths, strict=True))
        if self.axes == 1 and self.chance(40):
            grid = [f'"ceil_div(n, {VOLUME})"']
        return grid, sizes

    def _buffers(self) -> None:
        inputs = []
        for number in range(self.some(1, 2)):
            kind = self.type((*TYPES, *NARROW))
            fill = pick(self.choices, ("iota", "{integers: [0, 100]}", "{constant: 3}"))
            if not kind.integral:
                fill = pick(self.choices, ("{integers: [-60, 60]}", "{uniform: [0, 1]}"))
            elif not kind.dtype.startswith("u") and self.chance(50):
                fill = "{integers: [-100, 100]}"
            inputs.append(_Buffer(f"x{number}", kind, "n", f"role: input, fill: {fill}"))
        outputs = []
        for number in range(self.some(1, 2)):
            kind = self.type((*TYPES, *NARROW))
            # Integers of iota fit every type; floats stay whole.
            role = "role: inout, fill: {integers: [0, 90]}" if self.chance(40) else "role: output"
            outputs.append(_Buffer(f"out{number}", kind, "cells", role))
        counters = []
        for number in range(self.some(0, 2)):
            kind = self.type((UNSIGNED, INT, WIDE))
            names = ["atomicAdd", "atomicMin", "atomicMax", "atomicAnd", "atomicOr", "atomicXor"]
            operation = pick(self.choices, names + (["atomicSub"] if kind.bits == 32 else []))
            if kind is INT and operation in ("atomicAdd", "atomicSub"):
                kind = UNSIGNED  # a signed sum could overflow
            fill = "{integers: [0, 1000]}" if operation in ("atomicMin", "atomicAnd") else "zeros"
            counters.append(_Buffer(f"count{number}", kind, "5", f"role: inout, fill: {fill}", operation))
        self.inputs, self.outputs, self.counters = inputs, outputs, counters
        sums = _Buffer("sums", WIDE, "61", "role: inout, fill: zeros")
        self.buffers = [*outputs, *inputs, *counters, sums]
        if self.chance(50):
            self.buffers.reverse()
        self.scalars = [("n", INT, "n"), ("cells", self.type((INT, UNSIGNED, LONG)), "cells")]
        if self.chance(50):
            self.scalars.append(("rounds", UNSIGNED, str(self.some(0, 5))))
        self.scope = [_Variable(name, kind, uniform=True) for name, kind, _ in self.scalars]

    def _shared(self, most: int) -> None:
        """Up to three arrays, static, dynamic, or both; together a static size that any three kernels can have."""
        for number in range(self.some(0, 2)):
            kind = self.type()
            spelled = self._spelled(kind)
            name = f"tile{number}"
            size = str(most)
            if self.chance(30):
                self.defines.setdefault("THREADS", VOLUME)
                size = "THREADS"
            if self.chance(30):
                cell = f"{name}[({{0}}) / 8][({{0}}) % 8]"
                declaration = f"__shared__ {spelled} {name}[{size} / 8][8];"
            else:
                cell = f"{name}[{{}}]"
                declaration = f"__shared__ {spelled} {name}[{size}];"
            if most == 1024 and kind.bits == 64 and size == "1024":
                continue  # too much beside two others
            at_file_scope = spelled != "T" and self.chance(15)
            (self.outside if at_file_scope else self.inside).append(
                declaration if at_file_scope else f"    {declaration}"
            )
            self.arrays.append(_Array(kind, cell))
        if self.chance(50):
            self._dynamic()

    def _dynamic(self) -> None:
        kind = self.type()
        spelled = self._spelled(kind)
        self.shared_bytes = f"{kind.bits // 8} * {VOLUME}"
        how = self.some(0, 2)
        if how == 2 and spelled != "T":
            self.outside.append(f"extern __shared__ {spelled} pool[];")
        elif how == 1:
            self.inside += [
                "    extern __shared__ __align__(16) unsigned char raw[];",
                f"    {spelled}* const pool = reinterpret_cast<{spelled}*>(raw);",
            ]
        else:
            self.inside.append(f"    extern __shared__ {spelled} pool[];")
        self.arrays.append(_Array(kind, "pool[{}]"))
        if self.chance(40):
            other = self.type([each for each in TYPES if each.bits <= kind.bits])
            self.inside.append(
                f"    {other.name}* const rest = reinterpret_cast<{other.name}*>"
                "(pool + blockDim.x * blockDim.y * blockDim.z);"
            )
            self.shared_bytes += f" + {other.bits // 8} * {VOLUME}"
            self.arrays.append(_Array(other, "rest[{}]"))

    def _spelled(self, kind: _Type) -> str:
        return "T" if kind is self.template else kind.name

    def _helper_texts(self) -> list[str]:
        """The helpers that are used, and what they use, in the order of HELPERS."""
        wanted = set(self.helpers)
        for each in self.helpers:
            wanted |= set(NEEDS.get(each, ()))
        inline = pick(self.choices, ("__device__ ", "static __device__ ", "__device__ __forceinline__ "))
        texts = [HELPERS[each].replace("{inline}", inline).rstrip() for each in HELPERS if each in wanted]
        if "table" in self.helpers:
            texts.insert(0, "__constant__ unsigned table[8] = {3u, 1u, 4u, 1u, 5u, 9u, 2u, 6u};")
        return texts

    # --- the body ---

    def _body(self) -> None:
        me = "(threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x"
        many = "blockDim.x * blockDim.y * blockDim.z"
        if self.chance(30):
            me = self.helper("linear") + "()"
        if self.chance(30):
            self.macros["MANY"] = f"({many})"
            many = "MANY"
        self.put(f"const unsigned me = {me};")
        self.put(f"const unsigned many = {many};")
        self.put("const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;")
        self.put("const unsigned blocks = gridDim.x * gridDim.y * gridDim.z;")
        self.scope += [_Variable(each, UNSIGNED, uniform=True) for each in ("many", "block", "blocks")]
        self.put("unsigned long long all = block * many + me;")
        self.scope += [_Variable("me", UNSIGNED, fixed=True), _Variable("all", WIDE)]
        for _ in range(self.some(1, 2)):
            self.declare()
        for _ in range(self.some(1, 6)):
            self.together()
        self._write_out()

    def _write_out(self) -> None:
        """All variables go into every output, so that whatever went wrong before shows."""
        for each in self.scope:
            if not each.uniform and each.name != "all":
                self.put(f"all = all * 31ull + {self.converted(each, WIDE)};")
        self.put("atomicAdd(&sums[(block * many + me) % 61u], all);")
        for output in self.outputs:
            kind = output.type
            value = f"({kind.name})(all + i)" if kind.integral else f"({kind.name})((int)((all + i) % 4096ull))"
            if "inout" in output.yaml and self.chance(50):
                value = f"({kind.name})({output.name}[i] + {value})"
                if kind in (INT, LONG):
                    value = f"({kind.name})(({kind.unsigned})({output.name}[i]) + ({kind.unsigned})(all))"
            self.put(f"for (unsigned i = block * many + me; i < cells; i += many * blocks) {output.name}[i] = {value};")
        if self.leaves_early:  # not every cell is written
            self.buffers = [
                _Buffer(each.name, each.type, each.elements,
                        each.yaml.replace("role: output", "role: inout, fill: zeros"), each.operation)
                for each in self.buffers
            ]  # fmt: skip

    def put(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def nested(self, head: str, tail: str = "}") -> Iterator[None]:
        self.put(head)
        self.depth += 1
        known = len(self.scope)
        yield
        for each in self.scope[known:]:  # nothing that was worked out is lost
            self.put(f"all = all * 31ull + {self.converted(each, WIDE)};")
        del self.scope[known:]
        self.depth -= 1
        self.put(tail)

    def helper(self, name: str) -> str:
        if name not in self.helpers:
            self.helpers.append(name)
        return name

    # --- expressions ---

    def converted(self, variable: _Variable, kind: _Type) -> str:
        """A variable's value as another type; floats are clamped, so that an int holds them."""
        if variable.type.name == kind.name:
            return variable.name
        if kind.integral:
            inner = variable.name if variable.type.integral else f"(int)({variable.name})"
            return f"({self._spelled(kind)})({inner})"
        inner = f"((int)({variable.name}) % 1024)" if variable.type.integral else variable.name
        return f"({kind.name})({inner})"

    def loaded(self, kind: _Type, index: str) -> str:
        buffer = pick(self.choices, self.inputs)
        cell = f"{buffer.name}[({index}) % n]"
        return self.converted(_Variable(cell, buffer.type), kind)

    def leaf(self, kind: _Type) -> str:
        what = self.some(0, 9)
        if what == 0:
            return f"({self._spelled(kind)}){kind.literal(self.some(0, 40))}"
        if what == 1:
            return self.loaded(kind, f"{self.variable(UNSIGNED)} + {self.some(0, 9)}u")
        if what == 2:
            index = pick(self.choices, ("threadIdx", "blockIdx", "blockDim", "gridDim"))
            return self.converted(_Variable(f"{index}.{pick(self.choices, 'xyz')}", UNSIGNED), kind)
        if what == 3 and kind is not FLOAT and kind.integral:
            return f"({self._spelled(kind)}){self.helper('table')}[{self.variable(UNSIGNED)} % 8u]"
        if what == 4 and self.template and kind.integral:
            return f"({self._spelled(kind)})K"
        if what == 5 and kind is UNSIGNED and not self.in_macro:
            return f"{self.helper('spread')}({self.variable(UNSIGNED)}{pick(self.choices, ('', ', 3u'))})"
        if what == 6 and kind in (UNSIGNED, WIDE) and not self.in_macro:
            return f"{self.helper('tweak')}({self.variable(kind)})"
        return self.variable(kind)

    def variable(self, kind: _Type) -> str:
        own = [each for each in self.scope if not each.uniform]
        return self.converted(pick(self.choices, (own if own and self.chance(80) else self.scope)[::-1]), kind)

    def value(self, kind: _Type, depth: int = 2) -> str:
        if depth == 0 or self.chance(25):
            return self.leaf(kind)
        if kind in (UNSIGNED, WIDE) and not self.in_macro and self.chance(10):
            return self.mixed(kind)
        a, b = self.value(kind, depth - 1), self.value(kind, depth - 1)
        if not kind.integral:
            whole = f"({a} / ({'fabsf' if kind is FLOAT else 'fabs'}({b}) + {kind.literal(1)}))"
            return pick(self.choices, (f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", whole))
        spelled, wide, small = self._spelled(kind), kind.unsigned, kind.literal(self.some(1, 9))
        options = [
            f"({spelled})(({wide})({a}) + ({wide})({b}))",
            f"({spelled})(({wide})({a}) - ({wide})({b}))",
            f"({spelled})(({wide})({a}) * ({wide})({b}))",
            f"({a} ^ {b})", f"({a} & {b})", f"({a} | {b})",
            f"min({a}, {b})", f"max({a}, {b})",
            f"({a} / {small})", f"({a} % {small})",
            f"({spelled})(({wide})({a}) << {self.some(0, 31)})",
            f"({a} >> {self.some(0, 31)})",
            f"({a} < {b} ? {a} : {b})",
        ]  # fmt: skip
        if self.chance(10):
            self.helper("mix")
            return f"mix<{spelled}>({a}, {b})"
        return pick(self.choices, options)

    def mixed(self, kind: _Type) -> str:
        """By a macro."""
        self.in_macro = True
        a, b = self.value(kind, 1), self.value(kind, 1)
        self.in_macro = False
        self.macros["MIX(a, b)"] = "((a) ^ ((b) << 1))"
        return f"MIX({a}, {b})"

    def condition(self) -> str:
        kind = self.type()
        a, b = self.value(kind, 1), self.value(kind, 1)
        return pick(self.choices, (f"{a} < {b}", f"{a} != {b}", f"{a} < {b} || me % {self.some(2, 7)}u == 0u"))

    def proven(self) -> str:
        """An unsigned number that the text alone says all threads of a block agree on."""
        names = [self.converted(each, UNSIGNED) for each in self.scope if each.uniform]
        first = pick(self.choices, (*names, "blockIdx.x", "gridDim.x", "blockDim.y"))
        return pick(self.choices, (first, f"({first} + {self.some(0, 9)}u)", f"({first} * 3u + block)"))

    # --- statements that any thread may do by itself ---

    def assign(self) -> None:
        own = [each for each in self.scope if not each.uniform and not each.fixed]
        if not own:
            return self.declare()
        target = pick(self.choices, own)
        self.put(f"{target.name} = {self.clamped(target.type)};")

    def clamped(self, kind: _Type, depth: int = 2) -> str:
        """A value to keep; a float's range is kept too, so that it is never NaN and fits an int."""
        value = self.value(kind, depth)
        if kind is FLOAT:
            return f"fminf(fmaxf({value}, -4096.0f), 4095.0f)"
        return f"fmin(fmax({value}, -4096.0), 4095.0)" if kind is DOUBLE else value

    def declare(self) -> None:
        kind = self.type()
        value = self.clamped(kind)
        name = self.fresh()
        self.put(f"{self._spelled(kind)} {name} = {value};")
        self.scope.append(_Variable(name, kind))

    def atomic(self) -> None:
        if not self.counters:
            return self.assign()
        counter = pick(self.choices, self.counters)
        value = self.value(counter.type, 1)
        place = f"{self.variable(UNSIGNED)} % 5u"
        cell = pick(self.choices, (f"&{counter.name}[{place}]", f"{counter.name} + {place}"))
        self.put(f"{counter.operation}({cell}, ({counter.type.name})({value}));")

    def branch(self) -> None:
        with self.nested(f"if ({self.condition()}) {{"):
            self.alone()
        if self.chance(40):
            with self.nested("else {"):
                self.alone()

    def switch(self) -> None:
        with self.nested(f"switch ({self.value(UNSIGNED, 1)} % 3u) {{"):
            for label in ("case 0:", "default:"):
                with self.nested(f"{label} {{", "} break;"):
                    self.alone(1)

    def loop(self) -> None:
        """Each thread goes round as often as its own data says."""
        times = f"{self.value(UNSIGNED, 1)} % {self.some(1, 5)}u"
        name = f"i{self.depth}"
        if self.chance(40):
            self.count += 1
            left = f"left{self.count}"
            self.put(f"unsigned {left} = {times};")
            with self.nested(f"while ({left} > 0u) {{"):
                self.put(f"--{left};")
                self.alone(1)
                if self.chance(50):
                    self.put(f"if ({self.condition()}) {pick(self.choices, ('continue', 'break'))};")
                    self.alone(1)
        else:
            with self.nested(f"for (unsigned {name} = 0; {name} < {times}; ++{name}) {{"):
                self.scope.append(_Variable(name, UNSIGNED, fixed=True))
                self.alone(2)

    def alone(self, most: int = 2) -> None:
        """Statements in which no thread waits for another."""
        kinds = [self.assign, self.assign, self.declare, self.atomic]
        if self.depth < 4:
            kinds += [self.branch, self.loop, self.switch]
        for _ in range(self.some(1, most)):
            pick(self.choices, kinds)()

    # --- statements that all threads of a block do together ---

    def together(self) -> None:
        kinds = [self.assign, self.declare, self.atomic, self.branch, self.loop, self.switch, self.captured]
        if self.arrays:
            kinds += [self.exchange, self.exchange, self.reduce, self.histogram, self.scan]
        kinds += [self.shuffle, self.some_shuffle, self.vote, self.block_sum]
        kinds += [self.within_warps] if self.arrays else []
        if self.depth < 3:
            kinds += [self.uniform_loop, self.uniform_loop, self.uniform_branch]
        if self.depth == 1:
            kinds.append(self.all_leave)
        pick(self.choices, kinds)()

    def sync(self) -> None:
        how = self.some(0, 9)
        if how == 9:
            self.put(f"{self.helper('settle')}();")
        elif how == 8:
            self.macros["SYNC()"] = "__syncthreads()"
            self.put("SYNC();")
        else:
            self.put("__syncthreads();")
        for each in self.arrays:
            each.read = False

    def writable(self, array: _Array) -> None:
        if array.read:
            self.sync()

    def quiet(self) -> None:
        """Nobody reads shared memory any more: the state in which a loop's body begins and ends."""
        if any(each.read for each in self.arrays):
            self.sync()

    def keep(self, kind: _Type, value: str) -> None:
        """Put a value into a new variable, or mix it into one."""
        own = [each for each in self.scope if each.type is kind and not each.uniform and not each.fixed]
        if own and self.chance(60):
            name = pick(self.choices, own).name
            if kind.integral:
                self.put(f"{name} ^= {value};")
            else:
                self.put(f"{name} = {value};")
            return
        name = self.fresh()
        self.put(f"{self._spelled(kind)} {name} = {value};")
        self.scope.append(_Variable(name, kind))

    def exchange(self) -> None:
        """Each thread reads what another one wrote."""
        array = pick(self.choices, self.arrays)
        self.writable(array)
        self.put(f"{array.at('me')} = {self.clamped(array.type, 1)};")
        self.sync()
        array.filled = array.read = True
        step = self.some(1, 40)
        place = pick(
            self.choices,
            (f"(me + {step}u) % many", "many - 1u - me", f"(me * 3u + {step}u) % many",
             f"{self.variable(UNSIGNED)} % many"),
        )  # fmt: skip
        self.keep(array.type, array.at(place))

    def reduce(self) -> None:
        """A tree over any number of threads; all of them get the result."""
        array = pick(self.choices, self.arrays)
        kind = array.type
        self.writable(array)
        self.put(f"{array.at('me')} = {self.clamped(kind, 1)};")
        self.sync()
        a, b = array.at("me"), array.at("me + half")
        joined = f"{a} + {b}"
        if kind.integral:
            sum_ = f"({self._spelled(kind)})(({kind.unsigned})({a}) + ({kind.unsigned})({b}))"
            joined = pick(self.choices, (sum_, f"{a} ^ {b}", f"max({a}, {b})", f"min({a}, {b})"))
        with self.nested("for (unsigned width = many; width > 1u;) {"):
            self.put("const unsigned half = (width + 1u) / 2u;")
            self.put(f"if (me + half < width) {a} = {joined};")
            self.put("width = half;")
            self.sync()
        array.filled = array.read = True
        value = array.at("0")
        if kind is FLOAT:
            value = f"fminf(fmaxf({value}, -4096.0f), 4095.0f)"
        elif kind is DOUBLE:
            value = f"fmin(fmax({value}, -4096.0), 4095.0)"
        self.keep(kind, value)
        if not kind.integral:
            array.filled = False  # its values are no longer clamped

    def histogram(self) -> None:
        """Counts in shared memory, by atomics."""
        arrays = [each for each in self.arrays if each.type in (UNSIGNED, INT, WIDE)]
        if not arrays:
            return self.exchange()
        array = pick(self.choices, arrays)
        self.writable(array)
        self.put(f"{array.at('me')} = 0;")
        self.sync()
        bins = self.some(1, 32)
        self.put(f"atomicAdd(&{array.at(f'({self.value(UNSIGNED, 1)}) % {bins}u')}, ({array.type.name})1);")
        self.sync()
        array.filled = array.read = True
        self.keep(array.type, array.at(f"me % {bins}u"))

    def scan(self) -> None:
        arrays = [each for each in self.arrays if each.type in (UNSIGNED, WIDE) and "/" not in each.cell]
        if not arrays:
            return self.exchange()
        array = pick(self.choices, arrays)
        self.writable(array)
        spelled = self._spelled(array.type)
        value = self.value(array.type, 1)
        array.filled = array.read = True
        self.keep(array.type, f"{self.helper('scan')}<{spelled}>(&{array.at('0')}, {value})")
        self.sync()

    def within_warps(self) -> None:
        """An exchange that only the threads of a warp wait for."""
        array = pick(self.choices, self.arrays)
        self.writable(array)
        self.put(f"{array.at('me')} = {self.clamped(array.type, 1)};")
        self.put("__syncwarp();")
        self.keep(array.type, array.at(f"me ^ {self.some(1, 31)}u"))
        array.read = True
        array.filled = False  # for those of other warps

    def shuffle(self) -> None:
        kind = self.type()
        width = pick(self.choices, (32, 16, 8, 4, 2))
        full = pick(self.choices, ("0xffffffffu", "~0u", "0xffffffff"))
        value = self.clamped(kind, 1)
        ends = f", {width})" if width < 32 or self.chance(30) else ")"
        lane = f"(int)({self.variable(UNSIGNED)} % {width}u)"
        kinds = (f"__shfl_xor_sync({full}, {value}, {self.some(1, width - 1)}", f"__shfl_sync({full}, {value}, {lane}",
                 f"__shfl_up_sync({full}, {value}, {self.some(1, width - 1)}",
                 f"__shfl_down_sync({full}, {value}, {self.some(1, width - 1)}")  # fmt: skip
        self.keep(kind, pick(self.choices, kinds) + ends)

    def some_shuffle(self) -> None:
        """Only some lanes take part, and the mask says which."""
        kind = self.type()
        which, mask, distance = pick(
            self.choices,
            (("me % 32u < 16u", "0x0000ffffu", self.some(1, 15)),
             ("me % 2u == 1u", "0xaaaaaaaau", 2 * self.some(1, 15)),
             ("me / 8u % 2u == 0u", "0x00ff00ffu", self.some(1, 7)),
             ("me % 32u >= 28u", "0xf0000000u", self.some(1, 3))),
        )  # fmt: skip
        value = self.clamped(kind, 1)
        name = self.fresh()
        self.put(f"{self._spelled(kind)} {name} = {value};")
        with self.nested(f"if ({which}) {{"):
            self.put(f"{name} = __shfl_xor_sync({mask}, {name}, {distance});")
            if self.chance(40):
                self.put(f"if (__any_sync({mask}, {name} != 0)) {name} = 1;")
        self.scope.append(_Variable(name, kind))

    def vote(self) -> None:
        test = self.condition()
        value = pick(
            self.choices,
            (f"__ballot_sync(0xffffffffu, {test})", f"(unsigned)__any_sync(0xffffffffu, {test})",
             f"(unsigned)__all_sync(0xffffffffu, {test})", f"(unsigned)__popc(__ballot_sync(~0u, {test}))",
             f"__reduce_add_sync(0xffffffffu, {self.variable(UNSIGNED)})",
             f"__match_any_sync(0xffffffffu, {self.variable(UNSIGNED)} % 3u)"),
        )  # fmt: skip
        self.keep(UNSIGNED, value)

    def captured(self) -> None:
        """A lambda that sees the block."""
        name = self.fresh()
        capture = pick(self.choices, ("=", "&"))
        self.put(f"auto {name} = [{capture}](unsigned step) {{ return {self.value(UNSIGNED, 1)} + step; }};")
        self.keep(UNSIGNED, f"{name}({self.variable(UNSIGNED)})")

    def block_sum(self) -> None:
        """A helper with a shared array and barriers of its own."""
        kind = self.type((UNSIGNED, WIDE))
        self.helper("block_sum")
        call = "block_sum" if kind is not self.template else "block_sum<T>"
        self.keep(kind, f"{call}({self.value(kind, 1)})")

    def uniform_loop(self) -> None:
        """All threads of the block go round together, and may wait for each other inside."""
        bound = f"{self.proven()} % {self.some(1, 4)}u"
        count = f"rounds{self.depth}_{self.count}"
        self.count += 1
        self.put(f"const unsigned {count} = {bound};")
        self.quiet()
        filled = [each.filled for each in self.arrays]
        name = f"r{self.depth}"
        with self.nested(f"for (unsigned {name} = 0; {name} < {count}; ++{name}) {{"):
            self.scope.append(_Variable(name, UNSIGNED, uniform=True))
            self.together()
            if self.chance(30):
                self.quiet()
                jump = pick(self.choices, ("continue", "break"))
                self.put(f"const bool stop{self.depth} = {self.proven()} % 3u == 0u;")
                self.quiet()
                self.put(f"if (stop{self.depth}) {jump};")
            if self.chance(50):
                self.together()
            self.quiet()
        for each, known in zip(self.arrays, filled, strict=True):
            each.filled = each.filled and known

    def uniform_branch(self) -> None:
        test = f"test{self.count}"
        self.count += 1
        self.put(f"const bool {test} = {self.proven()} % {self.some(2, 4)}u == 0u;")
        self.quiet()
        before = [each.filled for each in self.arrays]
        heads = [f"if ({test}) {{", "else {"][: 2 if self.chance(40) else 1]
        for head in heads:
            for each, filled in zip(self.arrays, before, strict=True):
                each.filled = filled
            with self.nested(head):
                self.together()
                self.quiet()
            before = [filled and each.filled for each, filled in zip(self.arrays, before, strict=True)]
        for each, filled in zip(self.arrays, before, strict=True):
            each.filled = filled

    def all_leave(self) -> None:
        """A return that a whole block takes."""
        self.leaves_early = True
        self.put(f"if ({self.proven()} % {self.some(4, 9)}u == 3u) return;")


def _spelled(shape: tuple[int, int, int]) -> str:
    lengths = list(shape)
    while len(lengths) > 1 and lengths[-1] == 1:
        lengths.pop()
    return ", ".join(map(str, lengths))
