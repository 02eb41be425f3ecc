"""What stands round a kernel in the files of repositories, put round a generated one: nothing of it changes a result.

Generated --disguised--> Generated, the headers beside it

a library's functions that are called as the kernel's variables are     include "gone.h", `int me(gone::Row)`
an input that the host sets as a pointer, or inside of a struct         __constant__ const float* x0;
namespaces that macros open and close                                   OPEN_OUTER ... CLOSE_OUTER
a part in a header with a guard, code of the host, a class of the host's
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from .generator import Choices, Generated, pick

LIBRARY = """\
#include "gone.h"
"""
OVERLOADED = """\
__device__ int {word}(int v) {{ return v + 1; }}
__device__ int {word}(gone::Row row) {{ return row.find({word}(2)); }}
"""
FOREIGN = """\
__device__ int {word}(gone::Row row) {{ return row.{word}; }}
"""
HOST = """\
class Keeper_{name} {{
    template <class T> friend class Owner;
    int* first;
    int* place() {{ return where(first); }}
    int* where(int* p) {{ return p; }}
public:
    enum {{ me = 1, many }};
    Keeper_{name}() : first(0) {{}}
    int* operator->() {{ return place(); }}
    template <class T> void take(const T& other) = delete;
}};
static inline void launch_{name}(Keeper_{name} keeper) {{ kernel_{name}<<<1, 32>>>(keeper.operator->()); }}
"""
WORDS = re.compile(r"\b(?:me|many|all|block|blocks|v\d+|sums|cells)\b")
INPUT = re.compile(r"const ([\w ]+)\*( __restrict__)? (x\d)(?=[,)])")


def disguised(choices: Choices, kernel: Generated) -> tuple[Generated, dict[str, str]]:
    """A kernel among what repositories have, and its headers. At least one of all is done."""
    headers: dict[str, str] = {}
    steps: list[Callable[[Choices, Generated, dict[str, str]], Generated]] = [foreign, constant, host, scoped, parted]
    chosen = [each for each in steps if choices.number(0, 1)] or [pick(choices, steps)]
    for step in chosen:
        kernel = step(choices, kernel, headers)
    return kernel, headers


def foreign(choices: Choices, kernel: Generated, headers: dict[str, str]) -> Generated:
    """Some of its variables are called as functions of a library that is not there."""
    words = sorted(set(WORDS.findall(kernel.source)))
    some = [each for each in words if choices.number(0, 2) == 0] or words[:1]
    texts = [pick(choices, (OVERLOADED, FOREIGN)).format(word=each) for each in some]
    return dataclasses.replace(kernel, source=LIBRARY + "".join(texts) + kernel.source)


def constant(choices: Choices, kernel: Generated, headers: dict[str, str]) -> Generated:
    """An input comes by `__constant__` memory."""
    inputs = [each for each in INPUT.finditer(kernel.source) if each.end() > kernel.source.index("__global__")]
    if not inputs:
        return host(choices, kernel, headers)
    match = pick(choices, inputs)
    kind, _, name = match.groups()
    line = re.search(rf"  - {{name: {name}, (.*)}}\n", kernel.yaml)
    assert line is not None
    held = pick(choices, ("", "given_", "deep_"))
    variable, member = {
        "": (f"__constant__ const {kind}* {name};\n", ""),
        "given_": (
            f"struct Given_{name} {{ int bias; const {kind}* rows; }};\n__constant__ Given_{name} given_{name};\n",
            "rows",
        ),
        "deep_": (
            f"struct In_{name} {{ const {kind}* rows; char c; }};\nstruct Deep_{name} {{ char c; In_{name} in[2]; }};\n"
            f"__constant__ Deep_{name} deep_{name};\n",
            "in[1].rows",
        ),
    }[held]
    begin, end = match.span()
    after = kernel.source[end] == ","
    begin, end = (begin, end + 2) if after else (kernel.source.rindex(",", 0, begin), end)
    source = kernel.source[:begin] + kernel.source[end:]
    if held:
        body = source.index("\n{\n", source.index("__global__")) + 3
        source = f"{source[:body]}    const {kind}* const {name} = {held}{name}.{member};\n{source[body:]}"
    head = re.search(r"^(?:namespace ops \{|template|extern \"C\"|__global__)", source, re.MULTILINE)
    assert head is not None
    scope = "ops::" if head.group().startswith("namespace") else ""
    at = head.end() + 1 if scope else head.start()
    source = source[:at] + variable + source[at:]
    yaml = kernel.yaml.replace(line.group(), "")
    others = {"given_": "bias: 3, ", "deep_": 'c: 1, "in[0].rows": 0, "in[0].c": 2, "in[1].c": 3, '}.get(held, "")
    given = f'struct: {{{others}"{member}": {{{line.group(1)}}}}}' if held else line.group(1)
    yaml += f'constants:\n  - {{symbol: "{scope}{held}{name}", {given}}}\n'
    return dataclasses.replace(kernel, source=source, yaml=yaml)


def host(choices: Choices, kernel: Generated, headers: dict[str, str]) -> Generated:
    """A class and a launch of the host's."""
    before = pick(choices, (True, False))
    text = HOST.format(name=kernel.name)
    if before:
        text = text[: text.index("static inline")]
    if not before:
        return dataclasses.replace(kernel, source=f"{kernel.source}{text}")
    body = kernel.source.index("\n{\n", kernel.source.index("__global__")) + 3
    named = f'    static_assert(sizeof(Keeper_{kernel.name}) == sizeof(int*), "");\n'
    return dataclasses.replace(kernel, source=f"{text}{kernel.source[:body]}{named}{kernel.source[body:]}")


def scoped(choices: Choices, kernel: Generated, headers: dict[str, str]) -> Generated:
    """Two namespaces more, which macros open and close."""
    if 'extern "C"' in kernel.source or "constants:" in kernel.yaml or "#include" in kernel.source:
        return kernel
    end = pick(choices, ("CLOSE_OUTER", "CLOSE(outer) CLOSE(inner)"))
    source = (
        "#define OPEN_OUTER namespace outer { namespace inner {\n#define CLOSE_OUTER } }\n#define CLOSE(name) }\n"
        f"OPEN_OUTER\n{kernel.source}{end}\n"
    )
    yaml = re.sub(r"(?m)^(entry: |instance: \")", r"\1outer::inner::", kernel.yaml)
    return dataclasses.replace(kernel, source=source, yaml=yaml)


def parted(choices: Choices, kernel: Generated, headers: dict[str, str]) -> Generated:
    """All of it stands in a header, which two others include."""
    name = f"{kernel.name}_parts.h"
    guard = pick(choices, ("#pragma once\n{}", "#ifndef PARTS\n#define PARTS\n{}\n#endif\n"))
    headers[name] = guard.format(kernel.source)
    headers[f"{kernel.name}_all.h"] = f'#include "{name}"\n'
    return dataclasses.replace(kernel, source=f'#include "{kernel.name}_all.h"\n#include "{name}"\n')
