"""A GPU that is not there, for libraries whose kernels are PTX: the stand-in for the driver interprets it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.build import gxx
from fusiond.cuda.recording import machines
from fusiond.model.program import Program
from fusiond.service.frameworks import launching
from tests.build.exporting.test_ptx import PtxDriver

N = 1000


class Array:
    """Of a device: as `DeviceNDArray` shows itself. Also the name of Numba's type."""

    def __init__(self, array: Any, step: int = 1) -> None:
        room = np.zeros(array.nbytes + 256, np.uint8)
        self.room = room[-room.ctypes.data % 256 :][: array.nbytes]
        self.array = self.room.view(array.dtype)[::step]
        self.array[:] = array[::step]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        of = self.array.__array_interface__
        return {**of, "version": 3, "stream": None}


class KernelData:
    """Arguments of `scale` and `count`, and what they should give."""

    def __init__(self, gpu: Gpu) -> None:
        random = np.random.default_rng(0)
        self.x, self.y = gpu.array(random.random(N, np.float32)), gpu.array(np.zeros(N, np.float32))
        self.v, self.counts = gpu.array(random.integers(0, 16, N)), gpu.array(np.zeros(16, np.int32))

    def check(self, times: int = 1, by: float = 3.0) -> None:
        np.testing.assert_array_equal(self.y.array, self.x.array * np.float32(by))
        np.testing.assert_array_equal(self.counts.array, times * np.bincount(self.v.array, minlength=16))


class Gpu(PtxDriver):
    """The machine, and what Numba launched itself."""

    def __init__(self, folder: Path) -> None:
        super().__init__(gxx.scheduler())
        self.folder, self.device, self.arrays = folder, 0, list[Array]()
        self.launched: list[tuple[str, int, int]] = []

    @property
    def reachable(self) -> dict[str, Any]:  # type: ignore[override]
        return {f"array {number}": each.room for number, each in enumerate(self.arrays)}

    def array(self, values: Any, step: int = 1) -> Array:
        self.arrays.append(Array(values, step))
        return self.arrays[-1]

    def run(self, text: str, name: str, handed: list[bytes], shape: list[int], stream: int) -> None:
        """As a library launches its own kernel."""
        module, function = ctypes.c_ulonglong(), ctypes.c_ulonglong()
        self.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(text.encode()))
        self.cuModuleGetFunction(ctypes.byref(function), module, ctypes.c_char_p(f"_Z{name}".encode()))
        held = [ctypes.create_string_buffer(each, len(each)) for each in handed]
        places = (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held))
        assert self._launch(function.value, shape, stream, places, cooperative=False) == 0


def images(program: Program, arch: str) -> Any:
    """What is built for the machine: the texts themselves."""
    assert arch == "sm_90"
    entries = dict.fromkeys(step.entry for step in program.launches)
    return tuple(each.text.encode() for each in program.sources), tuple(entries)


def installed(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Gpu:
    """In the place of fusiond's driver, and of what builds for it."""
    made = Gpu(folder)
    monkeypatch.setattr(machines, "library", made)
    monkeypatch.setattr(launching, "built_for_gpu", images)
    return made


class Device:
    """The device of a machine, as CuPy's and Numba's own are entered and left."""

    def __init__(self, machine: Any, number: int) -> None:
        self._machine, self.number, self._before = machine, number, machine.device

    def __enter__(self) -> None:
        self._machine.device = self.number

    def __exit__(self, *_: object) -> None:
        self._machine.device = self._before
