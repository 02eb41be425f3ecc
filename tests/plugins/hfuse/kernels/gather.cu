// Gather, and scatter with addition; the operation is a template's template, the index checked by a macro of the file's.
#include <assert.h>
#define CUDA_KERNEL_ASSERT(cond) do { if (!(cond)) { assert(false && #cond); } } while (0)
#define CUDA_KERNEL_LOOP(i, n) for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += blockDim.x * gridDim.x)
template <bool is_scatter> struct Op;
template <> struct Op<true> { template <typename T> __device__ static void run(T* self, const T* src) { atomicAdd(self, *src); } };
template <> struct Op<false> { template <typename T> __device__ static void run(T* self, const T* src) { *self = *src; } };
template <typename T, typename index_t>
__global__ void gather_scatter(T* __restrict__ gathered, T* __restrict__ scattered, const T* __restrict__ src, const index_t* __restrict__ index, const int count, const int size)
{
    CUDA_KERNEL_LOOP(i, count)
    {
        index_t at = index[i];
        CUDA_KERNEL_ASSERT(at >= -size && at < size);
        if (at < 0) at += size;
        Op<false>::run(&gathered[i], &src[at]);
        Op<true>::template run<T>(&scattered[at], &src[i % size]);
    }
}
