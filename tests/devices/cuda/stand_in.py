"""A GPU that is not there: a driver whose device memory is host memory (`fake_libcuda.cpp`), and over it the part of
`pycuda.driver` that fusiond uses, with names, argument order and exceptions as PyCUDA has them.
"""

from __future__ import annotations

import ctypes
import gc
import subprocess
import types
import weakref
from collections.abc import Mapping
from ctypes import byref, c_double, c_float, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from fusiond.build import gxx
from fusiond.devices.base import Loaded
from fusiond.devices.cuda.driver import Driver
from fusiond.devices.cuda.executor import CudaExecutor
from fusiond.devices.cuda.loop_code import with_trampolines
from fusiond.devices.cuda.nvml import Sensors
from fusiond.model.gpu.entry_table import EntryName, EntryParameter, EntryTable, table_bytes
from fusiond.model.program import Program, Source, SourceKind

KERNELS: Mapping[str, tuple[int, ...]] = {
    # As fake_libcuda.cpp has them: name -> bytes of each parameter.
    "double_it": (8, 4),
    "overrun": (8, 4),
    "hungry": (8, 4),
    "add": (8, 8, 4),
}


class Error(Exception):
    """As in PyCUDA, the module is what tells it from other exceptions."""


Error.__module__ = "pycuda._driver"


def module(path: str) -> Any:
    """A stand-in for the module `pycuda.driver`."""
    library = ctypes.CDLL(path)
    library.cuGetErrorString.argtypes = (c_int, ctypes.POINTER(ctypes.c_char_p))

    def call(name: str, *arguments: object) -> None:
        status = getattr(library, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            library.cuGetErrorString(status, byref(text))
            raise Error(f"{name.removesuffix('_v2')} failed: {(text.value or b'').decode()}")

    def made(name: str, *arguments: object) -> int:
        handle = c_void_p()
        call(name, byref(handle), *arguments)
        return handle.value or 0

    class DeviceAllocation:
        _address = 0

        def __init__(self, size: int) -> None:
            self._address = made("cuMemAlloc_v2", c_size_t(size))

        def __int__(self) -> int:
            return self._address

        def free(self) -> None:
            call("cuMemFree_v2", c_uint64(self._address))
            self._address = 0

        def __del__(self) -> None:
            if self._address:
                self.free()

    class Stream:
        def __init__(self, flags: int = 0) -> None:
            self.handle = made("cuStreamCreate", flags)

        def synchronize(self) -> None:
            call("cuStreamSynchronize", c_void_p(self.handle))

        def wait_for_event(self, event: Event) -> None:
            call("cuStreamWaitEvent", c_void_p(self.handle), c_void_p(event.event), 0)

    class Event:
        def __init__(self, flags: int = 0) -> None:
            self.event = made("cuEventCreate", flags)

        def record(self, stream: Stream | None = None) -> Event:
            call("cuEventRecord", c_void_p(self.event), c_void_p(stream.handle if stream else None))
            return self

        def synchronize(self) -> None:
            call("cuEventSynchronize", c_void_p(self.event))

        def time_since(self, begin: Event) -> float:
            span = c_float()
            call("cuEventElapsedTime", byref(span), c_void_p(begin.event), c_void_p(self.event))
            return span.value

    class Function:
        def __init__(self, handle: int) -> None:
            self._handle = c_void_p(handle)

        def __call__(
            self, *arguments: Any, grid: Any, block: Any, stream: Stream | None = None, shared: int = 0
        ) -> None:
            packed = b""
            for each in arguments:  # each on its own alignment, as PyCUDA has struct do it
                packed += bytes(-len(packed) % (1 if isinstance(each, np.void) else each.nbytes)) + each.tobytes()
            assert all(isinstance(each, np.void | np.number) for each in arguments)
            assert isinstance(grid, tuple)
            assert isinstance(block, tuple)
            grid = (*grid, 1, 1)[:3]
            data = ctypes.create_string_buffer(packed, max(1, len(packed)))
            size = c_size_t(len(packed))
            extra = (c_void_p * 5)(1, ctypes.addressof(data), 2, ctypes.addressof(size), None)
            handle = c_void_p(stream.handle if stream else None)
            call("cuLaunchKernel", self._handle, *grid, *block, shared, handle, None, extra)

    class Module:
        def __init__(self, image: bytes) -> None:
            self._handle = made("cuModuleLoadData", image)

        def get_function(self, name: str) -> Function:
            return Function(made("cuModuleGetFunction", c_void_p(self._handle), name.encode()))

    class HostAllocation(np.ndarray):
        """Stands for the `base` of a page-locked array."""

        def get_device_pointer(self) -> int:
            return self.ctypes.data

    class Context:
        synchronize = staticmethod(lambda: call("cuCtxSynchronize"))

        primary = False

        def __init__(self, handle: int, device: int) -> None:
            self.handle, self.device = handle, device

        def push(self) -> None:
            call("cuCtxPushCurrent_v2", c_void_p(self.handle))

        @staticmethod
        def pop() -> None:
            made("cuCtxPopCurrent_v2")

        def detach(self) -> None:
            if self.primary:
                call("cuDevicePrimaryCtxRelease_v2", self.device)

    class Device:
        def __init__(self, index: int) -> None:
            self.index = index

        def make_context(self, flags: int = 0) -> Context:
            return Context(made("cuCtxCreate_v2", flags, self.index), self.index)

        def retain_primary_context(self) -> Context:
            context = Context(made("cuDevicePrimaryCtxRetain", self.index), self.index)
            context.primary = True
            return context

    def pagelocked_empty(shape: int, dtype: Any, order: str = "C", mem_flags: int = 0) -> Any:
        address = made("cuMemHostAlloc", c_size_t(shape * np.dtype(dtype).itemsize), mem_flags)
        raw = (ctypes.c_uint8 * (shape * np.dtype(dtype).itemsize)).from_address(address)
        base = np.frombuffer(raw, dtype).view(HostAllocation)
        weakref.finalize(base, call, "cuMemFreeHost", c_void_p(address))
        return base[:]  # as PyCUDA's: an array whose base knows its device pointer

    def managed_empty(shape: int, dtype: Any, order: str = "C", mem_flags: int = 0) -> Any:
        address = c_uint64()
        size = shape * np.dtype(dtype).itemsize
        call("cuMemAllocManaged", byref(address), c_size_t(size), mem_flags)
        base = np.frombuffer((ctypes.c_uint8 * size).from_address(address.value), dtype).view(HostAllocation)
        weakref.finalize(base, call, "cuMemFree_v2", c_uint64(address.value))
        return base[:]

    def pointer(array: Any) -> c_void_p:
        return c_void_p(array.ctypes.data)

    return types.SimpleNamespace(
        library=library,
        Error=Error,
        Stream=Stream,
        Event=Event,
        Device=Device,
        Context=Context,
        init=lambda: None,
        mem_alloc=DeviceAllocation,
        mem_get_info=lambda: (3 << 30, 4 << 30),
        pagelocked_empty=pagelocked_empty,
        managed_empty=managed_empty,
        mem_attach_flags=types.SimpleNamespace(GLOBAL=1),
        module_from_buffer=Module,
        memset_d8=lambda to, byte, n: call("cuMemsetD8_v2", c_uint64(to), byte, c_size_t(n)),
        memset_d8_async=lambda to, byte, n, stream: call(
            "cuMemsetD8Async", c_uint64(to), byte, c_size_t(n), c_void_p(stream.handle)
        ),
        memcpy_htod=lambda to, data: call("cuMemcpyHtoD_v2", c_uint64(to), pointer(data), c_size_t(data.nbytes)),
        memcpy_dtoh=lambda data, of: call("cuMemcpyDtoH_v2", pointer(data), c_uint64(of), c_size_t(data.nbytes)),
        memcpy_dtod=lambda to, of, n: call("cuMemcpyDtoD_v2", c_uint64(to), c_uint64(of), c_size_t(n)),
        memcpy_htod_async=lambda to, data, stream: call(
            "cuMemcpyHtoDAsync_v2", c_uint64(to), pointer(data), c_size_t(data.nbytes), c_void_p(stream.handle)
        ),
        memcpy_dtoh_async=lambda data, of, stream: call(
            "cuMemcpyDtoHAsync_v2", pointer(data), c_uint64(of), c_size_t(data.nbytes), c_void_p(stream.handle)
        ),
        memcpy_dtod_async=lambda to, of, n, stream: call(
            "cuMemcpyDtoDAsync_v2", c_uint64(to), c_uint64(of), c_size_t(n), c_void_p(stream.handle)
        ),
        event_flags=types.SimpleNamespace(DISABLE_TIMING=2),
        host_alloc_flags=types.SimpleNamespace(DEVICEMAP=2),
        function_attribute=types.SimpleNamespace(
            MAX_THREADS_PER_BLOCK=0,
            SHARED_SIZE_BYTES=1,
            NUM_REGS=4,
            MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
            PREFERRED_SHARED_MEMORY_CARVEOUT=9,
        ),
    )


class FakeGpu:
    """The fake driver, an executor on it, and what was called."""

    def __init__(self, library: Path, folder: Path, *, primary: bool = False) -> None:
        self._folder = folder
        self.driver = Driver(str(library))
        self.cuda = module(str(library))
        self._library = self.cuda.library
        self._library.fake_log.restype = ctypes.c_char_p
        self._library.fake_now.restype = c_double
        self._library.fake_reset()
        for kernel in KERNELS:
            self.set(**{f"us_{kernel}": 10})
        self.executor = CudaExecutor(self.cuda, self.driver, 0, Sensors("GPU-fake"), primary=primary)
        self._library.fake_clear()

    def binaries(self, program: Program) -> dict[str, Path]:
        """Files with an entry table and nothing else; host sources are really built."""
        found = {}
        for source in program.sources:
            if source.kind is SourceKind.HOST:
                built = gxx.build(with_trampolines(source))
                assert isinstance(built, Path), built
                found[source.name] = built
                continue
            path = self._folder / f"{source.name}.cubin"
            path.write_bytes(b"image" + table_bytes(self._table(source)))
            found[source.name] = path
        return found

    def load(self, program: Program) -> Loaded:
        return self.executor.load(program, self.binaries(program))

    def log(self) -> list[str]:
        """What was called since the last time, one line each."""
        text = self._library.fake_log().decode()
        self._library.fake_clear()
        return text.splitlines()

    def stick(self, code: int) -> None:
        """Every call that can fail does, from now on (0: no more)."""
        self._library.fake_stick(code)

    def fail(self, function: str, code: int) -> None:
        """The next call of a function fails."""
        self._library.fake_fail(function.encode(), code)

    def set(self, **knobs: float) -> None:
        """Set knobs of the time line by name (`Knobs` in fake_timeline.h); `us_NAME` is a kernel's duration, and
        `hang_NAME`, `fault_NAME` say in which launch from now on it never ends, or breaks the context."""
        for name, value in knobs.items():
            kind, _, kernel = name.partition("_")
            of_kernel = kind in ("us", "hang", "fault")
            wrong = self._library.fake_set((f"{kind}:{kernel}" if of_kernel else name).encode(), c_double(value))
            assert not wrong, name

    def clock(self, *corners: tuple[float, float]) -> None:
        """The device's clock from now on: (microseconds from now, MHz), linear in between."""
        times, clocks = zip(*corners, strict=True)
        self._library.fake_clock((c_double * len(times))(*times), (c_double * len(times))(*clocks), len(times))

    def wait(self, us: float) -> None:
        """The host does something else."""
        self._library.fake_pass(c_double(us))

    @property
    def now_us(self) -> float:
        """The host's clock."""
        return float(self._library.fake_now())

    @property
    def live_allocations(self) -> int:
        gc.collect()  # what earlier tests left must not go in between
        return int(self._library.fake_live())

    @staticmethod
    def _table(source: Source) -> EntryTable:
        entries = {}
        for name in source.entries:
            offset, parameters = 0, []
            for size in KERNELS[name]:
                offset = -(-offset // size) * size
                parameters.append(EntryParameter(offset_bytes=offset, size_bytes=size))
                offset += size
            entries[name] = EntryName(mangled=name, parameters=tuple(parameters))
        return EntryTable(entries=entries, symbols={each: each for each in source.symbols})


def built(folder: Path) -> Path:
    """The fake driver as a library in a folder, and a fake NVML beside it, both named as a GPU's are."""
    flags = ("-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC")
    for source, name in (("fake_libcuda.cpp", "libcuda.so"), ("fake_nvml.cpp", "libnvidia-ml.so.1")):
        text = Path(__file__).with_name(source)
        subprocess.run([gxx.find() or "", *flags, str(text), "-o", str(folder / name)], check=True)
    (folder / "libcuda.so.1").symlink_to("libcuda.so")
    return folder / "libcuda.so"
