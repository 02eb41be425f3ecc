"""A cubin as SASS: each instruction with the line of the PTX from which ptxas made it."""

import functools
import os
import re
from pathlib import Path

from fusiond.build import compiler
from fusiond.build.cache import BuildCache, default_folder, of_folder
from fusiond.build.nvcc import find as find_nvcc
from fusiond.build.working import working_folder
from fusiond.model.keys import content_key, text_key
from fusiond.model.outcomes import BuildFailed

_SECS = 120.0
_MISSING = (
    "no nvdisasm: pip install 'fusiond[nvcc]', or put the bin folder of a CUDA toolkit that has it on PATH, or set"
    " CUDA_HOME"
)


def find() -> Path | None:
    """The disassembler to use: on PATH, in CUDA_HOME, CUDA_PATH or /usr/local/cuda, beside nvcc, else the one that pip
    has installed. None when there is none."""
    toolkit = find_nvcc()
    beside = str(toolkit.ptxas.parent) if toolkit else ""
    return _find(*(os.environ.get(name, "") for name in ("PATH", "CUDA_HOME", "CUDA_PATH")), beside)


@functools.lru_cache(maxsize=8)
def _find(path: str, home: str, other_home: str, beside: str) -> Path | None:
    places = compiler.installed("nvdisasm", path, (home, other_home))
    places += [f"{beside}/nvdisasm"] if beside else []
    places += compiler.in_wheel("nvidia", "cu[1-9]*/bin/nvdisasm")
    return next((Path(each) for each in places if os.access(each, os.X_OK)), None)


def missing() -> str | None:
    """What to do when there is no disassembler, in one line; None when there is one."""
    return None if find() else _MISSING


@functools.lru_cache(maxsize=8)
def _version(tool: Path) -> str:
    match = re.search(r"\bV(\d+(?:\.\d+)+)", compiler.ask([str(tool), "--version"]))
    return match.group(1) if match else ""


def listing(cubin: Path, *, cache: BuildCache | None = None) -> str | BuildFailed:
    """The code of a cubin as text, with the PTX line of each instruction where it was built with -lineinfo.

    BuildFailed where there is no nvdisasm, or it does not read the file (one of a newer architecture)."""
    tool = find()
    if tool is None:
        return BuildFailed(reason=_MISSING)
    cache = cache or of_folder(default_folder())
    key = content_key(["listing", text_key(cubin.read_bytes()), _version(tool)])
    known = cache.get(key, ".sass")
    if known is not None:
        return known.read_text()
    with working_folder("nvdisasm") as work:
        done = compiler.run([str(tool), "--print-code", "--print-line-info-ptx", str(cubin)], work, _SECS)
    if done.returncode != 0:
        said = next(iter((done.stderr or done.stdout).strip().splitlines()), f"status {done.returncode}")
        return BuildFailed(reason=f"nvdisasm: {said}")
    cache.put(key, ".sass", done.stdout)
    return done.stdout
