// Kernels whose PTX is kept in compiled.ptx.gz, as nvcc makes it for sm_90: what CUDA C++ has that is seldom written, and
// often included. tests/devices/counting/test_compiled.py says what each computes.
#include <cassert>
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cstdio>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <mma.h>

namespace cg = cooperative_groups;
using namespace nvcuda;

__device__ __noinline__ float summed(float x, int n) {
    float parts[8], sum = 0;
    for (int i = 0; i < 8; ++i) parts[i] = x * i;
    for (int i = 0; i < n; ++i) sum += parts[i * 7 & 7];
    return sum;
}

struct Several {
    float values[6];
    int count;
};

__device__ __noinline__ Several made(float x, int n) {
    Several found;
    for (int i = 0; i < 6; ++i) found.values[i] = x + i;
    found.count = n;
    return found;
}

__device__ __noinline__ float total(Several given) {
    float sum = 0;
    for (int i = 0; i < given.count; ++i) sum += given.values[i % 6];
    return sum;
}

__device__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

extern "C" {

#define OUT(expression) out[(at++) * 32 + t] = (expression)

__global__ void halves(const __half2* a, const __half2* b, __half2* out, unsigned* masks) {
    const int t = threadIdx.x;
    const __half2 x = a[t], y = b[t];
    int at = 0;
    OUT(__hadd2(x, y)), OUT(__hadd2_sat(x, y)), OUT(__hsub2_sat(x, y)), OUT(__hmul2(x, y)), OUT(__hfma2(x, y, x));
    OUT(__hfma2_relu(x, y, x)), OUT(__hfma2_sat(x, y, x)), OUT(__hmax2(x, y)), OUT(__hmin2_nan(x, y)), OUT(__hneg2(x));
    OUT(__habs2(x)), OUT(__hgt2(x, y)), OUT(h2floor(x)), OUT(h2ceil(x)), OUT(h2rint(x)), OUT(h2trunc(x));
    OUT(h2exp2(x)), OUT(h2sqrt(__habs2(x))), OUT(h2tanh(x)), OUT(__h2div(x, y));
    masks[t] = __hgt2_mask(x, y);
    masks[32 + t] = __hbgt2(x, y);
    masks[64 + t] = __hlt(__low2half(x), __high2half(y));
    masks[96 + t] = __half2int_rn(__low2half(x));
}

__global__ void brains(const __nv_bfloat162* a, const __nv_bfloat162* b, __nv_bfloat162* out) {
    const int t = threadIdx.x;
    const __nv_bfloat162 x = a[t], y = b[t];
    int at = 0;
    OUT(__hadd2(x, y)), OUT(__hmul2(x, y)), OUT(__hfma2(x, y, x)), OUT(__hmax2(x, y)), OUT(__hneg2(x)), OUT(__habs2(x));
    OUT(__hgt2(x, y)), OUT(h2floor(x));
}

__global__ void bytes(const unsigned* a, const unsigned* b, unsigned* out) {
    const int t = threadIdx.x;
    const unsigned x = a[t], y = b[t];
    int at = 0;
    OUT(__vabsdiffu4(x, y)), OUT(__vabsdiffs4(x, y)), OUT(__vsadu4(x, y)), OUT(__vadd4(x, y)), OUT(__vaddss4(x, y));
    OUT(__vaddus2(x, y)), OUT(__vsub2(x, y)), OUT(__vavgu4(x, y)), OUT(__vmaxs4(x, y)), OUT(__vminu2(x, y));
    OUT(__vcmpgtu4(x, y)), OUT(__dp4a(x, y, x)), OUT(__dp4a((int)x, (int)y, (int)x)), OUT(__dp2a_lo(x, y, x));
    OUT(__dp2a_hi((int)x, (int)y, 5)), OUT(__fns(x, 3, 2)), OUT(__viaddmax_s32(x, y, 3)), OUT(__vimax3_s32(x, y, -4));
    OUT(__viaddmin_s16x2_relu(x, y, 0x00070009)), OUT(31 - __clz(x)), OUT(__usad(x, y, 3));
}

__global__ void calls(const float* a, float* out, int n) {
    const int t = threadIdx.x;
    float x = summed(a[t], n + t);
    if (t & 1) x += total(made(x, t & 7));
    printf("%d: %f\n", t, x);
    assert(x < 1000.0f);
    out[t] = x;
}

__global__ void recursive(int* out) { out[threadIdx.x] = fibonacci(threadIdx.x); }

__global__ void switched(const int* a, int* out) {
    const int t = threadIdx.x;
    int found = out[t];
    switch (a[t]) {
        case 0: found = t * 3; break;
        case 1: found = t / 3; break;
        case 2: found = t ^ 77; break;
        case 3: found += out[(t + 1) % 32 + 32]; break;
        case 4: found = __shfl_xor_sync(__activemask(), t, 0); break;
        case 5: found = -t; break;
        case 6: found = t % 5; break;
        case 7: found = 9 * t + a[0]; break;
        default: found = 1000;
    }
    out[t] = found + 1;
}

__global__ void products(const half* a, const half* b, float* c, const signed char* p, const signed char* q, int* r, const double* x,
                         const double* y, double* z) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 1.0f);
    wmma::load_matrix_sync(left, a, 24);
    wmma::load_matrix_sync(right, b, 16);
    wmma::mma_sync(sum, left, right, sum);
    for (int i = 0; i < sum.num_elements; ++i) sum.x[i] *= 2;
    wmma::store_matrix_sync(c, sum, 16, wmma::mem_row_major);
    wmma::fragment<wmma::matrix_a, 32, 8, 16, signed char, wmma::col_major> bytes_left;
    wmma::fragment<wmma::matrix_b, 32, 8, 16, signed char, wmma::row_major> bytes_right;
    wmma::fragment<wmma::accumulator, 32, 8, 16, int> whole;
    wmma::load_matrix_sync(whole, r, 32, wmma::mem_col_major);
    wmma::load_matrix_sync(bytes_left, p, 32);
    wmma::load_matrix_sync(bytes_right, q, 16);
    wmma::mma_sync(whole, bytes_left, bytes_right, whole);
    wmma::store_matrix_sync(r, whole, 32, wmma::mem_col_major);
    wmma::fragment<wmma::matrix_a, 8, 8, 4, double, wmma::row_major> doubles_left;
    wmma::fragment<wmma::matrix_b, 8, 8, 4, double, wmma::row_major> doubles_right;
    wmma::fragment<wmma::accumulator, 8, 8, 4, double> precise;
    wmma::fill_fragment(precise, 0.0);
    wmma::load_matrix_sync(doubles_left, x, 4);
    wmma::load_matrix_sync(doubles_right, y, 8);
    wmma::mma_sync(precise, doubles_left, doubles_right, precise);
    wmma::store_matrix_sync(z, precise, 8, wmma::mem_row_major);
}

__global__ void pipelined(const float* a, float* out, int n) {
    __shared__ float room[2][128];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto group = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(group, &state);
    const int t = threadIdx.x;
    pipe.producer_acquire();
    cuda::memcpy_async(group, room[0], a, sizeof(float) * 128, pipe);
    pipe.producer_commit();
    float sum = 0;
    for (int i = 1; i <= n; ++i) {
        if (i < n) {
            pipe.producer_acquire();
            cuda::memcpy_async(group, room[i & 1], a + 128 * i, sizeof(float) * 128, pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum += room[(i - 1) & 1][127 - t];
        pipe.consumer_release();
    }
    out[t] = sum;
}

__global__ void waited(const float* a, float* out) {
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    __shared__ alignas(16) float room[256];
    if (threadIdx.x == 0) init(&barrier, blockDim.x);
    __syncthreads();
    cuda::memcpy_async(room + threadIdx.x * 2, a + threadIdx.x * 2, cuda::aligned_size_t<8>(8), barrier);
    barrier.arrive_and_wait();
    out[threadIdx.x] = room[255 - threadIdx.x];
}

__global__ void grouped(const int* a, int* out) {
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    const int t = threadIdx.x, x = a[t];
    int found = cg::reduce(warp, x, cg::plus<int>());
    if (x & 1) {
        auto odd = cg::coalesced_threads();
        found += odd.size() * 1000 + odd.thread_rank();
    }
    found += cg::labeled_partition(warp, x & 3).size() * 100000;
    out[t] = found;
    int same;
    out[128 + t] = __match_all_sync(~0u, x & 64, &same) + 100 * same;
    out[256 + t] = __reduce_max_sync(~0u, x);
    out[384 + t] = __isShared(out) + 2 * __isGlobal(out) + 4 * __isLocal(&found);
}

__global__ void eighths(const float* a, __nv_fp8x4_e4m3* out, float4* back) {
    const int t = threadIdx.x;
    out[t] = __nv_fp8x4_e4m3(make_float4(a[t], 2 * a[t], -a[t], 0));
    back[t] = static_cast<float4>(out[t]);
}

__global__ void clustered(int* out) {
    __shared__ int room[64];
    auto cluster = cg::this_cluster();
    room[threadIdx.x] = threadIdx.x;
    cluster.sync();
    const int* other = cluster.map_shared_rank(room, cluster.block_rank());
    out[threadIdx.x] = other[63 - threadIdx.x] + 100 * cluster.num_blocks();
    cluster.sync();
}

// Who is where in a grid of clusters.
__global__ void __cluster_dims__(2, 3, 1) placed(int* out) {
    auto cluster = cg::this_cluster();
    const dim3 inside = cluster.block_index();
    unsigned which[2], count[2];
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(which[0]));
    asm("mov.u32 %0, %%clusterid.y;" : "=r"(which[1]));
    asm("mov.u32 %0, %%nclusterid.x;" : "=r"(count[0]));
    asm("mov.u32 %0, %%nclusterid.y;" : "=r"(count[1]));
    if (threadIdx.x != 0) return;
    int* row = out + 10 * (blockIdx.x + gridDim.x * blockIdx.y);
    row[0] = cluster.block_rank(), row[1] = cluster.num_blocks();
    row[2] = inside.x, row[3] = inside.y, row[4] = cluster.dim_blocks().x, row[5] = cluster.dim_blocks().y;
    row[6] = which[0], row[7] = which[1], row[8] = count[0], row[9] = count[1];
}

// A histogram whose bins lie in the shared memory of the four blocks of a cluster, 64 each; and who was told by whom.
__global__ void __cluster_dims__(4) spread_histogram(const int* in, int n, int* bins, int* told) {
    __shared__ int room[64], next;
    auto cluster = cg::this_cluster();
    room[threadIdx.x] = 0;
    cluster.sync();
    for (int k = cg::this_grid().thread_rank(); k < n; k += cg::this_grid().size())
        atomicAdd(cluster.map_shared_rank(room, in[k] / 64) + in[k] % 64, 1);
    if (threadIdx.x == 0) *cluster.map_shared_rank(&next, (cluster.block_rank() + 1) % 4) = blockIdx.x;
    auto arrived = cluster.barrier_arrive();
    cluster.barrier_wait(cuda::std::move(arrived));
    atomicAdd(&bins[64 * cluster.block_rank() + threadIdx.x], room[threadIdx.x]);
    if (threadIdx.x == 0) told[blockIdx.x] = next * 10 + cluster.query_shared_rank(cluster.map_shared_rank(&next, 3));
}

__global__ void timed(long long* out) {
    const long long before = clock64();
    __nanosleep(10);
    out[threadIdx.x] = clock64() - before;
}
}
