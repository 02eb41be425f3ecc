"""Occupancy: values worked out by hand, properties, and the toolkit's own calculator as the oracle."""

import dataclasses
import itertools
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusiond.build import nvcc
from fusiond.model.errors import RequestError
from fusiond.model.gpu.limits import ARCHS, limits
from fusiond.model.gpu.occupancy import carveout_pct, launch_problem, occupancy
from fusiond.model.gpu.ptxas_report import parse_report

registers = st.integers(0, 255)
shared = st.integers(0, 260 * 1024)
threads = st.integers(1, 1024)
archs = st.sampled_from(ARCHS)


def test_named_barriers_come_from_a_pool_of_the_multiprocessor() -> None:
    blackwell = limits("sm_120")
    assert occupancy(blackwell, 16, 0, 64, barriers=1).blocks_per_sm == 24
    assert occupancy(blackwell, 16, 0, 64, barriers=3).blocks_per_sm == 8
    assert occupancy(blackwell, 16, 0, 64, barriers=3).limited_by == "barriers"


def test_so_much_shared_memory_is_asked_for_as_the_resident_blocks_take() -> None:
    hopper = limits("sm_90")  # 228 KiB, of which each block takes 1 KiB more than it says
    assert carveout_pct(hopper, 32, 0, 256) == 4
    assert carveout_pct(hopper, 32, 7 * 1024, 256) == 29  # 8 blocks of 8 KiB
    assert carveout_pct(hopper, 128, 7 * 1024, 256) == 8  # 2 of them
    assert carveout_pct(hopper, 32, 227 * 1024, 256) == 100
    assert carveout_pct(hopper, 32, 300 * 1024, 256) == 0  # it cannot be launched


def test_a_device_without_registers_has_no_register_limit() -> None:
    processor = dataclasses.replace(limits("sm_90"), registers_per_sm=0)
    assert occupancy(processor, 255, 0, 64).blocks_per_sm == 32


@given(arch=archs, regs=registers, shared_bytes=shared, block=threads)
def test_refused_exactly_when_nothing_fits(arch: str, regs: int, shared_bytes: int, block: int) -> None:
    fits = occupancy(limits(arch), regs, shared_bytes, block).blocks_per_sm > 0
    assert fits == (launch_problem(limits(arch), regs, shared_bytes, block) is None)


@given(arch=archs, regs=registers, shared_bytes=shared, block=threads, more=st.integers(1, 64))
def test_asking_for_more_never_helps(arch: str, regs: int, shared_bytes: int, block: int, more: int) -> None:
    here = limits(arch)
    blocks = occupancy(here, regs, shared_bytes, block).blocks_per_sm
    assert occupancy(here, regs + more, shared_bytes, block).blocks_per_sm <= blocks
    assert occupancy(here, regs, shared_bytes + more * 128, block).blocks_per_sm <= blocks
    if block + more <= 1024:
        assert occupancy(here, regs, shared_bytes, block + more).blocks_per_sm <= blocks


@given(arch=archs, regs=registers, shared_bytes=shared, block=threads)
def test_what_is_resident_fits_and_one_more_block_does_not(arch: str, regs: int, shared_bytes: int, block: int) -> None:
    here = limits(arch)
    found = occupancy(here, regs, shared_bytes, block)
    assert 0 <= found.ratio <= 1
    assert found.warps_per_sm * 32 <= here.threads_per_sm
    assert found.blocks_per_sm <= here.blocks_per_sm
    if found.limited_by == "threads" and found.blocks_per_sm < here.blocks_per_sm:
        assert (found.blocks_per_sm + 1) * -(-block // 32) * 32 > here.threads_per_sm


ORACLE = r"""
#include <cstdio>
#include <climits>
#include <cstddef>
#include "cuda_occupancy.h"
int main() {
    int major, minor, sm_threads, sm_shared, block_shared, reserved, regs, shared, threads, barriers, carveout;
    while (scanf("%d%d%d%d%d%d%d%d%d%d%d", &major, &minor, &sm_threads, &sm_shared, &block_shared, &reserved, &regs,
                 &shared, &threads, &barriers, &carveout) == 11) {
        cudaOccDeviceProp device;
        device.computeMajor = major; device.computeMinor = minor;
        device.maxThreadsPerBlock = 1024; device.maxThreadsPerMultiprocessor = sm_threads;
        device.regsPerBlock = 65536; device.regsPerMultiprocessor = 65536; device.warpSize = 32;
        device.sharedMemPerBlock = 48 * 1024; device.sharedMemPerMultiprocessor = sm_shared;
        device.numSms = 100; device.sharedMemPerBlockOptin = block_shared;
        device.reservedSharedMemPerBlock = reserved;
        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = 1024; kernel.numRegs = regs; kernel.sharedSizeBytes = 0;
        kernel.partitionedGCConfig = PARTITIONED_GC_OFF; kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        kernel.maxDynamicSharedSizeBytes = block_shared; kernel.numBlockBarriers = barriers;
        cudaOccDeviceState state;
        state.carveoutConfig = carveout;
        cudaOccResult result;
        int status = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, shared);
        printf("%d\n", status == 0 ? result.activeBlocksPerMultiprocessor : -status);
    }
}
"""


@pytest.mark.slow
def test_agrees_with_nvidias_calculator(tmp_path: Path) -> None:
    toolkit = nvcc.find()
    header = toolkit.root / "include" / "cuda_occupancy.h" if toolkit else None
    if header is None or not header.is_file():
        pytest.skip("needs cuda_occupancy.h of a CUDA toolkit (its package cuda-cudart-dev)")
    (tmp_path / "oracle.cpp").write_text(ORACLE)
    oracle = tmp_path / "oracle"
    subprocess.run(
        ["g++", "-w", "-O1", f"-I{header.parent}", "oracle.cpp", "-o", str(oracle)], cwd=tmp_path, check=True
    )
    # sm_88 is newer than the header of some toolkits, which then calls the device unknown.
    cases = [
        (arch, regs, shared_bytes, block, barriers)
        for arch, regs, shared_bytes, block, barriers in itertools.product(
            [each for each in ARCHS if each != "sm_88"],
            [1, 16, 24, 31, 32, 33, 40, 63, 64, 65, 72, 128, 168, 255],
            [0, 1, 1024, 16_000, 48 * 1024, 49 * 1024, 64 * 1024, 99 * 1024, 100 * 1024, 163 * 1024, 227 * 1024],
            [1, 32, 33, 64, 96, 128, 192, 256, 512, 768, 992, 1024],
            [0, 1, 3, 16],
        )
    ]
    lines = []
    for arch, regs, shared_bytes, block, barriers in cases:
        here = limits(arch)
        number = int(arch.removeprefix("sm_"))
        values = [*divmod(number, 10), here.threads_per_sm, here.shared_bytes_per_sm, here.shared_bytes_per_block]
        values += [here.shared_bytes_reserved, regs, shared_bytes, block, barriers]
        wanted = carveout_pct(here, regs, shared_bytes, block, barriers=barriers)
        lines += [" ".join(map(str, [*values, carveout])) for carveout in (-1, wanted)]  # -1: as the driver chooses
    done = subprocess.run([oracle], input="\n".join(lines), capture_output=True, text=True, check=True)
    expected = [int(each) for each in done.stdout.split()]
    assert len(expected) == 2 * len(cases)
    for case, wanted, asked in zip(cases, expected[::2], expected[1::2], strict=True):
        arch, regs, shared_bytes, block, barriers = case
        found = occupancy(limits(arch), regs, shared_bytes, block, barriers=barriers)
        assert found.blocks_per_sm == wanted, case
        assert asked == wanted, case


# --- limits ---------------------------------------------------------------------------------------------


def test_hopper_as_the_programming_guide_has_it() -> None:
    found = limits("sm_90")
    assert (found.threads_per_sm, found.blocks_per_sm, found.registers_per_sm) == (2048, 32, 65536)
    assert (found.shared_bytes_per_sm, found.shared_bytes_per_block) == (228 * 1024, 227 * 1024)
    assert found.multiprocessors == 132


def test_turing_reserves_no_shared_memory() -> None:
    found = limits("sm_75")
    assert (found.shared_bytes_per_block, found.shared_bytes_reserved) == (64 * 1024, 0)
    assert found.shared_granularity_bytes == 256


def test_multiprocessors_are_the_boards() -> None:
    assert limits("sm_90", multiprocessors=114).multiprocessors == 114


def test_variants_of_an_architecture_are_the_same_silicon() -> None:
    assert limits("sm_90a") == limits("sm_90")


@pytest.mark.parametrize("arch", ["sm_61", "90", "", "cpu"])
def test_an_unknown_architecture_is_answered_with_the_known_ones(arch: str) -> None:
    with pytest.raises(RequestError, match="sm_75, sm_80"):
        limits(arch)


@pytest.mark.parametrize("arch", ARCHS)
def test_every_row_is_consistent(arch: str) -> None:
    found = limits(arch)
    assert found.shared_bytes_per_block + found.shared_bytes_reserved == found.shared_bytes_per_sm
    assert found.threads_per_sm % found.warp_size == 0
    assert found.barriers_per_sm == 0 or found.barriers_per_sm >= found.barriers


# --- the report of `ptxas -v` ---------------------------------------------------------------------------


CAPPED = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'small' for 'sm_90'
ptxas info    : Function properties for small
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
ptxas info    : Compile time = 1.497 ms
ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
    176 bytes stack frame, 292 bytes spill stores, 296 bytes spill loads
ptxas info    : Used 40 registers, used 2 barriers, 176 bytes cumulative stack size, 2048 bytes smem
ptxas info    : Compile time = 15.394 ms
ptxas info    : Function properties for _Z1ffi
    0 bytes stack frame, 44 bytes spill stores, 48 bytes spill loads
"""


def test_every_entry_is_reported() -> None:
    found = parse_report(CAPPED)
    assert sorted(found) == ["k", "small"]
    k = found["k"]
    assert (k.arch, k.registers, k.barriers, k.shared_bytes, k.stack_bytes) == ("sm_90", 40, 2, 2048, 176)


def test_spills_of_a_called_function_count_for_the_entry_that_calls() -> None:
    found = parse_report(CAPPED)
    assert (found["k"].spill_store_bytes, found["k"].spill_load_bytes) == (292 + 44, 296 + 48)
    assert (found["small"].spill_store_bytes, found["small"].spill_load_bytes) == (0, 0)


def test_the_older_format_with_constant_banks() -> None:
    log = """\
ptxas info    : Compiling entry function '_Z3addPf' for 'sm_75'
ptxas info    : Function properties for _Z3addPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 24 registers, 512+16 bytes smem, 360 bytes cmem[0], 8 bytes cmem[2]
"""
    facts = parse_report(log)["_Z3addPf"]
    assert (facts.registers, facts.shared_bytes, facts.barriers, facts.constant_bytes) == (24, 512, 0, 368)
