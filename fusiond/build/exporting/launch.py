"""Launch the program in this folder from Python: CUDA kernels that fusiond tuned, with the grids, streams and copies
with which they were measured.

    from launch import launch, close

    launch({"x": x, "y": y}, sizes={"n": 1000}, stream=stream)     # arguments by buffer name; README.txt lists them
    close()                                                        # frees the scratch memory and the kernels

This file and `plan.json` beside it need Python 3.10 and the NVIDIA driver. They run in the context that is current in
the calling thread (PyCUDA's, CuPy's, PyTorch's, JAX's, Numba's) and never make one. An argument is anything with
`__cuda_array_interface__` or DLPack, OpenCV's GpuMat, and a NumPy array where a buffer lies in host memory.

fusiond copies this file into every export as it is, so it may import the standard library only, and NumPy where it
hands out host arrays.
"""

from __future__ import annotations

import ast
import ctypes
import functools
import json
import math
import operator
import os
import re
import shutil
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Seam = Callable[[list[Any], list[Any], int], object]
"""A library call of the caller's: `seam(reads, writes, stream)`, with arrays in the order of the plan and the handle of
the stream on which to enqueue."""

_PACKED = {
    "bool": "?", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "float16": "e", "int32": "i", "uint32": "I",
    "float32": "f", "int64": "q", "uint64": "Q", "float64": "d",
}  # fmt: skip
_HELD_AS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
"""What arrays of types that NumPy does not have may be of, too: their bits."""
_BYTES = {name: struct.calcsize(_PACKED[_HELD_AS.get(name, name)]) for name in (*_PACKED, *_HELD_AS)}
_PAGE = 4096


class LaunchError(RuntimeError):
    """The call cannot be carried out; one line says what is wrong, where, and what would be right."""


def launch(
    arguments: Mapping[str, object],
    sizes: Mapping[str, int] | None = None,
    stream: object = None,
    *,
    seams: Mapping[str, Seam] | None = None,
    naive: bool = False,
) -> None:
    """Enqueue the program of this folder; see `Launcher.launch`."""
    _default().launch(arguments, sizes, stream, seams=seams, naive=naive)


def allocate(sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
    """NumPy arrays for the buffers in host memory, laid out as they were measured; see `Launcher.allocate`."""
    return _default().allocate(sizes)


def close() -> None:
    """Free what the calls of `launch` and `allocate` have allocated."""
    _default().close()


@functools.lru_cache(maxsize=1)
def _default() -> Launcher:
    return Launcher()


# --- the plan -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """plan.json, with its numbers at some sizes."""

    buffers: dict[str, dict[str, Any]]
    steps: list[dict[str, Any]]
    homes: dict[str, list[dict[str, Any]]]  #: Allocation (an arena, or a buffer of its own) -> its buffers

    def row_of(self, name: str) -> int | None:
        """The elements of a row of a buffer whose rows may lie apart; None where they may not."""
        arguments = (each for step in self.steps for each in step.get("arguments", ()))
        return next((int(each["value"]) for each in arguments if each.get("pitch_of") == name), None)

    def bytes_of(self, name: str) -> int:
        buffer = self.buffers[name]
        return int(buffer["elements"]) * _BYTES[buffer["dtype"]]

    def home_bytes(self, home: str) -> int:
        return max(int(each["offset_bytes"]) + self.bytes_of(each["name"]) for each in self.homes[home])

    def on_device(self, name: str) -> bool:
        return bool(self.buffers[name]["memory"] == "device")


def _plan_at(document: Mapping[str, Any], sizes: Mapping[str, int]) -> _Plan:
    """The plan at sizes. LaunchError where they lead to no sound one."""
    copy = json.loads(json.dumps({"buffers": document["buffers"], "steps": document["steps"]}))
    for pointer, text in document.get("formulas", {}).items():
        *path, last = pointer.split("/")[1:]
        place = copy
        for name in path:
            place = place[int(name) if isinstance(place, list) else name]
        place[int(last) if isinstance(place, list) else last] = _evaluated(text, sizes)
    homes: dict[str, list[dict[str, Any]]] = {}
    for buffer in copy["buffers"]:
        if buffer["symbol"] is None:
            homes.setdefault(buffer["arena"] or buffer["name"], []).append(buffer)
    plan = _Plan({each["name"]: each for each in copy["buffers"]}, copy["steps"], homes)
    for problem in _problems(plan):
        raise LaunchError(f"{problem} at {', '.join(f'{name}={value}' for name, value in sizes.items())}")
    return plan


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*(\s*\()?")


def _evaluated(text: str, sizes: Mapping[str, int]) -> int:
    """A formula of the plan: whole numbers, + - * / // %, min, max, ceil_div. Its names are replaced by their numbers:
    it is plain arithmetic by the time Python's parser sees it."""

    def number(match: re.Match[str]) -> str:
        return match.group() if match.group(1) else f"({sizes[match.group()]})"

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
            return _FUNCTIONS[node.func.id](*map(value, node.args))
        raise LaunchError(f"plan.json holds a formula that cannot be read: {text!r}")

    try:
        return value(ast.parse(_NAME.sub(number, text), mode="eval").body)
    except ZeroDivisionError:
        raise LaunchError(f"{text!r}: division by zero at {dict(sizes)}") from None


def _quotient(a: int, b: int) -> int:
    if a % b:
        raise LaunchError(f"{a} / {b} is not a whole number, which these sizes need")
    return a // b


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: _quotient,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max, "ceil_div": lambda a, b: -(-a // b)}


def _wholes(members: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that are not part of another."""
    return [each for each in members if each.get("part_of") is None]


def _problems(plan: _Plan) -> Iterator[str]:
    """What other sizes can break."""
    for buffer in plan.buffers.values():
        if buffer["elements"] < 1:
            yield f"buffer {buffer['name']!r} would have {buffer['elements']} elements"
    for home, members in plan.homes.items():
        ends = 0
        for each in sorted(_wholes(members), key=lambda each: int(each["offset_bytes"])):
            if each["offset_bytes"] < ends or each["offset_bytes"] % _BYTES[each["dtype"]]:
                yield f"buffer {each['name']!r} would overlap another, or be unaligned, in {home!r}"
            ends = each["offset_bytes"] + plan.bytes_of(each["name"])
    for step in plan.steps:
        if step["is"] == "Launch" and (min(*step["grid"], *step["block"]) < 1 or step["shared_bytes"] < 0):
            yield f"step {step['name']!r} would have the grid {step['grid']} and the block {step['block']}"
        pairs = zip(step["source"], step["target"], strict=True) if step["is"] == "Copy" else step.get("copies", ())
        for source, target in pairs:
            if plan.bytes_of(source) != plan.bytes_of(target):
                yield f"step {step['name']!r} would copy {source!r} to {target!r}, which has another length"


# --- the driver -----------------------------------------------------------------------------------------

_LIBRARY = "libcuda.so.1"
_MAJOR, _MINOR = 75, 76
_MAX_DYNAMIC_SHARED_BYTES, _SHARED_CARVEOUT = 8, 9
_NON_BLOCKING = 1
_NO_TIMING = 2
_CAPTURE_THREAD_LOCAL = 1
_ATTACH_GLOBAL = 1
_THE_HOST = -1
_LEGACY, _PER_THREAD = 1, 2
_OUT = object()  #: In a signature: the argument is a ctypes reference or array, handed on as it is
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuCtxGetCurrent": (_OUT,), "cuCtxGetDevice": (_OUT,), "cuCtxSynchronize": (),
    "cuDeviceGetAttribute": (_OUT, c_int, c_int), "cuGetErrorString": (c_int, _OUT), "cuStreamCreate": (_OUT, c_uint),
    "cuStreamDestroy_v2": (c_void_p,), "cuStreamSynchronize": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint), "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, _OUT), "cuGraphInstantiateWithFlags": (_OUT, c_void_p, c_ulonglong),
    "cuGraphLaunch": (c_void_p, c_void_p), "cuGraphExecDestroy": (c_void_p,), "cuGraphDestroy": (c_void_p,),
    "cuEventCreate": (_OUT, c_uint), "cuEventDestroy_v2": (c_void_p,), "cuEventRecord": (c_void_p, c_void_p),
    "cuMemAlloc_v2": (_OUT, c_size_t), "cuMemFree_v2": (c_ulonglong,), "cuMemAllocAsync": (_OUT, c_size_t, c_void_p),
    "cuMemFreeAsync": (c_ulonglong, c_void_p), "cuMemAllocHost_v2": (_OUT, c_size_t), "cuMemFreeHost": (c_void_p,),
    "cuMemAllocManaged": (_OUT, c_size_t, c_uint), "cuMemPrefetchAsync": (c_ulonglong, c_size_t, c_int, c_void_p),
    "cuMemcpyAsync": (c_ulonglong, c_ulonglong, c_size_t, c_void_p),
    "cuMemcpyBatchAsync_v2": (_OUT, _OUT, _OUT, c_size_t, _OUT, _OUT, c_size_t, c_void_p),
    "cuMemsetD8Async": (c_ulonglong, c_ubyte, c_size_t, c_void_p), "cuModuleLoadData": (_OUT, c_char_p),
    "cuModuleUnload": (c_void_p,), "cuModuleGetFunction": (_OUT, c_void_p, c_char_p),
    "cuModuleGetGlobal_v2": (_OUT, _OUT, c_void_p, c_char_p), "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, _OUT, c_void_p),
    "cuLaunchCooperativeKernel": (c_void_p, *(c_uint,) * 7, c_void_p, _OUT),
}  # fmt: skip


class _CopyAttributes(ctypes.Structure):
    """CUmemcpyAttributes: source access order, two locations (type, id), flags."""

    _fields_ = (("order", c_int), ("source", c_int * 2), ("target", c_int * 2), ("flags", c_uint))


class _Driver:
    """libcuda through ctypes; or whatever has functions of those names."""

    def __init__(self, library: Any = None) -> None:
        if library is None:
            try:
                library = ctypes.CDLL(_LIBRARY)
            except OSError:
                raise LaunchError(f"no NVIDIA driver: {_LIBRARY} cannot be loaded; install the driver") from None
        self._library = library

    def has(self, name: str) -> bool:
        return hasattr(self._library, name)

    def status(self, name: str, *arguments: Any) -> int:
        given = [
            value if kind is _OUT else kind(value) for kind, value in zip(_SIGNATURES[name], arguments, strict=True)
        ]
        return int(getattr(self._library, name)(*given))

    def __call__(self, name: str, *arguments: Any, where: str = "") -> None:
        status = self.status(name, *arguments)
        if status:
            text = c_char_p()
            self.status("cuGetErrorString", status, byref(text))
            said = (text.value or b"unknown error").decode()
            raise LaunchError(f"{where + ': ' if where else ''}{name} failed with status {status}: {said}")

    def handle(self, name: str, *arguments: Any, kind: Any = c_void_p, where: str = "") -> int:
        """Call a function whose first argument takes what it makes."""
        made = kind()
        self(name, byref(made), *arguments, where=where)
        return made.value or 0

    def context(self) -> int:
        current = c_void_p()
        status = self.status("cuCtxGetCurrent", byref(current))
        if status or not current.value:
            raise LaunchError(
                "no CUDA context is current in this thread; make one first, with the library whose arrays you pass: "
                "`import pycuda.autoprimaryctx`, `cupy.cuda.Device(0).use()`, `torch.cuda.init()`, or a first JAX array"
            )
        return current.value

    def arch(self, device: int) -> str:
        major, minor = (
            self.handle("cuDeviceGetAttribute", attribute, device, kind=c_int) for attribute in (_MAJOR, _MINOR)
        )
        return f"sm_{major}{minor}"


def _stream_handle(stream: object) -> int:
    """The handle in a stream of PyCUDA, CuPy, PyTorch, cuda-python, or a plain number; 0 is the default stream."""
    if stream is None:
        return 0
    if isinstance(stream, int):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("handle", "ptr", "cuda_stream"):
        if isinstance(found := getattr(stream, name, None), int):
            return found
    try:
        return int(stream)  # type: ignore[call-overload, no-any-return] # CUstream of cuda-python
    except (TypeError, ValueError):
        raise LaunchError(
            f"stream is a {type(stream).__name__}; pass a stream of PyCUDA, CuPy, PyTorch or cuda-python, or its handle"
        ) from None


# --- arrays ---------------------------------------------------------------------------------------------


@dataclass
class _Array:
    """What an argument says of itself."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  #: In bytes; None: as C has them
    dtype: str
    place: str  #: `device`, `host`, or `managed`, which is both
    read_only: bool = False
    ready_on: int | None = None  #: The stream on which it becomes ready
    device: int | None = None
    keep: object = None
    pitch: int | None = None  #: Elements from row to row, where that is more than a row has

    def pitch_of_rows(self, row: int) -> int | None:
        """Elements from one row of `row` elements to the next; None where this is not an array of such rows."""
        size = _BYTES.get(self.dtype, 0)
        sides = [each for each in zip(self.shape, self.strides or (), strict=False) if each[0] != 1]
        expected = size
        while sides and sides[-1][1] == expected and expected < row * size:
            expected *= sides.pop()[0]
        if len(sides) != 1 or expected != row * size or sides[0][1] % size or sides[0][1] < expected:
            return None
        return int(sides[0][1]) // size

    @property
    def contiguous(self) -> bool:
        if self.strides is None or 0 in self.shape:
            return True
        expected = _BYTES.get(self.dtype, 0)
        for length, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if length > 1 and stride != expected:
                return False
            expected *= length
        return True


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p), ("device_type", ctypes.c_int32), ("device", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _DLManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", c_void_p), ("deleter", c_void_p),
        ("flags", ctypes.c_uint64), ("tensor", _DLTensor),
    )  # fmt: skip


_DL_EIGHTS = {10: "float8_e4m3fn", 12: "float8_e5m2"}
_DL_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}
_DL_PLACES = {1: "host", 2: "device", 3: "host", 13: "managed"}
_KINDS = {"i": "int", "u": "uint", "f": "float"}


def _described(value: object, stream: int) -> _Array | None:
    """By `__cuda_array_interface__`, `__array_interface__` or DLPack, whichever answers first; None: none does."""
    immutable = type(value).__module__.partition(".")[0] in ("jax", "jaxlib")
    found = None
    for name in ("__cuda_array_interface__", "__array_interface__"):
        try:  # some libraries raise what they like for an array of the other side, or of a dtype they cannot say
            interface = getattr(value, name, None)
        except Exception:
            interface = None
        if isinstance(interface, Mapping):
            found = _of_interface(interface, "device" if "cuda" in name else "host")
            break
    else:
        if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
            found = _of_dlpack(value, stream)
        elif hasattr(value, "cudaPtr") and hasattr(value, "step"):
            found = _of_gpu_mat(value)
    if found is not None:
        found.read_only = found.read_only or immutable
    return found


def _of_interface(interface: Mapping[str, Any], place: str) -> _Array:
    typestr = str(interface["typestr"])
    kind, size = typestr[1], int(typestr[2:])
    dtype = {"b": "bool", "V": "bfloat16" if size == 2 else typestr}.get(kind, f"{_KINDS.get(kind, kind)}{8 * size}")
    if typestr[0] == ">" and size > 1:
        dtype = f"big-endian {dtype}"
    address, read_only = interface["data"]
    ready_on = interface.get("stream")
    strides = interface.get("strides")
    return _Array(int(address or 0), tuple(interface["shape"]), strides and tuple(strides), dtype, place,
                  bool(read_only), ready_on=None if ready_on is None else int(ready_on))  # fmt: skip


def _of_dlpack(value: Any, stream: int) -> _Array:
    kind, device = (int(each) for each in value.__dlpack_device__())
    if kind not in _DL_PLACES:
        raise LaunchError(f"a {type(value).__name__} lies on a device of DLPack's type {kind}, which is not CUDA's")
    options: dict[str, Any] = {} if _DL_PLACES[kind] == "host" else {"stream": stream or _LEGACY}
    try:
        capsule = value.__dlpack__(**options, max_version=(1, 0))
    except TypeError:  # from before versions
        capsule = value.__dlpack__(**options)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, (ctypes.py_object, c_char_p)
    is_named = ctypes.pythonapi.PyCapsule_IsValid
    is_named.restype, is_named.argtypes = c_int, (ctypes.py_object, c_char_p)
    read_only = False
    if is_named(capsule, b"dltensor_versioned"):
        managed = _DLManagedVersioned.from_address(pointer(capsule, b"dltensor_versioned"))
        tensor, read_only = managed.tensor, bool(managed.flags & 1)
    else:
        tensor = _DLTensor.from_address(pointer(capsule, b"dltensor"))
    name = _DL_CODES.get(tensor.code, "unknown")
    dtype = "bool" if name == "bool" else f"{name}{tensor.bits * tensor.lanes}"
    dtype = _DL_EIGHTS.get(tensor.code, dtype)
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(each * tensor.bits // 8 for each in tensor.strides[: tensor.ndim]) if tensor.strides else None
    return _Array((tensor.data or 0) + tensor.byte_offset, shape, strides, dtype, _DL_PLACES[kind], read_only,
                  device=device if kind == 2 else None, keep=capsule)  # fmt: skip


_DEPTHS = ("uint8", "int8", "uint16", "int16", "int32", "float32", "float64", "float16")


def _of_gpu_mat(value: Any) -> _Array:
    """OpenCV's cuda.GpuMat: rows of interleaved channels, `step` bytes from one to the next."""
    width, height = value.size()
    depth, channels = value.type() % 8, value.type() // 8 + 1
    size = _BYTES[_DEPTHS[depth]]
    return _Array(int(value.cudaPtr()), (height, width, channels), (int(value.step), channels * size, size),
                  _DEPTHS[depth], "device")  # fmt: skip


class DeviceArray:
    """Scratch memory as a seam gets it: `cupy.asarray`, `torch.as_tensor` and the like take it as it is."""

    def __init__(self, address: int, elements: int, dtype: str) -> None:
        self.address, self.dtype, self.size = address, dtype, elements

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.size,), "typestr": _typestr(self.dtype), "data": (self.address, False), "version": 3}


def _typestr(dtype: str) -> str:
    kind = "b" if dtype == "bool" else "u" if dtype in _HELD_AS else dtype[0]
    return f"{'|' if _BYTES[dtype] == 1 else '<'}{kind}{_BYTES[dtype]}"


def _host_array(address: int, elements: int, dtype: str) -> Any:
    """Host memory as a NumPy array (of `_HELD_AS` for what NumPy does not have)."""
    try:
        import numpy
    except ImportError:
        raise LaunchError("this plan has buffers in host memory, and NumPy is not installed; install it") from None
    memory = (c_ubyte * (elements * _BYTES[dtype])).from_address(address)
    return numpy.frombuffer(memoryview(memory), dtype=numpy.dtype(_typestr(dtype)))


# --- building -------------------------------------------------------------------------------------------

_TABLE_HEAD = b"fusiond entry table 1:"
_ENTRY_HEAD = re.compile(r"^((?:\.\w+\s+)*\.entry\s+[\w$]+\s*\([^)]*\))([^{;]*)\{", re.MULTILINE)
_HOST_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fno-strict-aliasing", "-ffp-contract=off")


@dataclass(frozen=True)
class _Image:
    """A cubin, or PTX: names as in the source -> mangled ones."""

    data: bytes
    entries: dict[str, str]
    symbols: dict[str, str]


def _shipped(path: Path) -> _Image:
    """A cubin that fusiond built has its names in a table of its own."""
    data = path.read_bytes()
    start = data.find(_TABLE_HEAD)
    if start < 0:
        raise LaunchError(f"{path} has no entry table, so fusiond did not build it; remove it, or export again")
    start += len(_TABLE_HEAD)
    rows, symbols = json.loads(data[start : data.index(b"\0", start)])
    return _Image(data, {name: row[0] for name, row in rows.items()}, symbols)


def _capped(source: Mapping[str, Any]) -> str:
    """Its PTX, in which no kernel may use more registers than the lowest of its own cap and those among its flags:
    nvcc's -maxrregcount is ignored where a kernel has `__launch_bounds__`."""
    caps = [int(each) for each in re.findall(r"--?maxrregcount[= ](\d+)", " ".join(source["flags"]))]
    caps += [] if source["register_cap"] is None else [source["register_cap"]]
    if not caps:
        return str(source["text"])

    def one(match: re.Match[str]) -> str:
        own = re.search(r"\.maxnreg\s+(\d+)", match.group(2))
        limit = min([*caps, int(own.group(1))] if own else caps)
        directives = match.group(2).replace(own.group(), "") if own else match.group(2)
        return f"{match.group(1)}{directives.rstrip()}\n.maxnreg {limit}\n{{"

    return _ENTRY_HEAD.sub(one, source["text"])


def _host_library(source: Mapping[str, Any], folder: Path, cache: Path) -> ctypes.CDLL:
    """A host source: the library beside the plan where it loads, else one that is built here."""
    built = cache / f"{source['name']}.so"
    for path in (folder / built.name, built):
        if path.is_file():
            try:
                return ctypes.CDLL(str(path))
            except OSError:  # built for another machine
                continue
    compiler = shutil.which(os.environ.get("CXX") or "c++") or shutil.which("g++")
    if compiler is None:
        raise LaunchError(f"no C++ compiler for {source['name']}.cpp; install g++, or name one in CXX")
    cache.mkdir(parents=True, exist_ok=True)
    defines = [f"-D{name}={value}" for name, value in source["defines"]]
    includes = [f"-I{each}" for each in source["include_dirs"]]
    with tempfile.TemporaryDirectory(prefix="fusiond-export-") as work:
        (Path(work) / "source.cpp").write_text(source["text"], encoding="utf-8")
        command = [compiler, *_HOST_FLAGS, *source["flags"], *defines, *includes, "source.cpp", "-o", "out.so"]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            lines = [line for line in (done.stderr + done.stdout).splitlines() if "error" in line] or ["no message"]
            raise LaunchError(f"{source['name']} does not build: {lines[0]}")
        shutil.copyfile(Path(work) / "out.so", built)
    return ctypes.CDLL(str(built))


# --- memory ---------------------------------------------------------------------------------------------


@dataclass
class _Block:
    """Memory that the launcher has allocated: on the device, pinned, pageable or managed."""

    kind: str
    address: int
    size_bytes: int
    memory: object = None


@dataclass
class _Sized:
    """What is kept for one set of sizes in one context."""

    plan: _Plan
    blocks: dict[str, _Block] = field(default_factory=dict)  #: Allocation -> the memory for it
    graphs: dict[tuple[Any, ...], tuple[int, int, Mapping[str, Seam]]] = field(default_factory=dict)
    """Graph, executable, and the functions of the seams, which must live as long as their ids are in the key."""


class _Context:
    """What is kept for one CUDA context: kernels, streams, events, and memory for each set of sizes. It is current
    where it is made and used."""

    def __init__(self, driver: _Driver, document: Mapping[str, Any], folder: Path) -> None:
        self.driver = driver
        self.device = driver.handle("cuCtxGetDevice", kind=c_int)
        self.sized: dict[tuple[tuple[str, int], ...], _Sized] = {}
        self.allocated: list[_Block] = []  #: What `allocate` has handed out
        self.last: int | None = None  #: The stream of the last launch whose memory others use
        self._streams: dict[object, int] = {}
        self._events: dict[object, int] = {}
        self._modules: dict[str, tuple[int, _Image]] = {}
        self._functions: dict[tuple[str, str], int] = {}
        self._shared: dict[int, int] = {}
        arch = driver.arch(self.device)
        for source in document["sources"]:
            if source["kind"] == "device":
                image = _image(document, source, arch, folder)
                module = driver.handle("cuModuleLoadData", image.data, where=f"loading {source['name']}")
                self._modules[source["name"]] = (module, image)
        self.symbols = {each["name"]: self._symbol(each) for each in document["buffers"] if each["symbol"] is not None}

    def _symbol(self, buffer: Mapping[str, Any]) -> int:
        source, _, name = buffer["symbol"].partition(":")
        module, image = self._modules[source]
        address, size = c_ulonglong(), c_size_t()
        self.driver("cuModuleGetGlobal_v2", byref(address), byref(size), module, image.symbols[name].encode())
        if size.value < buffer["elements"] * _BYTES[buffer["dtype"]]:
            raise LaunchError(f"{buffer['name']} has {buffer['elements']} elements, the variable {name} is smaller")
        return address.value

    def function(self, step: Mapping[str, Any]) -> int:
        """A kernel's handle, allowed to use the step's dynamic shared memory."""
        key = (step["source"], step["entry"])
        module, image = self._modules[step["source"]]
        if key not in self._functions:
            mangled = image.entries[step["entry"]].encode()
            self._functions[key] = self.driver.handle("cuModuleGetFunction", module, mangled, where=step["name"])
            if step.get("carveout_pct") is not None:
                self.driver("cuFuncSetAttribute", self._functions[key], _SHARED_CARVEOUT, step["carveout_pct"],
                            where=step["name"])  # fmt: skip
        function = self._functions[key]
        # Without that a launch may have 48 KiB with what the kernel has itself, which is not known here.
        if step["shared_bytes"] > self._shared.get(function, 0):
            self.driver("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED_BYTES, step["shared_bytes"],
                        where=step["name"])  # fmt: skip
            self._shared[function] = step["shared_bytes"]
        return function

    def stream(self, name: object) -> int:
        if name not in self._streams:
            self._streams[name] = self.driver.handle("cuStreamCreate", _NON_BLOCKING)
        return self._streams[name]

    def event(self, name: object) -> int:
        if name not in self._events:
            self._events[name] = self.driver.handle("cuEventCreate", _NO_TIMING)
        return self._events[name]

    def block(self, kind: str, size_bytes: int) -> _Block:
        """Memory at a multiple of 256 bytes, on a page where it is the host's."""
        if kind == "device":
            return _Block(kind, self.driver.handle("cuMemAlloc_v2", size_bytes, kind=c_ulonglong), size_bytes)
        if kind == "pinned":
            return _Block(kind, self.driver.handle("cuMemAllocHost_v2", size_bytes), size_bytes)
        if kind == "managed":
            base = self.driver.handle("cuMemAllocManaged", size_bytes, _ATTACH_GLOBAL, kind=c_ulonglong)
            return _Block(kind, base, size_bytes)
        memory = ctypes.create_string_buffer(size_bytes + _PAGE)
        return _Block(kind, -(-ctypes.addressof(memory) // _PAGE) * _PAGE, size_bytes, memory)

    def free(self, block: _Block) -> None:
        if block.kind in ("device", "managed"):
            self.driver("cuMemFree_v2", block.address)
        elif block.kind == "pinned":
            self.driver("cuMemFreeHost", block.address)

    def close(self) -> None:
        for sized in self.sized.values():
            for graph, executable, _ in sized.graphs.values():
                self.driver("cuGraphExecDestroy", executable)
                self.driver("cuGraphDestroy", graph)
            for block in sized.blocks.values():
                self.free(block)
        for block in self.allocated:
            self.free(block)
        for event in self._events.values():
            self.driver("cuEventDestroy_v2", event)
        for stream in self._streams.values():
            self.driver("cuStreamDestroy_v2", stream)
        for module, _ in self._modules.values():
            self.driver("cuModuleUnload", module)


def _image(document: Mapping[str, Any], source: Mapping[str, Any], arch: str, folder: Path) -> _Image:
    """The cubin of a source that lies in the folder; else PTX, which the driver assembles."""
    for exact in dict.fromkeys((document.get("arch") or arch, arch)):
        path = folder / f"{source['name']}.{exact}.cubin"
        if re.fullmatch(rf"{arch}[af]?", exact) and path.is_file():
            return _shipped(path)
    if source.get("language") == "ptx":
        entries, symbols = ({each: each for each in source[kind]} for kind in ("entries", "symbols"))
        return _Image(_capped(source).encode() + b"\0", entries, symbols)
    raise LaunchError(f"there is no {source['name']}.{arch}.cubin in {folder}; export again with `--arch {arch}`")


# --- launching ------------------------------------------------------------------------------------------


class Launcher:
    """The program of one folder. One may be used from several threads; its launches follow each other on the device,
    because they share scratch memory."""

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        driver: Any = None,
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        """`folder` holds plan.json (the folder of this file). `driver` stands in for libcuda. `cache` keeps host
        functions that have to be compiled (FUSIOND_EXPORT_CACHE, else ~/.cache/fusiond-export)."""
        self.folder = Path(folder or Path(__file__).parent)
        try:
            self._document = json.loads((self.folder / "plan.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise LaunchError(f"{self.folder / 'plan.json'} cannot be read: {problem}") from None
        kept = Path(os.environ.get("FUSIOND_EXPORT_CACHE") or Path.home() / ".cache" / "fusiond-export")
        self._cache = Path(cache or kept) / self._document["program_key"]
        self._driver = _Driver(driver)
        self._contexts: dict[int, _Context] = {}
        self._hosts: dict[str, ctypes.CDLL] = {}
        self._lock = threading.Lock()
        self._planned = {step["arena"] for step in self._document["steps"] if step["is"] == "Alloc"}
        self._optional = frozenset(self._document["optional"])  #: What may be left out: it lies in scratch memory then

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the plan, which hold where a call names none."""
        return dict(self._document["sizes"])

    def launch(
        self,
        arguments: Mapping[str, object],
        sizes: Mapping[str, int] | None = None,
        stream: object = None,
        *,
        seams: Mapping[str, Seam] | None = None,
        naive: bool = False,
    ) -> None:
        """Enqueue the program on `stream` (None: the default stream) in the current context.

        `arguments`: an array for each input and output, by buffer name. `seams`: a function for each library call of
        the plan; `naive` runs the plain kernels that stand in for those that are not given. What the host does itself
        (host calls, copies out of arrays that are not laid out as measured) is done when this returns."""
        with self._lock:
            context = self._context()
            sized = self._sized(context, sizes or {})
            handle = _stream_handle(stream)
            functions = self._functions(seams or {}, naive)
            arrays = self._arrays(arguments, sized.plan, context, handle)
            _Run(self, context, sized, arguments, arrays, functions, handle).go()

    def allocate(self, sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
        """NumPy arrays for the inputs and outputs in host and managed memory, laid out as they were measured, so that
        a launch copies straight from and to them, or moves them. They hold until `close`."""
        with self._lock:
            context = self._context()
            plan = self._sized(context, sizes or {}).plan
            found = {}
            for home, members in plan.homes.items():
                if members[0]["memory"] == "device" or all(each["role"] == "scratch" for each in members):
                    continue
                block = context.block(members[0]["memory"], plan.home_bytes(home))
                context.allocated.append(block)
                for each in members:
                    address = block.address + each["offset_bytes"]
                    if each["role"] != "scratch":
                        found[each["name"]] = _host_array(address, each["elements"], each["dtype"])
            return found

    def close(self) -> None:
        """Free the scratch memory, the arrays of `allocate`, graphs, streams and kernels of the current context."""
        with self._lock:
            context = self._contexts.pop(self._driver.context(), None) if self._contexts else None
            if context is not None:
                self._driver("cuCtxSynchronize")
                context.close()

    # --- what a call brings ---

    def _context(self) -> _Context:
        current = self._driver.context()
        if current not in self._contexts:
            self._contexts[current] = _Context(self._driver, self._document, self.folder)
        return self._contexts[current]

    def _sized(self, context: _Context, sizes: Mapping[str, int]) -> _Sized:
        known = self.sizes
        for name, value in sizes.items():
            if name not in known:
                raise LaunchError(f"there is no size {name!r}; the sizes are {', '.join(known) or 'none'}")
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
                raise LaunchError(f"the size {name} is {value!r}; it must be a whole number from 1")
            if name in self._document["fixed"] and int(value) != known[name]:
                raise LaunchError(f"the size {name} is {known[name]} in the source itself; it cannot be {value}")
            known[name] = int(value)
        key = tuple(sorted(known.items()))
        if key not in context.sized:
            context.sized[key] = _Sized(_plan_at(self._document, known))
        return context.sized[key]

    def _functions(self, given: Mapping[str, Seam], naive: bool) -> dict[str, Seam]:
        known = {each["name"]: each for each in self._document["seams"]}
        for name in given:
            if name not in known:
                raise LaunchError(f"there is no seam {name!r}; the seams are {', '.join(known) or 'none'}")
        for name, seam in known.items():
            if name not in given and not (naive and seam["stand_in"]):
                plain = ", or naive=True for the plain kernel that stands in for it" if seam["stand_in"] else ""
                raise LaunchError(
                    f"seam {name!r} ({seam['operation']}) has no function; pass seams={{{name!r}: function}}{plain}"
                )
        return dict(given)

    def _arrays(
        self, arguments: Mapping[str, object], plan: _Plan, context: _Context, stream: int
    ) -> dict[str, _Array]:
        wanted = {name: each for name, each in plan.buffers.items() if each["role"] != "scratch"}
        for name in arguments:
            if name in plan.buffers and name not in wanted:
                raise LaunchError(f"{name} is scratch memory, which the launcher allocates itself; leave it out")
            if name not in wanted:
                raise LaunchError(f"there is no buffer {name!r}; the arguments are {', '.join(wanted)}")
        found = {}
        for name, buffer in wanted.items():
            if name in arguments:
                row = plan.row_of(name)
                found[name] = _checked(arguments[name], buffer, self._optional, context.device, stream, row)
            elif name not in self._optional:
                where = "on the device" if plan.on_device(name) else "in host memory"
                raise LaunchError(
                    f"the {buffer['role']} {name!r} is missing; pass {buffer['elements']} elements of "
                    f"{buffer['dtype']} {where}"
                )
        return found

    def host_function(self, step: Mapping[str, Any]) -> Any:
        name = step["source"]
        if name not in self._hosts:
            (source,) = (each for each in self._document["sources"] if each["name"] == name)
            self._hosts[name] = _host_library(source, self.folder, self._cache)
        function = self._hosts[name][step["entry"]]
        function.restype = None
        return function


def _checked(
    value: object, buffer: Mapping[str, Any], optional: frozenset[str], device: int, stream: int, row: int | None
) -> _Array:
    """An argument as an array that is right for its buffer; else LaunchError. `row`: the elements of a row, where rows
    may lie apart."""
    name, dtype, elements = buffer["name"], buffer["dtype"], buffer["elements"]
    try:
        array = _described(value, stream)
    except (BufferError, RuntimeError, TypeError, ValueError) as problem:
        raise LaunchError(f"{name}: this {type(value).__name__} cannot be taken: {problem}") from None
    if array is None:
        raise LaunchError(
            f"{name} is a {type(value).__name__}; pass an array with __cuda_array_interface__ or DLPack"
            + ("" if buffer["memory"] == "device" else ", or a NumPy array")
        )
    if array.dtype not in (dtype, _HELD_AS.get(dtype)):
        raise LaunchError(f"{name} has elements of {array.dtype}; it must have {dtype}")
    if math.prod(array.shape) != elements:
        raise LaunchError(
            f"{name} has {math.prod(array.shape)} elements (shape {array.shape}); it must have {elements}"
        )
    if not array.contiguous and row is not None:
        array.pitch = array.pitch_of_rows(row)
        if array.pitch is None:
            raise LaunchError(f"{name} has strides {array.strides}; rows of {row} elements may lie apart, no others")
    elif not array.contiguous:
        raise LaunchError(f"{name} is not contiguous (strides {array.strides}); pass a contiguous copy")
    _check_place(array, buffer, device)
    if array.read_only and (buffer["role"] != "input" or name in optional):
        raise LaunchError(f"{name} is written to, and this {type(value).__name__} is read-only; pass a writable array")
    return array


def _check_place(array: _Array, buffer: Mapping[str, Any], device: int) -> None:
    """LaunchError where an array does not lie where its buffer has to, or begins in the middle of an element."""
    name, dtype = buffer["name"], buffer["dtype"]
    place = "device" if buffer["memory"] == "device" else "host"
    if array.place not in (place, "managed") and buffer["symbol"] is None:
        here, there = ("in host memory", "on the device") if place == "device" else ("on the device", "in host memory")
        raise LaunchError(f"{name} lies {here}; it must lie {there}")
    if array.device is not None and array.device != device:
        raise LaunchError(f"{name} lies on device {array.device}; the current context is of device {device}")
    if array.address % _BYTES[dtype]:
        raise LaunchError(f"{name} begins at an address that is not a multiple of {_BYTES[dtype]} bytes")


class _Run:
    """One launch."""

    def __init__(
        self,
        launcher: Launcher,
        context: _Context,
        sized: _Sized,
        arguments: Mapping[str, object],
        arrays: Mapping[str, _Array],
        functions: Mapping[str, Seam],
        stream: int,
    ) -> None:
        self._launcher, self._sized = launcher, sized
        self._context, self._driver, self._plan = context, context.driver, sized.plan
        self._arguments, self._arrays, self._functions = arguments, arrays, functions
        self._caller = stream
        self._staged: list[str] = []
        """Buffers that are copied into memory of the launcher's, because their arena must be one piece."""
        self._bases = self._found_bases()
        self._symbols = [(name, address) for name, address in context.symbols.items() if name in arrays]
        document = launcher._document
        self._stand_ins = {each["stand_in"]: each for each in document["seams"] if each["stand_in"]}
        self._before: dict[str | None, list[dict[str, Any]]] = {}
        for each in document["seams"]:
            if not each["stand_in"]:
                self._before.setdefault(each["before"], []).append(each)
        self._made: dict[str, _Block | None] = {}  #: What steps have allocated; None: from the stream's pool
        self._capturing = False
        self._graph = document["graph"]
        self._host_steps = frozenset(document["host_steps"])  #: This thread does these, after what they wait for

    def go(self) -> None:
        self._follow()
        for name in self._staged:
            if self._plan.buffers[name]["role"] != "output" or name in self._launcher._optional:
                self._move(self._address(name), self._arrays[name].address, name)
        for name, address in self._symbols:
            if self._plan.buffers[name]["role"] != "output":
                self._move(address, self._arrays[name].address, name)
        lead = self._caller
        batches = any(step["is"] == "CopyBatch" for step in self._plan.steps)
        if batches and lead in (0, _LEGACY, _PER_THREAD) and not self._graph:
            lead = self._context.stream("lead")  # batches of copies are refused on the default stream
            self._hand_over(self._caller, lead, "begin")
        if self._graph:
            self._driver("cuGraphLaunch", self._captured(), self._caller)
        else:
            self._enqueue(lead)
        if lead != self._caller:
            self._hand_over(lead, self._caller, "end")
        for name, address in self._symbols:
            if self._plan.buffers[name]["role"] != "input":
                self._move(self._arrays[name].address, address, name)
        self._finish()

    def _finish(self) -> None:
        on_host = [name for name in self._staged if not self._plan.on_device(name)]
        if on_host:
            self._driver("cuStreamSynchronize", self._caller)
        for name in self._staged:
            if self._plan.buffers[name]["role"] != "input":
                self._move(self._arrays[name].address, self._address(name), name)
        for home in [*self._made]:  # what the plan has allocated and not freed
            self._driver("cuStreamSynchronize", self._caller)
            self._free({"arena": home}, self._caller)
        if self._shares_state():
            self._driver("cuEventRecord", self._context.event("last"), self._caller)
            self._context.last = self._caller

    # --- memory ---

    def _address(self, name: str) -> int:
        """Where a buffer is, for the moment."""
        if name in self._context.symbols:
            return self._context.symbols[name]
        buffer = self._plan.buffers[name]
        return self._bases[buffer["arena"] or name] + int(buffer["offset_bytes"])

    def _span(self, names: Sequence[str]) -> tuple[int, int]:
        """Where neighbours begin, and their bytes, gaps included."""
        begin, last = self._address(names[0]), names[-1]
        return begin, self._address(last) + self._plan.bytes_of(last) - begin

    def _found_bases(self) -> dict[str, int]:
        """Allocation -> its address."""
        found = {}
        for home, members in self._plan.homes.items():
            if home in self._launcher._planned:
                continue
            given = [each for each in members if each["name"] in self._arrays]
            starts = {self._arrays[each["name"]].address - each["offset_bytes"] for each in given}
            if len(starts) == 1 and (self._is_whole(given, members) or self._is_allocated(min(starts), home)):
                (found[home],) = starts
                continue
            self._staged += [each["name"] for each in given]
            if home not in self._sized.blocks:
                self._sized.blocks[home] = self._context.block(members[0]["memory"], self._plan.home_bytes(home))
            found[home] = self._sized.blocks[home].address
        return found

    def _is_whole(self, given: Sequence[dict[str, Any]], members: Sequence[dict[str, Any]]) -> bool:
        """Whether arrays of the caller's, which lie as they should, are all of an allocation and of its kind."""
        kind = members[0]["memory"] != "managed" or all(self._arrays[each["name"]].place == "managed" for each in given)
        return kind and len(given) == len(_wholes(members))

    def _is_allocated(self, address: int, home: str) -> bool:
        size = self._plan.home_bytes(home)
        return any(each.address == address and each.size_bytes == size for each in self._context.allocated)

    def _move(self, target: int, source: int, name: str) -> None:
        size = self._plan.bytes_of(name)
        if self._plan.on_device(name):
            self._driver("cuMemcpyAsync", target, source, size, self._caller, where=name)
        else:
            ctypes.memmove(target, source, size)

    # --- streams ---

    def _shares_state(self) -> bool:
        return bool(self._sized.blocks or self._graph or len({step["stream"] for step in self._plan.steps}) > 1)

    def _follow(self) -> None:
        """Begin after the last launch, with which this one shares memory, and after what makes the arguments."""
        if self._context.last not in (None, self._caller) and self._shares_state():
            self._driver("cuStreamWaitEvent", self._caller, self._context.event("last"), 0)
        same = {self._caller} | ({0, _LEGACY} if self._caller in (0, _LEGACY) else set())
        for stream in {each.ready_on for each in self._arrays.values()} - same:
            if stream is not None:
                self._hand_over(stream, self._caller, "ready")

    def _hand_over(self, before: int, after: int, event: str) -> None:
        """Nothing that is enqueued on `after` from here on begins before what is on `before`."""
        made = self._context.event(event)
        self._driver("cuEventRecord", made, before)
        self._driver("cuStreamWaitEvent", after, made, 0)

    def _captured(self) -> int:
        """The graph of these pointers, seams and sizes; captured when they come for the first time."""
        pitches = tuple(sorted((name, each.pitch or 0) for name, each in self._arrays.items()))
        functions = tuple(sorted((n, id(f)) for n, f in self._functions.items()))
        key = (tuple(sorted(self._bases.items())), pitches, functions)
        graphs = self._sized.graphs
        if key not in graphs:
            lead = self._context.stream("capture")
            self._prepare()
            self._driver("cuStreamBeginCapture_v2", lead, _CAPTURE_THREAD_LOCAL)
            self._capturing = True
            try:
                self._enqueue(lead)
            except BaseException:
                self._driver.status("cuStreamEndCapture", lead, byref(c_void_p()))
                raise
            graph = c_void_p()
            self._driver("cuStreamEndCapture", lead, byref(graph))
            executable = self._driver.handle("cuGraphInstantiateWithFlags", graph.value, 0)
            while len(graphs) >= 16:  # pointers that change with every call must not fill the memory
                old = graphs.pop(next(iter(graphs)))
                self._driver("cuGraphExecDestroy", old[1])
                self._driver("cuGraphDestroy", old[0])
            graphs[key] = (graph.value or 0, executable, self._functions)
        return graphs[key][1]

    def _prepare(self) -> None:
        """Nothing is loaded or made while a stream is captured."""
        for step in self._plan.steps:
            self._context.stream(step["stream"])
            self._context.event(("step", step["name"]))
            if step["is"] == "Launch":
                self._context.function(step)
        for name in ("fork", "join"):
            self._context.event(name)

    def _enqueue(self, lead: int) -> None:
        steps = self._plan.steps
        first, *others = sorted({step["stream"] for step in steps})  # the first is the caller's
        streams = {first: lead, **{number: self._context.stream(number) for number in others}}
        of = {step["name"]: step["stream"] for step in steps}
        awaited = {name for step in steps for name in step["after"] if of[name] != step["stream"]}
        for number in others:
            self._hand_over(lead, streams[number], "fork")
        done: dict[str, int] = {}
        for step in steps:
            stream = streams[step["stream"]]
            for name in step["after"]:
                if of[name] != step["stream"]:
                    self._driver("cuStreamWaitEvent", stream, done[name], 0)
            for seam in self._before.get(step["name"], ()):
                self._call(seam, stream)
            if step["name"] in self._host_steps:
                self._driver("cuStreamSynchronize", stream, where=step["name"])
            self._one(step, stream)
            if step["name"] in awaited:
                done[step["name"]] = self._context.event(("step", step["name"]))
                self._driver("cuEventRecord", done[step["name"]], stream)
        for number in others:
            self._hand_over(streams[number], lead, "join")
        for seam in self._before.get(None, ()):
            self._call(seam, lead)

    # --- steps ---

    def _one(self, step: Mapping[str, Any], stream: int) -> None:
        kind = step["is"]
        if kind == "Launch":
            seam = self._stand_ins.get(step["name"])
            if seam is not None and seam["name"] in self._functions:
                self._call(seam, stream)
            else:
                self._launch(step, stream)
        elif kind == "Copy":
            target, (source, size) = self._address(step["target"][0]), self._span(step["source"])
            if step["name"] in self._host_steps:
                ctypes.memmove(target, source, size)
            else:
                self._driver("cuMemcpyAsync", target, source, size, stream, where=step["name"])
        elif kind == "CopyBatch":
            self._copy_batch(step, stream)
        elif kind == "Prefetch":
            address, size = self._span(step["buffers"])
            where = self._context.device if step["to_device"] else _THE_HOST
            self._driver("cuMemPrefetchAsync", address, size, where, stream, where=step["name"])
        elif kind == "FillStep":
            address, size = self._address(step["buffer"]), self._plan.bytes_of(step["buffer"])
            if self._plan.on_device(step["buffer"]):
                self._driver("cuMemsetD8Async", address, step["byte"], size, stream, where=step["name"])
            else:
                ctypes.memset(address, step["byte"], size)
        elif kind == "HostCall":
            self._launcher.host_function(step)(*(self._host_value(each, step) for each in step["arguments"]))
        elif kind == "Alloc":
            self._allocate(step, stream)
        else:
            self._free(step, stream)

    def _call(self, seam: Mapping[str, Any], stream: int) -> None:
        function = self._functions[seam["name"]]
        function([self._for_seam(each) for each in seam["reads"]], [self._for_seam(each) for each in seam["writes"]],
                 stream)  # fmt: skip

    def _for_seam(self, name: str) -> Any:
        """The caller's own array where the plan uses that; else the launcher's memory."""
        buffer, address = self._plan.buffers[name], self._address(name)
        if name in self._arrays and self._arrays[name].address == address:
            return self._arguments[name]
        if self._plan.on_device(name):
            return DeviceArray(address, buffer["elements"], buffer["dtype"])
        return _host_array(address, buffer["elements"], buffer["dtype"])

    def _launch(self, step: Mapping[str, Any], stream: int) -> None:
        values = [self._value(each, step) for each in step["arguments"]]
        memory = [ctypes.create_string_buffer(each, len(each)) for each in values]
        places = (c_void_p * max(1, len(values)))(*map(ctypes.addressof, memory))
        function = self._context.function(step)
        shape = (*step["grid"], *step["block"], step["shared_bytes"])
        if step["cooperative"]:
            self._driver("cuLaunchCooperativeKernel", function, *shape, stream, places, where=step["name"])
        else:
            self._driver("cuLaunchKernel", function, *shape, stream, places, None, where=step["name"])

    def _copy_batch(self, step: Mapping[str, Any], stream: int) -> None:
        """One call of the driver where it has that (CUDA 13); else, and while a graph is captured, one by one."""
        copies = [
            (self._address(target), self._address(source), self._plan.bytes_of(source))
            for source, target in step["copies"]
        ]
        if self._capturing or not self._driver.has("cuMemcpyBatchAsync_v2"):
            for target, source, size in copies:
                self._driver("cuMemcpyAsync", target, source, size, stream, where=step["name"])
            return
        count = len(copies)
        targets, sources = ((c_ulonglong * count)(*(each[side] for each in copies)) for side in (0, 1))
        sizes = (c_size_t * count)(*(each[2] for each in copies))
        attributes = _CopyAttributes(order=1)  # the sources are read in the order of the stream
        self._driver("cuMemcpyBatchAsync_v2", targets, sources, sizes, count, byref(attributes), byref(c_size_t(0)), 1,
                     stream, where=step["name"])  # fmt: skip

    def _allocate(self, step: Mapping[str, Any], stream: int) -> None:
        home = step["arena"]
        size = self._plan.home_bytes(home)
        if step["pooled"]:
            self._bases[home] = self._driver.handle("cuMemAllocAsync", size, stream, kind=c_ulonglong)
            self._made[home] = None
        else:
            block = self._made[home] = self._context.block(self._plan.homes[home][0]["memory"], size)
            self._bases[home] = block.address

    def _free(self, step: Mapping[str, Any], stream: int) -> None:
        base, block = self._bases.pop(step["arena"]), self._made.pop(step["arena"])
        if block is None:
            self._driver("cuMemFreeAsync", base, stream)
        else:
            self._context.free(block)

    # --- arguments ---

    def _value(self, argument: Mapping[str, Any], step: Mapping[str, Any]) -> bytes:
        """One argument's bytes."""
        if argument["is"] == "Pointer":
            return self._address(argument["buffer"]).to_bytes(8, "little")
        if argument["is"] == "Scalar":
            given = self._arrays.get(argument.get("pitch_of", ""))
            pitch = given.pitch if given is not None else None
            return _packed(argument["dtype"], argument["value"] if pitch is None else pitch, step["name"])
        data = bytearray.fromhex(argument["hex"])
        for offset, dtype, value in argument.get("numbers", ()):
            data[offset : offset + _BYTES[dtype]] = _packed(dtype, value, step["name"])
        for offset, buffer in argument["pointers"]:
            data[offset : offset + 8] = self._address(buffer).to_bytes(8, "little")
        return bytes(data)

    def _host_value(self, argument: Mapping[str, Any], step: Mapping[str, Any]) -> object:
        if argument["is"] == "Pointer":
            return c_void_p(self._address(argument["buffer"]))
        dtype = argument.get("dtype", "")
        name = {"float32": "c_float", "float64": "c_double"}.get(dtype, f"c_{dtype}")
        if not hasattr(ctypes, name):
            raise LaunchError(f"step {step['name']}: a host function takes pointers and plain numbers only")
        return getattr(ctypes, name).from_buffer_copy(self._value(argument, step))


def _packed(dtype: str, value: float, where: str) -> bytes:
    """A number as the device holds it."""
    if dtype == "bfloat16":
        return _bfloat16(float(value))
    if dtype in _EIGHTS:
        return _eight(float(value), *_EIGHTS[dtype])
    try:
        return struct.pack(f"<{_PACKED[dtype]}", float(value) if "float" in dtype else value)
    except (struct.error, OverflowError):
        raise LaunchError(f"step {where} would pass {value} as {dtype}, which does not hold it") from None


_EIGHTS = {"float8_e4m3fn": (3, 7, 0x7E), "float8_e5m2": (2, 15, 0x7B)}
"""Bits of the fraction, bias of the exponent, and the code of the largest number."""


def _eight(value: float, fraction: int, bias: int, largest: int) -> bytes:
    """Rounded once, to nearest even; what is beyond the largest number becomes that."""
    if math.isnan(value):
        return b"\x7f"
    code = largest
    if abs(value) < 2.0**bias * 4:
        exponent = max(math.frexp(value)[1] - 1, 1 - bias) if value else 1 - bias
        code = min(largest, (exponent + bias - 1 << fraction) + round(abs(value) * 2.0 ** (fraction - exponent)))
    return bytes([code | (0x80 if math.copysign(1.0, value) < 0 else 0)])


def _bfloat16(value: float) -> bytes:
    """Rounded once, to nearest even: the upper half of a float32."""
    if math.isnan(value):
        return b"\xff\x7f"
    if math.isfinite(value):
        unit = 2.0 ** (max(math.frexp(value)[1], -125) - 8)
        value = math.copysign(round(value / unit) * unit, value)
    try:
        return struct.pack("<f", value)[2:]
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, value))[2:]
