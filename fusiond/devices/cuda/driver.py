"""The CUDA driver through ctypes: calls that PyCUDA lacks, and calls without a context (identity: after cuInit, never
creating a context, since the daemon asks).

Handles are plain integers; a stream's is `pycuda.driver.Stream.handle`. Everything runs in the context that is
current.
"""

import ctypes
import os
import uuid
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_ulonglong, c_void_p
from typing import Any

from fusiond.model.errors import FusiondError

LIBRARY = "libcuda.so.1"


class DriverError(FusiondError):
    """A driver call failed: `name` is the error's (`CUDA_ERROR_ILLEGAL_ADDRESS`), `call` the function's."""

    def __init__(self, call: str, name: str, text: str) -> None:
        self.call = call
        self.name = name
        super().__init__(f"{call}: {text} ({name})")


class DriverMissing(FusiondError):
    """There is no driver, or it will not start; the text says which."""


class Attribute:
    """Of CUdevice_attribute, those that are asked for."""

    MULTIPROCESSORS = 16
    REGISTERS_PER_BLOCK = 12
    THREADS_PER_BLOCK = 1
    L2_CACHE_BYTES = 38
    THREADS_PER_SM = 39
    MAJOR = 75
    MINOR = 76
    SHARED_BYTES_PER_SM = 81
    REGISTERS_PER_SM = 82
    SHARED_BYTES_PER_BLOCK_OPTIN = 97
    BLOCKS_PER_SM = 106
    RESERVED_SHARED_BYTES_PER_BLOCK = 111
    CONCURRENT_MANAGED_ACCESS = 89


class _CopyAttributes(ctypes.Structure):
    """CUmemcpyAttributes: source access order, two locations (type, id), flags."""

    _fields_ = (
        ("source_access_order", c_int),
        ("source_location", c_int * 2),
        ("target_location", c_int * 2),
        ("flags", c_uint),
    )


_IN_STREAM_ORDER = 1
THE_HOST = -1  #: CU_DEVICE_CPU: where managed memory is prefetched to that is wanted on the host
_CAPTURE_THREAD_LOCAL = 1

_BATCH = (
    *(POINTER(c_ulonglong),) * 2, POINTER(c_size_t), c_size_t, POINTER(_CopyAttributes), POINTER(c_size_t), c_size_t,
)  # fmt: skip
# Handles are pointers, and device pointers are 64 bits: both as c_ulonglong would work, but None means a null handle.
_SIGNATURES: dict[str, tuple[object, ...]] = {
    "cuInit": (c_uint,), "cuDriverGetVersion": (POINTER(c_int),), "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int), "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetUuid_v2": (c_char_p, c_int), "cuDeviceTotalMem_v2": (POINTER(c_size_t), c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int), "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)), "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, POINTER(c_void_p)),
    "cuGraphInstantiateWithFlags": (POINTER(c_void_p), c_void_p, c_ulonglong), "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphExecDestroy": (c_void_p,), "cuGraphDestroy": (c_void_p,),
    "cuMemAllocAsync": (POINTER(c_ulonglong), c_size_t, c_void_p), "cuMemFreeAsync": (c_ulonglong, c_void_p),
    "cuMemFreeHost": (c_void_p,), "cuMemPrefetchAsync": (c_ulonglong, c_size_t, c_int, c_void_p),
    "cuCtxGetDevice": (POINTER(c_int),), "cuCtxGetCurrent": (POINTER(c_void_p),), "cuMemFree_v2": (c_ulonglong,),
    "cuEventCreate": (POINTER(c_void_p), c_uint), "cuEventDestroy_v2": (c_void_p,),
    "cuModuleLoadData": (POINTER(c_void_p), c_char_p), "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuModuleGetGlobal_v2": (POINTER(c_ulonglong), POINTER(c_size_t), c_void_p, c_char_p),
    "cuFuncGetAttribute": (POINTER(c_int), c_int, c_void_p), "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (POINTER(c_int), c_void_p, c_int, c_size_t),
    "cuMemsetD8Async": (c_ulonglong, c_ubyte, c_size_t, c_void_p),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, POINTER(c_void_p), c_void_p),
    "cuLaunchCooperativeKernel": (c_void_p, *(c_uint,) * 7, c_void_p, POINTER(c_void_p)),
    "cuMemcpyBatchAsync": (*_BATCH, POINTER(c_size_t), c_void_p), "cuMemcpyBatchAsync_v2": (*_BATCH, c_void_p),
}  # fmt: skip


class Driver:
    """The driver's library, started. Raises DriverMissing where there is none or it will not start."""

    def __init__(self, library: str = LIBRARY) -> None:
        # The same order as nvidia-smi's, in every process of fusiond: `cuda:1` must mean one board.
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        try:
            self._library = ctypes.CDLL(library)
        except OSError:
            raise DriverMissing(f"no NVIDIA driver: {library} cannot be loaded") from None
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._library, name, None)
            if function is not None:  # older drivers lack the younger ones
                function.argtypes = arguments
                function.restype = c_int
        try:
            self.call("cuInit", 0)
        except DriverError as problem:
            raise DriverMissing(f"the NVIDIA driver does not start: {problem}") from None

    def has(self, name: str) -> bool:
        """Whether this driver is young enough to have a function."""
        return hasattr(self._library, name)

    def address(self, name: str) -> int:
        """A function's address, for C code that calls the driver; 0 where this driver is too old to have it."""
        return ctypes.cast(getattr(self._library, name), c_void_p).value or 0 if self.has(name) else 0

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver. Raises DriverError."""
        function = getattr(self._library, name, None)
        if function is None:
            raise DriverError(name, "CUDA_ERROR_NOT_SUPPORTED", "this driver is too old")
        status = function(*arguments)
        if status != 0:
            raise DriverError(name, *self.error(status))

    def asked(self, kind: Any, name: str, *arguments: object) -> int:
        """What a function says, or the handle of what it makes, by its first argument: a pointer to a ctypes `kind`."""
        value = kind()
        self.call(name, byref(value), *arguments)
        return value.value or 0

    def error(self, status: int) -> tuple[str, str]:
        """Name and text of an error code."""
        found = []
        for ask in ("cuGetErrorName", "cuGetErrorString"):
            text = c_char_p()
            known = getattr(self._library, ask)(status, byref(text)) == 0 and text.value is not None
            found.append((text.value or b"").decode() if known else f"error {status}")
        return found[0], found[1]

    # --- identity ---------------------------------------------------------------------------------------

    def version(self) -> str:
        """The newest CUDA that this driver speaks: `13.0`."""
        number = self.asked(c_int, "cuDriverGetVersion")
        return f"{number // 1000}.{number % 1000 // 10}"

    def count(self) -> int:
        return self.asked(c_int, "cuDeviceGetCount")

    def name(self, device: int) -> str:
        """As the driver calls the model: `NVIDIA H200`."""
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, len(text), self._handle(device))
        return text.value.decode()

    def uuid(self, device: int) -> str:
        """`GPU-xxxxxxxx-...`, or `MIG-...` for a slice of one."""
        raw = ctypes.create_string_buffer(16)
        self.call("cuDeviceGetUuid_v2", raw, self._handle(device))
        prefix = "MIG" if " MIG " in self.name(device) else "GPU"
        return f"{prefix}-{uuid.UUID(bytes=raw.raw)}"

    def memory_bytes(self, device: int) -> int:
        return self.asked(c_size_t, "cuDeviceTotalMem_v2", self._handle(device))

    def attribute(self, device: int, attribute: int) -> int:
        return self.asked(c_int, "cuDeviceGetAttribute", attribute, self._handle(device))

    def _handle(self, device: int) -> int:
        return self.asked(c_int, "cuDeviceGet", device)

    # --- graphs -----------------------------------------------------------------------------------------

    def begin_capture(self, stream: int) -> None:
        """What is enqueued on the stream from now on, and on streams that wait for it, becomes a graph."""
        self.call("cuStreamBeginCapture_v2", stream, _CAPTURE_THREAD_LOCAL)

    def end_capture(self, stream: int) -> int:
        """The graph, ready to be launched."""
        graph = c_void_p()
        self.call("cuStreamEndCapture", stream, byref(graph))
        executable = self.asked(c_void_p, "cuGraphInstantiateWithFlags", graph, 0)
        self.call("cuGraphDestroy", graph)
        return executable

    def launch_graph(self, graph: int, stream: int) -> None:
        self.call("cuGraphLaunch", graph, stream)

    def destroy_graph(self, graph: int) -> None:
        self.call("cuGraphExecDestroy", graph)

    # --- memory -----------------------------------------------------------------------------------------

    def allocate(self, size_bytes: int, stream: int) -> int:
        """Stream-ordered allocation (cudaMallocAsync); the address."""
        return self.asked(c_ulonglong, "cuMemAllocAsync", size_bytes, stream)

    def free(self, address: int, stream: int) -> None:
        self.call("cuMemFreeAsync", address, stream)

    def fill(self, address: int, byte: int, size_bytes: int, stream: int) -> None:
        self.call("cuMemsetD8Async", address, byte, size_bytes, stream)

    def current(self) -> int:
        """The handle of the device whose context is current."""
        return self.asked(c_int, "cuCtxGetDevice")

    @property
    def prefetches(self) -> bool:
        """Whether the current device takes managed memory ahead of its use: all since Pascal, under Linux."""
        return self.asked(c_int, "cuDeviceGetAttribute", Attribute.CONCURRENT_MANAGED_ACCESS, self.current()) != 0

    def prefetch(self, address: int, size_bytes: int, stream: int, *, to_device: bool) -> None:
        """Move managed memory, to the current device or to the host. (The function of this name is the one that takes
        a device; CUDA 13's headers call another one so, which libcuda exports with `_v2`.)"""
        self.call("cuMemPrefetchAsync", address, size_bytes, self.current() if to_device else THE_HOST, stream)

    @property
    def copies_in_batches(self) -> bool:
        """Whether `copy_batch` is there (drivers of CUDA 12.8 and later)."""
        return self.has("cuMemcpyBatchAsync_v2") or self.has("cuMemcpyBatchAsync")

    def copy_batch(self, copies: Sequence[tuple[int, int, int]], stream: int) -> None:
        """Several (target, source, bytes) as one call, in no order among themselves; addresses need not neighbour."""
        count = len(copies)
        targets = (c_ulonglong * count)(*(each[0] for each in copies))
        sources = (c_ulonglong * count)(*(each[1] for each in copies))
        sizes = (c_size_t * count)(*(each[2] for each in copies))
        attributes = _CopyAttributes(source_access_order=_IN_STREAM_ORDER)
        first = c_size_t(0)  # the attributes hold from the first copy on
        common = (targets, sources, sizes, count, byref(attributes), byref(first), 1)
        if self.has("cuMemcpyBatchAsync_v2"):
            self.call("cuMemcpyBatchAsync_v2", *common, stream)
        else:
            self.call("cuMemcpyBatchAsync", *common, byref(c_size_t()), stream)
