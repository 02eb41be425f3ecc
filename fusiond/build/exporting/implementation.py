"""The C++ file of an export: it computes grids, offsets and scalars from the sizes and issues the steps through the
CUDA runtime API. Kernels come from the adapters; parts.py holds what does not depend on the Program."""

from fusiond.build.exporting import cxx, layout, parts
from fusiond.build.exporting.adapters import getter, is_ptx, space
from fusiond.build.exporting.header import caller_arenas, signature
from fusiond.build.exporting.layout import Giver
from fusiond.build.exporting.steps import StepWriter, refuse
from fusiond.model.codegen.statements import Statements
from fusiond.model.program import Buffer, Program, homes


def implementation(program: Program, header: str) -> str:
    """The text of the file; `header` is the header's name."""
    names = cxx.CxxNames(program)
    writer = StepWriter(program, names)
    enqueue = _enqueue(program, writer)
    standard = ("algorithm", "cmath", "cstdint", "cstring", "initializer_list", "map", "new", "vector")
    found = [
        f'// Written by fusiond; goes with {header}.\n#include "{header}"',
        "\n".join(f"#include <{each}>" for each in standard),
        parts.TRY,
        _declarations(program),
        f"namespace {space(program)} {{\nnamespace {{",
        cxx.HELPERS + parts.WITHIN,
        "enum { FORKED = -3, HANDED = -2, LAST = -1 };  // events beside those of steps",
        _places(program, names, writer),
        *(text for name, text in parts.HELPERS.items() if name in writer.helpers),
        _check(program, names, writer),
        "}  // namespace",
        parts.STATE,
        enqueue,
        _public(program, names, writer),
        f"}}  // namespace {space(program)}",
    ]
    return "\n\n".join(each.rstrip("\n") for each in found if each) + "\n"


def _declarations(program: Program) -> str:
    text = Statements()
    for source in program.sources:
        for what in ("entry", "symbol") if source.symbols else ("entry",):
            text.line(f'extern "C" const void* {getter(program, source.name, what)}(int index);')
    return text.text()


# --- where buffers are ----------------------------------------------------------------------------------


def _places(program: Program, names: cxx.CxxNames, writer: StepWriter) -> str:
    """A struct with the address of every buffer, and what fills it."""
    text = Statements()
    text.line("/// Where each buffer is.")
    struct = text.block("struct Places", end="};")
    struct.lines(*(f"char* {names.buffers[each.name]} = nullptr;" for each in program.buffers))
    struct.lines(*(f"std::size_t {each} = 0;" for each in names.pitches.values()))
    for kind, where in layout.workspaces(program).items():
        text.lines("", "/// Lays out the scratch memory; the bytes that it takes.")
        body = text.block(
            f"long long lay_out_{kind}([[maybe_unused]] const Sizes& sizes, [[maybe_unused]] char* base,\n"
            "    [[maybe_unused]] Places& at)"
        )
        body.line("long long end = 0;")
        for home, members in homes(program).items():
            # What the caller may leave out has a place, too.
            placed = layout.giver(program, home) is where or members[0].name in layout.optional(program)
            if placed and layout.workspace_of(members[0].memory) is where:
                for each in members:
                    offset = cxx.number(each.offset_bytes, names)
                    body.line(f"at.{names.buffers[each.name]} = base + end + {offset};")
                body.line(f"end += ceil_div({writer.home_bytes(home)}, 256LL) * 256LL;")
        body.line("return end;")
    return text.text()


def _check(program: Program, names: cxx.CxxNames, writer: StepWriter) -> str:
    text = Statements()
    text.line("/// What is wrong with sizes and pointers, in one line; null where nothing is.")
    seams = ", [[maybe_unused]] const Seams& seams" if program.seams else ""
    parameters = f"[[maybe_unused]] const Buffers& buffers, [[maybe_unused]] const Sizes& sizes{seams}"
    body = text.block(f"const char* check({parameters})")
    writer.checks(body)
    free = layout.optional(program)
    for each in program.buffers:
        if layout.is_argument(each) and each.symbol is None and each.name not in free:
            refuse(body, f"!buffers.{names.buffers[each.name]}", f"the {each.role} {each.name} is null")
    for home in caller_arenas(program):
        first, *others = (each for each in homes(program)[home] if layout.is_argument(each))
        for each in others:
            distance = f"{cxx.number(each.offset_bytes, names)} - {cxx.number(first.offset_bytes, names)}"
            places = (f"reinterpret_cast<const char*>(buffers.{names.buffers[one.name]})" for one in (each, first))
            place = f"place_{names.arenas[home]}"
            said = f"{each.name} does not lie in {home} beside {first.name}; {place} does that"
            refuse(body, f"{' - '.join(places)} != {distance}", said)
    for kind in layout.workspaces(program):
        body.line(f"Places of_{kind};")
        body.line(f"const bool wants_{kind} = lay_out_{kind}(sizes, nullptr, of_{kind}) > 0;")
        refuse(body, f"wants_{kind} && !buffers.{kind}", f"{kind} is null; it must have {kind}_bytes(sizes)")
        unaligned = f"reinterpret_cast<std::uintptr_t>(buffers.{kind}) % 256 != 0"
        refuse(body, unaligned, f"{kind} must begin at a multiple of 256 bytes")
    for seam in program.seams:
        name = names.seams[seam.name]
        plain = ", or naive = true for the plain kernel that stands in for it" if seam.stand_in else ""
        said = f"seam {seam.name} ({seam.operation}) has no function; set Seams::{name}{plain}"
        refuse(body, f"!seams.{name} && !seams.naive" if seam.stand_in else f"!seams.{name}", said)
    body.line("return nullptr;")
    return text.text()


def _resolve(body: Statements, program: Program, names: cxx.CxxNames) -> None:
    """Statements that fill `at`."""
    body.line("Places at;")
    body.lines(
        *(f"lay_out_{kind}(sizes, static_cast<char*>(buffers.{kind}), at);" for kind in layout.workspaces(program))
    )
    free = layout.optional(program)
    for home, members in homes(program).items():
        if layout.giver(program, home) is not Giver.CALLER:
            continue
        first = next(each for each in members if layout.is_argument(each))
        for each in members:
            name = names.buffers[each.name]
            own = each if layout.is_argument(each) else first
            pointer = f"const_cast<char*>(reinterpret_cast<const char*>(buffers.{names.buffers[own.name]}))"
            if own is not each:
                pointer += f" + ({cxx.number(each.offset_bytes, names)} - {cxx.number(own.offset_bytes, names)})"
            condition = f"if (buffers.{name}) " if each.name in free else ""
            body.line(f"{condition}at.{name} = {pointer};")
    body.lines(*(f"at.{each} = buffers.{each};" for each in names.pitches.values()))
    used = {name for step in program.steps for name in step.touched}
    used |= {name for seam in program.seams for name in (*seam.reads, *seam.writes)}
    for each in program.buffers:
        if each.symbol is None or each.name not in used:
            continue
        block = body.block("")
        symbol, of_ptx = _symbol(program, each)
        if of_ptx:
            block.lines(f"const void* address = {symbol};", "if (!address) return cudaErrorInvalidSymbol;")
        else:
            block.lines("void* address = nullptr;", f"TRY(cudaGetSymbolAddress(&address, {symbol}));")
        address = "const_cast<void*>(address)" if of_ptx else "address"
        block.line(f"at.{names.buffers[each.name]} = static_cast<char*>({address});")


def _symbol(program: Program, buffer: Buffer) -> tuple[str, bool]:
    """What hands a variable out, and whether it is one of PTX: then that is where it is, and not what stands for it."""
    source, _, variable = (buffer.symbol or "").partition(":")
    index = program.source(source).symbols.index(variable)
    return f"{getter(program, source, 'symbol')}({index})", is_ptx(program.source(source))


# --- functions ------------------------------------------------------------------------------------------


def _enqueue(program: Program, writer: StepWriter) -> str:
    text = Statements()
    text.line("/// All steps in the order of the plan.")
    seams = "    [[maybe_unused]] const Seams& seams,\n" if program.seams else ""
    body = text.block(
        "template <class State> static cudaError_t enqueue([[maybe_unused]] State& state, [[maybe_unused]] Places& at,"
        f"\n{seams}    [[maybe_unused]] const Sizes& sizes, cudaStream_t lead, [[maybe_unused]] bool capturing)"
    )
    body.line(f"cudaStream_t streams[{writer.streams}] = {{lead}};")
    for number in range(1, writer.streams):
        body.line(f"TRY(state.stream({number}, &streams[{number}]));")
    if writer.streams > 1:
        body.line(f"TRY(state.fork(streams, {writer.streams}));")
    writer.write(body)
    body.line("return cudaSuccess;")
    return text.text()


def _public(program: Program, names: cxx.CxxNames, writer: StepWriter) -> str:
    text = Statements()
    for kind in layout.workspaces(program):
        body = text.block(f"std::size_t {kind}_bytes(const Sizes& sizes)")
        body.line("Places at;")
        body.line(f"return static_cast<std::size_t>(lay_out_{kind}(sizes, nullptr, at));")
        text.line("")
    for home in caller_arenas(program):
        _arena(text, program, names, writer, home)
    for each in program.buffers:
        if each.symbol is not None:
            _variable(text, program, names, writer, each)
    _launch(text, program, names, writer)
    return text.text()


def _arena(text: Statements, program: Program, names: cxx.CxxNames, writer: StepWriter, home: str) -> None:
    name = names.arenas[home]
    body = text.block(f"std::size_t {name}_bytes([[maybe_unused]] const Sizes& sizes)")
    body.line(f"return static_cast<std::size_t>({writer.home_bytes(home)});")
    text.line("")
    body = text.block(f"void place_{name}(Buffers& buffers, void* base, [[maybe_unused]] const Sizes& sizes)")
    for each in homes(program)[home]:
        if layout.is_argument(each):
            start = f"static_cast<char*>(base) + {cxx.number(each.offset_bytes, names)}"
            member = f"buffers.{names.buffers[each.name]}"
            body.line(f"{member} = reinterpret_cast<{cxx.element(each.dtype)}*>({start});")
    text.line("")


def _variable(text: Statements, program: Program, names: cxx.CxxNames, writer: StepWriter, buffer: Buffer) -> None:
    kind, name, size = cxx.element(buffer.dtype), names.buffers[buffer.name], writer.bytes_of(buffer.name)
    symbol, of_ptx = _symbol(program, buffer)
    more = "[[maybe_unused]] const Sizes& sizes, cudaStream_t stream"
    body = text.block(f"cudaError_t set_{name}(const {kind}* values, {more})")
    if of_ptx:
        to = f"cudaMemcpyAsync(const_cast<void*>({symbol}), values, {size}, cudaMemcpyDefault, stream)"
        back = f"cudaMemcpyAsync(values, {symbol}, {size}, cudaMemcpyDefault, stream)"
    else:
        to = f"cudaMemcpyToSymbolAsync({symbol}, values, {size}, 0, cudaMemcpyDefault, stream)"
        back = f"cudaMemcpyFromSymbolAsync(values, {symbol}, {size}, 0, cudaMemcpyDefault, stream)"
    body.line(f"return {to};")
    text.line("")
    if buffer.role.compared:
        body = text.block(f"cudaError_t get_{name}({kind}* values, {more})")
        body.line(f"return {back};")
        text.line("")


def _launch(text: Statements, program: Program, names: cxx.CxxNames, writer: StepWriter) -> None:
    seams = ", seams" if program.seams else ""
    text.line(parts.MEMBERS)
    body = text.block(f"cudaError_t Launcher::launch({signature(program)})")
    body.line(parts.CHECKED.format(seams=seams))
    body.line(f"TRY(state.make_events({writer.events}));")
    _resolve(body, program, names)
    writer.opt_in(body)
    writer.carve_outs(body)
    body.line(parts.AFTER_LAST)
    if layout.in_graph(program):
        _graph(body, program, names, writer, seams)
    elif program.copies_in_batches:
        body.line(parts.OWN_STREAM.format(seams=seams))
    else:
        body.line(f"TRY(enqueue(state, at{seams}, sizes, stream, false));")
    body.line(parts.LAST)
    text.line("")
    body = text.block(f"cudaError_t launch({signature(program)}, std::string* problem)")
    body.line(parts.OF_THREAD.format(seams=seams))


def _graph(body: Statements, program: Program, names: cxx.CxxNames, writer: StepWriter, seams: str) -> None:
    """Statements that capture the steps when these pointers and sizes come for the first time."""
    key = [f"at.{names.buffers[each.name]}" for each in program.buffers]
    rows = body.block("const std::vector<std::uintptr_t> key =", end="};")
    rows.lines(*(f"reinterpret_cast<std::uintptr_t>({each})," for each in key))
    rows.lines(*(f"static_cast<std::uintptr_t>(at.{each})," for each in names.pitches.values()))
    rows.lines(*(f"static_cast<std::uintptr_t>(sizes.{names.sizes[name]})," for name, _ in program.sizes))
    body.line("auto found = std::find_if(state.graphs.begin(), state.graphs.end(),")
    body.line("                          [&](const State::Graph& each) { return each.key == key; });")
    block = body.block("if (found == state.graphs.end())")
    block.line("// Nothing is loaded or made while a stream is captured.")
    block.line("cudaFuncAttributes loaded;")
    loads = (f"TRY(cudaFuncGetAttributes(&loaded, {writer.kernel(each)}));" for each in program.launches)
    block.lines(*dict.fromkeys(loads), parts.CAPTURE.format(streams=writer.streams, seams=seams))
    body.line("TRY(cudaGraphLaunch(found->executable, stream));")
