"""Stands in for libcuda where a test runs launch.py: kernels run on the cpu device's runtime.

Nothing is done before somebody waits for it. Then streams are run one at a time, each as far as its events allow, and
the caller's stream last or first (`eager`), or operation by operation in `turns`: what should have waited for something
comes too early, in one of the three.
"""

# ruff: noqa: N802 (the driver's own names)
from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fusiond.build import gxx
from fusiond.devices.cpu import native
from fusiond.model.gpu.entry_table import EntryName, EntryParameter, EntryTable, table_bytes
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Program, SourceKind

CONTEXT = 77


@dataclass
class Op:
    """Something in a stream: work, the record of an event, or a wait for one."""

    stream: int
    work: Callable[[], None] | None = None
    waits_for: Op | None = None
    done: bool = False


@dataclass
class Graph:
    ops: list[Op]


class Driver:
    def __init__(self, library: Path, *, eager: bool = False, turns: bool = False) -> None:
        self.context: int | None = CONTEXT
        self.runtime = native.Runtime(library)
        self.eager, self.turns = eager, turns
        self.log: list[str] = []
        self.memory: dict[int, Any] = {}
        self.managed: dict[int, int] = {}
        self.queues: dict[int, list[Op]] = {}
        self.records: dict[int, Op] = {}
        self.functions: dict[int, native.NativeEntry] = {}
        self.opted: dict[int, int] = {}
        self.carved: dict[int, int] = {}
        self.modules: dict[int, native.NativeModule] = {}
        self.graphs: dict[int, Graph] = {}
        self.captured: list[Op] | None = None
        self.capturing: set[int] = set()
        self._handles = itertools.count(1000, 8)
        self.failure: BaseException | None = None

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if name.startswith("cu") and callable(found):
            object.__getattribute__(self, "log").append(name)
        return found

    # --- context ---

    def cuCtxGetCurrent(self, into: Any) -> int:
        into._obj.value = self.context
        return 0

    def cuCtxGetDevice(self, into: Any) -> int:
        into._obj.value = 0
        return 0

    def cuCtxSynchronize(self) -> int:
        self.drain()
        return 0

    def cuDeviceGetAttribute(self, into: Any, attribute: Any, device: Any) -> int:
        into._obj.value = {75: 9, 76: 0}[attribute.value]
        return 0

    def cuGetErrorString(self, status: Any, into: Any) -> int:
        into._obj.value = b"refused by the stand-in"
        return 0

    # --- streams ---

    def enqueue(self, op: Op) -> None:
        if op.stream in self.capturing:
            assert self.captured is not None
            self.captured.append(op)
        else:
            self.queues.setdefault(op.stream, []).append(op)

    def _make(self, into: Any) -> int:
        into._obj.value = next(self._handles)
        return 0

    def cuStreamCreate(self, into: Any, flags: Any) -> int:
        assert flags.value == 1
        assert not self.capturing
        return self._make(into)

    def cuStreamDestroy_v2(self, stream: Any) -> int:
        return 0

    def cuEventCreate(self, into: Any, flags: Any) -> int:
        assert not self.capturing
        return self._make(into)

    def cuEventDestroy_v2(self, event: Any) -> int:
        return 0

    def cuEventRecord(self, event: Any, stream: Any) -> int:
        op = Op(stream.value or 0)
        self.enqueue(op)
        self.records[event.value] = op
        return 0

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: Any) -> int:
        record = self.records.get(event.value)
        if record is None:
            return 0  # as CUDA has it: nothing to wait for
        if self.captured is not None and record in self.captured:
            self.capturing.add(stream.value or 0)
        elif (stream.value or 0) in self.capturing:
            return 905  # cudaErrorStreamCaptureIsolation
        self.enqueue(Op(stream.value or 0, waits_for=record))
        return 0

    def cuStreamSynchronize(self, stream: Any) -> int:
        if (stream.value or 0) in self.capturing:
            return 900
        self.drain()
        return 0

    def drain(self) -> None:
        """Do all that can be done."""
        while _run(self.queues, eager=self.eager, turns=self.turns):
            pass
        left = sum(map(len, self.queues.values()))
        assert left == 0, f"{left} operations wait for what never comes"

    def cuStreamBeginCapture_v2(self, stream: Any, mode: Any) -> int:
        self.captured, self.capturing = [], {stream.value}
        self.origin = stream.value
        return 0

    def cuStreamEndCapture(self, stream: Any, into: Any) -> int:
        ops, self.captured, self.capturing = self.captured or [], None, set()
        awaited = {id(op.waits_for) for op in ops if op.stream == self.origin}
        for forked in {op.stream for op in ops} - {self.origin}:
            if id([op for op in ops if op.stream == forked][-1]) not in awaited:
                return 904  # cudaErrorStreamCaptureUnjoined
        into._obj.value = next(self._handles)
        self.graphs[into._obj.value] = Graph(ops)
        return 0

    def cuGraphInstantiateWithFlags(self, into: Any, graph: Any, flags: Any) -> int:
        into._obj.value = graph.value
        return 0

    def cuGraphLaunch(self, executable: Any, stream: Any) -> int:
        ops = self.graphs[executable.value].ops

        def work() -> None:
            copies = {id(op): Op(op.stream, op.work) for op in ops}
            queues: dict[int, list[Op]] = {}
            for op in ops:
                copy = copies[id(op)]
                copy.waits_for = copies[id(op.waits_for)] if op.waits_for is not None else None
                queues.setdefault(op.stream, []).append(copy)
            while _run(queues, eager=self.eager, turns=self.turns):
                pass
            assert not any(queues.values())

        self.enqueue(Op(stream.value or 0, work))
        return 0

    def cuGraphExecDestroy(self, executable: Any) -> int:
        return 0

    def cuGraphDestroy(self, graph: Any) -> int:
        del self.graphs[graph.value]
        return 0

    # --- memory ---

    def allocate(self, size: int, into: Any) -> int:
        memory = np.full(size + 256, 0xA5, np.uint8)
        address = -(-memory.ctypes.data // 256) * 256
        self.memory[address] = memory
        into._obj.value = address
        return 0

    def release(self, address: int) -> int:
        self.memory.pop(address)[:] = 0xDD
        self.managed.pop(address, None)
        return 0

    def cuMemAlloc_v2(self, into: Any, size: Any) -> int:
        return self.allocate(size.value, into)

    def cuMemFree_v2(self, address: Any) -> int:
        self.drain()
        return self.release(address.value)

    def cuMemAllocHost_v2(self, into: Any, size: Any) -> int:
        return self.allocate(size.value, into)

    def cuMemAllocManaged(self, into: Any, size: Any, flags: Any) -> int:
        assert flags.value == 1
        self.allocate(size.value, into)
        self.managed[into._obj.value] = size.value
        return 0

    def cuMemPrefetchAsync(self, address: Any, size: Any, device: Any, stream: Any) -> int:
        """Nothing moves here; what is not managed is refused."""
        at, length = address.value, size.value
        inside = any(begin <= at and at + length <= begin + most for begin, most in self.managed.items())
        return 0 if inside and device.value in (-1, 0) and stream.value not in self.capturing else 1

    def cuMemFreeHost(self, address: Any) -> int:
        self.drain()
        return self.release(address.value)

    def cuMemAllocAsync(self, into: Any, size: Any, stream: Any) -> int:
        return self.allocate(size.value, into)

    def cuMemFreeAsync(self, address: Any, stream: Any) -> int:
        self.enqueue(Op(stream.value or 0, lambda: self.release(address.value) and None))
        return 0

    def cuMemcpyAsync(self, target: Any, source: Any, size: Any, stream: Any) -> int:
        to, of, length = target.value, source.value, size.value
        self.enqueue(Op(stream.value or 0, lambda: ctypes.memmove(to, of, length) and None))
        return 0

    def cuMemcpyBatchAsync_v2(
        self, targets: Any, sources: Any, sizes: Any, count: Any, attributes: Any, first: Any, kinds: Any, stream: Any
    ) -> int:
        if stream.value in (None, 0, 1, 2) or stream.value in self.capturing:
            return 1
        assert attributes._obj.order == 1
        for target, source, size in [*zip(targets, sources, sizes, strict=True)][::-1]:
            self.enqueue(Op(stream.value, lambda t=target, s=source, n=size: ctypes.memmove(t, s, n) and None))
        return 0

    def cuMemsetD8Async(self, address: Any, byte: Any, size: Any, stream: Any) -> int:
        where, value, length = address.value, byte.value, size.value
        self.enqueue(Op(stream.value or 0, lambda: ctypes.memset(where, value, length) and None))
        return 0

    # --- kernels ---

    def cuModuleLoadData(self, into: Any, image: Any) -> int:
        path = image.value.split(b"\n")[0].removeprefix(b"built: ").decode()
        self._make(into)
        self.modules[into._obj.value] = self.runtime.load(Path(path))
        return 0

    def cuModuleUnload(self, module: Any) -> int:
        del self.modules[module.value]
        return 0

    def cuModuleGetFunction(self, into: Any, module: Any, name: Any) -> int:
        assert not self.capturing
        self._make(into)
        self.functions[into._obj.value] = self.modules[module.value].entry(name.value.decode().removeprefix("_Z"))
        return 0

    def cuModuleGetGlobal_v2(self, address: Any, size: Any, module: Any, name: Any) -> int:
        memory = self.modules[module.value].symbol(name.value.decode().removeprefix("_Z"))
        address._obj.value, size._obj.value = memory.ctypes.data, memory.nbytes
        return 0

    def cuFuncSetAttribute(self, function: Any, attribute: Any, value: Any) -> int:
        assert attribute.value in (8, 9)
        (self.opted if attribute.value == 8 else self.carved)[function.value] = value.value
        return 0

    def cuLaunchKernel(self, function: Any, *rest: Any) -> int:
        *shape, stream, places, extra = rest
        assert extra.value is None
        return self._launch(
            function.value, [each.value for each in shape], stream.value or 0, places, cooperative=False
        )

    def cuLaunchCooperativeKernel(self, function: Any, *rest: Any) -> int:
        *shape, stream, places = rest
        return self._launch(function.value, [each.value for each in shape], stream.value or 0, places, cooperative=True)

    def _launch(self, function: int, shape: list[int], stream: int, places: Any, *, cooperative: bool) -> int:
        entry = self.functions[function]
        if shape[6] > self.opted.get(function, 0):  # as if the kernel had 48 KiB of its own
            return 1
        arguments = [ctypes.string_at(places[i], size) for i, size in enumerate(entry.argument_bytes)]
        launch = native.NativeLaunch(
            grid=(shape[0], shape[1], shape[2]), block=(shape[3], shape[4], shape[5]), shared_bytes=shape[6],
            cooperative=cooperative, checked=True,
        )  # fmt: skip

        def work() -> None:
            done = self.runtime.launch(entry, launch, arguments)
            assert isinstance(done, native.Finished), done

        self.enqueue(Op(stream, work))
        return 0


def _run(queues: Mapping[int, list[Op]], *, eager: bool, turns: bool) -> bool:
    """Run one stream as far as it goes, or in `turns` one operation of each; whether anything was done."""
    any_moved = False
    for stream in sorted(queues, reverse=not eager):
        queue = queues[stream]
        moved = False
        while queue and (queue[0].waits_for is None or queue[0].waits_for.done):
            op = queue.pop(0)
            if op.work is not None:
                op.work()
            op.done = moved = any_moved = True
            if turns and op.work is not None:
                break
        if moved and not turns:
            return True
    return any_moved


def built(program: Program, folder: Path) -> dict[str, Path]:
    """What stands for cubins: where each object is, and a table of entries with their parameters."""
    found = {}
    for number, source in enumerate(program.sources):
        path = gxx.build(source)
        assert not isinstance(path, BuildFailed), path
        found[source.name] = path
        if source.kind is SourceKind.DEVICE:
            module = native.NativeModule(path)
            entries = {}
            for entry in source.entries:
                name = gxx.exported(source, entry)
                sizes = module.entry(name).argument_bytes
                parameters = tuple(EntryParameter(offset_bytes=0, size_bytes=size) for size in sizes)
                entries[entry] = EntryName(mangled=f"_Z{name}", parameters=parameters)
            symbols = {each: f"_Z{gxx.exported_symbol(source, each)}" for each in source.symbols}
            found[source.name] = folder / f"{number}.cubin"
            found[source.name].write_bytes(
                f"built: {path}\n".encode() + table_bytes(EntryTable(entries=entries, symbols=symbols))
            )
    return found


# --- arrays of other libraries --------------------------------------------------------------------------


@dataclass
class OnDevice:
    """An array with `__cuda_array_interface__` only."""

    array: Any
    read_only: bool = False
    stream: int | None = None
    change: dict[str, Any] = field(default_factory=dict)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        of = self.array.__array_interface__
        strides = None if self.array.flags.c_contiguous else self.array.strides
        return {"shape": of["shape"], "typestr": of["typestr"], "data": (of["data"][0], self.read_only),
                "strides": strides, "version": 3, "stream": self.stream, **self.change}  # fmt: skip


@dataclass
class ByDlpack:
    """An array with DLPack only: NumPy's own capsule, which says that it lies on a GPU."""

    array: Any
    device: tuple[int, int] = (2, 0)  #: (kind, number): 2 is a GPU
    versioned: bool = False
    asked: list[dict[str, Any]] = field(default_factory=list)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: int | None = None, **more: Any) -> Any:
        if more and not self.versioned:
            raise TypeError("from before versions")
        self.asked.append({"stream": stream, **more})
        capsule = self.array.__dlpack__(**more)
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        name, at = (b"dltensor_versioned", 32) if self.versioned else (b"dltensor", 0)
        ctypes.c_int32.from_address(get(capsule, name) + at + 8).value = self.device[0]
        return capsule
