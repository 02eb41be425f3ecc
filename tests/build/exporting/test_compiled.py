"""launch.py where no cubin suits the GPU: it builds the sources itself, with nvcc as it is."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fusiond.build import nvcc, ptxas
from fusiond.build.exporting import launch
from fusiond.model.keys import plain
from fusiond.model.program import Source
from tests.build.exporting import programs

CAPPED = """\
template <int K> __global__ void __launch_bounds__(128) heavy(float* y, int n) {
    float v[64];
    for (int i = 0; i < 64; ++i) v[i] = y[(i * 37 + threadIdx.x) % n];
    for (int r = 0; r < n; ++r)
        for (int i = 0; i < 64; ++i) v[i] = v[i] * v[(i + K) % 64] + N;
    for (int i = 0; i < 64; ++i) y[i * n + threadIdx.x] = v[i];
}
__constant__ float weights[4];
__global__ void light(float* y) { y[threadIdx.x] = weights[threadIdx.x]; }
"""
heavy = Source(
    name="heavy", text=CAPPED, entries=("heavy<3>", "light"), symbols=("weights",), register_cap=48,
    defines=(("N", "2"),), flags=("-lineinfo", "-std=c++17", "-Xptxas=-O2"),
)  # fmt: skip


def described(source: Source) -> dict[str, Any]:
    found: dict[str, Any] = plain(source)
    return found


@pytest.mark.needs_nvcc
def test_names_and_caps_are_those_of_the_builder(tmp_path: Path) -> None:
    made = launch._compiled(described(heavy), "sm_90", tmp_path, tmp_path)
    wanted = nvcc.build(heavy, "sm_90")
    assert isinstance(wanted, ptxas.Cubin)
    assert made.entries == dict(wanted.names)
    kernel = f".text.{wanted.names['heavy<3>']}"
    assert wanted.facts["heavy<3>"].registers <= 48
    assert section(made.data, kernel) == section(wanted.path.read_bytes(), kernel)
    assert launch._compiled(described(heavy), "sm_90", tmp_path, tmp_path) == made
    assert len([*tmp_path.glob("heavy.*.cubin")]) == 1
    free = launch._compiled(described(dataclasses.replace(heavy, register_cap=None)), "sm_90", tmp_path, tmp_path)
    assert section(free.data, kernel) != section(made.data, kernel)  # so the cap has done something
    flags = (*heavy.flags, "-maxrregcount", "48")
    by_flag = dataclasses.replace(heavy, register_cap=None, flags=flags)
    made = launch._compiled(described(by_flag), "sm_90", tmp_path, tmp_path)
    assert section(made.data, kernel) == section(wanted.path.read_bytes(), kernel)


def section(data: bytes, name: str) -> bytes:
    """The bytes of a section of a 64-bit ELF: a cubin has each kernel's code in one of its own."""

    def number(at: int, length: int) -> int:
        return int.from_bytes(data[at : at + length], "little")

    start, size, count, names = number(40, 8), number(58, 2), number(60, 2), number(62, 2)
    table = number(start + names * size + 24, 8)
    for header in range(start, start + count * size, size):
        at = table + number(header, 4)
        if data[at : data.index(b"\0", at)] == name.encode():
            offset, length = number(header + 24, 8), number(header + 32, 8)
            return data[offset : offset + length]
    raise AssertionError(f"no section {name}")


def test_host_sources_are_built_where_no_library_loads(tmp_path: Path, gxx_here: None) -> None:
    (tmp_path / "host.so").write_bytes(b"of another machine")
    cache = tmp_path / "cache"
    cache.mkdir()
    library = launch._host_library(described(programs.host), tmp_path, cache)
    assert library.twice is not None
    assert (cache / "host.so").is_file()
