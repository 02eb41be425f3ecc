"""The C++ runtime: each feature against NumPy, each fault against its message, races against their mutants."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fusiond.build import nvcc
from fusiond.build.cpu import commands
from fusiond.build.cpu.lowering import lower
from fusiond.devices.cpu.native import (
    Argument,
    Fault,
    FaultKind,
    Finished,
    NativeError,
    NativeLaunch,
    NativeModule,
    Runtime,
)
from fusiond.devices.cpu.race import find_races
from fusiond.model.gpu.limits import MOST_SHARED_BYTES

KERNELS = Path(__file__).parent / "kernels"
FEATURES = {
    **{name: name for name in ("indices", "order", "affine", "block_sum", "reducing_barriers", "votes", "converge")},
    **{name: name for name in ("atomics", "bits", "real", "stale", "overrun", "groups", "last_block", "fused")},
    "local_memory": "local_memory", "partial_reductions": "partial_reductions", "stencil": "stencil<int, 3>",
    "shuffle_i32": "shuffles<int>", "shuffle_f64": "shuffles<double>", "shuffle_f32": "shuffles<float>",
    "shuffle_u64": "shuffles<unsigned long long>",
}  # fmt: skip
SEEDS = (0, 1, 2, 0xFFFF_FFFF_FFFF_FFFF)
RACES = ("shared_neighbour", "shared_reuse", "counter", "across_blocks", "warp_exchange", "last_block", "own_stack")
POISON, HUGE = 0x7FFFA5A5, 0x7B7B7B7B  # with even seeds, with odd seeds

random_launches = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def fault_names(file: str) -> list[str]:
    text = (KERNELS / file).read_text()
    return [line.split("void ")[1].split("(")[0] for line in text.splitlines() if line.startswith("__global__")]


def compile_kernels(folder: Path, file: str, entries: dict[str, str], *, sanitize: bool = False) -> Path:
    symbols = {"coefficients": "coefficients", "tickets": "tickets"} if file == "features.cu" else {}
    source = folder / f"{file}.{'tsan' if sanitize else 'plain'}.cpp"
    source.write_text(commands.translation_unit(lower((KERNELS / file).read_text()), entries, symbols, name=file))
    out = source.with_suffix(".so")
    subprocess.run(commands.kernel(source, out, sanitize=sanitize), check=True)
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runtime")


@pytest.fixture(scope="module")
def runtime(scheduler_library: Path) -> Runtime:
    return Runtime(scheduler_library)


@pytest.mark.slow
def test_the_library_compiles_without_a_warning(folder: Path) -> None:
    subprocess.run(commands.library(folder / "libfusiond_cpu.so", flags=["-Werror"]), check=True)


@pytest.fixture(scope="module")
def features(runtime: Runtime, folder: Path) -> NativeModule:
    return runtime.load(compile_kernels(folder, "features.cu", FEATURES))


@pytest.fixture(scope="module")
def faults(runtime: Runtime, folder: Path) -> NativeModule:
    return runtime.load(compile_kernels(folder, "faults.cu", {name: name for name in fault_names("faults.cu")}))


@pytest.fixture(scope="module")
def bad_barriers(runtime: Runtime, folder: Path) -> NativeModule:
    names = fault_names("bad_barriers.cu")
    return runtime.load(compile_kernels(folder, "bad_barriers.cu", {name: name for name in names}))


def line(blocks: int, threads: int, *, shared_bytes: int = 0, seed: int = 0, checked: bool = True) -> NativeLaunch:
    return NativeLaunch(
        grid=(blocks, 1, 1), block=(threads, 1, 1), shared_bytes=shared_bytes, seed=seed, checked=checked
    )


def run(
    runtime: Runtime, module: NativeModule, entry: str, launch: NativeLaunch, arguments: Sequence[Argument]
) -> Finished:
    done = runtime.launch(module.entry(entry), launch, arguments)
    assert isinstance(done, Finished), done
    return done


# Threads, blocks and their order


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_every_thread_runs_once_and_knows_its_index(runtime: Runtime, features: NativeModule, seed: int) -> None:
    launch = NativeLaunch(grid=(3, 2, 5), block=(4, 6, 3), seed=seed, checked=True)
    threads = np.full((30 * 72, 3), 99, np.uint32)
    blocks = threads.copy()
    run(runtime, features, "indices", launch, [threads, blocks])
    z, y, x = np.meshgrid(range(3), range(6), range(4), indexing="ij")
    assert (threads.reshape(30, 72, 3) == np.stack([x, y, z], -1).reshape(1, 72, 3)).all()
    z, y, x = np.meshgrid(range(5), range(2), range(3), indexing="ij")
    assert (blocks.reshape(30, 72, 3) == np.stack([x, y, z], -1).reshape(30, 1, 3)).all()


def order_of(runtime: Runtime, features: NativeModule, seed: int) -> list[int]:
    seen = np.zeros(2 * 4 * 64, np.int32)
    run(runtime, features, "order", line(4, 64, seed=seed), [np.zeros(1, np.uint32), seen])
    return list(seen)


def test_seed_zero_runs_in_order(runtime: Runtime, features: NativeModule) -> None:
    order = np.array(order_of(runtime, features, 0)).reshape(4, 2, 64)
    assert (np.sort(order, axis=2) == np.arange(256).reshape(4, 1, 64)).all()
    assert (order[:, 0] == np.arange(256).reshape(4, 64)).all()


def test_a_seed_determines_the_order(runtime: Runtime, features: NativeModule) -> None:
    orders = [order_of(runtime, features, seed) for seed in range(6)]
    assert orders == [order_of(runtime, features, seed) for seed in range(6)]
    assert len({tuple(order) for order in orders}) == 6
    blocks = {tuple(np.array(order).reshape(4, 128)[:, 0] // 64) for order in orders}
    assert len(blocks) > 1
    for order in orders:  # a block's threads are all before the barrier, then all behind it
        for block in np.array(order).reshape(4, 2, 64):
            assert set(block[0]) == set(block[1])
            assert len(set(block[0])) == 64


# Arguments, symbols, shared memory


def test_wrong_arguments_are_refused(runtime: Runtime, features: NativeModule) -> None:
    entry = features.entry("affine")
    assert entry.argument_bytes == (8, 24, 4)
    out = np.zeros(8, np.float32)
    with pytest.raises(NativeError, match="takes 3 arguments, not 1"):
        runtime.launch(entry, line(1, 32), [out])
    with pytest.raises(NativeError, match="argument 2 of affine has 4 bytes, not 8"):
        runtime.launch(entry, line(1, 32), [out, bytes(24), np.int64(8)])
    with pytest.raises(NativeError, match="argument 0 of affine is an array that is not contiguous"):
        runtime.launch(entry, line(1, 32), [out[::2], bytes(24), np.int32(8)])
    with pytest.raises(NativeError, match=r"exports no fusiond_entry_missing"):
        features.entry("missing")


@pytest.mark.parametrize("seed", SEEDS)
def test_template_with_static_shared_tile(runtime: Runtime, features: NativeModule, seed: int) -> None:
    n = 1000
    data = np.random.default_rng(seed % 1000).integers(-50, 50, n).astype(np.int32)
    out = np.zeros(n, np.int32)
    run(runtime, features, "stencil", line(4, 256, seed=seed), [data, out, np.int32(n)])
    assert (out == np.convolve(data, np.ones(7, int), "same")).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("threads", [1, 2, 32, 64, 1024])
def test_tree_sum_in_dynamic_shared_memory(runtime: Runtime, features: NativeModule, seed: int, threads: int) -> None:
    data = np.random.default_rng(threads).integers(-999, 999, (7, threads)).astype(np.int32)
    out = np.zeros(7, np.int32)
    run(runtime, features, "block_sum", line(7, threads, shared_bytes=4 * threads, seed=seed), [data, out])
    assert (out == data.sum(axis=1)).all()


def test_shared_memory_is_poisoned_only_when_checked(runtime: Runtime, features: NativeModule) -> None:
    out = np.zeros(7, np.float32)
    run(runtime, features, "stale", line(2, 1, shared_bytes=64, checked=True), [out])
    assert np.isnan(out).all()
    assert (out.view(np.uint32)[[0, 1, 2, 4, 5, 6]] == POISON).all()
    run(runtime, features, "stale", line(2, 1, shared_bytes=64, checked=True, seed=3), [out])
    assert (out.view(np.uint32)[[0, 1, 2, 4, 5, 6]] == HUGE).all()
    assert (np.fmax(out, 1) > 1e36).all()  # which NaN would not survive


def test_a_write_behind_the_dynamic_shared_memory_is_found(runtime: Runtime, features: NativeModule) -> None:
    run(runtime, features, "overrun", line(1, 32, shared_bytes=64), [np.int32(15)])
    done = runtime.launch(features.entry("overrun"), line(3, 32, shared_bytes=64), [np.int32(17)])
    assert done == Fault(
        kind=FaultKind.SHARED_OVERRUN,
        text="block (0,0,0): byte 4 behind the 64 bytes of dynamic shared memory was written",
        block=(0, 0, 0),
        thread=None,
    )
    run(runtime, features, "overrun", line(1, 32, shared_bytes=64, checked=False), [np.int32(17)])
    run(
        runtime, features, "overrun", line(1, 1, shared_bytes=MOST_SHARED_BYTES), [np.int32(MOST_SHARED_BYTES // 4 - 1)]
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"block": (1025, 1, 1)}, "a block has 1 to 1024 threads"),
        ({"block": (32, 0, 1)}, "a block has 1 to 1024 threads"),
        ({"block": (1, 1, 65)}, "a block has 1 to 1024 threads"),
        ({"grid": (0, 1, 1)}, "a grid has 1 to"),
        ({"grid": (1, 65536, 1)}, "a grid has 1 to"),
        ({"grid": (2**31 - 1, 65535, 65535)}, "more than 2147483647 blocks"),
        ({"shared_bytes": MOST_SHARED_BYTES + 1}, "at most 232448 bytes"),
    ],
)
def test_launches_that_no_gpu_takes(
    runtime: Runtime, features: NativeModule, change: dict[str, object], text: str
) -> None:
    launch = replace(line(1, 32), **change)  # type: ignore[arg-type]
    done = runtime.launch(features.entry("overrun"), launch, [np.int32(0)])
    assert isinstance(done, Fault)
    assert done.kind is FaultKind.BAD_LAUNCH
    assert text in done.text


# Barriers


@pytest.mark.parametrize("seed", SEEDS)
def test_reducing_barriers_ask_the_live_threads(runtime: Runtime, features: NativeModule, seed: int) -> None:
    live = np.arange(100) % 5 != 4
    for values in (np.zeros(100), np.ones(100), np.arange(100) % 7 == 0):
        out = np.full(100, -1, np.int32)
        run(runtime, features, "reducing_barriers", line(1, 100, seed=seed), [values.astype(np.int32), out])
        asked = values[live]
        assert (out[live] == np.count_nonzero(asked) + 10000 * asked.all() + 100000 * asked.any()).all()
        assert (out[~live] == -1).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_partial_barriers_reduce_over_their_own_threads(runtime: Runtime, features: NativeModule, seed: int) -> None:
    """Threads that are done early keep voting, so that those still at work find their barriers complete."""
    values = (np.arange(192) % 7 == 0).astype(np.int32)
    values[96:] *= np.arange(96) < 3
    out = np.full(192, -1, np.int32)
    run(runtime, features, "partial_reductions", line(1, 192, seed=seed), [values, out])
    counted = np.repeat([values[:96].sum(), values[96:].sum()], 96)
    np.testing.assert_array_equal(out, counted + 1000 * (counted > 0))


@pytest.mark.parametrize("seed", SEEDS)
def test_fused_kernels_with_shadowed_builtins_and_partial_barriers(
    runtime: Runtime, features: NativeModule, seed: int
) -> None:
    x = np.random.default_rng(0).random(5000, dtype=np.float32)
    counts = np.zeros(16, np.uint32)
    data = np.arange(9 * 128, dtype=np.int32)
    out = np.zeros_like(data)
    run(runtime, features, "fused", line(9, 96 + 128, seed=seed), [counts, x, np.int32(5000), data, out])
    assert (counts == np.histogram(x, 16, (0, 1))[0]).all()
    assert (out.reshape(9, 128) == data.reshape(9, 128)[:, ::-1]).all()


# Warps


def shuffle_source(kind: int, lane: int, operand: int, width: int) -> int:
    """CUDA's words, not PTX's: groups of `width` lanes; beyond the group a lane keeps its own value."""
    group = lane // width * width
    if kind == 0:
        return group + operand % width
    if kind == 1:
        return lane - operand if lane - operand >= group else lane
    if kind == 2:
        return lane + operand if lane + operand < group + width else lane
    return lane ^ operand if (lane ^ operand) < group + width else lane


masks = st.integers(1, 2**32 - 1) | st.just(2**32 - 1)


@random_launches
@given(
    kind=st.integers(0, 3),
    name=st.sampled_from([("i32", np.int32), ("f32", np.float32), ("f64", np.float64), ("u64", np.uint64)]), mask=masks,
    width=st.sampled_from([1, 2, 4, 8, 16, 32]), operands=st.lists(st.integers(0, 31), min_size=32, max_size=32),
    threads=st.sampled_from([64, 32, 40]), seed=st.integers(0, 2**64 - 1),
)  # fmt: skip
def test_shuffles(
    runtime: Runtime,
    features: NativeModule,
    kind: int,
    name: tuple[str, type],
    mask: int,
    width: int,
    operands: list[int],
    threads: int,
    seed: int,
) -> None:
    values = (np.arange(threads) * 37 + 1000).astype(name[1])
    out = np.zeros(threads, name[1])
    operand = np.resize(np.array(operands, np.int32), threads)
    arguments = [np.int32(kind), np.uint32(mask), np.int32(width), operand, values, out]
    run(runtime, features, f"shuffle_{name[0]}", line(1, threads, seed=seed), arguments)

    nothing = np.frombuffer(np.full(2, HUGE if seed % 2 else POISON, np.uint32).tobytes(), name[1])[0]
    for thread in range(threads):
        source = shuffle_source(kind, thread % 32, int(operand[thread]), width)
        answers = mask >> source & 1 and thread // 32 * 32 + source < threads
        expected = values[thread // 32 * 32 + source] if answers else nothing
        if not mask >> (thread % 32) & 1:
            expected = 0
        assert np.array_equal(out[thread], expected, equal_nan=np.issubdtype(name[1], np.floating))


@random_launches
@given(
    mask=masks,
    values=st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 7), min_size=64, max_size=64),
    seed=st.integers(0, 2**64 - 1),
)
def test_votes_matches_and_reductions(
    runtime: Runtime, features: NativeModule, mask: int, values: list[int], seed: int
) -> None:
    data = np.array(values, np.int32)
    out = np.zeros((64, 16), np.uint32)
    run(runtime, features, "votes", line(1, 64, seed=seed), [np.uint32(mask), data, out])
    for first in (0, 32):
        lanes = [lane for lane in range(32) if mask >> lane & 1]
        v = data[[first + lane for lane in lanes]]
        u = v.view(np.uint32)
        bits = lambda chosen: sum(1 << lane for lane, yes in zip(lanes, chosen, strict=True) if yes)  # noqa: B023, E731
        same = len(set(v & ~7)) == 1
        common = [
            *(bits(v & 1), int((v & 2).any()), int((v & 4).all())),
            *((mask + 1) % 2**32 if same else 0, int(v.sum(dtype=np.int64)), int(v.min()), int(v.max())),
            *(int(u.min()), int(u.max())),
            *(int(np.bitwise_and.reduce(u)), int(np.bitwise_or.reduce(u)), int(np.bitwise_xor.reduce(u))),
        ]
        for lane in lanes:
            row = out[first + lane]
            assert row[3] == bits(v == data[first + lane])
            assert [int(word) for word in np.delete(row[:13], 3)] == [word % 2**32 for word in common]


@pytest.mark.parametrize("seed", SEEDS)
def test_activemask_gathers_a_divergent_branch(runtime: Runtime, features: NativeModule, seed: int) -> None:
    total, gathered = np.zeros(1, np.uint32), np.zeros(64, np.uint32)
    run(runtime, features, "converge", line(1, 64, seed=seed), [total, gathered])
    assert total[0] == sum(i % 3 == 0 for i in range(64))
    for warp in (0, 32):
        branch = [(warp + lane) % 3 == 0 for lane in range(32)]
        taken = sum(1 << lane for lane in range(32) if branch[lane])
        expected = [taken if yes else 2**32 - 1 - taken for yes in branch]
        assert list(gathered[warp : warp + 32]) == expected


# Atomics and arithmetic


def test_atomics(runtime: Runtime, features: NativeModule) -> None:
    i = np.array([0, 0, 0, 0, 0, 0, -1, 0, 0], np.int32)
    u, wide = np.zeros(3, np.uint32), np.zeros(2, np.uint64)
    f, d = np.zeros(1, np.float32), np.zeros(1)
    run(runtime, features, "atomics", line(1, 100), [i, u, wide, f, d])
    t = np.arange(100)
    assert list(i) == [t.sum(), -t.sum(), -99, 99, np.bitwise_xor.reduce(t), 255, -256, 7, 100]
    assert list(u) == [0, 0, 99]
    assert list(wide) == [100 << 40, 99 << 33]
    assert (f[0], d[0]) == (50, 25)


# Faults

K = FaultKind
STUCK = {
    "warp_returns_before_counted": (
        *(K.BARRIER_STUCK, (0, 0, 0)),
        "barrier 1 can never complete: thread (0,0,0) and 63 others wait at barrier 1 "
        "(expects 96 threads, 64 have arrived); thread (64,0,0) and 31 others have returned",
    ),
    "crossed": (
        *(K.BARRIER_STUCK, (0, 0, 0)),
        "barrier 1 can never complete: thread (0,0,0) and 31 others wait at barrier 1 "
        "(expects 96 threads, 32 have arrived); thread (32,0,0) and 63 others wait at barrier 2 "
        "(expects 96 threads, 64 have arrived)",
    ),
    "shuffle_meets_ballot": (
        *(K.WARP_STUCK, (0, 0, 0)),
        "__ballot_sync can never complete: thread (0,0,0) and 15 others wait at __ballot_sync (mask 0xffffffff); "
        "thread (16,0,0) and 15 others wait at __shfl_down_sync (mask 0xffffffff); "
        "thread (32,0,0) and 63 others have returned",
    ),
    "different_masks": (
        *(K.WARP_STUCK, (0, 0, 0)),
        "__shfl_xor_sync can never complete: thread (0,0,0) and 15 others wait at __shfl_xor_sync (mask 0xffffffff); "
        "thread (1,0,0) and 15 others wait at __shfl_xor_sync (mask 0xfffffffe); "
        "thread (32,0,0) and 63 others have returned",
    ),
    "shuffle_meets_barrier": (
        *(K.WARP_STUCK, (32, 0, 0)),
        "__shfl_sync can never complete: thread (32,0,0) and 30 others wait at __shfl_sync (mask 0xffffffff); "
        "thread (0,0,0) and 64 others wait at barrier 0 "
        "(__syncthreads, expects all threads of the block that have not returned)",
    ),
}
AT_ONCE = {
    "different_counts": (K.BARRIER_MISUSE, None, "the users of barrier 3 disagree about its count"),
    "too_many": (K.BARRIER_MISUSE, None, "barrier 4 expects 64 threads, but 96 threads use it"),
    "divergent_warp": (K.BARRIER_MISUSE, None, "threads of one warp wait at different barriers"),
    "mixed_kinds": (K.BARRIER_MISUSE, None, "barrier 0 is "),
    "odd_count": (K.BARRIER_MISUSE, None, "barrier 1 counts 40 threads, which is not a positive multiple of 32"),
    "no_count": (K.BARRIER_MISUSE, None, "barrier 1 counts 0 threads"),
    "no_such_id": (K.BARRIER_MISUSE, None, "barrier 16 does not exist: the ids are 0 to 15"),
    "reads_returned_lane": (K.WARP_MISUSE, None, "reads lane 3, but thread (3,0,0) has returned"),
    "outside_mask": (K.WARP_MISUSE, None, "__shfl_sync(mask 0xfffffff0) is called by lane"),
    "odd_width": (K.WARP_MISUSE, None, "__shfl_sync has width 12, which is not a power of two up to 32"),
    "stack": (K.STACK_OVERFLOW, (40, 0, 0), "the thread's stack has overflowed"),
    "misaligned": (K.MISALIGNED, (33, 0, 0), "misaligned address"),
    "wild": (K.ILLEGAL_ADDRESS, (65, 0, 0), "illegal address 0x8"),
    "division": (K.ARITHMETIC, (2, 0, 0), "integer division by zero"),
    "assertion": (K.TRAP, (9, 0, 0), "assertion `!bad || threadIdx.x != 9` failed at faults.cu:"),
    "trap": (K.TRAP, (1, 0, 0), "__trap()"),
}
FINE = ("lanes_return_before_counted", "warp_returns_before_syncthreads")


def provoke(
    runtime: Runtime, faults: NativeModule, bad_barriers: NativeModule, name: str, *, bad: bool, seed: int
) -> Finished | Fault:
    entry = (bad_barriers if name in fault_names("bad_barriers.cu") else faults).entry(name)
    arguments: list[Argument] = [np.int32(bad), np.zeros(1, np.int32)]
    return runtime.launch(entry, line(3, 96, seed=seed), arguments[: len(entry.argument_bytes)])


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [*STUCK, *AT_ONCE])
def test_a_fault_says_who_waits_where(
    runtime: Runtime, faults: NativeModule, bad_barriers: NativeModule, name: str, seed: int
) -> None:
    kind, thread, text = (STUCK | AT_ONCE)[name]
    done = provoke(runtime, faults, bad_barriers, name, bad=True, seed=seed)
    assert isinstance(done, Fault)
    assert (done.kind, thread or done.thread) == (kind, done.thread)
    assert done.thread is not None
    where = "block ({},{},{}), thread ({},{},{}): ".format(*done.block, *done.thread)
    assert done.text.startswith(where)
    if name in STUCK:
        assert done.text == where + text
    else:
        assert text in done.text
    assert isinstance(provoke(runtime, faults, bad_barriers, name, bad=False, seed=seed), Finished)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", FINE)
def test_what_may_return_before_a_barrier(
    runtime: Runtime, faults: NativeModule, bad_barriers: NativeModule, name: str, seed: int
) -> None:
    assert isinstance(provoke(runtime, faults, bad_barriers, name, bad=True, seed=seed), Finished)


def test_a_thread_has_as_much_local_memory_as_on_a_gpu(runtime: Runtime, features: NativeModule) -> None:
    out = np.zeros(32, np.int32)
    run(runtime, features, "local_memory", line(1, 32), [out])
    assert (out == 1024).all()


# A dropped barrier


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_dropped_barrier_gives_wrong_results(runtime: Runtime, folder: Path, seed: int) -> None:
    text = (KERNELS / "features.cu").read_text()
    head, kernel = text.split("__global__ void block_sum", 1)
    source = folder / f"mutant{seed}.cpp"
    mutant = head + "__global__ void block_sum" + kernel.replace("__syncthreads();", "", 1)
    source.write_text(commands.translation_unit(lower(mutant), {"block_sum": "block_sum"}))
    subprocess.run(commands.kernel(source, source.with_suffix(".so")), check=True)
    module = runtime.load(source.with_suffix(".so"))
    data = np.arange(4 * 256, dtype=np.int32)
    out = np.zeros(4, np.int32)
    run(runtime, module, "block_sum", line(4, 256, shared_bytes=1024, seed=seed), [data, out])
    assert (out != data.reshape(4, 256).sum(axis=1)).any()
    module.close()


# Races


@pytest.fixture(scope="module")
def host(folder: Path) -> Path:
    out = folder / "fusiond_cpu_host"
    done = subprocess.run(commands.host(out), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"g++ here has no ThreadSanitizer: {done.stderr[-200:]}")
    return out


@pytest.fixture(scope="module")
def racy(folder: Path) -> Path:
    names = (*RACES, "wrong_barrier")
    entries = {f"{name}_{sound}": f"{name}<{str(sound).lower()}>" for name in names for sound in (True, False)}
    return compile_kernels(folder, "races.cu", entries, sanitize=True)


def races_of(host: Path, racy: Path, name: str, *, sound: bool, seed: int) -> list[str]:
    launch = NativeLaunch(grid=(3, 1, 1), block=(64, 1, 1), shared_bytes=256, seed=seed)
    return find_races(host, racy, f"{name}_{sound}", launch, [np.zeros(512, np.int32)])


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("name", [*RACES, "wrong_barrier"])
def test_races_are_found_and_sound_code_is_not_blamed(host: Path, racy: Path, name: str) -> None:
    assert races_of(host, racy, name, sound=True, seed=5) == []
    assert races_of(host, racy, name, sound=False, seed=0) != []


@pytest.mark.slow
def test_a_race_names_place_threads_and_lines(host: Path, racy: Path) -> None:
    (race,) = races_of(host, racy, "shared_neighbour", sound=False, seed=0)
    assert "shared_neighbour<false>(int*)::s: write of 4 bytes by thread (32,0,0) of block (0,0,0) at races.cu" in race
    assert "races with read of 4 bytes by thread (31,0,0) of block (0,0,0)" in race
    assert races_of(host, racy, "counter", sound=False, seed=0)[0].startswith("argument 0, byte 0: ")


@pytest.mark.slow
def test_a_launch_that_fails_is_no_race_check(host: Path, racy: Path) -> None:
    launch = NativeLaunch(grid=(1, 1, 1), block=(2048, 1, 1))
    with pytest.raises(NativeError, match="a block has 1 to 1024 threads"):
        find_races(host, racy, "counter_True", launch, [np.zeros(1, np.int32)])
    with pytest.raises(NativeError, match="exports no fusiond_entry_nothing"):
        find_races(host, racy, "nothing", launch, [np.zeros(1, np.int32)])


# The other compilers


@pytest.mark.slow
def test_the_portable_switch(folder: Path, features: NativeModule) -> None:
    """Processors without an own switch use ucontext; in a child, because two libraries must not share one process."""
    library = folder / "libportable.so"
    subprocess.run(commands.library(library, flags=["-DFUSIOND_UCONTEXT", "-Werror"]), check=True)
    script = (
        "import sys, numpy as np; from pathlib import Path; from fusiond.devices.cpu.native import *;"
        "r = Runtime(Path(sys.argv[1])); m = r.load(Path(sys.argv[2])); d = np.arange(512, dtype=np.int32);"
        "o = np.zeros(2, np.int32); l = NativeLaunch(grid=(2, 1, 1), block=(256, 1, 1), shared_bytes=1024, seed=3);"
        "r.launch(m.entry('block_sum'), l, [d, o]); assert list(o) == [d[:256].sum(), d[256:].sum()], o"
    )
    subprocess.run([sys.executable, "-c", script, library, folder / "features.cu.plain.so"], check=True)


@pytest.mark.needs_nvcc
@pytest.mark.parametrize("file", ["features.cu", "faults.cu", "races.cu"])
def test_the_same_kernels_compile_with_nvcc(folder: Path, file: str) -> None:
    toolkit = nvcc.find()
    assert toolkit is not None
    source = folder / file
    text = (KERNELS / file).read_text()
    if file == "races.cu":  # instantiate the templates
        names = (*RACES, "wrong_barrier")
        text += "".join(f"template __global__ void {n}<{s}>(int*);\n" for n in names for s in ("true", "false"))
    source.write_text(text)
    command = [toolkit.nvcc, "-std=c++17", "-arch=sm_80", "-cubin", source, "-o", source.with_suffix(".cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
