"""Cooperative launches on the processor: all blocks alive at once, and `this_grid().sync()` between them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fusiond.build import gxx
from fusiond.devices.cpu.native import Argument, Fault, FaultKind, Finished, NativeLaunch, NativeModule, Runtime
from fusiond.devices.cpu.race import find_races
from fusiond.model.errors import DeviceError
from fusiond.model.program import Source

TEXT = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

// Each round moves every element one block on; the sum of the block's shared values goes along.
__global__ void rotate(int* values, int* sums, int n, int rounds) {
  extern __shared__ int seen[];
  __shared__ int kept;
  cg::grid_group grid = cg::this_grid();
  int rank = (int)grid.thread_rank();
  seen[threadIdx.x] = 0;
  if (threadIdx.x == 0) kept = blockIdx.x;
  __syncthreads();
  for (int round = 0; round < rounds; ++round) {
    int next = values[(rank + blockDim.x) % n];
    seen[threadIdx.x] += next;
    grid.sync();
    values[rank] = next;
    cg::sync(grid);
  }
  sums[rank] = kept == blockIdx.x ? seen[threadIdx.x] : -1;
}

__global__ void describe(unsigned long long* out) {
  cg::grid_group grid = cg::this_grid();
  unsigned long long* mine = out + 8 * grid.thread_rank();
  mine[0] = grid.thread_rank();
  mine[1] = grid.size();
  mine[2] = grid.block_rank();
  mine[3] = grid.num_blocks();
  mine[4] = grid.group_dim().x + 100 * grid.group_dim().y + 10000 * grid.group_dim().z;
  mine[5] = grid.is_valid();
  mine[6] = grid.block_index().y;
  mine[7] = grid.num_threads();
}

__global__ void leave(int* out, int block, int thread) {
  if ((int)blockIdx.x == block && (thread < 0 || (int)threadIdx.x == thread)) return;
  cg::this_grid().sync();
  out[0] = 1;
}

__global__ void mixed(int* out) {
  if (threadIdx.x < 32) cg::this_grid().sync();
  else __syncthreads();
  out[0] = 1;
}

__global__ void deep(int* out) {
  __shared__ int s;
  if (threadIdx.x == 0) s = 1;
  __syncthreads();
  unsigned ballot = __ballot_sync(0xffffffffu, threadIdx.x % 2);
  cg::this_grid().sync();
  if (threadIdx.x == 0) s += 1;
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = s + __popc(ballot);
}

__global__ void exchange(int* values, int n, int sound) {
  int rank = (int)cg::this_grid().thread_rank();
  values[rank] = rank;
  if (sound) cg::this_grid().sync();
  int other = values[n - 1 - rank];
  cg::this_grid().sync();
  values[rank] = other;
}
"""
ENTRIES = ("rotate", "describe", "leave", "mixed", "deep", "exchange")
SOURCE = Source(name="grids", text=TEXT, entries=ENTRIES)

Run = Callable[..., Finished | Fault]


@pytest.fixture(scope="module")
def run(scheduler_library: Path) -> Run:
    runtime = Runtime(scheduler_library)
    built = gxx.build(SOURCE)
    assert isinstance(built, Path), built
    module: NativeModule = runtime.load(built)

    def run(entry: str, launch: NativeLaunch, arguments: Sequence[Argument]) -> Finished | Fault:
        return runtime.launch(module.entry(gxx.exported(SOURCE, entry)), launch, arguments)

    return run


def grid(blocks: int, threads: int, *, seed: int = 0, cooperative: bool = True, shared_bytes: int = 0) -> NativeLaunch:
    return NativeLaunch(
        grid=(blocks, 1, 1), block=(threads, 1, 1), seed=seed, cooperative=cooperative, checked=True,
        shared_bytes=shared_bytes,
    )  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    blocks=st.integers(1, 12), threads=st.sampled_from((1, 7, 32, 33, 96, 256)), rounds=st.integers(0, 4),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_blocks_exchange_values_round_after_round(run: Run, blocks: int, threads: int, rounds: int, seed: int) -> None:
    n = blocks * threads
    start = np.arange(n, dtype=np.int32) * 3 + 1
    values, sums = start.copy(), np.zeros(n, np.int32)
    done = run(
        "rotate",
        grid(blocks, threads, seed=seed, shared_bytes=4 * threads),
        [values, sums, np.int32(n), np.int32(rounds)],
    )
    assert isinstance(done, Finished), done
    np.testing.assert_array_equal(values, np.roll(start, -rounds * threads))
    np.testing.assert_array_equal(
        sums, sum((np.roll(start, -(1 + each) * threads) for each in range(rounds)), 0 * start)
    )


def test_the_grid_describes_itself(run: Run) -> None:
    out = np.zeros((3 * 2 * 4, 8), np.uint64)
    launch = NativeLaunch(grid=(3, 2, 1), block=(4, 1, 1), cooperative=True, seed=5)
    assert isinstance(run("describe", launch, [out]), Finished)
    rank = np.arange(24)
    expected = np.stack(
        [rank, 0 * rank + 24, rank // 4, 0 * rank + 6, 0 * rank + 10203, 0 * rank + 1, rank // 12, 0 * rank + 24],
        axis=1,
    )
    np.testing.assert_array_equal(out, expected)
    assert isinstance(run("describe", NativeLaunch(grid=(3, 2, 1), block=(4, 1, 1)), [out]), Finished)
    assert set(out[:, 5]) == {0}  # not valid: the launch is not cooperative


def test_in_a_launch_that_is_not_cooperative_it_is_an_error(run: Run) -> None:
    fault = run("exchange", grid(2, 32, cooperative=False), [np.zeros(64, np.int32), np.int32(64), np.int32(1)])
    assert isinstance(fault, Fault)
    assert fault.kind is FaultKind.BARRIER_MISUSE
    assert "this_grid().sync() in a launch that is not cooperative" in fault.text


def test_a_block_that_returned_never_arrives(run: Run) -> None:
    fault = run("leave", grid(4, 32), [np.zeros(1, np.int32), np.int32(2), np.int32(-1)])
    assert isinstance(fault, Fault)
    assert fault.kind is FaultKind.BARRIER_STUCK
    assert fault.text == (
        "block (0,0,0), thread (0,0,0): this_grid().sync() can never complete: all threads of 3 blocks wait there;"
        " block (2,0,0) has returned"
    )


def test_who_waits_for_the_block_and_who_for_the_grid_is_said(run: Run) -> None:
    fault = run("mixed", grid(2, 64), [np.zeros(1, np.int32)])
    assert isinstance(fault, Fault)
    assert (
        "thread (0,0,0) and 31 others wait at this_grid().sync(); thread (32,0,0) and 31 others wait at barrier 0"
        in (fault.text)
    )


def test_more_than_can_be_alive_at_once_is_refused(run: Run) -> None:
    most = 24 * 1024
    values = np.zeros(most, np.int32)
    done = run("exchange", grid(most // 1024, 1024), [values, np.int32(most), np.int32(1)])
    assert isinstance(done, Finished), done
    np.testing.assert_array_equal(values, np.arange(most)[::-1])
    fault = run("exchange", grid(most // 1024 + 1, 1024), [values, np.int32(most), np.int32(1)])
    assert isinstance(fault, Fault)
    assert fault.kind is FaultKind.BAD_LAUNCH
    assert fault.text == "a cooperative launch of 25600 threads: the processor keeps at most 24576 alive at once"
    huge = NativeLaunch(grid=(2**31 - 1, 1, 1), block=(1024, 1, 1), cooperative=True)
    fault = run("exchange", huge, [values, np.int32(most), np.int32(1)])
    assert isinstance(fault, Fault)
    assert fault.kind is FaultKind.BAD_LAUNCH


@pytest.mark.slow
@pytest.mark.parametrize("sound", [False, True])
def test_what_the_grid_does_not_order_is_a_race(gxx_here: None, sound: bool) -> None:
    try:
        host = gxx.race_host()
    except DeviceError as problem:
        pytest.skip(str(problem))
    kernel = gxx.build(SOURCE, races=True)
    assert isinstance(kernel, Path), kernel
    arguments = [np.zeros(128, np.int32), np.int32(128), np.int32(sound)]
    races = find_races(host, kernel, gxx.exported(SOURCE, "exchange"), grid(4, 32), arguments)
    if sound:
        assert races == []
    else:
        assert races
        assert all("grids.cu:62" in each and "grids.cu:64" in each for each in races), races
