"""`python -m fusiond.devices.cpu.race BUNDLE`: a program's launches under ThreadSanitizer."""

from pathlib import Path

import numpy as np
import pytest

from fusiond.build import gxx
from fusiond.build.exporting.bundle import write_bundle
from fusiond.devices.cpu import race
from fusiond.devices.cpu.native import NativeLaunch as NativeLaunch
from fusiond.model.errors import DeviceError
from fusiond.model.program import Buffer, Copy, Fill, Launch, Pointer, Program, Role, Scalar, Source

pytestmark = pytest.mark.slow

TEXT = """
__device__ int total;
__global__ void reverse(const int* in, int* out, int sound) {
  __shared__ int s[64];
  s[threadIdx.x] = in[threadIdx.x];
  if (sound || in[0] != 7) __syncthreads();
  out[threadIdx.x] = s[63 - threadIdx.x];
  atomicAdd(&total, out[threadIdx.x]);
}
__global__ void shift(const int* in, int* out) { out[threadIdx.x + 1] = in[threadIdx.x] + total; }
"""
SOURCE = Source(name="dev", text=TEXT, entries=("reverse", "shift"), symbols=("total",))


@pytest.fixture(autouse=True, scope="module")
def _sanitizer(gxx_here: None) -> None:
    try:
        gxx.race_host()
    except DeviceError as problem:
        pytest.skip(str(problem))


def buffer(name: str, role: Role = Role.SCRATCH) -> Buffer:
    return Buffer(name=name, dtype="int32", elements=65, role=role, fill=Fill(kind="constant", low=7))


def program(*, sound: bool) -> Program:
    steps = (
        Copy(name="seven", source=("a",), target=("b",)),  # the race depends on what an earlier step has written
        Launch(name="turn", source="dev", entry="reverse", grid=(1, 1, 1), block=(64, 1, 1),
               arguments=(Pointer(buffer="b"), Pointer(buffer="c"), Scalar(dtype="int32", value=int(sound)))),
        Launch(name="move", source="dev", entry="shift", grid=(1, 1, 1), block=(64, 1, 1),
               arguments=(Pointer(buffer="b"), Pointer(buffer="c" if sound else "b"))),
    )  # fmt: skip
    buffers = (buffer("a", Role.INOUT), buffer("b"), buffer("c"))
    return Program(name="p", buffers=buffers, sources=(SOURCE,), steps=steps)


def bundle(folder: Path, *, sound: bool) -> str:
    write_bundle(folder / "bundle", program(sound=sound), {})
    return str(folder / "bundle")


def test_races_are_printed_with_their_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert race.main([bundle(tmp_path, sound=False)]) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == f"p: {len(lines)} races"
    assert any(line.startswith("turn: ") and "dev.cu:5" in line and "dev.cu:7" in line for line in lines), lines
    assert {line.partition(":")[0] for line in lines} == {"turn", "move"}


def test_a_sound_program_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert race.main([bundle(tmp_path, sound=True)]) == 0
    assert capsys.readouterr().out == "p: no races\n"


def test_what_cannot_be_checked_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert race.main([str(tmp_path)]) == 2
    assert "is not a bundle" in capsys.readouterr().err


FAR = """
__global__ void barrier(int* g, int* out) {
  if (blockIdx.x == 0) g[threadIdx.x] = threadIdx.x;
  __syncthreads();
  if (blockIdx.x == gridDim.x - 1) out[threadIdx.x] = g[threadIdx.x];
}
__global__ void warp(int* g, int* out) {
  if (blockIdx.x == 0) g[threadIdx.x] = threadIdx.x;
  __syncwarp();
  if (blockIdx.x == gridDim.x - 1) out[threadIdx.x] = g[threadIdx.x];
}
"""


@pytest.mark.parametrize("cooperative", [False, True])
@pytest.mark.parametrize("entry", ["barrier", "warp"])
def test_barriers_of_two_blocks_order_nothing_between_them(entry: str, cooperative: bool) -> None:
    """However many blocks lie between them."""
    source = Source(name="far", text=FAR, entries=("barrier", "warp"))
    kernel = gxx.build(source, races=True)
    assert isinstance(kernel, Path), kernel
    for blocks in (2, 3, 4):
        launch = NativeLaunch(grid=(blocks, 1, 1), block=(64, 1, 1), cooperative=cooperative)
        arguments = [np.zeros(64, np.int32), np.zeros(64, np.int32)]
        races = race.find_races(gxx.race_host(), kernel, gxx.exported(source, entry), launch, arguments)
        assert races, (blocks, entry)
        assert all("argument 0" in each for each in races)
