"""Kernels that use what comes with CUDA: matrices of a warp, asynchronous copies, barriers that are objects, pipelines,
groups, atomics, inline PTX. Each is fused with a histogram and with itself."""

# ruff: noqa: E501

from __future__ import annotations

import re
import subprocess

import pytest

from fusiond.model import Config
from fusiond.program import Program
from fusiond_hfuse.codegen import verify
from fusiond_hfuse.frontend import cooperative_groups

YAML = """\
kernel: k
source: k.cu
entry: k
sizes: {n: 3000}
arguments:
  - {name: out, dtype: int32, elements: "3072", role: inout, fill: iota}
  - {name: in, dtype: int32, elements: "3072", role: input, fill: {integers: [0, 99]}}
  - {name: n, dtype: int32, value: n}
block: {shape: [128], tune: x}
grid: ["ceil_div(n, 128)"]
"""
K = "__global__ void k(int* out, const int* in, int n)\n{\n"
FORMS = {
    "a matrix product of each warp": "#include <mma.h>\nusing namespace nvcuda;\n" + K + """\
    __shared__ __align__(32) half a[4][256], b[4][256];
    __shared__ __align__(32) float c[4][256];
    if (threadIdx.x >= 128) return;
    int w = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = lane; i < 256; i += 32) {
        a[w][i] = __int2half_rn(in[(blockIdx.x * 128 + i) % n] % 8);
        b[w][i] = __int2half_rn(in[(blockIdx.x * 128 + 7 * i) % n] % 4);
    }
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 1.0f);
    wmma::load_matrix_sync(left, a[w], 16);
    wmma::load_matrix_sync(right, b[w], 16);
    wmma::mma_sync(sum, left, right, sum);
    for (int t = 0; t < sum.num_elements; t++) sum.x[t] *= 2.0f;
    wmma::store_matrix_sync(c[w], sum, 16, wmma::mem_row_major);
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) out[i] = (int)c[w][lane * 8];
}
""",
    "copies in stages": "#include <cuda_pipeline.h>\n" + K + """\
    __shared__ int tile[2][1024];
    int t = threadIdx.x;
    __pipeline_memcpy_async(&tile[0][t], &in[t], 4);
    __pipeline_commit();
    int sum = 0;
    for (int step = 0; step < 5; ++step) {
        if (step < 4) __pipeline_memcpy_async(&tile[(step + 1) % 2][t], &in[(step + 1) * 128 + t], 4);
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        sum += tile[step % 2][blockDim.x - 1 - t];
        __syncthreads();
    }
    int i = blockIdx.x * 128 + t;
    if (t < 128 && i < n) out[i] = sum;
}
""",
    "a barrier that is an object": "#include <cooperative_groups.h>\n#include <cuda/barrier>\n#include <cuda/std/utility>\n" + K + """\
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    __shared__ int tile[1024];
    auto block = cooperative_groups::this_thread_block();
    if (block.thread_rank() == 0) init(&bar, block.size());
    block.sync();
    int sum = 0;
    for (int step = 0; step < 3; ++step) {
        cuda::memcpy_async(&tile[threadIdx.x], &in[step * 128 + threadIdx.x], sizeof(int), bar);
        bar.arrive_and_wait();
        sum += tile[blockDim.x - 1 - threadIdx.x];
        auto token = bar.arrive();
        bar.wait(cuda::std::move(token));
    }
    int i = blockIdx.x * 128 + threadIdx.x;
    if (threadIdx.x < 128 && i < n) out[i] = sum;
}
""",
    "a pipeline of the block": "#include <cooperative_groups.h>\n#include <cuda/pipeline>\n" + K + """\
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    __shared__ alignas(16) int tile[2][128];
    auto block = cooperative_groups::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    int sum = 0;
    for (int at = 0, next = 0; at < 5; ++at) {
        for (; next < 5 && next < at + 2; ++next) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, tile[next % 2], in + next * 128, cuda::aligned_size_t<16>(512), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum += tile[at % 2][127 - threadIdx.x % 128];
        pipe.consumer_release();
    }
    int i = blockIdx.x * 128 + threadIdx.x;
    if (threadIdx.x < 128 && i < n) out[i] = sum;
}
""",
    "copies, reductions and scans of groups": "#include <cooperative_groups.h>\n#include <cooperative_groups/memcpy_async.h>\n"
        "#include <cooperative_groups/reduce.h>\n#include <cooperative_groups/scan.h>\nnamespace cg = cooperative_groups;\n" + K + """\
    __shared__ __align__(16) int tile[128];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, tile, in + blockIdx.x * 128 % 1024, sizeof(tile));
    cg::wait(block);
    auto warp = cg::tiled_partition<32>(block);
    int v = tile[127 - threadIdx.x % 128];
    int sum = cg::reduce(warp, v, cg::plus<int>()) + cg::inclusive_scan(warp, v) + cg::exclusive_scan(cg::tiled_partition<8>(warp), v);
    auto parity = cg::binary_partition(warp, v % 2 == 0);
    sum += cg::reduce(parity, v, cg::plus<int>()) * 3 + cg::reduce(warp, v, cg::greater<int>());
    int i = blockIdx.x * 128 + threadIdx.x;
    if (threadIdx.x < 128 && i < n) out[i] = sum;
}
""",
    "structs from lane to lane": "#include <cooperative_groups.h>\n#include <cooperative_groups/reduce.h>\nnamespace cg = cooperative_groups;\n" + """\
struct __align__(8) Best { int value, place; };
struct Wide { double sum; char c; };
__device__ Best better(Best a, Best b) { return b.value > a.value || (b.value == a.value && b.place < a.place) ? b : a; }
""" + K + """\
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    int i = blockIdx.x * 128 + threadIdx.x;
    Best best = cg::reduce(warp, Best{in[i % n], (int)threadIdx.x}, better);
    Wide wide = warp.shfl(Wide{in[i % n] * 0.5, (char)(threadIdx.x % 32)}, 5);
    auto parity = cg::binary_partition(warp, in[i % n] % 2);
    Best first = parity.shfl(Best{i, in[i % n]}, 0);
    if (threadIdx.x < 128 && i < n) out[i] = best.value * 100 + best.place + (int)wide.sum + wide.c + first.value + first.place;
}
""",
    "coalesced threads": "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n" + K + """\
    int i = blockIdx.x * 128 + threadIdx.x;
    if (threadIdx.x >= 128 || i >= n || in[i] % 3) return;
    auto here = cg::coalesced_threads();
    int first = 0;
    if (here.thread_rank() == 0) first = atomicAdd(&out[3071], (int)here.size()) * 0;
    first = here.shfl(first, 0);
    out[i] = first + here.any(in[i] == 3) + here.all(1);
}
""",
    "the grid, as far as it is numbered": "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n" + K + """\
    auto grid = cg::this_grid();
    for (unsigned long long i = grid.thread_rank(); i < n; i += grid.size())
        out[i] = in[i] + (int)(grid.num_blocks() * blockDim.x == grid.num_threads());
}
""",
    "a group of any kind": "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n" + """\
__device__ int sum_of(const cg::thread_group& group, int* scratch, int value)
{
    int rank = group.thread_rank();
    for (int i = group.size() / 2; i > 0; i /= 2) {
        scratch[rank] = value;
        group.sync();
        if (rank < i) value += scratch[rank + i];
        group.sync();
    }
    return value;
}
""" + K + """\
    __shared__ int scratch[1024];
    auto block = cg::this_thread_block();
    int v = in[threadIdx.x];
    int whole = sum_of(block, scratch, v);
    block.sync();
    int part = sum_of(cg::tiled_partition(block, 16), scratch + threadIdx.x / 16 * 16, v);
    int i = blockIdx.x * 128 + threadIdx.x;
    if (threadIdx.x < 128 && i < n) out[i] = (threadIdx.x == 0 ? whole : 0) + (threadIdx.x % 16 == 0 ? part : 0);
}
""",
    "references that are atomic": "#include <cuda/atomic>\n" + K + """\
    __shared__ int total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    int i = blockIdx.x * 128 + threadIdx.x;
    bool own = threadIdx.x < 128 && i < n;
    cuda::atomic_ref<int, cuda::thread_scope_block> sum(total);
    if (own) sum.fetch_add(in[i], cuda::memory_order_relaxed);
    __syncthreads();
    if (own) out[i] = sum.load();
}
""",
    "inline PTX": K + """\
    __shared__ int tile[1024];
    unsigned lane, low, high = 1;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    asm("{\\n\\t.reg .u32 t;\\n\\tadd.cc.u32 t, %1, 0xffffffff;\\n\\taddc.u32 %0, %2, 0;\\n\\t}" : "=r"(low) : "r"(lane), "r"(high));
    unsigned to = (unsigned)__cvta_generic_to_shared(&tile[threadIdx.x]);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(in + threadIdx.x) : "memory");
    asm volatile("cp.async.commit_group;\\n cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    int i = blockIdx.x * 128 + threadIdx.x;
    if (threadIdx.x < 128 && i < n) out[i] = tile[127 - threadIdx.x % 128] + low * 100 + lane;
}
""",
    "traits, limits and pairs of cuda::std": "#include <cuda/std/limits>\n#include <cuda/std/type_traits>\n#include <cuda/std/array>\n" + K + """\
    cuda::std::array<int, 2> both{};
    int i = blockIdx.x * 128 + threadIdx.x;
    if (threadIdx.x >= 128 || i >= n) return;
    both[0] = in[i];
    out[i] = both[0] + both[1] + (cuda::std::is_same_v<int, int> ? 1 : 0) + (cuda::std::numeric_limits<int>::max() > 0);
}
""",
}  # fmt: skip

BESIDE = {"kind": "horizontal", "level": "warp", "map": "pad", "order": "ba", "threads.a": 256, "threads.b": 128}
BY_BLOCK = {
    "kind": "horizontal",
    "level": "block",
    "assign": "interleaved",
    "order": "ab",
    "threads.a": 128,
    "threads.b": 128,
}


@pytest.fixture
def fused(analyse, kernel_file, strategy):
    def fused(name: str, other: str, config: dict):
        analysis = analyse(kernel_file("k", FORMS[name], YAML), other)
        assert analysis.rejections == ()
        program = strategy.emit(analysis, Config.of(config), {})
        assert isinstance(program, Program), program
        return analysis, program

    return fused


@pytest.mark.slow
@pytest.mark.sampled(5)  # each name at either level by turns
@pytest.mark.parametrize("config", [BESIDE, BY_BLOCK], ids=["warp", "block"])
@pytest.mark.parametrize("name", FORMS)
def test_beside_a_histogram(fused, strategy, same, name, config):
    """`k` is slot b: its name stands behind `hist`."""
    analysis, program = fused(name, "hist", config)
    same(program, strategy.unfused(analysis, Config.of(config)))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.sampled(3)
def test_beside_itself(fused, strategy, same, name):
    config = {**BESIDE, "threads.a": 128, "order": "ab"}
    analysis, program = fused(name, "./k.yaml", config)
    same(program, strategy.unfused(analysis, Config.of(config)))


@pytest.mark.needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.sampled(4)
def test_nvcc_takes_it(fused, tmp_path, name):
    _, program = fused(name, "hist", BESIDE)
    (tmp_path / "fused.cu").write_text(program.sources[0].text)
    command = [
        "nvcc",
        "-arch=sm_90",
        "-std=c++17",
        "-ptx",
        str(tmp_path / "fused.cu"),
        "-o",
        str(tmp_path / "fused.ptx"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert verify.lint((tmp_path / "fused.ptx").read_text()) == ()


REFUSED = {
    "the whole grid waits": ("#include <cooperative_groups.h>\n", "    cooperative_groups::this_grid().sync();\n", "waits for the whole grid"),
    "the whole grid waits, by a function": ("#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n",
        "    auto grid = cg::this_grid();\n    cg::sync(grid);\n", "waits for the whole grid"),
    "a tile of several warps": ("#include <cooperative_groups.h>\n",
        "    __shared__ cooperative_groups::block_tile_memory<128> m;\n", "block_tile_memory"),
    "a cluster": ("#include <cooperative_groups.h>\n", "    cooperative_groups::this_cluster().sync();\n", "this_cluster"),
    "a warpgroup's matrix product": ("", '    asm volatile("wgmma.fence.sync.aligned;");\n', "needs whole warpgroups"),
    "a barrier of PTX's": ("", '    asm volatile("bar.arrive 1, 64;");\n', "waits at a barrier of the whole block, which a fused kernel shares"),
    "an mbarrier of PTX's": ("", '    asm volatile("mbarrier.inval.shared.b64 [%0];" :: "r"(0));\n', "`cuda::barrier` can be fused"),
    "a launch that waits for another": ("", '    asm volatile("griddepcontrol.wait;");\n', "orders launches"),
    "registers that change": ("", '    asm volatile("setmaxnreg.inc.sync.aligned.u32 96;");\n', "registers of a warpgroup"),
    "a thread that ends": ("", '    asm volatile("exit;");\n', "ends the thread before"),
    "a place in the block": ("", '    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(out[0]));\n', "reads where the thread is in the fused block"),
    "a texture reference": ("texture<float, 2, cudaReadModeElementType> picture;\n",
        "    out[0] = (int)tex2D(picture, 0.0f, 0.0f);\n", "read through a pointer"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_fused_is_refused_in_a_sentence(analyse, kernel_file, name):
    head, body, said = REFUSED[name]
    analysis = analyse(kernel_file("k", head + K + body + "}\n", YAML), "hist")
    assert any(re.search(said, each.detail) for each in analysis.rejections), analysis.rejections


@pytest.mark.slow
@pytest.mark.parametrize("call", ["cudaMalloc((void**)&out, 4)", "cudaDeviceSynchronize()"])
def test_the_device_runtime_is_named(analyse, kernel_file, call):
    with pytest.raises(Exception, match=r"k\.cu:\d+: `cuda\w+` on the device needs the device runtime"):
        analyse(kernel_file("k", K + f"    {call};\n}}\n", YAML), "hist")


BROKEN = [
    ("return __popc(fusiond_mask & ((1u << fusiond_lane()) - 1));", "return fusiond_lane();", "copies, reductions and scans of groups"),
    ("if (rank + ranks < size) value = with(value, behind);", "value = with(value, behind);", "copies, reductions and scans of groups"),
    ("__pipeline_wait_prior(0);", "", "copies, reductions and scans of groups"),
    ("return block_rank() * fusiond_of.size() +", "return", "the grid, as far as it is numbered"),
    ("cut.fusiond_rank = fusiond_rank % size;", "", "a group of any kind"),
    ("if (group.thread_rank() >= ranks) value = with(before, value);", "value = with(before, value);", "copies, reductions and scans of groups"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mutant", range(len(BROKEN)))
@pytest.mark.sampled(2)
def test_broken_groups_are_seen(fused, strategy, same, monkeypatch, mutant):
    text, broken, name = BROKEN[mutant]
    for part in ("TYPES", "COPIES"):
        whole = getattr(cooperative_groups, part)
        if text in whole:
            monkeypatch.setattr(cooperative_groups, part, whole.replace(text, broken))
            break
    else:
        raise AssertionError(f"{text!r} stands nowhere")
    analysis, program = fused(name, "hist", BESIDE)
    with pytest.raises(AssertionError):
        same(program, strategy.unfused(analysis, Config.of(BESIDE)))
