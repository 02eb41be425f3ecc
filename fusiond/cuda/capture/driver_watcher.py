"""Runs a program on a GPU under a small library that records its driver calls (runtime/watcher)."""

import re
from collections.abc import Mapping
from pathlib import Path

from fusiond.build import gxx
from fusiond.cuda.capture.origins import XLA_FOLDER
from fusiond.devices.counting.model import GPUS
from fusiond.devices.cuda.driver import Driver, DriverError, DriverMissing
from fusiond.model.errors import DeviceError

RUNTIME = Path(__file__).parent / "runtime"
_FLAGS = (
    *("-std=c++20", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-ftls-model=initial-exec"),
    # A program may bring another libstdc++ than this machine's.
    *("-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL", "-Wl,-Bsymbolic"),
)


def library() -> Path:
    """The library, built on first use. DeviceError where there is no g++, or it does not build it."""
    files = sorted([*(RUNTIME / "watcher").iterdir(), RUNTIME / "trace.h"])

    def make(compiler: str, work: Path) -> Path:
        out = work / "watcher.so"
        sources = [str(each) for each in files if each.suffix == ".cpp"]
        command = [compiler, *_FLAGS, *sources, "-ldl", "-lpthread", "-o", str(out)]
        gxx.demand("the library that notes launches", command, work)
        return out

    return gxx.once("watcher", [_FLAGS, [(each.name, each.read_text()) for each in files]], make)


def environment(given: Mapping[str, str], out: Path, built: Path | None = None) -> dict[str, str]:
    """What a program needs beside `FUSIOND_CAPTURE_OUT` and its like so that its traces come to lie in a folder.
    `built`: the library, where it was built before.

    The library goes before the driver by LD_PRELOAD: CUDA's runtime takes the driver's functions when it is first used,
    and what CUDA_INJECTION64_PATH names is loaded after that."""
    ours = str(built or library())
    if re.search(r"[\s:]", ours):
        raise DeviceError(
            f"{ours}: LD_PRELOAD takes no path with spaces or colons; set FUSIOND_CACHE to another folder"
        )
    found = {**given, "LD_PRELOAD": ":".join([ours, *filter(None, [given.get("LD_PRELOAD")])])}
    flags = found.get("XLA_FLAGS", "")
    if "xla_dump_to" not in flags:  # or nobody would know the PTX of what XLA compiles
        found["XLA_FLAGS"] = f"{flags} --xla_dump_to={out / XLA_FOLDER}".strip()
    found.setdefault("CUPY_CACHE_IN_MEMORY", "1")  # CuPy's cache holds cubins only: NVRTC has their PTX
    return found


def device() -> str | None:
    """The first GPU, as `fusiond.devices.counting` calls it where it knows it; None where there is none."""
    try:
        name = Driver().name(0)
    except (DriverMissing, DriverError):
        return None
    return next((each for each in GPUS if each in name.lower().replace(" ", "")), name)
