"""Kernel bodies as text: a CUDA kernel for the device, a C++ function for the host.

Every entry takes pointers to what it reads, then to what it writes, then scalars. The default body (`Mix`) hashes all
inputs into every output element, with the number of the kernel and of the output, so that a value that is old, or not
there yet, or another vector's, shows in the results. It is whole-number arithmetic, equal on every machine; for floats
the hash becomes a fraction that is exact.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fusiond.model.codegen.code import Code, call, cpp
from fusiond.model.codegen.literals import literal
from fusiond.model.codegen.operators import Term, atom, binary, cast, choice, prefix
from fusiond.model.codegen.statements import Statements
from fusiond.model.keys import text_key
from fusiond.model.language.extents import ceil_div, least, most
from fusiond.model.language.grammar import Literal, Name, Node
from fusiond.model.program import Argument, HostCall, Launch, Pointer, Scalar, Source, SourceKind
from fusiond_transfer.analysis.cells import Script
from fusiond_transfer.codegen import elements
from fusiond_transfer.codegen.elements import computed, stored
from fusiond_transfer.frontend import formula, row_wise
from fusiond_transfer.frontend.formula import ParsedFormula
from fusiond_transfer.frontend.graph import Formula, FusedBody, Graph, GraphKernel, Mix, Text, Vector
from fusiond_transfer.frontend.row_wise import RowWise
from fusiond_transfer.frontend.sub_vectors import whole_name

BLOCK = 256
MOST_BLOCKS = 4096

_HASH = """
// A hash of two words: any bit of either changes about half of the result.
{prefix} unsigned mixed(unsigned h, unsigned value) {{
    h = (h ^ value) * 0x9E3779B1u;
    return h ^ (h >> 15);
}}
{prefix} unsigned word(int value) {{ return unsigned(value); }}
{prefix} unsigned word(unsigned value) {{ return value; }}
{prefix} unsigned word(unsigned long long value) {{ return unsigned(value) ^ unsigned(value >> 32) * 0x85EBCA6Bu; }}
{prefix} unsigned word(long long value) {{ return word((unsigned long long)value); }}
{prefix} unsigned word(float value) {{ {float_bits} }}
{prefix} unsigned word(double value) {{ {double_bits} }}
template <class T> struct Made {{
    {prefix} static T of(unsigned h) {{ return T(h); }}
}};
template <> struct Made<long long> {{
    {prefix} static long long of(unsigned h) {{ return (long long)(h * 0x9E3779B97F4A7C15ull); }}
}};
template <> struct Made<unsigned long long> {{
    {prefix} static unsigned long long of(unsigned h) {{ return h * 0x9E3779B97F4A7C15ull; }}
}};
template <> struct Made<float> {{
    {prefix} static float of(unsigned h) {{ return float(h >> 8) / 16777216.0f; }}
}};
template <> struct Made<double> {{
    {prefix} static double of(unsigned h) {{ return double(h) / 4294967296.0; }}
}};
// What falls to element i of n of a vector: its element i, or every n-th from i on; a short one is taken round again.
template <class T> {prefix} unsigned taken(unsigned h, const T* vector, unsigned long long length,
                                           unsigned long long i, unsigned long long n) {{
    if (length <= n) return mixed(h, word(vector[i % length]));
    for (; i < length; i += n) h = mixed(h, word(vector[i]));
    return h;
}}
"""
_ON_DEVICE = {"prefix": "__device__ __forceinline__", "float_bits": "return __float_as_uint(value);"}
_ON_HOST = {"prefix": "inline", "float_bits": "unsigned bits; std::memcpy(&bits, &value, sizeof bits); return bits;"}
_CONVERSIONS = {
    "device": elements.CONVERSIONS.format(**_ON_DEVICE, bits_float="return __uint_as_float(bits);"),
    "host": elements.CONVERSIONS.format(
        **_ON_HOST, bits_float="float value; std::memcpy(&value, &bits, sizeof value); return value;"
    ),
}
_DEVICE_HASH = _HASH.format(**_ON_DEVICE, double_bits="return word((unsigned long long)__double_as_longlong(value));")
_HOST_HASH = "#include <cmath>\n#include <cstring>\n" + _HASH.format(
    **_ON_HOST, double_bits="unsigned long long bits; std::memcpy(&bits, &value, sizeof bits); return word(bits);"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """How a kernel is called: source and entry, scalars behind the pointers, and the shape of a launch."""

    source: str
    entry: str
    scalars: tuple[Argument, ...] = ()
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0

    def call(self, name: str, arguments: tuple[Argument, ...], *, device: bool, stream: int = 0) -> Launch | HostCall:
        """A step that calls it."""
        if not device:
            return HostCall(name=name, source=self.source, entry=self.entry, arguments=arguments, stream=stream)
        return Launch(
            name=name,
            source=self.source,
            entry=self.entry,
            grid=self.grid,
            block=self.block,
            shared_bytes=self.shared_bytes,
            arguments=arguments,
            stream=stream,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """All texts of a graph, and the entry of each kernel (by name)."""

    sources: tuple[Source, ...]
    entries: dict[str, Entry]


def called(script: Script) -> Generated:
    """What a script calls: the graph's own kernels, but in a loop."""
    graph = script.graph
    return code(graph if script.calls is graph.kernels else replace(graph, kernels=script.calls))


def code(graph: Graph) -> Generated:
    """The sources of a graph: one for what is generated on each side, one for each text of the user's and side."""
    return graph.kept("code", _code)


def _code(graph: Graph) -> Generated:
    texts: dict[tuple[str, str], str] = {}  # (side, entry) -> its text
    own: dict[tuple[str, str], list[str]] = {}  # (side, user's text) -> its entries
    entries: dict[str, Entry] = {}
    fused: dict[str, Source] = {}
    numbers: dict[Source, int] = {}
    for kernel in graph.kernels:
        body = kernel.body
        if isinstance(body, Text):
            names = own.setdefault((kernel.on, body.text), [])
            if body.entry not in names:
                names.append(body.entry)
            source = f"{kernel.on}_{list(own).index((kernel.on, body.text))}"
            entries[kernel.name] = Entry(
                source=source,
                entry=body.entry,
                scalars=_words(body.values),
                grid=body.grid,
                block=body.block,
                shared_bytes=body.shared_bytes,
            )
            continue
        if isinstance(body, FusedBody):  # under a name of its own, which all iterations of a loop share
            launch, source_of = body.fragment.launch, body.fragment.source
            name = f"fused_{numbers.setdefault(source_of, len(numbers))}"
            scalars = tuple(each for each in launch.arguments if not isinstance(each, Pointer))
            entries[kernel.name] = Entry(source=name, entry=launch.entry, scalars=scalars)
            fused[name] = replace(source_of, name=name)
            continue
        made = _mix(graph, kernel) if isinstance(body, Mix) else _formula(graph, kernel, body)
        entries[kernel.name] = made[0]
        texts.setdefault((kernel.on, made[0].entry), made[1])
    sources = []
    for side, kind, head in (("device", SourceKind.DEVICE, _DEVICE_HASH), ("host", SourceKind.HOST, _HOST_HASH)):
        generated = {entry: text for (on, entry), text in sorted(texts.items()) if on == side}
        if generated:
            texts_here = "\n".join(generated.values())
            if any(f"_{each}(" in texts_here for each in elements.IN_FLOAT):
                head += _CONVERSIONS[side]
            text = f"// Kernels of {graph.name} on the {side}.\n{head}\n{texts_here}"
            sources.append(Source(name=f"{side}_kernels", kind=kind, text=text, entries=tuple(generated)))
    for number, ((on, text), names) in enumerate(own.items()):
        kind = SourceKind.DEVICE if on == "device" else SourceKind.HOST
        sources.append(Source(name=f"{on}_{number}", kind=kind, text=text, entries=tuple(names)))
    return Generated(sources=(*sources, *fused.values()), entries=entries)


def at_rows(graph: Graph, kernel: GraphKernel, how: RowWise, rows: int, entry: Entry) -> Entry:
    """How a kernel is called for a chunk: the same entry, with the lengths and the grid of so many rows (or elements,
    where no rows are declared)."""
    if isinstance(kernel.body, Text):
        at = row_wise.at_rows(graph, kernel, how, rows)
        return replace(entry, scalars=_words(at.values), grid=at.grid, shared_bytes=at.shared_bytes)
    assert not isinstance(kernel.body, FusedBody)  # which is never cut
    reads, writes = kernel.read_operands, kernel.write_operands
    own = {name: replace(graph.operand(name), name=name) for name in (*reads, *writes)}
    chunk = replace(
        graph,
        vectors=tuple(replace(each, elements=rows) if name in how.split else each for name, each in own.items()),
        cut=(),
        runs=(),
    )
    bare = replace(kernel, reads=reads, writes=writes, passed=((), ()))
    made = _mix(chunk, bare) if isinstance(kernel.body, Mix) else _formula(chunk, bare, kernel.body)
    return replace(entry, scalars=made[0].scalars, grid=made[0].grid)


def _words(values: Sequence[int]) -> tuple[Argument, ...]:
    return tuple(Scalar(dtype="int32", value=each) for each in values)


def _blocks(elements: int) -> tuple[int, int, int]:
    return (least(MOST_BLOCKS, ceil_div(elements, BLOCK)), 1, 1)


def _parameters(reads: Sequence[str], writes: Sequence[str], scalars: Sequence[str]) -> str:
    pointers = [f"const {each}* r{number}" for number, each in enumerate(reads)]
    pointers += [f"{each}* w{number}" for number, each in enumerate(writes)]
    return ", ".join([*pointers, *scalars])


# --- the default ----------------------------------------------------------------------------------------


def _mix(graph: Graph, kernel: GraphKernel) -> tuple[Entry, str]:
    """The entry depends on types only, so kernels share it; lengths and the kernel's own number are arguments."""
    reads = [graph.operand(name) for name in kernel.read_operands]
    writes = [graph.operand(name) for name in kernel.write_operands]
    equal = len({each.elements for each in writes}) == 1
    types = ["_".join(each.dtype for each in side) or "none" for side in (reads, writes)]
    side = "" if kernel.device else "host_"
    name = f"{side}mix_{types[0]}_to_{types[1]}" + ("" if equal else "_each")
    scalars = [
        *(Scalar(dtype="uint64", value=each.elements) for each in (*reads, *writes)),
        Scalar(dtype="uint32", value=int(text_key(kernel.origin or kernel.name)[:8], 16)),
    ]
    entry = Entry(
        source=f"{kernel.on}_kernels",
        entry=name,
        scalars=tuple(scalars),
        grid=_blocks(most(*(each.elements for each in writes))),
        block=(BLOCK, 1, 1),
    )
    return entry, _mix_text(
        kernel.device, name, tuple(each.dtype for each in reads), tuple(each.dtype for each in writes)
    )


@functools.lru_cache(maxsize=512)
def _mix_text(device: bool, name: str, reads: tuple[str, ...], writes: tuple[str, ...]) -> str:
    """Of types alone: a graph of ten thousand kernels has few different ones."""
    equal = not name.endswith("_each")
    lengths = [f"unsigned long long {side}{number}" for side, many in (("n", reads), ("m", writes))
               for number in range(len(many))]  # fmt: skip
    parameters = _parameters([stored(each) for each in reads], [stored(each) for each in writes],
                             [*lengths, "unsigned seed"])  # fmt: skip
    text, body = _function(device, name, parameters)
    inner = _each(body, device, "m0") if equal else body
    for j, each in enumerate(writes):
        inner = inner if equal else _each(body, device, f"m{j}")
        inner.line(f"unsigned h{j} = mixed(seed, {j + 1}u);")
        inner.lines(*(f"h{j} = taken(h{j}, r{k}, n{k}, i, m{j});" for k in range(len(reads))))
        if not equal:
            inner.line(_made(j, each))
    if equal:
        # Everything is read before anything is written: an output may be stored where an input was.
        inner.lines(*(_made(j, each) for j, each in enumerate(writes)))
    return text.text()


def _made(j: int, dtype: str) -> str:
    return f"w{j}[i] = {elements.made(dtype, f'h{j}')};"


def _function(device: bool, name: str, parameters: str) -> tuple[Statements, Statements]:
    """A function, and its empty body."""
    text = Statements()
    return text, text.block(f'extern "C" {"__global__ " if device else ""}void {name}({parameters})')


def _each(body: Statements, device: bool, count: str) -> Statements:
    """A loop over elements: a thread takes every so many of them, the host all."""
    if device:
        return body.block(
            f"for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < {count};\n"
            "     i += (unsigned long long)gridDim.x * blockDim.x)"
        )
    return body.block(f"for (unsigned long long i = 0; i < {count}; ++i)")


# --- formulas -------------------------------------------------------------------------------------------


def _formula(graph: Graph, kernel: GraphKernel, body: Formula) -> tuple[Entry, str]:
    operands = [(whole_name(each), graph.operand(each)) for each in kernel.read_operands]
    reads = dict(operands)
    writes = [graph.operand(each) for each in kernel.write_operands]
    parsed = [formula.parse(text) for text in body.texts]
    lengths = [
        most(1, *(reads[each].elements for each in found.names)) if found.summed else output.elements
        for found, output in zip(parsed, writes, strict=True)
    ]
    entry = Entry(
        source=f"{kernel.on}_kernels",
        entry=f"formula_{kernel.origin or kernel.name}",
        scalars=tuple(Scalar(dtype="uint64", value=each) for each in lengths),
        grid=(1, 1, 1) if any(each.summed for each in parsed) else _blocks(most(*lengths)),
        block=(formula.LANES, 1, 1),
    )
    said = zip(kernel.write_operands, body.texts, strict=True)
    comments = [f"// {kernel.origin or kernel.name}: {written} = {text}\n" for written, text in said]
    text = _formula_text(kernel.device, entry.entry, operands, writes, parsed, one_loop=len(set(lengths)) == 1)
    return entry, "".join([*comments, text])


def _formula_text(
    device: bool,
    name: str,
    operands: Sequence[tuple[str, Vector]],
    writes: Sequence[Vector],
    parsed: Sequence[ParsedFormula],
    *,
    one_loop: bool,
) -> str:
    """`one_loop`: outputs are as long as each other; what one of them overwrites in place, all have read."""
    places = {}  # what each name of a formula is in the text: its element i, or its only one
    for k, (each, read) in enumerate(operands):
        element = f"r{k}[i]" if read.elements > 1 else f"r{k}[0]"
        places[each] = f"from_{read.dtype}({element})" if read.dtype in elements.IN_FLOAT else element
    inputs, results = [stored(each.dtype) for _, each in operands], [stored(each.dtype) for each in writes]
    counts = [f"unsigned long long m{j}" for j in range(len(writes))]
    text, inner = _function(device, name, _parameters(inputs, results, counts))
    outputs = [
        (j, output.dtype, _printed(found.root, output.dtype, places).code)
        for j, (found, output) in enumerate(zip(parsed, writes, strict=True))
    ]
    if one_loop and not any(each.summed for each in parsed):
        _in_one_loop(inner, device, "m0", outputs)
    else:
        for output, found in zip(outputs, parsed, strict=True):
            if found.summed:
                _summed(inner, device, *output)
            else:
                _in_one_loop(inner, device, f"m{output[0]}", [output])
    return text.text()


def _in_one_loop(body: Statements, device: bool, count: str, outputs: Sequence[tuple[int, str, Code]]) -> None:
    """Outputs (number, type, value) of one length."""
    loop = _each(body, device, count)
    named = [(j, dtype, loop.declare(computed(dtype), f"v{j}", value)) for j, dtype, value in outputs]
    loop.lines(*(_stored(*each) for each in named))


def _stored(j: int, dtype: str, value: Code) -> Code:
    return cpp("w{}[i] = to_{}({});", j, dtype, value) if dtype in elements.IN_FLOAT else cpp("w{}[i] = {};", j, value)


def _summed(body: Statements, device: bool, j: int, dtype: str, value: Code) -> None:
    """A sum in one order on both sides: 256 lanes, each every 256th element, then the lanes pairwise."""
    ctype = computed(dtype)
    whole = f"to_{dtype}(lane{j}[0])" if dtype in elements.IN_FLOAT else f"lane{j}[0]"
    lanes = formula.LANES
    if device:
        body.line(f"__shared__ {ctype} lane{j}[{lanes}];")
        body.line(f"{ctype} part{j} = 0;")
        body.line(cpp("for (unsigned long long i = threadIdx.x; i < m{0}; i += {1}) part{0} += {2};", j, lanes, value))
        body.lines(f"lane{j}[threadIdx.x] = part{j};", "__syncthreads();")
        halves = body.block(f"for (unsigned half = {lanes // 2}; half > 0; half /= 2)")
        halves.line(f"if (threadIdx.x < half) lane{j}[threadIdx.x] += lane{j}[threadIdx.x + half];")
        halves.line("__syncthreads();")
        body.line(f"if (threadIdx.x == 0) w{j}[0] = {whole};")
        return
    body.line(f"{ctype} lane{j}[{lanes}] = {{}};")
    body.line(cpp("for (unsigned long long i = 0; i < m{0}; ++i) lane{0}[i % {1}] += {2};", j, lanes, value))
    body.line(f"for (unsigned half = {lanes // 2}; half > 0; half /= 2)")
    body.line(f"    for (unsigned t = 0; t < half; ++t) lane{j}[t] += lane{j}[t + half];")
    body.line(f"w{j}[0] = {whole};")


def _printed(node: Node, dtype: str, places: Mapping[str, str]) -> Term:
    """A formula in the arithmetic of a type; `places`: vector -> the text of its element."""
    ctype = computed(dtype)
    if isinstance(node, Literal):
        if isinstance(node.value, int):
            return Term(literal(node.value, dtype))
        return cast(ctype, atom(node.text))
    if isinstance(node, Name):
        return cast(ctype, atom(places[node.name]))
    operands = [_printed(each, dtype, places) for each in node.operands]
    match node.operator, operands:
        case "-", [a]:
            return prefix("-", a)
        case "min" | "max", [a, b]:
            return choice(binary("<" if node.operator == "min" else ">", a, b), a, b)
        case "abs", [a]:
            return choice(binary("<", a, Term(literal(0, dtype))), prefix("-", a), a)
        case "sqrt", [a]:
            return cast(ctype, Term(call("sqrt", cast("double", a).code)))
    return binary(node.operator, *operands)
