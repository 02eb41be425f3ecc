"""A stand-in for a GPU under Triton: kernels are compiled for sm_90, and run as PTX by the interpreter, not before
somebody waits."""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import compiler
from triton.runtime.driver import driver as active
from triton.runtime.jit import _triton_jit_function_registry

from fusiond.build import gxx
from fusiond.cuda.recording import machines
from fusiond.service.frameworks import launching
from tests.build.exporting.test_ptx import PtxDriver
from tests.cuda.recording.interpreted import images

PACKED = {"i1": "?", "u1": "?", "i8": "b", "u8": "B", "i16": "h", "i32": "i", "u32": "I", "i64": "q", "u64": "Q",
          "fp16": "e", "fp32": "f", "fp64": "d"}  # fmt: skip


class DeviceArray:
    """As an array on a GPU shows itself to Triton."""

    alive: ClassVar[weakref.WeakSet[DeviceArray]] = weakref.WeakSet()

    def __init__(self, array: Any) -> None:
        array = np.asarray(array)
        room = np.zeros(array.nbytes + 256, np.uint8)
        self._room = room[-room.ctypes.data % 256 :][: array.nbytes]
        self.array = self._room.view(array.dtype).reshape(array.shape)
        self.array[...] = array
        DeviceArray.alive.add(self)

    @property
    def dtype(self) -> str:
        return self.array.dtype.name

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.array.__array_interface__, "version": 3, "stream": 1}


class Gpu(PtxDriver):
    """The driver. What Triton launches itself is in `launched`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(gxx.scheduler())
        self.folder, self.launched = folder, []
        self.triton: Any = None

    @property
    def reachable(self) -> dict[str, Any]:  # type: ignore[override]
        return {f"array {number}": each._room for number, each in enumerate(DeviceArray.alive)}

    def load(self, name: str, text: bytes) -> tuple[int, int]:
        module, function = ctypes.c_ulonglong(), ctypes.c_ulonglong()
        self.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(text))
        self.cuModuleGetFunction(ctypes.byref(function), module, ctypes.c_char_p(name.encode()))
        return module.value, function.value


class TritonDriver(DriverBase):
    """Triton's side of it."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.device, self.stream = gpu, 0, 0
        self.utils = SimpleNamespace(
            load_binary=lambda name, text, shared, device: (*gpu.load(name, text), 32, 0, 1024),
            get_device_properties=lambda device: {"max_shared_mem": 232448},
            unload_module=lambda module: None,
        )

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> None:
        return None

    def get_benchmarker(self) -> Any:
        def bench(call: Any, **more: Any) -> list[float]:
            call()
            return [1.0] * 3

        return bench

    def get_current_device(self) -> int:
        return self.device

    def set_current_device(self, device: int) -> None:
        self.device = device

    def get_current_stream(self, device: int) -> int:
        return self.stream

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        def launch(x: int, y: int, z: int, stream: int, function: int, packed: Any, *more: Any) -> None:
            *_, values = more[:3], more[3:]
            self.gpu.launched.append((metadata.name, stream, self.device))
            kinds = list(source.signature.values())
            handed = [_bytes(kind, value) for kind, value in zip(kinds, values, strict=True) if kind != "constexpr"]
            sizes = self.gpu.functions[function].argument_bytes
            held = [np.empty(max(1, metadata.global_scratch_size * x * y * z), np.uint8) for _ in sizes[len(handed) :]]
            for each in held:
                self.gpu.memory[each.ctypes.data] = each
            handed += [each.ctypes.data.to_bytes(8, "little") for each in held]
            buffers = [ctypes.create_string_buffer(each, len(each)) for each in handed]
            places = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
            shape = (x, y, z, 32 * metadata.num_warps, 1, 1, metadata.shared)
            assert self.gpu._launch(function, list(shape), stream, places, cooperative=False) == 0

        return launch


def _bytes(kind: str, value: Any) -> bytes:
    return struct.pack("<Q", value.data_ptr()) if kind[0] == "*" else struct.pack(f"<{PACKED[kind]}", value)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, triton_cache: Path) -> Iterator[Gpu]:
    made = installed(monkeypatch, tmp_path, triton_cache)
    yield made
    assert not any(made.queues.values()), "a test leaves work whose arrays are gone"


def installed(monkeypatch: pytest.MonkeyPatch, folder: Path, cache: Path) -> Gpu:
    """The stand-in in the place of Triton's driver, and of fusiond's. `cache`: Triton's."""
    made = Gpu(folder)
    monkeypatch.setattr(machines, "library", made)
    monkeypatch.setattr(CUDABackend, "make_cubin", lambda self, text, *_: text.encode())
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.setattr(launching, "built_for_gpu", images)
    for each in _triton_jit_function_registry.values():  # what is compiled there is loaded on another one
        each.device_caches.clear()
    compiler.max_shared_mem.cache_clear()  # of another test's GPU
    made.triton = TritonDriver(made)
    active.set_active(made.triton)
    return made


@pytest.fixture(scope="session")
def triton_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of this run: what the stand-in compiles is no cubin."""
    return tmp_path_factory.mktemp("triton")
