"""The C++ of an export: compiled by g++ against a stand-in for the runtime and run on the processor, and compiled by
the real nvcc."""

import ast
import dataclasses
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fusiond.build import gxx, nvcc
from fusiond.build.cpu import commands
from fusiond.build.cpu.lowering import lower
from fusiond.build.exporting import adapters, cxx, launch, layout
from fusiond.build.exporting.adapters import getter, space
from fusiond.build.exporting.cxx import CxxNames, element
from fusiond.build.exporting.files import export, file_stem
from fusiond.build.exporting.header import caller_arenas
from fusiond.build.exporting.layout import Giver
from fusiond.model.language.expressions import parse_formula
from fusiond.model.language.extents import Extent
from fusiond.model.program import Buffer, Memory, Program, Role, Source, SourceKind, homes
from tests.build.exporting import programs
from tests.build.exporting.programs import CASES, Case

STUB = Path(__file__).with_name("stub")
ABI = commands.RUNTIME / "abi.h"
SEAMS = {
    "sort.1": """[](const void* const* reads, void* const* writes, const Sizes& sizes, cudaStream_t stream) {
        const float* of = static_cast<const float*>(reads[0]); float* to = static_cast<float*>(writes[0]);
        stub::enqueue(stream, [=] { std::copy(of, of + sizes.n, to); std::sort(to, to + sizes.n); });
        return cudaSuccess; }""",
    "flip": """[](const void* const* reads, void* const* writes, const Sizes& sizes, cudaStream_t stream) {
        const float* of = static_cast<const float*>(reads[0]); float* to = static_cast<float*>(writes[0]);
        stub::enqueue(stream, [=] { std::reverse_copy(of, of + sizes.n, to); });
        return cudaSuccess; }""",
}


def run(command: Sequence[object], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(each) for each in command], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-4000:]}{done.stdout[-400:]}"
    return done.stdout + done.stderr


def written(program: Program, folder: Path) -> Path:
    folder.mkdir()
    for name, data in export(program, about={}, binaries={}, arch=None).items():
        (folder / name).write_bytes(data)
    return folder


def adapter_object(program: Program, source: Source, folder: Path) -> Path:
    """A source's adapter as an object of the cpu device, which registers its kernels with the stub."""
    lowered = folder / "lowered"
    lowered.mkdir(exist_ok=True)
    (lowered / f"{source.name}.cu").write_text(lower(source.text))
    get, symbol = (getter(program, source.name, what) for what in ("entry", "symbol"))
    visible = '__attribute__((visibility("default")))'
    entries = {gxx.exported(source, each): each for each in source.entries}
    symbols = {gxx.exported_symbol(source, each): each for each in source.symbols}
    head = [f'extern "C" {visible} const void* {name}(int);' for name in (get, symbol)]
    calls = [f"stub_kernel({get}({i}), &fusiond_entry_{name});" for i, name in enumerate(entries)]
    calls += [f"stub_symbol({symbol}({i}), &fusiond_symbol_{name});" for i, name in enumerate(symbols)]
    text = commands.translation_unit(
        "\n".join([*head, lower((folder / adapters.adapter_name(source)).read_text())]), entries, symbols
    )
    text += "\n".join(
        [
            'extern "C" void stub_kernel(const void*, const fusiond_entry*);',
            'extern "C" void stub_symbol(const void*, const fusiond_symbol*);',
            f"static struct Registrar {{ Registrar() {{ {' '.join(calls)} }} }} registrar;",
        ]
    )
    (lowered / f"{source.name}.entries.cpp").write_text(text)
    out = lowered / f"{space(program)}_{source.name}.so"
    run(commands.kernel(lowered / f"{source.name}.entries.cpp", out, flags=["-O0", f"-I{lowered}"]), folder)
    return out


def in_order(buffer: Buffer, statement: str) -> str:
    """A statement of the caller's: where it touches memory of the device it is done in the order of the stream."""
    return (
        f"        stub::enqueue(stream, [=] {{ {statement} }});"
        if buffer.memory is Memory.DEVICE
        else f"        {statement}"
    )


def allocation(buffer: Buffer) -> str:
    """What allocates a caller's memory for a buffer."""
    kinds = {Memory.MANAGED: "cudaMallocManaged", Memory.DEVICE: "cudaMalloc"}
    return kinds.get(buffer.memory, "cudaMallocHost")


def main_of(case: Case, *, naive: bool = False) -> str:
    """Reads sizes and inputs, launches, writes outputs and what the stub counted."""
    program = case.program
    names = CxxNames(program)
    given = [each for each in program.buffers if layout.is_argument(each)]
    lines = [f'#include "{file_stem(program)}.h"', "#include <cstdlib>", f"using namespace {space(program)};"]
    lines += ["void read(const char* name, void* to, std::size_t size) {",
              '    FILE* f = std::fopen(name, "rb"); if (!f || std::fread(to, 1, size, f) != size) std::exit(3);',
              "    std::fclose(f); }",
              "void write(const char* name, const void* of, std::size_t size) {",
              '    FILE* f = std::fopen(name, "wb"); std::fwrite(of, 1, size, f); std::fclose(f); }',
              'extern "C" void stub_kernel(const void* of, const fusiond_entry* e) { stub::kernels()[of] = {e}; }',
              'extern "C" void stub_symbol(const void* of, const fusiond_symbol* s) { stub::symbols()[of] = *s; }',
              "int main(int, char** argv) {", "    Sizes sizes; Buffers buffers; (void)argv; int at = 1;"]  # fmt: skip
    for name, _ in program.sizes:
        if name not in program.fixed:
            lines.append(f"    sizes.{names.sizes[name]} = std::atoll(argv[at]);")
        lines.append("    ++at;")
    lines.append("    cudaStream_t stream = std::atoi(argv[at++]) ? new stub::Stream{-1} : nullptr; void* p = nullptr;")
    for home in caller_arenas(program):
        name = names.arenas[home]
        call = allocation(homes(program)[home][0])
        lines.append(f"    {call}(&p, {name}_bytes(sizes)); place_{name}(buffers, p, sizes);")
    for each in given:
        name, kind = names.buffers[each.name], element(each.dtype)
        lines.append(f"    std::size_t {name}_size = std::strtoull(argv[at++], nullptr, 10);")
        if each.arena not in caller_arenas(program):
            lines.append("    " + f"{allocation(each)}(&p, {name}_size);")
            lines.append(f"    {kind}* {name} = static_cast<{kind}*>(p);")
            if each.symbol is None:
                lines.append(f"    buffers.{name} = {name};")
        else:
            lines.append(f"    {kind}* {name} = const_cast<{kind}*>(buffers.{name});")
    lines.append("    cudaMalloc(&buffers.workspace, workspace_bytes(sizes));")
    calls = {Giver.HOST_WORKSPACE: "cudaMallocHost", Giver.MANAGED_WORKSPACE: "cudaMallocManaged"}
    for kind, giver in layout.workspaces(program).items():
        if kind != "workspace":
            lines.append(f"    {calls[giver]}(&buffers.{kind}, {kind}_bytes(sizes));")
    if program.seams:
        lines.append("    Seams seams;")
        lines += [f"    seams.{names.seams[each.name]} = {SEAMS[each.name]};" for each in program.seams
                  if each.stand_in is None or not naive]  # fmt: skip
        lines.append(f"    seams.naive = {str(naive).lower()};")
    lines.append("    Launcher launcher; for (int i = 0; i < 2; ++i) {")
    lines.append("        std::memset(buffers.workspace, 0xA5, workspace_bytes(sizes));")
    for each in given:
        name = names.buffers[each.name]
        lines.append(f"        std::memset({name}, 0xA5, {name}_size);")
        if each.role is not Role.OUTPUT:
            lines.append(in_order(each, f'read("{each.name}.bin", {name}, {name}_size);'))
        if each.symbol is not None:
            lines.append(f"        if (set_{name}({name}, sizes, stream)) return 4;")
    seams = ", seams" if program.seams else ""
    lines += [f"        cudaError_t status = launcher.launch(buffers, sizes, stream{seams});",
              '        if (status) { std::fprintf(stderr, "%s", launcher.problem().c_str()); return 5; }']  # fmt: skip
    results = [
        in_order(each, f'write("{each.name}.out", {names.buffers[each.name]}, {names.buffers[each.name]}_size);')
        for each in given
        if each.role is not Role.INPUT
    ]
    ordered = [each for each in results if "enqueue" in each]
    lines += [*ordered, "        stub::drain();", *(each for each in results if each not in ordered), "    }"]
    lines.append('    std::printf("launches %d cooperative %d batches %d captures %d carved %d", stub::launches,')
    lines.append("        stub::cooperative, stub::batches, stub::captures, stub::carved);")
    lines.append('    if (stub::prefetches) std::printf(" prefetches %d", stub::prefetches);')
    return "\n".join([*lines, "}", ""])


def program_of(case: Case, folder: Path, library: Path, *flags: str, naive: bool = False) -> Path:
    """The compiled program of one case."""
    written(case.program, folder)
    (folder / "main.cpp").write_text(main_of(case, naive=naive))
    objects: list[Path | str] = []
    for source in case.program.sources:
        if source.kind is SourceKind.DEVICE:
            objects.append(adapter_object(case.program, source, folder))
        else:
            objects.append(adapters.adapter_name(source))
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{STUB}", "-I.", f'-DSTUB_ABI="{ABI}"',
               "-rdynamic", *flags, "main.cpp", f"{file_stem(case.program)}.cpp", "-Wl,--no-as-needed", *objects,
               library, f"-Wl,-rpath,{library.parent}", "-o", "run"]  # fmt: skip
    run(command, folder)
    return folder / "run"


def check(case: Case, folder: Path, sizes: dict[str, int], *, stream: bool, eager: bool) -> str:
    program = case.program.at(sizes)
    given = programs.inputs(program)
    for name, values in given.items():
        (folder / f"{name}.bin").write_bytes(values.tobytes())
    lengths = [each.size_bytes for each in program.buffers if layout.is_argument(each)]
    environment = {"STUB_EAGER": "1"} if eager else {}
    said = run(
        ["./run", *(value for _, value in program.sizes), int(stream), *map(int, lengths)], folder, **environment
    )
    for name, values in case.expected(given, dict(program.sizes)).items():
        found = np.frombuffer((folder / f"{name}.out").read_bytes(), values.dtype)
        np.testing.assert_array_equal(found, values, err_msg=f"{name} at {sizes}")
    return said


COUNTED = {
    "one": "launches 2 cooperative 0 batches 0 captures 0 carved 2",
    "several": "launches 6 cooperative 0 batches 0 captures 0 carved 0",
    "two_streams": "launches 8 cooperative 0 batches 0 captures 0 carved 0",
    "graph": "launches 4 cooperative 0 batches 0 captures 1 carved 0",
    "cooperative": "launches 2 cooperative 2 batches 0 captures 0 carved 0",
    "transfers": "launches 4 cooperative 0 batches 2 captures 0 carved 0",
    "managed": "launches 4 cooperative 0 batches 0 captures 0 carved 0 prefetches 4",
    "seams": "launches 4 cooperative 0 batches 0 captures 0 carved 0",
}


FAST = ("transfers", "structs", "seams_in_a_graph")
WHOLE = ("allocations", "cooperative", "pageable", "several", "two_streams")  #: Run in the campaigns only
COMPILED = ("structs",)  #: By nvcc, outside of the campaigns
_MARKS = {name: [pytest.mark.slow] for name in CASES if name not in FAST} | {
    name: [pytest.mark.slow, pytest.mark.campaign] for name in WHOLE
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=_MARKS.get(name, [])) for name in CASES])
@pytest.mark.sampled(12)
def test_it_computes_what_numpy_does(name: str, tmp_path: Path, scheduler_library: Path) -> None:
    """At the plan's sizes and at others, on a stream and on the default one, twice with the same pointers."""
    case = CASES[name]()
    folder = tmp_path / "out"
    program_of(case, folder, scheduler_library)
    said = check(case, folder, {}, stream=True, eager=False)
    assert said == COUNTED.get(name, said)
    check(case, folder, {}, stream=False, eager=True)
    check(case, folder, dict(case.sizes), stream=False, eager=False)


@pytest.mark.campaign
def test_rows_may_lie_apart(tmp_path: Path, scheduler_library: Path) -> None:
    """Read and written as rows of 32 and 40 elements, at another width than the plan's; graphs are told apart."""
    case, folder = programs.rows(), tmp_path / "out"
    program_of(case, folder, scheduler_library)
    text = (folder / "main.cpp").read_text()
    head, loop = text.split("    Launcher launcher;")
    pitched = "    buffers.x_pitch = 32; buffers.y_pitch = 40;\n"
    (folder / "main.cpp").write_text(f"{head}{pitched}    Launcher launcher;{loop}")
    objects = [adapter_object(case.program, source, folder) for source in case.program.sources]
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{STUB}", "-I.", f'-DSTUB_ABI="{ABI}"',
               "-rdynamic", "main.cpp", f"{file_stem(case.program)}.cpp", "-Wl,--no-as-needed", *objects,
               scheduler_library, f"-Wl,-rpath,{scheduler_library.parent}", "-o", "run"]  # fmt: skip
    run(command, folder)
    x = np.arange(9 * 32, dtype=np.uint8).reshape(9, 32)
    (folder / "x.bin").write_bytes(x.tobytes())
    run(["./run", 9, 30, 1, x.nbytes, 9 * 40 * 2], folder)
    made = np.frombuffer((folder / "y.out").read_bytes(), np.int16).reshape(9, 40)
    np.testing.assert_array_equal(made[:, :30], x[:, :30].astype(np.int16) * 2)
    assert (made[:, 30:] == -23131).all()  # 0xA5A5
    (folder / "main.cpp").write_text(f"{head}{pitched.replace('32', '29')}    Launcher launcher;{loop}")
    run(command, folder)
    done = subprocess.run(
        ["./run", "9", "30", "1", "288", "720"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 5
    assert done.stderr == "the pitch of x is in elements, at least those of a row (w)"


REFUSED = {
    "null": ("one", "", "the input a.x is null"),
    "size": ("one", "sizes.a_n = 0;", "the size a.n must be a whole number from 1"),
    "large": ("one", "sizes.a_n = 1LL << 40;",
              "step scale would have no legal grid, block or shared memory at these sizes"),
    "workspace": ("several", "float x[1]; buffers.x = x; buffers.y = x;",
                  "workspace is null; it must have workspace_bytes(sizes)"),
    "alignment": ("several", "float x[1]; buffers.x = x; buffers.y = x; buffers.workspace = (char*)256 + 16;",
                  "workspace must begin at a multiple of 256 bytes"),
    "arena": ("transfers", "float x[100]; buffers.a = x; buffers.b = x + 60; buffers.sum = x; buffers.diff = x;",
              "b does not lie in in beside a; place_in does that"),
    "seam": ("seams", "float x[1]; buffers.x = x; buffers.y = x; buffers.workspace = (void*)256;",
             'seam sort.1 (sort f32[n] of "x") has no function; set Seams::sort_1'),
    "stand-in": ("seams", "float x[1]; buffers.x = x; buffers.y = x; buffers.workspace = (void*)256; seams.sort_1 = "
                 "[](const void* const*, void* const*, const Sizes&, cudaStream_t) { return cudaSuccess; };",
                 "seam flip (reverse f32[n]) has no function; set Seams::flip, or naive = true for the plain kernel "
                 "that stands in for it"),
}  # fmt: skip


@pytest.mark.campaign
def test_what_is_refused(tmp_path: Path, gxx_here: None) -> None:
    """All in one program: the namespaces keep exports apart."""
    cases = {name: CASES[name]() for name in dict.fromkeys(name for name, _, _ in REFUSED.values())}
    lines = ["#include <cstdio>"]
    for name, case in cases.items():
        written(case.program, tmp_path / name)
        lines.append(f'#include "{name}/{file_stem(case.program)}.h"')
    for case in cases.values():
        for source in case.program.sources:
            for what in ("entry", "symbol"):
                lines.append(
                    f'extern "C" const void* {getter(case.program, source.name, what)}(int) {{ return nullptr; }}'
                )
    lines.append("int main() {")
    for name, code, _ in REFUSED.values():
        program = cases[name].program
        lines += ["    {", f"        using namespace {space(program)};", "        Sizes sizes; Buffers buffers;"]
        lines += ["        Seams seams;"] if program.seams else []
        seams = ", seams" if program.seams else ""
        lines += [f"        {code}", "        std::string problem;",
                  f"        cudaError_t status = launch(buffers, sizes, nullptr{seams}, &problem);",
                  '        std::printf("%d %s\\n", status, problem.c_str());', "    }"]  # fmt: skip
    (tmp_path / "main.cpp").write_text("\n".join([*lines, "}", ""]))
    sources = [f"{name}/{file_stem(case.program)}.cpp" for name, case in cases.items()]
    library = gxx.scheduler()
    run(["g++", "-std=c++17", f"-I{STUB}", f'-DSTUB_ABI="{ABI}"', "main.cpp", *sources, library,
         f"-Wl,-rpath,{library.parent}", "-o", "run"], tmp_path)  # fmt: skip
    assert run(["./run"], tmp_path).splitlines() == [f"1 {said}" for _, _, said in REFUSED.values()]


# --- the real compiler ----------------------------------------------------------------------------------

WARNINGS = ("-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror")


@pytest.mark.needs_nvcc
@pytest.mark.parametrize(
    "name", [name if name in COMPILED else pytest.param(name, marks=pytest.mark.campaign) for name in CASES]
)
def test_nvcc_compiles_it(name: str, tmp_path: Path) -> None:
    program = CASES[name]().program
    folder = written(program, tmp_path / "out")
    toolkit = nvcc.find()
    assert toolkit is not None
    for file in [*sorted(folder.glob("*.entries.c*")), folder / f"{file_stem(program)}.cpp"]:
        assert run([toolkit.nvcc, "-arch=sm_90", *WARNINGS, "-c", file, "-o", f"{file}.o"], folder) == ""


@pytest.mark.campaign
@pytest.mark.needs_nvcc
def test_two_exports_in_one_program(tmp_path: Path) -> None:
    """Both have kernels of the same names, and a template's instance."""
    both = [programs.several().program, programs.two_streams().program, programs.transfers().program]
    toolkit = nvcc.find()
    assert toolkit is not None
    files: list[Path] = []
    lines = []
    for number, program in enumerate(both):
        folder = written(program, tmp_path / f"out{number}")
        files += [*folder.glob("*.entries.c*"), folder / f"{file_stem(program)}.cpp"]
        lines.append(f'#include "out{number}/{file_stem(program)}.h"')
    calls = "".join(f"{space(each)}::workspace_bytes() + " for each in both)
    launchers = "".join(f"    {space(each)}::Launcher launcher{i};\n" for i, each in enumerate(both))
    (tmp_path / "main.cpp").write_text(
        "\n".join([*lines, f"int main() {{\n{launchers}    return ({calls}0) == 1;\n}}\n"])
    )
    run([toolkit.nvcc, "-arch=sm_90", *files, "main.cpp", "-o", "run"], tmp_path)
    names = run(["nm", "-C", "run"], tmp_path)
    for program in both:
        assert f" T add_{program.key[:8]}_0" in names
        assert f"scale_{program.key[:8]}_0<float, 5>" in names


# --- formulas, names and numbers as C++ -----------------------------------------------------------------


SIZES = {"n": 1234, "a.n": 7, "class": 5, "a_n": 11}
FORMULAS = (
    "ceil_div(4 * a.n, 256)", "-n // 7", "-n % 7", "n // -7", "n % -7", "min(n, a.n, -3) + max(2, class)",
    "(n - 1) // (a.n * 2)", "class * a_n - -n", "ceil_div(-n, a.n)", "65536 * 65536 * a.n", "n - a.n - class",
)  # fmt: skip


def named(*buffers: str) -> Program:
    made = tuple(Buffer(name=each, dtype="float32", elements=1, role=Role.INPUT) for each in buffers)
    return dataclasses.replace(programs.one().program, buffers=made, sizes=tuple(SIZES.items()))


def test_formulas_round_as_they_do_in_a_plan(tmp_path: Path, gxx_here: None) -> None:
    names = cxx.CxxNames(named("x"))
    members = "".join(f"long long {names.sizes[name]} = {value}; " for name, value in SIZES.items())
    lines = ["#include <algorithm>", "#include <cstdio>", "#include <initializer_list>", cxx.HELPERS]
    lines += [f"struct {{ {members}}} sizes;", "int main() {"]
    for text in FORMULAS:
        value = cxx.number(Extent.of(parse_formula(text).integer(SIZES), text), names)
        lines.append(f'    std::printf("%lld\\n", static_cast<long long>({value}));')
    (tmp_path / "main.cpp").write_text("\n".join([*lines, "}", ""]))
    run(["g++", "-std=c++17", "-Wall", "-Werror", "main.cpp", "-o", "run"], tmp_path)
    assert [int(each) for each in run(["./run"], tmp_path).split()] == [
        parse_formula(t).integer(SIZES) for t in FORMULAS
    ]


def test_names_are_identifiers_and_unique() -> None:
    names = cxx.CxxNames(named("a.x", "a_x", "A@device", "class", "workspace", "1st", "größe"))
    assert list(names.buffers.values()) == ["a_x", "a_x_", "A_device", "class_", "workspace_", "_1st", "gr__e"]
    assert set(names.sizes) == set(SIZES)
    assert len(set(names.sizes.values())) == len(SIZES)


def test_numbers_have_their_types() -> None:
    names = cxx.CxxNames(named("x"))
    for dtype, value, text in (
        ("float32", 0.1, "static_cast<float>(0.1f)"),
        ("float64", 2, "static_cast<double>(2.0)"),
        ("float32", float("-inf"), "static_cast<float>(-INFINITY)"),
        ("float16", 0.5, "__half(0.5f)"),
        ("bool", 1, "static_cast<bool>(true)"),
        ("uint64", 2**64 - 1, "static_cast<unsigned long long>(18446744073709551615ULL)"),
        ("int64", -(2**63), "static_cast<long long>(-9223372036854775807LL - 1)"),
        ("int32", -3, "static_cast<int>(-3)"),
    ):
        assert cxx.typed(dtype, value, names) == text


# --- the examples of docs/export.md ---------------------------------------------------------------------


TEXT = (Path(__file__).parents[3] / "docs" / "export.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_example_in_cxx_compiles(tmp_path: Path, gxx_here: None) -> None:
    program = dataclasses.replace(programs.two_streams().program, name="documented")
    written(program, tmp_path / "out")
    text = blocks("cpp")[0].replace("fusiond_5f0c9a1e", space(program)).replace("launch_5f0c9a1e", file_stem(program))
    head = "#define cudaStreamCreate(stream) cudaStreamCreateWithFlags(stream, 0)\n"
    (tmp_path / "out" / "main.cpp").write_text("#include <cstdio>\n" + text.replace("int main", f"{head}int main"))
    stub = tmp_path / "stub"
    stub.mkdir()
    typed = (
        "template <class T> cudaError_t cudaMalloc(T** to, std::size_t size) { return cudaMalloc((void**)to, size); }\n"
    )
    (stub / "cuda_runtime.h").write_text((STUB / "cuda_runtime.h").read_text() + typed)
    run(
        ["g++", "-std=c++17", "-Wall", "-Werror", f"-I{stub}", f'-DSTUB_ABI="{ABI}"', "-c", "main.cpp"],
        tmp_path / "out",
    )


def test_the_examples_in_python_are_python() -> None:
    assert len(blocks("python")) == 2
    for text in blocks("python"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module == "launch":
                assert all(hasattr(launch, each.name) for each in node.names)
