"""Puts the user's own headers in the places where they are included.

    #include "bins.cuh"      -->  the text of bins.cuh      (each slot gets its own copy, inside its own namespace)
    #include <stdint.h>      -->  noted; hoisted above the namespaces when the fused source is written

A copy, not an include directive, because a header with `#pragma once` would otherwise reach one of the two slots only.
"""

from __future__ import annotations

import re

from fusiond.errors import RequestError
from fusiond.strategy import Inputs
from fusiond_hfuse.graph import Unit

_INCLUDE = re.compile(r"^\s*#\s*include\s*(.*?)\s*$")
_DEFINE = re.compile(r"^\s*#\s*define\s+([A-Za-z_]\w*)")
_ONCE = re.compile(r"^\s*#\s*pragma\s+once\b")
_MAX_DEPTH = 20
_MAX_LINES = 200_000

IMPLICIT = frozenset({
    "cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "device_launch_parameters.h", "device_functions.h",
    "device_atomic_functions.h", "vector_types.h", "vector_functions.h", "builtin_types.h",
})  # fmt: skip
"""Headers that nvcc includes by itself; they are left out of a fused source."""

HOISTED = frozenset({
    "assert.h", "cassert", "cfloat", "climits", "cmath", "cstddef", "cstdint", "cstdio", "cstring", "float.h",
    "inttypes.h", "limits.h", "math.h", "math_constants.h", "stddef.h", "stdint.h", "stdio.h", "string.h",
})  # fmt: skip
"""Headers that hold declarations only; they stand once, above both namespaces."""


def expand(inputs: Inputs, path: str, folders: tuple[str, ...], *, yaml: str, where: str) -> Unit:
    """Read a source and all that it includes in quotes.

    `folders` are the `include:` folders of the YAML file `yaml`, searched after the including file's own. Raises
    RequestError with file and line for a header that is not there, or that this version cannot place.
    """
    return _Expansion(inputs, folders, yaml).run(path, where)


class _Expansion:
    def __init__(self, inputs: Inputs, folders: tuple[str, ...], yaml: str) -> None:
        self.inputs = inputs
        self.folders = folders
        self.yaml = yaml
        self.lines: list[str] = []
        self.origins: list[tuple[str, int]] = []
        self.system: dict[str, None] = {}
        self.macros: dict[str, None] = {}
        self.files: dict[str, str] = {}
        self.once: set[str] = set()

    def run(self, path: str, where: str) -> Unit:
        self._file(path, where, ())
        return Unit(
            text="\n".join(self.lines) + "\n",
            origins=tuple(self.origins),
            system=tuple(self.system),
            macros=tuple(self.macros),
            files=dict(self.files),
        )

    def _file(self, path: str, where: str, above: tuple[str, ...]) -> None:
        if len(above) > _MAX_DEPTH:
            raise RequestError(f"includes are nested more than {_MAX_DEPTH} deep", where=where)
        if path in self.once:
            return
        text = self.inputs.text(path, where=where)
        if "\0" in text:
            raise RequestError(f"{path} holds a NUL character, which no source does", where=where)
        self.files[path] = text
        text = text.replace("\r\n", "\n")
        lines = text.removesuffix("\n").split("\n")
        code = without_comments(text).removesuffix("\n").split("\n")
        for number, (line, bare) in enumerate(zip(lines, code, strict=True), 1):
            if _ONCE.match(bare):
                self.once.add(path)
                continue  # the copy stands once already, and nvcc warns about the pragma in a main file
            include = _INCLUDE.match(bare)
            if include is None:
                self._keep(line, path, number)
                if define := _DEFINE.match(bare):
                    self.macros.setdefault(define.group(1))
            else:
                self._include(line, include.group(1), path, number, above)

    def _include(self, line: str, target: str, path: str, number: int, above: tuple[str, ...]) -> None:
        where = f"{path}:{number}"
        if target.startswith("<") and target.endswith(">"):
            name = target[1:-1].strip()
            if name not in IMPLICIT | HOISTED:
                raise RequestError(
                    f"#include <{name}>: this version knows no system headers but C's and CUDA's runtime; put what the "
                    f"kernel needs of it into a header of your own, in quotes",
                    where=where,
                )
            self.system.setdefault(name)
            self._keep(line, path, number)
        elif len(target) > 2 and target.startswith('"') and target.endswith('"'):
            name = target[1:-1]
            if name in IMPLICIT | HOISTED:
                self.system.setdefault(name)
                self._keep(f"#include <{name}>", path, number)
                return
            found = self._find(name, path, where)
            if found in self.once:
                return
            if found in above or found == path:
                guarded = self.files.get(found, "").count("#ifndef")
                if not guarded:
                    raise RequestError(f'#include "{name}" includes itself', where=where)
                return  # its include guard makes the second copy empty
            self._file(found, where, (*above, path))
        else:
            raise RequestError("#include of a macro is not supported; name the file in quotes", where=where)

    def _find(self, name: str, path: str, where: str) -> str:
        try:
            return self.inputs.beside(path, name, where=where)
        except RequestError as problem:
            for folder in self.folders:
                try:
                    return self.inputs.beside(self.yaml, f"{folder}/{name}", where=where)
                except RequestError:
                    continue
            raise problem

    def _keep(self, line: str, path: str, number: int) -> None:
        self.lines.append(line)
        self.origins.append((path, number))
        if len(self.lines) > _MAX_LINES:
            raise RequestError(f"more than {_MAX_LINES} lines with all its includes", where=path)


_PIECE = re.compile(
    r"""//[^\n]*(?:\\\n[^\n]*)* | /\*.*?(?:\*/|\Z) | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' """,
    re.DOTALL | re.VERBOSE,
)


def without_comments(text: str) -> str:
    """The text with comments blanked out, lines and columns kept."""

    def blank(match: re.Match[str]) -> str:
        piece = match.group()
        return re.sub(r"[^\n]", " ", piece) if piece.startswith(("//", "/*")) else piece

    return _PIECE.sub(blank, text)
