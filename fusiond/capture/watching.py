"""A program on a GPU under a small library that notes what it asks of the driver (runtime/watcher)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fusiond.build import compiler as compilers
from fusiond.build import gxx
from fusiond.build.cache import BuildCache, default_folder, of_folder
from fusiond.build.working import working_folder
from fusiond.errors import DeviceError
from fusiond.keys import content_key

RUNTIME = Path(__file__).parent / "runtime"
_FLAGS = (
    *("-std=c++20", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-ftls-model=initial-exec"),
    # A program may bring another libstdc++ than this machine's.
    *("-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL", "-Wl,-Bsymbolic"),
)
_TIMEOUT_SECS = 120.0


def library(*, cache: BuildCache | None = None) -> Path:
    """The library, built on first use. DeviceError where there is no g++, or it does not build it."""
    cache = cache or of_folder(default_folder())
    compiler = gxx.find()
    if compiler is None:
        raise DeviceError(gxx.missing() or "no g++")
    files = sorted([*(RUNTIME / "watcher").iterdir(), RUNTIME / "trace.h"])
    texts = [(each.name, each.read_text()) for each in files]
    key = content_key(["watcher", compilers.ask([compiler, "--version"]), _FLAGS, texts])
    with cache.turn(key, ".so") as found:
        if found is not None:
            return found
        with working_folder("watcher") as work:
            out = work / "watcher.so"
            sources = [str(each) for each in files if each.suffix == ".cpp"]
            done = compilers.run(
                [compiler, *_FLAGS, *sources, "-ldl", "-lpthread", "-o", str(out)], work, _TIMEOUT_SECS
            )
            if done.returncode != 0:
                raise DeviceError(f"the library that notes launches does not build: {done.stderr.strip()[:500]}")
            return cache.put(key, ".so", out.read_bytes())


def environment(
    folder: Path, *, seconds: float | None, launches: int | None, data: bool, given: Mapping[str, str] | None = None
) -> dict[str, str]:
    """In which a program runs so that its traces come to lie in a folder.

    It goes before the driver by LD_PRELOAD: the runtime takes the driver's functions when it is first used, and what
    CUDA_INJECTION64_PATH names is loaded after that.
    """
    found = dict(os.environ if given is None else given)
    before = [str(library()), *filter(None, [found.get("LD_PRELOAD")])]
    found |= {"LD_PRELOAD": ":".join(before), "FUSIOND_CAPTURE_OUT": str(folder.resolve())}
    found |= {"FUSIOND_CAPTURE_SECONDS": str(seconds)} if seconds is not None else {}
    found |= {"FUSIOND_CAPTURE_LAUNCHES": str(launches)} if launches is not None else {}
    found |= {"FUSIOND_CAPTURE_DATA": "1"} if data else {}
    flags = found.get("XLA_FLAGS", "")
    if "xla_dump_to" not in flags:  # else nobody knows the PTX of what XLA compiles
        found["XLA_FLAGS"] = f"{flags} --xla_dump_to={folder.resolve() / 'xla'}".strip()
    return found
