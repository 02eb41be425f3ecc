"""Finds the ptxas programs of this machine and chooses the newest one that accepts a PTX text.

A text says for which instruction set it was written (`.version 9.4`) and for which GPU (`.target sm_90a`). An assembler
takes the texts of its own instruction set and of those before it, and assembles `sm_80` for any later GPU, `sm_100f`
for its family, `sm_90a` for that one alone ("Parallel Thread Execution ISA", .version and .target).
"""

import contextlib
import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from fusiond.build import cache, compiler
from fusiond.build.working import working_folder
from fusiond.model.errors import FusiondError
from fusiond.model.keys import text_key
from fusiond.model.outcomes import BuildFailed

_VERSION = re.compile(r"^\s*\.version\s+(\d+)\.(\d+)", re.MULTILINE)
_TARGET = re.compile(r"^\s*\.target\s+sm_(\d+)([af]?)\b", re.MULTILINE)
_RELEASES = {(8, 6): "12.7", (8, 7): "12.8", (8, 8): "12.9"}
"""Instruction sets whose toolkit has another number than theirs: there was no new one with CUDA 12.6."""
_ASK = ".version 99.0\n.target sm_90\n.address_size 64\n"
MISSING = "no ptxas, which PTX is assembled with: pip install 'fusiond[nvcc]', or name one in FUSIOND_PTXAS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembler:
    path: Path
    release: tuple[int, ...]  #: Of CUDA: 13, 0, 88
    isa: tuple[int, int]  #: The newest instruction set that it knows
    archs: frozenset[str]  #: What it assembles for: `sm_90a`

    @property
    def version(self) -> str:
        return ".".join(map(str, self.release))


def found() -> tuple[Assembler, ...]:
    """Those that are there, the newest first: FUSIOND_PTXAS alone (several are separated like those of PATH), else on
    PATH, in CUDA_HOME, CUDA_PATH and /usr/local/cuda, in NVIDIA's wheels, and the two of Triton's wheel."""
    variables = ("FUSIOND_PTXAS", "FUSIOND_NVCC", "PATH", "CUDA_HOME", "CUDA_PATH")
    return _found(tuple(os.environ.get(name, "") for name in variables))


@functools.lru_cache(maxsize=8)
def _found(environment: tuple[str, ...]) -> tuple[Assembler, ...]:
    named, nvcc, path, *homes = environment
    places = named.split(os.pathsep) if named else [
        *((str(Path(nvcc).parent / "ptxas"),) if nvcc else ()),
        *compiler.installed("ptxas", path, homes),
        *compiler.in_wheel("nvidia", "cu[1-9]*/bin/ptxas", "cuda_nvcc/bin/ptxas"),
        *compiler.in_wheel("triton", "backends/nvidia/bin/ptxas", "backends/nvidia/bin/ptxas-blackwell"),
    ]  # fmt: skip
    files = dict.fromkeys(os.path.realpath(each) for each in places if each and os.access(each, os.X_OK))
    known = {each.version: each for each in map(_asked, reversed(files)) if each is not None}
    return tuple(sorted(known.values(), key=lambda each: each.release, reverse=True))


def _asked(path: str) -> Assembler | None:
    """What an assembler says of itself; None for what is none."""
    said = _said(path)
    release, isa = re.search(r"\bV(\d+(?:\.\d+)+)", said), re.search(r"current version is '(\d+)\.(\d+)'", said)
    if release is None or isa is None:
        return None
    archs = frozenset(re.findall(r"'(sm_\d+[af]?)'", said))
    numbers = tuple(map(int, release[1].split(".")))
    return Assembler(path=Path(path), release=numbers, isa=(int(isa[1]), int(isa[2])), archs=archs)


def _said(path: str) -> str:
    """Its version, the instruction set that it knows and its help, from the build cache where it was asked before: to
    start it takes 10 ms each time. What a script says may change without it, and is not kept."""
    status, kept = os.stat(path), cache.of_folder(cache.default_folder())
    key = text_key(f"{path} {status.st_size} {status.st_mtime_ns}")
    with contextlib.suppress(OSError):
        if (known := kept.get(key, ".ptxas")) is not None:
            return known.read_text(encoding="utf-8")
    said = [compiler.ask([path, "--version"])]
    with working_folder("ptxas") as work:
        (work / "ask.ptx").write_text(_ASK)
        for words in (["-arch=sm_90", str(work / "ask.ptx")], ["--help"]):
            said.append(compiler.ask([path, *words]) if all(said) else "")
    if all(said):
        with contextlib.suppress(OSError, FusiondError), open(path, "rb") as file:
            if file.read(4) == b"\x7fELF":
                kept.put(key, ".ptxas", "".join(said))
    return "".join(said)


def choose(text: str, arch: str, file: str) -> Assembler | BuildFailed:
    """The newest assembler that takes a text and assembles it for an architecture (`sm_90a`); else one line that names
    `file` and the line in it."""
    version, target = _VERSION.search(text), _TARGET.search(text)
    if version is None or target is None:
        lacks = ".version 8.0" if version is None else ".target sm_90"
        return BuildFailed(reason=f"{file}: it has no line such as {lacks}: not PTX")
    refused = _mismatch(target, arch)
    if refused is not None:
        where = f"{file}:{_line(text, target)}: {target[0].strip()}"
        return BuildFailed(reason=f"{where} {refused}")
    there = found()
    if not there:
        return BuildFailed(reason=f"{file}: {MISSING}")
    isa = int(version[1]), int(version[2])
    new_enough = [each for each in there if each.isa >= isa]
    taking = next((each for each in new_enough if arch in each.archs), None)
    if taking is not None:
        return taking
    release = release_of(isa)
    if not new_enough:
        wanted = f"{file}:{_line(text, version)}: {version[0].strip()} needs the ptxas of CUDA {release} or later"
    else:
        wanted = f"{file}:{_line(text, target)}: no ptxas that is here assembles for {arch}"
    listed = ", ".join(f"{each.version} ({each.path})" for each in there)
    remedy = f"'nvidia-cuda-nvcc>={release}', and set FUSIOND_PTXAS=DIR/nvidia/cu13/bin/ptxas"
    return BuildFailed(reason=f"{wanted}; there is {listed}: pip install --no-deps --target DIR {remedy}")


def release_of(isa: tuple[int, int]) -> str:
    """The CUDA toolkit that an instruction set came with: 13.0 of 9.0, 12.9 of 8.8 (its release history)."""
    return _RELEASES.get(isa, f"{isa[0] + 4}.{isa[1]}")


def _mismatch(target: re.Match[str], arch: str) -> str | None:
    """Why a text for `target` cannot run on an architecture."""
    number, suffix = int(target[1]), target[2]
    own = int(re.sub(r"\D", "", arch) or 0)
    if (suffix == "a" and own != number) or (suffix == "f" and own // 10 != number // 10):
        alone = f"the family of sm_{number}" if suffix == "f" else f"sm_{number}"
        return f"runs on {alone} alone, and this is for sm_{own}: compile it for sm_{own}"
    if own < number:
        return f"is newer than sm_{own}: compile it for that"
    return None


def _line(text: str, match: re.Match[str]) -> int:
    return text.count("\n", 0, match.end()) + 1
