"""Executes the kernels of a program that runs on the CUDA runtime without a GPU (runtime/cudart).

The runtime asks over a Unix socket (runtime/cudart/wire.h says what); each process of the program has its own
connection, thread and device memory. That memory is mapped at one address in both processes, so the interpreter works
where the program's pointers point to.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import os
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fusiond.build import ptx_entries
from fusiond.cuda.capture import fatbin
from fusiond.cuda.capture.trace import Fields
from fusiond.devices.counting import layout, library
from fusiond.devices.counting.kernels import CountedShape, CountError, LoadedPtx
from fusiond.devices.counting.model import H100
from fusiond.model.errors import FusiondError, RequestError
from fusiond.model.ptx.tree import PtxError

log = logging.getLogger(__name__)

_DONE, _FAULT, _REFUSED = 0, 1, 2
_FIRST, _STRIDE, _SLOTS = 0x1000_0000_0000, 1 << 40, 64
"""Where the memory of each process lies: below what programs and libraries take, each one's at a place of its own."""
_PROGRAM_BYTES, _OWN_BYTES = 512 << 30, 16 << 30
"""Of addresses: what the program allocates from, and behind it what the modules' variables take."""
_DEVICE_BYTES = 80 << 30
_FIXED_NOREPLACE, _NORESERVE = 0x100000, 0x4000
_ERRORS: Mapping[str, int] = {"misaligned": 716, "assertion": 710, "an access": 700, "an address": 700}
"""How a failure begins -> the runtime's error; any other is cudaErrorLaunchFailure."""
_LAUNCH_FAILURE = 719

Bytes = NDArray[np.uint8]


class LaunchService:
    """Answers the processes of one program, from `with` to its end."""

    def __init__(self, folder: Path) -> None:
        """`folder`: where the socket is made."""
        self.path = folder / "socket"
        self.processes = 0  #: That have asked for something
        self._slots = set(range(_SLOTS))
        self._lock = threading.Lock()
        self._library = library.load()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def __enter__(self) -> LaunchService:
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with self._lock:
            slot = min(self._slots) if self._slots else None
            if slot is not None:
                self._slots.discard(slot)
                self.processes += 1
        if slot is None:
            connection.close()  # more than 64 processes at once
            return
        try:
            with connection, contextlib.closing(_Memory(_FIRST + slot * _STRIDE)) as memory:
                _Process(connection, memory, self._library).serve()
        finally:
            with self._lock:
                self._slots.add(slot)


class _Memory:
    """What a process shares with the service. Pages that nobody has touched take none of the machine's memory."""

    def __init__(self, begin: int) -> None:
        self.begin, self.size = begin, _PROGRAM_BYTES + _OWN_BYTES
        self.file = os.memfd_create("fusiond-device", os.MFD_CLOEXEC)
        os.ftruncate(self.file, self.size)
        self._c = ctypes.CDLL(None, use_errno=True)
        self._c.mmap.restype = ctypes.c_void_p
        self._c.mmap.argtypes = (*(ctypes.c_void_p, ctypes.c_size_t), *3 * (ctypes.c_int,), ctypes.c_long)
        self._c.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        flags = mmap.MAP_SHARED | _FIXED_NOREPLACE | _NORESERVE
        found = self._c.mmap(begin, self.size, mmap.PROT_READ | mmap.PROT_WRITE, flags, self.file, 0)
        if found != begin:
            os.close(self.file)
            raise OSError(ctypes.get_errno(), "the memory of a GPU that is not there cannot be mapped")
        self._all: Bytes = np.ctypeslib.as_array((ctypes.c_uint8 * self.size).from_address(begin))
        self._used = _PROGRAM_BYTES

    def allocate(self, size: int) -> Bytes:
        """For a module's variables."""
        begin = self._used
        self._used += -(-size // layout.ALIGNMENT) * layout.ALIGNMENT
        if self._used > self.size:
            raise CountError(f"the modules' variables take more than {_OWN_BYTES >> 30} GiB")
        return self._all[begin : begin + size]

    def close(self) -> None:
        self._c.munmap(self.begin, self.size)
        os.close(self.file)


class _Process:
    """One process of the program."""

    def __init__(self, connection: socket.socket, memory: _Memory, counting: library.CountingLibrary) -> None:
        self._connection, self._memory, self._library = connection, memory, counting
        self._modules: dict[int, LoadedPtx] = {}
        self._places: NDArray[np.uint64] = np.zeros((0, 2), np.uint64)

    def serve(self) -> None:
        """Until it ends."""
        asked: dict[int, Callable[[Fields], bytes]] = {2: self._module, 3: self._launch, 4: self._occupancy}
        while (head := self._receive(8)) is not None:
            size, kind = struct.unpack("<II", head)
            data = self._receive(size)
            if data is None:
                return
            if kind == 1:
                answer = struct.pack("<QQQQ", self._memory.begin, self._memory.size, _PROGRAM_BYTES, _DEVICE_BYTES)
                head = struct.pack("<II", len(answer), _DONE)
                socket.send_fds(self._connection, [head + answer], [self._memory.file])
                continue
            try:
                status, answer = _DONE, asked[kind](Fields(data))
            except _Fault as fault:
                status, answer = _FAULT, struct.pack("<I", fault.error) + _text(fault.text) + _text(fault.printed)
            except (FusiondError, PtxError, CountError) as problem:
                status, answer = _REFUSED, _text(str(problem))
            except Exception as problem:  # ours: the program ends in one line, too
                log.exception("a request of kind %d", kind)
                status, answer = _REFUSED, _text(f"the service failed: {type(problem).__name__}: {problem}")
            self._connection.sendall(struct.pack("<II", len(answer), status) + answer)

    def _receive(self, size: int) -> bytes | None:
        """None: the process has ended."""
        found = bytearray()
        with contextlib.suppress(ConnectionError):
            while len(found) < size and (part := self._connection.recv(min(size - len(found), 1 << 20))):
                found += part
        return bytes(found) if len(found) == size else None

    def _module(self, fields: Fields) -> bytes:
        number, image = fields.u64(), fields.raw()
        texts = fatbin.ptx(image)
        if not texts:
            raise RequestError(
                "a module has no PTX: build the program with nvcc -gencode arch=compute_90,code=[sm_90,compute_90], and"
                " without -rdc=true, which leaves it out"
            )
        loaded = self._modules[number] = LoadedPtx(texts[0], self._library, self._memory.allocate)
        registers: dict[str, int] = {}
        for each in reversed(fatbin.cubins(image)):
            registers |= fatbin.registers(each)
        functions = [self._function(loaded, texts[0], name, registers.get(name, 0)) for name in loaded.module.kernels]
        variables = [
            _text(each.name) + struct.pack("<Q", loaded.image.address(each.name))
            for each in loaded.module.variables
            if each.space in ("global", "const")
        ]
        return b"".join([*_counted(functions), *_counted(variables)])

    def _function(self, loaded: LoadedPtx, text: str, name: str, registers: int) -> bytes:
        places = layout.of_kernel(loaded.module, loaded.module.kernels[name])
        head = ptx_entries.module(text).entries[name]
        limits = head.directive("reqntid") or head.directive("maxntid") or (1024,)
        parameters = ptx_entries.parameters(text)[name]
        return (
            _text(name)
            + struct.pack("<IIII", registers, places.shared_bytes, places.local_bytes, min(int(np.prod(limits)), 1024))
            + b"".join(_counted([struct.pack("<II", each.offset_bytes, each.size_bytes) for each in parameters]))
        )

    def _launch(self, fields: Fields) -> bytes:
        loaded, name = self._modules[fields.u64()], fields.text()
        grid, block, cluster = fields.three(), fields.three(), fields.three()
        shape = CountedShape(grid=grid, block=block, shared_bytes=fields.u32(), cooperative=bool(fields.u32()))
        packed = fields.raw()
        if fields.u32():
            self._places = np.frombuffer(fields.rest(16 * fields.u32()), np.uint64).reshape(-1, 2)
        if cluster != (1, 1, 1):
            loaded.clusters[name] = cluster
        places = loaded.code(name).layout.parameters
        kernel = loaded.module.kernels[name]
        arguments = [packed[places[each.name] :][: each.size_bytes] for each in kernel.parameters]
        done = loaded.execute(name, shape, arguments, self._places, H100)
        if done.failed is not None:
            raise _Fault(done.failed, done.printed)
        return _text(done.printed)

    def _occupancy(self, fields: Fields) -> bytes:
        registers, shared_bytes, threads = fields.three()
        return struct.pack("<I", H100.occupancy(threads, shared_bytes, registers).blocks_per_sm)


class _Fault(Exception):
    """A kernel that a GPU would not have finished either."""

    def __init__(self, text: str, printed: bytes) -> None:
        super().__init__(text)
        self.text, self.printed = text, printed
        why = text.split(": ", 2)[-1] if text.startswith("PTX line") else text
        self.error = next((error for begin, error in _ERRORS.items() if begin in why), _LAUNCH_FAILURE)


def _text(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<I", len(data)) + data


def _counted(parts: Sequence[bytes]) -> list[bytes]:
    return [struct.pack("<I", len(parts)), *parts]
