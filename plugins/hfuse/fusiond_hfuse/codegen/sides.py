"""One side of a fused kernel: its namespace, the function that runs one of its blocks, and the call of it."""

from collections.abc import Iterator

from fusiond.model.language.dtypes import DTYPES
from fusiond_hfuse.analysis.fusion_schedule import FusedSide, FusionSchedule
from fusiond_hfuse.codegen.hidden_arguments import offset_letters, ratio_letters, slice_letters
from fusiond_hfuse.frontend import shadows
from fusiond_hfuse.frontend.fusion_group import FusionSlot
from fusiond_hfuse.frontend.kernel_file import define_values
from fusiond_hfuse.frontend.shadows import SHARED
from fusiond_hfuse.frontend.source_kernel import KernelArgument, KernelParameter, applied

ARENA = "fusiond_arena"


def namespace(side: FusedSide) -> str:
    kernel = side.slot.kernel
    defines = define_values(kernel, side.slot.sizes, side.shape)
    macros = list(dict.fromkeys([*(name for name, _ in defines), *kernel.unit.macros]))
    lines = [
        f"// --- {side.slot.letter}: {kernel.name} " + "-" * (92 - len(kernel.name)),
        "",
        f"namespace fusiond_{side.slot.letter} {{",
        "",
        "// Whatever is not shadowed must not compile: a helper that reads the fused block's index would be wrong.",
        shadows.POISON,
        *_barrier(side),
        "",
    ]
    if macros:
        lines += [*(f'#pragma push_macro("{name}")' for name in macros), ""]
    if defines:
        lines += [*(f"#define {name} {value}".rstrip() for name, value in defines), ""]
    text = applied(kernel.unit.text, kernel.parsed.edits)  # which includes nothing
    edited = "\n".join(line.rstrip(" \t") for line in text.split("\n")).strip("\n")
    lines += [edited, "", *_side(side), ""]
    if macros:
        lines += [*(f'#pragma pop_macro("{name}")' for name in macros), ""]
    lines += [f"}}  // namespace fusiond_{side.slot.letter}", ""]
    return "\n".join(lines)


def _barrier(side: FusedSide) -> Iterator[str]:
    """What a side's body waits at: the hardware's own barrier where the block is this side's alone."""
    yield "struct fusiond_barrier {"
    if side.virtual > 1:
        yield "    unsigned int fusiond_number;  // of the virtual block"
    yield "    __device__ __forceinline__ void operator()() const {"
    calls = [f"FUSIOND_BARRIER({side.barrier + number}, {side.threads});" for number in range(side.virtual)]
    if side.virtual > 1:
        yield "        switch (fusiond_number) {"
        for number, call in enumerate(calls):
            label = "default:" if number == side.virtual - 1 else f"case {number}:"
            yield f"            {label} {call} break;"
        yield "        }"
    else:
        yield f"        {'::__syncthreads();' if side.barrier == 0 else calls[0]}"
    yield "    }"
    yield "};"


def _side(side: FusedSide) -> Iterator[str]:
    """The function that runs one block of a side, given its thread and block counted from 0.

    It stands among the user's macros, hence the names: no `block`, no `n`."""
    kernel = side.slot.kernel
    letter = side.slot.letter
    grid = [f"fusiond_grid_{axis}" for axis in grid_axes(side.slot)]
    number = ["fusiond_virtual"] if side.virtual > 1 else []
    parameters = [f"const unsigned int {each}" for each in ("fusiond_thread", "fusiond_block", *number, *grid)]
    parameters.append(f"void* const {SHARED}")
    parameters += [declaration(argument, parameter, letter) for argument, parameter in signature(side.slot)]
    x, y, z = side.shape
    columns, rows = (*grid, "")[:2]
    passed = [
        _index("fusiond_thread", 1 if y == z == 1 else 2 if z == 1 else 3, str(x), str(y), str(x * y)),
        _index("fusiond_block", len(grid), columns, rows, f"{columns} / {rows}"),
        f"dim3({', '.join(map(str, side.shape))})",
        f"dim3({', '.join(grid)})",
        f"fusiond_barrier{{{''.join(number)}}}",
        SHARED,
    ]
    for argument, parameter in signature(side.slot):
        name = f"{letter}_{argument.name}"
        passed.append(f"static_cast<{_spelled(parameter)}>({name})" if parameter.enumeration else name)
        if parameter.bytes or parameter.records:
            yield f"using fusiond_type_{argument.name} = {_spelled(parameter)};"
    yield "__device__ __forceinline__ void fusiond_side("
    yield "    " + ",\n    ".join(parameters) + ")"
    yield "{"
    yield f"    {kernel.instance}("
    yield "        " + ",\n        ".join(passed) + ");"
    yield "}"


def _index(number: str, axes: int, x: str, y: str, layer: str) -> str:
    """threadIdx or blockIdx from a number over one to three axes, x the fastest; behind a division by `layer` is what
    the third has."""
    if axes == 1:
        return f"make_uint3({number}, 0, 0)"
    return f"make_uint3({number} % {x}, {number} / {x}" + (", 0)" if axes == 2 else f" % {y}, {number} / {layer})")


def grid_axes(slot: FusionSlot) -> str:
    """The axes of a slot's grid that are arguments of the fused kernel: of PTX, those that are no numbers."""
    return "".join(
        axis for axis, length in zip("xyz", slot.kernel.grid, strict=False) if slot.kernel.ptx is None or length.names
    )


def hidden_words(schedule: FusionSchedule) -> list[str]:
    """The numbers that a fused kernel is told behind its members' own arguments, by name and in order."""
    found = [f"{side.slot.letter}_grid_{axis}" for side in schedule.by_letter for axis in grid_axes(side.slot)]
    found += [f"{letter}_shared" for letter in offset_letters(schedule)]
    found += [f"{letter}_ratio" for letter in ratio_letters(schedule)]
    found += [f"{letter}_slice" for letter in slice_letters(schedule)]
    return [*found, "blocks"] if schedule.map == "stride" else found


def trade(schedule: FusionSchedule, side: FusedSide) -> Iterator[str]:
    """PTX by which a side's warpgroups give registers to the block, or wait for such."""
    if side.registers:
        way = "dec" if side.registers == min(each.registers for each in schedule.sides) else "inc"
        yield f"setmaxnreg.{way}.sync.aligned.u32 {side.registers};"


def grid_lengths(slot: FusionSlot) -> tuple[int | None, ...]:
    """The lengths of a slot's grid along x, y and z; None for those that are arguments."""
    told = grid_axes(slot)
    lengths = [
        None if axis in told else length.integer({}) for axis, length in zip("xyz", slot.kernel.grid, strict=False)
    ]
    return (*lengths, 1, 1)[:3]


def signature(slot: FusionSlot) -> list[tuple[KernelArgument, KernelParameter]]:
    return list(zip(slot.kernel.arguments, slot.kernel.parsed.parameters, strict=True))


def _spelled(parameter: KernelParameter) -> str:
    """A parameter's type inside its namespace."""
    return parameter.target.replace("(anonymous namespace)::", "")


def declaration(argument: KernelArgument, parameter: KernelParameter, letter: str) -> str:
    name = f"{letter}_{argument.name}"
    kind = parameter.target
    if parameter.bytes or parameter.records:
        kind = f"fusiond_{letter}::fusiond_type_{argument.name}"
    elif parameter.enumeration:
        kind = DTYPES[parameter.dtype or "int32"].cuda
    if not parameter.pointer:
        return f"const {kind} {name}"
    const = ("const " if parameter.constant else "") + ("volatile " if parameter.volatile else "")
    return f"{const}{kind}* {'__restrict__' if parameter.restrict else 'const'} {name}"


def blocks_of(side: FusedSide) -> str:
    """How many blocks a side has, in the words of the fused kernel."""
    return " * ".join(f"fusiond_{side.slot.letter}_grid_{axis}" for axis in grid_axes(side.slot))


def units_of(side: FusedSide) -> str:
    """How many fused blocks those are."""
    blocks = blocks_of(side)
    return blocks if side.virtual == 1 else f"({blocks} + {side.virtual - 1}) / {side.virtual}"


def work(schedule: FusionSchedule, side: FusedSide, thread: str, block: str, indent: str) -> list[str]:
    """The call of one side's function, one step further in than `indent`."""
    letter = side.slot.letter
    grid = [f"fusiond_{letter}_grid_{axis}" for axis in grid_axes(side.slot)]
    passed = [thread, block, *([f"virtual_{letter}"] if side.virtual > 1 else []), *grid, _place(schedule, side)]
    passed += [f"{letter}_{argument.name}" for argument in side.slot.kernel.arguments]
    return [
        f"{indent}    fusiond_{letter}::fusiond_side(",
        f"{indent}        " + f",\n{indent}        ".join(passed) + ");",
    ]


def _place(schedule: FusionSchedule, side: FusedSide) -> str:
    """Where a side's dynamic shared memory begins."""
    if not side.slot.kernel.parsed.uses_dynamic_shared:
        return "nullptr"
    if side.slot.letter in slice_letters(schedule):
        return f"{ARENA} + virtual_{side.slot.letter} * fusiond_{side.slot.letter}_slice"
    if side.slot.letter in offset_letters(schedule):
        return f"{ARENA} + fusiond_{side.slot.letter}_shared"
    return ARENA
