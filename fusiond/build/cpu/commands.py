"""The g++ commands that build the runtime and the kernels; nothing here runs them.

`library`, `host` and `header` take about a second each, once a machine; `header` is optional and halves the time of
`kernel`.
A kernel's object is bound to the flags here and to `native.ABI`: put both into the key of a cache.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

RUNTIME = Path(__file__).parent / "runtime"
PRELUDE = "fusiond_cuda.h"
SCHEDULER = tuple(f"{part}.cpp" for part in ("scheduler", "grid", "barrier", "warp", "carrier", "failure", "signals"))

_LIBRARY = (
    "-std=c++17", "-O3", "-flto", "-g", "-Wall", "-Wextra", "-fno-exceptions", "-fno-rtti", "-fcf-protection=none",
)  # fmt: skip

# Device code is laxer than C++: bits are reinterpreted, integers wrap. Products and sums are not contracted, so that
# a result does not depend on the processor. A frame larger than the guard page must not step over it.
_KERNEL = (
    *("-std=c++17", "-O2", "-w", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-fdata-sections"),
    *("-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing", "-fno-math-errno", "-fno-trapping-math"),
    *("-fstack-clash-protection", "-fcf-protection=none"),
)
# Each access is checked for its type's alignment, as a GPU does: a few per cent of a kernel's time.
_ALIGNED = ("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")
_SANITIZE = ("-fsanitize=thread", "-g")
_INCLUDED = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([\w.]+)", re.MULTILINE)


def library(out: Path, *, cxx: str = "g++", flags: Sequence[str] = ()) -> list[str]:
    """The scheduler as a shared library, loaded before any kernel (`native.Runtime`)."""
    sources = [str(RUNTIME / name) for name in SCHEDULER]
    return [cxx, *_LIBRARY, *flags, "-fPIC", "-fvisibility=hidden", "-shared", *sources, "-o", str(out)]


def host(out: Path, *, cxx: str = "g++") -> list[str]:
    """The executable that runs one launch under ThreadSanitizer (`race.find_races`); it contains the scheduler.

    The scheduler is not instrumented (no -fsanitize here), or its own bookkeeping would be taken for the kernel's."""
    sources = [str(RUNTIME / name) for name in (*SCHEDULER, "host.cpp")]
    link = ["-Wl,--no-as-needed", "-ltsan", "-Wl,--as-needed", "-ldl"]
    return [cxx, *_LIBRARY, "-DFUSIOND_TSAN", *sources, *link, "-o", str(out)]


def header(folder: Path, *, cxx: str = "g++") -> list[str]:
    """A precompiled prelude in `folder`, for kernels that are built with `precompiled=folder`."""
    return [cxx, *_KERNEL, *_ALIGNED, "-x", "c++-header", str(RUNTIME / PRELUDE), "-o", str(folder / f"{PRELUDE}.gch")]


def kernel(
    source: Path,
    out: Path,
    *,
    cxx: str = "g++",
    flags: Sequence[str] = (),
    precompiled: Path | None = None,
    sanitize: bool = False,
) -> list[str]:
    """A kernel's shared object from the text of `translation_unit`; `sanitize`: for `race.find_races` only."""
    include = [] if precompiled is None or sanitize else ["-I", str(precompiled)]
    include += ["-I", str(RUNTIME)]
    extra = _SANITIZE if sanitize else _ALIGNED
    link = ["-shared", f"-Wl,-T,{RUNTIME / 'shared.ld'}"]
    return [cxx, *_KERNEL, *extra, *flags, *include, "-x", "c++", str(source), *link, "-o", str(out)]


def translation_unit(
    lowered: str,
    entries: Mapping[str, str],
    symbols: Mapping[str, str] | None = None,
    *,
    name: str = "kernel.cu",
    defines: Sequence[tuple[str, str]] = (),
) -> str:
    """The text that `kernel` compiles: prelude, lowered device source, then what it exports.

    `entries` and `symbols` map the exported name to a C++ expression: {"pool": "maxpool<float, 5>"}. `name` stands in
    compiler messages, assertions and races, with the line numbers of the device source. `defines` stand behind the
    prelude and the headers of the toolkit that the text names, whose own names they would change before these."""
    toolkit = [header for header in _INCLUDED.findall(lowered) if defines and (RUNTIME / header).is_file()]
    macros = [f'#include "{header}"' for header in toolkit]
    macros += [f"#define {macro} {value}" for macro, value in defines]
    exports = [f"FUSIOND_ENTRY({export}, {expression})" for export, expression in entries.items()]
    exports += [f"FUSIOND_SYMBOL({export}, {expression})" for export, expression in (symbols or {}).items()]
    return "\n".join([f'#include "{PRELUDE}"', *macros, f'#line 1 "{name}"', lowered, *exports, ""])
