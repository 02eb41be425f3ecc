// One kernel a feature of the runtime; test_runtime.py compares them with NumPy. The same text compiles with nvcc.
#include <cooperative_groups.h>
#include <cuda_runtime.h>
#include <math_constants.h>

#if defined(__CUDACC__) && !defined(FUSIOND_BARRIER)
#define FUSIOND_BARRIER(id, threads) asm volatile("bar.sync " #id ", " #threads ";" ::: "memory")
#endif
#if defined(__CUDACC__) && !defined(FUSIOND_BARRIER_REDUCE)
#define REDUCING(name, op, type)                                                                                   \
    template <int Id, int Threads> __device__ int name(bool p) {                                                   \
        int r;                                                                                                     \
        asm volatile("{ .reg .pred p, q; .reg .u32 n; setp.ne.u32 p, %1, 0; " op "; " type " }"                   \
                     : "=r"(r) : "r"((int)p), "n"(Id), "n"(Threads) : "memory");                                   \
        return r;                                                                                                  \
    }
REDUCING(reduce_COUNT, "bar.red.popc.u32 n, %2, %3, p", "mov.u32 %0, n;")
REDUCING(reduce_AND, "bar.red.and.pred q, %2, %3, p", "selp.u32 %0, 1, 0, q;")
REDUCING(reduce_OR, "bar.red.or.pred q, %2, %3, p", "selp.u32 %0, 1, 0, q;")
#define FUSIOND_BARRIER_REDUCE(kind, id, threads, predicate) reduce_##kind<id, threads>((predicate) != 0)
#endif

__constant__ float coefficients[4];
__device__ unsigned tickets;

struct Affine {
    double scale;
    int offset;
    char tag[5];
};

__device__ __noinline__ unsigned global_thread() {
    return (blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)) * (blockDim.x * blockDim.y * blockDim.z) +
           threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

extern "C" __global__ void indices(uint3* __restrict__ threads, uint3* __restrict__ blocks) {
    threads[global_thread()] = threadIdx;
    blocks[global_thread()] = blockIdx;
}

// The order in which threads come to a line: the scheduler's business.
__global__ void order(unsigned* ticket, int* seen) {
    seen[atomicAdd(ticket, 1u)] = (int)global_thread();
    __syncthreads();
    seen[atomicAdd(ticket, 1u)] = (int)global_thread();
}

__global__ void __launch_bounds__(1024) affine(float* out, const Affine a, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = (float)(a.scale * i) + a.offset + a.tag[4] + coefficients[i % 4];
}

template <class T, int Radius> __global__ void stencil(const T* __restrict__ in, T* __restrict__ out, int n) {
    __shared__ T tile[256 + 2 * Radius];
    const int i = blockIdx.x * 256 + threadIdx.x;
    for (int j = threadIdx.x; j < 256 + 2 * Radius; j += 256) {
        const int at = (int)(blockIdx.x * 256) + j - Radius;
        tile[j] = at >= 0 && at < n ? in[at] : T(0);
    }
    __syncthreads();
    T sum = 0;
    for (int j = 0; j <= 2 * Radius; ++j) sum += tile[threadIdx.x + j];
    if (i < n) out[i] = sum;
}

__global__ void block_sum(const int* in, int* out) {
    extern __shared__ __align__(16) int partial[];
    partial[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = partial[0];
}

__global__ void reducing_barriers(const int* in, int* out) {
    const int p = in[threadIdx.x];
    if (threadIdx.x % 5 == 4) return;  // returned threads are not asked
    out[threadIdx.x] = __syncthreads_count(p) + 10000 * __syncthreads_and(p) + 100000 * __syncthreads_or(p);
}

// Two halves of a block, each with reductions of its own; a warp that returns early goes on voting until all have.
__global__ void partial_reductions(const int* in, int* out) {
    const unsigned half = blockDim.x / 2, side = threadIdx.x / half;
    const int p = in[threadIdx.x];
    const int counted = side ? FUSIOND_BARRIER_REDUCE(COUNT, 2, 96, p) : FUSIOND_BARRIER_REDUCE(COUNT, 1, 96, p);
    const int any = side ? FUSIOND_BARRIER_REDUCE(OR, 2, 96, p) : FUSIOND_BARRIER_REDUCE(OR, 1, 96, p);
    const unsigned me = threadIdx.x % half;
    for (unsigned round = 0; round < (me < 32 ? 1 : me % 32); ++round)
        side ? FUSIOND_BARRIER_REDUCE(AND, 2, 96, false) : FUSIOND_BARRIER_REDUCE(AND, 1, 96, false);
    out[threadIdx.x] = counted + 1000 * any;
    while (!(side ? FUSIOND_BARRIER_REDUCE(AND, 2, 96, true) : FUSIOND_BARRIER_REDUCE(AND, 1, 96, true))) {}
}

// kind: 0 shfl, 1 up, 2 down, 3 xor. Lanes outside the mask do not call.
template <class T> __global__ void shuffles(int kind, unsigned mask, int width, const int* operand, const T* in, T* out) {
    const unsigned lane = threadIdx.x % 32;
    if (!(mask >> lane & 1)) return;
    const T v = in[threadIdx.x];
    const int o = operand[threadIdx.x];
    T r = v;
    if (kind == 0) r = __shfl_sync(mask, v, o, width);
    if (kind == 1) r = __shfl_up_sync(mask, v, (unsigned)o, width);
    if (kind == 2) r = __shfl_down_sync(mask, v, (unsigned)o, width);
    if (kind == 3) r = __shfl_xor_sync(mask, v, o, width);
    out[threadIdx.x] = r;
}

__global__ void votes(unsigned mask, const int* in, unsigned* out) {
    const unsigned lane = threadIdx.x % 32;
    if (!(mask >> lane & 1)) return;
    const int v = in[threadIdx.x];
    int same;
    unsigned* o = out + 16 * threadIdx.x;
    o[0] = __ballot_sync(mask, v & 1);
    o[1] = (unsigned)__any_sync(mask, v & 2);
    o[2] = (unsigned)__all_sync(mask, v & 4);
    o[3] = __match_any_sync(mask, v);
    o[4] = __match_all_sync(mask, v & ~7, &same);
    o[4] += (unsigned)same;
    o[5] = (unsigned)__reduce_add_sync(mask, v);
    o[6] = (unsigned)__reduce_min_sync(mask, v);
    o[7] = (unsigned)__reduce_max_sync(mask, v);
    o[8] = __reduce_min_sync(mask, (unsigned)v);
    o[9] = __reduce_max_sync(mask, (unsigned)v);
    o[10] = __reduce_and_sync(mask, (unsigned)v);
    o[11] = __reduce_or_sync(mask, (unsigned)v);
    o[12] = __reduce_xor_sync(mask, (unsigned)v);
    __syncwarp(mask);
}

// Aggregated atomics in a divergent branch, without a mask that anyone handed in.
__global__ void converge(unsigned* total, unsigned* masks) {
    if (threadIdx.x % 3 == 0) {
        const unsigned here = __activemask();
        masks[threadIdx.x] = here;
        if (threadIdx.x % 32 == (unsigned)__ffs((int)here) - 1) atomicAdd(total, (unsigned)__popc(here));
    } else {
        masks[threadIdx.x] = __activemask();
    }
    __syncwarp();
}

__global__ void atomics(int* i, unsigned* u, unsigned long long* l, float* f, double* d) {
    const int t = (int)threadIdx.x;
    atomicAdd(&i[0], t), atomicSub(&i[1], t), atomicMin(&i[2], -t), atomicMax(&i[3], t), atomicXor(&i[4], t), atomicOr(&i[5], 1 << t % 8);
    atomicAnd(&i[6], ~(1 << t % 8)), atomicExch(&i[7], 7), atomicCAS(&i[8], t, t + 1);
    atomicInc(&u[0], 9u), atomicDec(&u[1], 9u), atomicMax(&u[2], (unsigned)t);
    atomicAdd(&l[0], 1ull << 40), atomicMax(&l[1], (unsigned long long)t << 33);
    atomicAdd(f, 0.5f), atomicAdd(d, 0.25);
}

__global__ void bits(const unsigned* a, const unsigned* b, unsigned* out, int n) {
    const int t = (int)threadIdx.x;
    if (t >= n) return;
    const unsigned x = a[t], y = b[t];
    unsigned* o = out + 24 * t;
    o[0] = (unsigned)__popc(x), o[1] = (unsigned)__clz((int)x), o[2] = (unsigned)__ffs((int)x), o[3] = __brev(x);
    o[4] = __funnelshift_l(x, y, y), o[5] = __funnelshift_r(x, y, y), o[6] = __umulhi(x, y), o[7] = (unsigned)__mulhi((int)x, (int)y);
    o[8] = (unsigned)__mul24((int)x, (int)y), o[9] = __umul24(x, y), o[10] = __byte_perm(x, y, 0x5140), o[11] = (unsigned)min((int)x, (int)y);
    o[12] = max(x, y), o[13] = __float_as_uint(__uint_as_float(x & 0x7f7fffffu)), o[14] = (unsigned)__float2int_rn(__uint_as_float(x));
    o[15] = (unsigned)__float2int_rz(__uint_as_float(x)), o[16] = (unsigned)__ffsll((long long)x << 32), o[17] = (unsigned)__hadd((int)x, (int)y);
    o[18] = __usad(x, y, 1u), o[19] = (unsigned)__popcll((unsigned long long)x << 32 | y), o[20] = (unsigned)(__brevll(x) >> 32);
}

__global__ void real(const float* a, const float* b, float* out, int n) {
    const int t = (int)threadIdx.x;
    if (t >= n) return;
    const float x = a[t], y = b[t];
    float* o = out + 16 * t;
    o[0] = fminf(x, y), o[1] = fmaxf(x, y), o[2] = min(x, y), o[3] = max(x, y), o[4] = __saturatef(x), o[5] = rsqrtf(fabsf(x));
    o[6] = __expf(x), o[7] = __logf(fabsf(x)), o[8] = __fdividef(x, y), o[9] = __fmul_rn(x, y), o[10] = __fadd_rn(x, y);
    o[11] = __fmaf_rn(x, y, x), o[12] = __ldg(&a[t]), o[13] = x > y ? CUDART_INF_F : -CUDART_INF_F, o[14] = __powf(fabsf(x), 2.0f), o[15] = sqrtf(fabsf(x));
}

// As much local memory as a GPU's thread may have.
__global__ void local_memory(int* out) {
    volatile int mine[100 * 1024];
    for (int i = 0; i < 100 * 1024; i += 100) mine[i] = i + (int)threadIdx.x;
    __syncthreads();
    int sum = 0;
    for (int i = 0; i < 100 * 1024; i += 100) sum += mine[i] == i + (int)threadIdx.x;
    out[threadIdx.x] = sum;
}

// Static shared arrays in a namespace, an inline function, a template and a class, read before they are written.
namespace spaces {
__shared__ float at_namespace[3];
__device__ inline float in_function() {
    __shared__ float a[5];
    return a[4];
}
template <class T> __device__ T in_template() {
    __shared__ T a[6];
    return a[5];
}
template <class T> struct Holder {
    static __device__ T get() {
        __shared__ T a[2];
        return a[1];
    }
};
}  // namespace spaces

__global__ void stale(float* out) {
    extern __shared__ float stale_values[];
    __shared__ float own[2];
    out[0] = spaces::at_namespace[2], out[1] = spaces::in_function(), out[2] = spaces::in_template<float>();
    out[3] = (float)spaces::in_template<double>(), out[4] = spaces::Holder<float>::get(), out[5] = own[1], out[6] = stale_values[7];
}

__global__ void overrun(int words) {
    extern __shared__ int behind[];
    behind[words] = 1;
}

namespace cg = cooperative_groups;

__global__ void groups(int* out) {
    __shared__ int s[64];
    cg::thread_block block = cg::this_thread_block();
    const int rank = (int)block.thread_rank();
    s[rank] = rank;
    block.sync();
    out[rank] = s[63 - rank] + 100 * (int)block.size();
}

// The last block adds up what all blocks left, behind a fence.
__global__ void last_block(const int* in, int* partial, int* out) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = in[blockIdx.x];
        __threadfence();
        last = atomicAdd(&tickets, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        int sum = 0;
        for (unsigned i = 0; i < gridDim.x; ++i) sum += partial[i];
        *out = sum;
    }
}

// What fusiond emits: two kernels in poisoned namespaces, their built-ins and their barrier as parameters.
namespace fz_a {
struct leak;
extern leak threadIdx, blockIdx, blockDim, gridDim;
void __syncthreads() = delete;

template <class Barrier>
__device__ __forceinline__ void hist(dim3 threadIdx, dim3 blockIdx, dim3 blockDim, dim3 gridDim, Barrier __syncthreads,
                                     unsigned* counts, const float* x, int n) {
    __shared__ unsigned s[16];
    for (unsigned i = threadIdx.x; i < 16; i += blockDim.x) s[i] = 0;
    __syncthreads();
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < n; i += (int)(gridDim.x * blockDim.x))
        atomicAdd(&s[min((int)(x[i] * 16), 15)], 1u);
    __syncthreads();
    for (unsigned i = threadIdx.x; i < 16; i += blockDim.x) atomicAdd(&counts[i], s[i]);
}
}  // namespace fz_a

namespace fz_b {
struct leak;
extern leak threadIdx, blockIdx, blockDim, gridDim;
void __syncthreads() = delete;

template <class Barrier>
__device__ __forceinline__ void reverse(const uint3& threadIdx, const uint3& blockIdx, dim3 blockDim, dim3 gridDim,
                                        Barrier __syncthreads, const int* in, int* out) {
    __shared__ int s[128];
    const unsigned i = threadIdx.x + threadIdx.y * blockDim.x;
    s[i] = in[blockIdx.x * 128 + i];
    __syncthreads();
    out[blockIdx.x * 128 + i] = s[127 - i];
}
}  // namespace fz_b

struct BarrierA {
    __device__ __forceinline__ void operator()() const { FUSIOND_BARRIER(1, 96); }
};
struct BarrierB {
    __device__ __forceinline__ void operator()() const { FUSIOND_BARRIER(2, 128); }
};

__global__ void fused(unsigned* counts, const float* x, int n, const int* in, int* out) {
    if (threadIdx.x < 96)
        fz_a::hist(dim3(threadIdx.x), dim3(blockIdx.x), dim3(96), dim3(gridDim.x), BarrierA(), counts, x, n);
    else
        fz_b::reverse(dim3((threadIdx.x - 96) % 32, (threadIdx.x - 96) / 32), blockIdx, dim3(32, 4), gridDim, BarrierB(), in, out);
}
