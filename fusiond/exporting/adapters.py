"""For each source an adapter: a translation unit that includes the source word for word and hands out its entries.

It gives every entry a name of this export's own (with a macro, before the source is read), so that two exports can be
linked into one program, and carries the source's defines. What a kernel is called inside the object (templates,
namespaces) does not matter: the runtime launches by the address that the adapter returns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fusiond.codegen.statements import Statements
from fusiond.program import Program, Source, SourceKind

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
    return f"{source.name}.{_ending(source)}"


def adapter_name(source: Source) -> str:
    return f"{source.name}.entries.{_ending(source)}"


def _ending(source: Source) -> str:
    return "cu" if source.kind is SourceKind.DEVICE else "cpp"


def adapter(program: Program, source: Source) -> str:
    """The text of an adapter."""
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


def _plain_name(entry: str) -> str:
    """`ns::maxpool<float, 5>` -> `maxpool`."""
    return entry.partition("<")[0].strip().rpartition("::")[2].strip()


def _switch(text: Statements, function: str, values: Sequence[str]) -> None:
    cases = text.block(f'extern "C" const void* {function}(int index)').block("switch (index)")
    cases.lines(*(f"case {index}: return {value};" for index, value in enumerate(values)), "default: return nullptr;")
