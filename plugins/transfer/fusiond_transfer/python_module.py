"""The Python module of an export: one file over NumPy and PyCUDA that carries out a plan.

It knows its buffers and steps as plain tables, and drives anything with a handful of methods; `PyCuda` in it is the one
that drives a GPU. The kernels are compiled by nvcc and g++ from the files beside it.
"""

from __future__ import annotations

import pprint
from collections.abc import Mapping

from fusiond.program import (
    Alloc,
    Copy,
    CopyBatch,
    Free,
    HostCall,
    Launch,
    Memory,
    Pointer,
    Program,
    Role,
    Scalar,
    SourceKind,
    Step,
)
from fusiond.words import counted

_TEMPLATE = '''"""{title}: written by fusiond (strategy transfer).

    plan = {class_name}()
    plan.arrays["{an_input}"][:] = ...
    plan.run()
    plan.arrays["{an_output}"]

{messages} a run. Needs NumPy, PyCUDA, nvcc and g++.
"""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import numpy as np

NAME = "{name}"
BUFFERS = {buffers}
"""(name, dtype, elements, role, memory, allocation, offset in bytes)"""
SOURCES = {sources}
"""source -> kind"""
STEPS = {steps}
"""(kind, name, stream, waits for, what it needs)"""


class {class_name}:
    """The plan: `arrays` are the buffers on the host, by name."""

    def __init__(self, driver=None):
        self._driver = PyCuda(Path(__file__).parent) if driver is None else driver
        self._blocks = {{}}
        self.arrays = {{}}
        planned = {{needs["arena"] for kind, _, _, _, needs in STEPS if kind == "alloc"}}
        for home in dict.fromkeys(each[5] for each in BUFFERS):
            members = [each for each in BUFFERS if each[5] == home]
            size = max(offset + elements * np.dtype(dtype).itemsize for _, dtype, elements, _, _, _, offset in members)
            memory = members[0][4]
            if memory == "device":
                if home not in planned:
                    self._blocks[home] = self._driver.allocate(size)
                continue
            block = self._driver.host(size, memory == "pinned")
            self._blocks[home] = block
            for name, dtype, elements, _, _, _, offset in members:
                self.arrays[name] = block[offset : offset + elements * np.dtype(dtype).itemsize].view(dtype)
        self._places = {{each[0]: each for each in BUFFERS}}

    def run(self):
        """Carry out every step; the outputs are there when it returns."""
        streams = {{name: stream for _, name, stream, _, _ in STEPS}}
        for kind, name, stream, after, needs in STEPS:
            waits = [each for each in after if streams[each] != stream]
            getattr(self, "_" + kind)(name, stream, waits, needs)
        self._driver.finish()

    def _launch(self, name, stream, waits, needs):
        arguments = [self._argument(each, device=True) for each in needs["arguments"]]
        self._driver.wait(stream, waits)
        shape = needs["grid"], needs["block"], needs["shared"]
        self._driver.launch(needs["source"], needs["entry"], *shape, arguments, stream)
        self._driver.record(name, stream)

    def _call(self, name, stream, waits, needs):
        self._driver.wait_on_host(stream, waits)
        arguments = [self._argument(each, device=False) for each in needs["arguments"]]
        self._driver.call(needs["source"], needs["entry"], arguments)
        self._driver.record(name, stream)

    def _copy(self, name, stream, waits, needs):
        sides = [self._places[each][4] == "device" for each in (needs["source"], needs["target"])]
        source, target = (self._near(each, needs["bytes"]) for each in (needs["source"], needs["target"]))
        if sides == [False, False]:
            self._driver.wait_on_host(stream, waits)
            target[:] = source
        else:
            self._driver.wait(stream, waits)
            (self._driver.up if sides[1] else self._driver.down)(target, source, needs["bytes"], stream)
        self._driver.record(name, stream)

    def _batch(self, name, stream, waits, needs):
        for position, (source, target, size) in enumerate(needs["copies"]):
            last = position == len(needs["copies"]) - 1
            self._copy(name if last else f"{{name}}.{{position}}", stream, waits if position == 0 else [],
                       {{"source": source, "target": target, "bytes": size}})

    def _alloc(self, name, stream, waits, needs):
        self._driver.wait_on_host(stream, waits)
        self._blocks[needs["arena"]] = self._driver.allocate(needs["bytes"])
        self._driver.record(name, stream)

    def _free(self, name, stream, waits, needs):
        self._driver.wait_on_host(stream, waits)
        self._driver.free(self._blocks.pop(needs["arena"]))
        self._driver.record(name, stream)

    def _near(self, name, size):
        """Where a buffer begins: an address on the device, bytes on the host."""
        _, _, _, _, memory, home, offset = self._places[name]
        block = self._blocks[home]
        return self._driver.address(block) + offset if memory == "device" else block[offset : offset + size]

    def _argument(self, argument, device):
        kind, value = argument
        if kind != "pointer":
            return np.dtype(kind).type(value)
        _, dtype, elements, _, _, _, _ = self._places[value]
        place = self._near(value, elements * np.dtype(dtype).itemsize)
        return np.uint64(place) if device else ctypes.c_void_p(place.ctypes.data)


class PyCuda:
    """What a plan needs of a GPU."""

    def __init__(self, folder):
        import pycuda.driver as cuda

        self._cuda = cuda
        cuda.init()
        self._context = cuda.Device(0).retain_primary_context()
        self._context.push()
        self._streams = {{}}
        self._events = {{}}
        self._loaded = {{}}
        major, minor = cuda.Device(0).compute_capability()
        with tempfile.TemporaryDirectory() as work:
            for source, kind in SOURCES.items():
                out = Path(work) / source
                if kind == "device":
                    text = folder / f"{{NAME}}_{{source}}.cu"
                    arch = f"-arch=sm_{{major}}{{minor}}"
                    subprocess.run(["nvcc", "-cubin", arch, "-O3", "-o", out, text], check=True)
                    self._loaded[source] = cuda.module_from_buffer(out.read_bytes())
                else:
                    text = folder / f"{{NAME}}_{{source}}.cpp"
                    subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-o", out, text], check=True)
                    self._loaded[source] = ctypes.CDLL(str(out))

    def _stream(self, number):
        if number not in self._streams:
            self._streams[number] = self._cuda.Stream()
        return self._streams[number]

    def host(self, size, pinned):
        return self._cuda.pagelocked_empty(size, np.uint8) if pinned else np.zeros(size, np.uint8)

    def allocate(self, size):
        return self._cuda.mem_alloc(size)

    def free(self, block):
        block.free()

    def address(self, block):
        return int(block)

    def up(self, target, source, size, stream):
        self._cuda.memcpy_htod_async(target, source, self._stream(stream))

    def down(self, target, source, size, stream):
        self._cuda.memcpy_dtoh_async(target, source, self._stream(stream))

    def launch(self, source, entry, grid, block, shared, arguments, stream):
        function = self._loaded[source].get_function(entry)
        function(*arguments, grid=grid, block=block, shared=shared, stream=self._stream(stream))

    def call(self, source, entry, arguments):
        function = self._loaded[source][entry]
        function.restype = None
        function(*[each if isinstance(each, ctypes.c_void_p) else np.ctypeslib.as_ctypes_type(each.dtype)(each.item())
                   for each in arguments])

    def record(self, name, stream):
        self._events[name] = self._cuda.Event(self._cuda.event_flags.DISABLE_TIMING)
        self._events[name].record(self._stream(stream))

    def wait(self, stream, names):
        for each in names:
            self._stream(stream).wait_for_event(self._events[each])

    def wait_on_host(self, stream, names):
        for each in names:
            self._events[each].synchronize()
        self._stream(stream).synchronize()

    def finish(self):
        for each in self._streams.values():
            each.synchronize()
'''


def text(program: Program, name: str, entries: Mapping[tuple[str, str], str]) -> str:
    """The module. `entries`: (source, entry) -> its name in the files beside it."""
    buffers = [
        (
            each.name,
            each.dtype,
            each.elements,
            each.role.value,
            each.memory.value,
            each.arena or each.name,
            each.offset_bytes,
        )
        for each in program.buffers
    ]
    sources = {each.name: "device" if each.kind is SourceKind.DEVICE else "host" for each in program.sources}
    host = [each for each in program.buffers if each.memory is not Memory.DEVICE]
    return _TEMPLATE.format(
        title=program.name,
        name=name,
        class_name=_class_name(name),
        an_input=next((each.name for each in host if each.role is Role.INPUT), host[0].name),
        an_output=next(each.name for each in host if each.role is Role.OUTPUT),
        messages=counted(sum(isinstance(each, Copy | CopyBatch) and each.counted for each in program.steps), "message"),
        buffers=_table(buffers),
        sources=_table(sources),
        steps=_table([_described(program, each, entries) for each in program.steps]),
    )


def _class_name(name: str) -> str:
    found = "".join(part.capitalize() for part in name.split("_"))
    if not found.isidentifier() or found in ("None", "True", "False", "Path"):
        return f"Plan{found}"
    return found


def _table(value: object) -> str:
    return pprint.pformat(value, width=120, sort_dicts=False, compact=True)


def _described(
    program: Program, step: Step, entries: Mapping[tuple[str, str], str]
) -> tuple[str, str, int, tuple[str, ...], dict[str, object]]:
    kind, needs = _needs(program, step, entries)
    return kind, step.name, step.stream, step.after, needs


def _needs(program: Program, step: Step, entries: Mapping[tuple[str, str], str]) -> tuple[str, dict[str, object]]:
    if isinstance(step, Launch | HostCall):
        arguments = [
            ("pointer", each.buffer) if isinstance(each, Pointer) else (each.dtype, each.value)
            for each in step.arguments
            if isinstance(each, Pointer | Scalar)
        ]
        needs: dict[str, object] = {
            "source": step.source,
            "entry": entries[step.source, step.entry],
            "arguments": arguments,
        }
        if isinstance(step, HostCall):
            return "call", needs
        return "launch", {**needs, "grid": step.grid, "block": step.block, "shared": step.shared_bytes}
    if isinstance(step, Copy):
        first, last = program.buffer(step.source[0]), program.buffer(step.source[-1])
        size = last.offset_bytes + last.size_bytes - first.offset_bytes if len(step.source) > 1 else first.size_bytes
        return "copy", {"source": step.source[0], "target": step.target[0], "bytes": size}
    if isinstance(step, CopyBatch):
        return "batch", {"copies": [(a, b, program.buffer(a).size_bytes) for a, b in step.copies]}
    if isinstance(step, Alloc):
        members = [each for each in program.buffers if step.arena in (each.arena, each.name)]
        return "alloc", {"arena": step.arena, "bytes": max(each.offset_bytes + each.size_bytes for each in members)}
    if isinstance(step, Free):
        return "free", {"arena": step.arena}
    raise ValueError(f"{step.name} is a step that no transfer plan has")
