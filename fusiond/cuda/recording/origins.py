"""The origin of a kernel: its source, its name there, the compiler's options and its parameters."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fusiond.model.gpu.demangling import demangled
from fusiond.model.keys import text_key
from fusiond.model.program import Source

_FLAG = re.compile(
    r"--?(use_fast_math|expt-relaxed-constexpr|extended-lambda|lineinfo|std=c\+\+20"
    r"|(fmad|ftz|prec-div|prec-sqrt)=(true|false))"
)
_WITHOUT_EFFECT = re.compile(
    r"-w|-G|--?(device-debug|generate-line-info|disable-warnings|default-device|restrict|dopt=on|no-cache"
    r"|std=c\+\+(03|11|14|17)|(arch|gpu-architecture|maxrregcount|device-int128|brief-diagnostics|diag-.*)(=.*)?)"
)
"""What changes no result: another architecture is the device's matter, a register cap that of the search; C++17 is what
nvcc takes by itself."""
_WITH_VALUE = {"-D": "D", "--define-macro": "D", "-I": "I", "--include-path": "I"}


def short_name(mangled: str) -> str:
    """A function with its template arguments, as people call it: `ops::pool<float, 5>`."""
    text, depth = demangled(mangled), 0
    for at in range(len(text) - 1 if text.endswith(")") else -1, -1, -1):  # its parameters, if it has any
        depth += (text[at] == ")") - (text[at] == "(")
        if not depth:
            text = text[:at]
            break
    return text.removeprefix("void ")


@dataclass(frozen=True)
class Origin:
    """A kernel by its source. `name` has namespaces and template arguments, options are those of NVRTC."""

    text: str = field(repr=False)
    name: str
    options: tuple[str, ...]

    @functools.cached_property
    def key(self) -> str:
        return text_key("\0".join((self.text, self.name, *self.options)).encode())

    @functools.cached_property
    def told(self) -> CompilerOptions:
        return CompilerOptions.of(self.options)

    @property
    def plain(self) -> str:
        """The function's own name as a word: `pool` of `ops::pool<float, 5>`."""
        name = demangled(self.name) if self.name.startswith("_Z") else self.name
        return re.split(r"[<([]", name)[0].rpartition("::")[2].strip() or "kernel"

    def source(self) -> Source:
        told = self.told
        return Source(
            name=self.plain,
            text=self.text,
            entries=(self.name,),
            flags=told.flags,
            defines=told.defines,
            include_dirs=told.include,
        )


@dataclass(frozen=True, slots=True)
class RecordedParameter:
    """Of a kernel, as its source has it."""

    pointer: bool
    written: bool  #: A pointer to what is not const
    dtype: str | None
    """A Program's name of the number, or of what it points to; None where any will do, and of a struct."""
    struct: bool = False


@dataclass(frozen=True, slots=True)
class Drafted:
    """What the front end says of a kernel."""

    entry: str
    instance: str | None
    parameters: tuple[RecordedParameter, ...]
    shared: bool  #: It has a dynamic shared array


@dataclass(frozen=True)
class PtxOrigin(Origin):
    """A kernel by the PTX that its compiler made while the program ran; `name` is the entry, options there are none."""

    drafted: Drafted = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class CompilerOptions:
    """Options of a compiler, sorted."""

    defines: tuple[tuple[str, str], ...]
    include: tuple[str, ...]
    flags: tuple[str, ...]
    unknown: tuple[str, ...]  #: What a job cannot say

    @classmethod
    def of(cls, options: Iterable[str]) -> CompilerOptions:
        defines, include, flags, unknown = [], [], [], []
        for kind, text in _sorted(options):
            if kind == "D":
                name, _, value = text.partition("=")
                defines.append((name, value if "=" in text else "1"))
            elif kind == "I":
                include.append(text)
            elif _FLAG.fullmatch(text):
                flags.append(text)
            elif not _WITHOUT_EFFECT.fullmatch(text):
                unknown.append(text)
        return cls(tuple(defines), tuple(include), tuple(flags), tuple(unknown))


def _sorted(options: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(`D`, `I` or nothing, what it says)"""
    rest = iter(options)
    for each in rest:
        name, _, value = each.partition("=")
        if each in _WITH_VALUE:
            yield from ((_WITH_VALUE[each], behind) for behind in itertools.islice(rest, 1))
        elif each[:2] in ("-D", "-I"):
            yield each[1], each[2:].strip()
        elif name in _WITH_VALUE:
            yield _WITH_VALUE[name], value
        else:
            yield "", each
