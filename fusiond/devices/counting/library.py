"""The C++ library that runs translated kernels: built by g++ once per machine, called through ctypes."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusiond.build import gxx
from fusiond.build.cache import BuildCache, default_folder, of_folder
from fusiond.devices.counting.rows import CODE
from fusiond.model.errors import DeviceError
from fusiond.model.keys import content_key

RUNTIME = Path(__file__).parent / "runtime"
COUNTS = np.dtype(
    [
        (name, "u8")
        for name in (
            "warps", "lanes", "read_bytes", "write_bytes", "atomic_bytes", "read_sectors", "write_sectors",
            "atomic_sectors", "wavefronts", "minimal_wavefronts", "local_bytes",
        )
    ]
)  # fmt: skip
_FLAGS = (
    *("-std=c++20", "-O2", "-ftree-vectorize", "-w", "-fPIC", "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing"),
    *("-fno-math-errno", "-fno-trapping-math"),
)
_NAME = "the counting library"


class CountRequest(ctypes.Structure):
    """One launch: runtime/abi.h says what each is."""

    _fields_ = (
        ("footprint", ctypes.c_void_p),
        ("code", ctypes.c_void_p),
        ("instructions", ctypes.c_int32),
        ("register_bytes", ctypes.c_int32),
        ("constants", ctypes.c_void_p),
        ("specials", ctypes.c_void_p),
        ("special_count", ctypes.c_int32),
        ("parameters", ctypes.c_void_p),
        ("parameter_bytes", ctypes.c_int32),
        ("constant_bank", ctypes.c_void_p),
        ("constant_bank_bytes", ctypes.c_int64),
        ("local_bytes", ctypes.c_int32),
        ("shared_bytes", ctypes.c_int32),
        ("dynamic_shared_bytes", ctypes.c_int32),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        ("blocks", ctypes.c_void_p),
        ("block_count", ctypes.c_int64),
        ("resident", ctypes.c_int32),
        ("multiprocessors", ctypes.c_int32),
        ("cooperative", ctypes.c_int32),
        ("turn", ctypes.c_int32),
        ("backwards", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("allocations", ctypes.c_void_p),
        ("allocation_count", ctypes.c_int32),
        ("limit", ctypes.c_int64),
        ("counts", ctypes.c_void_p),
        ("new_read_sectors", ctypes.c_void_p),
        ("new_write_sectors", ctypes.c_void_p),
        ("shortest_block", ctypes.c_int64),
    )


_POINTER = ctypes.c_void_p
_SIGNATURES: Mapping[str, tuple[Any, ...]] = {
    "cache": (_POINTER, ctypes.c_uint64),
    "cache_end": (None, _POINTER),
    "cache_flush": (None, _POINTER),
    "cache_mark": (None, _POINTER),
    "cache_renewed": (ctypes.c_int, _POINTER),
    "begin_launch": (None, _POINTER),
    "cache_hold": (None, _POINTER, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int),
    "footprint_end": (None, _POINTER),
    "footprint": (_POINTER, _POINTER, ctypes.c_int32),
    "printed": (_POINTER, ctypes.POINTER(ctypes.c_int64)),
    "dram_bytes": (ctypes.c_uint64, _POINTER, ctypes.c_int, ctypes.c_int),
    "sizes": (ctypes.c_int, ctypes.c_int),
    "launch": (ctypes.c_char_p, _POINTER, ctypes.POINTER(CountRequest), ctypes.POINTER(ctypes.c_int32)),
}
"""Function `counting_NAME` -> its result, and its parameters (runtime/abi.h)."""


class CountingLibrary:
    """The loaded library."""

    def __init__(self, path: Path) -> None:
        self._c = ctypes.CDLL(str(path))
        for name, (result, *arguments) in _SIGNATURES.items():
            function = getattr(self._c, f"counting_{name}")  # which keeps it, as an index would not
            function.restype, function.argtypes = result, arguments
        sizes = (CODE.itemsize, COUNTS.itemsize, ctypes.sizeof(CountRequest))
        if sizes != tuple(self._c.counting_sizes(which) for which in range(3)):
            raise DeviceError("the counting library and its caller do not agree on their structs")
        self._c.counting_begin()

    def operation(self, name: str) -> int:
        """The number of an operation; -1: there is none of that name."""
        found: int = self._c.counting_operation(name.encode())
        return found

    def launch(self, cache: Cache, request: CountRequest) -> tuple[int, str] | None:
        """Run blocks of the launch that was begun last, without the GIL; None, or which instruction failed and why."""
        at = ctypes.c_int32(-1)
        said = self._c.counting_launch(cache.handle, ctypes.byref(request), ctypes.byref(at))
        return None if said is None else (at.value, said.decode())

    def footprint(self, allocations: NDArray[np.uint64]) -> int:
        """A handle of the sectors that the calls of one launch touch. `allocations`: begins and ends, shape (n, 2)."""
        handle: int = self._c.counting_footprint(allocations.ctypes.data, len(allocations))
        return handle

    def end_footprint(self, handle: int) -> None:
        self._c.counting_footprint_end(handle)

    def printed(self) -> bytes:
        """What the kernels of this thread's last launch printed; nothing where it was counted."""
        size = ctypes.c_int64()
        return ctypes.string_at(self._c.counting_printed(ctypes.byref(size)), size.value)


class Cache:
    """The L2 of a run of launches; it begins empty."""

    def __init__(self, library: CountingLibrary, size_bytes: int) -> None:
        self._c = library._c
        self.handle = self._c.counting_cache(size_bytes)
        self.launches = 0

    def flush(self) -> None:
        """Write back what is dirty, on the account of the launches that wrote it."""
        self._c.counting_cache_flush(self.handle)

    def begin_launch(self) -> None:
        """What follows is on the account of the next launch; they are numbered from 0."""
        self.launches += 1
        self._c.counting_begin_launch(self.handle)

    def mark(self) -> None:
        """From here on `renewed` looks."""
        self._c.counting_cache_mark(self.handle)

    @property
    def renewed(self) -> bool:
        """Whether so many lines were touched since the mark that nothing before it matters."""
        return bool(self._c.counting_cache_renewed(self.handle))

    def hold(self, begin: int, end: int, *, written: bool) -> None:
        """As if the launch had just touched these addresses; nothing is read from DRAM for it."""
        self._c.counting_cache_hold(self.handle, begin, end, written)

    def dram_bytes(self, launch: int) -> tuple[int, int]:
        """Read and written by the launch of that number."""
        read, write = (self._c.counting_dram_bytes(self.handle, launch, which) for which in (0, 1))
        return read, write

    def close(self) -> None:
        self._c.counting_cache_end(self.handle)
        self.handle = None


def load(*, cache: BuildCache | None = None, runtime: Path = RUNTIME) -> CountingLibrary:
    """The library, built on first use. DeviceError where there is no g++, or it does not build it."""
    return _loaded(built(cache=cache, runtime=runtime))


_loaded = functools.cache(CountingLibrary)


def built(*, cache: BuildCache | None = None, runtime: Path = RUNTIME) -> Path:
    """Its file; the first build takes half a minute of processor time: who has a time limit has it built before."""
    objects = cache or of_folder(default_folder())
    texts = {each.name: each.read_text() for each in sorted(runtime.iterdir())}
    headers = {name: text for name, text in texts.items() if name.endswith(".h")}
    common = ["counting", _FLAGS, _processor(), headers]

    def make(compiler: str, work: Path) -> Path:
        sources = [runtime / name for name in texts if name.endswith(".cpp")]
        known = [*common, gxx.version(compiler)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda each: _object(compiler, each, work, objects, known), sources))
        out = work / "counting.so"
        command = [compiler, "-shared", *(str(work / f"{each.stem}.o") for each in sources), "-o", str(out)]
        gxx.demand(_NAME, command, work)
        return out

    return gxx.once("counting", [*common, texts], make, cache=objects)


def _object(compiler: str, source: Path, work: Path, cache: BuildCache, common: Sequence[object]) -> None:
    """Put the object of one source into `work`, from the cache where it was built before."""
    key = content_key([*common, source.name, source.read_text()])
    found, out = cache.get(key, ".o"), work / f"{source.stem}.o"
    if found is not None:
        out.write_bytes(found.read_bytes())
        return
    # Four hundred conversions take less with fewer optimisations, and are seldom what a kernel does.
    slim = ["-O1", "-fno-tree-vectorize"] if source.name in ("convert.cpp", "packed.cpp") else []
    gxx.demand(_NAME, [compiler, *_FLAGS, *_processor(), *slim, "-c", str(source), "-o", str(out)], work)
    cache.put(key, ".o", out.read_bytes())


def _processor() -> list[str]:
    """Vectors of 256 bits where the processor has them."""
    if platform.machine() != "x86_64":
        return []
    try:
        words = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return []
    return ["-march=x86-64-v3"] if {"avx2", "fma", "bmi2", "movbe"} <= set(words) else []
