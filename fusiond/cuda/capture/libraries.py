"""Builds the CUDA runtime that needs no GPU with g++, once per machine and toolkit."""

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fusiond.build import compiler as compilers
from fusiond.build import gxx, nvcc
from fusiond.model.errors import DeviceError

RUNTIME = Path(__file__).parent / "runtime"
FLAGS = ("-std=c++20", "-O2", "-w", "-fPIC", "-fvisibility=default")
_NAME = "the CUDA runtime without a GPU"
_NM_SECS = 60.0
_DECLARED = re.compile(r"\bCUDARTAPI\w*\s+(\w+)\s*\(")
_LIBRARIES = ("lib", "lib64", "lib/*-linux-gnu", "targets/*/lib")
_PER_THREAD = re.compile(r"__CUDART_API_(PTDS|PTSZ)\((cuda\w+)\)")
"""Macros that let a call of a program built with --default-stream per-thread have another name."""


def cudart() -> tuple[Path, str]:
    """The CUDA runtime that needs no GPU, and the name that programs ask for (`libcudart.so.13`): of the version whose
    headers are here. Built on first use. DeviceError where g++ or the toolkit is missing, or it does not build."""
    toolkit = nvcc.find()
    if toolkit is None:
        raise DeviceError(nvcc.missing() or "no CUDA toolkit")
    name = f"libcudart.so.{toolkit.version.partition('.')[0]}"
    files = sorted([*(RUNTIME / "cudart").iterdir(), RUNTIME / "trace.h"])
    of = [toolkit.version, FLAGS, [(each.name, each.read_text()) for each in files]]
    return gxx.once("cudart", of, lambda compiler, work: _built(compiler, toolkit, name, work)), name


def _headers(toolkit: nvcc.Toolkit) -> Path:
    for folder in (toolkit.root / "include", *sorted(toolkit.root.glob("targets/*/include"))):
        if (folder / "cuda_runtime_api.h").is_file():
            return folder
    raise DeviceError(f"the CUDA toolkit in {toolkit.root} has no cuda_runtime_api.h: install the runtime's headers")


def _built(compiler: str, toolkit: nvcc.Toolkit, name: str, work: Path) -> Path:
    headers, sources = _headers(toolkit), sorted((RUNTIME / "cudart").glob("*.cpp"))
    with ThreadPoolExecutor() as pool:
        objects = list(pool.map(lambda each: _object(compiler, each, headers, work), sources))
    ours = _defined([str(each) for each in objects], work)
    real = next((each for place in _LIBRARIES for each in toolkit.root.glob(f"{place}/{name}")), None)
    declared = _declared(headers) | (_defined(["--dynamic", str(real)], work) if real is not None else set())
    stubs, script, out = work / "stubs.cpp", work / "versions.map", work / "cudart.so"
    stubs.write_text(_stubs(declared - ours, ours))
    script.write_text(f"{name} {{ global: cuda*; __cuda*; local: *; }};\n")
    aliases = [f"-Wl,--defsym={each}={_base(each)}" for each in sorted(declared - ours) if _base(each) in ours]
    objects.append(_object(compiler, stubs, headers, work))
    command = [compiler, "-shared", *map(str, objects), f"-Wl,-soname,{name}", f"-Wl,--version-script={script}"]
    gxx.demand(_NAME, [*command, *aliases, "-static-libstdc++", "-static-libgcc", "-o", str(out)], work)
    return out


def _defined(words: Sequence[str], work: Path) -> set[str]:
    """The runtime's functions in objects, or in a library."""
    found = compilers.run(["nm", "--defined-only", "--extern-only", *words], work, _NM_SECS).stdout
    return set(re.findall(r" T (_*cuda\w+)(?:@.*)?$", found, re.MULTILINE))


def _declared(headers: Path) -> set[str]:
    """Every function of the interface, as far as the headers say; the library has more (names with `_v2`)."""
    files = (headers / each for each in ("cuda_runtime_api.h", "crt/host_runtime.h"))
    texts = [each.read_text() for each in files if each.is_file()]
    found = {name for text in texts for name in _DECLARED.findall(text) if "cuda" in name}
    macros = {f"{name}_{kind.lower()}" for text in texts for kind, name in _PER_THREAD.findall(text)}
    return found | macros


def _base(name: str) -> str:
    """What a name for the per-thread default stream stands for: nothing ever overlaps here, so they do the same."""
    return name.removesuffix("_ptsz").removesuffix("_ptds")


def _stubs(names: Iterable[str], ours: set[str]) -> str:
    """Functions that this runtime does not have: a program may link them, but the first call ends it."""
    lines = ["#include <string>", "namespace cudart { [[noreturn]] void give_up(const std::string&); }"]
    for each in sorted(names):
        if _base(each) not in ours:
            lines.append(f'extern "C" void {each}() {{ cudart::give_up("the runtime without a GPU has no {each}"); }}')
    return "\n".join(lines) + "\n"


def _object(compiler: str, source: Path, headers: Path, work: Path) -> Path:
    out = work / f"{source.stem}.o"
    gxx.demand(_NAME, [compiler, *FLAGS, f"-I{headers}", "-c", str(source), "-o", str(out)], work)
    return out
