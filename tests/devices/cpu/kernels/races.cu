// Each kernel with its barrier or atomic, and without: `<false>` must be reported, `<true>` must not.
#include <cuda_runtime.h>

#if defined(__CUDACC__) && !defined(FUSIOND_BARRIER)
#define FUSIOND_BARRIER(id, threads) asm volatile("bar.sync " #id ", " #threads ";" ::: "memory")
#endif

__device__ unsigned tickets;

template <bool Sound> __global__ void shared_neighbour(int* out) {
    __shared__ int s[64];
    s[threadIdx.x] = (int)threadIdx.x;
    if (Sound) __syncthreads();
    out[blockIdx.x * 64 + threadIdx.x] = s[63 - threadIdx.x];
}

// The second barrier keeps a fast thread from overwriting what a slow one has not read.
template <bool Sound> __global__ void shared_reuse(int* out) {
    extern __shared__ int dynamic[];
    int sum = 0;
    for (int round = 0; round < 3; ++round) {
        dynamic[threadIdx.x] = round + (int)threadIdx.x;
        __syncthreads();
        sum += dynamic[(threadIdx.x + 1) % 64];
        if (Sound) __syncthreads();
    }
    out[blockIdx.x * 64 + threadIdx.x] = sum;
}

template <bool Sound> __global__ void counter(int* out) {
    if (Sound) atomicAdd(out, 1);
    else *out += 1;
}

template <bool Sound> __global__ void across_blocks(int* out) { out[(Sound ? 64 * blockIdx.x : 0) + threadIdx.x] = 1; }

template <bool Sound> __global__ void warp_exchange(int* out) {
    __shared__ int s[64];
    s[threadIdx.x] = (int)threadIdx.x;
    if (Sound) __syncwarp();
    else out[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0);  // orders nothing
    out[blockIdx.x * 64 + threadIdx.x] = s[threadIdx.x ^ 1];
}

template <bool Sound> __global__ void last_block(int* out) {
    if (threadIdx.x) return;
    out[1 + blockIdx.x] = (int)blockIdx.x;
    if (Sound) __threadfence();
    if (atomicAdd(&tickets, 1u) != gridDim.x - 1) return;
    for (unsigned i = 0; i < gridDim.x; ++i) out[0] += out[1 + i];
}

// Stacks and shared memory pass from thread to thread and block to block; that is no race.
template <bool Sound> __global__ void own_stack(int* out) {
    int mine[8];
    for (int i = 0; i < 8; ++i) mine[i] = i * (int)threadIdx.x;
    __syncthreads();
    int* volatile escaped = mine;
    out[Sound ? blockIdx.x * 64 + threadIdx.x : 0] = escaped[threadIdx.x % 8];
}

// Two groups with a barrier each: a barrier orders its own users only.
template <bool Sound> __global__ void wrong_barrier(int* out) {
    __shared__ int s[64];
    s[threadIdx.x] = 1;
    if (threadIdx.x < 32) FUSIOND_BARRIER(1, 32);
    else FUSIOND_BARRIER(2, 32);
    out[blockIdx.x * 64 + threadIdx.x] = s[Sound ? threadIdx.x ^ 1 : 63 - threadIdx.x];
}
