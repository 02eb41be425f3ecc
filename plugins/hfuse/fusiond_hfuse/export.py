"""What a user needs to call a fused kernel from their own program, for other sizes too.

fused.cu        the source
fused.h         its launch shape as constants, and its arguments in a comment
launch.py       launch(arguments, sizes, stream): grid, shared bytes and hidden arguments worked out from the sizes
README.txt      how the pieces go together
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fusiond.expressions import Call, Expression, Literal, Name, Node
from fusiond.program import DTYPES, Launch, Program
from fusiond_hfuse import fuse
from fusiond_hfuse.graph import Argument, Pair, Plan, Slot

_NUMPY = {"bool": "bool_"}


def files(pair: Pair, plan: Plan, program: Program) -> Mapping[str, str]:
    """Name -> text of every exported file."""
    (launch,) = program.steps
    assert isinstance(launch, Launch)
    source = program.sources[0]
    return {
        "fused.cu": source.text,
        "fused.h": _header(pair, plan, launch, source.register_cap),
        "launch.py": _module(pair, plan),
        "README.txt": _readme(pair, plan, source.register_cap, source.flags),
    }


# --- fused.h --------------------------------------------------------------------------------------------


def _header(pair: Pair, plan: Plan, launch: Launch, cap: int | None) -> str:
    entry = launch.entry
    lines = [
        f"// How to launch {entry}: constants, and what they were worked out from.",
        "#pragma once",
        "",
        f'#define FUSED_ENTRY "{entry}"',
        f"#define FUSED_BLOCK {plan.threads}",
        f"#define FUSED_REGISTER_CAP {cap or 0}  // maxrregcount; 0: none",
        "",
        "// At the sizes that were measured:",
    ]
    lines += [
        f"//   {slot.prefix}.{name} = {value}" for slot in pair.slots for name, value in sorted(slot.sizes.items())
    ]
    lines += [
        f"#define FUSED_GRID {launch.grid[0]}",
        f"#define FUSED_SHARED_BYTES {launch.shared_bytes}  // dynamic; opt in above 48 KB",
        "",
        "// Arguments, in this order:",
    ]
    lines += [f"//   {index:2}  {text}" for index, text in enumerate(_argument_texts(pair, plan))]
    return "\n".join(lines) + "\n"


def _argument_texts(pair: Pair, plan: Plan) -> Iterator[str]:
    for slot in pair.slots:
        for argument in slot.kernel.arguments:
            kind = DTYPES[argument.dtype][0] + ("*" if argument.buffer is not None else "")
            meaning = f" = {argument.value.text}" if isinstance(argument.value, Expression) else ""
            yield f"{kind} {slot.letter}_{argument.name}{meaning}"
    for slot in pair.slots:
        for axis, length in zip(fuse.grid_axes(slot), slot.kernel.grid, strict=True):
            yield f"unsigned int fusiond_{slot.letter}_grid_{axis} = {length.text}"
    if fuse.uses_offset(plan):
        a = pair.slot("a").kernel.shared.text
        yield f"unsigned int fusiond_b_shared = ({a}), rounded up to {fuse.ARENA_ALIGNMENT}"


# --- launch.py ------------------------------------------------------------------------------------------


def _module(pair: Pair, plan: Plan) -> str:
    names = " and ".join(slot.kernel.name for slot in pair.slots)
    buffers = [f"{slot.letter}.{each.name}" for slot in pair.slots for each in slot.kernel.arguments if each.buffer]
    lines = [
        f'"""Launches {names} as one kernel, for any sizes. Written by fusiond; needs NumPy and PyCUDA.',
        "",
        "    import launch",
        "    kernel = launch.load('fused.cubin')",
        "    launch.launch(kernel, {'a.x': device_pointer, ...}, {'hist.n': 1000000}, stream=None)",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "import numpy as np",
        "",
        f"ENTRY = {fuse.entry_name(plan)!r}",
        f"BLOCK = ({plan.threads}, 1, 1)",
        f"BUFFERS = {buffers!r}",
        f"SIZES = {_sizes(pair)!r}",
        "",
        "",
        "def _ceil_div(a: int, b: int) -> int:",
        "    return -(-a // b)",
        "",
        "",
    ]
    for slot in pair.slots:
        lines += [*_slot_function(slot, plan), "", ""]
    lines += [*_shape_function(pair, plan), "", "", *_launch_functions(pair, plan)]
    return "\n".join(lines) + "\n"


def _sizes(pair: Pair) -> dict[str, int]:
    return {f"{slot.prefix}.{name}": value for slot in pair.slots for name, value in sorted(slot.sizes.items())}


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
    shared = python(kernel.shared.root) if kernel.parsed.uses_dynamic_shared else "0"
    yield f"    shared = {shared}"
    yield "    scalars = {"
    for argument in kernel.arguments:
        if argument.buffer is None:
            yield f"        {argument.name!r}: {_scalar(argument)},"
    yield "    }"
    yield "    return grid, grid_x * grid_y * grid_z, shared, scalars"


def _scalar(argument: Argument) -> str:
    value = python(argument.value.root) if isinstance(argument.value, Expression) else repr(argument.value)
    return f"np.{_NUMPY.get(argument.dtype, argument.dtype)}({value})"


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


def _shape_function(pair: Pair, plan: Plan) -> Iterator[str]:
    yield "def shape(sizes):"
    yield '    """(grid, block, dynamic shared bytes, scalar and hidden arguments) at these sizes."""'
    yield "    sizes = {**SIZES, **sizes}"
    yield "    a_grid, a_blocks, a_shared, a_scalars = _a(sizes)"
    yield "    b_grid, b_blocks, b_shared, b_scalars = _b(sizes)"
    if fuse.uses_offset(plan):
        yield f"    offset = _ceil_div(a_shared, {fuse.ARENA_ALIGNMENT}) * {fuse.ARENA_ALIGNMENT}"
        yield "    shared = offset + b_shared"
    else:
        yield "    shared = a_shared + b_shared"
    yield "    hidden = [*a_grid, *b_grid]" + (" + [offset]" if fuse.uses_offset(plan) else "")
    yield "    scalars = {f'a.{name}': value for name, value in a_scalars.items()}"
    yield "    scalars.update({f'b.{name}': value for name, value in b_scalars.items()})"
    yield "    return (max(a_blocks, b_blocks), 1, 1), BLOCK, shared, scalars, [np.uint32(each) for each in hidden]"


def _launch_functions(pair: Pair, plan: Plan) -> Iterator[str]:
    order = [f"{slot.letter}.{each.name}" for slot in pair.slots for each in slot.kernel.arguments]
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
    yield "def launch(kernel, arguments, sizes, stream=None):"
    yield '    """Enqueue it. `arguments`: a device pointer for each name of BUFFERS. Sizes left out: as in SIZES."""'
    yield "    missing = [name for name in BUFFERS if name not in arguments]"
    yield "    if missing:"
    yield "        raise KeyError(f'no device pointer for {missing}')"
    yield "    grid, block, shared, scalars, hidden = shape(sizes)"
    yield "    passed = [np.uintp(int(arguments[name])) if name in BUFFERS else scalars[name] for name in _ORDER]"
    yield "    if shared > 48 * 1024:"
    yield "        import pycuda.driver as cuda"
    yield ""
    yield "        kernel.set_attribute(cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)"
    yield "    kernel(*passed, *hidden, grid=grid, block=block, shared=shared, stream=stream)"


# --- README.txt -----------------------------------------------------------------------------------------


def _readme(pair: Pair, plan: Plan, cap: int | None, flags: tuple[str, ...]) -> str:
    names = " and ".join(slot.kernel.name for slot in pair.slots)
    build = [
        "nvcc",
        "-cubin",
        "-arch=sm_90",
        *flags,
        *([f"-maxrregcount={cap}"] if cap else []),
        "fused.cu",
        "-o fused.cubin",
    ]
    sides = "\n".join(
        f"  {side.slot.letter}  {side.slot.kernel.name}: a block of {' x '.join(map(str, side.shape))}"
        for side in plan.sides
    )
    return f"""\
{names}, fused ({plan.kind}) into the kernel {fuse.entry_name(plan)}.

{sides}

Build it for your GPU:

    {" ".join(build)}

From C or C++: fused.h has the block, the grid and the shared bytes at the measured sizes, and lists the arguments.
From Python: launch.py works all of that out for any sizes.

The block shapes above were chosen for the sizes in fused.h; for others the kernel is right, but may not be the fastest.
{_sizes_note(pair)}Fusing is right only for kernels that are independent: neither may read what the other writes.
"""


def _sizes_note(pair: Pair) -> str:
    """A warning where a macro was worked out from sizes: such a source is for those sizes only."""
    fixed = [
        f"{slot.prefix}.{name}"
        for slot in pair.slots
        for _, value in slot.kernel.defines
        if isinstance(value, Expression)
        for name in sorted(value.names & set(slot.sizes))
    ]
    if not fixed:
        return ""
    names = ", ".join(dict.fromkeys(fixed))
    return f"Macros in fused.cu were worked out from {names}: keep these as they are in fused.h.\n"
