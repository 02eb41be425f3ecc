"""Loads the scheduler library and kernel objects (`fusiond.build.cpu.commands`), and runs launches in this process.

    hist = runtime.load(Path("kernel.so")).entry("hist")     # FUSIOND_ENTRY(hist, histogram) in the kernel's text
    runtime.launch(hist, NativeLaunch(grid=(512, 1, 1), block=(256, 1, 1), shared_bytes=80), [counts, x, np.int32(n)])

An argument is a NumPy array (its address is passed; the kernel reads and writes it in place), a NumPy scalar, or
the bytes of a struct. A launch runs in the calling thread, without the GIL; launches wait for each other. A kernel
that spins for another thread never ends: run kernels in a child process with a time limit. After a `Fault` the process
can go on, but a wild write may have damaged it: replace the child. `ABI` and the structs mirror runtime/abi.h.
"""

from __future__ import annotations

import _ctypes
import ctypes
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fusiond.devices.counting.kernels import CountedShape

ABI = 5
_CHECKED = 1
_COOPERATIVE = 2
_ALIGNMENT = 64

Dim3 = tuple[int, int, int]
Argument = NDArray[Any] | np.generic | bytes


class NativeError(Exception):
    """The library or a kernel object cannot be used as asked: a version, a name, an argument."""


class FaultKind(Enum):
    """Why a launch failed; the values are those of `fusiond_code`."""

    BAD_LAUNCH = 1  # refused before anything ran
    BARRIER_STUCK = 2  # every live thread waits, none in a warp operation
    BARRIER_MISUSE = 3  # a barrier's id, count or kind cannot be right
    WARP_STUCK = 4  # every live thread waits, some in a warp operation
    WARP_MISUSE = 5  # a warp operation's mask, width or source lane cannot be right
    STACK_OVERFLOW = 6
    ILLEGAL_ADDRESS = 7
    ARITHMETIC = 8  # an integer division that the processor refuses
    TRAP = 9  # assert() or __trap()
    SHARED_OVERRUN = 10  # a write behind the dynamic shared memory
    MISALIGNED = 11  # an access at an address that its type does not allow, such as a float4 at 8


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLaunch(CountedShape):
    """How a kernel is started. Cooperative: all blocks are alive at once, so that they may wait for each other."""

    seed: int = 0  # 0: blocks and threads in order; any other: in a random order that the seed determines
    checked: bool = False  # poison shared memory before each block and look for writes behind it; not for timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A launch that ran to its end."""

    elapsed_ns: int
    switches: int  # from one suspended CUDA thread to another


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A launch that failed."""

    kind: FaultKind
    text: str  # says who waits where
    block: Dim3
    thread: Dim3 | None


class _Entry(ctypes.Structure):
    _fields_ = (
        ("run", ctypes.c_void_p),
        ("module", ctypes.c_void_p),
        ("argument_count", ctypes.c_uint32),
        ("argument_bytes", ctypes.POINTER(ctypes.c_uint32)),
    )


class _Symbol(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("bytes", ctypes.c_uint64))


class _Launch(ctypes.Structure):
    _fields_ = (
        ("abi", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("entry", ctypes.POINTER(_Entry)),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("stack_bytes", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
    )


class _Report(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_int32),
        ("block", ctypes.c_uint32 * 3),
        ("thread", ctypes.c_uint32 * 3),
        ("has_thread", ctypes.c_uint32),
        ("elapsed_ns", ctypes.c_uint64),
        ("switches", ctypes.c_uint64),
        ("text", ctypes.c_char * 2000),
    )


_ONE_AT_A_TIME = threading.Lock()  # in the whole process: a launch watches the process's signals
_Exported = TypeVar("_Exported", _Entry, _Symbol)


@dataclass(frozen=True, slots=True)
class NativeEntry:
    """A kernel that can be launched."""

    name: str
    argument_bytes: tuple[int, ...]
    _module: NativeModule  # keeps the object loaded
    _native: _Entry


class NativeModule:
    """A loaded kernel object."""

    def __init__(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise NativeError(f"cannot load {path.name}: {error}") from error
        self._path = path

    def entry(self, name: str) -> NativeEntry:
        """The kernel exported by FUSIOND_ENTRY(name, ...)."""
        native = self._exported(_Entry, f"fusiond_entry_{name}")
        sizes = tuple(native.argument_bytes[i] for i in range(native.argument_count))
        return NativeEntry(name, sizes, self, native)

    def symbol(self, name: str) -> NDArray[np.uint8]:
        """The bytes of the variable exported by FUSIOND_SYMBOL(name, ...), to read and write; not beyond `close`."""
        native = self._exported(_Symbol, f"fusiond_symbol_{name}")
        memory = (ctypes.c_uint8 * native.bytes).from_address(native.address)
        return np.ctypeslib.as_array(memory)

    def close(self) -> None:
        """Unloads the object; its entries and symbols are dead from then on."""
        _ctypes.dlclose(self._library._handle)

    def _exported(self, kind: type[_Exported], name: str) -> _Exported:
        try:
            return kind.in_dll(self._library, name)
        except ValueError as error:
            raise NativeError(f"{self._path.name} exports no {name}") from error


class Runtime:
    """The scheduler library."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.fusiond_abi.restype = ctypes.c_uint32
        if (found := self._library.fusiond_abi()) != ABI:
            raise NativeError(f"the scheduler library is version {found}, but {ABI} is needed: build it again")
        self._library.fusiond_run.argtypes = [ctypes.POINTER(_Launch), ctypes.POINTER(_Report)]
        self._library.fusiond_run.restype = ctypes.c_int32

    def load(self, path: Path) -> NativeModule:
        """Loads a kernel object. A path names one object for the life of the process: never overwrite a loaded file."""
        return NativeModule(path)

    def launch(self, entry: NativeEntry, launch: NativeLaunch, arguments: Sequence[Argument]) -> Finished | Fault:
        """Runs one launch to its end; the arrays among `arguments` are read and written in place."""
        packed = pack(entry.name, entry.argument_bytes, arguments)
        # Each value on an alignment that any type of the kernel may assume.
        starts = list(accumulate((_aligned(len(value)) for value in packed), initial=0))
        memory = ctypes.create_string_buffer(starts[-1] + _ALIGNMENT)
        base = _aligned(ctypes.addressof(memory))
        for start, value in zip(starts, packed, strict=False):
            ctypes.memmove(base + start, value, len(value))
        addresses = (ctypes.c_void_p * len(starts))(*(base + start for start in starts))
        request = _Launch(
            abi=ABI,
            flags=(_CHECKED if launch.checked else 0) | (_COOPERATIVE if launch.cooperative else 0),
            entry=ctypes.pointer(entry._native),
            arguments=addresses,
            grid=launch.grid,
            block=launch.block,
            shared_bytes=launch.shared_bytes,
            seed=launch.seed,
        )
        report = _Report()
        with _ONE_AT_A_TIME:
            self._library.fusiond_run(ctypes.byref(request), ctypes.byref(report))
        if report.code == 0:
            return Finished(elapsed_ns=report.elapsed_ns, switches=report.switches)
        return Fault(
            kind=FaultKind(report.code),
            text=report.text.decode(errors="replace"),
            block=_dim3(report.block),
            thread=_dim3(report.thread) if report.has_thread else None,
        )


def pack(kernel: str, sizes: Sequence[int], arguments: Sequence[Argument]) -> list[bytes]:
    """The bytes of each argument as a kernel takes it that takes so many of each."""
    if len(arguments) != len(sizes):
        raise NativeError(f"{kernel} takes {len(sizes)} arguments, not {len(arguments)}")
    packed = []
    for position, (argument, size) in enumerate(zip(arguments, sizes, strict=True)):
        if isinstance(argument, np.ndarray):
            if not argument.flags.c_contiguous:
                raise NativeError(f"argument {position} of {kernel} is an array that is not contiguous")
            data = argument.ctypes.data.to_bytes(8, sys.byteorder)
        else:
            data = argument if isinstance(argument, bytes) else argument.tobytes()
        if len(data) != size:
            raise NativeError(f"argument {position} of {kernel} has {size} bytes, not {len(data)}")
        packed.append(data)
    return packed


def _aligned(address: int) -> int:
    return -(-address // _ALIGNMENT) * _ALIGNMENT


def _dim3(words: Sequence[int]) -> Dim3:
    return (words[0], words[1], words[2])
