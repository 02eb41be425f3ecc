"""Kernels whose counts are known by hand, exactly."""

import dataclasses
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fusiond.build import nvcc
from fusiond.devices.counting.model import H100

from .conftest import DATA, Bench

WARPS = 8
THREADS = 32 * WARPS
TYPES = {"float": 4, "float2": 8, "float4": 16, "double": 8, "half": 2, "byte": 1}


def lanes_sectors(size: int, stride: int, start: int) -> int:
    """Of the eight warps that copy elements of `size` bytes: by the places of single bytes."""
    found = 0
    for warp in range(WARPS):
        elements = [(32 * warp + lane) * stride + start for lane in range(32)]
        found += len({byte // 32 for each in elements for byte in range(each * size, (each + 1) * size)})
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "size"), TYPES.items())
@pytest.mark.parametrize(("stride", "start"), [(1, 0), (2, 0), (8, 0), (32, 0), (1, 1), (1, 3), (1, 7), (2, 5), (8, 1)])
def test_copies(truths: Bench, kind: str, size: int, stride: int, start: int) -> None:
    room = (THREADS * stride + start) * size
    x = np.arange(room, dtype=np.uint32).astype(np.uint8)
    y = np.zeros_like(x)
    ran = truths.run(f"copy_{kind}", [x, y, np.int32(stride), np.int32(start)], grid=(2,), block=(THREADS // 2,))
    assert ran.result.failed is None
    expected = lanes_sectors(size, stride, start)
    assert ran.sums["read_sectors"] == ran.sums["write_sectors"] == expected
    assert ran.sums["read_bytes"] == ran.sums["write_bytes"] == THREADS * size
    elements = (np.arange(THREADS) * stride + start)[:, None] * size + np.arange(size)
    assert np.array_equal(ran.arrays[1][elements], x[elements])
    sectors = len(np.unique(elements // 32))
    assert ran.result.compulsory_read_sectors == ran.result.compulsory_write_sectors == sectors
    assert ran.dram == (32 * sectors, 32 * sectors)


def test_a_broadcast_is_one_sector(truths: Bench) -> None:
    x, y = np.arange(4, dtype=np.float32), np.zeros(4 * THREADS, np.float32)
    ran = truths.run("broadcast", [x, y], grid=(4,), block=(THREADS,))
    assert ran.sums["read_sectors"] == 4 * WARPS
    assert ran.sums["read_bytes"] == 4 * 4 * THREADS
    assert ran.result.compulsory_read_sectors == 1
    assert ran.dram[0] == 32
    assert np.array_equal(ran.arrays[1], np.repeat(x, THREADS))


@pytest.mark.parametrize(
    ("kernel", "write_sectors", "wavefronts", "minimal"),
    [("transpose_plain", 32, 0, 0), ("transpose_tile", 4, 1 + 32, 2), ("transpose_padded", 4, 1 + 1, 2)],
)
def test_transposes(truths: Bench, kernel: str, write_sectors: int, wavefronts: int, minimal: int) -> None:
    """Each number is a warp's for a row of its tile; there are n * n / 32 of them."""
    n = 64
    x, y = np.random.default_rng(0).random((n, n), np.float32), np.zeros((n, n), np.float32)
    ran = truths.run(kernel, [x, y, np.int32(n)], grid=(2, 2), block=(32, 8))
    rows = n * n // 32
    assert np.array_equal(ran.arrays[1], x.T)
    assert ran.sums["read_sectors"] == 4 * rows
    assert ran.sums["write_sectors"] == write_sectors * rows
    assert ran.sums["wavefronts"] == wavefronts * rows
    assert ran.sums["minimal_wavefronts"] == minimal * rows


def test_reductions(truths: Bench) -> None:
    rows, n = 8, 256
    x = np.random.default_rng(0).integers(-50, 50, (rows, n)).astype(np.float32)
    by_row = truths.run("sum_rows", [x, np.zeros(rows, np.float32), np.int32(n)], grid=(rows,))
    assert np.array_equal(by_row.arrays[1], x.sum(1))
    assert by_row.sums["read_sectors"] == rows * n // 8
    assert by_row.sums["write_sectors"] == rows
    assert by_row.sums["write_bytes"] == 4 * rows
    by_column = truths.run(
        "sum_columns", [x, np.zeros(n, np.float32), np.int32(rows), np.int32(n)], grid=(2,), block=(128,)
    )
    assert np.array_equal(by_column.arrays[1], x.sum(0))
    assert by_column.sums["read_sectors"] == rows * n // 8
    assert by_column.sums["write_sectors"] == n // 8


@pytest.mark.parametrize("radius", [1, 2, 4])
@pytest.mark.parametrize("tiled", [False, True])
def test_stencils(truths: Bench, radius: int, tiled: bool) -> None:
    n, block = 1024, 128
    x = np.random.default_rng(0).integers(0, 9, n + 64).astype(np.float32)
    kernel, shared = ("stencil_tile", 4 * (block + 2 * radius)) if tiled else ("stencil", 0)
    places = [x, np.zeros(n + 64, np.float32), np.int32(radius)]
    ran = truths.run(kernel, places, grid=(n // block,), block=(block,), begins=128, shared_bytes=shared)
    expected = sum(np.roll(x, -k)[32 : 32 + n] for k in range(-radius, radius + 1))
    assert np.array_equal(ran.arrays[1][32 : 32 + n], expected)
    if tiled:
        # Four warps that begin off a boundary, and what is left: half of it on either side of one.
        assert ran.sums["read_sectors"] == (n // block) * (4 * 5 + 2)
        assert ran.sums["wavefronts"] == ran.sums["minimal_wavefronts"]
    else:  # of each warp 4 sectors where k is 0, else 5
        assert ran.sums["read_sectors"] == (n // 32) * (4 + 2 * radius * 5)
    assert ran.result.compulsory_read_sectors == n // 8 + 2
    assert ran.dram[0] == 32 * (n // 8 + 2)


def test_histograms(truths: Bench) -> None:
    many, equal = np.arange(256, dtype=np.int32) * 8, np.full(256, 5, np.int32)
    counts = np.zeros(2048, np.int32)
    apart = truths.run("histogram", [many, counts], grid=(2,), block=(128,))
    together = truths.run("histogram", [equal, counts], grid=(2,), block=(128,))
    assert (apart.sums["atomic_sectors"], together.sums["atomic_sectors"]) == (256, 8)
    assert apart.sums["atomic_bytes"] == together.sums["atomic_bytes"] == 1024
    assert together.arrays[1][5] == 256
    assert np.array_equal(apart.arrays[1].nonzero()[0], many)
    # In shared memory lanes with one key take turns.
    keys = np.arange(256, dtype=np.int32)
    for given, turns in ((keys, 1), (equal, 32)):
        ran = truths.run("histogram_shared", [given, np.zeros(256, np.int32)], block=(256,))
        assert np.array_equal(ran.arrays[1], np.bincount(given, minlength=256))
        assert ran.sums["wavefronts"] == 8 * (1 + turns + 1)
        assert ran.sums["minimal_wavefronts"] == 8 * 3


@pytest.mark.parametrize("power", range(7))
def test_strides_of_powers_of_two_in_shared_memory(truths: Bench, power: int) -> None:
    stride = 2**power
    ran = truths.run("shared_stride", [np.zeros(32, np.float32), np.int32(stride)], shared_bytes=128 * stride)
    assert np.array_equal(ran.arrays[0], np.arange(32))
    assert ran.sums["wavefronts"] == 2 * min(stride, 32)
    assert ran.sums["minimal_wavefronts"] == 2
    assert (
        truths.run("shared_stride", [np.zeros(32, np.float32), np.int32(3)], shared_bytes=512).sums["wavefronts"] == 2
    )


@pytest.mark.parametrize(("stride", "wavefronts"), [(1, 4), (2, 8), (8, 32), (3, 4)])
def test_wide_accesses_take_four_phases(truths: Bench, stride: int, wavefronts: int) -> None:
    ran = truths.run("shared_wide", [np.zeros(128, np.float32), np.int32(stride)], shared_bytes=512 * stride)
    assert np.array_equal(ran.arrays[0].reshape(32, 4)[:, 0], np.arange(32))
    assert ran.sums["wavefronts"] == 2 * wavefronts
    assert ran.sums["minimal_wavefronts"] == 8


# --- lanes that part, barriers, blocks together ---


def test_lanes_that_part_meet_again(truths: Bench) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 1000, 32).astype(np.int32), rng.integers(0, 9, 64).astype(np.int32)
    ran = truths.run("meet", [x, y, np.int32(700)])
    expected = []
    for i, value in enumerate(x.tolist()):
        for _ in range(i & 3):
            if value & 1:
                value = 3 * value + 1
                value -= int(y[32 + (value & 31)]) if value > 700 else 0
            else:
                value >>= 1
        expected.append(value)
    assert ran.arrays[1][:32].tolist() == expected
    stores = [
        counts["warps"]
        for counts, source in zip(ran.result.counts, ran.result.code.sources, strict=True)
        if source.opcode.startswith("st.global")
    ]
    assert stores == [1]


def test_barriers_count_and_halves_of_a_block(truths: Bench) -> None:
    x = np.arange(128, dtype=np.int32)
    ran = truths.run("barriers", [x, np.zeros(128, np.int32)], block=(128,))
    assert ran.result.failed is None
    assert ran.arrays[1].tolist() == [63 - i + 64000 + 300000 for i in range(64)] + [64] * 64


def test_blocks_that_wait_for_one_another(truths: Bench) -> None:
    x = np.arange(300, dtype=np.int32)
    tight = dataclasses.replace(H100, multiprocessors=1)
    arguments = [x, np.zeros(301, np.int32), np.zeros(1, np.uint32)]
    ran = truths.run("last_block", arguments, grid=(300,), block=(1,), cooperative=True, gpu=tight)
    assert ran.result.failed is None
    assert ran.arrays[1][0] == x.sum()


def test_a_deadlock_is_said(truths: Bench) -> None:
    ran = truths.run("stuck", [np.zeros(64, np.int32)], block=(64,))
    assert "deadlock" in (ran.result.failed or "")


# --- the L2 ---


def test_what_does_not_fit_is_read_again(truths: Bench) -> None:
    """Three passes over rows: from DRAM once where the resident rows fit into the L2, three times where they do not."""
    rows, n = 4, 4096
    x, y = np.ones((rows, n), np.float32), np.zeros((rows, n), np.float32)
    whole = truths.run("passes", [x, y, np.int32(n)], grid=(rows,))
    assert whole.dram == (x.nbytes, y.nbytes)
    small = dataclasses.replace(H100, l2_bytes=x.nbytes // 2)
    again = truths.run("passes", [x, y, np.int32(n)], grid=(rows,), gpu=small)
    assert again.dram == (3 * x.nbytes, y.nbytes)
    alone = dataclasses.replace(small, multiprocessors=1, most_blocks=1)  # a row at a time fits
    assert truths.run("passes", [x, y, np.int32(n)], grid=(rows,), gpu=alone).dram == (x.nbytes, y.nbytes)


# --- mistakes ---


def test_accesses_that_no_buffer_holds(truths: Bench) -> None:
    x = np.zeros(32, np.float32)
    outside = truths.run("copy_float", [x, x, np.int32(1), np.int32(1)])
    said = r"truths\.cu:\d+: ld\.global\S* an access of 4 bytes at 0x\w+ is outside"
    assert re.match(said, outside.result.failed or "")
    pairs = np.zeros(99, np.float64)
    askew = truths.run("copy_float2", [pairs, pairs, np.int32(1), np.int32(0)], begins=4)
    assert "misaligned" in (askew.result.failed or "")


@pytest.mark.needs_nvcc
def test_the_ptx_is_what_nvcc_makes_of_the_source(tmp_path: Path) -> None:
    toolkit = nvcc.find()
    if toolkit is None:
        pytest.skip(nvcc.missing() or "no nvcc")
    out = tmp_path / "truths.ptx"
    subprocess.run([toolkit.nvcc, "-ptx", "-arch=sm_90", "-lineinfo", "-o", out, DATA / "truths.cu"], check=True)

    def plain(text: str) -> list[str]:
        code = text.partition("\t.section")[0]  # behind it are names that depend on the folder
        return [line for line in code.splitlines() if not re.match(r"\s*(//|\.file|\.version)", line)]

    assert plain(out.read_text()) == plain((DATA / "truths.ptx").read_text())
