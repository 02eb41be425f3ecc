"""The C++ file that goes with the header: it computes grids, offsets and scalars from the sizes, and issues the steps
through the CUDA runtime API. No kernel is in it: the adapters hand those out."""

from __future__ import annotations

from fusiond.exporting import cxx, layout
from fusiond.exporting.adapters import getter, space
from fusiond.exporting.header import caller_arenas, has_host_workspace, signature
from fusiond.exporting.layout import Giver
from fusiond.exporting.steps import Writer
from fusiond.program import Copy, CopyBatch, FillStep, Launch, Memory, Pointer, Program

_STATE = """\
struct Launcher::State {
    std::map<int, cudaStream_t> streams;
    std::map<int, cudaEvent_t> events;
    struct Graph {
        std::vector<std::uintptr_t> key;
        cudaGraph_t graph;
        cudaGraphExec_t executable;
    };
    std::vector<Graph> graphs;
    std::string problem;
    cudaStream_t last = nullptr;
    bool launched = false;

    ~State() {
        for (auto& each : graphs) {
            cudaGraphExecDestroy(each.executable);
            cudaGraphDestroy(each.graph);
        }
        for (auto& each : events) cudaEventDestroy(each.second);
        for (auto& each : streams) cudaStreamDestroy(each.second);
    }

    cudaError_t stream(int number, cudaStream_t* found) {
        if (!streams.count(number)) {
            cudaStream_t made = nullptr;
            TRY(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
            streams[number] = made;
        }
        *found = streams[number];
        return cudaSuccess;
    }

    /// Events are made before anything is captured.
    cudaError_t make_events(int count) {
        for (int number = -3; number < count; ++number) {
            if (events.count(number)) continue;
            cudaEvent_t made = nullptr;
            TRY(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
            events[number] = made;
        }
        return cudaSuccess;
    }

    cudaEvent_t event(int number) { return events.at(number); }

    /// Nothing that is enqueued on `after` from here on begins before what is on `before`.
    cudaError_t hand_over(cudaStream_t before, cudaStream_t after, int number) {
        TRY(cudaEventRecord(event(number), before));
        return cudaStreamWaitEvent(after, event(number), 0);
    }

    cudaError_t fork(cudaStream_t* all, int count) {
        for (int i = 1; i < count; ++i) TRY(hand_over(all[0], all[i], FORKED));
        return cudaSuccess;
    }

    cudaError_t join(cudaStream_t* all, int count) {
        for (int i = 1; i < count; ++i) TRY(hand_over(all[i], all[0], FORKED));
        return cudaSuccess;
    }
};
"""

_COPY_BATCH = """\
/// Several copies as one call, in no order among themselves: cudaMemcpyBatchAsync from CUDA 12.8 on. Before that, and
/// while a graph is captured, they are made one by one.
cudaError_t copy_batch(void** targets, const void** sources, std::size_t* lengths, std::size_t count,
                       cudaMemcpyKind kind, cudaStream_t stream, bool capturing) {
#if CUDART_VERSION >= 12080
    if (!capturing) {
        cudaMemcpyAttributes attributes = {};
        attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
        std::size_t first = 0;
#if CUDART_VERSION >= 13000
        return cudaMemcpyBatchAsync(targets, sources, lengths, count, &attributes, &first, 1, stream);
#else
        std::size_t failed = 0;
        return cudaMemcpyBatchAsync(targets, const_cast<void**>(sources), lengths, count, &attributes, &first, 1,
                                    &failed, stream);
#endif
    }
#endif
    (void)capturing;
    for (std::size_t i = 0; i < count; ++i) TRY(cudaMemcpyAsync(targets[i], sources[i], lengths[i], kind, stream));
    return cudaSuccess;
}
"""

_ALLOCATE_HOST = """\
cudaError_t allocate_host(void** base, std::size_t size) {
    *base = ::operator new(size, std::nothrow);
    return *base ? cudaSuccess : cudaErrorMemoryAllocation;
}
"""

_OPT_IN = """\
/// More than 48 KiB of dynamic shared memory must be asked for.
cudaError_t opt_in(const void* kernel, long long shared_bytes) {
    if (shared_bytes <= 48 << 10) return cudaSuccess;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
}
"""

_PUT = """\
template <class T> void put(unsigned char* place, T value) { std::memcpy(place, &value, sizeof(T)); }
"""


def implementation(program: Program, header: str) -> str:
    """The text of the file; `header` is the header's name."""
    names = cxx.Names(program)
    writer = Writer(program, names)
    body = writer.lines()
    text = "\n".join(body)
    parts = [
        f'// Written by fusiond; goes with {header}.\n#include "{header}"',
        "#include <algorithm>\n#include <cstdint>\n#include <cstring>\n#include <initializer_list>\n#include <limits>\n"
        "#include <map>\n#include <new>\n#include <vector>",
        "#define TRY(call)                                \\\n"
        "    do {                                         \\\n"
        "        const cudaError_t status_of = (call);    \\\n"
        "        if (status_of != cudaSuccess) return status_of; \\\n"
        "    } while (0)",
        "\n".join(_declarations(program)),
        f"namespace {space(program)} {{\nnamespace {{",
        cxx.HELPERS + "[[maybe_unused]] inline bool within(long long value, long long low, long long high) {\n"
        "    return low <= value && value <= high;\n}\n",
        "enum { FORKED = -3, HANDED = -2, LAST = -1 };  // events beside those of steps",
        "\n".join(_places(program, names)),
        *[each for call, each in _USED.items() if call in text],
        _OPT_IN if writer.opt_in() else "",
        "\n".join(_check(program, names, writer)),
        "}  // namespace",
        _STATE,
        "\n".join(_enqueue(program, writer, body)),
        "\n".join(_public(program, names, writer)),
        f"}}  // namespace {space(program)}",
    ]
    return "\n\n".join(each.rstrip("\n") for each in parts if each) + "\n"


_USED = {"copy_batch(": _COPY_BATCH, "allocate_host(": _ALLOCATE_HOST, "put(": _PUT}


def _declarations(program: Program) -> list[str]:
    found = []
    for source in program.sources:
        found.append(f'extern "C" const void* {getter(program, source.name, "entry")}(int index);')
        if source.symbols:
            found.append(f'extern "C" const void* {getter(program, source.name, "symbol")}(int index);')
    return found


# --- where buffers are ----------------------------------------------------------------------------------


def _places(program: Program, names: cxx.Names) -> list[str]:
    """A struct with the address of every buffer, and what fills it."""
    lines = ["/// Where each buffer is.", "struct Places {"]
    lines += [f"    char* {names.buffers[each.name]} = nullptr;" for each in program.buffers]
    lines += ["};", ""]
    for where, kind in ((Giver.WORKSPACE, "workspace"), (Giver.HOST_WORKSPACE, "host_workspace")):
        if where is Giver.HOST_WORKSPACE and not has_host_workspace(program):
            continue
        lines += [
            "/// Lays out the scratch memory; the bytes that it takes.",
            f"long long lay_out_{kind}([[maybe_unused]] const Sizes& sizes, [[maybe_unused]] char* base,",
            "    [[maybe_unused]] Places& at) {",
            "    long long end = 0;",
        ]
        for home, members in layout.homes(program).items():
            if _lies_in(program, home, where):
                lines += [
                    f"    at.{names.buffers[each.name]} = base + end + {cxx.number(each.offset_bytes, names)};"
                    for each in members
                ]
                lines.append(f"    end += ceil_div({Writer(program, names).home_bytes(home)}, 256LL) * 256LL;")
        lines += ["    return end;", "}", ""]
    return lines


def _lies_in(program: Program, home: str, where: Giver) -> bool:
    """Whether an allocation has a place in a workspace; what the caller may leave out has one too."""
    if layout.giver(program, home) is where:
        return True
    buffer = layout.homes(program)[home][0]
    side = Giver.WORKSPACE if buffer.memory is Memory.DEVICE else Giver.HOST_WORKSPACE
    return where is side and buffer.name in layout.optional(program)


def _check(program: Program, names: cxx.Names, writer: Writer) -> list[str]:
    lines = [
        "/// What is wrong with sizes and pointers, in one line; null where nothing is.",
        "const char* check([[maybe_unused]] const Buffers& buffers, [[maybe_unused]] const Sizes& sizes"
        + (", [[maybe_unused]] const Seams& seams" if program.seams else "")
        + ") {",
        *writer.checks(),
    ]
    free = layout.optional(program)
    for each in program.buffers:
        if layout.is_argument(each) and each.symbol is None and each.name not in free:
            said = cxx.quoted(f"the {each.role} {each.name} is null")
            lines.append(f"    if (!buffers.{names.buffers[each.name]}) return {said};")
    for home in caller_arenas(program):
        given = [each for each in layout.homes(program)[home] if layout.is_argument(each)]
        first = given[0]
        for each in given[1:]:
            distance = f"{cxx.number(each.offset_bytes, names)} - {cxx.number(first.offset_bytes, names)}"
            said = cxx.quoted(
                f"{each.name} does not lie in {home} beside {first.name}; place_{names.arenas[home]} does that"
            )
            lines.append(
                f"    if (reinterpret_cast<const char*>(buffers.{names.buffers[each.name]}) -"
                f" reinterpret_cast<const char*>(buffers.{names.buffers[first.name]}) != {distance}) return {said};"
            )
    for kind in ("workspace", *(["host_workspace"] if has_host_workspace(program) else [])):
        lines.append(f"    Places of_{kind};")
        lines.append(f"    const bool wants_{kind} = lay_out_{kind}(sizes, nullptr, of_{kind}) > 0;")
        said = cxx.quoted(f"{kind} is null; it must have {kind}_bytes(sizes)")
        lines.append(f"    if (wants_{kind} && !buffers.{kind}) return {said};")
        said = cxx.quoted(f"{kind} must begin at a multiple of 256 bytes")
        lines.append(f"    if (reinterpret_cast<std::uintptr_t>(buffers.{kind}) % 256 != 0) return {said};")
    for seam in program.seams:
        member = f"seams.{names.seams[seam.name]}"
        plain = ", or naive = true for the plain kernel that stands in for it" if seam.stand_in else ""
        said = cxx.quoted(
            f"seam {seam.name} ({seam.operation}) has no function; set Seams::{names.seams[seam.name]}{plain}"
        )
        condition = f"!{member} && !seams.naive" if seam.stand_in else f"!{member}"
        lines.append(f"    if ({condition}) return {said};")
    return [*lines, "    return nullptr;", "}"]


def _resolve(program: Program, names: cxx.Names) -> list[str]:
    """Statements that fill `at`."""
    lines = ["    Places at;", "    lay_out_workspace(sizes, static_cast<char*>(buffers.workspace), at);"]
    if has_host_workspace(program):
        lines.append("    lay_out_host_workspace(sizes, static_cast<char*>(buffers.host_workspace), at);")
    free = layout.optional(program)
    for home, members in layout.homes(program).items():
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
            lines.append(f"    {condition}at.{name} = {pointer};")
    for name in _used_symbols(program):
        lines += [
            "    {",
            "        void* address = nullptr;",
            f"        TRY(cudaGetSymbolAddress(&address, {_symbol(program, name)}));",
            f"        at.{names.buffers[name]} = static_cast<char*>(address);",
            "    }",
        ]
    return lines


def _used_symbols(program: Program) -> list[str]:
    """Variables that steps name as buffers."""
    named: set[str] = set()
    for step in program.steps:
        if isinstance(step, Launch):
            named |= {each.buffer for each in step.arguments if isinstance(each, Pointer)}
        elif isinstance(step, Copy):
            named |= {*step.source, *step.target}
        elif isinstance(step, CopyBatch):
            named |= {name for pair in step.copies for name in pair}
        elif isinstance(step, FillStep):
            named.add(step.buffer)
    named |= {name for seam in program.seams for name in (*seam.reads, *seam.writes)}
    return [each.name for each in program.buffers if each.symbol is not None and each.name in named]


def _symbol(program: Program, name: str) -> str:
    source, _, variable = (program.buffer(name).symbol or "").partition(":")
    index = program.source(source).symbols.index(variable)
    return f"{getter(program, source, 'symbol')}({index})"


# --- functions ------------------------------------------------------------------------------------------


def _enqueue(program: Program, writer: Writer, body: list[str]) -> list[str]:
    seams = "    [[maybe_unused]] const Seams& seams," if program.seams else ""
    lines = [
        "/// All steps in the order of the plan.",
        "template <class State> static cudaError_t enqueue([[maybe_unused]] State& state, [[maybe_unused]] Places& at,",
        *([seams] if seams else []),
        "    [[maybe_unused]] const Sizes& sizes, cudaStream_t lead, [[maybe_unused]] bool capturing) {",
        f"    cudaStream_t streams[{writer.streams}] = {{lead}};",
    ]
    for number in range(1, writer.streams):
        lines.append(f"    TRY(state.stream({number}, &streams[{number}]));")
    lines += [f"    TRY(state.fork(streams, {writer.streams}));"] if writer.streams > 1 else []
    return [*lines, *body, "    return cudaSuccess;", "}"]


def _public(program: Program, names: cxx.Names, writer: Writer) -> list[str]:
    lines = []
    for kind in ("workspace", *(["host_workspace"] if has_host_workspace(program) else [])):
        lines += [
            f"std::size_t {kind}_bytes(const Sizes& sizes) {{",
            "    Places at;",
            f"    return static_cast<std::size_t>(lay_out_{kind}(sizes, nullptr, at));",
            "}",
            "",
        ]
    for home in caller_arenas(program):
        lines += _arena(program, names, writer, home)
    for each in program.buffers:
        if each.symbol is not None:
            lines += _variable(program, names, writer, each.name)
    return [*lines, *_launch(program, names, writer)]


def _arena(program: Program, names: cxx.Names, writer: Writer, home: str) -> list[str]:
    name = names.arenas[home]
    lines = [
        f"std::size_t {name}_bytes([[maybe_unused]] const Sizes& sizes) {{",
        f"    return static_cast<std::size_t>({writer.home_bytes(home)});",
        "}",
        "",
        f"void place_{name}(Buffers& buffers, void* base, [[maybe_unused]] const Sizes& sizes) {{",
    ]
    for each in layout.homes(program)[home]:
        if layout.is_argument(each):
            start = f"static_cast<char*>(base) + {cxx.number(each.offset_bytes, names)}"
            member = f"buffers.{names.buffers[each.name]}"
            lines.append(f"    {member} = reinterpret_cast<{cxx.element(each.dtype)}*>({start});")
    return [*lines, "}", ""]


def _variable(program: Program, names: cxx.Names, writer: Writer, buffer: str) -> list[str]:
    each = program.buffer(buffer)
    kind, name, size = cxx.element(each.dtype), names.buffers[buffer], writer.bytes_of(buffer)
    symbol = _symbol(program, buffer)
    lines = [
        f"cudaError_t set_{name}(const {kind}* values, [[maybe_unused]] const Sizes& sizes, cudaStream_t stream) {{",
        f"    return cudaMemcpyToSymbolAsync({symbol}, values, {size}, 0, cudaMemcpyDefault, stream);",
        "}",
        "",
    ]
    if each.role.compared:
        lines += [
            f"cudaError_t get_{name}({kind}* values, [[maybe_unused]] const Sizes& sizes, cudaStream_t stream) {{",
            f"    return cudaMemcpyFromSymbolAsync(values, {symbol}, {size}, 0, cudaMemcpyDefault, stream);",
            "}",
            "",
        ]
    return lines


def _launch(program: Program, names: cxx.Names, writer: Writer) -> list[str]:
    seams = ", seams" if program.seams else ""
    lines = [
        "Launcher::Launcher() : state_(new State) {}",
        "Launcher::~Launcher() = default;",
        "const std::string& Launcher::problem() const { return state_->problem; }",
        "",
        f"cudaError_t Launcher::launch({signature(program)}) {{",
        "    State& state = *state_;",
        "    state.problem.clear();",
        f"    if (const char* wrong = check(buffers, sizes{seams})) {{",
        "        state.problem = wrong;",
        "        return cudaErrorInvalidValue;",
        "    }",
        f"    TRY(state.make_events({writer.events}));",
        *_resolve(program, names),
        *writer.opt_in(),
        "    // Launches share the workspace, so this one begins after the last.",
        "    if (state.launched && state.last != stream) TRY(cudaStreamWaitEvent(stream, state.event(LAST), 0));",
        *(_graph(program, names, writer, seams) if layout.in_graph(program) else _streams(program, seams)),
        "    TRY(cudaEventRecord(state.event(LAST), stream));",
        "    state.last = stream;",
        "    state.launched = true;",
        "    return cudaSuccess;",
        "}",
        "",
        f"cudaError_t launch({signature(program)}, std::string* problem) {{",
        "    thread_local std::map<int, Launcher*> launchers;  // kept: a thread may end after the runtime has",
        "    int device = 0;",
        "    TRY(cudaGetDevice(&device));",
        "    Launcher*& launcher = launchers[device];",
        "    if (!launcher) launcher = new Launcher;",
        f"    const cudaError_t status = launcher->launch(buffers, sizes, stream{seams});",
        "    if (status != cudaSuccess && problem)",
        "        *problem = launcher->problem().empty() ? cudaGetErrorString(status) : launcher->problem();",
        "    return status;",
        "}",
    ]
    return lines


def _streams(program: Program, seams: str) -> list[str]:
    """Statements that issue the steps on the caller's stream, and on others beside it."""
    if not any(isinstance(step, CopyBatch) for step in program.steps):
        return [f"    TRY(enqueue(state, at{seams}, sizes, stream, false));"]
    return [
        "    cudaStream_t lead = stream;",
        "    // Batches of copies are refused on the default streams.",
        "    const bool own = stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;",
        "    if (own) {",
        "        TRY(state.stream(0, &lead));",
        "        TRY(state.hand_over(stream, lead, HANDED));",
        "    }",
        f"    TRY(enqueue(state, at{seams}, sizes, lead, false));",
        "    if (own) TRY(state.hand_over(lead, stream, HANDED));",
    ]


def _graph(program: Program, names: cxx.Names, writer: Writer, seams: str) -> list[str]:
    """Statements that capture the steps when these pointers and sizes come for the first time."""
    pointers = [f"reinterpret_cast<std::uintptr_t>(at.{names.buffers[each.name]})" for each in program.buffers]
    sizes = [f"static_cast<std::uintptr_t>(sizes.{names.sizes[name]})" for name, _ in program.sizes]
    rows = ",\n        ".join([*pointers, *sizes])
    launched = layout.launches(program)
    return [
        f"    const std::vector<std::uintptr_t> key = {{\n        {rows},\n    }};",
        "    auto found = std::find_if(state.graphs.begin(), state.graphs.end(),",
        "                              [&](const State::Graph& each) { return each.key == key; });",
        "    if (found == state.graphs.end()) {",
        "        // Nothing is loaded or made while a stream is captured.",
        "        cudaFuncAttributes loaded;",
        *dict.fromkeys(f"        TRY(cudaFuncGetAttributes(&loaded, {writer.kernel(each)}));" for each in launched),
        "        cudaStream_t lead = nullptr;",
        f"        for (int i = {writer.streams}; i-- > 0;) TRY(state.stream(i, &lead));",
        "        TRY(cudaStreamBeginCapture(lead, cudaStreamCaptureModeThreadLocal));",
        f"        const cudaError_t status = enqueue(state, at{seams}, sizes, lead, true);",
        "        State::Graph made = {key, nullptr, nullptr};",
        "        const cudaError_t ended = cudaStreamEndCapture(lead, &made.graph);",
        "        TRY(status);",
        "        TRY(ended);",
        "        TRY(cudaGraphInstantiateWithFlags(&made.executable, made.graph, 0));",
        "        if (state.graphs.size() >= 16) {  // pointers that change with every call must not fill the memory",
        "            cudaGraphExecDestroy(state.graphs.front().executable);",
        "            cudaGraphDestroy(state.graphs.front().graph);",
        "            state.graphs.erase(state.graphs.begin());",
        "        }",
        "        state.graphs.push_back(made);",
        "        found = state.graphs.end() - 1;",
        "    }",
        "    TRY(cudaGraphLaunch(found->executable, stream));",
    ]
