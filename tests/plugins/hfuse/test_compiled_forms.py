"""Kernels that the front end for C++ leaves to the compiler: nvcc takes the file as it is, with its own headers, and its
PTX is fused. Each is compared with itself apart, in the interpreter."""

# ruff: noqa: E501

import numpy as np
import pytest

from fusiond.model.errors import RequestError
from fusiond.model.nouns import Config
from fusiond.model.program import Program, SourceLanguage

pytestmark = [pytest.mark.slow, pytest.mark.needs_nvcc]

YAML = """\
kernel: k
source: k.cu
entry: k
sizes: {n: 1000}
arguments:
  - {name: out, dtype: int32, elements: "3072", role: inout, fill: iota}
  - {name: in, dtype: int32, elements: "3072", role: input, fill: {integers: [0, 99]}}
  - {name: n, dtype: int32, value: n}
block: {shape: [128]}
grid: ["ceil_div(n, block.x)"]
"""
K = "__global__ void k(int* out, const int* in, int n)\n{\n"
AT = K + "    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
SHARED = "    __shared__ int s[128];\n    s[threadIdx.x] = i < n ? in[i] : 0;\n    __syncthreads();\n"
STORE = "    if (i < n) out[i] = v;\n}\n"

FORMS = {
    "part of a warp leaves before a barrier": AT + "    if (i >= n) return;\n    __shared__ int s[128];\n"
        "    s[threadIdx.x] = in[i];\n    __syncthreads();\n    out[i] = s[threadIdx.x / 2];\n}\n",
    "whole warps leave before a barrier": AT + "    __shared__ int s[128];\n    s[threadIdx.x] = threadIdx.x;\n"
        "    if (threadIdx.x >= 64) return;\n    __syncthreads();\n    if (i < n) out[i] = s[threadIdx.x ^ 33];\n}\n",
    "threads leave one after the other": AT + "    __shared__ int s[1];\n    if (threadIdx.x == 0) s[0] = 0;\n"
        "    __syncthreads();\n    for (int round = 0; round < 9; ++round) {\n        if (i >= n || in[i] % 9 == round) return;\n"
        "        atomicAdd(&s[0], 1);\n        __syncthreads();\n        out[i] = s[0];\n        __syncthreads();\n    }\n}\n",
    "a loop that lasts longer for some": AT + "    __shared__ int s[1];\n    s[0] = 7;\n    for (int j = threadIdx.x / 32; j < 5; ++j) {\n"
        "        __syncthreads();\n        if (i < n) out[i] += s[0] + j;\n    }\n}\n",
    "a helper with an early return before its barrier": "__device__ int f(int i, int n) { if (i >= n) return 0; __syncthreads(); return i; }\n"
        + AT + "    int v = f(i, n);\n" + STORE,
    "counting barriers": AT + "    int v = __syncthreads_count(i < n && in[i] > 50) + 1000 * __syncthreads_or(i == 5)\n"
        "        + 2000 * __syncthreads_and(i < n);\n" + STORE,
    "a counting barrier in a helper and a macro": "#define ANY(x) __syncthreads_or(x)\n"
        "__device__ int f(int p) { return __syncthreads_count(p) + ANY(p > 98); }\n"
        + AT + "    int v = f(i < n ? in[i] : 0);\n" + STORE,
    "the group of a block": "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n" + AT
        + "    cg::thread_block block = cg::this_thread_block();\n    __shared__ int s[128];\n    s[block.thread_rank()] = i;\n"
        "    block.sync();\n    int v = s[block.size() - 1 - block.thread_index().x] + block.group_index().x;\n    cg::sync(block);\n" + STORE,
    "tiles of a warp": "#include <cooperative_groups.h>\nusing namespace cooperative_groups;\n"
        "template <class Tile> __device__ int total(Tile tile, int v) { for (int o = tile.size() / 2; o > 0; o /= 2) v += tile.shfl_xor(v, o); return v; }\n" + AT
        + "    auto tile = tiled_partition<32>(this_thread_block());\n    auto small = tiled_partition<8>(tile);\n"
        "    int v = i < n ? in[i] : 0;\n    v = total(tile, v) + 100000 * small.shfl(v, 3) + small.meta_group_rank() + tile.meta_group_size();\n"
        "    v += tile.ballot(v > 3) % 1000 + tile.any(i == 3);\n" + STORE,
    "structs that stand for the dynamic array": "template <class T> struct Pool {\n"
        "    __device__ operator T*() { extern __shared__ int cells[]; return (T*)cells; }\n"
        "    __device__ operator const T*() const { extern __shared__ int cells[]; return (T*)cells; }\n"
        "    __device__ T* get() { extern __shared__ int cells[]; return (T*)cells; }\n};\n"
        "template <> struct Pool<long> { __device__ operator long*() { extern __shared__ long longs[]; return longs; } };\n"
        "struct Plain { __device__ operator short*() const { extern __shared__ short shorts[]; return shorts; } };\n"
        "template <class T> __device__ T* mine() { return Pool<T>(); }\n" + AT
        + "    int* s = Pool<int>();\n    s[threadIdx.x] = i;\n    __syncthreads();\n    Pool<int> pool;\n    auto other = Pool<int>{};\n"
        "    int* t = other;\n    short* u = Plain();\n    long* w = Pool<long>();\n"
        "    int v = pool.get()[127 - threadIdx.x] + mine<int>()[5] + t[7] + u[2 * threadIdx.x] + int(w[0]);\n" + STORE,
    "groups of variables, members of shared structs, jumps back": "__device__ int* pool() { extern __shared__ int cells[]; return cells; }\n"
        "template <class F> __device__ void each(F f) { for (int j = threadIdx.x; j < 128; j += blockDim.x) f(j); }\n" + AT
        + "    __shared__ struct { int a[128]; float b; } s;\n    __shared__ union { int a[128]; float f[128]; } u;\n"
        "    static constexpr int q[2] = {5, 6};\n    int rounds = 0;\nagain:\n    if (++rounds < 5) goto again;\n"
        "    each([&](int j) { s.a[j] = j * n; });\n    u.a[threadIdx.x] = rounds;\n    pool()[threadIdx.x] = i;\n"
        "    int v = (__syncthreads(), s.a[127 - threadIdx.x]);\n"
        "    for (int j = 0; j < 3; ++j, __syncthreads()) { pool()[threadIdx.x] += j; __syncthreads(); v += pool()[127 - threadIdx.x]; }\n"
        "    switch (n % 3) { case 0: __syncthreads(); v += u.a[5]; break; case 1: __syncthreads(); v += u.a[6]; default: v += q[i & 1]; }\n" + STORE,
    "traits of C++'s own header": "#include <type_traits>\nnamespace u {\n"
        "template <class T, std::enable_if_t<std::is_integral_v<T>, int> = 0> __device__ int kind(T) { return threadIdx.x; }\n"
        "template <class T, std::enable_if_t<std::is_floating_point<T>::value, int> = 0> __device__ int kind(T) { return 7; }\n"
        "__device__ int kind(const char*) { return 9; }\nstruct P { int a, b; };\n"
        "template <class T> __device__ auto pick(T t) -> decltype(kind(t)) { if constexpr (sizeof(T) > 4) return kind(t) * 2; else return kind(t); }\n}\n"
        + AT + "    auto [a, b] = u::P{u::pick(1), u::pick(2.0)};\n    int v = a + b + u::kind(\"x\") + u::pick(3L);\n" + STORE,
    "a class with methods of the host": "#include <iostream>\n#include <string>\nstruct Tile {\n    int size;\n    __device__ int at(int i) const;\n"
        "    void print() const { std::cout << size; }\n    std::string name() const;\n"
        "    __host__ __device__ int twice() const { return 2 * size; }\n};\n"
        "__device__ int Tile::at(int i) const { return i % size; }\nstd::string Tile::name() const { return \"tile\"; }\n"
        + AT + "    Tile tile = {5};\n    int v = tile.at(i) + tile.twice();\n" + STORE,
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
    "structs from lane to lane": "#include <cooperative_groups.h>\n#include <cooperative_groups/reduce.h>\nnamespace cg = cooperative_groups;\n"
        "struct __align__(8) Best { int value, place; };\nstruct Wide { double sum; char c; };\n"
        "__device__ Best better(Best a, Best b) { return b.value > a.value || (b.value == a.value && b.place < a.place) ? b : a; }\n"
        + AT + "    auto warp = cg::tiled_partition<32>(cg::this_thread_block());\n"
        "    Best best = cg::reduce(warp, Best{in[i % n], (int)threadIdx.x}, better);\n"
        "    Wide wide = warp.shfl(Wide{in[i % n] * 0.5, (char)(threadIdx.x % 32)}, 5);\n"
        "    int v = best.value * 100 + best.place + (int)wide.sum + wide.c;\n" + STORE,
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
}  # fmt: skip
HEAD = "__global__ void k(int* out, int n)\n{\n    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
TAIL = "    if (i < n) out[i] = value;\n}\n"
ONE_MORE = {
    "orders of memory as C++ calls them": "#include <cuda/atomic>\n" + HEAD + "    int value = i;\n    cuda::atomic_ref<int, cuda::thread_scope_device> at(value);\n"
        "    at.fetch_add(1, cuda::std::memory_order_relaxed);\n" + TAIL,
    "complex numbers of CUDA's": "#include <cuComplex.h>\n" + HEAD + "    cuDoubleComplex z = cuCmul(make_cuDoubleComplex(i + 1, 2), make_cuDoubleComplex(0, 1));\n"
        "    int value = (int)cuCimag(cuCdiv(cuCadd(z, z), make_cuDoubleComplex(2, 0)));\n" + TAIL,
    "namespaces that macros open and close": "#define OPEN_INNER namespace outer { namespace inner {\n#define CLOSE_INNER }}\n#define NAMESPACE(name) namespace name\n"
        "OPEN_INNER\n__device__ int one() { return 1; }\nstruct Host { int at; };\nCLOSE_INNER\nNAMESPACE(third) {\n__device__ int more(int n) { return n + outer::inner::one(); }\n}\n"
        + HEAD + "    int value = third::more(i);\n" + TAIL,
    "std::aligned_storage": "#include <type_traits>\n" + HEAD
        + "    std::aligned_storage<4, 4>::type room;\n    *(int*)&room = i;\n    int value = *(int*)&room + 1;\n" + TAIL,
    "CUDA's functions, declared once more": "extern __device__ __device_builtin__ void __threadfence_block(void);\n"
        "extern __device__ __device_builtin__ void __syncthreads(void);\n" + HEAD + "    __threadfence_block();\n    __syncthreads();\n    int value = i + 1;\n" + TAIL,
    "a kernel for all types but some": "k<int>---" + "__device__ int lane() { return threadIdx.x; }\ntemplate <class T> " + HEAD.replace("int* out", "T* out") + "    T value = i + 1;\n" + TAIL
        + "template <> __global__ void k<float>(float* out, int n) { out[lane()] = 7; }\n",
}  # fmt: skip
"""They write 1, 2, 3 ... into `out`."""

BESIDE = {"kind": "horizontal", "level": "warp", "map": "pad", "order": "ab", "threads.a": 128, "threads.b": 128}
BY_BLOCK = {
    "kind": "horizontal", "level": "block", "assign": "interleaved", "order": "ab", "threads.a": 128, "threads.b": 128,
}  # fmt: skip


@pytest.fixture
def taken(analyse, kernel_file):
    def taken(source: str, yaml: str, other: str):
        if "extern __shared__" in source:
            yaml += "shared: 4224\n"
        return analyse(kernel_file("k", source, yaml), other, compiled=True)

    return taken


def emitted(strategy, analysis, configs):
    """The first of these points that the space has."""
    known = {each.name for each in strategy.space(analysis, {}).parameters}
    for wanted in configs:
        program = strategy.emit(analysis, Config.of({key: value for key, value in wanted.items() if key in known}), {})
        if isinstance(program, Program):
            return program
    raise AssertionError(program)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.sampled(12)
def test_a_form_gives_what_it_gives_apart(taken, strategy, runner, name):
    """Beside another copy of itself, in one block where that can be, else block by block."""
    analysis = taken(FORMS[name], YAML, "./k.yaml")
    assert analysis.rejections == ()
    program = emitted(strategy, analysis, (BESIDE, BY_BLOCK))
    assert program.sources[0].language is SourceLanguage.PTX
    wanted = runner.run(strategy.unfused(analysis, Config.of(BESIDE)))
    for name, array in runner.run(program).items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=name)


@pytest.mark.parametrize("name", ONE_MORE)
@pytest.mark.sampled(2)
def test_what_a_file_has_round_a_kernel(taken, strategy, runner, name):
    instance, _, source = ONE_MORE[name].rpartition("---")
    yaml = "\n".join(each for each in YAML.splitlines() if "name: in" not in each).replace(' "3072"', " n") + "\n"
    analysis = taken(source, yaml + (f'instance: "{instance}"\n' if instance else ""), "./k.yaml")
    assert analysis.rejections == ()
    found = runner.run(emitted(strategy, analysis, (BESIDE, BY_BLOCK)))
    np.testing.assert_array_equal(found["b.out"], np.arange(1, 1001))


def test_headers_of_a_folder_are_the_compilers(taken, strategy, runner, tmp_path):
    """With whatever they have: an `#include` of a macro, which no text with all headers in it can hold."""
    (tmp_path / "lib" / "lib").mkdir(parents=True)
    (tmp_path / "lib" / "lib" / "more.cuh").write_text("__device__ inline int more(int v) { return v + LIB_STEP; }\n")
    (tmp_path / "lib" / "lib" / "lib.cuh").write_text(
        "#define LIB_STEP 1\n#define LIB_MORE <lib/more.cuh>\n#include LIB_MORE\n"
    )
    (tmp_path / "own.cuh").write_text("__device__ inline int own(int v) { return v; }\n")
    source = '#include <lib/lib.cuh>\n#include "own.cuh"\n' + HEAD + "    int value = own(more(i));\n" + TAIL
    yaml = "\n".join(each for each in YAML.splitlines() if "name: in" not in each).replace(' "3072"', " n")
    analysis = taken(source, yaml + "\ninclude: [lib]\n", "./k.yaml")
    assert analysis.rejections == ()
    first = analysis.workload.key
    found = runner.run(emitted(strategy, analysis, (BESIDE, BY_BLOCK)))
    np.testing.assert_array_equal(found["b.out"], np.arange(1, 1001))
    (tmp_path / "lib" / "lib" / "more.cuh").write_text("__device__ inline int more(int v) { return v * LIB_STEP; }\n")
    assert taken(source, yaml + "\ninclude: [lib]\n", "./k.yaml").workload.key != first


def test_what_neither_takes_is_one_line_of_libclang(taken):
    with pytest.raises(
        RequestError, match=r"k\.cu:3: not CUDA C\+\+ as libclang reads it: use of undeclared"
    ) as caught:
        taken(K + "    out[0] = nothing(n);\n}\n", YAML, "hist")
    assert "; " in str(caught.value)
    assert 'it does not compile: k.cu:3: identifier "nothing" is undefined' in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_variable_that_the_host_sets_is_asked_for(taken):
    """Whichever form it has."""
    plain = "__constant__ int table[4];\n" + AT + "    int v = table[i % 4];\n" + STORE
    compiled = "#include <cooperative_groups.h>\n" + plain.replace(
        STORE, "    cooperative_groups::this_thread_block().sync();\n" + STORE
    )
    for source in (plain, compiled):
        (refused,) = taken(source, YAML, "hist").rejections
        assert refused.rule == "symbol"
        assert "table" in refused.detail
