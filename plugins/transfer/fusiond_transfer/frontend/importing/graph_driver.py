"""A CUDA graph through the driver's API: its nodes with addresses, kernels with what their arguments point to.

Structures and functions are those of CUDA 13's cuda.h. What a driver must have is of CUDA 12.0; kernels have names from
12.3 on, and arguments that can be told apart from 12.4 on. Nothing is run and nothing is changed.

A word of a kernel's arguments is a pointer where it is the address of an allocation: the driver knows those of
cudaMalloc, cudaMallocHost, cudaMallocManaged and of the pools, and the graph's own allocation nodes name theirs.
Structures that are passed by value are searched, too. A number that happens to be such an address looks the same.
"""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Iterator
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

from fusiond.cuda.demangling import demangled
from fusiond.errors import RequestError
from fusiond_transfer.frontend.importing.captured import Allocation, CapturedGraph, CapturedNode, Region
from fusiond_transfer.frontend.importing.order import topological

LIBRARY = "libcuda.so.1"
MOST_NODES = 20_000
_MOST_ARGUMENTS = 4096
_NEEDED = ("cuGraphGetNodes", "cuGraphNodeGetType", "cuGraphKernelNodeGetParams_v2", "cuGraphMemcpyNodeGetParams",
           "cuGraphMemsetNodeGetParams", "cuGraphChildGraphNodeGetGraph", "cuPointerGetAttribute")  # fmt: skip
_NODE_TYPES = ("KERNEL", "MEMCPY", "MEMSET", "HOST", "GRAPH", "EMPTY", "WAIT_EVENT", "EVENT_RECORD", "EXT_SEMAS_SIGNAL",
               "EXT_SEMAS_WAIT", "MEM_ALLOC", "MEM_FREE", "BATCH_MEM_OP", "CONDITIONAL")  # fmt: skip
"""CU_GRAPH_NODE_TYPE_*, from 0."""
_HOST, _DEVICE, _ARRAY, _UNIFIED = 1, 2, 3, 4
"""CU_MEMORYTYPE_*."""
_MEMORY_TYPE, _IS_MANAGED, _ORDINAL, _RANGE_START, _RANGE_SIZE = 2, 8, 9, 11, 12
"""CU_POINTER_ATTRIBUTE_*."""
_BUFFER_POINTER, _BUFFER_SIZE = 1, 2
"""CU_LAUNCH_PARAM_*: what `extra` of a kernel node may hold in place of kernelParams."""


class KernelParams(Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("func", c_void_p), *((f"grid_{each}", c_uint) for each in "xyz"),
        *((f"block_{each}", c_uint) for each in "xyz"), ("shared_bytes", c_uint),
        ("kernel_params", POINTER(c_void_p)), ("extra", POINTER(c_void_p)), ("kern", c_void_p), ("ctx", c_void_p),
    )  # fmt: skip


def _end(prefix: str) -> tuple[tuple[str, Any], ...]:
    """Source or target of a copy."""
    return (
        *((f"{prefix}_{each}", c_size_t) for each in ("x", "y", "z", "lod")), (f"{prefix}_type", c_int),
        (f"{prefix}_host", c_void_p), (f"{prefix}_device", c_uint64), (f"{prefix}_array", c_void_p),
        (f"{prefix}_reserved", c_void_p), (f"{prefix}_pitch", c_size_t), (f"{prefix}_height", c_size_t),
    )  # fmt: skip


class CopyParams(Structure):
    """CUDA_MEMCPY3D_v2."""

    _fields_ = (*_end("source"), *_end("target"), ("width", c_size_t), ("height", c_size_t), ("depth", c_size_t))


class MemsetParams(Structure):
    """CUDA_MEMSET_NODE_PARAMS_v1."""

    _fields_ = (
        ("target", c_uint64), ("pitch", c_size_t), ("value", c_uint), ("element_bytes", c_uint), ("width", c_size_t),
        ("height", c_size_t),
    )  # fmt: skip


class AllocationParams(Structure):
    """CUDA_MEM_ALLOC_NODE_PARAMS_v1; the properties of the pool are passed over."""

    _fields_ = (("pool", c_uint64 * 11), ("access", c_void_p), ("accesses", c_size_t), ("size", c_size_t),
                ("address", c_uint64))  # fmt: skip


class EdgeData(Structure):
    """CUgraphEdgeData."""

    _fields_ = (("from_port", c_ubyte), ("to_port", c_ubyte), ("type", c_ubyte), ("reserved", c_ubyte * 5))


def read(handle: int, where: str) -> CapturedGraph:
    """The nodes of a CUgraph (cudaGraph_t), child graphs in their places. RequestError for what the driver does not
    take for a graph, for a machine without a driver or with one that is too old, and for a graph that is too large."""
    return _Reader(where).graph(handle)


class _Reader:
    def __init__(self, where: str) -> None:
        self._where = where
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError:
            raise RequestError(f"no NVIDIA driver: {LIBRARY} cannot be loaded", where=where) from None
        lacking = [each for each in _NEEDED if not hasattr(self._library, each)]
        if lacking:
            raise RequestError(
                f"this driver is too old: it has no {lacking[0]}; CUDA 12.0 or later is needed", where=where
            )
        self._call("cuInit", 0)
        self._nodes: list[CapturedNode] = []
        self._allocations: dict[int, Allocation] = {}
        self._starts: list[int] = []
        self._asked: dict[int, Allocation | None] = {}
        self._named = hasattr(self._library, "cuFuncGetName")
        self._described = hasattr(self._library, "cuFuncGetParamInfo")

    def graph(self, handle: int) -> CapturedGraph:
        self._all(handle, ())
        return CapturedGraph(
            nodes=tuple(self._nodes),
            allocations=tuple(self._allocations[each] for each in self._starts),
        )

    # --- calls ------------------------------------------------------------------------------------------

    def _status(self, name: str, *arguments: Any) -> int:
        status: int = getattr(self._library, name)(*arguments)
        return status

    def _call(self, name: str, *arguments: Any) -> None:
        status = self._status(name, *arguments)
        if status:
            text = c_char_p()
            self._status("cuGetErrorName", status, byref(text))
            said = (text.value or b"").decode() or f"error {status}"
            hint = "; is it a graph, and not one that was instantiated or destroyed?" if "GetNodes" in name else ""
            raise RequestError(f"{name.removesuffix('_v2')} failed ({said}){hint}", where=self._where)

    def _attribute(self, kind: int, address: int, value: Any) -> int | None:
        """Of a pointer; None for an address that the driver does not know."""
        if self._status("cuPointerGetAttribute", byref(value), kind, c_uint64(address)):
            return None
        found: int = value.value
        return found

    # --- nodes ------------------------------------------------------------------------------------------

    def _all(self, handle: int, before: tuple[int, ...]) -> tuple[int, ...]:
        """Adds the nodes of a graph, all of it behind `before`; gives those that nothing in it waits for."""
        count = c_size_t()
        self._call("cuGraphGetNodes", c_void_p(handle), None, byref(count))
        if len(self._nodes) + count.value > MOST_NODES:
            raise RequestError(f"more than {MOST_NODES} nodes are in it", where=self._where)
        handles = (c_void_p * max(1, count.value))()
        self._call("cuGraphGetNodes", c_void_p(handle), handles, byref(count))
        order = [each or 0 for each in handles[: count.value]]
        waits: dict[int, list[int]] = {each: [] for each in order}
        edges = list(self._edges(handle))
        for one, other in edges:
            waits[other].append(one)
        sorted_ = topological(order, edges)
        if sorted_ is None:
            raise RequestError("its nodes form a cycle", where=self._where)
        ends: dict[int, tuple[int, ...]] = {}  # node -> what stands for it: itself, or the last ones of a child graph
        left = set(order)
        for each in sorted_:
            behind = tuple(end for one in waits[each] for end in ends[one]) or before
            ends[each] = self._node(each, tuple(dict.fromkeys(behind)))
            left -= set(waits[each])
        return tuple(end for each in order if each in left for end in ends[each]) or before

    def _edges(self, handle: int) -> Iterator[tuple[int, int]]:
        """(before, behind). A younger driver refuses the older form where edges carry data, such as ports."""
        count = c_size_t()
        name = "cuGraphGetEdges_v2" if hasattr(self._library, "cuGraphGetEdges_v2") else "cuGraphGetEdges"
        more = (None,) if name.endswith("_v2") else ()
        self._call(name, c_void_p(handle), None, None, *more, byref(count))
        size = max(1, count.value)
        ahead, behind = (c_void_p * size)(), (c_void_p * size)()
        data = ((EdgeData * size)(),) if more else ()
        self._call(name, c_void_p(handle), ahead, behind, *data, byref(count))
        for one, other in zip(ahead[: count.value], behind[: count.value], strict=True):
            yield one or 0, other or 0

    def _node(self, handle: int, before: tuple[int, ...]) -> tuple[int, ...]:
        number = c_int()
        self._call("cuGraphNodeGetType", c_void_p(handle), byref(number))
        kind = _NODE_TYPES[number.value] if 0 <= number.value < len(_NODE_TYPES) else f"of type {number.value}"
        if kind == "GRAPH":
            child = c_void_p()
            self._call("cuGraphChildGraphNodeGetGraph", c_void_p(handle), byref(child))
            return self._all(child.value or 0, before)
        known = {"KERNEL": self._kernel, "MEMCPY": self._copy, "MEMSET": self._memset, "MEM_ALLOC": self._allocation}
        node = known[kind](handle, before) if kind in known else CapturedNode(kind=kind, before=before)
        self._nodes.append(node)
        return (len(self._nodes) - 1,)

    def _copy(self, handle: int, before: tuple[int, ...]) -> CapturedNode:
        params = CopyParams()
        self._call("cuGraphMemcpyNodeGetParams", c_void_p(handle), byref(params))
        source, target = (self._end(params, each) for each in ("source", "target"))
        size = params.width * max(params.height, 1) * max(params.depth, 1)
        return CapturedNode(kind="MEMCPY", before=before, source=source, target=target, bytes=size)

    def _end(self, params: CopyParams, side: str) -> Region | None:
        """Source or target; None for an array, which has no addresses."""
        x, y, z, kind, host, device, pitch, height = (
            getattr(params, f"{side}_{each}") or 0
            for each in ("x", "y", "z", "type", "host", "device", "pitch", "height")
        )
        if kind == _ARRAY:
            return None
        rows, planes = max(params.height, 1), max(params.depth, 1)
        start = (host if kind == _HOST else device) + z * pitch * height + y * pitch + x
        end = start + (planes - 1) * pitch * height + (rows - 1) * pitch + params.width
        dense = end - start == params.width * rows * planes
        # Of an address that is unified the driver knows the side; what it does not know is the host's.
        known = self._allocation_of(start)
        on_host = kind == _HOST or (kind == _UNIFIED and (known is None or (known.host and not known.managed)))
        return Region(start=start, end=end, host=on_host, dense=dense)

    def _memset(self, handle: int, before: tuple[int, ...]) -> CapturedNode:
        params = MemsetParams()
        self._call("cuGraphMemsetNodeGetParams", c_void_p(handle), byref(params))
        width, rows = params.width * params.element_bytes, max(params.height, 1)
        self._allocation_of(params.target)
        end = params.target + (rows - 1) * params.pitch + width
        target = Region(start=params.target, end=end, host=False, dense=end - params.target == width * rows)
        value = params.value & ((1 << 8 * params.element_bytes) - 1)
        bytes_ = set(value.to_bytes(params.element_bytes, "little"))
        return CapturedNode(
            kind="MEMSET",
            before=before,
            target=target,
            bytes=width * rows,
            value=bytes_.pop() if len(bytes_) == 1 else None,
        )

    def _allocation(self, handle: int, before: tuple[int, ...]) -> CapturedNode:
        params = AllocationParams()
        if self._status("cuGraphMemAllocNodeGetParams", c_void_p(handle), byref(params)):
            return CapturedNode(kind="MEM_ALLOC", before=before)
        found = Allocation(start=params.address, end=params.address + params.size, host=False)
        self._add(found)
        region = Region(start=found.start, end=found.end, host=False)
        return CapturedNode(kind="MEM_ALLOC", before=before, target=region, bytes=params.size)

    # --- kernels ----------------------------------------------------------------------------------------

    def _kernel(self, handle: int, before: tuple[int, ...]) -> CapturedNode:
        params = KernelParams()
        self._call("cuGraphKernelNodeGetParams_v2", c_void_p(handle), byref(params))
        blobs = self._arguments(params)
        pointers = tuple(dict.fromkeys(each for blob in blobs or () for each in self._pointers(*blob)))
        return CapturedNode(
            kind="KERNEL",
            before=before,
            name=self._name(params),
            grid=(params.grid_x, params.grid_y, params.grid_z),
            block=(params.block_x, params.block_y, params.block_z),
            shared_bytes=params.shared_bytes,
            pointers=None if blobs is None else pointers,
        )

    def _function(self, params: KernelParams, what: str) -> tuple[str, c_void_p]:
        """The driver's function for a CUfunction, or for a CUkernel where a node has only that."""
        return (f"cuFuncGet{what}", c_void_p(params.func)) if params.func else (
            f"cuKernelGet{what}", c_void_p(params.kern))  # fmt: skip

    def _name(self, params: KernelParams) -> str:
        name, text = "", c_char_p()
        call, function = self._function(params, "Name")
        if self._named and not self._status(call, byref(text), function):
            name = (text.value or b"").decode(errors="replace")
        return demangled(name).replace("(anonymous namespace)::", "")

    def _arguments(self, params: KernelParams) -> list[tuple[int, bytes]] | None:
        """(offset, bytes) of each argument, or of all of them packed; None where they cannot be told apart."""
        if params.extra:
            return self._packed(params)
        call, function = self._function(params, "ParamInfo")
        if not self._described:
            return None
        found: list[tuple[int, bytes]] = []
        offset, size = c_size_t(), c_size_t()
        while len(found) < _MOST_ARGUMENTS and not self._status(
            call, function, c_size_t(len(found)), byref(offset), byref(size)
        ):
            address = params.kernel_params[len(found)] if params.kernel_params else None
            if address is None:
                return None
            found.append((offset.value, ctypes.string_at(address, size.value)))
        return found

    @staticmethod
    def _packed(params: KernelParams) -> list[tuple[int, bytes]] | None:
        """From `extra`: pairs of a key and a pointer, ended by 0."""
        address, size, at = None, None, 0
        while at < 16 and (key := params.extra[at]):
            value = params.extra[at + 1]
            if key == _BUFFER_POINTER:
                address = value
            elif key == _BUFFER_SIZE and value:
                size = c_size_t.from_address(value).value
            at += 2
        return None if address is None or size is None else [(0, ctypes.string_at(address, size))]

    def _pointers(self, offset: int, values: bytes) -> Iterator[int]:
        """The aligned words of an argument that are addresses."""
        for at in range(-offset % 8, len(values) - 7, 8):
            word = int.from_bytes(values[at : at + 8], "little")
            if word and self._allocation_of(word) is not None:
                yield word

    def _allocation_of(self, address: int) -> Allocation | None:
        """Where an address lies; None where it lies in no memory that the driver knows."""
        if address in self._asked:
            return self._asked[address]
        at = bisect.bisect_right(self._starts, address) - 1
        found = self._allocations[self._starts[at]] if at >= 0 else None
        if found is None or address >= found.end:
            found = self._unasked(address)
        if found is not None:
            self._add(found)
        self._asked[address] = found
        return found

    def _add(self, allocation: Allocation) -> None:
        if allocation.start not in self._allocations:
            bisect.insort(self._starts, allocation.start)
        self._allocations[allocation.start] = allocation

    def _unasked(self, address: int) -> Allocation | None:
        kind = self._attribute(_MEMORY_TYPE, address, c_uint())
        if not kind:
            return None
        start = self._attribute(_RANGE_START, address, c_uint64())
        size = self._attribute(_RANGE_SIZE, address, c_size_t())
        if not start or not size:
            start, size = address, 1
        return Allocation(
            start=start,
            end=start + size,
            host=kind == _HOST,
            managed=bool(self._attribute(_IS_MANAGED, address, c_uint())),
            device=self._attribute(_ORDINAL, address, c_int()) or 0,
        )
