"""For each source an adapter: a translation unit that includes the source word for word and hands out its entries.

It gives every entry a name of this export's own (with a macro, before the source is read), so that two exports can be
linked into one program, and carries the source's defines. What a kernel is called inside the object (templates,
namespaces) does not matter: the runtime launches by the address that the adapter returns.

PTX is not included but held: the cubin that was built of it, and the text, which the driver assembles for other GPUs.
The runtime takes what it loads of them in the place of a kernel's address ("CUDA Runtime API", cudaKernel_t).
"""

import re
from collections.abc import Sequence

from fusiond.model.codegen.statements import Statements
from fusiond.model.program import Program, Source, SourceKind, SourceLanguage
from fusiond.model.ptx import parser, printer, rewrite

_SYSTEM_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([^>\n]+)>", re.MULTILINE)
_KERNEL_OF = """\
namespace {
// Of functions that share a name, the kernel is the one that returns nothing.
template <class... A> const void* kernel_of(void (*kernel)(A...)) { return reinterpret_cast<const void*>(kernel); }
}  // namespace
"""


def space(program: Program) -> str:
    """The namespace, and the beginning of every symbol, of an export."""
    return f"fusiond_{program.key[:8]}"


def getter(program: Program, source: str, what: str) -> str:
    """The function that hands out a source's kernels, host functions or symbols: `what` is `entry` or `symbol`."""
    names = [each.name for each in program.sources]
    return f"{space(program)}_{what}_{names.index(source)}"


def file_name(source: Source) -> str:
    """The source as it is measured."""
    return f"{source.name}{source.suffix}"


def adapter_name(source: Source) -> str:
    return f"{source.name}.entries{'.cpp' if is_ptx(source) else source.suffix}"


def is_ptx(source: Source) -> bool:
    return source.language is SourceLanguage.PTX


def adapter(program: Program, source: Source, cubin: bytes = b"") -> str:
    """The text of an adapter. `cubin`: what was built of a source that is PTX; empty where nothing was."""
    if is_ptx(source):
        return _of_ptx(program, source, cubin)
    text = Statements()
    text.line(f"// Hands out what {file_name(source)} holds. Compile this file, not that one. Written by fusiond.")
    text.lines(*(f"#define {name} {value or '1'}" for name, value in source.defines))
    # Read before the macros below, which are meant for the source alone.
    text.lines(*(f"#include <{each}>" for each in dict.fromkeys(_SYSTEM_INCLUDE.findall(source.text))))
    number = [each.name for each in program.sources].index(source.name)
    for name in dict.fromkeys(map(_plain_name, source.entries)):
        text.line(f"#define {name} {name}_{program.key[:8]}_{number}")
    text.lines(f'#include "{file_name(source)}"', "")
    is_device = source.kind is SourceKind.DEVICE
    if is_device:
        text.line(_KERNEL_OF)
    address = "kernel_of" if is_device else "reinterpret_cast<const void*>"
    _switch(text, getter(program, source.name, "entry"), [f"{address}(&{each})" for each in source.entries])
    if is_device and source.symbols:
        symbols = [f"reinterpret_cast<const void*>(&{each})" for each in source.symbols]
        _switch(text, getter(program, source.name, "symbol"), symbols)
    return text.text()


_LOADING = """\
/// The first of the two that this GPU takes; the runtime loads it into each context that uses it.
cudaLibrary_t library() {
    static const cudaLibrary_t loaded = [] {
        for (const void* image : IMAGES) {
            cudaLibrary_t found = nullptr;
            cudaKernel_t first = nullptr;
            cudaFuncAttributes attributes;
            if (cudaLibraryLoadData(&found, image, nullptr, nullptr, 0, nullptr, nullptr, 0) == cudaSuccess) {
                if (cudaLibraryGetKernel(&first, found, FIRST) == cudaSuccess &&
                    cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(first)) == cudaSuccess)
                    return found;
                cudaLibraryUnload(found);
            }
            cudaGetLastError();
        }
        return cudaLibrary_t();
    }();
    return loaded;
}

/// Null where the PTX cannot be loaded here: the launch then fails with cudaErrorInvalidDeviceFunction.
const void* kernel(const char* name) {
    cudaKernel_t found = nullptr;
    if (cudaLibraryGetKernel(&found, library(), name) != cudaSuccess) return nullptr;
    return reinterpret_cast<const void*>(found);
}
"""
_VARIABLE = """
/// Where a variable is in the current device's memory.
const void* variable(const char* name) {
    void* found = nullptr;
    std::size_t bytes = 0;
    return cudaLibraryGetGlobal(&found, &bytes, library(), name) == cudaSuccess ? found : nullptr;
}
"""
_ROW = 24  #: Bytes of a cubin in a line


def _of_ptx(program: Program, source: Source, cubin: bytes) -> str:
    cap = source.register_cap
    ptx = source.text if cap is None else printer.printed(parser.parse(rewrite.with_register_cap(source.text, cap)))
    text = Statements()
    text.line(
        f"// Holds the kernels of {file_name(source)}, and hands them out. Compile this file. Written by fusiond."
    )
    text.lines("#include <cstddef>", "#include <cuda_runtime.h>", "", "namespace {", "")
    if cubin:
        rows = (", ".join(map(str, cubin[at : at + _ROW])) for at in range(0, len(cubin), _ROW))
        text.lines(
            "// What was measured.", "alignas(16) const unsigned char CUBIN[] = {", *(f"    {row}," for row in rows)
        )
        text.lines("};", "")
    text.line("// For other GPUs." if cubin else "// The driver assembles it.")
    text.line(f'const char PTX[] = R"fusiond({ptx})fusiond";\n')
    images = ", ".join([*(["CUBIN"] if cubin else []), "PTX"])
    text.line(f"const void* const IMAGES[] = {{{images}}};")
    text.line(f'const char FIRST[] = "{source.entries[0]}";\n')
    text.line(_LOADING + (_VARIABLE if source.symbols else "") + "\n}  // namespace\n")
    kernels = ", ".join(f'kernel("{each}")' for each in source.entries)
    body = text.block(f'extern "C" const void* {getter(program, source.name, "entry")}(int index)')
    body.lines(f"static const void* const kernels[] = {{{kernels}}};", "return kernels[index];")
    if source.symbols:
        values = [f'variable("{each}")' for each in source.symbols]
        _switch(text, getter(program, source.name, "symbol"), values)
    return text.text()


def _plain_name(entry: str) -> str:
    """`ns::maxpool<float, 5>` -> `maxpool`."""
    return entry.partition("<")[0].strip().rpartition("::")[2].strip()


def _switch(text: Statements, function: str, values: Sequence[str]) -> None:
    cases = text.block(f'extern "C" const void* {function}(int index)').block("switch (index)")
    cases.lines(*(f"case {index}: return {value};" for index, value in enumerate(values)), "default: return nullptr;")
