// Kernels that are wrong, each in one way; test_runtime.py expects the message. `bad` switches the fault on.
#include <assert.h>
#include <cuda_runtime.h>

#if defined(__CUDACC__) && !defined(FUSIOND_BARRIER)
#define FUSIOND_BARRIER(id, threads) asm volatile("bar.sync " #id ", " #threads ";" ::: "memory")
#endif

__global__ void warp_returns_before_counted(int bad) {
    if (bad && threadIdx.x >= 64) return;
    FUSIOND_BARRIER(1, 96);
}

__global__ void lanes_return_before_counted(int bad) {
    if (bad && threadIdx.x % 32 == 7) return;  // fine: the rest of the warp arrives for it
    FUSIOND_BARRIER(1, 96);
}

__global__ void warp_returns_before_syncthreads(int bad) {
    if (bad && threadIdx.x >= 40) return;  // fine: __syncthreads() waits for live threads only
    __syncthreads();
}

__global__ void crossed(int bad) {
    if (bad && threadIdx.x < 32) FUSIOND_BARRIER(1, 96);
    else FUSIOND_BARRIER(2, 96);
}

__global__ void different_counts(int bad) {
    if (bad && threadIdx.x < 32) FUSIOND_BARRIER(3, 64);
    else FUSIOND_BARRIER(3, 96);
}

__global__ void too_many(int bad) {
    if (bad || threadIdx.x < 64) FUSIOND_BARRIER(4, 64);
}

__global__ void divergent_warp(int bad) {
    if (bad && threadIdx.x == 5) FUSIOND_BARRIER(5, 96);
    else FUSIOND_BARRIER(6, 96);
}

__global__ void mixed_kinds(int bad) {
    if (bad && threadIdx.x < 32) __syncthreads_count(1);
    else __syncthreads();
}

__global__ void shuffle_meets_ballot(int bad, int* out) {
    if (bad && threadIdx.x < 16) *out = (int)__ballot_sync(0xffffffffu, 1);
    else *out = __shfl_down_sync(0xffffffffu, 1, 1);
}

__global__ void different_masks(int bad, int* out) {
    *out = __shfl_xor_sync(bad && threadIdx.x < 32 && threadIdx.x % 2 ? 0xfffffffeu : 0xffffffffu, 1, 1);
}

__global__ void shuffle_meets_barrier(int bad, int* out) {
    if (bad && threadIdx.x == 33) __syncthreads();
    *out = __shfl_sync(0xffffffffu, 1, 0);
    __syncthreads();
}

__global__ void reads_returned_lane(int bad, int* out) {
    if (bad && threadIdx.x == 3) return;
    *out = __shfl_sync(0xffffffffu, 1, 3);
}

__global__ void outside_mask(int bad, int* out) { *out = __shfl_sync(bad ? 0xfffffff0u : 0xffffffffu, 1, 8); }

__global__ void odd_width(int bad, int* out) { *out = __shfl_sync(0xffffffffu, 1, 0, bad ? 12 : 16); }

__device__ int deep(int depth, int* out) {
    volatile int frame[256];
    frame[depth % 256] = depth;
    *out += frame[0];
    return depth ? deep(depth - 1, out) + frame[depth % 256] : 0;
}

__global__ void stack(int bad, int* out) { *out = deep(bad && threadIdx.x == 40 ? 100000 : 3, out); }

__global__ void misaligned(int bad, int* out) {
    __shared__ __align__(16) float s[8];
    s[threadIdx.x % 8] = 0;
    __syncthreads();
    const float4 v = *reinterpret_cast<const float4*>(s + (bad && threadIdx.x == 33 ? 2 : 4));
    *out = (int)(v.x + v.w);
}

__global__ void wild(int bad, int* out) {
    if (bad && threadIdx.x == 65) out = (int*)8;
    __syncthreads();
    *out = 1;
}

__global__ void division(int bad, int* out) { *out = 7 / (bad ? (int)threadIdx.x - 2 : 1); }

__global__ void assertion(int bad) { assert(!bad || threadIdx.x != 9); }

__global__ void trap(int bad) {
    if (bad && threadIdx.x == 1) __trap();
}
