"""Inlines the user's own headers.

    #include "bins.cuh"      -->  the text of bins.cuh      (each slot gets its own copy, inside its own namespace)
    #include <stdint.h>      -->  noted; a compiler gets it back, a fused source has it above the namespaces
    #line 7 "generated.y"    -->  an empty line, so that messages name the line that the user sees

A copy, not an include directive, because a header with `#pragma once` would otherwise reach one of the two slots only.
Such a header stands once; where it is first included inside an `#if`, which only the compiler can decide, it stands at
every place, guarded by a macro.
"""

import functools
import re

from fusiond.model.errors import RequestError
from fusiond.strategy import Inputs
from fusiond_hfuse.frontend.source_kernel import TranslationUnit

_INCLUDE = re.compile(r"\s*(?:#|%:)\s*include\b\s*(.*?)\s*")
_DEFINE = re.compile(r"\s*(?:#|%:)\s*(?:define|undef)\s+([A-Za-z_$][\w$]*)")
_ONCE = re.compile(r"\s*(?:#|%:)\s*pragma\s+once\b")
_LINE = re.compile(r"\s*(?:#|%:)\s*(?:line\b|\d)")
_CONDITION = re.compile(r"\s*(?:#|%:)\s*(if|el|endif)")
_HAS_INCLUDE = re.compile(r"""\b__has_include\s*\(\s*(<[^<>\n]*>|"[^"\n]*")\s*\)""")
_OF_WIDTHS = re.compile(r"\bu?int(\d+|ptr|max|_fast\d+|_least\d+)_t\b")
_MAX_DEPTH = 20
_MAX_LINES = 200_000

_IMPLICIT = frozenset({
    "cuda_runtime.h", "cuda_runtime_api.h", "device_launch_parameters.h", "device_functions.h",
    "device_atomic_functions.h", "vector_types.h", "vector_functions.h", "builtin_types.h",
})  # fmt: skip
"""Headers that nvcc includes by itself; they are left out of a fused source."""
HOISTED = frozenset({
    "algorithm", "array", "assert.h", "cassert", "cerrno", "cfloat", "chrono", "cinttypes", "climits", "cmath",
    "cstdarg", "cstddef", "cstdint", "cstdio", "cstdlib", "cstring", "ctime", "ctype.h", "exception", "float.h",
    "fstream", "functional", "inttypes.h", "iomanip", "iostream", "iterator", "limits", "limits.h", "map", "math.h",
    "memory", "new", "numeric", "random", "sstream", "stdbool.h", "stddef.h", "stdexcept", "stdint.h", "stdio.h",
    "stdlib.h", "string", "string.h", "sys/time.h", "time.h", "tuple", "type_traits", "utility", "vector",
    "cuda.h", "cuda_bf16.h", "cuda_fp16.h", "math_constants.h",
})  # fmt: skip
"""Headers that look at no block: C's, C++'s, halves. They stand once, above all namespaces. Of any other nothing is
known here: a kernel that takes a name from it is left to the compiler."""


def expand(inputs: Inputs, path: str, folders: tuple[str, ...], *, yaml: str, where: str) -> TranslationUnit:
    """Read a source and all of the user's that it includes.

    `folders` are the `include:` folders of the YAML file `yaml`, searched after the including file's own. Raises
    RequestError with file and line for what cannot be read."""
    found = _Expansion(inputs, folders, yaml)
    found.file(path, where, ())
    names, text = dict.fromkeys(found.headers), "\n".join(found.lines) + "\n"
    unread = tuple(name for name in names if name not in HOISTED | _IMPLICIT)
    if unread and _OF_WIDTHS.search(text):  # which any of these would have brought
        names |= {"cstdint": None}
    return TranslationUnit(
        text=text,
        origins=tuple(found.origins),
        system=tuple(name for name in names if name in HOISTED),
        macros=tuple(found.macros),
        files=found.files,
        includes=found.includes,
        unread=unread,
    )


class _Expansion:
    def __init__(self, inputs: Inputs, folders: tuple[str, ...], yaml: str) -> None:
        self.inputs = inputs
        self.folders = folders
        self.yaml = yaml
        self.lines: list[str] = []
        self.origins: list[tuple[str, int]] = []
        self.macros: dict[str, None] = {}
        self.files: dict[str, str] = {}
        self.includes: dict[int, str] = {}
        self.headers: list[str] = []
        self.read: list[set[str]] = [set()]
        """Files with `#pragma once`, or a guard round all that is in them, that the compiler has read for certain when
        it comes here: whatever the `#if`s say, and in each that is open."""
        self.guards: dict[str, str] = {}  #: Files with `#pragma once` that it may have read: the macro that says so

    def file(self, path: str, where: str, above: tuple[str, ...]) -> None:
        if len(above) > _MAX_DEPTH:
            raise RequestError(f"includes are nested more than {_MAX_DEPTH} deep", where=where)
        if any(path in read for read in self.read):
            return
        text = self._text(path, where)
        lines = text.removesuffix("\n").split("\n")
        code = without_comments(text).removesuffix("\n").split("\n")
        depth = len(self.read)
        own_guard: tuple[int, ...] = ()  # its lines, which leave out nothing when the file is first read
        if _guarded(code):
            self.read[-1].add(path)
            full = [number for number, line in enumerate(code, 1) if line.strip()]
            own_guard = (full[0], full[-1])
        guard = self._guard(path, code)
        if guard:
            self._keep(f"#ifndef {guard}", path, 1)
            self._keep(f"#define {guard}", path, 1)
        for number, (line, bare) in enumerate(zip(lines, code, strict=True), 1):
            directive = _joined(code, number) if bare.lstrip().startswith(("#", "%:")) else ""
            condition = _CONDITION.match(directive)
            if condition and number not in own_guard:
                self._condition(condition.group(1), depth)
            include = _INCLUDE.fullmatch(directive)
            if _ONCE.match(directive):
                continue  # nvcc warns about the pragma in a main file
            if include is None:
                self._line(line, directive, path, number)
            else:
                self._include(line, include.group(1), path, number, above)
        del self.read[depth:]
        if guard:
            self._keep("#endif", path, len(lines))

    def _text(self, path: str, where: str) -> str:
        """A file's text with lines that end in one way."""
        text = self.inputs.text(path, where=where)
        if "\0" in text:
            raise RequestError(f"{path} holds a NUL character, which no source does", where=where)
        self.files[path] = text
        return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")

    def _condition(self, word: str, depth: int) -> None:
        """An `if`, `el` or `endif`: what was read under a condition that ends need not have been. `depth`: of the
        conditions round the file."""
        if word != "if" and len(self.read) > depth:
            self.read.pop()
        if word != "endif":
            self.read.append(set())

    def _line(self, line: str, directive: str, path: str, number: int) -> None:
        """Any line but an `#include`."""
        if _CONDITION.match(directive):  # the user's own headers are in no folder that a compiler looks in
            line = _HAS_INCLUDE.sub(lambda each: "1" if self._find(each[1][1:-1], path) else each[0], line)
        self._keep("" if _LINE.match(directive) else line, path, number)
        if define := _DEFINE.match(directive):
            self.macros.setdefault(define.group(1))

    def _guard(self, path: str, code: list[str]) -> str:
        """The macro that guards a file with `#pragma once`; empty for one that needs none."""
        if not any(_ONCE.match(line) for line in code):
            return ""
        self.read[-1].add(path)
        if len(self.read) > 1 and path not in self.guards:
            self.guards[path] = f"ONCE_{len(self.guards)}_FUSIOND"
            self.macros.setdefault(self.guards[path])
        return self.guards.get(path, "")

    def _include(self, line: str, target: str, path: str, number: int, above: tuple[str, ...]) -> None:
        name = target[1:-1].strip()
        if target[:1] + target[-1:] not in ("<>", '""') or not name or line.rstrip().endswith("\\"):
            # An error if the compiler comes past it, which an `#if` round it may prevent.
            self._keep(
                "#error #include of a macro is not supported; name the file in quotes, on one line", path, number
            )
            return
        found = self._find(name, path if target[0] == '"' else "")
        if found is not None:
            self._own(found, line, path, number, above)
            return
        self.headers.append(name)
        self.includes[len(self.lines)] = line
        self._keep("", path, number)

    def _own(self, found: str, line: str, path: str, number: int, above: tuple[str, ...]) -> None:
        """The text of a header of the user's, unless it has been read."""
        if any(found in read for read in self.read):
            return
        if found in above or found == path:
            guarded = self.files.get(found, "").count("#ifndef")
            if not guarded and found not in self.guards:
                raise RequestError(f"{line.strip()} includes itself", where=f"{path}:{number}")
            return  # its include guard makes the second copy empty
        self.file(found, f"{path}:{number}", (*above, path))

    def _find(self, name: str, path: str = "") -> str | None:
        """The user's header of that name: beside a file, or in a folder."""
        places = [*([(path, name)] if path else []), *((self.yaml, f"{folder}/{name}") for folder in self.folders)]
        return next((found for at, each in places if (found := beside(self.inputs, at, each)) is not None), None)

    def _keep(self, line: str, path: str, number: int) -> None:
        self.lines.append(line)
        self.origins.append((path, number))
        if len(self.lines) > _MAX_LINES:
            raise RequestError(f"more than {_MAX_LINES} lines with all its includes", where=path)


def beside(inputs: Inputs, path: str, relative: str) -> str | None:
    """A file beside another one; None where there is none."""
    try:
        return inputs.beside(path, relative, where="")
    except RequestError:
        return None


def _guarded(code: list[str]) -> bool:
    """Whether a file is empty when it is read again: `#ifndef G`, `#define G` ... `#endif`, and nothing round it."""
    lines = [line.strip() for line in code if line.strip()]
    head = re.fullmatch(r"#\s*(?:ifndef\s+(\w+)|if\s+!\s*defined\s*\(?\s*(\w+)\s*\)?)", lines[0]) if lines else None
    if head is None or len(lines) < 3 or re.match(r"#\s*endif\b", lines[-1]) is None:
        return False
    if re.match(rf"#\s*define\s+{head.group(1) or head.group(2)}\b", lines[1]) is None:
        return False
    depth = 0
    for at, line in enumerate(lines):
        found = _CONDITION.match(line)
        if found is not None:
            depth += {"if": 1, "endif": -1}.get(found.group(1), 0)
            if (depth == 0 or (depth == 1 and found.group(1) == "el")) and at < len(lines) - 1:
                return False
    return depth == 0


def _joined(code: list[str], number: int) -> str:
    """A line, counted from 1, with those that a backslash joins to it."""
    joined = code[number - 1]
    while joined.endswith("\\") and number < len(code):
        joined = joined[:-1] + " " + code[number]
        number += 1
    return joined


_PIECE = re.compile(
    r"""//(?:\\\n|[^\n])* | /\*.*?(?:\*/|\Z)
      | \b(?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\(.*?\)(?P=fence)"
      | "(?:\\.|[^"\\\n])*" | (?<![\w])'(?:\\.|[^'\\\n])*' | [uUL]8?'(?:\\.|[^'\\\n])*'
      | \.?[0-9](?:[eEpP][+-]|'(?=\w)|[\w.])* """,
    re.DOTALL | re.VERBOSE,
)


@functools.lru_cache(maxsize=16)  # a file's text is looked at by many, and a regular expression takes its time
def without_comments(text: str) -> str:
    """The text with comments blanked out, lines and columns kept."""

    def blank(match: re.Match[str]) -> str:
        piece = match.group()
        return re.sub(r"[^\n]", " ", piece) if piece.startswith(("//", "/*")) else piece

    return _PIECE.sub(blank, text)
