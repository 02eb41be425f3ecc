"""cub's primitives of blocks and warps: what stands for them (frontend/headers/cub.h) against NumPy, alone and fused;
nvcc, with cub itself, takes the same sources."""

# ruff: noqa: E501

from __future__ import annotations

import subprocess
from collections.abc import Callable

import numpy as np
import pytest

from fusiond.errors import RequestError
from fusiond.model import Config
from fusiond.program import Program
from fusiond_hfuse.codegen import fuse, verify
from fusiond_hfuse.frontend import includes, library_declarations

BLOCKS, THREADS = 6, 128
YAML = f"""\
kernel: k
source: k.cu
entry: k
sizes: {{blocks: {BLOCKS}}}
arguments:
  - {{name: out, dtype: int32, elements: "{THREADS} * blocks", role: inout, fill: zeros}}
  - {{name: in, dtype: int32, elements: "{THREADS} * blocks", role: input, fill: {{integers: [-50, 50]}}}}
block: {{shape: [{THREADS}]}}
grid: [blocks]
"""
HEAD = "#include <cub/cub.cuh>\n"
K = f"__global__ void k(int* out, const int* in)\n{{\n    const int i = blockIdx.x * {THREADS} + threadIdx.x;\n"


def first(values: np.ndarray) -> np.ndarray:
    """One value a block, which its first thread writes."""
    out = np.zeros((BLOCKS, THREADS), np.int32)
    out[:, 0] = values
    return out


def before(x: np.ndarray) -> np.ndarray:
    """Exclusive sums of rows."""
    return np.cumsum(x, -1) - x


FORMS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "a block's sum": (HEAD + K + """\
    typedef cub::BlockReduce<int, 128> Reduce;
    __shared__ Reduce::TempStorage temp;
    int all = Reduce(temp).Sum(in[i]);
    if (threadIdx.x == 0) out[i] = all;
}
""", lambda x: first(x.sum(1))),
    "of some of its threads": (HEAD + K + """\
    using Reduce = cub::BlockReduce<int, 128, cub::BLOCK_REDUCE_RAKING>;
    __shared__ typename Reduce::TempStorage temp;
    Reduce reduce(temp);
    int all = reduce.Sum(in[i], 77);
    if (threadIdx.x == 0) out[i] = all;
}
""", lambda x: first(x[:, :77].sum(1))),
    "of several items, by an operator of the user's": ("#include <cub/block/block_reduce.cuh>\n"
        "struct Wider { template <class T> __device__ T operator()(const T& a, const T& b) const { return a * a > b * b ? a : b; } };\n" + K + """\
    typedef cub::BlockReduce<long long, 128> Reduce;
    __shared__ Reduce::TempStorage temp;
    long long mine[2] = {in[i] * 1000 + 1, i};
    long long all = Reduce(temp).Reduce(mine, Wider());
    if (threadIdx.x == 0) out[i] = (int)(all % 1000);
}
""", lambda x: first(np.sign(w := np.take_along_axis(x, np.argmax(np.abs(x * 1000 + 1), 1)[:, None], 1)[:, 0] * 1000 + 1) * (np.abs(w) % 1000))),
    "where the largest is": (HEAD + K + """\
    typedef cub::KeyValuePair<int, float> Pair;
    typedef cub::BlockReduce<Pair, 128> Reduce;
    __shared__ Reduce::TempStorage temp;
    Pair best = Reduce(temp).Reduce(Pair(threadIdx.x, (float)in[i]), cub::ArgMax());
    if (threadIdx.x == 0) out[i] = best.key;
}
""", lambda x: first(np.argmax(x, 1))),
    "in a template, for the whole block": (HEAD + "template <typename T, int N> __device__ T whole(T value) {\n" + """\
    using Reduce = cub::BlockReduce<T, N>;
    __shared__ typename Reduce::TempStorage temp;
    __shared__ T kept;
    T all = Reduce(temp).Sum(value);
    if (threadIdx.x == 0) kept = all;
    __syncthreads();
    return kept;
}
""" + K + "    out[i] = (int)whole<double, 128>(in[i]);\n}\n", lambda x: np.broadcast_to(x.sum(1)[:, None], x.shape)),
    "sums before each thread": (HEAD + K + """\
    typedef cub::BlockScan<int, 128, cub::BLOCK_SCAN_WARP_SCANS> Scan;
    __shared__ Scan::TempStorage temp;
    int at, all;
    Scan(temp).ExclusiveSum(in[i], at, all);
    out[i] = at + 100000 * all;
}
""", lambda x: before(x) + 100000 * x.sum(1)[:, None]),
    "sums up to each thread, and maxima": (HEAD + K + """\
    typedef cub::BlockScan<int, 128> Scan;
    __shared__ Scan::TempStorage temp, other;
    int at, highest, lowest;
    Scan(temp).InclusiveSum(in[i], at);
    Scan(other).InclusiveScan(in[i], highest, cub::Max());
    __syncthreads();
    Scan(temp).ExclusiveScan(in[i], lowest, 7, cub::Min());
    out[i] = at + 10000 * highest + 1000000 * lowest;
}
""", lambda x: np.cumsum(x, 1) + 10000 * np.maximum.accumulate(x, 1)
        + 1000000 * np.minimum(7, np.minimum.accumulate(np.concatenate([np.full((BLOCKS, 1), 7), x[:, :-1]], 1), 1))),
    "scans of several items": (HEAD + K + """\
    typedef cub::BlockScan<int, 128> Scan;
    __shared__ Scan::TempStorage temp, other;
    int own[3] = {in[i], 2, (int)threadIdx.x}, sums[3], all;
    Scan(temp).ExclusiveSum(own, sums, all);
    Scan(other).InclusiveSum(own, own);
    out[i] = sums[0] + 3 * sums[1] + 5 * sums[2] + 7 * all + own[0] + own[1] * 2 + own[2] * 4;
}
""", lambda x: _items(x)),
    "a running prefix": (HEAD + "struct Running { int total; __device__ int operator()(int all) { int old = total; total += all; return old; } };\n" + K + """\
    typedef cub::BlockScan<int, 128> Scan;
    __shared__ Scan::TempStorage temp;
    Running running = {5};
    int sum = 0;
    for (int step = 0; step < 3; ++step) {
        int at;
        Scan(temp).ExclusiveSum(in[i] + step, at, running);
        __syncthreads();
        sum += at * (step + 1);
    }
    out[i] = sum;
}
""", lambda x: sum((s + 1) * (before(x + s) + 5 + sum((x + e).sum(1)[:, None] for e in range(s))) for s in range(3))),
    "sums of warps": ("#include <cub/warp/warp_reduce.cuh>\n" + K + """\
    typedef cub::WarpReduce<int> Reduce;
    typedef cub::WarpReduce<int, 8> Eight;
    __shared__ Reduce::TempStorage temp[4];
    __shared__ Eight::TempStorage eight[16];
    int all = Reduce(temp[threadIdx.x / 32]).Sum(in[i]);
    int some = Reduce(temp[threadIdx.x / 32]).Reduce(in[i], cub::Max(), 9);
    int few = Eight(eight[threadIdx.x / 8]).Sum(in[i]);
    if (threadIdx.x % 8 == 0) out[i] = few + (threadIdx.x % 32 == 0 ? 1000 * all + 1000000 * some : 0);
}
""", lambda x: _warps(x)),
    "scans of warps": (HEAD + K + """\
    typedef cub::WarpScan<int, 16> Scan;
    __shared__ Scan::TempStorage temp[8];
    int upto, at, all;
    Scan scan(temp[threadIdx.x / 16]);
    scan.InclusiveSum(in[i], upto);
    scan.ExclusiveSum(in[i], at, all);
    out[i] = upto + 10 * at + 1000 * scan.Broadcast(all, 3);
}
""", lambda x: _rows(x, 16, lambda r: np.cumsum(r, -1) + 10 * before(r) + 1000 * r.sum(-1, keepdims=True))),
    "loads and stores, transposed": (HEAD + K + """\
    typedef cub::BlockLoad<int, 128, 4, cub::BLOCK_LOAD_WARP_TRANSPOSE> Load;
    typedef cub::BlockStore<int, 128, 4, cub::BLOCK_STORE_TRANSPOSE> Store;
    __shared__ union { Load::TempStorage load; Store::TempStorage store; } temp;
    if (blockIdx.x != 0) return;
    int items[4];
    Load(temp.load).Load(in, items, 509, -7);
    for (int at = 0; at < 4; ++at) items[at] = items[at] * 8 + at;
    __syncthreads();
    Store(temp.store).Store(out, items, 510);
}
""", lambda x: _copied(x, 509, 510)),
    "loads and stores, direct and striped": (HEAD + K + """\
    typedef cub::BlockLoad<int, 128, 2, cub::BLOCK_LOAD_DIRECT> Load;
    typedef cub::BlockStore<int, 128, 2, cub::BLOCK_STORE_STRIPED> Store;
    __shared__ Load::TempStorage load;
    __shared__ Store::TempStorage store;
    if (blockIdx.x >= 3) return;
    int items[2];
    Load(load).Load(in + 256 * blockIdx.x, items);
    items[1] += 1000;
    Store(store).Store(out + 256 * blockIdx.x, items);
}
""", lambda x: (x.reshape(3, 128, 2) + np.array([0, 1000])).transpose(0, 2, 1).reshape(x.shape)),
    "an exchange": (HEAD + K + """\
    typedef cub::BlockExchange<int, 128, 3> Exchange;
    __shared__ Exchange::TempStorage temp;
    int items[3] = {in[i], in[i] * 3, (int)threadIdx.x}, back[3];
    Exchange(temp).StripedToBlocked(items, back);
    __syncthreads();
    Exchange(temp).BlockedToStriped(items);
    out[i] = back[0] + 5 * back[1] + 7 * back[2] + 11 * items[0] + 13 * items[1] + 17 * items[2];
}
""", lambda x: _exchanged(x)),
}  # fmt: skip


def _items(x: np.ndarray) -> np.ndarray:
    t = np.broadcast_to(np.arange(THREADS), x.shape)
    own = np.stack([x, np.full_like(x, 2), t], -1).reshape(BLOCKS, -1)
    ex, inc = (each.reshape(BLOCKS, THREADS, 3) for each in (before(own), np.cumsum(own, 1)))
    return ex @ [1, 3, 5] + 7 * own.sum(1)[:, None] + inc @ [1, 2, 4]


def _warps(x: np.ndarray) -> np.ndarray:
    out = np.zeros_like(x)
    out[:, ::8] = x.reshape(BLOCKS, -1, 8).sum(-1)
    rows = x.reshape(BLOCKS, -1, 32)
    out[:, ::32] += 1000 * rows.sum(-1) + 1000000 * rows[:, :, :9].max(-1)
    return out


def _rows(x: np.ndarray, width: int, how: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    return how(x.reshape(BLOCKS, -1, width)).reshape(x.shape)


def _copied(x: np.ndarray, read: int, written: int) -> np.ndarray:
    flat = np.full(512, -7)
    flat[:read] = x.reshape(-1)[:read]
    out = np.zeros(x.size, x.dtype)
    out[:written] = (flat * 8 + np.arange(512) % 4)[:written]
    return out.reshape(x.shape)


def _exchanged(x: np.ndarray) -> np.ndarray:
    t = np.broadcast_to(np.arange(THREADS), x.shape)
    own = np.stack([x, x * 3, t], -1)  # block, thread, item
    striped = own.transpose(0, 2, 1).reshape(BLOCKS, THREADS, 3)
    blocked = own.reshape(BLOCKS, 3, THREADS).transpose(0, 2, 1)
    return striped @ [1, 5, 7] + blocked @ [11, 13, 17]


CONFIG = {"kind": "horizontal", "level": "warp", "map": "pad", "order": "ba", "threads.a": 256, "threads.b": THREADS}
BY_BLOCK = {"kind": "horizontal", "level": "block", "assign": "interleaved", "order": "ab", "threads.a": 256, "threads.b": THREADS}  # fmt: skip


@pytest.fixture
def fused(analyse, kernel_file, strategy):
    def fused(source: str, config: dict = CONFIG):
        analysis = analyse(kernel_file("k", source, YAML), "hist")
        assert analysis.rejections == ()
        program = strategy.emit(analysis, Config.of(config), {})
        assert isinstance(program, Program), program
        return analysis, program

    return fused


def check(runner, program: Program, wanted: Callable[[np.ndarray], np.ndarray]) -> None:
    for order in (0, 7):
        arrays = runner.run(program, order=order)
        assert isinstance(arrays, dict), arrays
        x = arrays["b.in"].astype(np.int64).reshape(BLOCKS, THREADS)
        np.testing.assert_array_equal(arrays["b.out"].reshape(BLOCKS, THREADS), wanted(x))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.sampled(6)
def test_alone_and_fused_as_numpy_has_it(fused, strategy, runner, same, name):
    source, wanted = FORMS[name]
    config = BY_BLOCK if "return;" in source else CONFIG
    analysis, program = fused(source, config)
    reference = strategy.unfused(analysis, Config.of(config))
    check(runner, reference, wanted)
    check(runner, program, wanted)
    assert "cub" not in "".join(line for line in program.sources[0].text.splitlines() if "#include" in line)


@pytest.mark.needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.sampled(3)
def test_nvcc_takes_it(fused, tmp_path, name):
    source, _ = FORMS[name]
    _, program = fused(source, BY_BLOCK if "return;" in source else CONFIG)
    (tmp_path / "fused.cu").write_text(program.sources[0].text)
    command = ["nvcc", "-arch=sm_90", "-std=c++17", "-ptx", str(tmp_path / "fused.cu"), "-o", str(tmp_path / "f.ptx")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lowest = fuse.lowest_barrier(program.sources[0].text)
    assert verify.lint((tmp_path / "f.ptx").read_text(), barriers=tuple(range(lowest, 3))) == ()


@pytest.mark.needs_nvcc
@pytest.mark.slow
def test_by_itself_it_is_compiled_with_cub_itself(fused, strategy, tmp_path):
    """On a GPU the baseline must be what people launch."""
    analysis, _ = fused(FORMS["sums before each thread"][0])
    reference = strategy.unfused(analysis, Config.of(CONFIG))
    (text,) = (each.text for each in reference.sources if "cub" in each.text)
    (tmp_path / "k.cu").write_text(text)
    command = ["nvcc", "-arch=sm_90", "-std=c++17", "-E", str(tmp_path / "k.cu"), "-o", str(tmp_path / "k.ii")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    after = (tmp_path / "k.ii").read_text()
    assert "block_scan.cuh" in after
    assert "fusiond_words" not in after


def test_only_what_the_kernel_names_stands_in_the_fused_text(fused):
    _, program = fused(FORMS["sums of warps"][0])
    text = program.sources[0].text
    assert "class WarpReduce" in text
    assert "class BlockScan" not in text
    assert "class BlockLoad" not in text


def test_a_copy_of_cub_beside_the_source_is_not_read(fused, tmp_path):
    (tmp_path / "cub").mkdir()
    (tmp_path / "cub" / "cub.cuh").write_text("#error this is the copy\n")
    fused(FORMS["a block's sum"][0].replace("<cub/cub.cuh>", '"cub/cub.cuh"'))


def test_what_is_not_there_is_named(fused):
    source = HEAD + K + "    typedef cub::BlockRadixSort<int, 128, 2> Sort;\n    out[i] = 0;\n}\n"
    with pytest.raises(
        RequestError, match=r"uses `cub::BlockRadixSort`, which is not among what can be fused of cub: reductions"
    ):
        fused(source)


BROKEN = [
    ("if (lane + by < lanes && thread + by < valid) input = with(input, other);", "input = with(input, other);", "of some of its threads"),
    ("if (each * 32 < valid) input", "input", "of some of its threads"),
    ("        __syncthreads();\n        if (thread == 0)\n", "        if (thread == 0)\n", "a block's sum"),
    ("if (each == warp) warps_before = running;", "warps_before = running;", "sums before each thread"),
    ("if (lane >= by) inclusive = with(other, inclusive);", "inclusive = with(other, inclusive);", "sums up to each thread, and maxima"),
    ("output = any ? with(prefix, before) : prefix;", "output = with(prefix, before);", "a running prefix"),
    ("a.value == b.value && b.key < a.key", "a.value == b.value", "where the largest is"),
    ("LaneId() % LOGICAL_WARP_THREADS, first = LaneId() - lane;", "LaneId() % 32, first = LaneId() - lane;", "sums of warps"),
    ("return first * Items + thread % 32 + at * lanes;", "return first * Items + thread % 32 * at + lanes;", "loads and stores, transposed"),
    ("            if (here >= valid) continue;\n            if (Transposed) to", "            if (Transposed) to", "loads and stores, transposed"),
    ("output[at] = fusiond_temp.fusiond_items[thread * ITEMS_PER_THREAD + at];", "output[at] = fusiond_temp.fusiond_items[thread + at];", "an exchange"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mutant", range(len(BROKEN)))
@pytest.mark.sampled(4)
def test_broken_primitives_are_seen(fused, runner, monkeypatch, mutant):
    text, broken, name = BROKEN[mutant]
    whole = library_declarations.cub()
    assert text in whole
    monkeypatch.setattr(includes.library_declarations, "cub", lambda: whole.replace(text, broken))
    source, wanted = FORMS[name]
    _, program = fused(source, BY_BLOCK if "return;" in source else CONFIG)
    with pytest.raises(AssertionError):
        check(runner, program, wanted)
