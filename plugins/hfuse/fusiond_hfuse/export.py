"""What a user needs to call a fused kernel from their own program, for other sizes too.

fused.cu        the source
fused.h         for C++: the sizes, and the grid, the shared bytes and the added arguments worked out from them; under
                nvcc also a function that launches it
launch.py       the same for Python: launch(arguments, sizes, stream)
README.txt      how the pieces go together

Where several launches came out of it (three kernels or more), each fused one has its own fused_ac.cu, fused_ac.h and
fused_ac.py, and README.txt says in which order they go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from fusiond.expressions import Call, Expression, Literal, Name, Node
from fusiond.program import DTYPES, FillStep, Launch, Program, Source
from fusiond_hfuse import fuse
from fusiond_hfuse.graph import Argument, Group, Plan, Slot, buffers_among

_NUMPY = {"bool": "bool_"}


def files(group: Group, plan: Plan, program: Program, name: str = "fused") -> Mapping[str, str]:
    """Name -> text of every file for one fused launch: the one whose source has this name."""
    source = program.source(name)
    launch = next(step for step in program.steps if isinstance(step, Launch) and step.source == name)
    alone = name == "fused"
    found = {
        f"{name}.cu": source.text,
        f"{name}.h": _header(group, plan, launch, source),
        "launch.py" if alone else f"{name}.py": _module(group, plan, name),
    }
    return {**found, "README.txt": _readme(group, plan, source)} if alone else found


def composition(group: Group, groups: tuple[str, ...], program: Program) -> Mapping[str, str]:
    """What belongs to several launches as a whole: the sources of the kernels that stay alone, and the README."""
    alone = [source for source in program.sources if not source.name.startswith("fused_")]
    found = {f"{source.name}.cu": source.text for source in alone}
    how = {"graph": "as one CUDA graph"}.get(program.issue) or (
        "each on a stream of its own" if len({step.stream for step in program.steps}) > 1 else "one after the other"
    )
    lines = [f"{fuse.listed(group.names)} in {len(groups)} launches, {how}:", ""]
    for step in program.steps:
        if isinstance(step, FillStep):
            lines.append(f"  stream {step.stream}  zero {step.buffer}")
        elif isinstance(step, Launch):
            grid, block = (" x ".join(map(str, shape)) for shape in (step.grid, step.block))
            source = program.source(step.source)
            cap = f", at most {source.register_cap} registers" if source.register_cap else ""
            lines.append(
                f"  stream {step.stream}  {step.source}.cu: {step.entry}, grid {grid}, block {block}, "
                f"{step.shared_bytes} bytes of shared memory{cap}"
            )
    lines += [
        "",
        "Each fused launch has a header and a Python module of its own, which work these out for other sizes.",
        "",
    ]
    return {**found, "README.txt": "\n".join(lines)}


# --- fused.h --------------------------------------------------------------------------------------------


def _header(group: Group, plan: Plan, launch: Launch, source: Source) -> str:
    name = source.name
    pointers = [_pointer(slot, argument, plan) for slot in group.slots for argument in _buffers(slot)]
    records = [(slot, each) for slot in group.slots for each in _records(slot)]
    lines = [
        f"// How to launch {launch.entry}, for any sizes. Written by fusiond.",
        "#pragma once",
        "",
        f'#define {name.upper()}_ENTRY "{launch.entry}"',
        f"#define {name.upper()}_BLOCK {plan.threads}",
        f"#define {name.upper()}_REGISTER_CAP {source.register_cap or 0}  // maxrregcount; 0: none",
        "",
        "// At the sizes that were measured:",
        f"#define {name.upper()}_GRID {launch.grid[0]}",
        f"#define {name.upper()}_SHARED_BYTES {launch.shared_bytes}  // dynamic; opt in above 48 KB",
        "",
        "// The arguments of the kernel, in this order:",
        *(f"//   {index:2}  {text}" for index, text in enumerate(_argument_texts(group, plan))),
        "",
        f"namespace {name} {{",
        "",
        *(
            line
            for slot, each in records
            for line in (
                f"// {each.name} of {slot.kernel.name}, as the source has it.",
                f"struct alignas({_alignment(slot, each)}) {_struct(slot, each)} {{",
                f"    unsigned char bytes[{each.bytes}];",
                "};",
                "",
            )
        ),
        "// What the kernels call their sizes; the values are those that were measured.",
        "struct Sizes {",
        *(
            f"    long long {slot.letter}_{size} = {value};"
            for slot in group.slots
            for size, value in sorted(slot.sizes.items())
        ),
        "};",
        "",
        "// What a launch needs, worked out from the sizes.",
        "struct Shape {",
        "    unsigned int grid;",
        "    unsigned int shared_bytes;",
        *(f"    {DTYPES[each.dtype][0]} {slot.letter}_{each.name};" for slot in group.slots for each in _scalars(slot)),
        *(f"    {_struct(slot, each)} {slot.letter}_{each.name};" for slot, each in records),
        *(f"    unsigned int {_hidden(text)};" for text in _hidden_texts(plan)),
        "};",
        "",
        "inline long long floor_div(long long a, long long b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }",
        "inline long long floor_mod(long long a, long long b) { return a - floor_div(a, b) * b; }",
        "inline long long ceil_div(long long a, long long b) { return -floor_div(-a, b); }",
        "inline long long least(long long a, long long b) { return a < b ? a : b; }",
        "inline long long most(long long a, long long b) { return a < b ? b : a; }",
        *([_PUT] if records else []),
        "",
        *_shape_in_c(group, plan),
        "",
        f"}}  // namespace {name}",
        "",
        "#ifdef __CUDACC__",
        f'extern "C" __global__ void {launch.entry}(',
        "    " + ",\n    ".join(_declarations(plan, name)) + ");",
        "",
        f"namespace {name} {{",
        "",
        *_launch_in_c(plan, launch.entry, pointers),
        "",
        f"}}  // namespace {name}",
        "#endif",
    ]
    return "\n".join(lines) + "\n"


_PUT = """\
template <class T> inline void put(unsigned char* place, T value)
{
    const unsigned char* const bytes = reinterpret_cast<const unsigned char*>(&value);
    for (unsigned int i = 0; i < sizeof(T); ++i) place[i] = bytes[i];
}"""


def _buffers(slot: Slot) -> tuple[Argument, ...]:
    """What a launch is handed addresses of: buffers, and what structs point to."""
    return buffers_among(slot.kernel.arguments)


def _scalars(slot: Slot) -> list[Argument]:
    return [each for each in slot.kernel.arguments if each.value is not None and not _null(slot, each)]


def _null(slot: Slot, argument: Argument) -> bool:
    """Whether it is a pointer to nothing."""
    at = slot.kernel.arguments.index(argument)
    return argument.value is not None and slot.kernel.parsed.parameters[at].pointer


def _records(slot: Slot) -> list[Argument]:
    return [each for each in slot.kernel.arguments if each.bytes]


def _alignment(slot: Slot, record: Argument) -> int:
    at = slot.kernel.arguments.index(record)
    return slot.kernel.parsed.parameters[at].alignment


def _struct(slot: Slot, record: Argument) -> str:
    """What the header calls the type of a struct, which only the source can name."""
    return f"Struct_{slot.letter}_{record.name}"


def _identifier(slot: Slot, argument: Argument) -> str:
    """`a_counts`; what a struct points to, `info.parts[0]`, as `a_info_parts_0`."""
    return (
        f"{slot.letter}_{re.sub(r'[^0-9A-Za-z]+', '_', argument.name).strip('_')}"
        if _dotted(argument)
        else (f"{slot.letter}_{argument.name}")
    )


def _dotted(argument: Argument) -> bool:
    return re.fullmatch(r"\w+", argument.name) is None


def _declarations(plan: Plan, name: str) -> list[str]:
    """The kernel's parameters for who does not know the types of the source: C linkage asks for their layout only."""
    found = []
    for each in fuse.parameters(plan):
        rows = re.sub(r"\bfusiond_[a-z]::fusiond_type_\w+\*", "void*", each)
        found.append(re.sub(r"\bfusiond_([a-z])::fusiond_type_(\w+)", rf"{name}::Struct_\1_\2", rows))
    return found


def _pointer(slot: Slot, argument: Argument, plan: Plan) -> str:
    """The declaration of a pointer, as the fused kernel has it."""
    wanted = _identifier(slot, argument)
    if _dotted(argument):
        assert argument.buffer is not None
        const = "const " if argument.buffer.role.value == "input" else ""
        return f"{const}{DTYPES[argument.dtype][0]}* const {wanted}"
    alone = Plan(kind="vertical", sides=(plan.side(slot.letter),))
    return next(each for each in _declarations(alone, "") if each.endswith((f" {wanted}", f"*{wanted}")))


def _hidden_texts(plan: Plan) -> list[str]:
    """The declarations of the numbers that fusing adds to the arguments."""
    return [each for each in fuse.parameters(plan) if each.startswith("const unsigned int fusiond_")]


def _hidden(declaration: str) -> str:
    return declaration.rsplit(" ", 1)[1]


def _shape_in_c(group: Group, plan: Plan) -> Iterator[str]:
    yield "inline Shape shape(const Sizes& sizes)"
    yield "{"
    yield "    Shape found = {};"
    for slot in group.slots:
        yield from _slot_in_c(slot, plan)
    letters = group.letters
    if plan.map == "stride":
        yield f"    found.grid = {plan.blocks};"
        yield "    found.fusiond_blocks = found.grid;"
    elif plan.level == "block":
        yield f"    found.grid = static_cast<unsigned int>({' + '.join(f'{each}_blocks' for each in letters)});"
    else:
        yield f"    found.grid = static_cast<unsigned int>({_nested('most', [f'{each}_blocks' for each in letters])});"
    dynamic = [side.slot.letter for side in plan.by_letter if side.slot.kernel.parsed.uses_dynamic_shared]
    if plan.level == "block":
        shared = _nested("most", [f"{each}_shared" for each in dynamic]) if dynamic else "0"
        yield f"    found.shared_bytes = static_cast<unsigned int>({shared});"
    else:
        yield "    long long end = 0;"
        for letter in dynamic:
            if letter in fuse.offset_letters(plan):
                yield f"    end = ceil_div(end, {fuse.alignment(plan)}) * {fuse.alignment(plan)};"
                yield f"    found.fusiond_{letter}_shared = static_cast<unsigned int>(end);"
            yield f"    end += {letter}_shared;"
        yield "    found.shared_bytes = static_cast<unsigned int>(end);"
    yield "    return found;"
    yield "}"


def _slot_in_c(slot: Slot, plan: Plan) -> Iterator[str]:
    letter = slot.letter
    block = plan.side(letter).shape
    values = [each.value for each in _scalars(slot)]
    values += [member.value for each in _records(slot) for member in each.members if member.target is None]
    texts = [*slot.kernel.grid, *(each for each in values if isinstance(each, Expression))]
    used = {name for each in (*texts, slot.kernel.shared) for name in each.names}
    yield f"    // {slot.kernel.name}"
    lengths = (*slot.kernel.grid, None, None)[:3]
    known = {f"block.{axis}": str(length) for axis, length in zip("xyz", block, strict=True)}
    known |= {name: f"sizes.{letter}_{name}" for name in slot.sizes}
    for axis, length in zip("xyz", lengths, strict=True):
        value = "1" if length is None else cxx(length.root, known)
        if length is not None or f"grid.{axis}" in used:
            yield f"    const long long {letter}_grid_{axis} = {value};"
            if length is not None:
                yield f"    found.fusiond_{letter}_grid_{axis} = static_cast<unsigned int>({letter}_grid_{axis});"
    known |= {f"grid.{axis}": f"{letter}_grid_{axis}" for axis in "xyz"}
    blocks = " * ".join(f"{letter}_grid_{axis}" for axis in fuse.grid_axes(slot))
    yield f"    const long long {letter}_blocks = {blocks};"
    if plan.map == "stride":
        yield f"    static_cast<void>({letter}_blocks);"
    if plan.side(letter).slot.kernel.parsed.uses_dynamic_shared:
        moved = plan.side(letter).slot.kernel.parsed.moved_bytes
        behind = f" + {moved}" if moved else ""  # the static arrays that lie before it
        yield f"    const long long {letter}_shared = {cxx(slot.kernel.shared.root, known)}{behind};"
    for each in _scalars(slot):
        value = cxx(each.value.root, known) if isinstance(each.value, Expression) else repr(each.value)
        yield f"    found.{letter}_{each.name} = static_cast<{DTYPES[each.dtype][0]}>({value});"
    for each in _records(slot):
        place = f"found.{letter}_{each.name}.bytes"
        for offset, byte in enumerate(bytes.fromhex(each.hex)):
            if byte:
                yield f"    {place}[{offset}] = {byte};"
        for member in each.members:
            if member.target is None:
                value = cxx(member.value.root, known) if isinstance(member.value, Expression) else repr(member.value)
                kind = DTYPES[member.dtype or ""][0]
                yield f"    put({place} + {member.offset}, static_cast<{kind}>({value}));  // {member.path}"


def _nested(function: str, values: list[str]) -> str:
    found = values[-1]
    for each in reversed(values[:-1]):
        found = f"{function}({each}, {found})"
    return found


def cxx(node: Node, known: Mapping[str, str]) -> str:
    """An expression as C++; `known` says what stands for each name."""
    if isinstance(node, Literal):
        return f"{node.value}LL" if isinstance(node.value, int) else repr(node.value)
    if isinstance(node, Name):
        return known[node.name]
    operands = [cxx(each, known) for each in node.operands]
    if isinstance(node, Call) and node.operator in ("min", "max"):
        return _nested({"min": "least", "max": "most"}[node.operator], operands)
    functions = {"ceil_div": "ceil_div", "//": "floor_div", "%": "floor_mod"}
    if node.operator in functions:
        return f"{functions[node.operator]}({', '.join(operands)})"
    if node.operator == "negate":
        return f"(-{operands[0]})"
    return f"({operands[0]} {node.operator} {operands[1]})"


def _launch_in_c(plan: Plan, entry: str, pointers: list[str]) -> Iterator[str]:
    passed = []
    for side in plan.by_letter:
        letter = side.slot.letter
        passed += [
            "nullptr"
            if _null(side.slot, each)
            else f"{letter}_{each.name}"
            if each.buffer is not None
            else f"found.{letter}_{each.name}"
            for each in side.slot.kernel.arguments
        ]
    passed += [f"found.{_hidden(text)}" for text in _hidden_texts(plan)]
    parameters = [*pointers, "const Sizes& sizes = Sizes()", "cudaStream_t stream = nullptr"]
    if plan.assign == "ticket":
        yield "// `fusiond_tickets` is one number of device memory that nobody else uses meanwhile; it is zeroed here."
        parameters.insert(len(pointers), "unsigned int* const fusiond_tickets")
        passed.append("fusiond_tickets")
    yield "inline cudaError_t launch("
    yield "    " + ",\n    ".join(parameters) + ")"
    yield "{"
    pointing = [
        (side.slot, each, member)
        for side in plan.by_letter
        for each in _records(side.slot)
        for member in each.members
        if member.target is not None
    ]
    yield f"    {'' if pointing else 'const '}Shape found = shape(sizes);"
    for slot, each, member in pointing:
        assert member.target is not None
        place = f"found.{slot.letter}_{each.name}.bytes + {member.offset}"
        yield f"    put({place}, {_identifier(slot, member.target)});"
    yield "    cudaError_t problem = cudaSuccess;"
    if plan.assign == "ticket":
        yield "    problem = cudaMemsetAsync(fusiond_tickets, 0, sizeof *fusiond_tickets, stream);"
        yield "    if (problem != cudaSuccess) return problem;"
    yield "    if (found.shared_bytes > 48 * 1024) {"
    yield "        problem = cudaFuncSetAttribute("
    yield f"            {entry}, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(found.shared_bytes));"
    yield "        if (problem != cudaSuccess) return problem;"
    yield "    }"
    yield f"    {entry}<<<found.grid, {plan.threads}, found.shared_bytes, stream>>>("
    yield "        " + ",\n        ".join(passed) + ");"
    yield "    return cudaGetLastError();"
    yield "}"


def _argument_texts(group: Group, plan: Plan) -> Iterator[str]:
    for slot in group.slots:
        for argument in slot.kernel.arguments:
            if argument.bytes:
                yield f"{_struct(slot, argument)} {slot.letter}_{argument.name}"
                continue
            if _null(slot, argument):
                yield f"nullptr for {slot.letter}_{argument.name}"
                continue
            kind = DTYPES[argument.dtype][0] + ("*" if argument.buffer is not None else "")
            meaning = f" = {argument.value.text}" if isinstance(argument.value, Expression) else ""
            yield f"{kind} {slot.letter}_{argument.name}{meaning}"
    for slot in group.slots:
        for axis, length in zip(fuse.grid_axes(slot), slot.kernel.grid, strict=True):
            yield f"unsigned int fusiond_{slot.letter}_grid_{axis} = {length.text}"
    for letter in fuse.offset_letters(plan):
        yield f"unsigned int fusiond_{letter}_shared, behind what comes before, rounded up to {fuse.alignment(plan)}"
    if plan.map == "stride":
        yield "unsigned int fusiond_blocks = the grid"
    if plan.assign == "ticket":
        yield "unsigned int* fusiond_tickets, zero before each launch"


# --- launch.py ------------------------------------------------------------------------------------------


def _module(group: Group, plan: Plan, name: str) -> str:
    names = fuse.listed(group.names)
    buffers = [f"{slot.letter}.{each.name}" for slot in group.slots for each in _buffers(slot)]
    if plan.assign == "ticket":
        buffers.append("tickets")
    module = "launch" if name == "fused" else name
    size = next(iter(_sizes(group)), "n")
    lines = [
        f'"""Launches {names} as one kernel, for any sizes. Written by fusiond; needs NumPy and PyCUDA.',
        "",
        f"    import {module}",
        f"    kernel = {module}.load('{name}.cubin')",
        f"    {module}.launch(kernel, {{{buffers[0]!r}: device_pointer, ...}}, {{{size!r}: 1000000}}, stream=None)",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "import numpy as np",
        "",
        f"ENTRY = {fuse.entry_name(plan)!r}",
        f"BLOCK = ({plan.threads}, 1, 1)",
        f"BUFFERS = {buffers!r}",
        f"SIZES = {_sizes(group)!r}",
        "",
        "",
        "def _ceil_div(a: int, b: int) -> int:",
        "    return -(-a // b)",
        "",
        "",
    ]
    if any(_records(slot) for slot in group.slots):
        lines += [f"_STRUCTS = {_structs(group)!r}", "", ""]
        lines += [
            "def _record(size, members):",
            "    data = bytearray(size)",
            "    for offset, value in members:",
            "        data[offset : offset + value.nbytes] = value.tobytes()",
            "    return np.frombuffer(bytes(data), np.dtype((np.void, size)))[0]",
            "",
            "",
            _PADDED,
            "",
            "",
        ]
    for slot in group.slots:
        lines += [*_slot_function(slot, plan), "", ""]
    lines += [*_shape_function(group, plan), "", "", *_launch_functions(group, plan)]
    return "\n".join(lines) + "\n"


def _sizes(group: Group) -> dict[str, int]:
    return {f"{slot.prefix}.{name}": value for slot in group.slots for name, value in sorted(slot.sizes.items())}


_PADDED = """\
def _pointed(name, value, arguments):
    for offset, buffer in _STRUCTS.get(name, (0, ()))[1]:
        data = bytearray(value.tobytes())
        data[offset : offset + 8] = int(arguments[buffer]).to_bytes(8, 'little')
        value = np.frombuffer(bytes(data), value.dtype)[0]
    return value


def _padded(passed):
    # PyCUDA aligns numbers, and puts structs right behind what comes before.
    alignments = [_STRUCTS[name][0] if name in _STRUCTS else 0 for name in _ORDER]
    found, end = [], 0
    for at, value in enumerate(passed):
        alignment = at < len(alignments) and alignments[at] or value.dtype.itemsize
        gap = -end % alignment
        if gap and at < len(alignments) and alignments[at]:
            found.append(np.void(bytes(gap)))
        found.append(value)
        end += gap + value.dtype.itemsize
    return found"""


def _structs(group: Group) -> dict[str, tuple[int, list[tuple[int, str]]]]:
    """Name of each struct -> its alignment, and (offset, buffer) of each pointer in it."""
    return {
        f"{slot.letter}.{each.name}": (
            _alignment(slot, each),
            [(member.offset, f"{slot.letter}.{member.target.name}") for member in each.members if member.target],
        )
        for slot in group.slots
        for each in _records(slot)
    }


def _slot_function(slot: Slot, plan: Plan) -> Iterator[str]:
    kernel = slot.kernel
    block = plan.side(slot.letter).shape
    yield f"def _{slot.letter}(sizes):"
    yield f'    """Grid, shared bytes and scalars of {slot.kernel.name}."""'
    for name in sorted(slot.sizes):
        yield f"    n_{name} = sizes[{f'{slot.prefix}.{name}'!r}]"
    yield f"    block_x, block_y, block_z = {block}"
    lengths = ", ".join(python(each.root) for each in kernel.grid)
    yield f"    grid = ({lengths}{',' if len(kernel.grid) == 1 else ''})"
    yield "    grid_x, grid_y, grid_z = (*grid, 1, 1)[:3]"
    parsed = plan.side(slot.letter).slot.kernel.parsed
    shared = python(kernel.shared.root) if parsed.uses_dynamic_shared else "0"
    shared += f" + {parsed.moved_bytes}" if parsed.moved_bytes else ""  # the static arrays that lie before it
    yield f"    shared = {shared}"
    yield "    scalars = {"
    for argument in kernel.arguments:
        if argument.buffer is None:
            yield f"        {argument.name!r}: {_scalar(argument)},"
    yield "    }"
    yield "    return grid, grid_x * grid_y * grid_z, shared, scalars"


def _scalar(argument: Argument) -> str:
    if argument.hex:
        return f"_record({argument.bytes}, [(0, np.frombuffer(bytes.fromhex({argument.hex!r}), np.uint8))])"
    if argument.members:
        members = ", ".join(
            f"({each.offset}, {_number(each.value, each.dtype or '')})"
            for each in argument.members
            if each.target is None
        )
        return f"_record({argument.bytes}, [{members}])"
    assert argument.value is not None
    return _number(argument.value, argument.dtype)


def _number(given: Expression | float, dtype: str) -> str:
    value = python(given.root) if isinstance(given, Expression) else repr(given)
    return f"np.{_NUMPY.get(dtype, dtype)}({value})"


def python(node: Node) -> str:
    """An expression as Python: sizes become n_NAME, `block.x` becomes block_x."""
    if isinstance(node, Literal):
        return repr(node.value)
    if isinstance(node, Name):
        return node.name.replace(".", "_") if "." in node.name else f"n_{node.name}"
    operands = [python(each) for each in node.operands]
    if isinstance(node, Call) and node.operator in ("min", "max"):
        return f"{node.operator}({', '.join(operands)})" if len(operands) > 1 else operands[0]
    if node.operator == "ceil_div":
        return f"_ceil_div({', '.join(operands)})"
    if node.operator == "negate":
        return f"(-{operands[0]})"
    return f"({operands[0]} {node.operator} {operands[1]})"


def _shape_function(group: Group, plan: Plan) -> Iterator[str]:
    letters = group.letters
    yield "def shape(sizes):"
    yield '    """(grid, block, dynamic shared bytes, scalar and hidden arguments) at these sizes."""'
    yield "    sizes = {**SIZES, **sizes}"
    for letter in letters:
        yield f"    {letter}_grid, {letter}_blocks, {letter}_shared, {letter}_scalars = _{letter}(sizes)"
    yield f"    hidden = [{', '.join(f'*{letter}_grid' for letter in letters)}]"
    if plan.level == "block":
        yield f"    shared = max({', '.join(f'{letter}_shared' for letter in letters)})"
    else:
        yield "    shared = 0"
        for side in plan.by_letter:
            letter = side.slot.letter
            if not side.slot.kernel.parsed.uses_dynamic_shared:
                continue
            if letter in fuse.offset_letters(plan):
                yield f"    shared = _ceil_div(shared, {fuse.alignment(plan)}) * {fuse.alignment(plan)}"
                yield "    hidden.append(shared)"
            yield f"    shared += {letter}_shared"
    counts = ", ".join(f"{letter}_blocks" for letter in letters)
    if plan.map == "stride":
        yield f"    grid = {plan.blocks}"
        yield "    hidden.append(grid)"
    else:
        yield f"    grid = {'sum' if plan.level == 'block' else 'max'}(({counts}))"
    yield f"    scalars = {{f'{letters[0]}.{{name}}': value for name, value in {letters[0]}_scalars.items()}}"
    for letter in letters[1:]:
        yield f"    scalars.update({{f'{letter}.{{name}}': value for name, value in {letter}_scalars.items()}})"
    yield "    return (grid, 1, 1), BLOCK, shared, scalars, [np.uint32(each) for each in hidden]"


def _launch_functions(group: Group, plan: Plan) -> Iterator[str]:
    order = [f"{slot.letter}.{each.name}" for slot in group.slots for each in slot.kernel.arguments]
    yield f"_ORDER = {order!r}"
    yield ""
    yield ""
    yield "def load(cubin):"
    yield '    """The kernel of a built file; a CUDA context must be current."""'
    yield "    import pycuda.driver as cuda"
    yield ""
    yield "    return cuda.module_from_file(str(cubin)).get_function(ENTRY)"
    yield ""
    yield ""
    if plan.assign == "ticket":
        yield "def _zero(pointer, stream):"
        yield "    import pycuda.driver as cuda"
        yield ""
        yield "    cuda.memset_d32_async(int(pointer), 0, 1, stream)"
        yield ""
        yield ""
    yield "def launch(kernel, arguments, sizes, stream=None):"
    yield '    """Enqueue it. `arguments`: a device pointer for each name of BUFFERS. Sizes left out: as in SIZES."""'
    yield "    missing = [name for name in BUFFERS if name not in arguments]"
    yield "    if missing:"
    yield "        raise KeyError(f'no device pointer for {missing}')"
    yield "    grid, block, shared, scalars, hidden = shape(sizes)"
    yield "    passed = [np.uintp(int(arguments[name])) if name in BUFFERS else scalars[name] for name in _ORDER]"
    structs = any(_records(slot) for slot in group.slots)
    if structs:
        yield "    passed = [_pointed(name, value, arguments) for name, value in zip(_ORDER, passed)]"
    yield "    passed += hidden"
    if plan.assign == "ticket":
        yield "    _zero(arguments['tickets'], stream)  # one number of device memory that nobody else uses meanwhile"
        yield "    passed.append(np.uintp(int(arguments['tickets'])))"
    if structs:
        yield "    passed = _padded(passed)"
    yield "    if shared > 48 * 1024:"
    yield "        import pycuda.driver as cuda"
    yield ""
    yield "        kernel.set_attribute(cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)"
    yield "    kernel(*passed, grid=grid, block=block, shared=shared, stream=stream)"


# --- README.txt -----------------------------------------------------------------------------------------


def _readme(group: Group, plan: Plan, source: Source) -> str:
    names = fuse.listed(group.names)
    build = [
        "nvcc",
        "-cubin",
        "-arch=sm_90",
        *source.flags,
        *([f"-maxrregcount={source.register_cap}"] if source.register_cap else []),
        "fused.cu",
        "-o fused.cubin",
    ]
    sides = "\n".join(
        f"  {side.slot.letter}  {side.slot.kernel.name}: a block of {' x '.join(map(str, side.shape))}"
        for side in plan.sides
    )
    ways = {"block": f"{plan.kind} by blocks, {plan.assign}"}
    return f"""\
{names}, fused ({ways.get(plan.level, plan.kind)}) into the kernel {fuse.entry_name(plan)}.

{sides}

Build it for your GPU:

    {" ".join(build)}

From C++: include fused.h, compile fused.cu beside your program, and call fused::launch(pointers, sizes, stream).
From Python: launch.py works all of that out for any sizes, with the cubin.

The block shapes above were chosen for the sizes in fused.h; for others the kernel is right, but may not be the fastest.
{_sizes_note(group)}{_blocks_note(plan)}{_variables_note(source)}\
Fusing is right only for kernels that are independent: none may read what another writes.
"""


def _variables_note(source: Source) -> str:
    names = ", ".join(source.symbols)
    return f"Before a launch your program sets these variables of the source: {names}.\n" if names else ""


def _blocks_note(plan: Plan) -> str:
    return (
        f"{plan.blocks} blocks are launched, whatever the sizes: a number for this very GPU.\n" if plan.blocks else ""
    )


def _sizes_note(group: Group) -> str:
    """A warning where a macro was worked out from sizes: such a source is for those sizes only."""
    fixed = [
        f"{slot.prefix}.{name}"
        for slot in group.slots
        for _, value in slot.kernel.defines
        if isinstance(value, Expression)
        for name in sorted(value.names & set(slot.sizes))
    ]
    if not fixed:
        return ""
    names = ", ".join(dict.fromkeys(fixed))
    return f"Macros in fused.cu were worked out from {names}: keep these as they are in fused.h.\n"
